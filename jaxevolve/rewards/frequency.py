"""Rewards by frequency: self-consistency, and the softened frequency reward of CSRS."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from jaxevolve.rewards.voting import NoAnswer, matches


def self_consistency(
    maternal: ArrayLike, *, of: ArrayLike | None = None, no_answer: NoAnswer = "zero"
) -> np.ndarray:
    """Rewards an answer by its share of the group, c(a) / G (Self-Judge's r_SC).

    Args:
        maternal: i32[P, G] class ids, -1 for no answer.
        of: i32[P, N] class ids to reward; the maternal ones if None.
        no_answer: "zero": no answer earns 0. "string": it is an answer like any other.

    Returns:
        f32[P, G], or f32[P, N].
    """
    maternal = np.asarray(maternal, np.int32)
    counts = matches(maternal if of is None else np.asarray(of, np.int32), maternal, no_answer)
    return (counts / maternal.shape[-1]).astype(np.float32)


def softened_frequency(
    maternal: ArrayLike,
    reinference: ArrayLike | None,
    gamma: float = 0.2,
    beta: float = 5.0,
    eps: float = 1e-6,
    *,
    of: ArrayLike | None = None,
    pool: Literal["prompt", "anchor"] = "prompt",
    include_self: bool = True,
    no_answer: NoAnswer = "zero",
) -> np.ndarray:
    """The softened frequency reward of CSRS (arXiv 2604.03647, Eq. 7 and 8).

    With n = G maternal answers and their M n re-inferences,

        f_base = count among all (M + 1) n answers / ((M + 1) n)
        f_r    = count among the re-inferences / (M n)
        reward = (1 + gamma tanh(beta (f_r / (f_base + eps) - 1))) f_base.

    An answer that gains frequency when its derivation is taken up again is worth more, one that
    loses is worth less. At the defaults the reward never exceeds 1 and is 1 only when all agree.
    Without re-inferences (None, or M = 0) it is the plain frequency.

    Args:
        maternal: i32[P, G] class ids, -1 for no answer.
        reinference: i32[P, G, M] class ids of the re-inferences from each maternal's anchor.
        gamma: the largest relative change by f_r.
        beta: its steepness (in the paper also the letter for the weight of the KL term).
        eps: keeps the ratio finite; the paper leaves its value open.
        of: i32[P, N] class ids to reward, of members of the two sets, anchor by anchor: N is a
            multiple of G. The maternal ones if None.
        pool: "prompt": f_r counts the re-inferences of the whole group, as the paper's formulas do.
            "anchor": only those from the response's own anchor.
        include_self: False takes the response's own answer out of f_base's count and total. Eq. 7
            counts it.
        no_answer: "zero": no answer earns 0, equals nothing and stays in the denominators.
            "string": it is an answer like any other.

    Returns:
        f32[P, G], or f32[P, N], computed in float64.
    """
    maternal = np.asarray(maternal, np.int32)
    prompts, group = maternal.shape
    if reinference is None:
        reinference = np.zeros((prompts, group, 0), np.int32)
    reinference = np.asarray(reinference, np.int32)
    if reinference.shape[:2] != maternal.shape:
        raise ValueError(
            f"reinference is [P, G, M] with the P, G of maternal {maternal.shape}, "
            f"not {reinference.shape}"
        )
    samples = reinference.shape[2]
    of = maternal if of is None else np.asarray(of, np.int32)
    again = matches(of, reinference.reshape(prompts, -1), no_answer)
    own = 0 if include_self else 1
    seen = np.maximum(matches(of, maternal, no_answer) + again - own, 0)
    base = seen / max((samples + 1) * group - own, 1)
    if samples == 0:
        return base.astype(np.float32)
    if pool == "prompt":
        after = again / (samples * group)
    elif pool == "anchor":
        by_anchor = of.reshape(prompts, group, -1)
        after = matches(by_anchor, reinference, no_answer).reshape(of.shape) / samples
    else:
        raise ValueError(f'pool is "prompt" or "anchor", not {pool!r}')
    multiplier = 1 + gamma * np.tanh(beta * (after / (base + eps) - 1))
    return (multiplier * base).astype(np.float32)
