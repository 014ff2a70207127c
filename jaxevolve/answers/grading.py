"""Texts to answer classes and verdicts, a whole batch at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxevolve.answers.equality import classes_many, equal_many
from jaxevolve.answers.extraction import extract


@dataclass(frozen=True)
class Graded:
    """N answers to each of P questions.

    Attributes:
        answers: [P][N] extracted answers, None where there is none.
        classes: i32[P, N]; answers of a question with one class are equal, -1 is no answer.
        correct: bool[P, N]; False throughout for a question without a label.
        labeled: bool[P], which questions have a label.
    """

    answers: list[list[str | None]]
    classes: np.ndarray
    correct: np.ndarray
    labeled: np.ndarray


def grade(
    texts: Sequence[Sequence[str]],
    golds: Sequence[str | None],
    equality: Literal["math", "string"] = "math",
) -> Graded:
    """Extracts, groups and, where there are labels, checks answers.

    A class is right or wrong as a whole: its first answer is compared with the label.

    Args:
        texts: [P][N] responses.
        golds: [P] labels, None where there is none.
        equality: what makes a class: "math", or "string" for the same characters, which is how
            Self-Judge and MM-UPT count votes. A label is compared mathematically either way.
    """
    answers = [[extract(text) for text in group] for group in texts]
    found = classes_many(answers) if equality == "math" else [_by_string(a) for a in answers]
    classes = np.array(found, np.int32).reshape(len(answers), -1)
    pairs, places = [], []
    for p, gold in enumerate(golds):
        if gold is None:
            continue
        for number in range(classes[p].max(initial=-1) + 1):
            first = int(np.argmax(classes[p] == number))
            pairs.append((gold, answers[p][first]))
            places.append((p, number))
    correct = np.zeros(classes.shape, bool)
    for (p, number), verdict in zip(places, equal_many(pairs)):
        if verdict:
            correct[p] |= classes[p] == number
    return Graded(answers, classes, correct, np.array([gold is not None for gold in golds]))


def _by_string(answers: Sequence[str | None]) -> list[int]:
    numbers: dict[str, int] = {}
    return [-1 if a is None else numbers.setdefault(a.strip(), len(numbers)) for a in answers]
