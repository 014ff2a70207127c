"""Tells most unequal expressions apart at once, in floating point with error bounds.

It answers only "certainly different" or "unknown": that two expressions are equal is never
concluded from floating point.
"""

import cmath
import math
import zlib
from collections.abc import Callable
from fractions import Fraction

from jaxevolve.answers.algebra import Node

_EPS = 1e-15
_CONSTANTS = {"pi": math.pi, "e": math.e, "i": 1j}
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "cot": lambda x: 1 / cmath.tan(x),
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
    "asin": cmath.asin,
    "acos": cmath.acos,
    "atan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "ln": cmath.log,
    "abs": lambda x: complex(abs(x)),
}


class _Unknown(ArithmeticError):
    pass


def has_root(node: Node) -> bool:
    """Tells whether a symbol stands under a root, a logarithm or in a base of unknown power."""
    if not isinstance(node, tuple):
        return False
    whole = node[0] == "^" and isinstance(node[2], Fraction) and node[2].denominator == 1
    if node[0] == "ln" or (node[0] == "^" and not whole and not isinstance(node[1], Fraction)):
        return True
    return any(map(has_root, node[1:]))


def _value(node: Node, point: str, low: float) -> tuple[complex, float]:
    """An expression's value at a point, and a bound of its rounding error."""
    if isinstance(node, Fraction):
        value = complex(node)
        return value, _EPS * abs(value)
    if isinstance(node, str):
        if node == "oo":
            raise _Unknown
        share = zlib.crc32((point + node).encode()) / 2**32
        value = complex(_CONSTANTS.get(node, low + (2 - low) * share))
        return value, _EPS * abs(value)
    parts = [_value(argument, point, low) for argument in node[1:]]
    if node[0] == "+":
        value = sum(part for part, _ in parts)
        return value, sum(error + _EPS * abs(part) for part, error in parts)
    if node[0] == "*":
        value = math.prod((part for part, _ in parts), start=1 + 0j)
        relative = sum(error / abs(part) for part, error in parts)
        return value, abs(value) * (relative + _EPS * len(parts))
    if node[0] == "^":
        (base, base_error), (exponent, exponent_error) = parts
        value = base**exponent
        relative = abs(exponent) * base_error / abs(base) + abs(cmath.log(base)) * exponent_error
        return value, abs(value) * (relative + _EPS)
    if node[0] not in _FUNCTIONS:
        raise _Unknown
    function, (argument, error) = _FUNCTIONS[node[0]], parts[0]
    value = function(argument)
    # The slope from a step, well over any rounding error, away from the point.
    step = max(abs(argument), 1) * 1e-6
    slope = abs(function(argument + step) - value) / step
    return value, 2 * slope * error + _EPS * max(abs(value), 1)


def certainly_different(left: Node, right: Node) -> bool:
    """Tells whether two expressions take clearly different values somewhere.

    Symbols are positive where one of them stands under a root, else of any sign.
    """
    low = 0.5 if has_root(left) or has_root(right) else -2.0
    for point in ("a", "b"):
        try:
            left_value, left_error = _value(left, point, low)
            right_value, right_error = _value(right, point, low)
        except (ArithmeticError, ValueError):
            return False
        gap = abs(left_value - right_value)
        size = max(abs(left_value), abs(right_value))
        if math.isfinite(gap) and gap > 1e3 * (left_error + right_error) + 1e-12 * size:
            return True
    return False
