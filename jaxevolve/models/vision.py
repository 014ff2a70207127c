"""The vision tower of Qwen2.5-VL: pixels in window layout to tokens of the decoder's width.

Windowed attention runs inside windows of window_size pixels, exactly, since every window has its
own slots; the blocks that the config names attend over the whole image instead. See `Prompts` for
the layout.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from jaxevolve.models.config import VisionConfig
from jaxevolve.models.layers import (
    NEGATIVE,
    GatedMLP,
    Linear,
    RMSNorm,
    matmul,
    rotate,
    run_layers,
    stacked,
)


class VisionAttention(nn.Module):
    """Attention inside windows, or over a whole image, with 2-D rotary positions."""

    config: VisionConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, angles: jax.Array, segment: jax.Array, full: jax.Array
    ) -> jax.Array:
        """x [P, W, Q, D], angles f32[P, W, Q, h/2], segment i32[P, W, Q], full bool[]."""
        rows, windows, patches, width = x.shape
        heads = self.config.num_heads
        qkv = Linear(3 * width, use_bias=True, name="qkv")(x)
        qkv = qkv.reshape(rows, windows, patches, 3, heads, width // heads)
        query, key, value = jnp.moveaxis(qkv, 3, 0)
        query, key = rotate(query, angles[..., None, :]), rotate(key, angles[..., None, :])

        def attention(query: jax.Array, query_segment: jax.Array, key_segment: jax.Array, kv: Any):
            """One block of queries [B, L, H, h] over keys [B, S, H, h] of its row."""
            score = jnp.einsum("blhd,bshd->bhls", query, kv[0], preferred_element_type=jnp.float32)
            same = query_segment[:, None, :, None] == key_segment[:, None, None, :]
            score = jnp.where(same, score * (width // heads) ** -0.5, NEGATIVE)
            weight = jax.nn.softmax(score, axis=-1).astype(kv[1].dtype)
            return jnp.einsum("bhls,bshd->blhd", weight, kv[1])

        def windowed() -> jax.Array:
            flat = [a.reshape(rows * windows, *a.shape[2:]) for a in (query, segment, key, value)]
            return attention(flat[0], flat[1], flat[1], flat[2:]).reshape(query.shape)

        def whole() -> jax.Array:
            keys = [a.reshape(rows, -1, *a.shape[3:]) for a in (segment, key, value)]
            # One window of queries at a time, recomputed in the backward pass: the scores of a
            # large image never exist at once.
            block = jax.checkpoint(lambda q: attention(q[0], q[1], keys[0], keys[1:]))
            out = lax.map(block, (jnp.moveaxis(query, 1, 0), jnp.moveaxis(segment, 1, 0)))
            return jnp.moveaxis(out, 0, 1)

        mixed = lax.cond(full, whole, windowed)
        return Linear(width, use_bias=True, name="proj")(mixed.reshape(x.shape))


class VisionBlock(nn.Module):
    """One layer of the vision tower."""

    config: VisionConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, angles: jax.Array, segment: jax.Array, full: jax.Array
    ) -> jax.Array:
        """x [P, W, Q, D] -> [P, W, Q, D]."""
        attention = VisionAttention(self.config, name="attn")
        x = x + attention(RMSNorm(1e-6, name="norm1")(x), angles, segment, full)
        mlp = GatedMLP(self.config.intermediate_size, use_bias=True, name="mlp")
        return x + mlp(RMSNorm(1e-6, name="norm2")(x))


class PatchKernel(nn.Module):
    """The convolution over (time, height, width) patches, as one matrix product."""

    config: VisionConfig

    @nn.compact
    def __call__(self, patches: jax.Array) -> jax.Array:
        """Patches [P, W, Q, C] -> [P, W, Q, D]; a still image repeats its frame over time."""
        c = self.config
        shape = (c.hidden_size, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
        weight = self.param("weight", nn.initializers.normal(0.02), shape)
        weight = weight.sum(axis=2).reshape(c.hidden_size, -1)
        return matmul(patches.astype(weight.dtype), weight)


class PatchEmbed(nn.Module):
    """Patches to vectors; the kernel lies one level deeper, as on disk."""

    config: VisionConfig

    @nn.compact
    def __call__(self, patches: jax.Array) -> jax.Array:
        """Normalized patches [P, W, Q, C] of one frame -> [P, W, Q, D]."""
        return PatchKernel(self.config, name="proj")(patches)


class MergerMLP(nn.Module):
    """The two-layer projection of merged patches; its layers are named 0 and 2 on disk."""

    out: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., m*m*Dv] -> [..., D]."""
        x = nn.gelu(Linear(x.shape[-1], use_bias=True, name="0")(x), approximate=False)
        return Linear(self.out, use_bias=True, name="2")(x)


class Merger(nn.Module):
    """Joins the m * m patches of a unit into one token of the decoder's width."""

    config: VisionConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [P, W, Q, Dv] -> [P, W*Q/(m*m), D], still in window layout."""
        x = RMSNorm(1e-6, name="ln_q")(x)
        merged = x.reshape(x.shape[0], -1, self.config.spatial_merge_size**2 * x.shape[-1])
        return MergerMLP(self.config.out_hidden_size, name="mlp")(merged)


class VisionTower(nn.Module):
    """Pixels to image tokens."""

    config: VisionConfig

    @nn.compact
    def __call__(
        self, pixels: jax.Array, patch_hw: jax.Array, segment: jax.Array, remat: bool = False
    ) -> jax.Array:
        """Encodes images in window layout (see `Prompts`).

        Args:
            pixels: u8[P, W, Q, C], or floats in [0, 1].
            patch_hw: i32[P, W, Q, 2].
            segment: i32[P, W, Q].
            remat: recompute activations in the backward pass.

        Returns:
            f[P, W*Q/(m*m), D] merged tokens in window layout.
        """
        c = self.config
        x = PatchEmbed(c, name="patch_embed")(normalize(pixels, c.image_mean, c.image_std))
        quarter = c.hidden_size // c.num_heads // 4
        frequencies = 10000.0 ** -(jnp.arange(quarter, dtype=jnp.float32) / quarter)
        angles = (patch_hw[..., None] * frequencies).reshape(*patch_hw.shape[:-1], 2 * quarter)
        full = jnp.isin(jnp.arange(c.depth), jnp.array(c.fullatt_block_indexes, jnp.int32))
        block = VisionBlock(c, parent=None)
        layers = stacked(self, "blocks", block, c.depth, x, angles, segment, full[0])

        def layer(params: Any, x: jax.Array, full: jax.Array) -> tuple[jax.Array, None]:
            return block.apply({"params": params}, x, angles, segment, full), None

        x, _ = run_layers(layer, layers, x, full, remat)
        return Merger(c, name="merger")(x)


def normalize(pixels: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]) -> jax.Array:
    """Pixels u8, or floats in [0, 1], [..., 3 * patch * patch] -> f32 of mean 0 and deviation 1.

    Bytes are compared with the mean as bytes: 255 / 255 - 1 is not always 0 once XLA has turned
    the division into a product, and a norm after a blank patch makes much of what is left.
    """
    repeat = pixels.shape[-1] // len(mean)
    mean, std = (jnp.repeat(jnp.array(x, jnp.float32), repeat) for x in (mean, std))
    if jnp.issubdtype(pixels.dtype, jnp.integer):
        mean, std = 255 * mean, 255 * std
    return (pixels - mean) / std
