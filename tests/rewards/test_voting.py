"""Majority voting."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxevolve.rewards import distinct_answers, majority_vote, self_consistency, unanimous, vote

IDS = st.integers(-1, 4)


def test_the_majority_earns_one():
    rewards = majority_vote([[0, 1, 1, 2], [3, 3, 3, 3]])
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(rewards, [[0, 1, 1, 0], [1, 1, 1, 1]])


def test_a_tie_goes_to_the_first_seen():
    np.testing.assert_array_equal(majority_vote([[5, 2, 2, 5]]), [[1, 0, 0, 1]])
    assert vote([5, 2, 2, 5])[0] == 5
    assert vote([2, 5, 5, 2])[0] == 2


def test_no_answer_cannot_win():
    np.testing.assert_array_equal(majority_vote([[-1, -1, -1, 0]]), [[0, 0, 0, 1]])
    np.testing.assert_array_equal(majority_vote([[-1, -1]]), [[0, 0]])


def test_no_answer_as_a_string_rewards_itself():
    np.testing.assert_array_equal(
        majority_vote([[-1, -1, -1, 0]], no_answer="string"), [[1, 1, 1, 0]]
    )
    np.testing.assert_array_equal(majority_vote([[-1, -1]], no_answer="string"), [[1, 1]])


def test_re_inferences_vote_after_the_maternal_answers_and_earn_nothing():
    maternal = np.array([[0, 1]])
    np.testing.assert_array_equal(majority_vote(maternal, [[[1], [2]]]), [[0, 1]])
    np.testing.assert_array_equal(majority_vote(maternal, [[[1], [0]]]), [[1, 0]])
    np.testing.assert_array_equal(majority_vote(maternal, [[[7, 7], [7, 7]]]), [[0, 0]])


def test_vote_gives_the_share_of_all_responses():
    winner, share = vote([[0, 0, -1, 1], [-1, -1, -1, -1]])
    np.testing.assert_array_equal(winner, [0, -1])
    np.testing.assert_array_equal(share, [0.5, 0])
    assert (winner.dtype, share.dtype) == (np.int32, np.float32)


@given(hnp.arrays(np.int32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=IDS))
def test_agrees_with_counter(classes):
    winner, share = vote(classes)
    for row, won, part in zip(classes.tolist(), winner, share):
        ((best, count),) = Counter(x for x in row if x >= 0).most_common(1) or [(-1, 0)]
        assert won == best
        assert part == np.float32(count / len(row))
    np.testing.assert_array_equal(
        majority_vote(classes), (classes == winner[:, None]) & (classes >= 0)
    )
    np.testing.assert_array_equal(
        distinct_answers(classes), [len(set(row) - {-1}) for row in classes.tolist()]
    )
    np.testing.assert_array_equal(
        unanimous(classes), [len(set(row)) == 1 and row[0] >= 0 for row in classes.tolist()]
    )


@given(hnp.arrays(np.int32, (3, 6), elements=IDS), st.permutations(range(6)))
def test_order_matters_only_in_ties(classes, order):
    counts = np.sort(self_consistency(classes), axis=-1)
    winner, share = vote(classes)
    moved, moved_share = vote(classes[:, order])
    np.testing.assert_array_equal(share, moved_share)
    alone = counts[:, -1] * 6 == (counts == counts[:, -1:]).sum(-1)
    np.testing.assert_array_equal(winner[alone], moved[alone])


def test_an_empty_vote_is_refused():
    with pytest.raises(ValueError, match="ballot"):
        vote(np.zeros((2, 0), int))
