"""The device's side of sampling as the host sees it: a pool and rows that calls change."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.rollout import caches, decode
from jaxevolve.rollout.jobs import Job, Stats
from jaxevolve.rollout.sampling import NOISE, Sampling, response_keys
from jaxevolve.runtime.buckets import bucket

READ_AT_ONCE = 2  # prompts of one prefill on a device: one size, so that there are few programs
EXTEND_AT_ONCE = 4  # texts behind stems
BRANCH_AT_ONCE = 8  # responses whose keys are copied together on a device

Place = Callable[..., Any]  # (tree of arrays, axis=0) -> the same on the devices


class Device:
    """The pool and the rows on the devices, and the calls of the programs that change them."""

    def __init__(
        self,
        model: Qwen2_5_VL,
        params: Any,
        key: jax.Array,
        deviation: float,
        shards: int,
        place: Place,
    ) -> None:
        self.stats = Stats()
        self._model, self._params, self._key = model, params, key
        self._prepared = decode.prepare(params)
        self._deviation, self._shards, self._place = deviation, shards, place

    def make(self, **shape: int) -> None:
        """Makes an empty pool and empty rows, see `caches.empty`."""
        self._pool, self._rows = caches.empty(self._model, self._params, place=self._place, **shape)

    @property
    def results(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Tokens, log-probabilities and whether they stopped, of all rows."""
        return self._rows.tokens, self._rows.logprobs, self._rows.stopped

    def read(self, arrivals: Sequence[tuple[int, Job]]) -> None:
        """Prefills prompts into their seats, in groups of one shape."""
        if not arrivals:
            return
        begun = perf_counter()
        shapes: dict[Any, list[tuple[int, Job]]] = {}
        for seat, job in arrivals:
            shape = (job.prompt.tokens.shape, job.prompt.pixels.shape, job.noise is None)
            shapes.setdefault(shape, []).append((seat, job))
        for group in shapes.values():
            for some, (seats, jobs) in self._groups(group, READ_AT_ONCE):
                self._read(jobs, seats)
                self.stats.read_tokens += sum(int(job.prompt.length[0]) for _, job in some)
        self._wait([job for _, job in arrivals], begun)

    def _read(self, jobs: Sequence[Job], seats: Sequence[int]) -> None:
        prompts = jax.tree.map(lambda *rows: np.concatenate(rows), *(job.prompt for job in jobs))
        self._make_room(prompts.tokens.shape[1])
        noise = None
        if jobs[0].noise is not None:
            draws = np.array([job.noise for job in jobs], np.int32)
            phases = np.full(len(jobs), NOISE, np.int32)
            keys = response_keys(self._key, phases, prompts.ids, draws)
            noise = (keys, np.float32(self._deviation))
        new = decode.prefill(self._model, self._params, self._place(prompts), noise)
        self._pool = decode.insert(self._pool, new, self._place(np.array(seats, np.int32)))

    def extend(self, extensions: Sequence[tuple[int, int, Job]]) -> None:
        """Reads what the prompts of (seat, seat of the stem, job) have behind their stems."""
        if not extensions:
            return
        begun = perf_counter()
        text = lambda job: job.prompt.tokens[0, job.stem.length[0] : job.prompt.length[0]]
        ordered = sorted(extensions, key=lambda each: len(text(each[2])))
        for some, (seats, stems, jobs) in self._groups(ordered, EXTEND_AT_ONCE):
            self._make_room(max(job.prompt.tokens.shape[1] for job in jobs))
            texts = [text(job) for job in jobs]
            lengths = np.array([len(own) for own in texts], np.int32)
            tokens = np.zeros((len(jobs), max(bucket(int(lengths.max())), 32)), np.int32)
            for row, own in zip(tokens, texts):
                row[: len(own)] = own
            arrays = (np.array(stems, np.int32), tokens, lengths, np.array(seats, np.int32))
            self._pool = decode.extend(
                self._model,
                self._params,
                self._pool,
                *self._place(arrays),
                room=max(job.stem.tokens.shape[1] for job in jobs),
            )
            self.stats.read_tokens += int(lengths[: len(some)].sum())
            self.stats.reused_tokens += sum(int(job.stem.length[0]) for *_, job in some)
        self._wait([job for *_, job in extensions], begun)

    def branch(self, branches: Sequence[tuple[int, int, Job]]) -> None:
        """Makes prompts of (seat, row, job), from the keys in the row and in its prompt's seat."""
        if not branches:
            return
        begun = perf_counter()
        for some, (seats, rows, jobs) in self._groups(branches, BRANCH_AT_ONCE):
            self._make_room(max(job.prompt.tokens.shape[1] for job in jobs))
            anchors = [job.anchor for job in jobs]
            self._pool = decode.branch(
                self._pool,
                self._rows,
                *self._place([np.array(x, np.int32) for x in (rows, anchors, seats)]),
            )
            self.stats.reused_tokens += sum(int(job.prompt.length[0]) for *_, job in some)
        self._wait([job for *_, job in branches], begun)

    def _groups(
        self, items: Sequence[tuple[Any, ...]], at_once: int
    ) -> Iterator[tuple[Sequence[tuple[Any, ...]], Iterator[tuple[Any, ...]]]]:
        """Items (seat, ...) in groups of one size, as they are and as columns of that size.

        A group is filled up with its last item, which then goes to no seat.
        """
        size, nowhere = at_once * self._shards, len(self._pool.length)
        for first in range(0, len(items), size):
            group = items[first : first + size]
            filler = (nowhere, *group[-1][1:])
            yield group, zip(*group, *[filler] * (size - len(group)))

    def _make_room(self, tokens: int) -> None:
        if tokens > self._pool.prompt_tokens:
            self._pool = caches.grow_pool(self._pool, tokens)

    def _wait(self, jobs: Sequence[Job], begun: float) -> None:
        jax.block_until_ready(self._pool.length)
        seconds = perf_counter() - begun
        self.stats.reading += seconds
        self.stats.spend([job.phase for job in jobs], seconds)

    def resize(
        self, held: Sequence[tuple[int, int] | None], size: int
    ) -> list[tuple[int, int] | None]:
        """Gives B the size; returns what the rows hold then, each part's rows in its part."""
        each, few = len(held) // self._shards, size // self._shards
        picks = np.full(size, len(held), np.int32)
        for part in range(self._shards):
            kept = [r for r in range(part * each, (part + 1) * each) if held[r] is not None]
            picks[part * few : part * few + len(kept)] = kept
        self._rows = caches.pick_rows(self._rows, self._place(picks))
        return [held[r] if r < len(held) else None for r in picks]

    def start(
        self, new: dict[int, tuple[int, int]], seated: Sequence[Job | None], rows: int
    ) -> None:
        """Starts responses in the rows that they were given."""
        fresh = np.zeros(rows, bool)
        limit, prefix, number, phase, member = np.zeros((5, rows), np.int32)
        ids = np.zeros(rows, np.uint32)
        for r, (seat, m) in new.items():
            job = seated[seat]
            fresh[r], limit[r], prefix[r], number[r] = True, job.limit, seat, m
            phase[r], member[r], ids[r] = job.phase, job.members[m], job.prompt.ids[0]
        keys = response_keys(self._key, phase, ids, member)
        arguments = self._place((fresh, limit, prefix, number, keys))
        self._rows = decode.start_rows(self._rows, *arguments)

    def decode(
        self, temperature: float, rules: Sampling, width: int, chunk: int, least: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decodes a chunk; returns how far the rows are, i32[B], and which go on, bool[B]."""
        program = decode.decode_on_cpu if caches.unrolled() else decode.decode
        self._rows, steps = program(
            self._model,
            self._prepared,
            self._pool,
            self._rows,
            np.float32(temperature),
            rules,
            width,
            np.int32(chunk),
            np.int32(least),
        )
        rows = self._rows
        index, limit, stopped, steps = jax.device_get((rows.index, rows.limit, rows.stopped, steps))
        self.stats.row_steps += len(index) * int(steps)
        return index, ~stopped & (index < limit)
