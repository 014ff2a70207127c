"""How is the next token drawn?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

# Phases of a step that draw random numbers of their own.
MATERNAL, RETRACE, ANCHOR, NOISE = range(4)
BLOCK = 512  # vocabulary entries whose probabilities are first summed


@dataclass(frozen=True)
class Sampling:
    """Rules of sampling, fixed for a compiled program.

    Attributes:
        top_p: the smallest set of tokens with this share of probability is kept; 1 keeps all.
        top_k: that many tokens are kept; 0 keeps all.
        stop_ids: a response ends with any of these.
        banned_ids: never sampled: image placeholders, padding, rows without a token.
    """

    top_p: float = 1.0
    top_k: int = 0
    stop_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()


def response_keys(
    key: jax.Array, phases: jax.Array, ids: jax.Array, members: jax.Array
) -> jax.Array:
    """One key a response, from what it is and not from where it stands in a batch.

    Args:
        key: the key of the run's seed and step.
        phases: i32[B], what the numbers are for.
        ids: u32[B], sample ids of the prompts.
        members: i32[B], numbers of the responses in their groups.

    Returns:
        keys [B].
    """
    fold = jax.vmap(jax.random.fold_in)
    return fold(fold(jax.vmap(jax.random.fold_in, (None, 0))(key, phases), ids), members)


def sample(
    logits: jax.Array,
    keys: jax.Array,
    positions: jax.Array,
    temperature: jax.Array,
    rules: Sampling,
) -> tuple[jax.Array, jax.Array]:
    """Draws one token a response.

    Args:
        logits: f32[B, V].
        keys: [B], see `response_keys`.
        positions: i32[B], each token's place in its response.
        temperature: f32[], what logits are divided by; 0 takes the most likely token.
        rules: what may be drawn.

    Returns:
        tokens i32[B], and their log-probabilities f32[B] under the softmax of logits / temperature
        over all of V: what the trainer computes again. With top_p, top_k or a banned token of
        notable probability, that is not the chance that they were drawn with.
    """
    greedy = temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)
    normalizer = jax.nn.logsumexp(scaled, axis=-1)
    allowed = scaled
    if rules.banned_ids:
        allowed = scaled.at[..., jnp.array(rules.banned_ids)].set(-jnp.inf)
    likely = keep_likely(allowed, rules.top_p, rules.top_k)
    drawn = inverse_cdf(likely, jax.vmap(uniform)(keys, positions))
    tokens = jnp.where(greedy, jnp.argmax(allowed, axis=-1), drawn)
    chosen = jnp.take_along_axis(scaled, tokens[..., None], axis=-1)[..., 0]
    return tokens.astype(jnp.int32), chosen - normalizer


def uniform(key: jax.Array, position: jax.Array) -> jax.Array:
    """The uniform number f32[] that a response's token at `position` is drawn with."""
    return jax.random.uniform(jax.random.fold_in(key, position))


def keep_likely(logits: jax.Array, top_p: float, top_k: int) -> jax.Array:
    """Logits [..., V] with -inf where top-k, and then top-p, drop the token."""
    if 0 < top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p < 1:
        ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
        p = jax.nn.softmax(ordered, axis=-1)
        kept = jnp.cumsum(p, axis=-1) - p < top_p
        least = jnp.min(jnp.where(kept, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


def inverse_cdf(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """Samples from softmax(logits) with one uniform number a row.

    The cumulative sum runs over sums of blocks first and then inside one block: a running sum
    over a vocabulary of 151,936 costs ten times as much, and Gumbel noise thirty times.

    Args:
        logits: f32[..., V].
        uniform: f32[...] in [0, 1).

    Returns:
        i32[...] token ids.
    """
    vocabulary = logits.shape[-1]
    blocks = -(-vocabulary // BLOCK)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    padding = [(0, 0)] * (weights.ndim - 1) + [(0, blocks * BLOCK - vocabulary)]
    weights = jnp.pad(weights, padding).reshape(*weights.shape[:-1], blocks, BLOCK)
    sums = weights.sum(-1)
    block, rest = _first_above(sums, uniform * sums.sum(-1))
    inside = jnp.take_along_axis(weights, block[..., None, None], axis=-2)[..., 0, :]
    place, _ = _first_above(inside, rest)
    return block * BLOCK + place


def _first_above(weights: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first entry whose running sum exceeds the target, and what of the target is left there.

    An entry of weight 0 is never taken: where rounding leaves no entry, the last positive one is.
    """
    running = jnp.cumsum(weights, axis=-1)
    above = (running > target[..., None]) & (weights > 0)
    last = weights.shape[-1] - 1 - jnp.argmax(jnp.flip(weights > 0, -1), axis=-1)
    index = jnp.where(above.any(-1), jnp.argmax(above, axis=-1), last)
    before = jnp.take_along_axis(running - weights, index[..., None], axis=-1)[..., 0]
    return index, jnp.maximum(target - before, 0.0)
