r"""Reads an answer: numbers, lists, tuples, sets, intervals, equations, units, words.

What an answer may mean is said in the docstring of `equality.equal`.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from jaxevolve.answers.algebra import Node, Undefined, add, divide, monic, mul, symbols
from jaxevolve.answers.expression import Reader
from jaxevolve.answers.extraction import extract
from jaxevolve.answers.forms import (
    Equation,
    Form,
    Formula,
    Interval,
    Region,
    Sequence,
    Text,
    Value,
)
from jaxevolve.answers.regions import (
    INFINITY,
    MINUS_INFINITY,
    as_region,
    bounded,
    inequality,
    intersection,
    union,
    without,
)
from jaxevolve.answers.spelling import respell
from jaxevolve.answers.tokens import (
    MAX_CHARACTERS,
    Token,
    Unreadable,
    clean,
    tokenize,
    without_prose,
)
from jaxevolve.answers.units import take_currency, take_unit
from jaxevolve.answers.vocabulary import is_known_word, is_name

_PLAIN = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'-]+[^\W\d_]+)*")
_MATRIX = re.compile(
    r"[\[(]?\s*\\begin\{(?P<kind>[bpBv]?matrix|array)\}(?:\{[lcr| ]*\})?(?P<body>.*)"
    r"\\end\{(?P=kind)\}\s*[\])]?",
    re.DOTALL,
)
_CASES = re.compile(r"(?:[^=\\]*=\s*)?\\begin\{cases\}(.*)\\end\{cases\}", re.DOTALL)
_CONDITION = re.compile(
    r"^(?:\\(?:text|mbox|mathrm)\{\s*)?(?:,\s*)?(?:if|when|for|where|当)\b\s*\}?\s*", re.IGNORECASE
)
_TEXT_COMMANDS = re.compile(r"\\(?:text|mbox|mathrm|textbf)(?![A-Za-z])|[{}]")
# What math-verify understands beyond this reader.
_BEYOND = frozenset({"\\int", "\\iint", "\\iiint", "\\sum", "\\prod", "\\lim"})
_PLURAL = re.compile(r"(?<=[^\W\d_]{3})(?<![sui])s\b")
_ORDERS = {
    "<": "<", ">": ">", "\\lt": "<", "\\gt": ">", "<=": "<=", ">=": ">=", "\\le": "<=",
    "\\leq": "<=", "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=",
    "!=": "!=", "\\ne": "!=", "\\neq": "!=",
}  # fmt: skip
_EQUALS = frozenset({"=", "==", "\\approx", "\\equiv"})
_WITHOUT = frozenset({"\\setminus", "\\backslash"})
_COLONS = frozenset({":", "\\colon"})
_OPENING = {"(": ")", "[": "]", "\\{": "\\}"}
_MINUS_ONE = Fraction(-1)


def read(text: str) -> Form | None:
    """Reads an answer; a text that still holds its box or answer tag is unwrapped first.

    Never fails: what cannot be understood is words.

    Returns:
        The answer's form; None for an empty answer, or a box that is empty or cut off.
    """
    if _PLAIN.fullmatch(text):
        return Value(Fraction(text))
    if "\\boxed" in text or "\\fbox" in text or "<answer>" in text:
        inner = extract(text)
        return None if inner is None else read(inner)
    if len(text) > MAX_CHARACTERS:
        return Text(_folded(text))
    return _read(text)


@lru_cache(maxsize=1 << 14)
def _read(text: str) -> Form | None:
    plain = respell(clean(text))
    if not plain:
        return None
    try:
        if matrix := _MATRIX.fullmatch(plain):
            rows = _matrix(matrix["body"])
            return _determinant(rows) if matrix["kind"] == "vmatrix" else rows
        if cases := _CASES.fullmatch(plain):
            return _cases(cases[1])
        tokens = tokenize(plain)
        if len(tokens) == 1 and tokens[0].kind in ("text", "name"):
            return read(tokens[0].text)
        if _is_words(plain):
            return Text(_folded(plain))
        return _statement(tokens)
    except (Unreadable, Undefined, RecursionError):
        if (value := without_prose(plain)) and not isinstance(form := _read(value), Text):
            return form
        return Text(_folded(_TEXT_COMMANDS.sub(" ", plain)))


def _folded(text: str) -> str:
    return "".join(_PLURAL.sub("", text.casefold()).split())


def _is_words(text: str) -> bool:
    """Words alone, with no number, and one of them of a length that no product of letters has."""
    if not _WORDS.fullmatch(text):
        return False
    words = re.findall(r"[^\W\d_]+", text)
    if {"or", "and"} & set(words):
        return False
    meant = [not is_known_word(word) and (len(word) > 2 or word.lower() == "no") for word in words]
    capitals = all(word.isupper() for word in words)  # ABC is a name, not a word
    return any(meant) and not (capitals and len(words) == 1)


def _matrix(body: str) -> Sequence:
    rows = [row for row in body.split("\\\\") if row.strip()]
    return Sequence(
        "matrix",
        tuple(
            Sequence("matrix", tuple(_statement(tokenize(cell)) for cell in row.split("&")))
            for row in rows
        ),
    )


def _determinant(matrix: Sequence) -> Value:
    """What |matrix| comes to."""
    rows = [[item.node for item in row.items if isinstance(item, Value)] for row in matrix.items]
    if not 0 < len(rows) <= 5 or any(len(row) != len(rows) for row in rows):
        raise Unreadable("a determinant of other than a small square of numbers")

    def expand(rows: list[list[Node]]) -> Node:
        if not rows:
            return Fraction(1)
        minors = ([row[:k] + row[k + 1 :] for row in rows[1:]] for k in range(len(rows)))
        signed = (mul(_MINUS_ONE ** (k % 2), rows[0][k], expand(m)) for k, m in enumerate(minors))
        return add(*signed)

    return Value(expand(rows))


def _cases(body: str) -> Sequence:
    """Reads pieces, each with its condition; without conditions the lines of a system."""
    lines = [line.split("&") for line in body.split("\\\\") if line.strip()]
    if all(len(line) == 1 for line in lines):
        return _named(Sequence("commas", tuple(_statement(tokenize(line[0])) for line in lines)))
    pieces = []
    for line in lines:
        if len(line) != 2:
            raise Unreadable("a piece without a condition")
        value, condition = line[0].strip(" ,"), _CONDITION.sub("", line[1].strip())
        pieces.append(Sequence("tuple", (_statement(tokenize(value)), _read(condition))))
    if any(None in piece.items for piece in pieces):
        raise Unreadable("a piece without a condition")
    return Sequence("set", tuple(pieces))


def _split(tokens: list[Token], separates: Callable[[Token], bool]) -> list[list[Token]]:
    """Cuts tokens at separators outside of all brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if depth == 0 and separates(token):
            parts.append([])
            continue
        if token.kind in ("op", "cmd"):
            depth += (token.text in ("(", "[", "{", "\\{")) - (token.text in (")", "]", "}", "\\}"))
        parts[-1].append(token)
    return parts


def _is_or(token: Token) -> bool:
    return token.text in ("or", "\\lor", "\\vee") or token.text.strip(" ,") == "or"


def _is_and(token: Token) -> bool:
    return (
        token.text in ("\\\\", "\\land", "\\wedge", "&", "\\&") or token.text.strip(" ,") == "and"
    )


def _statement(tokens: list[Token]) -> Form:
    """Reads an answer that may be several."""
    parts = _parts(tokens, _is_or)
    if len(parts) > 1:
        forms = [_statement(part) for part in parts]
        if all(isinstance(form, Region) for form in forms):
            return union(forms)
        return _named(Sequence("words", tuple(_distinct(_items(forms)))))
    parts = _parts(parts[0], lambda t: t.text in (",", ";") or _is_and(t))
    if len(parts) > 1:
        forms = [_single(part) for part in parts]
        if all(isinstance(form, Region) for form in forms):
            return intersection(forms)
        kind = "words" if any(map(_is_and, tokens)) else "commas"
        return _named(Sequence(kind, tuple(_items(forms))))
    return _single(parts[0])


def _parts(tokens: list[Token], separates: Callable[[Token], bool]) -> list[list[Token]]:
    """What stands between separators, at least one part; ", and" is one separator."""
    parts = [part for part in _split(tokens, separates) if part]
    if not parts:
        raise Unreadable("nothing")
    return parts


def _items(forms: list[Form]) -> list[Form]:
    """Lists within a list that only "or" or plus-minus made are elements of it."""
    flat: list[Form] = []
    for form in forms:
        nested = isinstance(form, Sequence) and form.kind in ("words", "commas")
        flat += form.items if nested else [form]
    return flat


def _distinct(forms: list[Form]) -> list[Form]:
    """Alternatives, and elements of a set, count once however often they are named."""
    return list({form.key: form for form in forms}.values())


def _named(listed: Sequence) -> Form:
    """Moves the name out of x = 3 or x = -2, and of x = 3, -2."""
    first = listed.items[0]
    if not (isinstance(first, Equation) and first.name and first.value):
        return listed
    stem = first.name.partition("_")[0]
    values: list[Form] = []
    for item in listed.items:
        if isinstance(item, Equation):
            if item.name is None or item.value is None or item.name.partition("_")[0] != stem:
                return listed
            values.append(item.value)
        elif isinstance(item, Value):
            values.append(item)
        else:
            return listed
    return Equation(stem, Sequence(listed.kind, tuple(_items(values))), None)


def _single(tokens: list[Token]) -> Form:
    """Reads an answer without a list at its outermost level."""
    if not tokens:
        raise Unreadable("nothing")
    texts = {token.text for token in tokens}
    parts = _split(tokens, lambda t: t.text == "\\in") if "\\in" in texts else []
    if len(parts) == 2 and is_name(parts[0]):
        name = "".join(t.text for t in parts[0])
        within = _single(parts[1])
        if isinstance(within, Sequence) and within.kind == "set":
            return Equation(name, within, None)
        return Region(_region(within).intervals, name)
    if texts & {"\\cup", "U"}:
        parts = _split(tokens, lambda t: t.text == "\\cup" or (t.text == "U" and t.spaced))
    if len(parts) > 1:
        forms = [_single(part) for part in parts]
        if all(isinstance(form, Sequence) and form.kind == "set" for form in forms):
            return Sequence("set", tuple(_distinct([i for form in forms for i in form.items])))
        return union([_region(form) for form in forms])
    parts = _split(tokens, lambda t: t.text in _WITHOUT) if texts & _WITHOUT else []
    if len(parts) == 2:
        return without(_region(_single(parts[0])), _region(_single(parts[1])))
    if [t.text for t in tokens] in (["\\mathbb", "{", "R", "}"], ["\\mathbb", "R"], ["\\R"]):
        return Region((Interval(MINUS_INFINITY, INFINITY, False, False),))
    parts = _split(tokens, lambda t: t.text in _ORDERS) if texts & _ORDERS.keys() else []
    if len(parts) > 1:
        signs = [_ORDERS[t.text] for t in tokens if t.text in _ORDERS]
        if len(signs) != len(parts) - 1:
            raise Unreadable("an inequality within brackets")
        return inequality([_node(part) for part in parts], signs)
    parts = _split(tokens, lambda t: t.text in _EQUALS) if texts & _EQUALS else []
    if len(parts) > 1:
        return _equation(parts)
    if _is_point(tokens):  # P(3, 4)
        tokens = tokens[1:]
    if tokens[0].text in (*_OPENING, "]") and (form := _bracketed(tokens)):
        return form
    parts = _split(tokens, lambda t: t.text in _COLONS) if texts & _COLONS else []
    if len(parts) > 1:
        return _ratio([_node(part) for part in parts])
    return _value(tokens)


def _is_point(tokens: list[Token]) -> bool:
    letter = tokens[0].kind == "word" and len(tokens[0].text) == 1 and tokens[0].text.isupper()
    closed = letter and len(tokens) > 3 and tokens[1].text == "(" and tokens[-1].text == ")"
    return closed and len(_split(tokens[2:-1], lambda t: t.text == ",")) > 1


def _bracketed(tokens: list[Token]) -> Form | None:
    """Reads (a, b), [a, b), {a, b}, {x | x < 6}; None where brackets only group a product."""
    opening, closing = tokens[0].text, tokens[-1].text
    inner = tokens[1:-1]
    parts = _split(inner, lambda t: t.text in (",", ";"))
    half_open = (opening, closing) in (("(", "]"), ("[", ")"), ("]", "]"), ("[", "["), ("]", "["))
    if len(parts) == 2 and half_open and _balanced(inner):
        ends = [_node(part) for part in parts]
        return Region((bounded(*ends, opening == "[", closing == "]"),))
    if _OPENING.get(opening) != closing or not _balanced(inner):
        return None
    if opening == "\\{":
        such_that = _split(inner, lambda t: t.text in ("|", "\\mid", ":", "\\vert"))
        if len(such_that) == 2:
            return _statement(such_that[1])
        items = _items([_single(part) for part in parts if part])
        return Sequence("set", tuple(_distinct(items)))
    if len(parts) > 1:
        kind = "tuple" if opening == "(" else "square"
        items = tuple(_single(part) for part in parts)
        rows = [i.items for i in items if isinstance(i, Sequence) and i.kind == "square"]
        if kind == "square" and len(rows) == len(items) and len({len(row) for row in rows}) == 1:
            return Sequence("matrix", tuple(Sequence("matrix", row) for row in rows))
        return Sequence(kind, items)
    if opening == "[" and len(tokens) > 2:
        return _single(inner)
    return None


def _balanced(tokens: list[Token]) -> bool:
    depth = 0
    for token in tokens:
        if token.kind in ("op", "cmd"):
            depth += (token.text in ("(", "[", "{", "\\{")) - (token.text in (")", "]", "}", "\\}"))
        if depth < 0:
            return False
    return depth == 0


def _equation(sides: list[list[Token]]) -> Form:
    """Reads left = right; a chain of equalities by its first and last side."""
    left, right = sides[0], sides[-1]
    if any(side[-len(left) :] == left for side in sides[1:-1]):
        raise Unreadable("two equations in a row")
    if not is_name(left) and is_name(right):
        left, right = right, left
    name = "".join(t.text for t in left if t.text not in "{}") if is_name(left) else None
    try:
        node = monic(add(_node(left), mul(_MINUS_ONE, _node(right))))
    except (Unreadable, Undefined):
        if name is None:
            raise
        node = None
    if name is None and not symbols(node):
        return _single(right)  # 2 + 3 = 5 says 5
    return Equation(name, _single(right) if name else None, node)


def _ratio(parts: list[Node]) -> Form:
    if len(parts) == 2:
        return Value(divide(*parts))
    return Sequence("ratio", tuple(Value(divide(part, parts[0])) for part in parts))


def _node(tokens: list[Token]) -> Node:
    """Reads tokens as an expression, without its unit."""
    form = _value(tokens)
    if not isinstance(form, Value):
        raise Unreadable("several values")
    return form.node


def _value(tokens: list[Token]) -> Form:
    """Reads an expression with its unit, or two of them for a plus-minus sign."""
    signs = [t.text for t in tokens if t.text in ("\\pm", "\\mp")]
    if signs:
        upper, lower = {"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"}
        both = [
            _value([Token("op", table[t.text]) if t.text in table else t for t in tokens])
            for table in (upper, lower)
        ]
        return Sequence("words", tuple(_distinct(both)))
    if len(tokens) == 1 and tokens[0].text == "\\ldots":
        return Text("...")
    if len(tokens) == 1 and tokens[0].text in ("\\emptyset", "\\varnothing"):
        return Sequence("set", ())
    if any(token.text in _BEYOND for token in tokens):
        if any(token.kind == "text" or _is_prose(token) for token in tokens):
            raise Unreadable("words in a formula")
        return Formula(" ".join(token.text for token in tokens))
    tokens, currency = take_currency(tokens)
    tokens, unit, multiplier = take_unit(tokens)
    reader = Reader(tokens)
    node = reader.read()
    if multiplier != 1:
        node = mul(multiplier, node)
    return Value(node, currency or unit or ("deg" if reader.degrees else None))


def _is_prose(token: Token) -> bool:
    return token.kind in ("word", "name") and len(token.text) > 2 and not is_known_word(token.text)


def _region(form: Form) -> Region:
    region = as_region(form)
    if region is None:
        raise Unreadable("an interval is missing")
    return region
