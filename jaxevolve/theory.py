"""What should the distribution of answers do? The recursions that CSRS derives, in closed form.

CSRS (arXiv 2604.03647) section 3.1 and appendix A.1: a policy that maximizes its advantage under a
KL penalty of weight beta against what it was before becomes

    P_{n+1}(x) = P_n(x) exp(r_n(x) / beta) / Z                                        (Eq. 3)

with r_n(x) = 1 for the most frequent answer and 0 for any other (majority voting), or
r_n(x) = P_n(x) (softened frequency); a group's mean reward cancels in Z. A real update is a few
steps of Adam, so 1 / beta of a visit is something to fit (`fitted_eta`), not a setting.

Answers are the entries of a vector p f64[A] that sums to 1.
"""

from typing import Literal, NamedTuple

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


class Contrast(NamedTuple):
    """What two visits of Q questions tell of the contrastive factor.

    Attributes:
        log_factor: f64[Q], log G: by how much the log-odds of the majority answer against all
            others have grown from one visit to the next. NaN for a question with a single answer.
        gap: f64[Q], rho - eps over both visits: the majority's share, and the share of another
            answer, the mean over responses that give another. NaN likewise.
    """

    log_factor: np.ndarray
    gap: np.ndarray


def contrast(before: ArrayLike, after: ArrayLike) -> Contrast:
    """Measures the contrastive factor on counts of answers (Eq. 4, 5).

    The majority is that of both visits together. Taken from the first visit alone it would be an
    answer that was lucky there, and would seem to lose at the next: so, where nothing changes, log
    G is zero on average. Half a count is added to both sides of the odds (Haldane and Anscombe),
    so that they are finite; with few samples it draws log G towards zero.

    All other answers stand together for the long tail. Majority voting multiplies the odds against
    each of them by the same exp(eta), and against all of them too; under the softened frequency
    eps is their mean, to first order. Shares of both visits are a little wider apart than those
    of the first, which the recursion has, so the eta of a softened reward comes out lower by some
    percent.

    Args:
        before: i[Q, A] counts of each answer.
        after: i[Q, A] counts of the same answers, at the next visit.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    both = before + after
    majority = both.argmax(-1)[..., None]

    def log_odds(counts: np.ndarray) -> np.ndarray:
        own = np.take_along_axis(counts, majority, -1)[..., 0]
        return np.log(own + 0.5) - np.log(counts.sum(-1) - own + 0.5)

    shares = both / np.maximum(both.sum(-1, keepdims=True), 1)
    rho = np.take_along_axis(shares, majority, -1)[..., 0]
    others = np.where(np.arange(both.shape[-1]) == majority, 0.0, shares)
    rest = others.sum(-1)
    some = rest > 0
    eps = (others**2).sum(-1) / np.where(some, rest, 1.0)
    change = log_odds(after) - log_odds(before)
    return Contrast(np.where(some, change, np.nan), np.where(some, rho - eps, np.nan))


def contrast_eta(seen: Contrast, rule: Rule) -> float:
    """The eta with which a rule explains measured factors best: log G = eta, or eta (rho - eps).

    Least squares over questions, those with a single answer left out; NaN where none is left.
    """
    known = ~np.isnan(seen.gap)
    reward = seen.gap[known] if rule == "softened" else np.ones(known.sum())
    spread = (reward * reward).sum()
    return float((reward * seen.log_factor[known]).sum() / spread) if spread > 0 else float("nan")


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
