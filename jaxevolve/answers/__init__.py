"""When are two answers the same? Extraction, equality, verdicts, classes for a vote."""

from jaxevolve.answers.choices import (
    Options,
    choose,
    choose_many,
    options_for,
    options_in,
    options_of,
)
from jaxevolve.answers.equality import classes, classes_many, equal, equal_many
from jaxevolve.answers.extraction import extract
from jaxevolve.answers.pool import GraderError
from jaxevolve.answers.verdict import Verdict, judge, judge_many, label_fault

__all__ = [
    "GraderError",
    "Options",
    "Verdict",
    "choose",
    "choose_many",
    "classes",
    "classes_many",
    "equal",
    "equal_many",
    "extract",
    "judge",
    "judge_many",
    "label_fault",
    "options_for",
    "options_in",
    "options_of",
]
