"""The host's half of sampling: which prompt is read when, and which response gets a free row.

A response that ends leaves its row at once to one that waits; prompts wait in one queue, and a
prompt whose responses have all ended makes room for the next. So the rows stay busy until the
queue is empty, whatever the lengths of the responses, and a re-inference can start as soon as its
own parent has ended. What a response is does not depend on any of this (see `response_keys`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import jax

from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.rollout.device import READ_AT_ONCE, Device, Place
from jaxevolve.rollout.jobs import Job, Response, Stats
from jaxevolve.rollout.retrace import forked_size
from jaxevolve.rollout.sampling import Sampling
from jaxevolve.runtime.buckets import bucket

FEWEST_ROWS = 8  # on a device: fewer cost hardly less
# Parameters from which on fewer rows at the end of the queue are worth a program of their own: it
# takes some three CPU-seconds to compile, what a smaller model saves in a thousand batches.
LARGE = 4_000_000
ROOM = 128  # least room for a prompt: prompts of several sizes share their programs

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
    fewest: int,
    chunk: int,
    shards: int,
    place: Place,
    alone: bool = False,
    deviation: float = 0.0,
) -> Stats:
    """Samples the responses of all jobs.

    Args:
        model: the model.
        params: its parameters.
        jobs: in the order in which they start.
        finish: called with a job, the number of one of its members and that member's response; it
            returns further jobs, which join the end of the queue, or take a seat at once where
            their keys are at hand.
        key: the key of the run's seed and step.
        temperature: of sampling; 0 takes the most likely token.
        rules: sampling rules.
        rows: B, most responses decoded together.
        width: most members of any job.
        fewest: fewest members of any job.
        chunk: most tokens between two looks from the host.
        shards: equal parts of the rows that live on different devices; a response stays in the
            part of its prompt.
        place: (tree, axis=0) -> the tree on the devices, that axis over the parts.
        alone: whether no job follows from `finish`.
        deviation: of the noise of jobs that have some.
    """
    queue = deque(jobs)
    if not queue:
        return Stats()
    longest = max(job.prompt.tokens.shape[1] for job in queue)
    most = max(job.limit for job in queue)
    shared = len({id(job.stem) for job in queue if job.stem is not None})
    table = sizes(rows, width, fewest, shards, len(queue) + shared if alone else None)
    if shared:  # seats for them, if eight jobs or more follow each
        table = replace(table, seats=table.seats + shards * -(-rows // (8 * shards)))
    if sum(leaf.size for leaf in jax.tree.leaves(params)) < LARGE:
        table = replace(table, rows=table.rows[:1])
    device = Device(model, params, key, deviation, shards, place)
    device.make(
        prompts=table.seats,
        prompt_tokens=max(longest if alone else forked_size(longest, longest + most, most), ROOM),
        rows=table.rows[0],
        tokens=max(bucket(most), 1),
    )
    seated: list[Job | None] = [None] * table.seats
    unfinished = [0] * table.seats
    held: list[tuple[int, int] | None] = [None] * table.rows[0]  # seat, member of a row's response
    starts: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]  # waiting for a row
    stems: list[dict[int, int]] = [{} for _ in range(shards)]  # identity of a stem -> its seat
    stats = device.stats

    def vacant(part: int) -> int | None:
        return next((seat for seat in table.seats_of(part) if seated[seat] is None), None)

    def has_room(part: int, job: Job) -> bool:
        needed = 1 + (job.stem is not None and id(job.stem) not in stems[part])
        return sum(seated[seat] is None for seat in table.seats_of(part)) >= needed

    def take(seat: int, job: Job) -> None:
        seated[seat], unfinished[seat] = job, len(job.members)
        starts[table.part(seat)].extend((seat, m) for m in range(len(job.members)))

    while True:
        # 1. Prompts take free seats while there are free rows that nobody waits for, in the part
        # with the most of them. What is read together is filled up with those whose turn is next.
        arrivals, extensions = [], []
        free = [table.rows[0] // shards - len(waiting) for waiting in starts]
        for seat, _ in filter(None, held):
            free[table.part(seat)] -= 1
        while queue:
            part = max(
                (p for p in range(shards) if has_room(p, queue[0])),
                key=free.__getitem__,
                default=None,
            )
            filled = len(arrivals) % (READ_AT_ONCE * shards) == 0 or queue[0].stem is not None
            if part is None or (free[part] <= 0 and filled):
                break
            job = queue.popleft()
            if job.stem is not None and id(job.stem) not in stems[part]:
                stem = Job(job.stem, job.phase, (), 0)
                arrivals.append((vacant(part), stem))
                stems[part][id(job.stem)] = arrivals[-1][0]
                take(*arrivals[-1])
            seat = vacant(part)
            take(seat, job)
            free[part] -= len(job.members)
            if job.stem is None:
                arrivals.append((seat, job))
            else:
                extensions.append((seat, stems[part][id(job.stem)], job))
        device.read(arrivals)
        device.extend(extensions)
        for held_stems in stems:  # only the one that the next job follows stays
            for stem in [s for s in held_stems if not queue or s != id(queue[0].stem)]:
                seated[held_stems.pop(stem)] = None

        # 2. Responses that wait take free rows, of which there are no more than are needed.
        busy = [len(waiting) for waiting in starts]
        for seat, _ in filter(None, held):
            busy[table.part(seat)] += 1
        size = table.rows_for(table.rows[0] if queue else max(busy) * shards)
        if size != len(held):
            held = device.resize(held, size)
        new = {}
        for r in range(size):
            if held[r] is None and (waiting := starts[r * shards // size]):
                held[r] = new[r] = waiting.popleft()
        if new:
            device.start(new, seated, size)
        busy = [r for r in range(size) if held[r] is not None]
        if not busy:
            return stats

        # 3. A chunk is decoded. While others wait, it ends early when enough rows are free, and
        # otherwise when a smaller size will do.
        least = 0
        if queue or any(starts):
            least = len(busy) - max(size // 16, 1)
        elif shards == 1 and len(busy) > 1:
            least = max((s for s in table.rows if s < len(busy)), default=0)
        begun = perf_counter()
        index, live = device.decode(temperature, rules, width, chunk, least)
        done = [r for r in busy if not live[r]]
        if done:
            tokens, logprobs, stopped = jax.device_get(device.results)
        stats.spend([seated[held[r][0]].phase for r in busy], perf_counter() - begun)

        # 4. Responses that have ended leave; what follows from one takes its keys along.
        branches, left = [], []
        for r in done:
            seat, m = held[r]
            held[r], job, n = None, seated[seat], int(index[r])
            unfinished[seat] -= 1
            if not unfinished[seat]:
                left.append(seat)
            stats.tokens += n
            response = Response(tokens[r, :n].copy(), logprobs[r, :n].copy(), bool(stopped[r]))
            for following in finish(job, m, response):
                to = None if following.anchor is None else vacant(table.part(seat))
                if to is None:
                    queue.append(following)
                else:
                    take(to, following)
                    branches.append((to, r, following))
        device.branch(branches)
        for seat in left:  # not before: the branches were made from the prompts in them
            seated[seat] = None


@dataclass(frozen=True)
class Sizes:
    """How many rows and seats there are.

    Attributes:
        rows: what B may be, falling: when the queue is empty, fewer rows do less for nothing.
        seats: prompts that there is room for.
        shards: parts that both are split into.
    """

    rows: tuple[int, ...]
    seats: int
    shards: int

    def part(self, seat: int) -> int:
        """The part that a seat is in."""
        return seat * self.shards // self.seats

    def seats_of(self, part: int) -> range:
        """The seats of a part."""
        each = self.seats // self.shards
        return range(part * each, (part + 1) * each)

    def rows_for(self, needed: int) -> int:
        """The fewest rows that are enough, the most where none are."""
        return min((size for size in self.rows if size >= needed), default=self.rows[0])


def sizes(rows: int, width: int, fewest: int, shards: int, jobs: int | None) -> Sizes:
    """The table of sizes of a call: a function of few numbers, so that calls share programs.

    Args:
        rows: most responses decoded together.
        width: most members of any job.
        fewest: fewest members of any job.
        shards: parts that rows and seats are split into.
        jobs: how many there are, or None where that is not known.
    """
    each = -(-rows // shards)
    halves = [each // n for n in (2, 4) if each % n == 0 and each // n >= FEWEST_ROWS]
    # Three times what the rows can fill, as a prompt keeps its seat until its last response ends.
    seats = min(-(-3 * each // fewest), each)
    if fewest == 1 < width:  # every row may leave its keys in a seat before any prompt has left
        seats += -(-each // width)
    if jobs is not None:
        seats = min(seats, 1 << (-(-jobs // shards) - 1).bit_length())
    return Sizes(tuple(n * shards for n in (each, *halves)), seats * shards, shards)
