"""When are two answers the same? Extraction, equality, and the classes that a vote counts."""

from jaxevolve.answers.equality import classes, classes_many, equal, equal_many
from jaxevolve.answers.extraction import extract
from jaxevolve.answers.pool import GraderError

__all__ = ["GraderError", "classes", "classes_many", "equal", "equal_many", "extract"]
