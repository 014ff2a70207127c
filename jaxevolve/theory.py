"""What should the distribution of answers do? The recursions that CSRS derives, in closed form.

CSRS (arXiv 2604.03647) section 3.1 and appendix A.1: a policy that maximizes its advantage under a
KL penalty of weight beta against what it was before becomes

    P_{n+1}(x) = P_n(x) exp(r_n(x) / beta) / Z                                        (Eq. 3)

with r_n(x) = 1 for the most frequent answer and 0 for any other (majority voting), or
r_n(x) = P_n(x) (softened frequency); a group's mean reward cancels in Z. A real update is a few
steps of Adam, so 1 / beta of a visit is something to fit (`fitted_eta`), not a setting.

Answers are the entries of a vector p f64[A] that sums to 1.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Rule = Literal["majority", "softened"]


def reward(p: ArrayLike, rule: Rule) -> np.ndarray:
    """The reward of each answer in the limit of many samples: p f64[..., A] -> f64[..., A].

    Of equally frequent answers the first one is the majority.
    """
    p = np.asarray(p, np.float64)
    if rule == "softened":
        return p
    if rule == "majority":
        return np.eye(p.shape[-1])[p.argmax(-1)]
    raise ValueError(f'a rule is "majority" or "softened", not {rule!r}')


def tilted(reference: ArrayLike, reward: ArrayLike, eta: float) -> np.ndarray:
    """The optimum of advantage minus KL / eta: reference exp(eta reward) / Z (Proposition 1).

    Args:
        reference: f64[..., A] distributions.
        reward: f64[..., A].
        eta: 1 / beta, at least 0.

    Returns:
        f64[..., A]. An answer of probability 0 stays there.
    """
    reward = np.asarray(reward, np.float64)
    exponent = eta * (reward - reward.max(-1, keepdims=True))
    weight = np.asarray(reference, np.float64) * np.exp(exponent)
    return weight / weight.sum(-1, keepdims=True)


def trajectory(p: ArrayLike, rule: Rule, eta: float, visits: int) -> np.ndarray:
    """The distributions after 0, 1, ..., `visits` visits of a question (Eq. 3).

    Args:
        p: f64[A], the distribution at first.
        rule: what is rewarded.
        eta: 1 / beta of one visit.
        visits: how often the policy is updated.

    Returns:
        f64[visits + 1, A].
    """
    path = [np.asarray(p, np.float64)]
    for _ in range(visits):
        path.append(tilted(path[-1], reward(path[-1], rule), eta))
    return np.stack(path)


def contrastive_factor(p: ArrayLike, rule: Rule, eta: float) -> float:
    """By how much a visit multiplies the odds of the majority against the rarest answer (Eq. 4, 5).

    exp(eta) under majority voting; exp(eta (rho - eps)) under the softened frequency, where rho and
    eps are the shares of the two.

    Args:
        p: f64[A]; answers of probability 0 do not count.
        rule: what is rewarded.
        eta: 1 / beta.
    """
    p = np.asarray(p, np.float64)
    majority = p.argmax()
    tail = np.where((p > 0) & (np.arange(len(p)) != majority), p, np.inf).argmin()
    if tail == majority or p[tail] == 0:
        raise ValueError("odds need two answers of positive probability")
    r = reward(p, rule)
    return float(np.exp(eta * (r[majority] - r[tail])))


def odds_factor(before: ArrayLike, after: ArrayLike) -> np.ndarray:
    """The contrastive factor measured on counts, by question, from one visit to the next (Eq. 4).

    The odds are those of the answer that was the majority before against all others together, with
    half a count added to each (Haldane and Anscombe), so that they are finite.

    Args:
        before: i[Q, A] counts of each answer.
        after: i[Q, A] counts of the same answers, at the next visit.

    Returns:
        f64[Q].
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    majority = before.argmax(-1)[..., None]

    def odds(counts: np.ndarray) -> np.ndarray:
        own = np.take_along_axis(counts, majority, -1)[..., 0]
        return (own + 0.5) / (counts.sum(-1) - own + 0.5)

    return odds(after) / odds(before)


def fitted_eta(before: ArrayLike, after: ArrayLike, rule: Rule) -> float:
    """The eta of Eq. 3 that leads closest from one distribution to the next.

    Least squares over the log-ratios of answers that occur in both, each weighted by its share
    before: log(after / before) = eta r + constant.

    Args:
        before: f64[Q, A] distributions.
        after: f64[Q, A].
        rule: what is rewarded.

    Returns:
        eta; NaN where no question has two answers whose rewards differ.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    r = reward(before, rule)
    seen = (before > 0) & (after > 0)
    weight = np.where(seen, before, 0.0)
    total = np.maximum(weight.sum(-1, keepdims=True), 1e-300)
    change = np.where(seen, np.log(np.where(seen, after, 1) / np.where(seen, before, 1)), 0.0)
    center = lambda x: x - (weight * x).sum(-1, keepdims=True) / total
    r, change = center(r), center(change)
    spread = (weight * r * r).sum()
    return float((weight * r * change).sum() / spread) if spread > 0 else float("nan")
