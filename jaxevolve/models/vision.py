"""The vision tower of Qwen2.5-VL: pixels in window layout to tokens of the decoder's width.

Windowed attention runs inside windows of window_size pixels, exactly, since every window has its
own slots; the blocks that the config names attend over the whole image instead. See `Prompts` for
the layout.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from jaxevolve.models.attention import PLAIN, Kernel, attend_images, attend_windows
from jaxevolve.models.config import VisionConfig
from jaxevolve.models.layers import (
    GatedMLP,
    Linear,
    RMSNorm,
    matmul,
    rotate,
    run_layers,
    split_by_row,
    stacked,
)


class VisionAttention(nn.Module):
    """Attention inside windows, or over a whole image, with 2-D rotary positions."""

    config: VisionConfig
    kernel: Kernel = PLAIN

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

        mixed = lax.cond(
            full,
            partial(attend_images, kernel=self.kernel),
            attend_windows,
            *(query, key, value, segment),
        )
        return Linear(width, use_bias=True, name="proj")(mixed.reshape(x.shape))


class VisionBlock(nn.Module):
    """One layer of the vision tower."""

    config: VisionConfig
    kernel: Kernel = PLAIN

    @nn.compact
    def __call__(
        self, x: jax.Array, angles: jax.Array, segment: jax.Array, full: jax.Array
    ) -> jax.Array:
        """x [P, W, Q, D] -> [P, W, Q, D]."""
        attention = VisionAttention(self.config, self.kernel, name="attn")
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
    kernel: Kernel = PLAIN

    @nn.compact
    def __call__(
        self, pixels: jax.Array, patch_hw: jax.Array, segment: jax.Array, remat: str = "none"
    ) -> jax.Array:
        """Encodes images in window layout (see `Prompts`).

        Args:
            pixels: u8[P, W, Q, C], or floats in [0, 1].
            patch_hw: i32[P, W, Q, 2].
            segment: i32[P, W, Q].
            remat: what the backward pass recomputes, see `run_layers`.

        Returns:
            f[P, W*Q/(m*m), D] merged tokens in window layout.
        """
        c = self.config
        x = PatchEmbed(c, name="patch_embed")(normalize(pixels, c.image_mean, c.image_std))
        x = split_by_row(x, self.kernel.mesh)
        quarter = c.hidden_size // c.num_heads // 4
        frequencies = 10000.0 ** -(jnp.arange(quarter, dtype=jnp.float32) / quarter)
        angles = (patch_hw[..., None] * frequencies).reshape(*patch_hw.shape[:-1], 2 * quarter)
        full = jnp.isin(jnp.arange(c.depth), jnp.array(c.fullatt_block_indexes, jnp.int32))
        block = VisionBlock(c, self.kernel, parent=None)
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
