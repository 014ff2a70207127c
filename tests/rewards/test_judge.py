"""Self-Judge's reward against its table, its limits and worked examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.rewards import auc, consistency, judged, mean_score, modulation, parse_score


@pytest.mark.parametrize(
    ("score", "expected"),
    [(0, 0.8), (0.4, 0.9), (0.5, 0.976), (0.7, 1.0), (0.9, 1.015), (0.95, 1.1), (1, 1.185)],
)
def test_modulation_by_the_table(score, expected):
    assert modulation(score) == pytest.approx(expected, abs=5e-4)


@given(st.floats(0, 1), st.floats(0, 1))
def test_modulation_rises_with_the_score_and_stays_in_its_bounds(one, other):
    low, high = modulation(np.sort([one, other]))
    assert 0.8 <= low <= high <= 1.2


def test_a_group_that_nearly_agrees_is_voted_on():
    six, seven = [0] * 6 + [1, -1], [0] * 7 + [1]
    np.testing.assert_allclose(
        consistency([six, seven]), [[0.75] * 6 + [0.125, 0], [1] * 7 + [0]], rtol=1e-6
    )
    np.testing.assert_allclose(consistency([seven], hard_above=None), [[0.875] * 7 + [0.125]])


def test_a_group_of_failures_earns_nothing_unless_it_is_asked_for():
    assert (consistency([[-1] * 8]) == 0).all()
    assert (consistency([[-1] * 8], no_answer="string") == 1).all()


def test_the_reward_by_hand():
    base = np.array([[0.75, 0.75, 1.0, 0.125]])
    scores = np.array([[0.95, 0.4, 1.0, 0.0]])
    fine = np.array([[True, True, True, False]])
    # 0.75 * 1.1, 0.75 * 0.9, clipped at 1, and 0.125 * 0.8 - 0.5 clipped at 0.
    np.testing.assert_allclose(judged(base, scores, fine), [[0.825, 0.675, 1, 0]], atol=1e-5)
    np.testing.assert_allclose(judged(base, None, fine), [[0.75, 0.75, 1, 0]])
    np.testing.assert_allclose(judged(base, scores), [[0.825, 0.675, 1, 0.1]], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"<think>good</think> \boxed{0.8}", 0.8),
        (r"first \boxed{0.2}, no: \boxed{ .9 }", 0.9),
        (r"\boxed{1.7}", 1.0),
        (r"\boxed{-3}", 0.0),
        (r"\boxed{1e400}", 1.0),
        ('BEGIN SCORES {"answer_correctness": 1, "overall_score": 0.65} END SCORES', 0.65),
        ('BEGIN_SCORES\n{"overall_score": "0.5"}\nEND_SCORES', 0.5),
        ("BEGIN SCORES {broken} END SCORES [SCORES] overall_score: 0.3", 0.3),
        ("[SCORES] answer 1, overall = 0.25 [/SCORES]", 0.25),
        (r"\boxed{0.1} BEGIN SCORES {\"overall_score\": 0.9} END SCORES", 0.1),
        (r"\boxed{good}", None),
        ("the solution is right, I am sure", None),
        ("", None),
    ],
)
def test_the_score_of_a_judgement(text, score):
    assert parse_score(text) == score


@given(st.text())
def test_any_text_has_a_score_of_the_unit_interval_or_none(text):
    score = parse_score(text + r"\boxed{" + text)
    assert score is None or 0 <= score <= 1


def test_repeats_are_averaged_and_unread_ones_count_as_zero_or_not_at_all():
    assert mean_score([1.0, None, 0.5]) == 0.5
    assert mean_score([1.0, None, 0.5], unread=None) == 0.75
    assert mean_score([None], unread=None) is None


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order():
    scores = np.array([[0.9, 0.5, np.nan], [0.5, 0.1, 0.7]])
    correct = np.array([[True, False, True], [True, False, False]])
    # 0.9 beats all three, 0.5 beats one, equals one, loses to one.
    assert auc(scores, correct) == pytest.approx((3 + 1.5) / 6)
    assert auc(-scores, correct) == pytest.approx((0 + 1.5) / 6)
    assert np.isnan(auc(scores, np.ones_like(correct)))


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_the_area_under_the_curve_by_counting_pairs(found):
    scores, correct = np.array([s for s, _ in found]), np.array([c for _, c in found])
    right, wrong = scores[correct], scores[~correct]
    pairs = [(a > b) + (a == b) / 2 for a in right for b in wrong]
    wanted = np.mean(pairs) if pairs else np.nan
    assert auc(scores, correct) == pytest.approx(wanted, nan_ok=True)
