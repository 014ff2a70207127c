r"""Self-Judge (arXiv 2603.21289): self-consistency, modulated by the scores of a frozen judge.

The released code goes, group by group, through

    base = share of the answer, or 1 and 0 where one answer has more than 85 % of the group
    R    = clip(base g(s) - 0.5 [wrong format], 0, 1)

with s in [0, 1] the judge's score of a response. What the policy learns from is log q, the group's
distribution exp(alpha R) / sum exp(alpha R): see `objectives.log_group_distribution`.
"""

import json
import math
import re

import numpy as np
from numpy.typing import ArrayLike

from jaxevolve.rewards.frequency import self_consistency
from jaxevolve.rewards.voting import NoAnswer, majority_vote, vote

_NUMBER = r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
_BOX = re.compile(r"\\boxed\s*\{" + _NUMBER + r"\}")
_BLOCK = re.compile(r"BEGIN[_ ]SCORES(.*?)END[_ ]SCORES", re.DOTALL)
_SCORES = re.compile(r"\[SCORES\](.*?)(?:\[/SCORES\]|$)", re.DOTALL)
_OVERALL = re.compile(r"overall(?:_score)?\"?\s*[:=]" + _NUMBER)


def parse_score(judgement: str) -> float | None:
    r"""Reads the score of a judgement.

    In this order: the last \boxed{number}; overall_score of the JSON between BEGIN SCORES and END
    SCORES; "overall" of a [SCORES] block.

    Args:
        judgement: what the judge wrote; of a judge that thinks, what follows </think>.

    Returns:
        The score, moved into [0, 1]; None where there is none.
    """
    boxes = _BOX.findall(judgement)
    if boxes:
        return _in_unit(float(boxes[-1]))
    block = _BLOCK.search(judgement)
    if block is not None:
        start, end = block[1].find("{"), block[1].rfind("}")
        try:
            value = json.loads(block[1][start : end + 1])["overall_score"]
            return _in_unit(float(value))
        except (ValueError, KeyError, TypeError):
            pass
    for text in _SCORES.findall(judgement)[::-1]:
        found = _OVERALL.search(text)
        if found:
            return _in_unit(float(found[1]))
    return None


def modulation(
    scores: ArrayLike,
    *,
    high: float = 0.95,
    low: float = 0.40,
    gain: float = 0.2,
    loss: float = 0.2,
    high_width: float = 0.02,
    low_width: float = 0.05,
) -> np.ndarray:
    """g(s) = 1 + gain sigma((s - high) / high_width) - loss sigma((low - s) / low_width).

    Args:
        scores: f[...] in [0, 1].
        high: the score from which a response is worth more (t_h).
        low: the score below which it is worth less (t_l).
        gain: the most that is won (lambda_+).
        loss: the most that is lost (lambda_-).
        high_width: of the upper step (tau_h).
        low_width: of the lower step (tau_l).

    Returns:
        f64[...] in [1 - loss, 1 + gain].
    """
    s = np.asarray(scores, np.float64)
    sigmoid = lambda x: 0.5 * (1 + np.tanh(x / 2))
    g = 1 + gain * sigmoid((s - high) / high_width) - loss * sigmoid((low - s) / low_width)
    return np.clip(g, 1 - loss, 1 + gain)


def consistency(
    classes: ArrayLike, *, hard_above: float | None = 0.85, no_answer: NoAnswer = "zero"
) -> np.ndarray:
    """Self-consistency that turns into a majority vote where a group nearly agrees.

    Args:
        classes: i32[P, G] class ids, -1 for no answer.
        hard_above: the share of the most frequent answer above which its group is voted on, 1 or
            0; None never (the paper does not have this switch, its released code has).
        no_answer: "zero": no answer earns 0. "string": it is an answer like any other.

    Returns:
        f32[P, G].
    """
    soft = self_consistency(classes, no_answer=no_answer)
    if hard_above is None:
        return soft
    _, share = vote(classes, no_answer)
    hard = majority_vote(classes, no_answer=no_answer)
    return np.where(share[:, None] > hard_above, hard, soft)


def judged(
    base: ArrayLike,
    scores: ArrayLike | None,
    format_ok: ArrayLike | None = None,
    *,
    penalty: float = 0.5,
) -> np.ndarray:
    """R = clip(base g(s) - penalty [wrong format], 0, 1).

    Args:
        base: f32[P, G], of `consistency`; ones where the judge alone decides.
        scores: f32[P, G] in [0, 1]; None leaves the judge out.
        format_ok: bool[P, G], whether a response is laid out as asked; None leaves the penalty out.
        penalty: what a wrong layout costs.

    Returns:
        f32[P, G].
    """
    rewards = np.asarray(base, np.float64)
    if scores is not None:
        rewards = rewards * modulation(scores)
    if format_ok is not None:
        rewards = rewards - penalty * ~np.asarray(format_ok, bool)
    return np.clip(rewards, 0, 1).astype(np.float32)


def mean_score(scores: list[float | None], *, unread: float | None = 0.0) -> float | None:
    """The mean over the repeats of a judgement.

    Args:
        scores: of `parse_score`.
        unread: what a judgement without a score counts as; None leaves it out.

    Returns:
        The mean; None where nothing is left.
    """
    values = [unread if s is None else s for s in scores]
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def auc(scores: ArrayLike, correct: ArrayLike) -> float:
    """How well scores tell right from wrong: the area under the ROC curve.

    That is the chance that a right response has a higher score than a wrong one, equal scores
    counting half (Mann and Whitney's U, scaled).

    Args:
        scores: f32[...]; NaN is left out.
        correct: bool[...].

    Returns:
        The area; NaN where one of the two kinds is missing.
    """
    scores, correct = np.asarray(scores, np.float64), np.asarray(correct, bool)
    known = ~np.isnan(scores)
    right, wrong = scores[known & correct], np.sort(scores[known & ~correct])
    if not len(right) or not len(wrong):
        return float("nan")
    below = np.searchsorted(wrong, right, "left") + np.searchsorted(wrong, right, "right")
    return float(below.mean() / 2 / len(wrong))


def _in_unit(value: float) -> float:
    """Into [0, 1]; infinities too."""
    return min(max(value, 0.0), 1.0) if not math.isnan(value) else 0.0
