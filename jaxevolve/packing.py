"""Which responses share a row? Scoring and updates read the responses of a prompt packed.

Responses differ in length, and a program has one shape. Instead of G rows that are padded to the
longest, the responses of a prompt fill fewer rows, one behind the other: they share the prompt's
keys anyway, and `segments` keep them apart. Rows are as long as a response may be, so that any
response fits, and their number comes from a short table, so that few programs are compiled.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike

# Parts of G that the number of rows may be: with G rows for the worst batch, six programs.
_PARTS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)


@struct.dataclass
class Layout:
    """Where the responses of a batch stand in R rows a prompt of S tokens.

    Attributes:
        source: i32[P, R, S], the token that stands here as an index into the G * L tokens of its
            prompt's responses; -1 for padding.
        start: i32[P, G], where a response begins as an index into its prompt's R * S places.
    """

    source: ArrayLike
    start: ArrayLike


def row_counts(group: int) -> list[int]:
    """How many rows a prompt with `group` responses may have, at most six numbers in order."""
    return sorted({-(-group * int(8 * part) // 8) for part in _PARTS})


def first_fit(lengths: Sequence[int], room: int) -> tuple[np.ndarray, np.ndarray]:
    """Fills rows with the longest response first, each into the first row that has room for it.

    Args:
        lengths: of G responses, each at most `room`.
        room: tokens of a row.

    Returns:
        i32[G] row and i32[G] place in it of each response.
    """
    used = np.zeros(len(lengths), np.int32)
    row, place = np.zeros((2, len(lengths)), np.int32)
    for g in np.argsort(-np.asarray(lengths), kind="stable"):
        row[g] = np.argmax(used + lengths[g] <= room)
        place[g] = used[row[g]]
        used[row[g]] += lengths[g]
    return row, place


def rows_needed(lengths: np.ndarray, max_tokens: int) -> int:
    """R that a batch needs: rows of the fullest prompt, rounded up to one of `row_counts`.

    Args:
        lengths: i32[P, G].
        max_tokens: L, the most tokens of a response, which rows are long.
    """
    fullest = max((1 + int(first_fit(one, max_tokens)[0].max()) for one in lengths), default=1)
    return next(n for n in row_counts(lengths.shape[1]) if n >= fullest)


def make_layout(lengths: np.ndarray, max_tokens: int, rows: int) -> Layout:
    """Packs a batch, on the host.

    Args:
        lengths: i32[P, G].
        max_tokens: L, the most tokens of a response, which rows are long.
        rows: R, at least `rows_needed`; the same in all processes of a run.

    Returns:
        A layout with L = S = `max_tokens` and R rows for every prompt.
    """
    count, group = lengths.shape
    fits = [first_fit(of_prompt, max_tokens) for of_prompt in lengths]
    source = np.full((count, rows * max_tokens), -1, np.int32)
    start = np.array([row * max_tokens + place for row, place in fits], np.int32)
    for p, g in np.ndindex(count, group):
        tokens = np.arange(lengths[p, g])
        source[p, start[p, g] + tokens] = g * max_tokens + tokens
    return Layout(source.reshape(count, rows, max_tokens), start.reshape(count, group))


def pack(layout: Layout, values: jax.Array) -> jax.Array:
    """[P, G, L] -> [P, R, S], zero in the padding."""
    found = _take(values, jnp.maximum(layout.source, 0))
    return jnp.where(layout.source >= 0, found, 0)


def segments(layout: Layout, length: int) -> jax.Array:
    """i32[P, R, S]: the number of the response that a token is of, from 1; 0 for padding."""
    return jnp.where(layout.source >= 0, layout.source // length + 1, 0)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def unpack(layout: Layout, values: jax.Array, length: int) -> jax.Array:
    """[P, R, S] -> [P, G, L], zero after a response's end.

    Its gradient is `pack`: both ways each number is looked up, none is added to another.
    """
    token = jnp.arange(length)
    group = layout.start.shape[1]
    place = jnp.minimum(layout.start[..., None] + token, np.prod(values.shape[1:]) - 1)
    there = _take(layout.source, place) == jnp.arange(group)[:, None] * length + token
    return jnp.where(there, _take(values, place), 0)


def _unpack_forward(layout: Layout, values: jax.Array, length: int) -> tuple[jax.Array, Layout]:
    return unpack(layout, values, length), layout


def _unpack_backward(length: int, layout: Layout, cotangent: jax.Array) -> tuple[None, jax.Array]:
    return None, pack(layout, cotangent)


unpack.defvjp(_unpack_forward, _unpack_backward)


def _take(values: jax.Array, index: jax.Array) -> jax.Array:
    """Numbers of [P, ...] by their index into a prompt's flat ones, in the index's shape."""
    count = len(values)
    flat = jnp.take_along_axis(values.reshape(count, -1), index.reshape(count, -1), axis=1)
    return flat.reshape(index.shape)
