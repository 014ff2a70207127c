"""Log-probabilities and entropies of tokens without the logits of a whole batch.

For V = 151,936 the float32 logits of 8 x 1,536 tokens take 7 GiB, and their gradient as much
again. Here the vocabulary is walked in chunks, forward with a running log-sum-exp, backward with
the chunk's logits made anew, so memory is that of one chunk. Where all logits are small they are
one chunk, and kept: that saves one of four matrix products.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

CHUNK = 8192  # rows of the head that are multiplied at once
KEPT = 1 << 26  # bytes of float32 logits that are small


def token_logprobs(
    hidden: jax.Array, head: jax.Array, tokens: jax.Array, temperature: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each token and entropy of its distribution, differentiable.

    Args:
        hidden: f[..., D], the states that predict `tokens`.
        head: f[V, D].
        tokens: i32[...].
        temperature: what the logits are divided by, as in sampling.

    Returns:
        log-probabilities f32[...] and entropies f32[...], in nats, of the softmax over all of V.
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    logprobs, entropy = _flat(flat, head, tokens.reshape(-1), temperature)
    return logprobs.reshape(tokens.shape), entropy.reshape(tokens.shape)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _flat(
    hidden: jax.Array, head: jax.Array, tokens: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array]:
    return _values(hidden, head, tokens, temperature)[0]


def _small(hidden: jax.Array, head: jax.Array) -> bool:
    return 4 * len(hidden) * len(head) <= KEPT


def _chunks(vocabulary: int) -> tuple[jax.Array, int]:
    """Starts of the chunks and their size; the last one starts early rather than overrun."""
    size = min(CHUNK, vocabulary)
    count = -(-vocabulary // size)
    return jnp.arange(count) * size, size


def _logits(
    hidden: jax.Array, head: jax.Array, start: jax.Array, size: int, temperature: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Logits [N, size] of a chunk, its vocabulary ids, its rows of the head and their start.

    Ids that an earlier chunk has seen already get -inf.
    """
    first = jnp.minimum(start, head.shape[0] - size)
    rows = lax.dynamic_slice_in_dim(head, first, size)
    logits = lax.dot_general(
        hidden, rows, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    ids = first + jnp.arange(size)
    return jnp.where(ids >= start, logits / temperature, -jnp.inf), ids, rows, first


def _values(
    hidden: jax.Array, head: jax.Array, tokens: jax.Array, temperature: float
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
    """The two results; and normalizer, mean logit and, where they are small, the logits."""
    if _small(hidden, head):
        logits = _logits(hidden, head, jnp.zeros((), int), len(head), temperature)[0]
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        mean = (jnp.exp(logits - normalizer[:, None]) * logits).sum(-1)
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=1)[:, 0]
        return (chosen - normalizer, normalizer - mean), (normalizer, mean, logits)
    starts, size = _chunks(len(head))

    def step(carry: tuple[jax.Array, ...], start: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        top, total, weighted, chosen = carry
        logits, ids, _, _ = _logits(hidden, head, start, size, temperature)
        new_top = jnp.maximum(top, logits.max(-1))
        weights = jnp.exp(logits - new_top[:, None])
        scale = jnp.exp(top - new_top)
        finite = jnp.where(weights > 0, logits, 0.0)
        total = total * scale + weights.sum(-1)
        weighted = weighted * scale + (weights * finite).sum(-1)
        here = (ids == tokens[:, None]) & (ids >= start)
        chosen = chosen + jnp.where(here, logits, 0.0).sum(-1)
        return (new_top, total, weighted, chosen), None

    zeros = jnp.zeros(hidden.shape[0], jnp.float32)
    (top, total, weighted, chosen), _ = lax.scan(
        step, (zeros - jnp.inf, zeros, zeros, zeros), starts
    )
    normalizer = top + jnp.log(total)
    mean = weighted / total  # the mean logit: entropy is normalizer - mean
    return (chosen - normalizer, normalizer - mean), (normalizer, mean, None)


def _forward(
    hidden: Any, head: Any, tokens: Any, temperature: float
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
    inputs = (hidden.value, head.value, tokens.value)
    result, saved = _values(*inputs, temperature)
    return result, inputs + saved


def _backward(
    temperature: float, saved: tuple[Any, ...], cotangents: tuple[Any, Any]
) -> tuple[jax.Array, jax.Array, None]:
    hidden, head, tokens, normalizer, mean, kept = saved
    of_logprob, of_entropy = cotangents

    def through_logits(logits: jax.Array, ids: jax.Array, start: jax.Array) -> jax.Array:
        p = jnp.exp(logits - normalizer[:, None])
        here = (ids == tokens[:, None]) & (ids >= start)
        gradient = jnp.zeros((), jnp.float32)
        # What the loss does not read costs nothing.
        if not isinstance(of_logprob, SymbolicZero):
            gradient += of_logprob[:, None] * (here - p)
        if not isinstance(of_entropy, SymbolicZero):
            finite = jnp.where(p > 0, logits, 0.0)
            gradient -= of_entropy[:, None] * p * (finite - mean[:, None])
        return (jnp.broadcast_to(gradient, p.shape) / temperature).astype(hidden.dtype)

    def products(d_logits: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tuple(
            lax.dot_general(d_logits, x, ((axes, (0,)), ((), ())), preferred_element_type="float32")
            for axes, x in (((1,), rows), ((0,), hidden))
        )

    if kept is not None:
        d_logits = through_logits(kept, jnp.arange(len(head)), jnp.zeros((), int))
        d_hidden, d_head = products(d_logits, head)
        return d_hidden.astype(hidden.dtype), d_head.astype(head.dtype), None
    starts, size = _chunks(len(head))

    def step(
        carry: tuple[jax.Array, jax.Array], start: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        d_hidden, d_head = carry
        logits, ids, rows, first = _logits(hidden, head, start, size, temperature)
        more, d_rows = products(through_logits(logits, ids, start), rows)
        old = lax.dynamic_slice_in_dim(d_head, first, size)
        d_head = lax.dynamic_update_slice_in_dim(d_head, old + d_rows.astype(head.dtype), first, 0)
        return (d_hidden + more, d_head), None

    zeros = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(head))
    (d_hidden, d_head), _ = lax.scan(step, zeros, starts)
    return d_hidden.astype(hidden.dtype), d_head, None


_flat.defvjp(_forward, _backward, symbolic_zeros=True)
