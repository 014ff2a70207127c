"""Inequalities and intervals: both become the region of numbers that they describe."""

from fractions import Fraction

from jaxevolve.answers.algebra import Node, add, coefficient, divide, mul, show, symbols
from jaxevolve.answers.forms import Form, Interval, Region, Relation, Sequence, Value
from jaxevolve.answers.tokens import Unreadable

_MINUS_ONE = Fraction(-1)
INFINITY: Node = "oo"
MINUS_INFINITY = mul(_MINUS_ONE, INFINITY)
_ALL = Interval(MINUS_INFINITY, INFINITY, False, False)


def bounded(low: Node, high: Node, with_low: bool, with_high: bool) -> Interval:
    """An interval that never includes infinity."""
    return Interval(low, high, with_low and low != MINUS_INFINITY, with_high and high != INFINITY)


def inequality(sides: list[Node], signs: list[str]) -> Form:
    """Reads a < x <= b, x < b, and what a linear inequality in one symbol comes to."""
    if all(sign[0] == ">" for sign in signs):
        sides, signs = sides[::-1], [sign.replace(">", "<") for sign in signs[::-1]]
    if len(signs) == 2 and all(sign[0] == "<" for sign in signs):
        low, middle, high = sides
        if isinstance(middle, str) and middle in symbols(middle):
            within = bounded(low, high, signs[0] == "<=", signs[1] == "<=")
            return Region((within,), middle)
    if len(signs) != 1:
        raise Unreadable("a chain of inequalities")
    sign = signs[0]
    low, high = sides
    difference = add(low, mul(_MINUS_ONE, high))
    if sign == "!=":
        excluded = _solved(difference, "<=")
        if isinstance(excluded, Region):
            (half,) = excluded.intervals
            bound = half.high if half.high != INFINITY else half.low
            return without(
                Region((_ALL,), excluded.name), Region((Interval(bound, bound, True, True),))
            )
        factor, _ = coefficient(difference)
        return Relation("!=", mul(difference, _MINUS_ONE) if factor < 0 else difference)
    # |x| < 3 is -3 < x and x < 3; 3 < |x| is x < -3 or 3 < x.
    for size, halves, joined in (
        (
            low,
            lambda x: (
                add(x, mul(_MINUS_ONE, high)),
                add(mul(_MINUS_ONE, x), mul(_MINUS_ONE, high)),
            ),
            intersection,
        ),
        (high, lambda x: (add(low, mul(_MINUS_ONE, x)), add(low, x)), union),
    ):
        if isinstance(size, tuple) and size[0] == "abs":
            solved = [_solved(half, sign) for half in halves(size[1])]
            if all(isinstance(half, Region) for half in solved):
                return joined(solved)
    return _solved(difference, sign)


def _solved(difference: Node, sign: str) -> Form:
    """Solves c x + rest < 0 or <= 0, where x is the only symbol and c a number."""
    is_sum = isinstance(difference, tuple) and difference[0] == "+"
    terms = difference[1:] if is_sum else (difference,)
    names = symbols(difference)
    factors = [coefficient(term) for term in terms]
    slopes = [factor for factor, rest in factors if isinstance(rest, str) and {rest} == names]
    others = [term for term in terms if not symbols(term)]
    if len(names) != 1 or len(slopes) != 1 or len(others) + 1 != len(terms):
        return Relation(sign, difference)
    bound = divide(mul(_MINUS_ONE, add(*others)), slopes[0])
    closed = sign == "<="
    if slopes[0] > 0:
        within = bounded(MINUS_INFINITY, bound, False, closed)
    else:
        within = bounded(bound, INFINITY, closed, False)
    return Region((within,), *names)


def as_region(form: Form) -> Region | None:
    """A region as it is; a pair in brackets as the interval that it may mean."""
    if isinstance(form, Region):
        return form
    if isinstance(form, Sequence) and form.kind in ("tuple", "square") and len(form.items) == 2:
        low, high = form.items
        if isinstance(low, Value) and isinstance(high, Value):
            closed = form.kind == "square"
            return Region((bounded(low.node, high.node, closed, closed),))
    values = [item for item in getattr(form, "items", ()) if isinstance(item, Value)]
    if isinstance(form, Sequence) and form.kind == "set" and len(values) == len(form.items):
        return Region(tuple(Interval(v.node, v.node, True, True) for v in values))
    return None


def without(region: Region, points: Region) -> Region:
    """A region without single points, numbers all, that lie within it.

    Raises:
        Unreadable: they are something else.
    """
    left = list(region.intervals)
    for point in points.intervals:
        if point.low != point.high:
            raise Unreadable("a difference of intervals")
        holding = [i for i in left if _holds(i, point.low)]
        if len(holding) != 1:
            raise Unreadable("a point that is not within")
        (interval,) = holding
        place = left.index(interval)
        left[place : place + 1] = [
            Interval(interval.low, point.low, interval.with_low, False),
            Interval(point.low, interval.high, False, interval.with_high),
        ]
    return Region(tuple(left), region.name)


def _holds(interval: Interval, number: Node) -> bool:
    """Whether a number lies between two bounds; one that is no fraction only between infinities."""
    ends = ((interval.low, MINUS_INFINITY, 1), (interval.high, INFINITY, -1))
    return all(
        end == infinity
        or (
            isinstance(end, Fraction) and isinstance(number, Fraction) and sign * (number - end) > 0
        )
        for end, infinity, sign in ends
    )


def _order(interval: Interval) -> tuple[int, Fraction, str]:
    """Ascending where bounds are numbers; otherwise some order that all spellings share."""
    low = interval.low
    if isinstance(low, Fraction):
        return 0, low, ""
    return -1 if low == MINUS_INFINITY else 1, Fraction(0), show(low)


def union(regions: list[Region]) -> Region:
    """The union of regions of one variable: x < -1 or x > 3."""
    names = {region.name for region in regions} - {None}
    if len(names) > 1:
        raise Unreadable("inequalities of several variables")
    intervals = sorted((i for region in regions for i in region.intervals), key=_order)
    return Region(tuple(intervals), *names)


def intersection(regions: list[Region]) -> Region:
    """The intersection of half-lines: x > 1 and x < 3."""
    low, with_low, high, with_high = MINUS_INFINITY, False, INFINITY, False
    for region in regions:
        (interval, *more) = region.intervals
        twice = (interval.low != MINUS_INFINITY and low != MINUS_INFINITY) or (
            interval.high != INFINITY and high != INFINITY
        )
        if more or twice or region.name != regions[0].name:
            raise Unreadable("several inequalities")
        if interval.low != MINUS_INFINITY:
            low, with_low = interval.low, interval.with_low
        if interval.high != INFINITY:
            high, with_high = interval.high, interval.with_high
    return Region((Interval(low, high, with_low, with_high),), regions[0].name)
