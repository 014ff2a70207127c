"""What an answer is, once it has been read.

Every form has a `key`: two answers with one key are equal, in every comparison. (That different
keys may be equal all the same is the business of `equality`.)
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxevolve.answers.algebra import Node, show


@dataclass(frozen=True)
class Value:
    """One expression, perhaps with a unit ("cm^2", "deg", "%", "$")."""

    node: Node
    unit: str | None = None

    @cached_property
    def key(self) -> str:
        """Its key."""
        return f"{show(self.node)} {self.unit or ''}"


@dataclass(frozen=True)
class Text:
    """Words or anything else that is compared letter by letter: in small ones, without spaces."""

    words: str

    @cached_property
    def key(self) -> str:
        """Its key."""
        return "text " + self.words


@dataclass(frozen=True)
class Formula:
    """LaTeX of a kind that is not read here (sums, integrals, limits); math-verify may."""

    latex: str

    @cached_property
    def key(self) -> str:
        """Its key."""
        return "latex " + self.latex


@dataclass(frozen=True)
class Sequence:
    """Several answers.

    `kind` is "tuple" (round brackets), "square", "set" (curly), "matrix", "ratio", "commas" (no
    brackets) or "words" (joined by "and", "or", plus-minus).
    """

    kind: Literal["tuple", "square", "set", "matrix", "ratio", "commas", "words"]
    items: tuple["Form", ...]

    @cached_property
    def key(self) -> str:
        """Its key."""
        return f"{self.kind}[{'; '.join(item.key for item in self.items)}]"


@dataclass(frozen=True)
class Interval:
    """The numbers between two bounds; an infinite bound ("oo", -"oo") is never included."""

    low: Node
    high: Node
    with_low: bool
    with_high: bool


@dataclass(frozen=True)
class Region:
    """A union of intervals in ascending order; `name` is the variable, where one was named."""

    intervals: tuple[Interval, ...]
    name: str | None = None

    @cached_property
    def key(self) -> str:
        """Its key."""
        parts = (
            f"{'(['[i.with_low]}{show(i.low)}, {show(i.high)}{')]'[i.with_high]}"
            for i in self.intervals
        )
        return f"{self.name or ''} in {' u '.join(parts)}"


@dataclass(frozen=True)
class Equation:
    """Left = right.

    `name` is set where one side is a bare name, and `value` is then the other side. `node` is left
    minus right, scaled by `monic`, where both can be read as expressions.
    """

    name: str | None
    value: "Form | None"
    node: Node | None

    @cached_property
    def key(self) -> str:
        """Its key."""
        value = self.value.key if self.value else ""
        return f"{self.name} = {value} ({'' if self.node is None else show(self.node)})"


@dataclass(frozen=True)
class Relation:
    """An inequality that is no interval, or an "is not": `node` operator 0."""

    operator: Literal["<", "<=", "!="]
    node: Node

    @cached_property
    def key(self) -> str:
        """Its key."""
        return f"{show(self.node)} {self.operator} 0"


Form = Value | Text | Formula | Sequence | Region | Equation | Relation
