"""Official scores of charts, pairs, exams and text benchmarks, worked by hand; see scoring.py."""

import pytest
from scoring import check, row

from jaxevolve.benchmarks import chartqa, labeled, mmmu, table, text
from jaxevolve.benchmarks.table import headline
from jaxevolve.runtime.errors import UserError


def test_chartqa():
    def problem(number, gold, split="human"):
        return row(number, gold, split=split)

    figures = check(
        "chartqa",
        [
            (problem(0, "100"), "105", "1"),  # 5 % off
            (problem(1, "100"), "106", "0"),
            (problem(2, "100"), "The answer is 95.", "1"),
            (problem(3, "-8"), "\\boxed{-8.3}", "1"),
            (problem(4, "0"), "0.01", "0"),  # a label of 0 wants the same text
            (problem(5, "0"), "0", "1"),
            (problem(6, "12%"), "0.12", "1"),
            (problem(7, "0.12", "augmented"), "\\boxed{12\\%}", "1"),
            (problem(8, "12", "augmented"), "12%", "0"),  # 0.12
            (problem(9, "Yes", "augmented"), "yes", "1"),
            (problem(10, "Light blue", "augmented"), "\\boxed{\\text{light blue}}", "1"),
            (problem(11, "Light blue", "augmented"), "It is blue", "0"),
            (problem(12, "47077", "augmented"), "\\boxed{47,100}", "1"),
            (problem(13, "3"), "\\boxed{", "-"),
        ],
    )
    # Human: 0 2 3 5 6 of eight. Augmented: 7 9 10 12 of six.
    assert figures["relaxed_accuracy"] == headline(figures) == 9 / 14
    assert figures["by_split"] == {"augmented": 4 / 6, "human": 5 / 8}
    assert chartqa.relaxed("1e2", "100")


def test_mmvp():
    options = {"A": "Open", "B": "Closed"}

    def problem(number, gold):
        return row(number, gold, options=options, pair=(number - 1) // 2)

    figures = check(
        "mmvp",
        [
            (problem(1, "A"), "(a)", "1"),
            (problem(2, "B"), "The answer is (b) Closed.", "1"),
            (problem(3, "A"), "\\boxed{Open}", "1"),  # by its text
            (problem(4, "B"), "Open", "0"),
            (problem(5, "A"), "(a) Open", "1"),
            (problem(6, "B"), "I cannot see it", "-"),
            (problem(7, "A"), "b", "0"),
            (problem(8, "B"), "\\boxed{A}", "0"),
            (problem(9, "A"), "**A**", "1"),
            (problem(10, "B"), "<answer>B</answer>", "1"),
            (problem(11, "A"), "A", "1"),  # its other half is not here
        ],
    )
    assert figures["pair_accuracy"] == headline(figures) == 2 / 5  # 1-2 and 9-10
    assert figures["pairs"] == 5
    assert figures["accuracy"] == 7 / 11


def test_mmmu():
    options = {"A": "$6", "B": "$7", "C": "marginal cost", "D": "$9"}

    def choice(number, gold, subject="Economics", domain="Business"):
        more = {"open": False, "subject": subject, "domain": domain, "options": options}
        return row(number, [gold], **more)

    def open_ended(number, *golds):
        more = {"open": True, "subject": "Math", "domain": "Science", "options": {}}
        return row(number, list(golds), **more)

    cases = [
        (choice(0, "B"), "(A) is too small, so (B)", "1"),  # the last one in brackets
        (choice(1, "B"), "(A) fits. The rest, B and C , do not", "0"),  # brackets come first
        (choice(2, "B"), "A or B", "1"),  # the last lone letter
        (choice(3, "C"), "What we pay more is called the marginal cost here", "1"),  # its text
        (choice(4, "C"), "marginal cost", "-"),  # not more than five words
        (choice(5, "C"), "The picture is unreadable", "-"),
        (choice(6, "D"), "\\boxed{D}", "1"),
        (choice(7, "D"), "\\boxed{\\$9}", "1"),
        (open_ended(8, "1.06"), "Thus the ratio is 1.062", "1"),  # at two decimals
        (open_ended(9, "1.06"), "x = 1.07", "0"),
        (open_ended(10, "Transformation"), "The answer is a transformation of cells.", "1"),
        (open_ended(11, "24/7", "3.429"), "\\boxed{3.43}", "1"),  # one of several labels
        (open_ended(12, "1000"), "we get 1,000", "1"),
        (open_ended(13, "C"), "The cell is at C", "1"),
        (open_ended(14, "2"), "There are three", "0"),
        (open_ended(15, "2"), "", "-"),
    ]
    figures = check("mmmu", cases)
    assert figures["accuracy"] == headline(figures) == 10 / 16
    assert figures["by_domain"] == {"Business": 5 / 8, "Science": 5 / 8}
    assert figures["by_subject"] == {"Economics": 5 / 8, "Math": 5 / 8}


def test_mmmu_guesses_where_it_is_asked_to_and_says_so():
    rows = [
        row(i, ["B"], open=False, subject="", domain="", options=dict.fromkeys("ABCD", "x"))
        for i in range(400)
    ]
    assert "GUESSED AT RANDOM" in table.find("mmmu", guess=True).grader
    assert "without its random guess" in table.find("mmmu").grader
    nothing = ["I do not know"] * len(rows)
    assert table.find("mmmu").score(rows, nothing)["accuracy"] == 0
    guessed = table.find("mmmu", guess=True).grade(rows, [[text, text] for text in nothing])
    # A fourth of 800 guesses, four standard deviations wide.
    assert 150 < guessed.correct.sum() < 250
    again = table.find("mmmu", guess=True).grade(rows[7:9], [["?", "?"]] * 2)
    assert again.answers == guessed.answers[7:9]  # whatever stands before it
    with pytest.raises(UserError, match="chartqa has no random guess"):
        table.find("chartqa", guess=True)


def test_the_parse_of_open_responses_takes_phrases_and_numbers():
    found = mmmu.predictions("We add them.\nSo the total is 1,234.567 = 1234.57")
    assert 1234.57 in found
    assert "the total is 1,234.567 = 1234.57" not in found  # the shortest phrase of a line
    assert mmmu.predictions("b") == [" b", "b "]


@pytest.mark.parametrize(
    "name", ["gsm8k", "math500", "aime2024", "amc2023", "college_math", "gaokao2023en"]
)
def test_text_benchmarks(name):
    def problem(number, gold, subject="Algebra"):
        return row(number, gold, error=None, options={}, subject=subject, level="1")

    figures = check(
        name,
        [
            (problem(0, "18"), "She makes 9 * 2 = \\boxed{18} dollars.", "1"),
            (problem(1, "18"), "The answer is 18.", "1"),
            (problem(2, "18"), "9 eggs at 2 dollars are 18", "1"),  # the last number
            (problem(3, "18"), "first 18, and then 20", "0"),
            (problem(4, "1284"), "\\boxed{1,284}", "1"),
            (problem(5, "\\frac{k-8}{k+4}", "Rational"), "\\boxed{1-\\frac{12}{k+4}}", "1"),
            (problem(6, "\\left(3,\\frac{\\pi}{2}\\right)"), "\\boxed{(3, \\pi/2)}", "1"),
            (problem(7, "\\left(3,\\frac{\\pi}{2}\\right)"), "\\boxed{(\\pi/2, 3)}", "0"),
            (problem(8, "0.3333"), "\\boxed{\\frac13}", "1"),  # a ten-thousandth off
            (problem(9, "0.333"), "\\boxed{\\frac13}", "0"),  # ten times as much
            (problem(10, "35"), "\\boxed{0.35}", "1"),  # percent
            (problem(11, "\\{x|-2\\leq x<1\\}", "Sets"), "\\boxed{[-2,1)}", "1"),
            (problem(12, "204"), "so it is \\boxed{20", "-"),  # cut off
            (problem(13, "204"), "I give up", "-"),
        ],
    )
    assert figures["accuracy"] == headline(figures) == 9 / 14
    assert figures["by_subject"] == {"Algebra": 7 / 12, "Rational": 1.0, "Sets": 1.0}


def test_olympiadbench():
    def problem(number, gold, error=None, kind="Numerical"):
        return row(number, gold, error=error, options={}, answer_type=kind)

    figures = check(
        "olympiadbench",
        [
            (problem(0, "69, 84"), "\\boxed{84, 69}", "1"),  # in any order
            (problem(1, "69, 84"), "\\boxed{69}", "0"),  # all of them
            (problem(2, "1,3,5"), "\\boxed{1, 3 \\text{ and } 5}", "1"),
            (problem(3, "(1,8,19), (4,5,7)", kind="Tuple"), "\\boxed{(4,5,7), (1,8,19)}", "1"),
            (problem(4, "(1,8,19), (4,5,7)", kind="Tuple"), "\\boxed{(4,7,5), (1,8,19)}", "0"),
            (problem(5, "2.5", error=0.1), "\\boxed{2.58}", "1"),  # the row's own tolerance
            (problem(6, "2.5", error=0.1), "\\boxed{2.62}", "0"),
            (problem(7, "2n-2", kind="Expression"), "\\boxed{2(n-1)}", "1"),
            (problem(8, "f(x)=\\frac{1}{x}", kind="Expression"), "\\boxed{f(x)=x^{-1}}", "1"),
            (problem(9, "2"), "No such number exists.", "-"),
            (problem(10, "2"), "\\boxed{2.0001}", "1"),  # within 1e-4 of it
        ],
    )
    assert figures["accuracy"] == headline(figures) == 7 / 11
    assert figures["by_answer_type"] == {"Expression": 1.0, "Numerical": 4 / 7, "Tuple": 0.5}
    assert text.close("0.025001", problem(0, "2.5", error=None))  # a hundredth, as the harness has


@pytest.mark.parametrize("name", ["geometry3k", "geoqa", "mmr1"])
def test_training_sets(name):
    options = {"A": "30", "B": "5\\sqrt{2}", "C": "60", "D": "10"}

    def choice(number, gold):
        return row(number, gold, options=options, family="a")

    def free(number, gold):
        return row(number, gold, options={}, family="b")

    figures = check(
        name,
        [
            (choice(0, "B"), "\\boxed{B}", "1"),
            (choice(1, "B"), "\\boxed{\\sqrt{50}}", "1"),  # the value of its text
            (choice(2, "B"), "The answer is (C) 60", "0"),
            (choice(3, "5\\sqrt{2}"), "\\boxed{B}", "1"),  # the label is the text
            (choice(4, "B"), "It is hard to say.", "-"),
            (free(5, "11.18"), "\\boxed{5\\sqrt{5}}", "1"),  # within a thousandth
            (free(6, "11.18"), "\\boxed{11.2}", "0"),
            (free(7, "2\\sqrt{221}"), "\\boxed{29.732}", "0"),  # an exact label wants the value
            (free(8, "41^\\circ"), "<answer>41°</answer>", "1"),
            (free(9, "41"), "x = 41", "1"),
            (free(10, "41"), "\\boxed{}", "-"),
        ],
    )
    assert figures["accuracy"] == headline(figures) == 6 / 11
    assert figures["by_family"] == {"a": 3 / 5, "b": 3 / 6}
    assert labeled.fault({"question": "q", "answer": "see figure"})
