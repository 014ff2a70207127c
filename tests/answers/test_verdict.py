"""Right, wrong, no answer, or a label that says nothing."""

import pytest

from jaxevolve.answers import Verdict, judge, judge_many, label_fault
from jaxevolve.answers.grading import grade

OPTIONS = {"A": "12", "B": "48°", "C": "52°", "D": "90°"}


@pytest.mark.parametrize(
    ("gold", "pred", "state", "reason"),
    [
        ("6", "6.0", "right", "equal"),
        ("6", "7", "wrong", "different"),
        ("6", None, "no answer", "none found"),
        ("6", r"\boxed{", "no answer", "none found"),
        ("6", "", "no answer", "none found"),
        ("see figure", "6", None, "the label points elsewhere"),
        ("see figure", None, None, "the label points elsewhere"),
        ("see figure", "see figure", None, "the label points elsewhere"),
        (r"\sum_{k=1}^{n} \sin^{9}(k^2)", r"\int_0^1 \sin x^{x}\,dx", "wrong", "undecided"),
    ],
)
def test_verdicts_and_reasons(gold, pred, state, reason):
    verdict = judge(gold=gold, pred=pred)
    assert verdict == Verdict(state, reason)
    assert verdict.reward == {"right": 1.0, "wrong": 0.0, "no answer": 0.0, None: None}[state]


@pytest.mark.parametrize(
    ("gold", "pred", "state"),
    [
        ("C", r"\boxed{\text{(C)}}", "right"),
        ("C", "52", "right"),
        (r"52^\circ", "C", "right"),
        ("C. 52°", "the answer is (C)", "right"),
        ("A, C", "C and A", "right"),
        ("A", "A, C", "wrong"),
        ("C", "B", "wrong"),
        ("C", "53", "no answer"),
        ("C", "None of the above", "no answer"),
        ("E", "C", None),
        ("60", "60.0", "right"),  # a label that is no option's is compared by content
        ("12.0", "(A)", "right"),
    ],
)
def test_verdicts_with_options(gold, pred, state):
    assert judge(gold=gold, pred=pred, options=OPTIONS).state == state


@pytest.mark.parametrize(
    ("gold", "pred", "state"),
    [
        ("C", "(C)", "right"),
        ("C", "C. 52", "right"),
        ("C", "c", "right"),
        ("(C)", "The answer is C", "right"),
        ("C", "B. 52", "wrong"),
        ("C", "A, C", "wrong"),
        ("A", "A total of 4/5", "wrong"),
        ("C", "52", "wrong"),
        ("V", "V", "right"),
        ("C", None, "no answer"),
    ],
)
def test_verdicts_by_a_letter_without_options(gold, pred, state):
    assert judge(gold=gold, pred=pred).state == state


@pytest.mark.parametrize(
    "gold",
    [
        *(None, "", "  ", r"\boxed{}", "$$", r"\boxed{4", r"\frac{3", "3}", r"2\sqrt", "x =", "?"),
        *("see figure", "See the diagram above.", "refer to the picture", "as shown in the figure"),
        *("N/A", "n/a", "None", "nan", "unknown", "not given", "Answers will vary."),
        *("...", "略", "见图", "证明略"),
    ],
)  # fmt: skip
def test_broken_labels(gold):
    assert label_fault(gold)


@pytest.mark.parametrize(
    "gold",
    ["0", "A", "Colin", "yes", "No", "no solution", "∅", r"\emptyset", r"\infty", "3!", "x<4",
     "isosceles triangle", "等边三角形", "2, 9", "(1,2]", "seesaw", "5%", r"\text{Navin}",
     "no real roots", "[2, 3)"],
)  # fmt: skip
def test_sound_labels(gold):
    assert label_fault(gold) is None


def test_the_text_of_an_option_is_a_sound_label():
    assert label_fault("None", {"A": "One", "B": "None"}) is None
    assert label_fault("None", {"A": "One", "B": "Two"})


def test_a_batch_keeps_its_order_and_length():
    pairs = [
        ("6", "no idea"),
        ("6", "6"),
        ("see figure", "6"),
        ("6", None),
        ("C", "52"),
        ("6", "7"),
    ]
    verdicts = judge_many(pairs, [None, None, None, None, OPTIONS, None])
    assert [v.state for v in verdicts] == ["wrong", "right", None, "no answer", "right", "wrong"]
    assert judge_many([]) == []
    with pytest.raises(ValueError, match="6 answers but 1 sets"):
        judge_many(pairs, [None])


def test_a_broken_label_excludes_its_question_and_rewards_nobody():
    texts = [[r"\boxed{6}", r"\boxed{7}", "", r"\boxed{6.0}"]] * 3
    graded = grade(texts, ["see figure", "6", None])
    assert graded.labeled.tolist() == [False, True, False]
    assert graded.faults == ["the label points elsewhere", None, None]
    assert graded.correct.tolist() == [[False] * 4, [True, False, False, True], [False] * 4]
    assert graded.classes.tolist() == [[0, 1, -1, 0]] * 3
    assert [v.state for v in graded.verdicts[0]] == [None] * 4
    assert [v.state for v in graded.verdicts[1]] == ["right", "wrong", "no answer", "right"]
    assert graded.verdicts[2] is None


def test_a_broken_label_shows_where_nobody_answered():
    assert grade([["", ""]], ["see figure"]).faults == ["the label points elsewhere"]


def test_options_make_classes():
    texts = [[r"\boxed{C}", r"\boxed{52}", r"\boxed{(C)}", r"\boxed{B}", r"\boxed{53}"]]
    graded = grade(texts, ["C"], options=[OPTIONS])
    assert graded.classes.tolist() == [[0, 0, 0, 1, -1]]
    assert graded.correct.tolist() == [[True, True, True, False, False]]
    assert graded.answers == [["C", "52", "(C)", "B", "53"]]
    by_string = grade(texts, ["C"], "string", [OPTIONS])
    assert by_string.classes.tolist() == [[0, 1, 2, 3, 4]]
    assert by_string.correct.tolist() == [[True, True, True, False, False]]
