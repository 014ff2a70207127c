"""Exact arithmetic on small expressions, in a canonical form.

An expression is a Fraction, a symbol (str; "pi", "e", "i" and "oo" have their meaning) or a tuple
(operator, *arguments) with the operators "+", "*", "^" and names of functions. The functions here
build such trees already simplified: rational numbers are folded, like terms and like factors are
collected, surds are reduced, operands are ordered. Equal trees are equal expressions; whether two
different trees are equal is a question for sympy. Nothing here can run long: numbers have at most
MAX_BITS bits, and a power or factorial beyond that stays as it is written.

Symbols stand for positive numbers where a root is taken, as usual in answers: sqrt(1/n) is
1/sqrt(n). Odd roots of negative numbers are real.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

Node = Fraction | str | tuple

MAX_BITS = 4096
_TRIAL_DIVISORS = 10_000
CONSTANTS = frozenset({"pi", "e", "i", "oo"})


class Undefined(ValueError):
    """An expression without a value, such as 1 / 0, or with a number of over MAX_BITS bits."""


def show(node: Node) -> str:
    """Writes an expression so that equal trees, and no others, are written alike."""
    if isinstance(node, tuple):
        return "(" + " ".join([node[0], *map(show, node[1:])]) + ")"
    return str(node)


def symbols(node: Node) -> frozenset[str]:
    """The symbols of an expression, constants not among them."""
    if isinstance(node, tuple):
        return frozenset().union(*map(symbols, node[1:]))
    return frozenset({node} - CONSTANTS) if isinstance(node, str) else frozenset()


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _checked(number: Fraction) -> Fraction:
    if _bits(number) > MAX_BITS:
        raise Undefined("a number is too long")
    return number


def _too_big(base: Fraction, exponent: Fraction) -> bool:
    return abs(base) != 1 and _bits(base) * abs(exponent) > MAX_BITS


def is_huge(node: Node) -> bool:
    """Tells whether a power or factorial in an expression was left alone for its size."""
    if not isinstance(node, tuple):
        return False
    if all(isinstance(argument, Fraction) for argument in node[1:]):
        return node[0] == "fact" or (node[0] == "^" and _too_big(node[1], node[2]))
    return any(map(is_huge, node[1:]))


def _flat(operator: str, nodes: Iterable[Node]) -> Iterable[Node]:
    for node in nodes:
        if isinstance(node, tuple) and node[0] == operator:
            yield from node[1:]
        else:
            yield node


def _scaled(factor: Fraction, rest: Node) -> Node:
    """A term from its coefficient and the rest, which has none; the inverse of `coefficient`."""
    if factor == 1 or rest == 1:
        return rest if factor == 1 else factor
    return ("*", factor, *_flat("*", [rest]))


def coefficient(node: Node) -> tuple[Fraction, Node]:
    """Splits a term into its rational coefficient and the rest."""
    if isinstance(node, Fraction):
        return node, Fraction(1)
    if isinstance(node, tuple) and node[0] == "*" and isinstance(node[1], Fraction):
        return node[1], node[2] if len(node) == 3 else ("*", *node[2:])
    return Fraction(1), node


def add(*terms: Node) -> Node:
    """Adds, collecting like terms."""
    if len(terms) == 1:
        return terms[0]
    constant = Fraction(0)
    collected: dict[str, tuple[Fraction, Node]] = {}
    for term in _flat("+", terms):
        factor, rest = coefficient(term)
        if rest == 1:
            constant = _checked(constant + factor)
        else:
            name = show(rest)
            before = collected[name][0] if name in collected else Fraction(0)
            collected[name] = (_checked(before + factor), rest)
    result = [_scaled(factor, rest) for _, (factor, rest) in sorted(collected.items()) if factor]
    if constant or not result:
        result.insert(0, constant)
    return result[0] if len(result) == 1 else ("+", *result)


def mul(*factors: Node) -> Node:
    """Multiplies, collecting like factors; a number is multiplied into a sum."""
    if len(factors) == 2 and isinstance(factors[0], Fraction) and isinstance(factors[1], Fraction):
        return _checked(factors[0] * factors[1])
    number = Fraction(1)
    powers: dict[str, tuple[Node, Node]] = {}
    for factor in _flat("*", factors):
        if isinstance(factor, Fraction):
            number = _checked(number * factor)
            continue
        is_power = isinstance(factor, tuple) and factor[0] == "^"
        base, exponent = factor[1:] if is_power else (factor, Fraction(1))
        name = show(base)
        if name in powers:
            exponent = add(powers[name][1], exponent)
        powers[name] = (base, exponent)
    rest: list[Node] = []
    for _, (base, exponent) in sorted(powers.items()):
        rational = isinstance(exponent, Fraction)
        if rational and isinstance(base, Fraction):  # a prime's power: keep its part below 1
            whole = Fraction(math.floor(exponent))
            if not _too_big(base, whole):
                number = _checked(number * base ** int(whole))
                exponent -= whole
        elif rational and base == "i" and exponent.denominator == 1:
            number *= (1, 1, -1, -1)[int(exponent) % 4]
            exponent = exponent % 2
        if exponent == 1:
            rest.append(base)
        elif exponent != 0:
            rest.append(("^", base, exponent))
    if number == 0 or not rest:
        return number
    if len(rest) == 1 and isinstance(rest[0], tuple) and rest[0][0] == "+" and number != 1:
        return add(*(mul(number, term) for term in rest[0][1:]))
    return _scaled(number, rest[0] if len(rest) == 1 else ("*", *rest))


def monic(node: Node) -> Node:
    """Scales an expression so that the first of its terms that is no number has a coefficient of 1.

    What is zero where another expression is, and differs from it by a number, becomes the same.
    """
    terms = node[1:] if isinstance(node, tuple) and node[0] == "+" else (node,)
    factors = [factor for factor, rest in map(coefficient, terms) if rest != 1]
    return mul(1 / factors[0], node) if factors else node


def divide(numerator: Node, denominator: Node) -> Node:
    """Divides."""
    return mul(numerator, power(denominator, Fraction(-1)))


@lru_cache(maxsize=4096)
def _factorise(number: int) -> tuple[tuple[int, int], ...]:
    """(factor, multiplicity) pairs; a cofactor of large primes stays in one piece."""
    factors = []
    divisor = 2
    while divisor <= _TRIAL_DIVISORS and divisor * divisor <= number:
        times = 0
        while number % divisor == 0:
            number //= divisor
            times += 1
        if times:
            factors.append((divisor, times))
        divisor += 1 if divisor == 2 else 2
    root = math.isqrt(number)
    if number > 1:
        factors.append((root, 2) if root * root == number else (number, 1))
    return tuple(factors)


def _is_positive(node: Node) -> bool:
    """Whether an expression is positive when its symbols are; False also means unknown."""
    if isinstance(node, Fraction):
        return node > 0
    if isinstance(node, str):
        return node != "i"
    if node[0] in ("+", "*"):
        return all(map(_is_positive, node[1:]))
    return node[0] == "^" and _is_positive(node[1])


def power(base: Node, exponent: Node) -> Node:
    """Raises to a power."""
    if exponent == 1:
        return base
    if base == 0:
        if isinstance(exponent, Fraction) and exponent > 0:
            return base
        raise Undefined("zero to the power of zero, of a negative number or of a symbol")
    if exponent == 0 or base == 1:
        return Fraction(1)
    whole = isinstance(exponent, Fraction) and exponent.denominator == 1
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if whole:
            if _too_big(base, exponent):
                return ("^", base, exponent)
            return _checked(base ** int(exponent))
        if base < 0:
            size = power(-base, exponent)
            if exponent.denominator % 2:
                return mul(Fraction(-1) ** (exponent.numerator % 2), size)
            if exponent.denominator == 2:
                return mul(power("i", Fraction(exponent.numerator)), size)
            return ("^", base, exponent)
        primes = [(p, k) for p, k in _factorise(base.numerator)]
        primes += [(p, -k) for p, k in _factorise(base.denominator)]
        return mul(*(("^", Fraction(p), k * exponent) for p, k in primes))
    if isinstance(base, tuple):
        if base[0] == "^" and (whole or _is_positive(base[1])):
            return power(base[1], mul(base[2], exponent))
        if base[0] == "*" and (whole or all(map(_is_positive, base[1:]))):
            return mul(*(power(factor, exponent) for factor in base[1:]))
    if isinstance(exponent, tuple) and exponent[0] == "+":
        return mul(*(power(base, term) for term in exponent[1:]))
    return mul(("^", base, exponent))


def apply(name: str, argument: Node) -> Node:
    """Applies a function of one argument: a name of `sympy`, or one of the few named here."""
    if name == "exp":
        return power("e", argument)
    if name == "cis":
        return power("e", mul("i", argument))
    if name == "sqrt":
        return power(argument, Fraction(1, 2))
    if name == "ln" and argument in (1, "e"):
        return Fraction(int(argument == "e"))
    if isinstance(argument, Fraction):
        whole = argument.denominator == 1
        if name == "abs":
            return abs(argument)
        if name in ("floor", "ceil"):
            return Fraction(math.floor(argument) if name == "floor" else math.ceil(argument))
        if name == "fact" and whole and 0 <= argument <= 500:
            return _checked(Fraction(math.factorial(int(argument))))
        if name == "fact" and (not whole or argument < 0):
            raise Undefined("a factorial of a number that is not a natural one")
    return (name, argument)


def binomial(upper: Node, lower: Node) -> Node:
    """A binomial coefficient."""
    numbers = isinstance(upper, Fraction) and isinstance(lower, Fraction)
    if not numbers:
        return ("binom", upper, lower)
    if upper.denominator * lower.denominator != 1 or not 0 <= lower <= upper <= 500:
        raise Undefined("a binomial coefficient of other than small natural numbers")
    return Fraction(math.comb(int(upper), int(lower)))


def logarithm(argument: Node, base: Node) -> Node:
    """A logarithm to any base."""
    return divide(apply("ln", argument), apply("ln", base))


def encode(node: Node) -> Any:
    """An expression as lists and strings, for `worker`."""
    if isinstance(node, Fraction):
        return ["num", str(node)]
    return [node[0], *map(encode, node[1:])] if isinstance(node, tuple) else node


def decode(tree: Any) -> Node:
    """An expression from lists and strings, in canonical form.

    Raises:
        Undefined: it has no value.
    """
    if isinstance(tree, str):
        return tree
    operator, *arguments = tree
    if operator == "num":
        return _checked(Fraction(arguments[0]))
    nodes = [decode(argument) for argument in arguments]
    functions = {"+": add, "*": mul, "^": power, "binom": binomial}
    if operator in functions:
        return functions[operator](*nodes)
    return apply(operator, *nodes) if len(nodes) == 1 else (operator, *nodes)
