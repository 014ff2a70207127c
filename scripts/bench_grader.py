r"""Measures the grader on the answers of real benchmarks, with math-verify beside it.

    python scripts/bench_grader.py FOLDER/*.jsonl
    python scripts/bench_grader.py --pairs=predictions.jsonl

Every file is JSONL with an "answer" a row. To each answer belong eight predictions as models write
them: the answer itself, spelled in other ways, and wrong ones. `--pairs` takes rows with "gold" and
"pred" instead. All are judged in batches as large as a training step's, in a fresh process: once
with nothing known, once more with all canonical forms cached. math-verify gets a share of the
same pairs. Rates are answers a second of CPU time, worker processes counted, and of wall time.
"""

import argparse
import json
import random
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

from math_verify import parse, verify

from jaxevolve.answers import judge_many
from jaxevolve.answers.pool import shared

BATCH = 256
_NUMBER = re.compile(r"(?<![\d.^_{])\d+(?:\.\d+)?(?![\d.])")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")


def predictions(answer: str, source: random.Random) -> list[str]:
    """Eight predictions: four that are right, two whose rightness depends, two that are wrong."""

    def other_number(text: str) -> str:
        found = list(_NUMBER.finditer(text))
        if not found:
            return "no " + text
        chosen = source.choice(found)
        changed = Fraction(chosen[0]) + source.choice([1, 2, -1, 10])
        return (
            text[: chosen.start()] + str(float(changed)).removesuffix(".0") + text[chosen.end() :]
        )

    def decimal(text: str) -> str:
        return _FRACTION.sub(lambda m: f"{int(m[1]) / max(int(m[2]), 1):.6g}", text)

    plain = answer.strip("$")
    rewritings: list[Callable[[str], str]] = [
        lambda text: f"${text}$",
        lambda text: text.replace(r"\frac", r"\dfrac").replace("+", " + "),
        lambda text: rf"\text{{{text}}}" if text.isalpha() else f"{text}.",
        lambda text: text.replace("(", r"\left(").replace(")", r"\right)"),
        lambda text: f"x = {text}",
    ]
    right = [plain, *(rewrite(plain) for rewrite in source.sample(rewritings, 3))]
    depends = [decimal(plain), f"{plain} \\text{{ units}}"]
    return [*right, *depends, other_number(plain), other_number(plain)]


def load(files: list[str], pairs: str | None, seed: int) -> list[tuple[str, str]]:
    """(gold, pred) pairs, in an order that mixes the files."""
    if pairs:
        rows = map(json.loads, Path(pairs).read_text(encoding="utf-8").splitlines())
        return [(str(row["gold"]), str(row["pred"])) for row in rows]
    source = random.Random(seed)
    made = []
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            answer = json.loads(line).get("answer")
            answer = answer[0] if isinstance(answer, list) and answer else answer
            if answer and str(answer).strip():
                gold = str(answer).strip()
                made += [(gold, pred) for pred in predictions(gold, source)]
    source.shuffle(made)
    return made


def cpu_seconds() -> float:
    """CPU time of this process and of its workers, the living ones too."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    for pid in shared().processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / 100
    return total


def batches(pairs: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Pieces of BATCH pairs."""
    for start in range(0, len(pairs), BATCH):
        yield pairs[start : start + BATCH]


def measure(name: str, pairs: list[tuple[str, str]], judge: Callable) -> list[bool | None]:
    """Judges all pairs and prints the rates."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    verdicts = [verdict for batch in batches(pairs) for verdict in judge(batch)]
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    print(
        f"{name:<24}{len(pairs):>8} answers{cpu:>9.2f} CPU-s{len(pairs) / cpu:>10.0f} a CPU-second"
        f"{len(pairs) / wall:>10.0f} a second"
    )
    return verdicts


def ours(batch: list[tuple[str, str]]) -> list[bool | None]:
    """None where the label is excluded."""
    return [v.state and v.state == "right" for v in judge_many(batch)]


def math_verify(batch: list[tuple[str, str]]) -> list[bool | None]:
    """Its usual use: both sides in a box, its own limits of time."""
    verdicts = []
    for gold, pred in batch:
        sides = [parse(f"\\boxed{{{text}}}") for text in (gold, pred)]
        verdicts.append(verify(*sides))
    return verdicts


def main() -> None:
    """Loads, measures, compares."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("files", nargs="*", help="JSONL with an answer a row")
    flags.add_argument("--pairs", help="JSONL with gold and pred a row")
    flags.add_argument("--math_verify", type=int, default=800, help="pairs that it gets")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--disagreements", type=int, default=20, help="how many are printed")
    given = flags.parse_args()
    pairs = load(given.files, given.pairs, given.seed)
    print(f"{len(pairs)} pairs, {len(set(pairs))} of them different, in batches of {BATCH}")
    shared().ask([{"kind": "expression", "left": "x", "right": "y"}])  # starts the first process
    cold = measure("cold", pairs, ours)
    measure("cached", pairs, ours)
    print(f"verdicts {dict(Counter(cold))}; None is a broken label")
    share = pairs[: given.math_verify]
    if not share:
        return
    theirs = measure("math-verify", share, math_verify)
    table = Counter(zip(cold, theirs))
    same = sum(count for (a, b), count in table.items() if a == b)
    print(f"the same verdict as math-verify: {same} of {len(share)}")
    differing = {p: (a, b) for p, a, b in zip(share, cold, theirs) if a is not None and a != b}
    for (gold, pred), (a, b) in list(differing.items())[: given.disagreements]:
        print(f"  ours {a!s:<6} theirs {b!s:<6} {gold[:60]!r}  {pred[:60]!r}")


if __name__ == "__main__":
    main()
