"""Decoding: one token of each of B responses, which stand in rows, in any order.

The same layers as in `qwen2_5_vl`, laid out for this: features first, rows last, [D, B]. A weight
[out, in] is then the left side of a product as it lies on disk, for which XLA's CPU product runs
at its peak with 48 rows (from the right it reaches half), and norms and softmaxes of many rows at
once fill its vectors.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxevolve.models.config import Config
from jaxevolve.models.inputs import Rows
from jaxevolve.models.layers import NEGATIVE, run_layers

KeyValues = tuple[jax.Array, jax.Array]
SLICE = 32  # shortest part of a cache that is told apart


def read_rows(
    config: Config, params: Any, rows: Rows, prefix: Any, cache: Any
) -> tuple[jax.Array, Any]:
    """Reads one token of each of B rows, which follow N prefixes.

    Args:
        config: the model's shape.
        params: of the decoder, layers stacked or as a tuple (see `run_layers`).
        rows: the tokens, and what they follow.
        prefix: each layer's keys [N, K, h, T] and values [N, K, T, h].
        cache: each layer's keys [B, K, h, S] and values [B, K, S, h] of the rows so far.

    Returns:
        Hidden states f[D, B] that predict the next tokens, and the cache with these tokens in it.
    """
    x = params["embed_tokens"]["weight"][rows.token].T
    half = config.head_dim // 2
    # All three axes of M-RoPE agree on the position of text.
    frequencies = config.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = frequencies[:, None] * rows.position.astype(jnp.float32)
    turn = (jnp.cos(angles), jnp.sin(angles))
    heads = config.num_key_value_heads
    number = jnp.arange(len(rows.index))
    layers = params["layers"]
    unrolled = isinstance(layers, tuple)

    def layer(params: Any, carry: Any, i: Any) -> tuple[Any, None]:
        x, cache = carry
        # Scanned caches stay whole and are written in place: as inputs and outputs of the scan
        # they would be copied at every token.
        spot = () if unrolled else (i,)
        keys, values = cache[i] if unrolled else cache
        attention = params["self_attn"]
        y = normalize(params["input_layernorm"], x, config.rms_norm_eps)
        query, key, value = (project(attention[f"{part}_proj"], y) for part in "qkv")
        query = rotate(query.reshape(heads, -1, 2 * half, x.shape[1]), *turn)
        key = rotate(key.reshape(heads, 2 * half, x.shape[1]), *turn)
        value = value.reshape(heads, 2 * half, x.shape[1])
        every = slice(None)
        of_keys, of_values = (every, every, rows.index), (every, rows.index)
        keys = keys.at[(*spot, number, *of_keys)].set(key.transpose(2, 0, 1), mode="drop")
        values = values.at[(*spot, number, *of_values)].set(value.transpose(2, 0, 1), mode="drop")
        mixed = attend_rows(
            query.transpose(3, 0, 1, 2),
            (keys, values),
            prefix[i] if unrolled else prefix,
            rows,
            None if unrolled else i,
        )
        # Behind a barrier: XLA on CPU would make one slow kernel of the sum and the product.
        mixed = lax.optimization_barrier(mixed.reshape(x.shape[1], -1))
        x = x + project(attention["o_proj"], mixed.T)
        y = normalize(params["post_attention_layernorm"], x, config.rms_norm_eps)
        gate, up = (project(params["mlp"][f"{part}_proj"], y) for part in ("gate", "up"))
        x = x + project(params["mlp"]["down_proj"], jax.nn.silu(gate) * up)
        cache = (*cache[:i], (keys, values), *cache[i + 1 :]) if unrolled else (keys, values)
        return (x, cache), None

    depth = config.num_hidden_layers
    numbers = tuple(range(depth)) if unrolled else jnp.arange(depth)
    (x, cache), _ = run_layers(layer, layers, (x, cache), numbers)
    return normalize(params["norm"], x, config.rms_norm_eps), cache


def attend_rows(
    query: jax.Array, own: KeyValues, prefix: KeyValues, rows: Rows, layer: jax.Array | None
) -> jax.Array:
    """Attention of single tokens: B rows over their own keys and over the prefixes they share.

    For the shared part the queries are laid out in cells, [N, C], so that a prefix is read once for
    all its rows; the two parts join by their log-sum-exp. Forward only. Unrolled, on CPU, prefixes
    are read one after the other and those that are not in use not at all; own keys are multiplied
    and added by hand, since XLA takes more time there to call for B * K products of R vectors than
    to compute them.

    Args:
        query: [B, K, R, h].
        own: keys [B, K, h, S] and values [B, K, S, h].
        prefix: keys [N, K, h, T] and values [N, K, T, h].
        rows: which prefix each row follows, and how many own keys it has.
        layer: i32[], which of the caches of all layers, stacked on axis 0, it is; None where they
            are of one layer alone, unrolled.

    Returns:
        [B, K, R, h].
    """
    scale, unrolled = query.shape[-1] ** -0.5, layer is None
    grid = jnp.take(query, rows.cells, axis=0, mode="clip").transpose(0, 2, 1, 3, 4)

    def shared_part(
        keys: jax.Array, values: jax.Array, n: jax.Array | slice = slice(None)
    ) -> tuple[jax.Array, ...]:
        """Of prefix n alone, whose axis its keys then lack, or of all."""
        score = jnp.einsum(
            "...kcrh,...kht->...kcrt", grid[n], keys, preferred_element_type=jnp.float32
        )
        there = jnp.arange(keys.shape[-1]) < rows.length[n, ..., None]
        score = jnp.where(there[..., None, None, None, :], score * scale, NEGATIVE)
        top = score.max(-1, keepdims=True)
        weight = jnp.exp(score - top)
        mixed = jnp.einsum("...kcrt,...kth->...kcrh", weight.astype(query.dtype), values)
        return top, weight.sum(-1, keepdims=True), mixed

    def one_by_one() -> tuple[jax.Array, ...]:
        def read(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            n = rows.order[i]
            of_one = in_reach(partial(shared_part, n=n), prefix, rows.length[n], n)
            return tuple(x.at[n].set(new) for x, new in zip(found, of_one))

        ones = jnp.ones_like(grid[..., :1], jnp.float32)
        nothing = (NEGATIVE * ones, 0 * ones, jnp.zeros_like(grid))
        return lax.fori_loop(0, rows.used, read, nothing)

    def own_part(keys: jax.Array, values: jax.Array) -> tuple[jax.Array, ...]:
        if unrolled:
            score = (query.astype(jnp.float32)[..., None] * keys[:, :, None]).sum(3)
        else:
            score = jnp.einsum("bkrh,bkhs->bkrs", query, keys, preferred_element_type=jnp.float32)
        there = jnp.arange(keys.shape[-1]) <= rows.index[:, None]
        score = jnp.where(there[:, None, None], score * scale, NEGATIVE)
        top = score.max(-1, keepdims=True)
        weight = jnp.exp(score - top)
        if unrolled:
            mixed = (weight[..., None] * values[:, :, None]).sum(3)
        else:
            mixed = jnp.einsum("bkrs,bksh->bkrh", weight.astype(query.dtype), values)
        return top, weight.sum(-1, keepdims=True), mixed

    cell = (rows.prefix, rows.number)
    of_row = lambda x: x.transpose(0, 2, 1, 3, 4)[cell]  # [N, K, C, R, .] -> [B, K, R, .]
    found = one_by_one() if unrolled else in_reach(shared_part, prefix, rows.reach[0], layer)
    shared_top, shared_sum, shared = map(of_row, found)
    own_top, own_sum, alone = in_reach(own_part, own, rows.reach[1], layer)
    top = jnp.maximum(shared_top, own_top)
    shared_share, own_share = jnp.exp(shared_top - top), jnp.exp(own_top - top)
    total = shared_share * shared_sum + own_share * own_sum
    return ((shared_share * shared + own_share * alone) / total).astype(query.dtype)


def in_reach(
    part: Callable[..., Any], cache: KeyValues, reach: jax.Array, which: jax.Array | None
) -> tuple[jax.Array, ...]:
    """Calls `part` with a quarter, half or all of some keys [.., S] and values [.., S, h].

    So a cache may be as long as the longest response will be, in one program, and costs hardly more
    than what is in it. With `which`, keys and values have an axis more in front, and that of it is
    taken.
    """
    sizes = reaches(cache[0].shape[-1])

    def of_size(size: int) -> Callable[[KeyValues], Any]:
        def call(cache: KeyValues) -> Any:
            if which is None:
                return part(cache[0][..., :size], cache[1][..., :size, :])
            # One slice, of both the first axis and the size, so that nothing larger is ever copied.
            shapes = (
                (*cache[0].shape[1:-1], size),
                (*cache[1].shape[1:-2], size, cache[1].shape[-1]),
            )
            return part(
                *(
                    lax.dynamic_slice(x, (which, *[0] * len(shape)), (1, *shape))[0]
                    for x, shape in zip(cache, shapes)
                )
            )

        return call

    index = (reach > jnp.array(sizes[:-1], jnp.int32)).sum()
    return lax.switch(index, [of_size(size) for size in sizes], cache)


def reaches(size: int) -> list[int]:
    """How much of a cache of so many tokens may be read: some part that is long enough, or all."""
    return [size // n for n in (4, 2) if size // n >= SLICE] + [size]


def project(linear: Any, x: jax.Array) -> jax.Array:
    """x [in, B] through the parameters of a `Linear` -> [out, B]."""
    y = product(linear["weight"], x)
    if "lora_a" in linear:  # see `lora.attach`
        y = y + product(linear["lora_b"], product(linear["lora_a"], x))
    if "bias" in linear:
        y = y + linear["bias"][:, None]
    return y


def product(weight: jax.Array, x: jax.Array) -> jax.Array:
    """A weight [out, in] times x [in, B]."""
    return lax.dot_general(weight, x, (((1,), (0,)), ((), ())))


def normalize(norm: Any, x: jax.Array, epsilon: float) -> jax.Array:
    """Root-mean-square normalization of x [D, B] over its features, as `RMSNorm`."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=0) + epsilon)
    return norm["weight"][:, None] * y.astype(x.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embedding of x [..., h, B] by angles [h/2, B]; feature i and i + h/2 turn together."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-2)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-2).astype(x.dtype)
