"""Measures a model on a benchmark: greedy, average, majority and any of n samples.

    python -m jaxevolve.evaluate --model=DIR --benchmark=NAME --data=PATH --n=8 --out=FILE
    python -m jaxevolve.evaluate --rescore=RESPONSES --benchmark=NAME --data=PATH --out=FILE

Benchmarks: mathvision, mathverse, mathvista, wemath, logicvista, dynamath, chartqa, mmvp, mmmu,
gsm8k, math500, aime2024, amc2023, olympiadbench, college_math, gaokao2023en, geometry3k, geoqa,
mmr1; "rows", any labeled parquet or JSONL in a layout that training reads; "geometry", the built-in
drawn problems (--data is optional, such as "geometry:tri=0.5,parI=0.5,seed=7").

FILE gets the figures as JSON; every response goes to a JSONL file beside it as soon as its batch is
done, and the same command goes on from there. RESPONSES is such a file, or any with "id" and
"response" (or "responses"), of whatever system: it is scored, and no model is needed.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import flags

from jaxevolve.benchmarks import accuracy, questions, table
from jaxevolve.benchmarks.table import Benchmark
from jaxevolve.benchmarks.verdicts import Row
from jaxevolve.policy import load_model_processor, load_policy
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import append_jsonl, read_jsonl

BUILT_IN = "geometry:tri=0.35,ext=0.25,iso=0.25,parI=0.15,seed=1,length=320"
_SHOWN = 12  # parts of a breakdown that the printed table has; the JSON has all


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    text = {
        "model": "a Hugging Face folder, a run's folder or one of its checkpoints",
        "benchmark": "what --data holds; the names are above",
        "data": "questions with answers: a file, folder, glob or geometry:...",
        "out": "the JSON file to write",
        "rescore": "a JSONL or JSON file of responses to score instead of sampling any",
        "instruction": "text after every question; the paper's that reports the benchmark if unset",
    }
    for name, meaning in text.items():
        default = "rows" if name == "benchmark" else None
        flags.DEFINE_string(name, default, meaning, flag_values=values)
    number = {
        "n": (8, "samples a question, beside the greedy one"),
        "questions": (0, "the first so many; 0 for all"),
        "max_tokens": (64, "limit of a response"),
        "seed": (0, "of the samples"),
        "batch": (32, "questions sampled at a time, and the most that an interruption can lose"),
        "min_pixels": (0, "smaller images are enlarged to this area; 0 for the model's own limit"),
        "max_pixels": (0, "larger images are reduced to this area; 0 for the model's own limit"),
    }
    for name, (default, meaning) in number.items():
        least = 1 if name in ("n", "max_tokens", "batch") else 0
        flags.DEFINE_integer(name, default, meaning, lower_bound=least, flag_values=values)
    flags.DEFINE_float("temperature", 1.0, "of the samples", lower_bound=0.0, flag_values=values)
    flags.DEFINE_enum(
        "dtype", "float32", ["float32", "bfloat16"], "what is computed in", flag_values=values
    )
    flags.DEFINE_boolean(
        "mmmu_random_guess",
        False,
        "MMMU's random choice where nothing is parsed",
        flag_values=values,
    )


def main(values: flags.FlagValues) -> None:
    """Loads, asks or reads, scores, writes, prints."""
    benchmark = table.find(values.benchmark, guess=values.mmmu_random_guess)
    data = values.data or (BUILT_IN if benchmark.name == "geometry" else None)
    needed = {"data": data, "out": values.out, "model": values.model or values.rescore}
    for name, value in needed.items():
        if not value:
            raise UserError(f"--{name} is missing: give {values[name].help}")
    if values.model and values.rescore:
        raise UserError("--model and --rescore are both given; a rescoring needs no model")
    rows, excluded = questions.load(benchmark, data, values.questions)
    out = Path(values.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if values.rescore:
        records = questions.rescored(benchmark, rows, Path(values.rescore))
        decoding: dict[str, Any] = {"responses": values.rescore}
    else:
        records, decoding = _answer(values, benchmark, rows, out)
    answered = {record["id"] for record in records}
    rows, missing = [r for r in rows if r["id"] in answered], len(rows) - len(answered)
    outcome = accuracy.outcome_of(records, excluded=len(excluded))
    result = {
        "benchmark": benchmark.name,
        "data": data,
        "model": values.model,
        "grader": benchmark.grader,
        "decoding": decoding,
        **_speed(records),
        **accuracy.official(benchmark, rows, records),
        **accuracy.summary(outcome, [record["family"] for record in records]),
        **_pass_at(outcome),
        "counts": _counts(records),
        "excluded_ids": excluded,
        "missing": missing,
    }
    beside = out.with_suffix(".partial")
    beside.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, out)
    print(render(result))
    print(
        f"{result['questions']} questions; figures in {out}"
        + ("" if values.rescore else f", responses in {responses_beside(out)}")
    )


def responses_beside(out: Path) -> Path:
    """Where the responses of an evaluation lie."""
    return out.with_suffix(".responses.jsonl")


def _answer(
    values: flags.FlagValues, benchmark: Benchmark, rows: Sequence[Row], out: Path
) -> tuple[list[accuracy.Record], dict[str, Any]]:
    """Samples what no earlier start of the same command has sampled."""
    processor = questions.with_limits(
        load_model_processor(values.model), values.min_pixels, values.max_pixels
    )
    instruction = benchmark.instruction if values.instruction is None else values.instruction
    numbers = ("n", "temperature", "max_tokens", "seed", "dtype", "min_pixels", "max_pixels")
    decoding = {
        "model": str(processor.folder),
        "benchmark": benchmark.name,
        "greedy": "temperature 0",
        **{name: values[name].value for name in numbers},
        "instruction": instruction,
    }
    path = responses_beside(out)
    done = read_jsonl(path)
    for record in done:
        _same_settings(path, record.get("decoding", {}), decoding)
    known = {record["id"] for record in done}
    left = [row for row in rows if row["id"] not in known]
    questions.check(benchmark, left, processor, instruction)
    policy = None
    if left:
        policy = replace(load_policy(values.model, values.dtype), processor=processor)
        if done:
            print(
                f"{len(rows) - len(left)} of {len(rows)} questions are answered already in {path}"
            )
    _mend(path, done)
    with path.open("a", encoding="utf-8") as file:
        _, records = accuracy.evaluate(
            policy,
            rows,
            n=values.n,
            max_tokens=values.max_tokens,
            instruction=instruction,
            temperature=values.temperature,
            seed=values.seed,
            benchmark=benchmark,
            batch=values.batch,
            done=done,
            write=lambda record: append_jsonl(file, {**record, "decoding": decoding}),
            progress=True,
        )
    return records, decoding


def _same_settings(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = [name for name in new if old.get(name) != new[name]]
    if changed:
        told = ", ".join(f"{name} was {old.get(name)!r} and is {new[name]!r}" for name in changed)
        raise UserError(
            f"{path} holds responses of another evaluation ({told}); "
            "give another --out, or delete that file"
        )


def _mend(path: Path, records: Sequence[accuracy.Record]) -> None:
    """Drops a last line that was cut short, so that the next one is not written behind it."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        beside = path.with_suffix(".rewritten")
        with beside.open("w", encoding="utf-8") as file:
            for record in records:
                append_jsonl(file, record)
        os.replace(beside, path)


def _speed(records: Sequence[accuracy.Record]) -> dict[str, float]:
    seconds = sum(record.get("seconds", 0.0) for record in records)
    tokens = sum(record.get("tokens", 0) for record in records)
    return {"tokens_per_second": tokens / seconds} if seconds else {}


def _counts(records: Sequence[accuracy.Record]) -> dict[str, int]:
    """How many sampled responses there are, how many have no answer, and how many were cut."""
    classes = [number for record in records for number in record["classes"]]
    told = {"responses": len(classes), "no_answer": sum(number < 0 for number in classes)}
    stopped = [value for record in records for value in record.get("stopped", ())]
    return told | ({"truncated": len(stopped) - sum(stopped)} if stopped else {})


def _pass_at(outcome: accuracy.Outcome) -> dict[str, float]:
    """pass@k for the powers of two up to n; that of n itself is among the shares."""
    n = outcome.correct.shape[1]
    ks = [k for k in (1 << i for i in range(n.bit_length())) if k < n]
    return {f"pass@{k}": accuracy.pass_at(outcome.correct, k) for k in ks}


def render(result: Mapping[str, Any]) -> str:
    """The figures as a table for people, shares in percent."""
    told = {"benchmark": result["benchmark"], "grader": result["grader"]}
    told |= {k: v for k, v in result["decoding"].items() if k not in ("benchmark", "instruction")}
    lines = ["", *(f"{name:<28}{value}" for name, value in told.items()), ""]
    for name, value in result.items():
        if isinstance(value, float):
            lines.append(_line(name, value))
        elif isinstance(value, int) and (value or name == "questions"):
            lines.append(f"{_words(name):<28}{value:>10}")
        elif name == "counts":
            lines += [f"{_words(part)} (count)".ljust(28) + f"{n:>10}" for part, n in value.items()]
    for name, value in result.get("figures", {}).items():
        if isinstance(value, Mapping):
            lines += ["", f"{_words(name)} (greedy, official)"]
            lines += [
                f"  {part:<40}{100 * share:>8.2f}" for part, share in [*value.items()][:_SHOWN]
            ]
            if len(value) > _SHOWN:
                lines.append(f"  and {len(value) - _SHOWN} more")
        elif isinstance(value, float):
            lines.append(_line(f"figures: {name}", value))
    return "\n".join(lines)


def _line(name: str, value: float) -> str:
    plain = name in ("entropy", "tokens_per_second")
    return f"{_words(name):<28}{value if plain else 100 * value:>10.2f}" + ("" if plain else " %")


def _words(name: str) -> str:
    return name.replace("_", " ")


if __name__ == "__main__":
    cli.run(main, define, __doc__)
