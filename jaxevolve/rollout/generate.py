"""Responses to a batch of prompts, in the order of the prompts."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from flax import struct

from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.rollout.engine import run
from jaxevolve.rollout.jobs import Job, Response, Stats
from jaxevolve.rollout.sampling import MATERNAL
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.mesh import placement


@struct.dataclass
class Responses:
    """G responses a prompt, in numpy.

    Attributes:
        tokens: i32[P, G, L], 0 after a response's end.
        lengths: i32[P, G], the stop id included where there is one.
        logprobs: f32[P, G, L], as sampled (see `sample`), 0 after a response's end.
        stopped: bool[P, G], whether a stop id ended it; otherwise it was cut at its limit.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray
    stopped: np.ndarray

    @classmethod
    def empty(cls, *shape: int) -> "Responses":
        """Of shape [..., L], to be filled."""
        return cls(
            tokens=np.zeros(shape, np.int32),
            lengths=np.zeros(shape[:-1], np.int32),
            logprobs=np.zeros(shape, np.float32),
            stopped=np.zeros(shape[:-1], bool),
        )

    def put(self, place: tuple[int, ...], response: Response) -> None:
        """Writes one response."""
        length = len(response.tokens)
        self.tokens[place][:length] = response.tokens
        self.logprobs[place][:length] = response.logprobs
        self.lengths[place], self.stopped[place] = length, response.stopped


def generate(
    model: Qwen2_5_VL,
    params: Any,
    prompts: Prompts,
    *,
    n: int,
    max_tokens: int,
    rows: int,
    follow: Callable[[Job, int, Response], Iterable[Job]] | None = None,
    **engine: Any,
) -> tuple[Responses, Stats]:
    """Samples n responses to every prompt.

    Args:
        model: the model.
        params: its parameters.
        prompts: P prompts, in numpy.
        n: G; response g of a prompt is member g of its group.
        max_tokens: L, most tokens of a response.
        rows: most responses decoded together.
        follow: called with every response that has ended, these and those of the jobs that it
            returns itself; None where no job follows.
        **engine: key, temperature, rules and what else `engine.run` takes.

    Returns:
        The responses, and what sampling took.

    Raises:
        UserError: a prompt ends with an image; its last token is read as text.
    """
    count = len(prompts.length)
    if (prompts.image_token[np.arange(count), prompts.length - 1] >= 0).any():
        raise UserError(
            "a prompt ends with an image, so that nothing asks for a response; use a chat template "
            "with a generation prompt"
        )
    responses = Responses.empty(count, n, max_tokens)
    jobs = [Job(one(prompts, p), MATERNAL, range(n), max_tokens, tag=p) for p in range(count)]

    def finish(job: Job, member: int, response: Response) -> Iterable[Job]:
        if job.phase == MATERNAL:
            responses.put((job.tag, member), response)
        return follow(job, member, response) if follow else ()

    shards, place = placement(params)
    stats = run(
        model,
        params,
        jobs,
        finish,
        rows=rows,
        shards=shards,
        place=place,
        alone=follow is None,
        **engine,
    )
    return responses, stats


def one(prompts: Prompts, p: int) -> Prompts:
    """Prompt p alone, P = 1."""
    return jax.tree.map(lambda x: x[p : p + 1], prompts)
