"""How often is a policy right: greedily, on average, by vote, and by any of n samples?"""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxevolve.benchmarks import table
from jaxevolve.benchmarks.table import Benchmark
from jaxevolve.benchmarks.verdicts import Row
from jaxevolve.data.pipeline import Batch, eval_batches
from jaxevolve.data.sources import Rows
from jaxevolve.policy import Policy, Samples
from jaxevolve.rewards import unanimous, vote
from jaxevolve.runtime.distributed import gather

BATCH = 128  # questions sampled at a time
_LOG = logging.getLogger(__name__)
CONFIDENT = 7 / 8  # share of the samples that must agree to call an answer confident

Record = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a policy made of Q questions, n samples each.

    Attributes:
        greedy: bool[Q], whether the greedy answer is right.
        correct: bool[Q, n].
        classes: i32[Q, n], the samples' answer classes, -1 for no answer.
        stopped: bool[Q, n], whether a sample ended by itself; None where nobody knows.
        entropy: f32[Q], mean -log p of a sampled token: an unbiased estimate of its entropy; None
            where nobody knows.
        tokens: all tokens sampled.
        excluded: how many more questions there are, whose labels are broken.
    """

    greedy: np.ndarray
    correct: np.ndarray
    classes: np.ndarray
    stopped: np.ndarray | None
    entropy: np.ndarray | None
    tokens: int
    excluded: int = 0


def evaluate(
    policy: Policy | None,
    rows: Rows,
    *,
    questions: int = 0,
    n: int,
    max_tokens: int,
    instruction: str = "",
    temperature: float = 1.0,
    seed: int = 0,
    benchmark: Benchmark | None = None,
    batch: int = BATCH,
    done: Sequence[Record] = (),
    write: Callable[[Record], None] = lambda record: None,
    progress: bool = False,
) -> tuple[Outcome, list[Record]]:
    """Answers every question greedily and n times by sampling.

    Questions whose label is broken are not asked. A sample is a function of the seed, the question
    and its number in the group: which questions stand in a batch, or were answered before, does
    not matter.

    Several processes share the questions; each calls this with the policy on its own devices.

    Args:
        policy: what is evaluated; None where nothing is left to be asked.
        rows: rows of the benchmark.
        questions: the first of them are asked; 0 for all.
        n: samples a question.
        max_tokens: of a response.
        instruction: text after every question.
        temperature: of the samples.
        seed: of the samples.
        benchmark: how a question is put and its answers judged; labeled rows if None.
        batch: questions sampled at a time.
        done: records of an evaluation that was interrupted: their questions are not asked again.
        write: is given every new record, as soon as its batch is done.
        progress: show a live line with the time left.

    Returns:
        The outcome, and one record a question with all its responses, in the order of the rows: on
        every process those of all.
    """
    benchmark = benchmark or table.find("rows")
    asked, excluded = askable(benchmark, rows, questions)
    known: dict[str, list[Record]] = {}
    for record in reversed(done):
        known.setdefault(record["id"], []).append(record)
    records = [known[row["id"]].pop() if known.get(row["id"]) else None for row in asked]
    left = [place for place, record in enumerate(records) if record is None]
    bar = tqdm(
        total=len(asked), initial=len(asked) - len(left), unit="question", disable=not progress
    )
    process, processes = jax.process_index(), jax.process_count()
    share = min(batch, -(-len(left) // processes))
    batches: Iterable[Batch] = ()
    if left:
        batches = eval_batches(
            [benchmark.prompt(asked[place]) for place in left],
            policy.processor,
            batch=share * processes,
            instruction=instruction,
            process_index=process,
            process_count=processes,
        )
    mine: list[tuple[int, Record]] = []
    for number, (put, prompts) in enumerate(batches):
        if not put:  # the end of a last batch
            continue
        begun = time.perf_counter()
        greedy = policy.generate(prompts, n=1, temperature=0.0, max_tokens=max_tokens)
        samples = policy.generate(
            prompts, n=n, temperature=temperature, max_tokens=max_tokens, seed=seed
        )
        seconds = (time.perf_counter() - begun) / len(put)
        start = (number * processes + process) * share
        places = left[start : start + len(put)]
        judged = [asked[place] for place in places]
        made = _records(benchmark, judged, greedy, samples, seconds)
        for place, record in zip(places, made):
            mine.append((place, record))
            write(record)
        bar.update(min(share * processes, len(left) - number * share * processes))
    bar.close()
    for place, record in itertools.chain(*gather(mine)):
        records[place] = record
    return outcome_of(records, excluded=excluded), records


def askable(benchmark: Benchmark, rows: Rows, questions: int = 0) -> tuple[list[Row], int]:
    """The first so many rows (0: all) but those with broken labels, and how many these are."""
    chosen = [rows[i] for i in range(min(questions or len(rows), len(rows)))]
    faults = [benchmark.fault(row) for row in chosen]
    for row, fault in zip(chosen, faults):
        if fault is not None:
            _LOG.warning("question %s is excluded: %s (%r)", row["id"], fault, row["answer"])
    kept = [row for row, fault in zip(chosen, faults) if fault is None]
    return kept, len(chosen) - len(kept)


def _records(
    benchmark: Benchmark,
    rows: Sequence[Row],
    greedy: Samples,
    samples: Samples,
    seconds: float,
) -> list[Record]:
    """What is kept of one batch; the padding of its last questions is dropped."""
    texts = [g + s for g, s in zip(greedy.texts, samples.texts)][: len(rows)]
    entropy = token_entropy(samples)
    tokens = greedy.lengths.sum(1) + samples.lengths.sum(1)
    return [
        {
            **record,
            "greedy_stopped": bool(greedy.stopped[i, 0]),
            "stopped": samples.stopped[i].tolist(),
            "entropy": float(entropy[i]),
            "tokens": int(tokens[i]),
            "seconds": round(seconds, 4),
        }
        for i, record in enumerate(judge(benchmark, rows, texts))
    ]


def judge(
    benchmark: Benchmark, rows: Sequence[Row], texts: Sequence[Sequence[str]]
) -> list[Record]:
    """Records of responses: the greedy one first, then n samples, of each question."""
    made = benchmark.grade(rows, texts)
    return [
        {
            "id": row["id"],
            "family": row.get("family"),
            "label": row["answer"],
            "greedy": group[0],
            "responses": list(group[1:]),
            "greedy_answer": answers[0],
            "answers": answers[1:],
            "greedy_correct": bool(right[0]),
            "correct": right[1:].tolist(),
            "classes": classes[1:].tolist(),
        }
        for row, group, answers, right, classes in zip(
            rows, texts, made.answers, made.correct, made.classes
        )
    ]


def outcome_of(records: Sequence[Record], *, excluded: int = 0) -> Outcome:
    """The outcome that records tell of, whoever sampled them.

    Args:
        records: as `judge` makes them; "stopped", "entropy" and "tokens" where they are known.
        excluded: questions with broken labels, of which there are no records.
    """
    n = len(records[0]["correct"]) if records else 0

    def column(name: str, *shape: int) -> np.ndarray | None:
        known = all(name in record for record in records)
        return np.array([r[name] for r in records]).reshape(-1, *shape) if known else None

    return Outcome(
        greedy=column("greedy_correct"),
        correct=column("correct", n),
        classes=column("classes", n),
        stopped=column("stopped", n),
        entropy=column("entropy"),
        tokens=sum(record.get("tokens", 0) for record in records),
        excluded=excluded,
    )


def official(
    benchmark: Benchmark, rows: Sequence[Row], records: Sequence[Record]
) -> dict[str, Any]:
    """The benchmark's own figures.

    Args:
        benchmark: whose rule.
        rows: Q rows.
        records: of the same rows.

    Returns:
        "official", the figure that is quoted, of the greedy responses; "official_average@n", its
        mean over the n columns of samples; "figures", all of them, of the greedy responses. Empty
        for rows that are no published benchmark.
    """
    figures = benchmark.figures(rows, [record["greedy_correct"] for record in records])
    if not figures:
        return {}
    columns = zip(*(record["correct"] for record in records))
    scores = [table.headline(benchmark.figures(rows, column)) for column in columns]
    return {
        "official": table.headline(figures),
        f"official_average@{len(scores)}": float(np.mean(scores)),
        "figures": figures,
    }


def pass_at(correct: np.ndarray, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples is right.

    One minus the share of the k-subsets of a question's n samples that hold no right one, the mean
    over questions (Chen et al. 2021, arXiv 2107.03374, Eq. 1).

    Args:
        correct: bool[Q, n].
        k: at most n.
    """
    n = correct.shape[1]
    wrong = n - correct.sum(1)
    return float(np.mean([1 - math.comb(int(w), k) / math.comb(n, k) for w in wrong]))


def token_entropy(samples: Samples) -> np.ndarray:
    """f32[Q]: mean over a question's sampled tokens of -log p."""
    return -samples.logprobs.sum((1, 2)) / np.maximum(samples.lengths.sum(1), 1)


def summary(outcome: Outcome, families: Sequence[str | None]) -> dict[str, Any]:
    """Shares of 1 over all questions, and under "family" over those of each family.

    "excluded" counts the questions that were not asked, since their labels are broken.
    """
    result = {**shares(outcome), "excluded": outcome.excluded}
    names = sorted({name for name in families if name})
    if names:
        chosen = {name: np.array([f == name for f in families]) for name in names}
        result["family"] = {name: shares(select(outcome, mask)) for name, mask in chosen.items()}
    return result


def select(outcome: Outcome, mask: np.ndarray) -> Outcome:
    """The questions of a mask."""
    fields = {k: v for k, v in vars(outcome).items() if k not in ("tokens", "excluded")}
    return Outcome(tokens=0, **jax.tree.map(lambda x: x[mask], fields))


def shares(outcome: Outcome) -> dict[str, Any]:
    """The figures of eval.jsonl.

    "greedy", "average@n", "majority@n" (the first seen wins a tie), "pass@n" are shares of
    questions answered rightly; "unanimous" of questions whose samples all agree;
    "high_confidence_wrong" of questions on which at least 7 of 8 samples agree on one wrong
    answer; "no_answer" and "truncated" of samples; "entropy" is in nats a token. What nobody knows
    is left out.
    """
    n = outcome.correct.shape[1]
    winner, share = vote(outcome.classes)
    right = (outcome.correct & (outcome.classes == winner[:, None])).any(1)
    figures = {
        "greedy": outcome.greedy,
        f"average@{n}": outcome.correct,
        f"majority@{n}": right,
        f"pass@{n}": outcome.correct.any(1),
        "unanimous": unanimous(outcome.classes),
        "high_confidence_wrong": (winner >= 0) & ~right & (share >= CONFIDENT),
        "no_answer": outcome.classes < 0,
    }
    if outcome.stopped is not None:
        figures["truncated"] = ~outcome.stopped
    if outcome.entropy is not None:
        figures["entropy"] = outcome.entropy
    means = {name: float(values.mean()) for name, values in figures.items()}
    return {"questions": len(outcome.greedy), **means}
