"""When are two answers the same? The choices are in the docstring of `equal`.

Answers are read into forms (`reading`), and forms are compared: by key, then by exact arithmetic,
then, where floating point cannot tell two expressions apart, by sympy in a worker process. The
relation is symmetric. It is not transitive (35 and 0.35 both stand for 35 %), which is why a vote
compares an answer with the first member of each class, in the order in which they came.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from jaxevolve.answers import forms, pool
from jaxevolve.answers.algebra import Node, Undefined, decode, encode, is_huge, show, symbols
from jaxevolve.answers.approximation import certainly_different, other_zeros
from jaxevolve.answers.forms import Equation, Form, Formula, Interval, Region, Relation, Value
from jaxevolve.answers.reading import read
from jaxevolve.answers.regions import as_region

_Query = tuple[str, Any, Any]
_Ask = Callable[[_Query], Any]
_UNSAID = object()
_Result = TypeVar("_Result")
_MOST_ITEMS = 40


def equal(*, gold: str | None, pred: str | None) -> bool:
    r"""Tells whether two answers are the same, by the choices that follow; symmetric.

    Looks. Dollar signs, \left, spacing, styles, markdown, a closing full stop, "the answer is" and
    full-width forms change nothing. A box or an answer tag is taken off. A sentence that ends with
    a value ("The area is 40") is that value, unless a negation or comparison stands in it.

    Numbers are compared exactly, never by a tolerance: 0.5 is 1/2, 0.333 is not 1/3, 3.14 is not
    pi. 1,284 and 12 500 are one number each, (1,284) is a pair. 3 1/4 and 3\frac14 are mixed
    numbers, the sign before them covers both parts. 047 is 47; 3.2e5, 0x1F, 1_000, "twenty-one"
    and 二十五 are numbers; 0.1\overline{6} and 0.1666... are 1/6. 1011_2 is known by its looks
    alone. A power or factorial of over 4096 bits equals only what is written alike.

    Units. A unit may be missing on one side; where both have one they must agree and are not
    converted (1 m is not 100 cm), save that hours with minutes, feet with inches and the like are
    one value. A sign of currency is a unit. A degree sign is one too, and pi/180 in the argument of
    a trigonometric function alone; minutes and seconds of arc count. 35 % is 35 and 0.35. Words
    behind a number are its unit: 3 apples is 3, and not 3 oranges.

    Expressions are equal where algebra says so. Symbols are real; where one stands under a root or
    a logarithm all are positive: sqrt(1/n) is 1/sqrt(n). Odd roots of negative numbers are real.
    \log is to base 10, i the imaginary unit, e the base of \ln; 1/2x is x/2, \sqrt12 is sqrt(12),
    \frac12 is 1/2. Sums, integrals and limits are carried out; one that sympy cannot carry out
    within its limits equals only what is written alike.

    Several answers. A list without brackets, "a and b" and a set have no order, a tuple has. A list
    without brackets may stand for a tuple in its order, [a, b] for a list or a closed interval,
    (a, b) for a pair or an open one, a column for a tuple. a \pm b is the list of both. "3 or 3"
    and {3, 3} are one 3. Sequences with dots are ordered. A part of a list is not the list.

    Intervals and inequalities are the numbers that they describe, whatever the variable unless two
    different ones are named: x < 6 is (-oo, 6), |x| < 3 is (-3, 3), x != 0 both open half-lines,
    "at least 5" [5, oo). None of them equals a number.

    Equations. x = 17 is 17, but not y = 17; "x = 3 or x = -2" is the list. Two equations are equal
    when their sides differ by a constant factor, denominators cleared: 2x + 3y = 5 is y = (5-2x)/3.
    P(3, 4) is (3, 4). 3:4 is 3/4, 3:4:5 is 6:8:10. 3:30 PM is a time, 15:30 alone a ratio.

    Matrices by their elements, whatever the brackets; pieces with conditions in any order.

    Words by their letters, whatever the case, spaces and a plural s: "yes" is not "true". A date is
    the same in both orders of day and month name.

    Args:
        gold: an answer, as `extract` gives it or as a data set has it.
        pred: another.

    Returns:
        Whether they are equal; False where one of them is None or empty.

    Raises:
        GraderError: algebra is needed and no worker process can be started.
    """
    return equal_many([(gold, pred)])[0]


def equal_many(pairs: Sequence[tuple[str | None, str | None]]) -> list[bool]:
    """`equal` for many (gold, pred) pairs; all that need algebra go to the workers at once."""
    return [same for same, _ in compare_many(pairs)]


def compare_many(pairs: Sequence[tuple[str | None, str | None]]) -> list[tuple[bool, bool]]:
    """`equal_many`, and of each pair whether it counts as unequal only for want of a result."""
    read_pairs = [(_read(gold), _read(pred)) for gold, pred in pairs]

    def verdicts(ask: _Asker) -> list[tuple[bool, bool]]:
        results = []
        for left, right in read_pairs:
            ask.undecided = False
            same = left is not None and right is not None and _equal(left, right, ask)
            results.append((same, ask.undecided and not same))
        return results

    return _resolved(verdicts)


def classes(answers: Sequence[str | None]) -> np.ndarray:
    """Groups answers by equality.

    An answer joins the class whose first member it equals; classes are numbered as they appear.

    Args:
        answers: N answers, None (or empty) for no answer.

    Returns:
        i32[N], -1 for no answer.

    Raises:
        GraderError: algebra is needed and no worker process can be started.
    """
    return classes_many([answers])[0]


def classes_many(groups: Sequence[Sequence[str | None]]) -> list[np.ndarray]:
    """`classes` for each of many groups; all that need algebra go to the workers at once."""
    read_groups = [[_read(answer) for answer in group] for group in groups]
    return _resolved(lambda ask: [_cluster(group, ask) for group in read_groups])


def _read(answer: str | None) -> Form | None:
    return None if answer is None else read(answer)


def _is_plain(form: Form) -> bool:
    return isinstance(form, Value) and form.unit is None and isinstance(form.node, Fraction)


def _cluster(answers: Sequence[Form | None], ask: _Ask) -> np.ndarray:
    ids = np.full(len(answers), -1, np.int32)
    known: dict[str, int] = {}
    firsts: list[Form] = []
    others: list[int] = []  # classes whose first member is not a plain number
    for place, form in enumerate(answers):
        if form is None:
            continue
        if form.key not in known:
            plain = _is_plain(form)  # two plain numbers with different keys are different
            candidates = others if plain else range(len(firsts))
            number = next((c for c in candidates if _equal(firsts[c], form, ask)), len(firsts))
            if number == len(firsts):
                firsts.append(form)
                others += [] if plain else [number]
            known[form.key] = number
        ids[place] = known[form.key]
    return ids


def _equal(left: Form, right: Form, ask: _Ask) -> bool:
    """The rules; `ask` says what sympy says."""
    if left.key == right.key:
        return True
    left = _carried_out(left, ask)
    if isinstance(left, Formula):
        return False  # so that what the other side comes to need not be known
    right = _carried_out(right, ask)
    if isinstance(left, Equation) and isinstance(right, Equation):
        return _equal_equations(left, right, ask)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Equation):
            return one.value is not None and _equal(one.value, other, ask)
    if isinstance(left, Region) or isinstance(right, Region):
        return _equal_regions(as_region(left), as_region(right), ask)
    if isinstance(left, forms.Sequence) and isinstance(right, forms.Sequence):
        return _equal_sequences(left, right, ask)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, forms.Sequence):
            alone = one.kind in ("set", "square", "words") and len(one.items) == 1
            return alone and _equal(one.items[0], other, ask)
    if isinstance(left, Value) and isinstance(right, Value):
        return _equal_values(left, right, ask)
    if isinstance(left, Relation) and isinstance(right, Relation):
        return left.operator == right.operator and _same(left.node, right.node, ask)
    return False


def _carried_out(form: Form, ask: _Ask) -> Form:
    """What the sum or integral of a formula comes to; the formula where that cannot be told."""
    node = ask(("value", form.latex, None)) if isinstance(form, Formula) else None
    return form if node is None else Value(node)


def _equal_values(left: Value, right: Value, ask: _Ask) -> bool:
    if left.unit and right.unit and left.unit != right.unit:
        return False
    if _same(left.node, right.node, ask):
        return True
    for one, other in ((left, right), (right, left)):
        if one.unit == "%" and other.unit is None and isinstance(one.node, Fraction):
            return one.node / 100 == other.node
    return False


def _equal_equations(left: Equation, right: Equation, ask: _Ask) -> bool:
    if left.name and left.name == right.name and left.value and right.value:
        return _equal(left.value, right.value, ask)
    if left.node is None or right.node is None or is_huge(left.node) or is_huge(right.node):
        return False
    if left.node == right.node:
        return True
    if symbols(left.node) != symbols(right.node) or other_zeros(left.node, right.node):
        return False
    return bool(ask(("equation", *sorted((left.node, right.node), key=show))))


def _equal_regions(left: Region | None, right: Region | None, ask: _Ask) -> bool:
    if left is None or right is None or len(left.intervals) != len(right.intervals):
        return False
    if left.name and right.name and left.name != right.name:
        return False
    same = [_same_interval(a, b, ask) for a, b in zip(left.intervals, right.intervals)]
    return all(same)


def _same_interval(left: Interval, right: Interval, ask: _Ask) -> bool:
    if (left.with_low, left.with_high) != (right.with_low, right.with_high):
        return False
    low, high = _same(left.low, right.low, ask), _same(left.high, right.high, ask)
    return low and high


def _equal_sequences(left: forms.Sequence, right: forms.Sequence, ask: _Ask) -> bool:
    left, right = _as_tuple(left, right.kind), _as_tuple(right, left.kind)
    kinds = {left.kind, right.kind}
    for strict, friends in (
        ("matrix", {"matrix"}),
        ("ratio", {"ratio"}),
        ("tuple", {"tuple", "commas", "words"}),
    ):
        if strict in kinds and not kinds <= friends:
            return False
    if len(left.items) != len(right.items) or len(left.items) > _MOST_ITEMS:
        return False
    intervals = kinds == {"square"} and len(left.items) == 2
    dots = any(item.key == "text ..." for item in (*left.items, *right.items))
    if intervals or dots or kinds & {"tuple", "matrix", "ratio"}:
        same = [_equal(a, b, ask) for a, b in zip(left.items, right.items)]
        return all(same)
    table = [[_equal(a, b, ask) for b in right.items] for a in left.items]
    return _matched(table)


def _as_tuple(listed: forms.Sequence, other: str) -> forms.Sequence:
    """A column as a tuple, where it is to be compared with one."""
    rows = [row.items for row in listed.items if isinstance(row, forms.Sequence)]
    column = listed.kind == "matrix" and rows and all(len(row) == 1 for row in rows)
    return forms.Sequence("tuple", sum(rows, ())) if column and other == "tuple" else listed


def _matched(table: list[list[bool]]) -> bool:
    """Whether rows and columns can be paired so that every pair is marked (augmenting paths)."""
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, marked in enumerate(table[row]):
            if marked and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))


def _same(left: Node, right: Node, ask: _Ask) -> bool:
    """Whether two expressions are equal."""
    if left == right:
        return True
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return False
    if is_huge(left) or is_huge(right) or "oo" in f"{show(left)} {show(right)}":
        return False
    if certainly_different(left, right):
        return False
    return bool(ask(("expression", *sorted((left, right), key=show))))


class _Replies:
    """What sympy has said (None: nothing, within the limits), the most recently needed of it."""

    def __init__(self, size: int):
        self._size = size
        self._known: OrderedDict[_Query, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, query: _Query) -> Any:
        with self._lock:
            if query not in self._known:
                return _UNSAID
            self._known.move_to_end(query)
            return self._known[query]

    def update(self, replies: dict[_Query, Any]) -> None:
        with self._lock:
            self._known.update(replies)
            while len(self._known) > self._size:
                self._known.popitem(last=False)


_REPLIES = _Replies(1 << 15)


class _Asker:
    """What has been said so far; a query without a reply is gathered, and None meanwhile.

    Attributes:
        undecided: whether a query was met for which sympy has no reply; reset by its reader.
    """

    def __init__(self):
        self.open: dict[_Query, None] = {}
        self.undecided = False
        self._said: dict[_Query, Any] = {}

    def __call__(self, query: _Query) -> Any:
        reply = self._said.get(query, _UNSAID)
        if reply is _UNSAID:
            reply = _REPLIES.get(query)
        if reply is _UNSAID:
            self.open[query] = None
            return None
        self._said[query] = reply
        self.undecided |= reply is None
        return reply

    def settle(self) -> None:
        """Puts all open queries to the workers."""
        questions = [
            {"kind": "value", "left": left}
            if kind == "value"
            else {"kind": kind, "left": encode(left), "right": encode(right)}
            for kind, left, right in self.open
        ]
        replies = dict(zip(self.open, pool.shared().ask(questions)))
        replies |= {q: _decoded(reply) for q, reply in replies.items() if q[0] == "value"}
        self._said |= replies
        _REPLIES.update(replies)
        self.open = {}


def _resolved(decide: Callable[[_Asker], _Result]) -> _Result:
    """Repeats a decision until nothing that it asks is open; its queries are put all at once."""
    ask = _Asker()
    while True:
        result = decide(ask)
        if not ask.open:
            return result
        ask.settle()


def _decoded(tree: Any) -> Node | None:
    try:
        return None if tree is None else decode(tree)
    except (Undefined, RecursionError):
        return None
