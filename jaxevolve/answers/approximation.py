"""Tells most unequal expressions apart at once, in floating point with error bounds.

It answers only "certainly different" or "unknown": that two expressions are equal is never
concluded from floating point.
"""

import cmath
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from jaxevolve.answers.algebra import Node, symbols

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
    "fact": lambda x: complex(math.gamma(_real(x) + 1)),
    "floor": lambda x: complex(math.floor(_between_integers(x))),
    "ceil": lambda x: complex(math.ceil(_between_integers(x))),
}
# Name, and the factor by which its coordinates are larger.
_POINTS = (("a", 1.0), ("b", 1.0), ("c", 29.0))


class _Unknown(ArithmeticError):
    pass


def _real(x: complex) -> float:
    if x.imag:
        raise _Unknown
    return x.real


def _between_integers(x: complex) -> float:
    if abs(_real(x) - round(x.real)) < 1e-6:
        raise _Unknown
    return x.real


def has_root(node: Node) -> bool:
    """Tells whether a symbol stands under a root, a logarithm or in a base of unknown power."""
    if not isinstance(node, tuple):
        return False
    whole = node[0] == "^" and isinstance(node[2], Fraction) and node[2].denominator == 1
    if node[0] == "ln" or (node[0] == "^" and not whole and not isinstance(node[1], Fraction)):
        return True
    return any(map(has_root, node[1:]))


def _point(names: Iterable[str], seed: str, low: float, scale: float = 1.0) -> dict[str, complex]:
    """A coordinate for every symbol, from low to 2 and then scaled; the same for ever."""
    shares = {name: zlib.crc32((seed + name).encode()) / 2**32 for name in names}
    return {name: complex(scale * (low + (2 - low) * share)) for name, share in shares.items()}


def _value(node: Node, point: Mapping[str, complex]) -> tuple[complex, float]:
    """An expression's value at a point, and a bound of its rounding error."""
    if isinstance(node, Fraction):
        value = complex(node)
        return value, _EPS * abs(value)
    if isinstance(node, str):
        if node == "oo":
            raise _Unknown
        value = complex(_CONSTANTS.get(node) or point[node])
        return value, _EPS * abs(value)
    parts = [_value(argument, point) for argument in node[1:]]
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


def approximate(node: Node) -> float | None:
    """The value of an expression; None where it has symbols, or is not real or not finite."""
    try:
        value, _ = _value(node, {})
    except (ArithmeticError, KeyError, ValueError):
        return None
    real = abs(value.imag) <= 1e-9 * max(abs(value), 1)
    return value.real if real and math.isfinite(value.real) else None


def certainly_different(left: Node, right: Node) -> bool:
    """Tells whether two expressions take clearly different values somewhere.

    Symbols are positive where one of them stands under a root, else of any sign.
    """
    low = 0.5 if has_root(left) or has_root(right) else -2.0
    names = symbols(left) | symbols(right)
    for seed, scale in _POINTS if names else _POINTS[:1]:
        point = _point(names, seed, low, scale)
        try:
            left_value, left_error = _value(left, point)
            right_value, right_error = _value(right, point)
        except (ArithmeticError, ValueError):
            return False
        gap = abs(left_value - right_value)
        size = max(abs(left_value), abs(right_value))
        if math.isfinite(gap) and gap > 1e3 * (left_error + right_error) + 1e-12 * size:
            return True
    return False


def _root(values: Sequence[complex]) -> tuple[complex, float]:
    """A zero of the line or parabola through values at 0, 1, 2, 3, 4, and a bound of its error."""
    square = (values[2] - 2 * values[1] + values[0]) / 2
    slope = values[1] - values[0] - square
    scale = max(map(abs, values))
    off = (abs(values[k] - values[0] - k * slope - k * k * square) for k in (3, 4))
    if max(off) > 1e-11 * scale:
        raise _Unknown
    if abs(square) > 1e-8 * scale:
        discriminant = cmath.sqrt(slope * slope - 4 * square * values[0])
        zero, steepness = (discriminant - slope) / (2 * square), abs(discriminant)
    else:
        zero, steepness = -values[0] / slope, abs(slope)
    if steepness < 1e-8 * scale:
        raise _Unknown
    return zero, 1e-13 * (1 + abs(zero)) ** 2 * scale / steepness


def other_zeros(left: Node, right: Node) -> bool:
    """Tells whether one expression is clearly not zero at some point where the other is.

    The point is found where the other is linear or quadratic in a symbol, or else it is unknown.
    """
    names = sorted(symbols(left) | symbols(right))
    low = 0.5 if has_root(left) or has_root(right) else -2.0
    for one, other in ((left, right), (right, left)):
        for name in names:
            point = _point(names, "a", low)
            try:
                at = [_value(one, {**point, name: complex(k + 0.5)})[0] for k in range(5)]
                zero, uncertainty = _root(at)
                point[name] = zero + 0.5
                value, error = _value(other, point)
                step = 1e-3 * (1 + abs(zero))
                slope = abs(_value(other, {**point, name: point[name] + step})[0] - value) / step
            except (ArithmeticError, ValueError):
                continue
            bound = 1e3 * (error + uncertainty * slope)
            if math.isfinite(abs(value)) and abs(value) > bound:
                return True
    return False
