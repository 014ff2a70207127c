"""Exact arithmetic on small expressions, in a canonical form.

An expression is a Fraction, a symbol (str; "pi", "e", "i" and "oo" have their meaning) or a tuple
(operator, *arguments) with the operators "+", "*", "^" and names of functions. The functions here
build such trees already simplified: rational numbers are folded, like terms and like factors are
collected, surds are reduced, operands are ordered. Equal trees are equal expressions; the converse
is decided elsewhere. Nothing here can run long: numbers have at most MAX_BITS bits, and a power or
factorial beyond that stays as it is written.

Symbols stand for positive numbers where a root is taken, as usual in answers: sqrt(1/n) is
1/sqrt(n). Odd roots of negative numbers are real.
"""

import math
from fractions import Fraction

Node = Fraction | str | tuple

MAX_BITS = 4096
_TRIAL_DIVISORS = 10_000


class Undefined(ValueError):
    """An expression without a value, such as 1 / 0, or with a number of over MAX_BITS bits."""


def show(node: Node) -> str:
    """Writes an expression, unambiguously; equal trees and no others are written alike."""
    if isinstance(node, tuple):
        return "(" + " ".join([node[0], *map(show, node[1:])]) + ")"
    return str(node)


def _checked(number: Fraction) -> Fraction:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS:
        raise Undefined("a number is too long")
    return number


def _coefficient(node: Node) -> tuple[Fraction, Node]:
    """Splits a term into its rational coefficient and the rest."""
    if isinstance(node, Fraction):
        return node, Fraction(1)
    if node[0] == "*" and isinstance(node[1], Fraction):
        return node[1], node[2] if len(node) == 3 else ("*", *node[2:])
    return Fraction(1), node


def add(*terms: Node) -> Node:
    """Adds."""
    constant = Fraction(0)
    collected: dict[str, tuple[Fraction, Node]] = {}
    flat = [t for term in terms for t in (term[1:] if term[0:1] == ("+",) else (term,))] if all(
        isinstance(term, tuple) for term in terms
    ) else _flatten("+", terms)
    for term in flat:
        factor, rest = _coefficient(term)
        if rest == 1:
            constant = _checked(constant + factor)
        else:
            name = show(rest)
            before = collected.get(name, (Fraction(0), rest))[0]
            collected[name] = (_checked(before + factor), rest)
    result = [mul(factor, rest) for _, (factor, rest) in sorted(collected.items()) if factor]
    if constant or not result:
        result.insert(0, constant)
    return result[0] if len(result) == 1 else ("+", *result)
