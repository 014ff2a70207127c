"""The host's half of sampling: which prompt is read when, and which response gets a free row.

A response that ends leaves its row at once to one that waits; prompts wait in one queue, and a
prompt whose responses have all ended makes room for the next. So the rows stay busy until the
queue is empty, whatever the lengths of the responses, and a re-inference can start as soon as its
own parent has ended. What a response is does not depend on any of this (see `response_keys`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.rollout import decode
from jaxevolve.rollout.sampling import NOISE, Sampling, response_keys
from jaxevolve.runtime.buckets import bucket

READ_AT_ONCE = (2, 8)  # prompts of one prefill: two sizes, so that there are few programs
ROOM = 128  # tokens that there is room for at first; more when they are needed


@dataclass(frozen=True, eq=False)
class Job:
    """A prompt and the responses that are wanted of it.

    Attributes:
        prompt: the prompt, P = 1, in numpy.
        phase: what its random numbers are for.
        members: the numbers of its responses in their group, at least one.
        limit: most tokens of each.
        noise: which draw of noise its image gets, or None.
        tag: whatever the caller wants to know it by.
    """

    prompt: Prompts
    phase: int
    members: Sequence[int]
    limit: int
    noise: int | None = None
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
        row_steps: rows times decode steps; the sampled tokens are the least possible.
        tokens: sampled tokens.
        read_tokens: tokens of the prompts that were read, padding not counted.
    """

    seconds: dict[int, float] = field(default_factory=dict)
    row_steps: int = 0
    tokens: int = 0
    read_tokens: int = 0

    def spend(self, phases: Sequence[int], seconds: float) -> None:
        """Shares out seconds among phases."""
        for phase in phases:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds / len(phases)


Place = Callable[..., Any]  # (tree of arrays, axis=0) -> the same on the devices


Finish = Callable[[Job, int, Response], Iterable[Job]]


def run(
    model: Qwen2_5_VL,
    params: Any,
    jobs: Iterable[Job],
    finish: Finish,
    *,
    key: jax.Array,
    temperature: float,
    rules: Sampling,
    rows: int,
    width: int,
    chunk: int,
    shards: int,
    place: Place,
    deviation: float = 0.0,
) -> Stats:
    """Samples the responses of all jobs.

    Args:
        model: the model.
        params: its parameters.
        jobs: in the order in which they start.
        finish: called with a job, the number of one of its members and that member's response; it
            returns further jobs, which join the end of the queue.
        key: the key of the run's seed and step.
        temperature: of sampling; 0 takes the most likely token.
        rules: sampling rules.
        rows: B, responses decoded together.
        width: most members of any job.
        chunk: most tokens between two looks from the host.
        shards: equal parts of the rows that live on different devices; a response stays in the
            part of its prompt.
        place: (tree, axis=0) -> the tree on the devices, that axis over the parts.
        deviation: of the noise of jobs that have some.
    """
    queue = deque(jobs)
    stats = Stats()
    if not queue:
        return stats
    rows = -(-rows // shards) * shards
    seats = -(-2 * rows // (width * shards)) * shards  # twice what the rows can fill
    longest = max(job.prompt.tokens.shape[1] for job in queue)
    most = max(job.limit for job in queue)
    pool, decoding = decode.empty(
        model,
        params,
        prompts=seats,
        prompt_tokens=max(longest, min(bucket(longest + most), ROOM)),
        rows=rows,
        tokens=max(bucket(min(most, max(chunk, ROOM))), 1),
        place=place,
    )
    index = np.zeros(rows, np.int32)
    seated: list[Job | None] = [None] * seats
    unfinished = [0] * seats
    held: list[tuple[int, int] | None] = [None] * rows  # seat and member of a row's response
    starts: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]  # waiting for a row

    while True:
        # 1. Prompts take free seats while their part has free rows that nobody waits for.
        begun = perf_counter()
        free = [
            sum(held[r] is None for r in range(rows) if r * shards // rows == part) - len(waiting)
            for part, waiting in enumerate(starts)
        ]
        arrivals = []
        for seat in range(seats):
            part = seat * shards // seats
            if queue and seated[seat] is None and free[part] > 0:
                job = queue.popleft()
                seated[seat], unfinished[seat] = job, len(job.members)
                starts[part].extend((seat, m) for m in range(len(job.members)))
                free[part] -= len(job.members)
                arrivals.append((seat, job))
        for batch in _prefills(arrivals, shards):
            pool = _read(model, params, pool, batch, key, deviation, place)
            stats.read_tokens += sum(int(job.prompt.length[0]) for _, job in batch if job)

        # 2. Responses that wait take free rows.
        new = {}
        for r in range(rows):
            if held[r] is None and (waiting := starts[r * shards // rows]):
                held[r] = new[r] = waiting.popleft()
        if new:
            decoding = _start(decoding, new, seated, rows, key, place)
        busy = [r for r in range(rows) if held[r] is not None]
        if not busy:
            return stats
        phases = [seated[held[r][0]].phase for r in busy]
        stats.spend([job.phase for _, job in arrivals] or phases, perf_counter() - begun)

        # 3. A chunk is decoded; while others wait, it ends early when enough rows are free.
        begun = perf_counter()
        reach = max(
            min(int(index[r]) + chunk if r not in new else chunk, seated[held[r][0]].limit)
            for r in busy
        )
        if reach > decoding.tokens.shape[1]:
            decoding = decode.grow_rows(decoding, bucket(reach))
        others = bool(queue) or any(starts)
        least = len(busy) - max(rows // 8, 1) if others else 0
        program = decode.decode_on_cpu if decode.unrolled() else decode.decode
        decoding, steps = program(
            model,
            params,
            pool,
            decoding,
            np.float32(temperature),
            rules,
            width,
            np.int32(chunk),
            np.int32(least),
        )
        index, live, steps = jax.device_get((decoding.index, decoding.live, steps))
        stats.row_steps += rows * int(steps)

        # 4. Responses that have ended leave.
        done = [r for r in busy if not live[r]]
        if done:
            tokens, logprobs, stopped = jax.device_get(
                (decoding.tokens, decoding.logprobs, decoding.stopped)
            )
        stats.spend(phases, perf_counter() - begun)
        for r in done:
            seat, m = held[r]
            held[r], job, n = None, seated[seat], int(index[r])
            unfinished[seat] -= 1
            if not unfinished[seat]:
                seated[seat] = None
            stats.tokens += n
            response = Response(tokens[r, :n].copy(), logprobs[r, :n].copy(), bool(stopped[r]))
            queue.extend(finish(job, m, response))


def _prefills(
    arrivals: Sequence[tuple[int, Job]], shards: int
) -> Iterable[list[tuple[int, Job | None]]]:
    """Groups of prompts of one shape, of one of two sizes for each of the shards.

    A group is filled up with its last prompt; the filler has no job.
    """
    shapes: dict[Any, list[tuple[int, Job]]] = {}
    for seat, job in arrivals:
        shape = (job.prompt.tokens.shape, job.prompt.pixels.shape, job.noise is None)
        shapes.setdefault(shape, []).append((seat, job))
    for group in shapes.values():
        few, most = (size * shards for size in READ_AT_ONCE)
        for first in range(0, len(group), most):
            batch = group[first : first + most]
            size = few if len(batch) <= few else most
            yield [*batch, *[(seat, None) for seat, _ in batch[-1:] * (size - len(batch))]]


def _read(
    model: Qwen2_5_VL,
    params: Any,
    pool: decode.Pool,
    batch: Sequence[tuple[int, Job | None]],
    key: jax.Array,
    deviation: float,
    place: Place,
) -> decode.Pool:
    """Prefills one group of prompts."""
    jobs = [job for _, job in batch if job]
    jobs += jobs[-1:] * (len(batch) - len(jobs))
    prompts = jax.tree.map(lambda *rows: np.concatenate(rows), *(job.prompt for job in jobs))
    if prompts.tokens.shape[1] > pool.prompt_tokens:
        pool = decode.grow_pool(pool, prompts.tokens.shape[1])
    places = [seat if job else len(pool.length) for seat, job in batch]
    noise = None
    if jobs[0].noise is not None:
        draws = np.array([job.noise for job in jobs], np.int32)
        keys = response_keys(key, np.full(len(jobs), NOISE, np.int32), prompts.ids, draws)
        noise = (keys, np.float32(deviation))
    places = np.array(places, np.int32)
    new = decode.prefill(model, params, place(prompts), noise)
    return decode.insert(pool, new, place(places))


def _start(
    decoding: decode.Decoding,
    new: dict[int, tuple[int, int]],
    seated: Sequence[Job | None],
    rows: int,
    key: jax.Array,
    place: Place,
) -> decode.Decoding:
    """Starts responses in the rows that they were given."""
    fresh = np.zeros(rows, bool)
    limit, prefix, number, phase, member = np.zeros((5, rows), np.int32)
    ids = np.zeros(rows, np.uint32)
    for r, (seat, m) in new.items():
        job = seated[seat]
        fresh[r], limit[r], prefix[r], number[r] = True, job.limit, seat, m
        phase[r], member[r], ids[r] = job.phase, job.members[m], job.prompt.ids[0]
    keys = response_keys(key, phase, ids, member)
    return decode.start_rows(decoding, *place((fresh, limit, prefix, number, keys)))
