"""A user's own reward: --config.reward.kind=path/to/file.py:function, called once a question.

    def reward(group: Group) -> Sequence[float | None]

The function gets a `Group` and returns a number for each of its responses, or None for one that is
left out: it enters no statistic of its group and has no advantage. docs/rewards.md has an example.
"""

import functools
import importlib.util
import inspect
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from jaxevolve.answers.grading import Graded
from jaxevolve.runtime.errors import UserError, nearest


@dataclass(frozen=True)
class Group:
    """All that is known of the responses to one question.

    N responses are to be rewarded: the G maternal ones or, with `retrace.train`, each of them
    followed by its M re-inferences.

    Attributes:
        row: the question as it was read, with all that the data has: "id", "question", "images"
            (for `jaxevolve.hf.images.open_image`), "family", and "answer", the label, or None.
        responses: [N] texts, without stop ids.
        answers: [N] extracted answers, None where there is none.
        classes: i32[N]; answers of one class are equal, -1 is no answer.
        reinferences: [G][M] texts of what follows each maternal response's anchor, the kept part
            before it; M is 0 without retrace.
        reanswers: [G][M] their answers.
        reclasses: i32[G, M] their classes, numbered together with `classes`.
        scores: f32[G], a judge's of the maternal responses, NaN where it gave none; None without
            a judge.
    """

    row: Mapping[str, Any]
    responses: Sequence[str]
    answers: Sequence[str | None]
    classes: np.ndarray
    reinferences: Sequence[Sequence[str]]
    reanswers: Sequence[Sequence[str | None]]
    reclasses: np.ndarray
    scores: np.ndarray | None


Reward = Callable[[Group], Sequence[float | None]]


@functools.cache
def load(kind: str) -> Reward:
    """The function that FILE.py:FUNCTION names.

    A file is run once in a process, and finds modules as any module does, not by standing beside
    them.

    Raises:
        UserError: there is no such file or function, the file fails, or the function cannot be
            called with a group.
    """
    path, _, name = kind.rpartition(":")
    if not Path(path).is_file():
        raise UserError(
            f"reward file {path} does not exist; give --config.reward.kind=FILE.py:NAME"
        )
    spec = importlib.util.spec_from_file_location(f"reward_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(
            f"reward file {path}:{_line(error, path)} cannot be run; {_told(error)}"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        near = nearest(name, [n for n in vars(module) if not n.startswith("_")])
        advice = f"did you mean {near}?" if near else f"define {name}(group) in it"
        raise UserError(f"reward file {path} has no {name}; {advice}")
    if not callable(found):
        raise UserError(f"{name} of reward file {path} is no function but {found!r}")
    try:
        inspect.signature(found).bind(None)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name} of reward file {path} cannot be called with one argument ({error}); "
            f"define it as {name}(group)"
        ) from error
    return found


def user_reward(
    kind: str,
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]],
    graded: Graded,
    order: np.ndarray,
    group: int,
    scores: np.ndarray | None = None,
) -> np.ndarray:
    """Calls a user's function for every question.

    Args:
        kind: FILE.py:FUNCTION.
        rows: P questions.
        texts: [P][G + G * M], the maternal responses first.
        graded: of the same.
        order: i32[N], which of them are rewarded.
        group: G.
        scores: f32[P, G] of a judge, or None.

    Returns:
        f32[P, N], NaN where a response is left out.

    Raises:
        UserError: the function failed, by line and row, or returned something else than N numbers.
    """
    function, rewards = load(kind), np.zeros((len(rows), len(order)), np.float32)
    for p, row in enumerate(rows):
        answers = graded.answers[p]
        made = Group(
            row=row,
            responses=[texts[p][i] for i in order],
            answers=[answers[i] for i in order],
            classes=graded.classes[p, order],
            reinferences=_split(texts[p], group),
            reanswers=_split(answers, group),
            reclasses=graded.classes[p, group:].reshape(group, -1),
            scores=None if scores is None else scores[p],
        )
        try:
            returned = function(made)
        except Exception as error:
            path = kind.rpartition(":")[0]
            raise UserError(
                f"reward {path}:{_line(error, path)} failed at row {row['id']}; {_told(error)}"
            ) from error
        rewards[p] = _numbers(returned, len(order), f"reward {kind} at row {row['id']}")
    return rewards


def _split(values: Sequence[Any], group: int) -> list[list[Any]]:
    """[G][M] of [G + G * M]."""
    samples = len(values) // group - 1
    return [list(values[group + g * samples :][:samples]) for g in range(group)]


def _numbers(returned: Any, count: int, who: str) -> list[float]:
    """What a function has returned as numbers, NaN for None."""
    values = returned.tolist() if hasattr(returned, "tolist") else returned
    if isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
        raise UserError(f"{who} returned {returned!r}; it must return a list of {count} numbers")
    if len(values) != count:
        raise UserError(f"{who} returned {len(values)} values; there are {count} responses")
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    for place, value in enumerate(values):
        if value is not None and not (isinstance(value, Real) and math.isfinite(value)):
            raise UserError(
                f"{who} returned {value!r} for response {place}; it must be a finite number, or "
                "None to leave the response out"
            )
    return [math.nan if value is None else float(value) for value in values]


def _line(error: Exception, path: str) -> int | str:
    """The line of a file at which an error arose, or the last one in it that led there."""
    file = os.path.abspath(path)
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), "?")


def _told(error: Exception) -> str:
    """An error's kind and words, in one line."""
    words = str(error.msg if isinstance(error, SyntaxError) else error)
    return f"{type(error).__name__}: {' '.join(words.split())}".rstrip(": ")
