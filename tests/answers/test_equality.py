"""The verdicts of the case collection, each in both orders, and rules beside them."""

import pytest

from jaxevolve.answers import equal, extract

POLYNOMIAL = " + ".join(f"{k}x^{{{k}}}" for k in range(1, 20))
REORDERED = "+".join(f"{k}x^{{{k}}}" for k in range(19, 0, -1))

MATRIX = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"

# (id, answer, answer, verdict)
CASES = [
    ("A01", r"\frac{7}{\sqrt{3}+1}", r"\frac{7(\sqrt3-1)}{2}", True),
    ("A02", "-14", "14", False),
    ("A04", "047", "47", True),
    ("A05", r"\text{58}", "58", True),
    ("A05", r"\mbox{58}", "58", True),
    ("A06", "**91**", "91", True),
    ("A09", r"2\sqrt", "2", False),
    ("A13", "5", "5", True),
    ("A13", r"\boxed{5}", "5", True),
    ("A14", POLYNOMIAL, REORDERED, True),
    ("A16", "$13$", "13", True),
    ("A17", "3,5", "(3,5)", True),
    ("A17", "3,5", "35", False),
    ("A17", "1284000", "1,284,000", True),
    ("A17", "1284000", "1{,}284{,}000", True),
    ("A18", "12500", r"12\,500", True),
    ("A18", "12500", "12 500", True),
    ("A19", r"35\%", "0.35", True),
    ("A19", r"35\%", r"35 \text{ percent}", True),
    ("A19", r"35\%", "3500", False),
    ("A19", r"35\%", "35", True),
    ("A19", r"35\%", r"0.35\%", False),
    ("A20", r"41^\circ", "41°", True),
    ("A20", r"41^\circ", r"41^{\circ}", True),
    ("A20", r"41^\circ", r"41 \text{ degrees}", True),
    ("A20", r"41^\circ", "41", True),
    ("A20", r"30^\circ", r"\frac{\pi}{6}", False),
    ("A21", "62.5", r"62.5\ \mathrm{cm}^{2}", True),
    ("A21", r"62.5 \text{ cm}", r"62.5 \text{ m}", False),
    ("A22", "3.25", r"3\frac{1}{4}", True),
    ("A22", "3.25", r"-3\frac14", False),
    ("A22", "-3.25", r"-3\frac14", True),
    ("A22", r"\frac34", r"3\frac14", False),
    ("A22", r"\frac{13}{4}", "3 1/4", True),
    ("A23", r"\frac{3}{4}", r"\frac34", True),
    ("A23", r"\frac{3}{4}", r"\frac{3}4", True),
    ("A23", r"\frac{3}{4}", r"\dfrac{3}{4}", True),
    ("A23", r"\frac{3}{4}", r"\tfrac34", True),
    ("A23", r"\frac{3}{4}", r"\cfrac{3}{4}", True),
    ("A23", r"\frac{3}{4}", "3/4", True),
    ("A23", r"\frac{3}{4}", ".75", True),
    ("A23", r"\frac{3}{4}", r"\frac{6}{8}", True),
    ("A23", r"\frac{3}{4}", "¾", True),
    ("A24", r"3\sqrt[3]{2}", r"\sqrt[3]{54}", True),
    ("A25", r"\frac{1}{\sqrt{n}}", r"\sqrt{\frac{1}{n}}", True),
    ("A26", "7", r"7\sqrt(3)", False),
    ("A26", r"7\sqrt{3}", r"7\sqrt(3)", True),
    ("A27", r"\frac{5\pi}{6}", "5*pi/6", True),
    ("A27", r"\frac{5\pi}{6}", "5pi/6", True),
    ("A27", r"-3\pi", "-3*pi", True),
    ("A27", "20-i", "20.0 - 1.0i", True),
    ("A27", "e^{5}-2", "exp(5) - 2", True),
    ("A28", "320000", "3.2e5", True),
    ("A28", "320000", r"3.2\times10^{5}", True),
    ("A29", r"\frac{1}{2^{120}}", r"\frac{1}{2^{119}}", False),
    ("A29", r"\frac{\sqrt{2}}{2^{200}}", r"\frac{\sqrt{2}}{2^{199}}", False),
    ("A30", r"\pm 13", "13", False),
    ("A30", r"\pm 13", "13, -13", True),
    ("A31", r"2, 4, \ldots, 2n", r"1, 3, \ldots, 2n-1", False),
    ("A31", r"2, 4, \ldots, 2n", "2, 4, ..., 2n", True),
    ("A32", "6.", "6", True),
    ("A32", "6。", "6", True),
    ("A33", r"0.25+\frac{\pi}{3}", r"\pi \div 3 + 1 \div 4", True),
    ("A34", r"2 \text{ and } 9", "9", False),
    ("A34", r"2 \text{ and } 9", "9, 2", True),
    ("A34", "(4,-1)", "(-1,4)", False),
    ("A35", r"x \in [-4, 9]", r"-4 \le x \le 9", True),
    ("A35", r"(-\infty,6)", "x<6", True),
    ("A35", "[-4,9]", "(-4,9)", False),
    ("A36", r"y=\frac{5-2x}{3}", "2x+3y=5", True),
    ("A36", r"y=\frac{5-2x}{3}", "2x+3y=6", False),
    ("A36", "4x-y+9=0", "The line is 4x+2y+10=0", False),
    ("A36", "17", "x=17", True),
    ("A36", "n=3,4,5", "n=2,3,4", False),
    ("A37", "x<4", "4", False),
    ("A38", r"\text{Colin}", "Colin", True),
    ("A38", r"\text{Colin}", r"\text{Col}", False),
    ("A39", "9^{9^{9^9}}", "7", False),
    ("A39", "(10!)!", "5", False),
    ("A39", "(" * 40 + "7" + ")" * 40, "8", False),
    ("A39", "+".join("1" * 100_000), "7", False),
]

RULES = [
    # numbers are exact
    ("decimal", "0.5", r"\frac{1}{2}", True),
    ("rounding", "0.333", r"\frac{1}{3}", False),
    ("rounding", "3.14", r"\pi", False),
    ("rounding", "2.82842712474619", r"2\sqrt{2}", False),
    ("period", r"0.\overline{3}", r"\frac13", True),
    ("period", r"0.1\overline{6}", r"\frac16", True),
    ("nearly", r"\sqrt{10^{200}+1}", "10^{100}", False),
    ("scientific", "1.5E-3", "0.0015", True),
    ("big", "9^{9^9}", "9^{9^9}", True),
    ("zero", "-0", "0", True),
    ("words", "5 million", "5000000", True),
    ("digits apart", "3 0", "30", True),
    ("full width", "１２．５", "12.5", True),
    ("minus", "−5", "-5", True),
    ("superscript", "x²+1", "x^2+1", True),
    ("base", "4210_{5}", "4210_5", True),
    ("base", "1011_2", "1011", False),
    ("lead", "The answer is 12.", "12", True),
    ("about", r"\approx 12.3", "12.3", True),
    ("scientific", r"3 x 10^8", r"3 \times 10^{8}", True),
    ("sign", r"-\frac{1}{2}", r"\frac{1}{-2}", True),
    ("lead", "故答案为：12", "12", True),
    # expressions
    ("surd", r"\sqrt{12}", r"2\sqrt3", True),
    ("surd", r"\frac{6}{\sqrt{3}}", "2√3", True),
    ("surd", r"\sqrt12", r"2\sqrt{3}", True),
    ("expand", "(x+1)^2", "x^2+2x+1", True),
    ("expand", "(x+1)^2", "x^2+2x+2", False),
    ("sign", "|x|", "x", False),
    ("odd root", r"\sqrt[3]{-8}", "-2", True),
    ("trigonometry", r"\sin 30^\circ", r"\frac12", True),
    ("trigonometry", r"\sin^2 x + \cos^2 x", "1", True),
    ("inverse", r"\sin^{-1} x", r"\arcsin x", True),
    ("logarithm", r"\log_2 8", "3", True),
    ("logarithm", r"\ln e^2", "2", True),
    ("binomial", r"\binom{5}{2}", "10", True),
    ("factorial", "5!", "120", True),
    ("power", "2^10", "1024", True),
    ("code", "2**10", "1024", True),
    ("order", "xy+1", "1+yx", True),
    ("math-verify", r"\int_0^1 x\,dx", r"\frac12", True),
    ("math-verify", r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", True),
    ("math-verify", r"\int_0^1 x\,dx", r"\frac13", False),
    ("undefined", r"\frac{1}{0}", "1", False),
    # units
    ("unit", "5 cm", r"5\text{ centimeters}", True),
    ("unit", r"5\text{ cm}^2", "5 square centimeters", True),
    ("unit", "5 cm²", "5", True),
    ("unit", "5厘米", "5 cm", True),
    ("unit", "3 apples", "3", True),
    ("unit", "3 apples", "3 oranges", False),
    ("unit", r"5 \text{ m/s}", r"5\ \mathrm{m}/\mathrm{s}", True),
    ("unit", r"5\text{ units}", "5 cm", True),
    ("unit", "5x", "5", False),
    ("unit", "25°C", r"25^\circ\text{C}", True),
    ("unit", "12 cm", r"12 \text{ cm}^2", False),
    ("unit", r"\text{6 cm}", "6", True),
    ("unit", r"1\frac{1}{2} \text{ hours}", "1.5 h", True),
    ("money", r"\$5.00", "5", True),
    ("money", r"\$5", r"5 \text{ cm}", False),
    ("degree", r"180^\circ - 41^\circ", "139", True),
    # several answers
    ("set", r"\{1, 2\}", r"\{2, 1\}", True),
    ("set", r"\{1, 2\}", r"\{1, 3\}", False),
    ("set", r"\{2\}", "2", True),
    ("set", r"x \in \{1, 2\}", r"\{2, 1\}", True),
    ("tuple", r"(\frac12, 3)", "(0.5, 3)", True),
    ("tuple", "(3,5)", "5,3", False),
    ("set and tuple", r"\{3,5\}", "(3,5)", False),
    ("list", "[2, 5]", "[2, 5]", True),
    ("list", "[2, 5, 7]", "7, 2, 5", True),
    ("roots", r"x = 3 \text{ or } x = -2", "3, -2", True),
    ("roots", "x = -2 or 3", "x=3, x=-2", True),
    ("roots", r"1 \pm \sqrt{2}", r"1-\sqrt2, 1+\sqrt2", True),
    ("many", "1, 2, 3, 4, 5", "5, 4, 3, 2, 1", True),
    ("ratio", "6:8", "3:4", True),
    ("ratio", "3:4:5", "6:8:10", True),
    ("ratio", "3:4:5", "3:4:6", False),
    ("matrix", MATRIX, MATRIX.replace("pmatrix", "bmatrix"), True),
    ("matrix", MATRIX, rf"\left[{MATRIX.replace('pmatrix', 'array')}\right]", True),
    ("matrix", MATRIX, r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", False),
    ("alternatives", r"\frac12 \text{ or } 0.5", "0.5", True),
    ("set", r"\{3, 3\}", "3", True),
    ("lines", r"3 \\ 5", "5, 3", True),
    ("vector", r"\langle 3, 4 \rangle", "(3, 4)", True),
    ("none", r"\varnothing", "∅", True),
    # intervals and equations
    ("interval", "2 < x < 5", "(2, 5)", True),
    ("interval", "6 > x", "x < 6", True),
    ("interval", "2x + 1 \\ge 7", r"[3, \infty)", True),
    ("interval", "-2x < 6", "x > -3", True),
    ("interval", "(2, 5]", "[2, 5)", False),
    ("interval", r"x > 3 \text{ or } x < -1", r"(-\infty, -1) \cup (3, \infty)", True),
    ("interval", "x > 1 and x < 3", "1 < x < 3", True),
    ("interval", r"\{x \mid x \ge 0\}", r"[0, \infty)", True),
    ("interval", "x<6", "y<6", False),
    ("interval", r"x \in \mathbb{R}", r"(-\infty, \infty)", True),
    ("equation", "xy = 1", r"y = \frac1x", True),
    ("equation", "x = 17", "y = 17", False),
    ("equation", "17 = x", "x = 17", True),
    ("equation", r"m\angle A = 41^\circ", "41", True),
    ("equation", "f(x) = 2x", "2x", True),
    ("equation", "2 + 3 = 5", "5", True),
    ("not", r"x \ne 3", "3", False),
    # words
    ("words", "Yes", r"\text{yes}", True),
    ("words", "yes", "no", False),
    ("words", "isosceles triangle", r"\text{Isosceles  triangle}", True),
    ("words", r"\mathbb{R} \setminus \{0\}", r"\mathbb{R}\setminus\{0\}", True),
    ("words", "A", r"\text{(A)}", True),
    ("words", "等边三角形", "等腰三角形", False),
]


@pytest.mark.parametrize(("case", "left", "right", "verdict"), CASES + RULES)
def test_verdict(case, left, right, verdict):
    assert equal(gold=left, pred=right) is verdict
    assert equal(gold=right, pred=left) is verdict


def test_arguments_have_names():
    with pytest.raises(TypeError):
        equal("1", "1")


@pytest.mark.parametrize("nothing", [None, "", "  ", r"\boxed{}", "$$", r"\boxed{4"])
def test_no_answer_equals_nothing(nothing):
    assert not equal(gold=nothing, pred="4")
    assert not equal(gold=nothing, pred=nothing)


def test_a_batch_keeps_its_order_and_length():
    texts = ["no idea", r"\boxed{6}", "", r"\boxed{7}"]  # A41
    answers = [extract(text) for text in texts]
    assert answers == [None, "6", None, "7"]
    assert [equal(gold="6", pred=answer) for answer in answers] == [False, True, False, False]


@pytest.mark.parametrize("text", [r"so \boxed{\frac12}", "<answer>0.5</answer>", r"\boxed{0.50}"])
def test_an_answer_may_be_extracted_before_or_not(text):
    assert equal(gold=r"\frac{1}{2}", pred=text)
    assert equal(gold=r"\frac{1}{2}", pred=extract(text))
