"""Which option a reply names, and which options a question lists."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.answers import choose, choose_many, judge, options_for, options_in, options_of

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
OPTIONS = {"A": "12", "B": "48°", "C": "52°", "D": "90°"}
LETTERS = dict.fromkeys("ABCDE", "")
WORDS = {"A": "a rhombus", "B": "a square", "C": "an isosceles triangle", "D": "None of these"}
NAMES = {"A": "A", "B": "B", "C": "C", "D": "E", "E": "No correct answer"}


@pytest.mark.parametrize(
    ("reply", "letters"),
    [
        # A42
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{C}", "C"),
        (r"\boxed{C. 52^\circ}", "C"),
        (r"\boxed{52^\circ}", "C"),
        # A43
        ("Answer: **D**", "D"),
        ("I considered (A), but it fails. Final answer: D.", "D"),
        ("The correct answer is d.", "D"),
        # A44
        ("The picture is unreadable.", None),
        ("None of the above", None),
        # wrapped letters
        ("(B)", "B"),
        ("B.", "B"),
        ("（B）", "B"),
        ("[B]", "B"),
        ("b", "B"),
        ("option B", "B"),
        ("Option (b)", "B"),
        (r"\text{B}", "B"),
        (r"\mathrm{(B)}", "B"),
        (r"$\textbf{B}$", "B"),
        ("**B**", "B"),
        ("'B'", "B"),
        ("答案：B", "B"),
        ("故选B。", "B"),
        # letter and text
        ("B) 48", "B"),
        ("B: 48°", "B"),
        ("(B) 48 degrees", "B"),
        ("B、48°", "B"),
        ("B 48°", "B"),
        ("48° (B)", "B"),
        ("B. 52°", "B"),  # the letter decides
        ("B because the angles add up", "B"),
        ("so it is 48°, which is option B", "B"),
        # text only
        ("48", "B"),
        (r"48 \text{ degrees}", "B"),
        (r"x = 48", "B"),
        (r"\frac{96}{2}", "B"),
        ("The angle is 48°.", "B"),
        # in a response
        ("We add.\n\nB", "B"),
        ("We add.\n\n**B. 48°**", "B"),
        ("Therefore, (B)", "B"),
        ("I choose B", "B"),
        ("The answer is B. The other options are wrong.", "B"),
        ("A: no. So the answer is 48°.", "B"),
        (r"The answer is A? No: \boxed{B}", "B"),
        ("<answer>B</answer>", "B"),
        ("Answer: A <answer>B</answer>", "B"),
        # several
        ("A, C", "AC"),
        ("C and A", "AC"),
        ("(A)(C)", "AC"),
        ("AC", "AC"),
        (r"\boxed{A, C, D}", "ACD"),
        ("A, A", "A"),
        # none
        ("CAB", None),
        ("E", None),
        ("A, E", None),
        ("53", None),
        ("A 52° angle", None),
        ("A good question", None),
        ("I am", None),
        ("B is correct.", "B"),
        ("(B) is the correct answer", "B"),
        ("B - 48°", "B"),
        ("B, since the sum is 180°", "B"),
        ("(A) is too small.", None),
        ("It cannot be (C)", None),
        ("A, B and C are collinear", None),
        ("the points A, B, C", None),
        ("The answer is not B but C", None),
        (r"The answer is B, \boxed{", None),
        (r"The answer is B, \boxed{}", None),
        ("", None),
        (None, None),
    ],
)
def test_named_option(reply, letters):
    assert choose(reply, OPTIONS) == letters


@pytest.mark.parametrize(
    ("reply", "options", "letters"),
    [
        ("square", WORDS, "B"),
        ("It is a rhombus", WORDS, "A"),
        ("An isosceles triangle.", WORDS, "C"),
        ("the triangle is not a square", WORDS, None),
        ("none of the above", WORDS, "D"),
        ("None of the above.", NAMES, "E"),
        ("E", NAMES, "E"),  # a lone capital letter is a letter first
        ("D. E", NAMES, "D"),
        ("b", {"A": "b", "B": "a"}, "A"),  # a small one is a text first
        ("0.5", {"A": r"\frac12", "B": "50"}, "A"),
        ("50%", {"A": "0.5", "B": "50"}, None),  # it is both
        ("(x+1)^2", {"A": "x^2+2x+1", "B": "x^2+1"}, "A"),
        ("AC", {"A": "AB", "B": "AC", "C": "BC"}, "B"),
        ("True", {"A": "True", "B": "False"}, "A"),
        ("The statement is false", {"A": "True", "B": "False"}, "B"),
        ("3:11", {"A": "9:30 (Previous Year); 3:11 (Current Year)", "B": "11:3"}, None),
        ("(E)", LETTERS, "E"),
        ("E. 52", LETTERS, "E"),
        ("52", LETTERS, None),
    ],
)
def test_texts_of_options(reply, options, letters):
    assert choose(reply, options) == letters


def test_an_open_question_is_no_choice():
    # A45
    assert judge(gold="0.8", pred="Solution: A total of 4/5").state == "right"
    assert judge(gold="0.8", pred="Solution: A total of 3/5").state == "wrong"
    assert judge(gold="A", pred="A total of 4/5").state == "wrong"
    assert judge(gold="A", pred="(A)").state == "right"


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("Find x. (A) 12 (B) 48° (C) 52° (D) 90°", OPTIONS),
        ("Find x.\nChoices:\nA:12\nB:48°\nC:52°\nD:90°", OPTIONS),
        ("Find x.\nA. 12\nB. 48°\nC. 52°\nD. 90°\n\nAnswer by a letter.", OPTIONS),
        ("A. 12; B. 48°;C. 52°; D. 90°", OPTIONS),
        ("A、12 B、48° C、52° D、90°", OPTIONS),
        ("求x（）（A）12（B）48°（C）52°（D）90°", OPTIONS),
        ("(a) 12 (b) 48° (c) 52° (d) 90°", OPTIONS),
        (
            r"$\text{(A)}\ 12\qquad\text{(B)}\ 48°\qquad\text{(C)}\ 52°\qquad\text{(D)}\ 90°$",
            OPTIONS,
        ),
        ("Select from A, B, C and D. (A) 12 (B) 48° (C) 52° (D) 90°", OPTIONS),
        ("Select from (A), (B), (C), (D). (A) 12 (B) 48° (C) 52° (D) 90°", OPTIONS),
        ("Which are odd?(A) one(B) two(C) both (A) and (B)", None),
        ("Is it cyclic? choice: (A) Yes (B) No", {"A": "Yes", "B": "No"}),
        ("Answer with (A), (B) or (C).", None),
        ("Choose from (A), (B), (C).", dict.fromkeys("ABC", "")),
        ("In triangle ABC, angle A: 30°, what is B?", {}),
        ("Vitamin A. Vitamin B.", {}),
        ("Let f(A) = 2 and f(B) = 3.", {}),
        ("Find the perimeter.", {}),
        ("", {}),
    ],
)
def test_options_in_a_question(question, options):
    found = options_in(question)
    if options is None:
        assert list(found) in (["A", "B", "C"], [])
    else:
        assert found == options
    assert options_for(question) == (found or None)


def test_options_of_a_list():
    assert options_of(["12", "48°"]) == {"A": "12", "B": "48°"}
    assert options_of(["A:12", "B:48°"]) == {"A": "12", "B": "48°"}
    assert options_of(["(A) 12", "(B) 48°"]) == {"A": "12", "B": "48°"}
    assert options_of(["A.M.", "noon"]) == {"A": "A.M.", "B": "noon"}
    assert options_for("(A) 1 (B) 2", ["3", "4"]) == {"A": "3", "B": "4"}
    with pytest.raises(ValueError, match="27 choices"):
        options_of(["x"] * 27)


def test_a_batch_keeps_its_order_and_length():
    asked = [("no idea", OPTIONS), ("(C)", OPTIONS), (None, OPTIONS), ("0.5", {"A": "1/2"})]
    assert choose_many(asked) == [None, "C", None, "A"]
    assert choose_many([]) == []


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the real rows of ../shared/data")
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("text/geoqa_test_754_textonly", "question"),
        ("wemath/testmini_36groups", "option"),
        ("mathverse/testmini_text_only", "question"),
    ],
)
def test_the_options_of_real_questions(name, field):
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        letter = row["answer"]
        if len(letter) != 1 or not letter.isalpha() or (options := options_in(row[field])) == {}:
            continue
        assert letter in options
        for reply in (f"({letter})", f"The answer is {letter}.", rf"\boxed{{\text{{{letter}}}}}"):
            assert choose(reply, options) == letter
        texts = list(options.values())
        if texts.count(options[letter]) == 1 and options[letter]:
            assert choose(f"{letter}. {options[letter]}", options) == letter


REPLIES = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from([
            "A", "B", "(C)", "d", "E", ".", ",", " ", "\n", "\\boxed{", "}", "\\text{", "answer",
            "is", "option", "52", "48°", "not", "and", "**", "None of the above", ":", "答案", "选",
        ])
    ).map(" ".join),
)  # fmt: skip


@given(REPLIES)
def test_never_raises_and_names_options_alone(reply):
    for options in (OPTIONS, WORDS, LETTERS, {}):
        letters = choose(reply, options)
        assert letters is None or set(letters) <= set(options)
    options_in(reply)


@given(
    st.sampled_from("ABCD"),
    st.sampled_from(["{}", "({})", "{}.", "option {}", r"\text{{{}}}", "**{}**", "${}$"]),
    st.sampled_from(["{}", r"\boxed{{{}}}", "<answer>{}</answer>", "So.\nAnswer: {}"]),
)
def test_a_letter_counts_in_every_wrapping(letter, wrapping, place):
    reply = place.format(wrapping.format(letter))
    assert choose(reply, OPTIONS) == choose(reply, LETTERS) == letter
