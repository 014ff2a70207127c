"""Majority voting over answer classes, and what a vote says about a group.

A class id is a small integer of `jaxevolve.answers.classes`: equal ids, equal answers; -1 means
that no answer was found. Shapes: P prompts, G maternal responses, M re-inferences an anchor,
N any number of answers.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

NoAnswer = Literal["zero", "string"]


def matches(left: np.ndarray, right: np.ndarray, no_answer: NoAnswer = "zero") -> np.ndarray:
    """Counts, for every answer of one set, the answers of another that equal it.

    Args:
        left: i32[..., A] class ids.
        right: i32[..., B] class ids.
        no_answer: "zero": -1 equals nothing, not even another -1. "string": -1 is an answer like
            any other, as in code that writes the word "None" where no answer was found.

    Returns:
        i64[..., A], the number of elements of `right` equal to each element of `left`.
    """
    if no_answer not in ("zero", "string"):
        raise ValueError(f'no_answer is "zero" or "string", not {no_answer!r}')
    equal = left[..., :, None] == right[..., None, :]
    if no_answer == "zero":
        equal &= (left >= 0)[..., :, None]
    return equal.sum(-1)


def vote(classes: ArrayLike, no_answer: NoAnswer = "zero") -> tuple[np.ndarray, np.ndarray]:
    """Finds the most frequent answer; of equally frequent ones the first seen wins.

    Args:
        classes: i32[..., N] class ids, -1 for no answer.
        no_answer: "zero": no answer cannot win. "string": it can.

    Returns:
        (winner i32[...], share f32[...]): the winning class, -1 where nobody answered, and its
        votes divided by N. A response without an answer stays in the denominator.
    """
    classes = np.asarray(classes, np.int32)
    if classes.shape[-1] == 0:
        raise ValueError("a vote needs at least one ballot")
    counts = matches(classes, classes, no_answer)
    first = counts.argmax(-1)[..., None]  # argmax takes the first of equals
    winner = np.take_along_axis(classes, first, -1)[..., 0]
    best = np.take_along_axis(counts, first, -1)[..., 0]
    winner = np.where(best > 0, winner, -1).astype(np.int32)
    return winner, (best / classes.shape[-1]).astype(np.float32)


def majority_vote(
    maternal: ArrayLike,
    reinference: ArrayLike | None = None,
    *,
    of: ArrayLike | None = None,
    no_answer: NoAnswer = "zero",
) -> np.ndarray:
    """Rewards agreement with the majority, 1 or 0 (MM-UPT; its label is the vote's winner).

    Args:
        maternal: i32[P, G] class ids, -1 for no answer.
        reinference: i32[P, G, M] class ids that vote too, after the maternal ones (CSRS with
            re-inference and without the softened reward, Table 5).
        of: i32[P, N] class ids to reward; the maternal ones if None.
        no_answer: "zero": no answer cannot win and earns 0. "string": it is an answer like any
            other, so that a group of failures rewards itself, as the released code of MM-UPT does.

    Returns:
        f32[P, G], or f32[P, N].
    """
    maternal = np.asarray(maternal, np.int32)
    ballots = maternal
    if reinference is not None:
        flat = np.asarray(reinference, np.int32).reshape(maternal.shape[0], -1)
        ballots = np.concatenate([maternal, flat], axis=-1)
    winner, _ = vote(ballots, no_answer)
    of = maternal if of is None else np.asarray(of, np.int32)
    earned = of == winner[:, None]
    if no_answer == "zero":
        earned &= of >= 0
    return earned.astype(np.float32)


def unanimous(classes: ArrayLike) -> np.ndarray:
    """Tells which groups agree on one answer: i32[..., N] class ids -> bool[...]."""
    classes = np.asarray(classes, np.int32)
    return (classes[..., 0] >= 0) & (classes == classes[..., :1]).all(-1)


def distinct_answers(classes: ArrayLike) -> np.ndarray:
    """Counts different answers, no answer not among them: i32[..., N] class ids -> i32[...]."""
    ordered = np.sort(np.asarray(classes, np.int32), axis=-1)
    new = np.diff(ordered, axis=-1, prepend=-1) != 0
    return new.sum(-1).astype(np.int32)
