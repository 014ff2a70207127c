"""What lies on the devices while sampling: prompts that have been read, and responses on their way.

A pool holds the keys of N prompts, each once for all its responses. B rows hold the responses that
are decoded together; a row may belong to any prompt of the pool and start at any time.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.runtime.target import target_platform


@struct.dataclass
class Pool:
    """N prompts that have been read, all but their last token.

    That one is the first token of every response: the row that reads it predicts what follows, so
    no state has to be kept beside the keys.

    Attributes:
        keys: each layer's keys [N, K, h, T] and values [N, K, T, h].
        length: i32[N], tokens that have been read of each prompt.
        last: i32[N], the last token of each, not read.
        position: i32[N], its position on all three axes.
    """

    keys: Any
    length: jax.Array
    last: jax.Array
    position: jax.Array

    @property
    def prompt_tokens(self) -> int:
        """T, the room for a prompt."""
        return jax.tree.leaves(self.keys)[0].shape[-1]


@struct.dataclass
class Decoding:
    """B responses on their way.

    Attributes:
        tokens: i32[B, S].
        logprobs: f32[B, S].
        index: i32[B], tokens so far.
        limit: i32[B], most tokens; a row that is not in use has 0.
        stopped: bool[B], whether a stop id ended it.
        keys: [B] random keys.
        prefix: i32[B], its prompt in the pool.
        number: i32[B], its place among the rows of its prompt.
        cache: each layer's keys [B, K, h, S] and values [B, K, S, h].
    """

    tokens: jax.Array
    logprobs: jax.Array
    index: jax.Array
    limit: jax.Array
    stopped: jax.Array
    keys: jax.Array
    prefix: jax.Array
    number: jax.Array
    cache: Any

    @property
    def live(self) -> jax.Array:
        """bool[B], the rows that go on."""
        return (~self.stopped) & (self.index < self.limit)


def empty(
    model: Qwen2_5_VL,
    params: Any,
    *,
    prompts: int,
    prompt_tokens: int,
    rows: int,
    tokens: int,
    place: Callable[..., Any],
) -> tuple[Pool, Decoding]:
    """A pool of N = `prompts` with T = `prompt_tokens`, and B = `rows` with S = `tokens`.

    `place` puts a tree onto the devices, split along the axis that it is given. Every device makes
    its own part: the whole would not fit one.
    """
    dtype = params["model"]["norm"]["weight"].dtype
    lies = lambda axis: place(np.zeros((1,) * axis + (rows,)), axis=axis).sharding
    make = empty_on(lies(0), lies(cache_axis()))
    return make(model, dtype, prompts, prompt_tokens, rows, tokens)


def cache_axis() -> int:
    """The axis of caches that is that of prompts or rows: behind layers, if they are one array."""
    return 0 if unrolled() else 1


@functools.cache
def empty_on(split: jax.sharding.Sharding, caches: jax.sharding.Sharding) -> Callable[..., Any]:
    """The program of `empty`, of (model, dtype, prompts, prompt_tokens, rows, tokens).

    Args:
        split: how arrays lie that have prompts or rows on their first axis.
        caches: how caches lie, which have them on `cache_axis`.
    """
    where = Pool(caches, *[split] * 3), Decoding(*[split] * 8, cache=caches)
    return jax.jit(_empty, static_argnums=range(6), out_shardings=where)


def _empty(
    model: Qwen2_5_VL, dtype: Any, prompts: int, prompt_tokens: int, rows: int, tokens: int
) -> tuple[Pool, Decoding]:
    """Both of `empty`."""
    c = model.config

    def cache(count: int, length: int) -> Any:
        first = (count, c.num_key_value_heads)
        shapes = [(*first, c.head_dim, length), (*first, length, c.head_dim)]
        if unrolled():
            pair = lambda: tuple(jnp.zeros(shape, dtype) for shape in shapes)
            return tuple(pair() for _ in range(c.num_hidden_layers))
        shapes = [(c.num_hidden_layers, *shape) for shape in shapes]
        return tuple(jnp.zeros(shape, dtype) for shape in shapes)

    zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
    pool = Pool(
        keys=cache(prompts, prompt_tokens),
        length=zeros(prompts),
        last=zeros(prompts),
        position=zeros(prompts),
    )
    decoding = Decoding(
        tokens=zeros(rows, tokens),
        logprobs=jnp.zeros((rows, tokens), jnp.float32),
        index=zeros(rows),
        limit=zeros(rows),
        stopped=jnp.zeros(rows, bool),
        keys=jnp.broadcast_to(jax.random.key(0), rows),
        prefix=zeros(rows),
        number=zeros(rows),
        cache=cache(rows, tokens),
    )
    return pool, decoding


@jax.jit
def pick_rows(decoding: Decoding, picks: jax.Array) -> Decoding:
    """The rows i32[B'] of B, in that order; B stands for a row that is not in use."""
    there = picks < len(decoding.index)
    take = lambda x: x.at[picks].get(mode="clip")
    axis = jax.tree.leaves(decoding.cache)[0].ndim - 4
    picked = jax.tree.map(take, decoding.replace(cache=None))
    cache = jax.tree.map(lambda x: jnp.take(x, picks, axis=axis, mode="clip"), decoding.cache)
    return picked.replace(limit=jnp.where(there, picked.limit, 0), cache=cache)


@partial(jax.jit, static_argnames=("prompt_tokens",))
def grow_pool(pool: Pool, prompt_tokens: int) -> Pool:
    """The pool with T = `prompt_tokens`."""

    def pad(x: jax.Array, axis: int) -> jax.Array:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, prompt_tokens - x.shape[axis])
        return jnp.pad(x, widths)

    return pool.replace(keys=map_caches(pad, pool.keys))


def map_caches(change: Callable[..., jax.Array], *caches: Any) -> Any:
    """Calls (keys, axis=-1) and (values, axis=-2), the axis being that of tokens, in every layer.

    Args:
        change: takes an array of each cache and the axis.
        *caches: pairs of keys and values, one stacked pair or a tuple of one a layer.
    """
    if isinstance(caches[0][0], tuple):
        return tuple(map_caches(change, *layers) for layers in zip(*caches))
    return tuple(change(*arrays, axis=axis) for axis, arrays in zip((-1, -2), zip(*caches)))


def unrolled() -> bool:
    """Whether decoding unrolls its layers: on CPU a scan copies weights and cache each step."""
    return target_platform() == "cpu"
