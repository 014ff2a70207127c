"""Attention that never writes its scores to memory: TPU's splash kernel, and cuDNN's on CUDA.

Both know one set of keys a row. What rows share therefore stands in front of each row's own keys,
copied: a copy of keys is small beside the scores that are saved. So one softmax runs over all keys
inside the kernel, whose own gradient is exact, and nothing is left to be joined afterwards.

Two things here are private to JAX, and tests/models/test_attention.py tells when they change: the
numbers of splash's queries, and cuDNN's attention without a gradient for its mask.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from jaxevolve.runtime.errors import UserError

PLACE_BITS = 15  # of the 31 that a query's number has: a row holds at most 2 ** 15 tokens
BLOCK, LANES = 512, 128  # most queries or keys of a block; what its size is a multiple of
# The newest version that JAX asks for. It is asked for newer chips and for forms that are not used
# here; taken as given, a program can be compiled where no cuDNN is.
CUDNN_VERSION = 91100


def splash(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    *,
    prefix: int | None = None,
    first: jax.Array | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Attention by JAX's Pallas kernel for TPU; any sizes, which are padded to its blocks.

    Args:
        query: [B, H, L, h].
        key: [B, K, S, h].
        value: [B, K, S, h].
        segments: i32[B, L] of queries and i32[B, S] of keys, none below 0: a query sees the keys
            with its number. May be None where `prefix` is given.
        prefix: where given, the first so many keys are the prefix, and L keys follow that are the
            queries' own: of these a query sees none that stand behind it.
        first: i32[B, L], with `prefix`: nor those in front of this one; None is 0.
        interpret: run as plain JAX, on any platform.

    Returns:
        [B, H, L, h].

    Raises:
        UserError: there are more queries than their numbers can count.
    """
    (_, heads, length, width), size = query.shape, key.shape[2]
    if length > 1 << PLACE_BITS:
        raise UserError(
            f"a row of {length} tokens is too long for model.attention=splash, which takes "
            f"{1 << PLACE_BITS}; use --config.model.attention=plain"
        )
    q_block, k_block = _block(length), _block(size)
    q_pad, k_pad = -length % q_block, -size % k_block
    query = jnp.pad(query * width**-0.5, ((0, 0), (0, 0), (0, q_pad), (0, 0)))
    key, value = (jnp.pad(x, ((0, 0), (0, 0), (0, k_pad), (0, 0))) for x in (key, value))
    shape = (length + q_pad, size + k_pad)
    if segments is not None:
        # No query is left without a key, not even a padded one: its softmax would divide by 0.
        of_queries = jnp.pad(segments[0], ((0, 0), (0, q_pad)), mode="edge")
        of_keys = jnp.pad(segments[1], ((0, 0), (0, k_pad)), constant_values=-1)
        segments = kernel.SegmentIds(of_queries, of_keys)
    mask = masks.FullMask(shape) if prefix is None else _Causal(shape, prefix)
    run = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=kernel.BlockSizes(
            block_q=q_block,
            block_kv=k_block,
            block_q_dkv=q_block,
            block_kv_dkv=k_block,
            block_q_dq=q_block,
            block_kv_dq=k_block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if first is None:
        return jax.vmap(run)(query, key, value, segments)[:, :, :length]

    def numbered(numbers: jax.Array, *row: jax.Array | kernel.SegmentIds) -> jax.Array:
        infos, static = run.tree_flatten()
        infos = (info._replace(q_sequence=numbers) for info in infos)
        return kernel.SplashAttentionKernel(*infos, **static)(*row)

    first = jnp.pad(first, ((0, 0), (0, q_pad)), mode="edge")
    numbers = (first << PLACE_BITS) | jnp.arange(shape[0])
    return jax.vmap(numbered)(numbers, query, key, value, segments)[:, :, :length]


def cudnn(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention by cuDNN, for bfloat16 or float16 and heads of a multiple of 8 up to 128.

    `jax.nn.dot_product_attention(implementation="cudnn")` but for one thing: that asks for the
    gradient of the mask as well, which costs time and which not every GPU has.

    Args:
        query: [B, H, L, h].
        key: [B, K, S, h].
        value: [B, K, S, h].
        mask: bool[B, L, S]; True is attended, and every query needs a key.

    Returns:
        [B, H, L, h].
    """
    # With an odd number of queries or keys it has no gradient.
    length = query.shape[2]
    q_pad, k_pad = length % 2, key.shape[2] % 2
    query = jnp.pad(query, ((0, 0), (0, 0), (0, q_pad), (0, 0)))
    key, value = (jnp.pad(x, ((0, 0), (0, 0), (0, k_pad), (0, 0))) for x in (key, value))
    mask = jnp.pad(mask, ((0, 0), (0, q_pad), (0, 0)), mode="edge")
    mask = jnp.pad(mask, ((0, 0), (0, 0), (0, k_pad)))
    bias = fused.combine_bias_and_mask(None, mask[:, None], query.dtype)
    nothing = jnp.zeros(0, query.dtype)
    mixed = fused._dot_product_attention(
        query,
        key,
        value,
        bias,
        *[nothing] * 6,  # lengths, offsets and page tables
        query.shape[-1] ** -0.5,
        0,  # seed
        0.0,  # dropout
        (True, False),  # there is a bias, and its gradient is not asked for
        fused.MaskType.NO_MASK,
        fused.AttentionLayout.BNTH.value,
        None,  # sliding window
        CUDNN_VERSION,
        False,  # the log-sum-exp is not returned
    )
    return mixed[:, :, :length]


class _Causal(masks.Mask):
    """A prefix that all see, then own keys up to the query's place, from its first one on.

    Splash works out from a mask which blocks it can pass over, with queries numbered by place.
    In the kernel it calls `mask_function` on the numbers of queries and keys, and those of queries
    may then be other ones, which hold both bounds.
    """

    def __init__(self, shape: tuple[int, int], prefix: int) -> None:
        self._shape = shape
        self.q_sequence = np.arange(shape[0], dtype=np.int32)
        self.mask_function = partial(_sees, prefix=prefix)

    @property
    def shape(self) -> tuple[int, int]:
        """(L, S)."""
        return self._shape

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        """A block of the mask, bool."""
        keys = np.arange(self._shape[1], dtype=np.int32)[index[1]]
        return self.mask_function(self.q_sequence[index[0]][:, None], keys[None])


def _sees(number: jax.Array, key: jax.Array, prefix: int) -> jax.Array:
    first, place = number >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1)
    own = key - prefix
    return (own < 0) | ((own >= first) & (own <= place))


def _block(length: int) -> int:
    """The size of as few equal blocks as there can be."""
    count = -(-length // BLOCK)
    return -(-length // (count * LANES)) * LANES
