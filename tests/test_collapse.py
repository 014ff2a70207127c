"""The rule that tells a collapsed run, on single steps and on curves of whole runs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.collapse import alarm, best_vote, good, needed, signs, told
from jaxevolve.runtime import cli

ROOT = Path(__file__).resolve().parents[1]
LIMITS = cli.load_config(str(ROOT / "configs" / "csrs.py")).collapse
HEALTHY = {
    "policy/entropy": 0.05,
    "rollout/unanimous": 0.6,
    "rollout/looping": 0.0,
    "rollout/no_answer": 0.01,
    "label/vote_accuracy": 0.95,
}
NEVER = float("nan")  # no vote accuracy is known
UNLABELED = {key: value for key, value in HEALTHY.items() if not key.startswith("label")}


# Votes, entropy and unanimous questions of whole runs, of docs/experiments.md: the default one, and
# majority voting at ten times its learning rate.
DEFAULT = (
    "0.9375 1 0.9375 0.9375 1 0.9375 1 0.875 0.9375 1 1 0.9375 1 1 1 0.9375 1 1 1 1",
    "0.1016 0.1038 0.099 0.0859 0.0844 0.079 0.0767 0.0621 0.0645 0.0567 0.0545 0.0521 0.0509 "
    "0.044 0.0519 0.0468 0.0462 0.0365 0.0317 0.0402",
    "0.125 0 0.0625 0.125 0.125 0.0625 0.1875 0.1875 0.1875 0.3125 0.1875 0.25 0.25 0.375 "
    "0.3125 0.125 0.3125 0.3125 0.8125 0.4375",
)
PROVOKED = (
    "0.9375 0.875 0.75 0.4375 0.3125 0.3125 0.375 0.375 0.1875 0.0625 0.1875 0.0625 0.5625 0.125 "
    "0.375 0.1875 0.25 0 0.25 0.1875",
    "0.1016 0.0992 0.0744 0.0638 0.0566 0.0714 0.0614 0.0593 0.0851 0.08 0.0739 0.0811 "
    "0.0869 0.0976 0.0812 0.0785 0.05 0.0401 0.0396 0.0565",
    "0.125 0.0625 0.1875 0.375 0.25 0.375 0.25 0.1875 0.0625 0 0.1875 0 0.125 0.125 "
    "0.0625 0.3125 0.5625 0.5 0.5625 0.375",
)


def run(*rows):
    return [{"step": step, **row} for step, row in enumerate(rows, 1)]


def tripped(rows, limits):
    """What a report tells of rows that had the rule applied to them step by step."""
    on = [bool(alarm(rows[: i + 1], limits)) for i in range(len(rows))]
    return told([row | {"collapse/alarm": int(o)} for row, o in zip(rows, on)], limits)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy/entropy": 0.001}, "0.001 nats a token left"),
        ({"rollout/unanimous": 0.95}, "all responses agree on 95% of the questions"),
        ({"rollout/looping": 0.5}, "50% of the responses end in a loop"),
        ({"rollout/no_answer": 0.75}, "75% of the responses have no answer"),
        ({"label/vote_accuracy": 0.5}, "50% of the votes are right, and 90% were"),
    ],
)
def test_each_sign_is_told_with_its_figure(change, words):
    (shown,) = signs(UNLABELED | change, 0.9, LIMITS).values()
    assert words in shown


def test_agreement_is_no_sign_while_the_votes_are_right():
    sure = {"policy/entropy": 0.001, "rollout/unanimous": 1.0}
    assert not signs(HEALTHY | sure, 0.9, LIMITS)
    assert len(signs(HEALTHY | sure | {"label/vote_accuracy": 0.7}, 0.9, LIMITS)) == 2
    assert len(signs(UNLABELED | sure, NEVER, LIMITS)) == 2
    # Gibberish is a sign whatever the votes say.
    assert signs(HEALTHY | {"rollout/looping": 0.9}, 0.9, LIMITS)


@pytest.mark.parametrize("missing", [{}, dict.fromkeys(HEALTHY), {"policy/entropy": float("nan")}])
def test_what_is_not_known_is_no_sign(missing):
    assert not signs(missing, 0.9, LIMITS)
    assert not signs({"label/vote_accuracy": 0.0}, NEVER, LIMITS)


def test_one_odd_step_gives_no_alarm_and_patience_does():
    odd = UNLABELED | {"rollout/looping": 0.9}
    assert not tripped(run(*[UNLABELED, odd] * 10), LIMITS)
    rows = run(UNLABELED, *[odd] * 6, UNLABELED, *[odd] * 5)
    found = tripped(rows, LIMITS)
    assert list(found) == [6, 13]
    assert found[6] == "90% of the responses end in a loop (every step since 2)"


def test_votes_fall_below_the_runs_best_steps_and_not_below_one_lucky_step():
    votes = [0.5, 1.0, *[0.6] * 8, *[0.3] * 5]
    rows = run(*[HEALTHY | {"label/vote_accuracy": vote} for vote in votes])
    assert best_vote(rows[:10], LIMITS) == pytest.approx((1.0 + 2 * 0.6) / 3)
    assert tripped(rows, LIMITS) == {
        15: "30% of the votes are right, and 73% were (every step since 11)"
    }
    assert not tripped(rows[1:10], LIMITS)


@pytest.mark.parametrize(("curves", "steps"), [(DEFAULT, []), (PROVOKED, [8, 18])])
def test_of_two_real_runs_the_one_that_collapsed_is_told(curves, steps):
    names = ("label/vote_accuracy", "policy/entropy", "rollout/unanimous")
    columns = [list(map(float, curve.split())) for curve in curves]
    rows = run(*(dict(zip(names, values)) for values in zip(*columns, strict=True)))
    assert list(tripped(rows, LIMITS)) == steps


def test_different_signs_in_turn_are_no_alarm():
    silent = UNLABELED | {"rollout/no_answer": 0.9}
    looping = UNLABELED | {"rollout/looping": 0.9}
    assert not tripped(run(*[silent, looping] * 5), LIMITS)


@given(st.lists(st.booleans(), max_size=30))
def test_an_alarm_is_on_exactly_behind_so_many_bad_steps(bad):
    rows = run(*[UNLABELED | {"rollout/looping": float(b)} for b in bad])
    for end in range(len(rows) + 1):
        last = bad[max(end - LIMITS.patience, 0) : end]
        expected = len(last) == LIMITS.patience and all(last)
        assert bool(alarm(rows[:end], LIMITS)) == expected


@given(st.sets(st.integers(1, 60)), st.integers(5, 60))
def test_the_checkpoint_to_go_back_to_is_from_before_the_first_bad_step(saved, step):
    first_bad = step - LIMITS.patience + 1
    before = [s for s in saved if s < first_bad]
    assert good(saved, step, LIMITS) == (max(before) if before else None)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 30))
def test_pruning_leaves_what_any_later_alarm_goes_back_to(gaps, keep, later):
    limits = LIMITS.copy_and_resolve_references()
    limits.action = "rollback"
    kept, everything = set(), set()
    for step in [sum(gaps[: i + 1]) for i in range(len(gaps))]:
        everything.add(step)
        kept.add(step)
        kept = set(sorted(kept)[-keep:]) | needed(kept, step, limits)
    step = max(everything) + later
    assert good(kept, step, limits) == good(everything, step, limits)
    limits.action = "warn"
    assert not needed(everything, max(everything), limits)
