"""What a step tells of itself, on groups of answers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxevolve.recipes.measures import Seen, ends_in_loop, label_metrics, measure, speed
from jaxevolve.rollout.jobs import Stats


def test_the_speed_of_several_processes_is_that_of_their_sum_in_the_time_of_the_slowest():
    quick = Stats({0: 2.0, 1: 2.0}, 1.0, row_steps=400, tokens=300, read_tokens=50)
    slow = Stats({0: 5.0}, 2.0, row_steps=400, tokens=300, read_tokens=10, reused_tokens=40)
    assert speed([quick, slow]) == {
        "throughput/slot_utilization": 0.75,
        "throughput/sampled_tokens_per_second": 200.0,
        "throughput/forced_tokens_per_second": 50.0,
    }


def test_a_step_in_which_nothing_was_sampled_has_no_speed():
    assert set(speed([Stats()]).values()) == {0.0}


def seen(classes, correct, reclasses=None, labeled=True):
    """Groups of answers; what they do not tell is of no matter."""
    classes = np.array(classes)
    shape = classes.shape
    again = np.zeros((*shape, 0), int) if reclasses is None else np.array(reclasses)
    return Seen(
        rewards=np.zeros(shape),
        counted=np.ones(shape, bool),
        classes=classes,
        reclasses=again,
        lengths=np.ones(shape, int),
        stopped=np.ones(shape, bool),
        looping=np.zeros(shape, bool),
        continued=np.zeros(again.shape, int),
        entropy=np.zeros(shape),
        gap=np.zeros(shape),
        labeled=np.full(shape[0], labeled),
        faulty=np.zeros(shape[0], bool),
        correct=np.array(correct, bool),
    )


def test_answers_by_their_frequency_worked_out_by_hand():
    """Eight answers: one question with 5, 2 and 1 alike, one with 7 alike and none."""
    classes = [[0, 0, 0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0, 0, -1]]
    correct = [[0, 0, 0, 0, 0, 1, 1, 0], [1] * 7 + [0]]
    told = measure(seen(classes, correct))
    assert told["rollout/confident"] == 7 / 16
    bins = ("0.0", "0.2", "0.4", "0.6", "0.8")
    right = [told[f"label/right_by_frequency/{low}"] for low in bins]
    np.testing.assert_array_equal(right, [0, 1, np.nan, 0, 1])
    sizes = [told[f"label/answers_by_frequency/{low}"] * 16 for low in bins]
    assert sizes == [1, 2, 0, 5, 7]


def test_re_inferences_of_right_and_of_wrong_parents():
    again = [[[0, 0], [0, 1], [1, 1], [-1, 0]], [[0, 0]] * 4]
    told = measure(seen([[0, 0, 1, -1], [0] * 4], [[1, 1, 0, 0], [0] * 4], again))
    assert told["retrace/same_if_right"] == 3 / 4
    assert told["retrace/same_if_wrong"] == (2 + 8) / 12
    assert told["retrace/agreement"] == 13 / 16
    never = measure(seen([[0, 1]], [[1, 0]]))
    assert np.isnan(never["retrace/same_if_right"])


def test_without_labels_nothing_is_told_of_right_and_wrong():
    told = measure(seen([[0, 1]], [[0, 0]], labeled=False))
    assert not [key for key in told if "right" in key or key.startswith("label/")]


@given(st.data())
def test_frequencies_fall_into_one_range_each(data):
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 10)))
    classes = data.draw(hnp.arrays(np.int32, shape, elements=st.integers(-1, 3)))
    correct = (classes == 0) & (classes >= 0)
    told = label_metrics(seen(classes, correct))
    sizes = {k: v for k, v in told.items() if k.startswith("label/answers_by_frequency/")}
    assert sum(sizes.values()) == pytest.approx((classes >= 0).mean())
    shares = {k: told[k.replace("answers", "right")] for k in sizes}
    whole = sum(size * shares[k] for k, size in sizes.items() if size)
    assert whole == pytest.approx(told["label/accuracy"])


def loops(*texts):
    length = max(map(len, texts))
    tokens = np.array([t + [0] * (length - len(t)) for t in texts], np.int32)
    return ends_in_loop(tokens, np.array([len(t) for t in texts])).tolist()


def test_a_loop_is_what_repeats_to_the_end():
    plain = list(range(40))
    assert (
        loops(
            plain,
            [*plain[:5], *[7] * 16],
            [*plain[:5], *[7] * 15],  # a token short
            plain[:20] * 4,
            plain[:20] * 3,  # not often enough
            [*[7] * 30, 1, 2, 3],  # and out of it again
            [0] * 3,
            list(range(64)) * 4,  # longer than is looked for
        )
        == [False, True, False, True, False, False, False, False]
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 9))
def test_padding_behind_a_response_is_no_loop(tokens, padding):
    row = np.array([tokens + [0] * padding], np.int32)
    alone = np.array([tokens], np.int32)
    size = np.array([len(tokens)])
    assert ends_in_loop(row, size) == ends_in_loop(alone, size)
