"""In what order do rows come, and who decodes them? A grain pipeline whose position can be saved.

Everything happens in threads of this process: decoding and resizing release the interpreter, and
processes would need the rows, the processor and the flags sent to them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import grain
import numpy as np
from ml_collections import ConfigDict

from jaxevolve.data.sources import Row, Rows
from jaxevolve.hf.processor import Processor
from jaxevolve.hf.rows import content_key, sample_ids
from jaxevolve.models.inputs import Prompts
from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.errors import UserError


class Batch(NamedTuple):
    """Rows, and the same rows as arrays.

    Attributes:
        rows: as they were read; images are still encoded.
        prompts: numpy. In an evaluation it may have more rows than `rows`: the padding of a last
            batch, which nobody scores.
    """

    rows: list[Row]
    prompts: Prompts


class Schedule(NamedTuple):
    """How long a run is: steps in all, steps an epoch, and steps between evaluations (0: none)."""

    steps: int
    steps_per_epoch: int
    eval_every: int


def schedule(config: ConfigDict, rows: int) -> Schedule:
    """Counts steps: config.steps where it is set, else config.data.epochs passes over the rows.

    Args:
        config: the whole config.
        rows: usable rows.

    Raises:
        UserError: neither is set, or the rows do not make one batch.
    """
    per_epoch = rows // config.batch
    if not per_epoch:
        raise UserError(
            f"batch={config.batch} is more than the {rows} usable rows of {config.data.path}; "
            f"give --config.batch={rows} or less, or more data"
        )
    steps = config.steps or (config.data.epochs or 0) * per_epoch
    if not steps:
        raise UserError("the run has no length; give --config.steps or --config.data.epochs")
    every = config.eval.every
    if config.eval.every_epochs:
        every = config.eval.every_epochs * per_epoch
    return Schedule(steps, per_epoch, every)


def train_batches(
    rows: Rows,
    processor: Processor,
    *,
    batch: int,
    seed: int,
    instruction: str = "",
    process_index: int = 0,
    process_count: int = 1,
    minibatches: int = 1,
    ahead: int = 2,
) -> grain.DatasetIterator:
    """Endless batches: every epoch is another shuffle by the seed, without its last partial batch.

    Args:
        rows: the usable rows.
        processor: makes the arrays.
        batch: prompts a step, of all processes together.
        seed: of the order.
        instruction: text added to every question.
        process_index: which process this is.
        process_count: how many share a batch; each gets as many rows of every minibatch, next to
            each other there, in arrays of the same shape on all.
        minibatches: equal parts of a batch.
        ahead: batches made ahead of the one in use, in as many threads.

    Returns:
        An iterator of `Batch`. Its `get_state()` is a small JSON value, the position after the
        batches taken so far; `set_state` goes on from there exactly.
    """
    share = _share(batch, process_index, process_count, minibatches)

    def load(indices: list[int]) -> Batch:
        taken = [rows[index] for index in indices]
        mine = [taken[i] for i in share]
        return Batch(mine, _prompts(taken, processor, instruction, share))

    order = grain.MapDataset.range(len(rows)).seed(seed).shuffle()
    batches = order.batch(batch, drop_remainder=True, batch_fn=list).repeat()
    return _read_ahead(batches.map(load), ahead)


def eval_batches(
    rows: Rows,
    processor: Processor,
    *,
    batch: int,
    questions: int = 0,
    instruction: str = "",
    process_index: int = 0,
    process_count: int = 1,
    ahead: int = 2,
) -> grain.DatasetIterator:
    """The first `questions` rows (0: all) in order, each once.

    The last batch is filled up by repeating its last row, so that all have one shape of P; `rows`
    of a `Batch` holds the real ones only. Arguments are those of `train_batches`.
    """
    share = _share(batch, process_index, process_count)
    total = min(questions or len(rows), len(rows))

    def load(number: int) -> Batch:
        taken = [rows[i] for i in range(number * batch, min((number + 1) * batch, total))]
        full = taken + taken[-1:] * (batch - len(taken))
        mine = [taken[i] for i in share if i < len(taken)]
        return Batch(mine, _prompts(full, processor, instruction, share))

    return _read_ahead(grain.MapDataset.range(math.ceil(total / batch)).map(load), ahead)


def _read_ahead(dataset: grain.MapDataset, ahead: int) -> grain.DatasetIterator:
    options = grain.ReadOptions(num_threads=ahead, prefetch_buffer_size=ahead)
    return iter(dataset.to_iter_dataset(options))


def _share(batch: int, process_index: int, process_count: int, parts: int = 1) -> list[int]:
    """The places of a process's rows in a batch, as many in each of the batch's equal parts."""
    if batch % (process_count * parts):
        within = f" in each of {parts} minibatches" if parts > 1 else ""
        raise UserError(
            f"batch={batch} cannot be split over {process_count} processes{within}; "
            f"use a batch that {process_count * parts} divides"
        )
    part = batch // parts
    size = part // process_count
    first = process_index * size
    return [start + i for start in range(0, batch, part) for i in range(first, first + size)]


def _prompts(
    rows: Sequence[Row], processor: Processor, instruction: str, share: Sequence[int]
) -> Prompts:
    """This process's part of a batch, the same as if one process had made all of it."""
    mine = processor.prompts([rows[i] for i in share], instruction)
    if len(mine.length) == len(rows):
        return mine
    sizes = [processor.row_size(row, instruction) for row in rows]
    tokens, windows = (bucket(max(size)) for size in zip(*sizes))
    ids = sample_ids(content_key(row, ()) for row in rows)[list(share)]
    return _pad(mine, tokens, windows).replace(ids=ids)


def _pad(prompts: Prompts, tokens: int, windows: int) -> Prompts:
    """Widens T and W."""

    def widen(name: str, size: int, fill: int = 0) -> np.ndarray:
        array = getattr(prompts, name)
        after = [(0, 0)] * array.ndim
        after[1] = (0, size - array.shape[1])
        return np.pad(array, after, constant_values=fill)

    return prompts.replace(
        tokens=widen("tokens", tokens),
        positions=widen("positions", tokens),
        image_token=widen("image_token", tokens, -1),
        pixels=widen("pixels", windows),
        patch_hw=widen("patch_hw", windows),
        segment=widen("segment", windows),
    )
