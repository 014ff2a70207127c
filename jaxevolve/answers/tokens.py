r"""From an answer as it was written (LaTeX, code, plain text, full-width) to tokens.

Everything that changes how an answer looks and not what it means is dropped here: dollar signs,
\left, spacing commands, markdown, styles, thousands separators, a closing full stop.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

MAX_CHARACTERS = 2000


class Unreadable(ValueError):
    """The text is not in the notation that is understood here."""


class Token(NamedTuple):
    r"""A piece of an answer.

    Attributes:
        kind: "num" (digits), "word" (letters), "cmd" (\name), "text" (the content of \text{} and
            the like), "name" (of \mathrm{} and the like), "op" (anything else).
        text: what it says.
        spaced: whether white space stands before it.
    """

    kind: str
    text: str
    spaced: bool = False


_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ",
    "∙": r"\cdot ", "÷": r"\div ", "≤": "<=", "≥": ">=", "⩽": "<=", "⩾": ">=", "≠": "!=",
    "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "≈": r"\approx ", "…": r"\ldots ", "。": ".", "、": ",", "∠": r"\angle ",
    "△": r"\triangle ", "ℝ": r"\mathbb{R}", "∅": r"\emptyset ", "º": "°", "℃": r"°\text{C}",
    "′": "'", "’": "'", "“": "", "”": "", "⟨": "(", "⟩": ")", "【": "(", "】": ")", "⁄": "/",
    "∶": ":", "″": "''", "Ω": r"\Omega ", "\u2061": "", "\u200b": "", "\ufeff": "",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta",
    "λ": "lambda", "μ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi",
    "ϕ": "phi", "ω": "omega",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_TABLE = str.maketrans(_SYMBOLS | {letter: f"\\{name} " for letter, name in _GREEK.items()})

_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|mathstrut|hfill|nobreak)"
    r"(?![A-Za-z])\.?|(?<!\\)\\[!()\[\]]|(?<!\\)\$|`"
)
_SPACING = re.compile(r"(?<!\\)\\(?:[,;:> ]|q?quad(?![A-Za-z])|hspace\*?\{[^{}]*\})|~|(?<!\\)\\\s")
# Groups of three digits: after a separator that can be nothing else, anywhere in an answer.
_GROUPED = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:(?:\{,\}|, ?\\! ?|\\,|\\ |\\;|~|[\u00a0\u2009\u202f])\d{3})+)(?!\d)"
)
_GROUPED_BY_SPACE = re.compile(r"(?<![\d.,/^_{] )(?<![\d.,/^_])\d{1,3}(?: \d{3})+(?![\d/]| *[\d/])")
_DIGITS_APART = re.compile(r"-?\s*\d(?:\s+\d)*(?:\s*\.\s*\d(?:\s+\d)*)?")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|then)\b,?\s*)?(?:the\s+)?(?:final\s+)?(?:correct\s+)?"
    r"(?:answer|result)\s*(?:is|:|=)\s*:?|(?:故|所以)?答案(?:是|为)?\s*:?|(?:about|around|approximately|roughly)\s|\\approx(?![A-Za-z])|=(?!=)|\\therefore(?![A-Za-z])",
    re.IGNORECASE,
)
_COPULA = re.compile(
    r"\b(?:is|are|was|were|equals|equal to|be|has|have|there (?:is|are)|"
    r"an? (?:total|area|volume|length|width|height|radius|diameter|perimeter|circumference|"
    r"distance|speed|value|measure|probability|slope|mean|average|cost|price|profit|weight|mass|"
    r"number|angle|sum) of)\s|[:=]|[是为]|等于",
    re.IGNORECASE,
)
_UNLIKE = re.compile(
    r"\b(?:not|no|never|neither|nor|less|fewer|more|greater|least|most|over|under|below|above|than|"
    r"between|before|after|except|nearly|half|twice)\b|n't\b|不|非|[小大]于",
    re.IGNORECASE,
)
_TEXT = "text|mbox|hbox|textbf|textit|textrm|textnormal|textsf|texttt|emph"
_NAME = "mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol|bm|operatorname\\*?|rm|bf|it"
_TOKEN = re.compile(
    rf"""
      (?P<space>\s+)
    | \\(?P<style>{_TEXT}|{_NAME})\s*\{{
    | (?P<group>\d{{1,3}}(?:,\d{{3}})+(?![\d,]*\d)(?:\.\d+)?)
    | (?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\w.]))?)
    | (?P<cmd>\\(?:[A-Za-z]+|[{{}}|%$&\#_\\]))
    | (?P<word>[A-Za-z]+|[^\W\d_]+)
    | (?P<op>\*\*|<=|>=|!=|==|[-+*/^_=<>!'()\[\]{{}}|,;:%&°€£¥.?])
    """,
    re.VERBOSE,
)


def clean(text: str) -> str:
    """Drops what only changes an answer's looks; leaves one line of ASCII and letters."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: f"^{{{m[0].translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub("[¼-¾⅐-⅞]", _vulgar_fraction, text).translate(_TABLE)
    text = _GROUPED.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = unicodedata.normalize("NFKC", text)
    text = text.replace(r"\langle", "(").replace(r"\rangle", ")")
    text = re.sub(r"\.{3,}|\\(?:cdots|dots|dotsc)(?![A-Za-z])", r"\\ldots ", text)
    text = _SPACING.sub(" ", _DROPPED.sub("", text)).strip(" *\n\t")
    if lead := _LEAD.match(text):
        text = text[lead.end() :].lstrip(" *")
    text = text.rstrip(" .,;:?*")
    text = text[:-1].rstrip() if text.endswith("\\") else text
    if _DIGITS_APART.fullmatch(text):
        return re.sub(r"\s", "", text)
    text = _TIMES_TEN.sub(r"\\times ", text)
    return _GROUPED_BY_SPACE.sub(lambda m: m[0].replace(" ", ""), text)


def without_prose(text: str) -> str | None:
    """What a sentence says of what it names: "The area is 40" gives "40"; None for other texts.

    What stands before has to be words alone, none of them a negation or a comparison.
    """
    for copula in reversed(list(_COPULA.finditer(text))):
        lead = text[: copula.end()].rstrip(" :=")
        words = re.findall(r"[^\W\d_]+", lead)
        prose = not re.search(r"[^\w\s,:'$-]|[\d_]", lead) and not _UNLIKE.search(lead)
        if prose and any(len(word) > 2 or not word.isascii() for word in words):
            return text[copula.end() :].strip() or None
    return None


def _vulgar_fraction(match: re.Match) -> str:
    upper, lower = unicodedata.normalize("NFKC", match[0]).split("⁄")
    return rf"\frac{{{upper}}}{{{lower}}}"


def tokenize(text: str) -> list[Token]:
    """Cuts a cleaned answer into tokens.

    Outside of brackets a comma joins groups of three digits: 1,284 is a number, (1,284) a pair.

    Raises:
        Unreadable: at a character that belongs to no token.
    """
    return list(_tokens(text))


def _tokens(text: str) -> Iterator[Token]:
    position, depth, spaced = 0, 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"unexpected {text[position]!r}")
        kind, position = match.lastgroup, match.end()
        piece = match[kind]
        if kind == "space":
            spaced = True
            continue
        if kind == "style":
            end = _closing(text, position)
            kind = "text" if re.fullmatch(_TEXT, piece) else "name"
            piece, position = text[position:end].strip(), end + 1
        elif kind == "group":
            if depth:  # a separator of elements here: give back all but the first group
                first = piece.split(",")[0]
                piece, position = first, match.start() + len(first)
            kind, piece = "num", piece.replace(",", "")
        elif piece in ("(", "[", "\\{"):
            depth += 1
        elif piece in (")", "]", "\\}"):
            depth -= 1
        yield Token(kind, piece, spaced)
        spaced = False


def _closing(text: str, position: int) -> int:
    depth = 1
    for brace in re.compile(r"\\.|[{}]").finditer(text, position):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    raise Unreadable("a brace is not closed")
