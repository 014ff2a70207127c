"""Where do endless questions come from? Drawn geometry problems, a pure function of their index."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxevolve.data.drawing import Figure, Label, Point, render
from jaxevolve.runtime.errors import UserError

DEFAULT_FAMILIES = {"tri": 0.4, "per3": 0.4, "parI": 0.2}
STEPS = {1: 10, 2: 5, 3: 1}  # difficulty -> every number is a multiple of this
WANDER = {1: 1.0, 2: 2.0, 3: 4.0}  # difficulty -> pixels that a number may leave its place
FIND_X = "Find x."
FIND_PERIMETER = "Find the perimeter."


Arithmetic = Callable[[int, str, int], int]


def exact(left: int, sign: str, right: int) -> int:
    """The sum or the difference of two numbers."""
    return left + right if sign == "+" else left - right


@dataclass(frozen=True)
class Family:
    """One kind of problem.

    Attributes:
        question: the text after the image.
        ranges: lowest and highest of each number that the figure shows, in degrees or units.
        allowed: whether numbers make a figure that can be drawn legibly.
        working: (arithmetic, *numbers) -> (text between the numbers and the box, answer).
        figure: numbers -> the drawing, with its labels at their nominal places.
    """

    question: str
    ranges: tuple[tuple[int, int], ...]
    allowed: Callable[..., bool]
    working: Callable[..., tuple[str, int]]
    figure: Callable[..., Figure]


@dataclass(frozen=True)
class Problem:
    """Numbers of a family with their drawing: everything about a row but its pixels."""

    family: str
    values: tuple[int, ...]
    figure: Figure

    @property
    def question(self) -> str:
        """The text of the question, with the image's place."""
        return "<image>" + FAMILIES[self.family].question

    @property
    def answer(self) -> int:
        """The right answer."""
        return FAMILIES[self.family].working(exact, *self.values)[1]

    @property
    def solution(self) -> str:
        """The right worked solution."""
        return solve(self.family, self.values)


class GeometryProblems:
    """Drawn geometry problems as a sequence that makes its rows when they are asked for.

    A row is a pure function of (seed, index) and of the arguments below, so the sequence needs no
    storage, can be read in any order and by many readers, and is the same on every machine.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        families: Mapping[str, float] = DEFAULT_FAMILIES,
        difficulty: int = 1,
        size: int = 112,
        length: int = 1 << 20,
    ):
        """Describes the sequence.

        Args:
            seed: another seed is another sequence.
            families: weight of each family, keys of `FAMILIES`.
            difficulty: 1 to 3; numbers are multiples of 10, 5 or 1, the labels of given numbers
                leave their places by up to 1, 2 or 4 pixels.
            size: side of the images in pixels.
            length: number of rows.

        Raises:
            UserError: an argument is out of range.
        """
        unknown = sorted(set(families) - set(FAMILIES))
        if unknown:
            raise UserError(f"unknown geometry family {unknown[0]!r}: use {', '.join(FAMILIES)}")
        if not families or min(families.values()) < 0 or sum(families.values()) <= 0:
            raise UserError(f"family weights {dict(families)} must be >= 0 and not all zero")
        if difficulty not in STEPS:
            raise UserError(f"geometry difficulty {difficulty!r} is not one of 1, 2, 3")
        if size < 56:
            raise UserError(f"geometry image size {size} is too small to read: use at least 56")
        if length < 1:
            raise UserError(f"geometry length {length} must be at least 1")
        self.seed, self.difficulty, self.size, self.length = seed, difficulty, size, length
        self.families = dict(families)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The row at an index: id, question, images, answer, family, solution."""
        problem = self.problem(index)
        return {
            "id": f"geometry-{self.seed}-{index}",
            "question": problem.question,
            "images": [render(problem.figure, self.size)],
            "answer": str(problem.answer),
            "family": problem.family,
            "solution": problem.solution,
        }

    def problem(self, index: int) -> Problem:
        """The row at an index before it is drawn."""
        if not 0 <= index < self.length:
            raise IndexError(f"row {index} of {self.length} geometry problems")
        # A string seed goes through SHA-512, so neighbors are independent and versions agree.
        rng = random.Random(f"geometry {self.seed} {index}")
        (name,) = rng.choices(list(self.families), list(self.families.values()))
        family, step = FAMILIES[name], STEPS[self.difficulty]
        while True:
            values = tuple(rng.randrange(low, high + 1, step) for low, high in family.ranges)
            if family.allowed(*values):
                break
        figure = family.figure(*values)
        given, unknown = figure.labels[: len(values)], figure.labels[len(values) :]
        wander = WANDER[self.difficulty]
        labels = tuple(
            Label(label.text, label.x + rng.uniform(-wander, wander),
                  label.y + rng.uniform(-wander, wander))
            for label in given
        )  # fmt: skip
        return Problem(name, values, replace(figure, labels=labels + unknown))


def caption(values: tuple[int, ...]) -> str:
    """The numbers of a figure as a solution reads them off first: "60, 90"."""
    return ", ".join(map(str, values))


def solve(family: str, values: tuple[int, ...], arithmetic: Arithmetic = exact) -> str:
    """A worked solution: the numbers read off, the working, the answer in its box.

    Args:
        family: a key of `FAMILIES`.
        values: the numbers that the figure shows.
        arithmetic: how sums come out; another one writes the solution of somebody who slips and
            carries the slip to the end.
    """
    text, answer = FAMILIES[family].working(arithmetic, *values)
    return f"<think>{caption(values)}. {text}</think> \\boxed{{{answer}}}"


PARALLEL = "The lines are parallel and both angles lie on the same side of the third line, so x="


def _tri_working(calc: Arithmetic, a: int, b: int) -> tuple[str, int]:
    total = calc(a, "+", b)
    x = calc(180, "-", total)
    return f"{a}+{b}={total}, so x=180-{total}={x}", x


def _per3_working(calc: Arithmetic, a: int, b: int, c: int) -> tuple[str, int]:
    two = calc(a, "+", b)
    three = calc(two, "+", c)
    return f"{a}+{b}={two}, {two}+{c}={three}", three


def _corresponding_working(calc: Arithmetic, a: int) -> tuple[str, int]:
    del calc
    return f"{PARALLEL}{a}", a


def _interior_working(calc: Arithmetic, a: int) -> tuple[str, int]:
    x = calc(180, "-", a)
    return f"{PARALLEL}180-{a}={x}", x


def _ext_working(calc: Arithmetic, a: int, c: int) -> tuple[str, int]:
    x = calc(a, "+", c)
    return f"{a}+{c}={x}, so x={x}", x


def _iso_working(calc: Arithmetic, a: int) -> tuple[str, int]:
    total = calc(a, "+", a)
    x = calc(180, "-", total)
    return f"{a}+{a}={total}, so x=180-{total}={x}", x


def _rect_working(calc: Arithmetic, w: int, h: int) -> tuple[str, int]:
    half = calc(w, "+", h)
    whole = calc(half, "+", half)
    return f"{w}+{h}={half}, {half}+{half}={whole}", whole


def _triangle(a: float, b: float, base_y: float, width: float, height: float) -> dict[str, Point]:
    """Corners A (left), B (right) of a level base and C above, as large as a box allows."""
    ta, tb = math.tan(math.radians(a)), math.tan(math.radians(b))
    rise = ta * tb / (ta + tb)  # height over base
    base = min(width, height / rise)
    left, top = 56 - base / 2, base_y - base * rise
    return {"A": (left, base_y), "B": (left + base, base_y), "C": (left + base * rise / ta, top)}


def _tri_figure(a: int, b: int) -> Figure:
    points = _triangle(a, b, 84, 84, 58)
    x, y = points["C"]
    labels = (Label(f"{a}°", 23, 99), Label(f"{b}°", 91, 99), Label("x", x, y - 11))
    return Figure(points, ("AB", "BC", "CA"), labels, angles=("BAC", "ABC", "ACB"))


def _per3_figure(a: int, b: int, c: int) -> Figure:
    # a is the left side, b the right side, c the base: angles by the law of cosines.
    left = math.degrees(math.acos((a * a + c * c - b * b) / (2 * a * c)))
    right = math.degrees(math.acos((b * b + c * c - a * a) / (2 * b * c)))
    points = _triangle(left, right, 84, 60, 66)
    labels = (Label(str(a), 18, 50), Label(str(b), 95, 50), Label(str(c), 56, 100))
    return Figure(points, ("AB", "BC", "CA"), labels)


def _ext_figure(a: int, c: int) -> Figure:
    left, right = math.tan(math.radians(a)), math.tan(math.radians(180 - a - c))
    height = min(48.0, 38 * left, 34 * right)
    corner = (46 + height / right, 82.0)
    points = {
        "A": (46 - height / left, 82.0),
        "B": corner,
        "C": (46.0, 82 - height),
        "D": (106.0, 82.0),
    }
    labels = (
        Label(f"{a}°", 22, 98),
        Label(f"{c}°", 46, 20),
        Label("x", corner[0] + 13, 70),
    )
    return Figure(points, ("AD", "BC", "CA"), labels, angles=("BAC", "ACB", "CBD"))


def _iso_figure(a: int) -> Figure:
    points = _triangle(a, a, 84, 84, 58)
    x, y = points["C"]
    labels = (Label(f"{a}°", 23, 99), Label("x", x, y - 11))
    lines = ("AB", "BC", "CA")
    return Figure(points, lines, labels, angles=("BAC", "ACB"), ticks=("BC", "CA"))


def _rect_figure(w: int, h: int) -> Figure:
    scale = min(66 / w, 62 / h)
    left, right, top, bottom = 80 - w * scale, 80.0, 84 - h * scale, 84.0
    points = {"A": (left, bottom), "B": (right, bottom), "C": (right, top), "D": (left, top)}
    labels = (Label(str(w), 50, 100), Label(str(h), 96.5, 54))
    return Figure(points, ("AB", "BC", "CD", "DA"), labels)


def _parallel_figure(slope: float, given: str, label: Label) -> Figure:
    """Two level lines through P and Q, cut at `slope` degrees; x stands above the lower one."""
    cos, sin = math.cos(math.radians(slope)), math.sin(math.radians(slope))
    upper, lower, ends = (50.0, 34.0), (50 - 44 * cos / sin, 78.0), 11.0
    points = {
        "P": upper,
        "Q": lower,
        "T": (upper[0] + ends * cos, upper[1] - ends * sin),
        "U": (lower[0] - ends * cos, lower[1] + ends * sin),
        "K": (5.0, 34.0),
        "L": (107.0, 34.0),
        "M": (5.0, 78.0),
        "N": (107.0, 78.0),
    }
    half = math.radians(slope / 2)
    reach = max(15.5, 11 / math.sin(half))  # far enough from the corner to clear both arms
    x = Label("x", lower[0] + reach * math.cos(half), lower[1] - reach * math.sin(half))
    arrows = ((101.0, 34.0), (101.0, 78.0))
    return Figure(
        points, ("KL", "MN", "TU"), (label, x), angles=(given, "NQP"), arrows=arrows
    )  # fmt: skip


def _corresponding_figure(a: int) -> Figure:
    return _parallel_figure(a, "LPT", Label(f"{a}°", 83, 21))


def _interior_figure(a: int) -> Figure:
    return _parallel_figure(180 - a, "LPQ", Label(f"{a}°", 84, 46))


def _per3_allowed(a: int, b: int, c: int) -> bool:
    # No obtuse angle at the base, so the top stays above it, and room for the labels of the sides.
    acute = abs(a * a - b * b) <= c * c
    return acute and 0.6 * c <= min(a, b) and max(a, b) <= 1.6 * c and 1.15 * c <= a + b


FAMILIES: dict[str, Family] = {
    # two angles of a triangle, find the third
    "tri": Family(
        FIND_X, ((20, 90), (20, 90)), lambda a, b: a + b <= 140, _tri_working, _tri_figure
    ),
    # three sides of a triangle, find its perimeter
    "per3": Family(
        FIND_PERIMETER,
        ((20, 90), (20, 90), (20, 90)),
        _per3_allowed,
        _per3_working,
        _per3_figure,
    ),
    # corresponding angles at parallel lines
    "parC": Family(
        FIND_X, ((50, 130),), lambda a: a != 90, _corresponding_working, _corresponding_figure
    ),
    # co-interior angles at parallel lines
    "parI": Family(FIND_X, ((50, 130),), lambda a: a != 90, _interior_working, _interior_figure),
    # two remote interior angles of a triangle, find the exterior angle
    "ext": Family(
        FIND_X,
        ((40, 80), (20, 100)),
        lambda a, c: 40 <= 180 - a - c <= 80,
        _ext_working,
        _ext_figure,
    ),
    # a base angle of an isosceles triangle, find the angle at the top
    "iso": Family(FIND_X, ((20, 80),), lambda a: True, _iso_working, _iso_figure),
    # two sides of a rectangle, find its perimeter
    "rect": Family(
        FIND_PERIMETER,
        ((20, 90), (20, 90)),
        lambda w, h: w <= 2 * h and h <= 2 * w,
        _rect_working,
        _rect_figure,
    ),
}
