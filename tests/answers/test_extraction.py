"""What is taken for the answer of a response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.answers import extract
from jaxevolve.answers.extraction import boxes

POLYNOMIAL = " + ".join(f"{k}x^{{{k}}}" for k in range(1, 20))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # A01 nested braces
        (r"so \boxed{\frac{7}{\sqrt{3}+1}}", r"\frac{7}{\sqrt{3}+1}"),
        # A02 the last box wins
        (r"First I get \boxed{14}. That was wrong, so it is \boxed{-14}.", "-14"),
        # A03 the bare word is no box
        (r"I will put it in \boxed as asked. Adding gives \boxed{29}.", "29"),
        (r"Adding gives \boxed{29}, which I put in \boxed as asked.", "29"),
        # A04 the same box twice
        ("Hence \\boxed{316}.\n\n**Final Answer**\n\\boxed{316}", "316"),
        # A07 without braces
        (r"$\boxed 8$", "8"),
        (r"\boxed\frac34", r"\frac34"),
        (r"$\boxed C$", "C"),
        (r"use \boxed A box", "A"),
        (r"\boxed -3, of course", "-3"),
        # A08 cut off
        (r"so the result is \boxed{\frac{12}", None),
        (r"first \boxed{7}, no, \boxed{8", None),
        # A09
        (r"\boxed{2\sqrt}", r"2\sqrt"),
        # A10 empty
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{\text{ }}", None),
        (r"\boxed{$\,$}", None),
        # A11, A12 the answer tag first, then the box in it
        (r"<think>a</think><answer>\boxed{12}</answer>", "12"),
        (r"<think>maybe \boxed{7}</think><answer>9</answer>", "9"),
        (r"<answer>1</answer> no: <answer> 2 </answer>", "2"),
        (r"<answer>\boxed{1</answer> \boxed{2}", None),
        ("<answer>  </answer>", None),
        (r"<answer>\boxed{3}", "3"),
        # A14 no window
        (rf"\boxed{{{POLYNOMIAL}}}", POLYNOMIAL),
        # A41
        ("no idea", None),
        (r"\boxed{6}", "6"),
        ("", None),
        # boxes in boxes, other boxes, braces that are signs
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{x = \fbox{5}}", r"x = \fbox{5}"),
        (r"\fbox{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxedsomething{4}", None),
        # only allowed lines are read, and none of those without being asked
        ("Final answer: **91**", None),
        ("The answer is 91.", None),
    ],
)
def test_extracts(text, answer):
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Check: 30+61 = 91.\n\nFinal answer: **91**", "91"),  # A06
        ("Answer: $13$", "13"),  # A16
        ("The answer is 4.\nNo, the final answer is 5.", "5"),
        ("**Answer:** 12 cm", "12 cm"),
        (r"Answer: \boxed{3} so answer: 4", "3"),
        (r"Answer: 3, hence \boxed{4", None),
        ("I cannot answer this", None),
    ],
)
def test_final_line_only_where_allowed(text, answer):
    assert extract(text, final_line=True) == answer


def test_boxes_lists_unclosed_ones():
    assert boxes(r"\boxed{1} \boxed{2 \boxed{3}") == ["1", None, "3"]


def test_many_unclosed_boxes_take_linear_time():
    assert extract(r"\boxed{" * 50_000) is None


ALPHABET = st.sampled_from(
    ["\\boxed", "{", "}", "\\{", "<answer>", "</answer>", "7", " ", "$", "\\\\", "a", "\n"]
)


@given(st.lists(ALPHABET, max_size=30).map("".join), st.booleans())
def test_never_raises_and_never_yields_nothing_visible(text, final_line):
    answer = extract(text, final_line=final_line)
    assert answer is None or answer.strip()


@given(st.text(alphabet="ab{}$ ", max_size=10), st.text(alphabet="xy1+ ", min_size=1, max_size=10))
def test_a_box_is_found_whatever_stands_before_it(before, content):
    expected = content.strip() or None
    assert extract(f"{before}\\boxed{{{content}}}") == expected
