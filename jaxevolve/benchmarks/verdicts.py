"""What do responses say, and which of them say the same? What the official rules have in common."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxevolve.answers import classes_many, extract
from jaxevolve.answers.approximation import approximate
from jaxevolve.answers.extraction import is_marked
from jaxevolve.answers.forms import Equation, Form, Text, Value
from jaxevolve.answers.reading import read

Row = Mapping[str, Any]
Texts = Sequence[Sequence[str]]

_LONGEST = 120  # characters of a response that may be an answer and nothing else


@dataclass(frozen=True)
class Marked:
    """N responses to each of P questions, judged by a benchmark's rule.

    Attributes:
        answers: [P][N], what each response answers; None for no answer.
        classes: i32[P, N]; answers of a question with one class are the same, -1 is no answer.
        correct: bool[P, N].
    """

    answers: list[list[str | None]]
    classes: np.ndarray
    correct: np.ndarray


def marked(answers: list[list[str | None]], correct: Any, *, by_value: bool = False) -> Marked:
    """Groups answers, by value or by their letters, small and capital ones alike.

    Args:
        answers: [P][N].
        correct: bool[P, N].
        by_value: whether 0.5 and 1/2 are one vote.
    """
    classes = classes_many(answers) if by_value else [_spelled(group) for group in answers]
    shape = (len(answers), len(answers[0]) if answers else 0)
    return Marked(
        answers,
        np.array(classes, np.int32).reshape(shape),
        np.array(correct, bool).reshape(shape),
    )


def one_by_one(
    rows: Sequence[Row],
    texts: Texts,
    answer: Callable[[Row, str], str | None],
    right: Callable[[Row, str], bool],
) -> Marked:
    """Judges every response by itself.

    Args:
        rows: P rows.
        texts: [P][N] responses.
        answer: what a response answers, or None.
        right: whether that is right; asked of answers only.
    """
    answers = [[answer(row, text) for text in group] for row, group in zip(rows, texts)]
    correct = [
        [a is not None and right(row, a) for a in group] for row, group in zip(rows, answers)
    ]
    return marked(answers, correct)


def flat(texts: Texts) -> list[tuple[int, str]]:
    """[(p, text)] of [P][N] texts."""
    return [(p, text) for p, group in enumerate(texts) for text in group]


def grouped(values: Sequence[Any], texts: Texts) -> list[list[Any]]:
    """The inverse of `flat`: one value a text, in the shape of the texts."""
    rest = iter(values)
    return [[next(rest) for _ in group] for group in texts]


def said(text: str) -> str | None:
    """What a response answers.

    Its last answer tag or box (one that is empty or cut off is no answer), else what it announces
    as the answer, else the whole response, if that is one short line that reads as mathematics.
    """
    if (found := extract(text, final_line=True)) is not None:
        return found
    bare = text.strip().strip("*$").rstrip(".。")
    if is_marked(text) or not bare or "\n" in bare or len(bare) > _LONGEST:
        return None
    return None if isinstance(read(bare), Text) else bare


def boxed(text: str) -> str | None:
    """The content of the last answer tag or box; the response itself where it has neither.

    What rules that read a whole response are given: the prompts that we use ask for a box.
    """
    return extract(text) if is_marked(text) else text


def number(text: str | None) -> float | None:
    """The value of an answer that is a number, its unit left out; None for anything else."""
    form: Form | None = None if text is None else read(text)
    if isinstance(form, Equation):
        form = form.value
    return approximate(form.node) if isinstance(form, Value) else None


def said_number(text: str) -> float | None:
    """The number that a response answers; of an announcement in words, the last number in it."""
    found = said(text)
    value = number(found)
    if value is None and found is not None and not is_marked(text):
        return number(last_number(found))
    return value


def last_number(text: str) -> str | None:
    """The last number in a text, as it is written, without separators of thousands."""
    found = re.findall(r"-?\d*\.?\d+", re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text))
    return found[-1] if found else None


def share(values: Sequence[bool]) -> float:
    """The share of True; of nothing it is 0."""
    return float(np.mean(values)) if len(values) else 0.0


def shares_by(
    rows: Sequence[Row], right: Sequence[bool], key: str | Callable[[Row], Any]
) -> dict[str, float]:
    """Shares of right answers by a field, or by each item of a field that is a list; sorted."""
    kinds: dict[str, list[bool]] = {}
    for row, value in zip(rows, right):
        found = key(row) if callable(key) else row.get(key)
        for kind in found if isinstance(found, list | tuple) else [found]:
            if kind not in (None, ""):
                kinds.setdefault(str(kind), []).append(bool(value))
    return {kind: share(kinds[kind]) for kind in sorted(kinds)}


def _spelled(group: Sequence[str | None]) -> list[int]:
    numbers: dict[str, int] = {}
    return [
        -1 if a is None else numbers.setdefault(a.strip().casefold(), len(numbers)) for a in group
    ]
