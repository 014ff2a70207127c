"""Advantages within groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxevolve.objectives import (
    group_advantage,
    log_group_distribution,
    uninformative_groups,
)

REWARDS = hnp.arrays(
    np.float32, st.sampled_from([(1, 1), (3, 2), (2, 8)]), elements=st.floats(0, 1, width=16)
)


def by_numpy(rewards, normalise, valid):
    """Row by row in float64."""
    out = np.zeros(rewards.shape)
    for p, (row, keep) in enumerate(zip(rewards.astype(np.float64), valid)):
        kept = row[keep]
        if kept.size == 0 or kept.max() == kept.min():
            continue
        out[p, keep] = kept - kept.mean()
        if normalise == "std":
            out[p, keep] /= kept.std(ddof=1) + 1e-6
    return out


@pytest.mark.parametrize("normalise", ["mean", "std"])
def test_equal_rewards_are_exactly_zero(normalise):
    rewards = np.full((3, 6), 0.3, np.float32)  # their float32 deviation is 3e-8, not 0 (C05)
    for value in (rewards, jnp.asarray(rewards), rewards[:, :1]):
        assert (np.asarray(group_advantage(value, normalise)) == 0).all()


def test_one_by_hand():
    rewards = np.array([[1, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(group_advantage(rewards), [[0.75, -0.25, -0.25, -0.25]])
    np.testing.assert_allclose(
        group_advantage(rewards, "std"), [[1.5, -0.5, -0.5, -0.5]], rtol=1e-5
    )


def test_equal_prompts_are_groups_apart():
    rewards = np.array([[1, 0], [0, 0], [1, 0]], np.float32)  # C07: a group is a row
    np.testing.assert_allclose(group_advantage(rewards), [[0.5, -0.5], [0, 0], [0.5, -0.5]])


@given(REWARDS, st.sampled_from(["mean", "std"]), st.integers(0, 2**32 - 1))
def test_agrees_with_numpy(rewards, normalise, seed):
    valid = np.random.default_rng(seed).random(rewards.shape) < 0.7
    result = np.asarray(group_advantage(rewards, normalise, valid))
    np.testing.assert_allclose(result, by_numpy(rewards, normalise, valid), atol=2e-4, rtol=1e-3)
    assert (result[~valid] == 0).all()


@given(REWARDS)
def test_all_valid_is_the_default(rewards):
    every = np.ones(rewards.shape, bool)
    np.testing.assert_array_equal(group_advantage(rewards), group_advantage(rewards, valid=every))


def test_uninformative_groups():
    rewards = np.array([[0.3, 0.3, 0.3], [0.3, 0.3, 0.4], [1, 1, 0]], np.float32)
    np.testing.assert_array_equal(uninformative_groups(rewards), [True, False, False])
    valid = np.array([[True] * 3, [False] * 3, [True, True, False]])
    np.testing.assert_array_equal(uninformative_groups(rewards, valid), [True, True, True])


@pytest.mark.parametrize(("group", "share"), [(2, 0.625), (4, 0.32), (8, 0.10)])
def test_share_of_uninformative_groups_at_a_quarter_right(group, share):
    rewards = jax.random.bernoulli(jax.random.key(0), 0.25, (40_000, group))  # C20
    assert float(uninformative_groups(rewards).mean()) == pytest.approx(share, abs=0.01)


def test_a_nan_stays_visible_and_in_its_group():
    rewards = np.array([[np.nan, 1, 0], [1, 0, 0]], np.float32)
    result = np.asarray(group_advantage(rewards))
    assert np.isnan(result[0]).any()
    assert np.isfinite(result[1]).all()


def test_works_under_jit_and_refuses_unknown_names():
    rewards = jnp.array([[1.0, 0.0]])
    np.testing.assert_allclose(jax.jit(group_advantage)(rewards), [[0.5, -0.5]])
    with pytest.raises(ValueError, match="median"):
        group_advantage(rewards, "median")


@given(REWARDS, st.sampled_from([0.5, 1.0, 4.0]))
@settings(max_examples=30)
def test_a_centered_log_distribution_is_the_scaled_distance_to_the_mean(rewards, alpha):
    got = log_group_distribution(rewards, alpha)
    expected = alpha * (rewards - rewards.mean(-1, keepdims=True, dtype=np.float64))
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_a_literal_log_distribution_sums_to_one_and_pushes_everybody_down():
    rewards = np.array([[0.0, 0.25, 1.0], [0.5, 0.5, 0.5]], np.float32)
    got = np.asarray(log_group_distribution(rewards, 1.0, centered=False))
    weights = np.exp(np.float64([0.0, 0.25, 1.0]))
    np.testing.assert_allclose(got[0], np.log(weights / weights.sum()), rtol=1e-6)
    np.testing.assert_allclose(got[1], -np.log(3), rtol=1e-6)
    assert (got < 0).all()


def test_an_excluded_sample_is_not_of_the_group():
    rewards, valid = np.array([[0.0, 9.0, 1.0]]), np.array([[True, False, True]])
    for centered in (True, False):
        whole = log_group_distribution(rewards, 2.0, centered=centered, valid=valid)
        alone = log_group_distribution(rewards[:, ::2], 2.0, centered=centered)
        np.testing.assert_allclose(np.asarray(whole)[0, ::2], np.asarray(alone)[0], rtol=1e-6)
        assert whole[0, 1] == 0
    assert (np.asarray(log_group_distribution(rewards, 2.0, valid=valid & False)) == 0).all()
