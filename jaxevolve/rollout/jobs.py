"""What is sampled, what comes of it, and what it took."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxevolve.models.inputs import Prompts


@dataclass(frozen=True, eq=False)
class Job:
    """A prompt and the responses that are wanted of it.

    Attributes:
        prompt: the prompt, P = 1, in numpy.
        phase: what its random numbers are for.
        members: the numbers of its responses in their group, at least one.
        limit: most tokens of each.
        noise: which draw of noise its image gets, or None.
        anchor: where the job follows a response (see `run`) and the prompt is that response's own
            up to this many of its tokens, unchanged: its keys need not be computed again. None
            where that is not so.
        stem: what its prompt begins with, P = 1, or None. Jobs one behind the other with one and
            the same stem read it once, images and all, and text alone follows it. Their image has
            no noise.
        tag: whatever the caller wants to know it by.
    """

    prompt: Prompts
    phase: int
    members: Sequence[int]
    limit: int
    noise: int | None = None
    anchor: int | None = None
    stem: Prompts | None = None
    tag: Any = None


@dataclass(frozen=True)
class Response:
    """One finished response: tokens i32[length], logprobs f32[length], and whether it stopped."""

    tokens: np.ndarray
    logprobs: np.ndarray
    stopped: bool


@dataclass
class Stats:
    """What sampling took.

    Attributes:
        seconds: by phase; a chunk's time is shared out by the rows that each phase has in it.
        reading: seconds of these in which prompts were read or their keys copied.
        row_steps: rows times decode steps; the sampled tokens are the least possible.
        tokens: sampled tokens.
        read_tokens: tokens of the prompts that were read, padding not counted.
        reused_tokens: tokens of the prompts whose keys were copied instead.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    reading: float = 0.0
    row_steps: int = 0
    tokens: int = 0
    read_tokens: int = 0
    reused_tokens: int = 0

    def spend(self, phases: Sequence[int], seconds: float) -> None:
        """Shares out seconds among phases."""
        for phase in phases:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds / len(phases)
