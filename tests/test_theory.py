"""The recursions of CSRS 3.1 and A.1 against worked numbers and simulated groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxevolve.rewards import majority_vote, self_consistency
from jaxevolve.theory import (
    contrastive_factor,
    fitted_eta,
    odds_factor,
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


def test_measured_odds_by_hand():
    factor = odds_factor([[6, 2], [3, 5]], [[7, 1], [4, 4]])
    np.testing.assert_allclose(factor, [(7.5 / 1.5) / (6.5 / 2.5), (4.5 / 4.5) / (5.5 / 3.5)])


def test_one_answer_has_no_odds():
    with pytest.raises(ValueError, match="two answers"):
        contrastive_factor([1.0, 0.0], "majority", 1.0)
