"""The recursions of CSRS 3.1 and A.1 against worked numbers and simulated groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxevolve.rewards import majority_vote, self_consistency
from jaxevolve.theory import (
    contrast,
    contrast_eta,
    contrastive_factor,
    fitted_eta,
    reward,
    tilted,
    trajectory,
)

P = np.array([0.5, 0.3, 0.2])


def test_one_visit_by_hand():
    voted = np.array([0.5 * np.e, 0.3, 0.2])
    np.testing.assert_allclose(trajectory(P, "majority", 1.0, 1)[1], voted / voted.sum())
    soft = P * np.exp(2 * P)
    np.testing.assert_allclose(trajectory(P, "softened", 2.0, 1)[1], soft / soft.sum())


@pytest.mark.parametrize(("rule", "gap"), [("majority", 1.0), ("softened", 0.3)])
def test_odds_grow_by_the_contrastive_factor(rule, gap):
    before, after = trajectory(P, rule, 0.7, 1)
    factor = contrastive_factor(P, rule, 0.7)
    assert factor == pytest.approx(np.exp(0.7 * gap))
    assert (after[0] / after[2]) / (before[0] / before[2]) == pytest.approx(factor)


@given(
    hnp.arrays(np.float64, st.integers(2, 5), elements=st.floats(0.01, 1)),
    st.floats(0.01, 3),
)
def test_softening_slows_the_collapse_and_keeps_a_distribution(weights, eta):
    p = weights / weights.sum()
    voted, soft = (trajectory(p, rule, eta, 3) for rule in ("majority", "softened"))
    for path in (voted, soft):
        np.testing.assert_allclose(path.sum(-1), 1)
        assert (np.diff(path.max(-1)) >= -1e-12).all()
    assert contrastive_factor(p, "softened", eta) < contrastive_factor(p, "majority", eta)


@pytest.mark.parametrize("rule", ["majority", "softened"])
def test_simulated_groups_of_many_samples_follow_the_recursion(rule):
    """The rewards that the trainer gives, over groups of 4,000 samples, visit after visit."""
    numbers = np.random.default_rng(0)
    p, path = P, trajectory(P, rule, 0.5, 4)
    for expected in path[1:]:
        group = numbers.choice(len(p), (1, 4000), p=p)
        earned = majority_vote(group) if rule == "majority" else self_consistency(group)
        mean = [earned[group == a].mean() if (group == a).any() else 0.0 for a in range(len(p))]
        p = tilted(p, mean, 0.5)
        np.testing.assert_allclose(p, expected, atol=0.02)


def test_eta_is_found_again():
    starts = np.array([[0.5, 0.3, 0.2], [0.4, 0.6, 0.0], [1.0, 0.0, 0.0]])
    for rule in ("majority", "softened"):
        after = tilted(starts, reward(starts, rule), 0.8)
        assert fitted_eta(starts, after, rule) == pytest.approx(0.8)
    assert np.isnan(fitted_eta(starts[2:], starts[2:], "majority"))


def test_measured_contrast_by_hand():
    seen = contrast([[6, 2, 0], [3, 5, 0], [5, 2, 1]], [[7, 1, 0], [2, 6, 0], [6, 1, 1]])
    factors = [(7.5 / 1.5) / (6.5 / 2.5), (6.5 / 2.5) / (5.5 / 3.5), (6.5 / 2.5) / (5.5 / 3.5)]
    np.testing.assert_allclose(np.exp(seen.log_factor), factors)
    eps = (3**2 + 2**2) / (3 + 2) / 16
    np.testing.assert_allclose(seen.gap, [13 / 16 - 3 / 16, 11 / 16 - 5 / 16, 11 / 16 - eps])


def test_a_single_answer_has_no_contrast():
    seen = contrast([[8, 0]], [[8, 0]])
    assert np.isnan(seen.log_factor).all()
    assert np.isnan(contrast_eta(seen, "softened"))


def counts(numbers, shares, samples):
    """i[Q, A] counts of so many samples of each distribution."""
    return np.stack([numbers.multinomial(samples, p) for p in shares])


def test_where_nothing_changes_the_measured_factor_is_one_on_average():
    """Eight samples a visit: the majority of the first visit alone would seem to lose."""
    numbers = np.random.default_rng(0)
    p = numbers.dirichlet(np.ones(3), 20_000)
    before, after = counts(numbers, p, 8), counts(numbers, p, 8)
    seen = contrast(before, after)
    assert abs(np.nanmean(seen.log_factor)) < 0.02
    assert abs(contrast_eta(seen, "majority")) < 0.02
    assert abs(contrast_eta(seen, "softened")) < 0.03


@pytest.mark.parametrize("rule", ["majority", "softened"])
@pytest.mark.parametrize(("samples", "slack"), [(5000, 0.1), (16, 0.25)])
def test_a_rules_eta_is_measured_from_counts_and_the_other_rule_fits_worse(rule, samples, slack):
    """With many samples it is nearly the recursion's; with few it is drawn towards zero."""
    numbers = np.random.default_rng(1)
    p = numbers.dirichlet([2, 2, 1], 4000)
    after = tilted(p, reward(p, rule), 0.6)
    seen = contrast(counts(numbers, p, samples), counts(numbers, after, samples))
    eta = contrast_eta(seen, rule)
    assert (1 - slack) * 0.6 < eta < 1.06 * 0.6
    known = ~np.isnan(seen.gap)
    errors = {
        name: np.mean((seen.log_factor - contrast_eta(seen, name) * gap)[known] ** 2)
        for name, gap in (("majority", 1.0), ("softened", seen.gap))
    }
    assert errors[rule] == min(errors.values())


def test_one_answer_has_no_odds():
    with pytest.raises(ValueError, match="two answers"):
        contrastive_factor([1.0, 0.0], "majority", 1.0)
