"""How often is a policy right: greedily, on average, by vote, and by any of n samples?"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxevolve.answers.choices import options_for
from jaxevolve.answers.grading import grade
from jaxevolve.data.pipeline import eval_batches
from jaxevolve.data.sources import Rows
from jaxevolve.policy import Policy, Samples
from jaxevolve.rewards import unanimous, vote
from jaxevolve.runtime.distributed import gather

BATCH = 128  # questions sampled at a time
_LOG = logging.getLogger(__name__)
CONFIDENT = 7 / 8  # share of the samples that must agree to call an answer confident


@dataclass(frozen=True)
class Outcome:
    """What a policy made of Q questions, n samples each.

    Attributes:
        greedy: bool[Q], whether the greedy answer is right.
        correct: bool[Q, n].
        classes: i32[Q, n], the samples' answer classes, -1 for no answer.
        stopped: bool[Q, n], whether a sample ended by itself.
        entropy: f32[Q], mean -log p of a sampled token: an unbiased estimate of its entropy.
        tokens: all tokens sampled.
        excluded: how many more questions were asked whose label is broken.
    """

    greedy: np.ndarray
    correct: np.ndarray
    classes: np.ndarray
    stopped: np.ndarray
    entropy: np.ndarray
    tokens: int
    excluded: int = 0


def evaluate(
    policy: Policy,
    rows: Rows,
    *,
    questions: int = 0,
    n: int,
    max_tokens: int,
    instruction: str = "",
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = False,
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Answers every labeled question greedily and n times by sampling.

    Several processes share the questions; each calls this with the policy on its own devices.

    Args:
        policy: what is evaluated.
        rows: rows with "answer".
        questions: Q, the first of them are asked; 0 for all.
        n: samples a question.
        max_tokens: of a response.
        instruction: text after every question.
        temperature: of the samples.
        seed: of the samples.
        progress: show a live line with the time left.

    Returns:
        The outcome, and one record a question with all its responses: on every process those of
        all.
    """
    mine: list[tuple[Outcome, list[dict[str, Any]]] | None] = []
    total, processes = min(questions or len(rows), len(rows)), jax.process_count()
    size = min(BATCH, math.ceil(total / processes)) * processes
    batches = eval_batches(
        rows,
        policy.processor,
        batch=size,
        questions=total,
        instruction=instruction,
        process_index=jax.process_index(),
        process_count=processes,
    )
    for batch, prompts in tqdm(
        batches, total=math.ceil(total / size), unit="batch", disable=not progress
    ):
        wanted = len(batch)
        if not wanted:  # the end of a last batch
            mine.append(None)
            continue
        greedy = policy.generate(prompts, n=1, temperature=0.0, max_tokens=max_tokens)
        samples = policy.generate(
            prompts, n=n, temperature=temperature, max_tokens=max_tokens, seed=seed
        )
        texts = [g + s for g, s in zip(greedy.texts, samples.texts)][:wanted]
        options = [options_for(row["question"], row.get("choices")) for row in batch]
        graded = grade(texts, [row["answer"] for row in batch], options=options)
        kept = graded.labeled
        for row, fault in zip(batch, graded.faults):
            if fault is not None:
                _LOG.warning("question %s is excluded: %s (%r)", row["id"], fault, row["answer"])
        outcome = Outcome(
            greedy=graded.correct[kept, 0],
            correct=graded.correct[kept, 1:],
            classes=graded.classes[kept, 1:],
            stopped=samples.stopped[:wanted][kept],
            entropy=token_entropy(samples)[:wanted][kept],
            tokens=int(greedy.lengths[:wanted].sum() + samples.lengths[:wanted].sum()),
            excluded=int((~kept).sum()),
        )
        records = [
            {
                "id": row["id"],
                "family": row.get("family"),
                "label": row["answer"],
                "greedy": text[0],
                "responses": text[1:],
                "answers": answers[1:],
                "correct": right[1:].tolist(),
                "greedy_correct": bool(right[0]),
            }
            for row, text, answers, right, use in zip(
                batch, texts, graded.answers, graded.correct, kept
            )
            if use
        ]
        mine.append((outcome, records))
    # Batch by batch, and in each the processes in order: so stand the questions.
    parts = [part for number in zip(*gather(mine)) for part in number if part]
    outcomes, records = zip(*parts)
    return join(outcomes), [record for part in records for record in part]


def join(parts: Sequence[Outcome]) -> Outcome:
    """One outcome of several batches."""
    fields = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    sums = {name: sum(fields.pop(name)) for name in ("tokens", "excluded")}
    return Outcome(**sums, **{name: np.concatenate(x) for name, x in fields.items()})


def token_entropy(samples: Samples) -> np.ndarray:
    """f32[Q]: mean over a question's sampled tokens of -log p."""
    return -samples.logprobs.sum((1, 2)) / np.maximum(samples.lengths.sum(1), 1)


def summary(outcome: Outcome, families: Sequence[str | None]) -> dict[str, Any]:
    """Shares of 1 over all questions that count, and under "family" over those of each family.

    "excluded" is the number of questions that do not count, since their label is broken.
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
    return Outcome(tokens=0, excluded=0, **jax.tree.map(lambda x: x[mask], fields))


def shares(outcome: Outcome) -> dict[str, Any]:
    """The figures of eval.jsonl.

    "greedy", "average@n", "majority@n" (the first seen wins a tie), "pass@n" are shares of
    questions answered rightly; "unanimous" of questions whose samples all agree;
    "high_confidence_wrong" of questions on which at least 7 of 8 samples agree on one wrong
    answer; "no_answer" and "truncated" of samples; "entropy" is in nats a token.
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
        "truncated": ~outcome.stopped,
        "entropy": outcome.entropy,
    }
    means = {name: float(values.mean()) for name, values in figures.items()}
    return {"questions": len(outcome.greedy), **means}
