"""The classes that a vote counts."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.answers import classes, classes_many, equal, pool

SPELLINGS = [
    ["41", "41°", r"41^\circ", "41.0", r"\text{41}"],
    [r"\frac12", "0.5", "1/2", "½"],
    [r"2\sqrt3", r"\sqrt{12}"],
    ["x<6", r"(-\infty, 6)"],
    ["Yes", "yes"],
    ["3, 5", "5 and 3"],
]
ANSWERS = st.one_of(st.none(), st.sampled_from([text for words in SPELLINGS for text in words]))


def test_example_of_the_design():
    result = classes(["41", "41°", None, "7"])
    assert result.dtype == np.int32
    assert result.tolist() == [0, 0, -1, 1]


def test_no_answer_of_every_kind():
    assert classes([None, "", r"\boxed{}", "1"]).tolist() == [-1, -1, -1, 0]
    assert classes([]).tolist() == []


def test_an_answer_joins_the_first_class_that_it_equals():
    # 35 % stands for 35 and for 0.35, which are different.
    assert classes([r"35\%", "35", "0.35"]).tolist() == [0, 0, 0]
    assert classes(["35", "0.35", r"35\%"]).tolist() == [0, 1, 0]
    assert classes(["0.35", "35", r"35\%"]).tolist() == [0, 1, 0]


def test_algebra_decides_where_spelling_cannot():
    answers = ["(x+1)^2", "x^2+2x+1", "x^2+2x", r"x(x+2)", "(1+x)^2"]
    assert classes(answers).tolist() == [0, 0, 1, 1, 0]


@given(st.lists(ANSWERS, max_size=12))
def test_members_of_a_class_are_spellings_of_one_answer(answers):
    expected, seen = [], []
    for answer in answers:
        group = next((i for i, words in enumerate(SPELLINGS) if answer in words), None)
        if group is not None and group not in seen:
            seen.append(group)
        expected.append(-1 if group is None else seen.index(group))
    assert classes(answers).tolist() == expected


@given(st.lists(ANSWERS, max_size=12), st.integers(0, 12))
def test_a_missing_answer_changes_nothing_for_the_others(answers, place):
    with_none = [*answers[:place], None, *answers[place:]]
    kept = np.delete(classes(with_none), min(place, len(answers)))
    assert kept.tolist() == classes(answers).tolist()


@given(st.lists(ANSWERS, max_size=12), st.randoms(use_true_random=False))
def test_the_partition_does_not_depend_on_order(answers, source):
    order = source.sample(range(len(answers)), len(answers))
    straight, shuffled = classes(answers), classes([answers[i] for i in order])
    for i in range(len(order)):
        for j in range(len(order)):
            same = straight[order[i]] == straight[order[j]]
            assert same == (shuffled[i] == shuffled[j])


def test_groups_do_not_meet():
    first, second = classes_many([["1", "2"], ["2", None, "1"]])
    assert first.tolist() == [0, 1]
    assert second.tolist() == [0, -1, 1]


def test_all_algebra_of_a_batch_is_asked_at_once(monkeypatch):
    batches = []
    ask = pool.shared().ask

    def spy(questions):
        batches.append(len(questions))
        return ask(questions)

    monkeypatch.setattr(pool.shared(), "ask", spy)
    groups = [[f"(x+{k})^2", f"x^2+{2 * k}x+{k * k}", "x"] for k in range(30, 34)]
    assert [ids.tolist() for ids in classes_many(groups)] == [[0, 0, 1]] * 4
    assert batches == [4]
    classes_many(groups)
    assert equal(gold=groups[0][1], pred=groups[0][0])
    assert batches == [4]


@pytest.mark.parametrize("spread", [6, 10_000])
def test_a_training_step_of_numbers_takes_milliseconds_and_no_process(monkeypatch, spread):
    monkeypatch.setattr(pool, "shared", lambda: pytest.fail("the workers were asked"))
    source = random.Random(0)
    spellings = ["{}", "{}.0", "{}/2", "{}°"]

    def answer() -> str:
        return source.choice(spellings).format(source.randrange(spread))

    groups = [[answer() for _ in range(48)] for _ in range(16)]
    classes_many(groups)  # reads each spelling once
    start = time.process_time()
    classes_many(groups)
    assert time.process_time() - start < 0.1
