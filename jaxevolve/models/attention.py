"""Attention of whole streams: one definition, and the kernels that compute it without its scores.

The plain form is what the others are tested against, and what runs wherever they do not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxevolve.models.layers import NEGATIVE
from jaxevolve.runtime.errors import UserError

KeyValues = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Kernel:
    """What computes attention; a static field of the model.

    Attributes:
        name: "plain", "splash" or "cudnn".
        mesh: with the axes ("data", "fsdp", "tensor"), which XLA could not split a kernel over by
            itself: it is split by hand, prompts over data and fsdp, heads over tensor. None: one
            device.
        interpret: run splash as plain JAX, for tests.
    """

    name: str = "plain"
    mesh: Mesh | None = None
    interpret: bool = False


PLAIN = Kernel()


def choose(setting: str, mesh: Mesh, dtype: str) -> Kernel:
    """The kernel for a mesh's devices, which need not be there (see `plan`).

    Args:
        setting: "plain", "splash", "cudnn", or "auto": splash on TPU, cuDNN on CUDA in bfloat16,
            else plain.
        mesh: what the model runs on.
        dtype: what it computes in.

    Raises:
        UserError: the kernel does not exist there.
    """
    platform = mesh.devices.flat[0].platform
    half = dtype == "bfloat16"
    if setting == "auto":
        setting = {"tpu": "splash", "gpu": "cudnn" if half else "plain"}.get(platform, "plain")
    if setting == "splash" and platform != "tpu":
        raise UserError(
            f"model.attention=splash does not run on {platform}, only on TPU; use auto or plain"
        )
    if setting == "cudnn" and not (platform == "gpu" and half):
        raise UserError(
            f"model.attention=cudnn does not run on {platform} in {dtype}, only on CUDA in "
            "bfloat16; use auto or plain"
        )
    return Kernel(setting, mesh)


def attend(
    query: jax.Array,
    own: KeyValues,
    segments: jax.Array | None = None,
    prefix: KeyValues | None = None,
    prefix_mask: jax.Array | None = None,
    kernel: Kernel = PLAIN,
) -> jax.Array:
    """Causal attention of G rows over their own keys and over the prefix that they share.

    Args:
        query: [P, K, G, R, L, h], R query heads for each of K key-value heads.
        own: keys and values [P, K, G, L, h].
        segments: i32[P, G, L], the sequence within its row that a token belongs to, which alone it
            attends to; tokens of one stand together. None: a row is one sequence.
        prefix: keys and values [P, K, T, h], which all rows see.
        prefix_mask: bool[P, T], the tokens that are there.
        kernel: what computes it.

    Returns:
        [P, K, G, R, L, h].
    """
    if kernel.name == "plain":
        return _plain(query, own, segments, prefix, prefix_mask)
    form = partial(_fused, kernel=kernel)
    return _by_hand(form, kernel.mesh, query, own, segments, prefix, prefix_mask)


def attend_windows(
    query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array
) -> jax.Array:
    """Attention inside windows, whose scores are few: there is no kernel for it.

    Args:
        query: [P, W, Q, H, h], and so are key and value.
        key: see query.
        value: see query.
        segments: i32[P, W, Q], which image a patch belongs to; it sees that one's alone.

    Returns:
        [P, W, Q, H, h].
    """
    flat = [x.reshape(-1, *x.shape[2:]) for x in (query, key, value, segments)]
    return _plain_segments(*flat, flat[3]).reshape(query.shape)


def attend_images(
    query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array, kernel: Kernel = PLAIN
) -> jax.Array:
    """Attention of every patch to all patches of its image, in whichever window they are.

    Args:
        query: [P, W, Q, H, h], and so are key and value.
        key: see query.
        value: see query.
        segments: i32[P, W, Q], which image a patch belongs to; padding is one more image.
        kernel: what computes it.

    Returns:
        [P, W, Q, H, h].
    """
    if kernel.name == "plain":
        keys = [x.reshape(len(x), -1, *x.shape[3:]) for x in (key, value, segments)]
        # One window of queries at a time, recomputed in the backward pass: the scores of a large
        # image never exist at once.
        window = jax.checkpoint(lambda x: _plain_segments(x[0], keys[0], keys[1], x[1], keys[2]))
        mixed = lax.map(window, (jnp.moveaxis(query, 1, 0), jnp.moveaxis(segments, 1, 0)))
        return jnp.moveaxis(mixed, 0, 1)

    from jaxevolve.models import kernels  # not before one is used: most machines have none

    def form(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array) -> jax.Array:
        if kernel.name == "splash":
            both = (segments, segments)
            return kernels.splash(query, key, value, both, interpret=kernel.interpret)
        return kernels.cudnn(query, key, value, segments[:, :, None] == segments[:, None])

    flat = [x.reshape(len(x), -1, *x.shape[3:]) for x in (query, key, value, segments)]
    mixed = _by_hand(form, kernel.mesh, *(x.swapaxes(1, 2) for x in flat[:3]), flat[3])
    return mixed.swapaxes(1, 2).reshape(query.shape)


def segment_starts(segments: jax.Array) -> jax.Array:
    """bool[..., L]: the first token of every segment of i32[..., L]."""
    new = segments[..., 1:] != segments[..., :-1]
    return jnp.concatenate([jnp.ones_like(new, shape=(*new.shape[:-1], 1)), new], axis=-1)


def segment_firsts(segments: jax.Array) -> jax.Array:
    """i32[..., L]: the place where the segment of each token of i32[..., L] begins."""
    places = jnp.arange(segments.shape[-1])
    return lax.cummax(jnp.where(segment_starts(segments), places, 0), axis=segments.ndim - 1)


def _own_mask(segments: jax.Array | None, length: int) -> jax.Array:
    """bool[L, L] or bool[P, G, L, L]: which own keys a query sees."""
    causal = jnp.tril(jnp.ones((length, length), bool))
    if segments is None:
        return causal
    return causal & (segments[..., :, None] == segments[..., None, :])


def _plain(
    query: jax.Array,
    own: KeyValues,
    segments: jax.Array | None,
    prefix: KeyValues | None,
    prefix_mask: jax.Array | None,
) -> jax.Array:
    """One softmax over both sets of scores, joined by a common maximum and a common sum.

    They are never concatenated, and the G rows fold into the query axis of the shared part. The
    maximum cancels in value and gradient, so plain differentiation is exact.
    """
    scale = query.shape[-1] ** -0.5
    mask = _own_mask(segments, query.shape[-2])
    if segments is not None:
        mask = mask[:, None, :, None]
    parts = [("pkgrlh,pkgsh->pkgrls", "pkgrls,pkgsh->pkgrlh", own, mask)]
    if prefix is not None:
        there = prefix_mask[:, None, None, None, None, :]
        parts.append(("pkgrlh,pksh->pkgrls", "pkgrls,pksh->pkgrlh", prefix, there))
    scores = []
    for to_scores, _, (key, _), mask in parts:
        score = jnp.einsum(to_scores, query, key, preferred_element_type=jnp.float32) * scale
        scores.append(jnp.where(mask, score, NEGATIVE))
    top = jnp.stack([s.max(-1) for s in scores]).max(0)[..., None]
    top = lax.stop_gradient(top)
    weights = [jnp.exp(s - top) for s in scores]
    total = sum(w.sum(-1, keepdims=True) for w in weights)
    mixed = sum(
        jnp.einsum(to_values, w.astype(value.dtype), value, preferred_element_type=jnp.float32)
        for w, (_, to_values, (_, value), _) in zip(weights, parts)
    )
    return (mixed / total).astype(query.dtype)


def _plain_segments(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    query_segments: jax.Array,
    key_segments: jax.Array,
) -> jax.Array:
    """Queries [B, L, H, h] over those keys [B, S, H, h] that have their segment number."""
    score = jnp.einsum("blhd,bshd->bhls", query, key, preferred_element_type=jnp.float32)
    same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    score = jnp.where(same, score * query.shape[-1] ** -0.5, NEGATIVE)
    weight = jax.nn.softmax(score, axis=-1).astype(value.dtype)
    return jnp.einsum("bhls,bshd->blhd", weight, value)


def _fused(
    query: jax.Array,
    own: KeyValues,
    segments: jax.Array | None,
    prefix: KeyValues | None,
    prefix_mask: jax.Array | None,
    kernel: Kernel,
) -> jax.Array:
    """The same by a kernel, which knows one set of keys a row: prefix and own in one."""
    from jaxevolve.models import kernels

    prompts, heads, rows, group, length, width = query.shape
    count, size = prompts * rows, 0
    own = tuple(x.swapaxes(1, 2) for x in own)
    if prefix is not None:
        size = prefix_mask.shape[1]
        front = (prompts, rows, heads, size, width)
        own = tuple(
            jnp.concatenate([jnp.broadcast_to(x[:, None], front), y], axis=3)
            for x, y in zip(prefix, own)
        )
    key, value = (x.reshape(count, heads, size + length, width) for x in own)
    query = query.swapaxes(1, 2).reshape(count, heads * group, length, width)
    if kernel.name == "splash":
        numbers = None
        if prefix is not None:
            # What the mask of the prompts hides has another segment number than all else.
            there = jnp.broadcast_to(prefix_mask[:, None], (prompts, rows, size))
            there = there.reshape(count, size).astype(jnp.int32)
            ones = jnp.ones((count, length), jnp.int32)
            numbers = ones, jnp.concatenate([there, ones], axis=1)
        first = None if segments is None else segment_firsts(segments).reshape(count, length)
        mixed = kernels.splash(
            query, key, value, numbers, prefix=size, first=first, interpret=kernel.interpret
        )
    else:
        mask = jnp.broadcast_to(_own_mask(segments, length), (prompts, rows, length, length))
        if prefix is not None:
            there = jnp.broadcast_to(prefix_mask[:, None, None], (prompts, rows, length, size))
            mask = jnp.concatenate([there, mask], axis=3)
        mixed = kernels.cudnn(query, key, value, mask.reshape(count, length, size + length))
    return mixed.reshape(prompts, rows, heads, group, length, width).swapaxes(1, 2)


def _by_hand(form: Callable[..., jax.Array], mesh: Mesh | None, *arrays: Any) -> jax.Array:
    """Runs a form of attention on every device's own prompts [P, ...] and heads [., K, ...].

    What a mesh axis does not divide stays whole on it. Arrays of at most three axes have no heads.
    """
    if mesh is None:
        return form(*arrays)
    prompts, heads = arrays[0].shape[:2]
    batch = ("data", "fsdp") if prompts % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0 else None
    tensor = "tensor" if heads % mesh.shape["tensor"] == 0 else None
    spec = lambda x: PartitionSpec(batch, tensor) if x.ndim > 3 else PartitionSpec(batch)
    return jax.shard_map(
        form,
        mesh=mesh,
        in_specs=jax.tree.map(spec, arrays),
        out_specs=spec(arrays[0]),
        check_vma=False,  # the kernels do not say how their results vary
    )(*arrays)
