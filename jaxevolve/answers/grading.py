"""Texts to answer classes and verdicts, a whole batch at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxevolve.answers.choices import Options, choose_many
from jaxevolve.answers.equality import classes_many
from jaxevolve.answers.extraction import extract
from jaxevolve.answers.verdict import Verdict, judge_many


@dataclass(frozen=True)
class Graded:
    """N answers to each of P questions.

    Attributes:
        answers: [P][N] extracted answers, None where there is none.
        classes: i32[P, N]; answers of a question with one class are equal, -1 is no answer.
        verdicts: [P][N], None for a question without a label.
        correct: bool[P, N]; False throughout for a question without a label, or with a broken one.
        labeled: bool[P], which questions have a label that is not broken.
        faults: [P], what is the matter with a broken label, else None.
    """

    answers: list[list[str | None]]
    classes: np.ndarray
    verdicts: list[list[Verdict] | None]
    correct: np.ndarray
    labeled: np.ndarray
    faults: list[str | None]


def grade(
    texts: Sequence[Sequence[str]],
    golds: Sequence[str | None],
    equality: Literal["math", "string"] = "math",
    options: Sequence[Options | None] | None = None,
) -> Graded:
    """Extracts, groups and, where there are labels, judges answers.

    A class is right or wrong as a whole: its first answer is compared with the label. Where a
    question has options, an answer is the option that it names, and none if it names none.

    Args:
        texts: [P][N] responses.
        golds: [P] labels, None where there is none.
        equality: what makes a class: "math", or "string" for the same characters, which is how
            Self-Judge and MM-UPT count votes; options do not matter to it. A label is compared
            mathematically either way.
        options: [P] of the questions, None for one without; none has any if None.
    """
    answers = [[extract(text) for text in group] for group in texts]
    listed = [None] * len(answers) if options is None else list(options)
    if equality == "math":
        found = classes_many(_named(answers, listed))
    else:
        found = [_by_string(group) for group in answers]
    classes = np.array(found, np.int32).reshape(len(answers), -1)
    pairs, places = [], []
    for p, gold in enumerate(golds):
        if gold is None:
            continue
        # No answer (-1) is asked for too: it shows a broken label where nobody answered.
        for number in range(-1, classes[p].max(initial=-1) + 1):
            first = int(np.argmax(classes[p] == number))
            pairs.append((gold, answers[p][first] if number >= 0 else None))
            places.append((p, number))
    judged = judge_many(pairs, [listed[p] for p, _ in places])
    by_class = dict(zip(places, judged))
    verdicts = [
        None if gold is None else [by_class[p, number] for number in classes[p].tolist()]
        for p, gold in enumerate(golds)
    ]
    states = [[v.state for v in group] if group else [] for group in verdicts]
    correct = np.zeros(classes.shape, bool)
    for p, group in enumerate(states):
        correct[p, : len(group)] = [state == "right" for state in group]
    faults = [
        None if gold is None or by_class[p, -1].state is not None else by_class[p, -1].reason
        for p, gold in enumerate(golds)
    ]
    labeled = np.array([g is not None and f is None for g, f in zip(golds, faults)], bool)
    return Graded(answers, classes, verdicts, correct, labeled, faults)


def _named(
    answers: Sequence[Sequence[str | None]], options: Sequence[Options | None]
) -> list[list[str | None]]:
    """Answers with the letter of the option instead, where a question has options."""
    asked = [(answer, o) for group, o in zip(answers, options) if o for answer in group]
    letters = iter(choose_many(asked))
    return [
        [next(letters) for _ in group] if o else list(group) for group, o in zip(answers, options)
    ]


def _by_string(answers: Sequence[str | None]) -> list[int]:
    numbers: dict[str, int] = {}
    return [-1 if a is None else numbers.setdefault(a.strip(), len(numbers)) for a in answers]
