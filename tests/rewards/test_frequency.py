"""The softened frequency reward against the paper's numbers and an independent loop."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxevolve.rewards import majority_vote, self_consistency, softened_frequency

IDS = st.integers(-1, 4)


def group(own: int, again: int, n: int = 8, m: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """A group in which answer 0 has `own` maternal and `again` re-inferred votes, all else 1."""
    maternal = np.array([[0] * own + [1] * (n - own)])
    rest = [0] * again + [1] * (n * m - again)
    return maternal, np.array(rest).reshape(1, n, m)


def by_loops(maternal, reinference, gamma, beta, eps, pool, include_self, no_answer):
    """Eq. 7 and 8 of the paper, read aloud in float64."""
    out = []
    for own, again in zip(maternal.tolist(), reinference.tolist()):
        n, m = len(own), len(again[0])
        everything = Counter(own) + Counter(a for one in again for a in one)
        row = []
        for i, answer in enumerate(own):
            if answer == -1 and no_answer == "zero":
                row.append(0.0)
                continue
            total = (m + 1) * n
            count = everything[answer]
            if not include_self:
                total, count = total - 1, count - 1
            base = count / total if total else 0.0
            if m == 0:
                row.append(base)
                continue
            pooled = [a for one in again for a in one] if pool == "prompt" else again[i]
            after = sum(a == answer for a in pooled) / len(pooled)
            row.append((gamma * math.tanh(beta * (after / (base + eps) - 1)) + 1) * base)
        out.append(row)
    return np.array(out)


@pytest.mark.parametrize(
    ("own", "again", "expected"),
    [
        (8, 40, 1.0),
        (1, 0, 0.0167),
        (1, 5, 0.1250),
        (1, 10, 0.2487),
        (4, 20, 0.5),
        (4, 10, 0.2559),
        (4, 30, 0.7488),
        (2, 20, 0.4973),
        (7, 39, 0.9750),
        (5, 0, 0.0833),
    ],
)
def test_values_of_the_paper(own, again, expected):
    rewards = softened_frequency(*group(own, again), gamma=0.2, beta=5.0, eps=1e-6)
    assert rewards.dtype == np.float32
    assert rewards.shape == (1, 8)
    np.testing.assert_allclose(rewards[0, :own], expected, atol=5e-5)


def test_range_of_reward_and_multiplier():
    multipliers = []
    for own in range(1, 9):
        for again in range(41):
            reward = softened_frequency(*group(own, again))[0, 0]
            multipliers.append(reward / ((own + again) / 48))
            assert reward <= 1 + 1e-6
            assert (reward >= 1 - 1e-6) == (own == 8 and again == 40)
    assert min(multipliers) == pytest.approx(0.80, abs=1e-4)
    assert max(multipliers) == pytest.approx(1.1386, abs=1e-4)


def test_an_anchor_may_be_judged_by_its_own_re_inferences():
    maternal = np.array([[0, 0]])
    reinference = np.array([[[0, 0], [1, 1]]])
    pooled = softened_frequency(maternal, reinference)
    apart = softened_frequency(maternal, reinference, pool="anchor")
    assert pooled[0, 0] == pooled[0, 1]
    base = 4 / 6
    np.testing.assert_allclose(
        apart[0],
        [base * (1 + 0.2 * math.tanh(5 * (1 / base - 1))), base * (1 + 0.2 * math.tanh(-5))],
        rtol=1e-4,
    )


def test_no_answer_is_worth_nothing_and_stays_in_the_denominator():
    maternal = np.array([[0, 0, -1, -1]])
    reinference = np.full((1, 4, 1), -1)
    zero = softened_frequency(maternal, reinference)
    assert zero[0, 2] == zero[0, 3] == 0
    assert zero[0, 0] == pytest.approx(0.8 * 2 / 8, rel=1e-3)
    string = softened_frequency(maternal, reinference, no_answer="string")
    assert string[0, 2] > string[0, 0]


@pytest.mark.parametrize("empty", [None, np.zeros((1, 4, 0), int)])
def test_without_re_inferences_it_is_the_plain_frequency(empty):
    maternal = np.array([[3, 3, 1, -1]])
    np.testing.assert_array_equal(softened_frequency(maternal, empty), [[0.5, 0.5, 0.25, 0]])
    np.testing.assert_array_equal(self_consistency(maternal), [[0.5, 0.5, 0.25, 0]])


def test_a_lone_sample_without_itself_has_no_support():
    assert softened_frequency(np.array([[0]]), None, include_self=False)[0, 0] == 0


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(0, 4)).flatmap(
        lambda s: st.tuples(
            hnp.arrays(np.int32, s[:2], elements=IDS), hnp.arrays(np.int32, s, elements=IDS)
        )
    ),
    st.floats(0, 0.9),
    st.floats(0, 10),
    st.sampled_from(["prompt", "anchor"]),
    st.booleans(),
    st.sampled_from(["zero", "string"]),
)
def test_agrees_with_loops(arrays, gamma, beta, pool, include_self, no_answer):
    options = {"pool": pool, "include_self": include_self, "no_answer": no_answer}
    result = softened_frequency(*arrays, gamma, beta, 1e-6, **options)
    expected = by_loops(*arrays, gamma, beta, 1e-6, *options.values())
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-7)


@given(
    hnp.arrays(np.int32, (1, 6), elements=IDS),
    hnp.arrays(np.int32, (1, 6, 3), elements=IDS),
    st.permutations(range(6)),
    st.sampled_from(["prompt", "anchor"]),
)
def test_rewards_move_with_their_responses(maternal, reinference, order, pool):
    straight = softened_frequency(maternal, reinference, pool=pool)
    moved = softened_frequency(maternal[:, order], reinference[:, order], pool=pool)
    np.testing.assert_allclose(moved, straight[:, order], rtol=1e-6)


@given(hnp.arrays(np.int32, (2, 5), elements=IDS))
def test_names_of_classes_do_not_matter(maternal):
    renamed = np.where(maternal >= 0, 7 - maternal, -1)
    np.testing.assert_array_equal(self_consistency(maternal), self_consistency(renamed))
    np.testing.assert_array_equal(majority_vote(maternal), majority_vote(renamed))


def test_unknown_options_are_refused():
    ids = np.zeros((1, 2), int)
    with pytest.raises(ValueError, match="batch"):
        softened_frequency(ids, ids[..., None], pool="batch")
    with pytest.raises(ValueError, match="none"):
        softened_frequency(ids, None, no_answer="none")
    with pytest.raises(ValueError, match=r"\(1, 3, 1\)"):
        softened_frequency(ids, np.zeros((1, 3, 1), int))


def test_any_member_of_the_two_sets_can_be_rewarded_for_its_answer():
    maternal = np.array([[0, 1, 0, -1]])
    reinference = np.array([[[0, 1], [1, 2], [0, 0], [2, -1]]])
    joined = np.concatenate([maternal[..., None], reinference], axis=-1).reshape(1, -1)
    for pool in ("prompt", "anchor"):
        own = softened_frequency(maternal, reinference, pool=pool)
        every = softened_frequency(maternal, reinference, of=joined, pool=pool).reshape(1, 4, 3)
        np.testing.assert_array_equal(every[..., 0], own)
        assert every[0, 0, 1] == own[0, 0]  # the same answer from the same anchor
    assert every[0, 3, 2] == 0  # no answer
    # Answer 2 stands in no maternal response: 2 of 12 in all, 2 of 8 after the anchors.
    base, after = 2 / 12, 2 / 8
    wanted = (1 + 0.2 * np.tanh(5 * (after / (base + 1e-6) - 1))) * base
    every = softened_frequency(maternal, reinference, of=joined).reshape(1, 4, 3)
    np.testing.assert_allclose(every[0, 1, 2], wanted, rtol=1e-6)
    assert self_consistency(maternal, of=[[1, 2]]).tolist() == [[0.25, 0.0]]
