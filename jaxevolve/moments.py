"""Adam's moments in fewer bytes: bfloat16, or 8 bits, rounded at random and so without bias.

With b2 = 0.999 the second moment moves by a thousandth of itself an update, and half a step of
bfloat16 is up to 1/256 of the number: rounded to the nearest it would never move. Rounded up as
often as its place between two neighbors says, it moves right on average. (Adam: Kingma and Ba,
arXiv 1412.6980, Algorithm 1. Blocks with scales of their own: Dettmers et al., arXiv 2110.02861.)
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

BLOCK = 256  # numbers that share a scale
SHARDS = 8  # ways that an axis may be cut in without cutting a block
STEPS = 8  # 8-bit codes an octave: neighbors are 9 % apart


class Moments(NamedTuple):
    """The state: updates so far, and both moments as they are stored."""

    count: jax.Array
    mu: Any
    nu: Any


def scale_by_adam(
    b1: float, b2: float, kind: str, key: jax.Array, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam's direction, as `optax.scale_by_adam` gives it, from moments that are stored rounded.

    Args:
        b1: decay of the first moment.
        b2: decay of the second moment.
        kind: "bfloat16", 2 bytes a number, or "int8", 1 byte and a 4-byte scale a block.
        key: of the rounding, which is a function of it, of the update's number and of the leaf.
        eps: what is added to the root of the second moment.

    Returns:
        The transformation. Its state has arrays shaped like the parameters, at paths that end like
        theirs; with int8, at "codes", and the scales [.., blocks] beside them, at "scales".
    """
    store, read = {"bfloat16": (_to_bfloat16, _from_bfloat16), "int8": (_to_codes, _from_codes)}[
        kind
    ]

    def init(params: Any) -> Moments:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.uint16), params)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
        stored = (store(empty, zeros, signed=signed) for signed in (True, False))
        return Moments(jnp.zeros((), jnp.int32), *stored)

    def update(grads: Any, state: Moments, params: Any = None) -> tuple[Any, Moments]:
        del params
        count = state.count + 1
        mu, nu = read(state.mu, grads, signed=True), read(state.nu, grads, signed=False)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, grads)
        nu = jax.tree.map(lambda n, g: b2 * n + (1 - b2) * jnp.square(g), nu, grads)
        first, second = 1 - b1**count, 1 - b2**count
        direction = jax.tree.map(lambda m, n: (m / first) / (jnp.sqrt(n / second) + eps), mu, nu)
        leaves, tree = jax.tree.flatten(grads)
        keys = jax.random.split(jax.random.fold_in(key, count), len(leaves))
        bits = tree.unflatten(
            [jax.random.bits(k, g.shape, jnp.uint32) for k, g in zip(keys, leaves)]
        )
        # One word of random bits serves both moments.
        high, low = (
            jax.tree.map(lambda x, s=s: (x >> s).astype(jnp.uint16), bits) for s in (16, 0)
        )
        return direction, Moments(count, store(mu, high, signed=True), store(nu, low, signed=False))

    return optax.GradientTransformation(init, update)


def block_size(width: int) -> int:
    """Numbers of a last axis that share a scale; a shard holds whole blocks where it can be."""
    fits = (size for size in (BLOCK, 128, 64, 32) if width % (SHARDS * size) == 0)
    return next(fits, min(width, BLOCK))


def round_bfloat16(x: jax.Array, bits: jax.Array) -> jax.Array:
    """f32 -> bfloat16, one of its two neighbors, by 16 random bits."""
    whole = jax.lax.bitcast_convert_type(x, jnp.uint32) + bits.astype(jnp.uint32)
    kept = jax.lax.bitcast_convert_type(whole & jnp.uint32(0xFFFF0000), jnp.float32)
    return kept.astype(jnp.bfloat16)


def encode(x: jax.Array, bits: jax.Array, *, signed: bool) -> tuple[jax.Array, jax.Array]:
    """f32 -> 8-bit codes on a logarithmic scale below the largest of each block, by random bits.

    Steps are equal in the logarithm, so that a number that is small in its block is as exact as a
    large one: a first moment that is rounded up far beyond its second would be a leap.

    Args:
        x: f32[..., N]; at least 0 where not signed.
        bits: u16[..., N].
        signed: int8 with 127 levels and zero, over 16 octaves; else uint8 with 255, over 32, of
            which the lowest stands for all below it.

    Returns:
        Codes [..., N], and scales f32[..., ceil(N / block)].
    """
    blocks = _blocks(jnp.abs(x))
    scales = blocks.max(-1)
    share = _flat(blocks / jnp.where(scales > 0, scales, 1)[..., None], x.shape[-1])
    levels = 127 if signed else 255
    place = jnp.floor(levels + STEPS * jnp.log2(jnp.maximum(share, 1e-30)))
    place = jnp.clip(place, 0, levels - 1)
    below = jnp.where(place > 0, _level(place, levels), 0)
    chance = (share - below) / (_level(place + 1, levels) - below)
    codes = place + (bits.astype(jnp.float32) < chance * 65536)
    if signed:
        return (jnp.sign(x) * codes).astype(jnp.int8), scales
    return jnp.maximum(codes, 1).astype(jnp.uint8), scales


def decode(codes: jax.Array, scales: jax.Array, *, signed: bool) -> jax.Array:
    """What `encode` has rounded to, f32[..., N]."""
    steps = jnp.abs(codes.astype(jnp.float32))
    share = jnp.where(steps > 0, _level(steps, 127 if signed else 255), 0)
    whole = _flat(_blocks(share) * scales[..., None], codes.shape[-1])
    return whole * jnp.sign(codes.astype(jnp.float32))


def _level(step: jax.Array, levels: int) -> jax.Array:
    return jnp.exp2((step - levels) / STEPS)


def _blocks(x: jax.Array) -> jax.Array:
    """[..., N] -> [..., blocks, block], filled up with zeros."""
    width, size = x.shape[-1], block_size(x.shape[-1])
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % size)])
    return x.reshape(*x.shape[:-1], -1, size)


def _flat(blocks: jax.Array, width: int) -> jax.Array:
    return blocks.reshape(*blocks.shape[:-2], -1)[..., :width]


def _to_bfloat16(tree: Any, bits: Any, *, signed: bool) -> Any:
    del signed
    return jax.tree.map(round_bfloat16, tree, bits)


def _from_bfloat16(stored: Any, like: Any, *, signed: bool) -> Any:
    del like, signed
    return jax.tree.map(lambda x: x.astype(jnp.float32), stored)


def _to_codes(tree: Any, bits: Any, *, signed: bool) -> Any:
    pairs = jax.tree.map(partial(encode, signed=signed), tree, bits)
    pick = lambda i: jax.tree.map(lambda _, pair: pair[i], tree, pairs)
    return {"codes": pick(0), "scales": pick(1)}


def _from_codes(stored: Any, like: Any, *, signed: bool) -> Any:
    return jax.tree.map(
        lambda _, codes, scales: decode(codes, scales, signed=signed),
        like,
        stored["codes"],
        stored["scales"],
    )
