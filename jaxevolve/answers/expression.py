r"""Reads one mathematical expression, in LaTeX or in code style, into `algebra`'s canonical form.

Conventions: an implicit product binds like a written one (1/2x is x/2); \frac without braces takes
one digit, as in LaTeX, but a root and an exponent take a whole number (2^10); an integer before a
proper fraction is a mixed number; \log is to base 10; a degree sign is a unit that is dropped,
except in the argument of a trigonometric function, where it is pi/180; a percent sign is 1/100.
Of letters without a command: pi, exp, sqrt and the like are what they say, capitals (ABC) are one
name, two or three small letters are a product, and other words cannot be read as a formula.
"""

import re
from fractions import Fraction

from jaxevolve.answers.algebra import (
    Node,
    add,
    apply,
    binomial,
    divide,
    logarithm,
    mul,
    power,
)
from jaxevolve.answers.spelling import number_word
from jaxevolve.answers.tokens import Token, Unreadable
from jaxevolve.answers.vocabulary import (
    ACCENTS,
    BARS,
    CONSTANTS,
    FENCES,
    FRACTIONS,
    FUNCTIONS,
    GREEK,
    INVERSE,
    KNOWN,
    PREFIXES,
    ROOTS,
    TRIGONOMETRIC,
    is_known_word,
)

MAX_TOKENS = 600
MAX_DEPTH = 60

_MINUS_ONE = Fraction(-1)
_LITERALS = re.compile(r"(?:\{ \d+ \}|\d) ?(?:\{ \d+ \}|\d)")


class Reader:
    """A recursive-descent reader over a list of tokens.

    Attributes:
        degrees: whether a degree sign was read outside of a trigonometric function.
    """

    def __init__(self, tokens: list[Token]):
        if len(tokens) > MAX_TOKENS:
            raise Unreadable("too long")
        self._tokens = list(tokens)
        self._position = 0
        self._depth = 0
        self._bars = 0
        self._trigonometric = 0
        self.degrees = False

    def read(self) -> Node:
        """Reads all tokens as one expression.

        Raises:
            Unreadable: they are not one.
            Undefined: it has no value.
        """
        node = self._sum()
        if self._peek().kind:
            raise Unreadable(f"unexpected {self._peek().text!r}")
        return node

    def _peek(self, ahead: int = 0) -> Token:
        index = self._position + ahead
        return self._tokens[index] if index < len(self._tokens) else Token("", "")

    def _next(self) -> Token:
        token = self._peek()
        if not token.kind:
            raise Unreadable("unexpected end")
        self._position += 1
        return token

    def _take(self, *texts: str) -> bool:
        if self._peek().kind in ("op", "cmd") and self._peek().text in texts:
            self._position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise Unreadable(f"expected {text!r}")

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        terms = []
        negative = self._sign()
        while True:
            term = self._term()
            terms.append(mul(_MINUS_ONE, term) if negative else term)
            if self._peek().text not in ("+", "-"):
                break
            negative = self._sign()
        self._depth -= 1
        return add(*terms)

    def _sign(self) -> bool:
        negative = False
        while self._peek().text in ("+", "-"):
            negative ^= self._next().text == "-"
        return negative

    def _term(self) -> Node:
        mixed = self._mixed_number()
        node = self._factor() if mixed is None else mixed
        while True:
            if self._take("*", "\\cdot", "\\times", "\\ast"):
                node = mul(node, self._signed_factor())
            elif self._take("/", "\\div"):
                node = divide(node, self._signed_factor())
            elif self._starts_factor():
                node = mul(node, self._factor())
            else:
                return node

    def _signed_factor(self) -> Node:
        negative = self._sign()
        factor = self._factor()
        return mul(_MINUS_ONE, factor) if negative else factor

    def _mixed_number(self) -> Node | None:
        start = self._position
        whole, upper = self._peek(), self._peek(1)
        if not (whole.kind == "num" and whole.text.isdigit()):
            return None
        if upper.kind == "num" and upper.spaced and self._peek(2).text == "/":
            lower = self._peek(3)
            if upper.text.isdigit() and lower.kind == "num" and lower.text.isdigit():
                self._position += 4
                return self._proper(whole.text, upper.text, lower.text) or self._back(start)
        if upper.kind == "cmd" and upper.text[1:] in FRACTIONS:
            ahead = " ".join(self._peek(i).text for i in range(2, 8))
            self._position += 1
            fraction = self._atom() if _LITERALS.match(ahead) else None
            if isinstance(fraction, Fraction) and 0 < fraction < 1:
                return int(whole.text) + fraction
        return self._back(start)

    @staticmethod
    def _proper(whole: str, upper: str, lower: str) -> Fraction | None:
        if not 0 < int(upper) < int(lower):
            return None
        return int(whole) + Fraction(int(upper), int(lower))

    def _back(self, start: int) -> None:
        self._position = start

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token.kind == "num":
            before = self._peek(-1) if self._position else Token("", "")
            return before.kind != "num"
        if token.kind in ("word", "name"):
            return True
        if token.text in BARS:
            return self._bars == 0
        if token.kind == "cmd":
            name = token.text[1:]
            return (
                name in FRACTIONS | ACCENTS | PREFIXES | FENCES.keys()
                or name in KNOWN | GREEK
                or name == "binom"
            )
        return token.kind == "op" and token.text in ("(", "{")

    def _factor(self) -> Node:
        return self._postfix(self._atom())

    def _postfix(self, node: Node) -> Node:
        while True:
            if self._degree():
                node = self._in_degrees(node)
            elif self._take("^", "**"):
                node = power(node, self._exponent())
            elif self._take("!"):
                node = apply("fact", node)
            elif self._take("%", "\\%"):
                node = divide(node, Fraction(100))
            elif isinstance(node, str) and self._take("'"):
                node += "'"
            else:
                return node

    def _degree(self) -> bool:
        if self._take("°", "\\degree"):
            return True
        if self._peek().text != "^":
            return False
        ahead = [self._peek(i).text for i in range(4)]
        for pattern in (["^", "\\circ"], ["^", "{", "\\circ", "}"], ["^", "°"]):
            if ahead[: len(pattern)] == pattern:
                self._position += len(pattern)
                return True
        return False

    def _in_degrees(self, node: Node) -> Node:
        if self._trigonometric:
            return mul(node, "pi", Fraction(1, 180))
        self.degrees = True
        return node

    def _exponent(self) -> Node:
        negative = self._sign()
        node = self._single()
        if self._take("^", "**"):
            node = power(node, self._exponent())
        return mul(_MINUS_ONE, node) if negative else node

    def _single(self, whole_number: bool = True) -> Node:
        """What a command or an exponent takes without braces; or a group."""
        token = self._peek()
        split = token.kind == "num" and not whole_number and token.text.isdigit()
        split |= token.kind == "word" and not is_known_word(token.text)
        if split and len(token.text) > 1:
            first, rest = Token(token.kind, token.text[0]), Token(token.kind, token.text[1:])
            self._tokens[self._position : self._position + 1] = [first, rest]
        return self._atom()

    def _group(self, closing: str) -> Node:
        bars, self._bars = self._bars, 0
        node = self._sum()
        self._expect(closing)
        self._bars = bars
        return node

    def _atom(self) -> Node:
        token = self._next()
        if token.kind == "num":
            if self._peek().text == "_":  # a number to another base: known by its looks
                return self._subscripted(token.text)
            return self._number(token.text)
        if token.kind == "word":
            return self._word(token.text)
        if token.kind in ("name", "text"):
            if (len(token.text) == 1 and token.text.isalpha()) or is_known_word(token.text):
                return self._word(token.text)
            raise Unreadable("text within a formula")
        if token.kind == "op" and token.text in ("(", "[", "{"):
            return self._group({"(": ")", "[": "]", "{": "}"}[token.text])
        if token.text in BARS:
            self._bars += 1
            node = self._sum()
            if self._next().text not in BARS:
                raise Unreadable("an absolute value is not closed")
            self._bars -= 1
            return apply("abs", node)
        if token.kind == "cmd":
            return self._command(token.text[1:])
        raise Unreadable(f"unexpected {token.text!r}")

    def _number(self, text: str) -> Node:
        if len(text) > 1000 or abs(int(text.lower().partition("e")[2] or 0)) > 1000:
            raise Unreadable("too long a number")
        digits = text.partition(".")[2]
        if "." in text and self._peek().text in ("\\overline", "\\bar", "\\dot"):
            self._next()
            self._expect("{")
            period = self._next()
            self._expect("}")
            if period.kind != "num" or not period.text.isdigit():
                raise Unreadable("a period that is not digits")
            repeated = Fraction(int(period.text), 10 ** len(period.text) - 1)
            return Fraction(text.rstrip(".") or "0") + repeated / 10 ** len(digits)
        return Fraction(text.rstrip("."))

    def _word(self, text: str) -> Node:
        if text in CONSTANTS:
            return CONSTANTS[text]
        if text in FUNCTIONS or text in ROOTS:
            return self._function(text)
        if len(text) == 1 or (text.isascii() and text.isupper()) or is_known_word(text):
            return self._subscripted(text)
        if not (text.isascii() and text.islower() and len(text) <= 3):
            raise Unreadable(f"a word, {text!r}")
        *letters, last = text
        return mul(*(CONSTANTS.get(letter, letter) for letter in letters), self._word(last))

    def _subscripted(self, name: str) -> Node:
        if not self._take("_"):
            return name
        return f"{name}_{self._label()}"

    def _label(self) -> str:
        """The letters and digits of a subscript or of an accent's argument, as one name."""
        token = self._next()
        if token.text != "{":
            return token.text
        label = ""
        while not self._take("}"):
            token = self._next()
            if token.text == "{":
                raise Unreadable("a group within a name")
            number = number_word(token.text) if token.kind in ("text", "name", "word") else None
            label += token.text if number is None else str(number)
        return label

    def _command(self, name: str) -> Node:
        if name in FRACTIONS:
            return divide(self._single(False), self._single(False))
        if name == "binom":
            return binomial(self._single(False), self._single(False))
        if name in FUNCTIONS or name in ROOTS:
            return self._function(name)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name in GREEK:
            return self._subscripted(name)
        if name in FENCES:
            closing, function = FENCES[name]
            return apply(function, self._group("\\" + closing))
        if name in ACCENTS:
            return self._subscripted(self._label())
        if name in PREFIXES:
            return self._subscripted(f"{name}:{self._label()}")
        raise Unreadable(f"unknown command {name}")

    def _function(self, name: str) -> Node:
        if name in ROOTS:
            degree = Fraction(3 if name == "cbrt" else 2)
            if self._peek().text == "[":
                self._next()
                degree = self._group("]")
            return power(self._single(), power(degree, _MINUS_ONE))
        exponent: Node = Fraction(1)
        base: Node | None = None
        if self._take("_"):
            base = self._single()
        if self._take("^"):
            exponent = self._exponent()
        function = FUNCTIONS[name]
        inverse = exponent == -1 and function in INVERSE
        if inverse:
            function, exponent = INVERSE[function], Fraction(1)
        trigonometric = function in TRIGONOMETRIC.values()
        self._trigonometric += trigonometric
        argument = self._argument()
        self._trigonometric -= trigonometric
        if function == "log" or base is not None:
            value = logarithm(argument, Fraction(10) if base is None else base)
        else:
            value = apply(function, argument)
        return power(value, exponent)

    def _argument(self) -> Node:
        """A function's argument: a bracket, or else the product up to the next function."""
        if self._peek().text in ("(", "["):
            return self._atom()
        node = self._signed_factor()
        while self._starts_factor() and self._peek().text.lstrip("\\") not in FUNCTIONS:
            node = mul(node, self._factor())
        return node
