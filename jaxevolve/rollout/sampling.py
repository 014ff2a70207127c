"""How is the next token drawn?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

# Phases of a step that draw random numbers of their own.
MATERNAL, RETRACE, ANCHOR, NOISE, JUDGE = range(5)
BLOCK = 128  # vocabulary entries whose probabilities are first summed


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


@jax.jit
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

    Two passes over the logits are all that it takes: the largest of every block of the vocabulary,
    and the sum of every block's weights. What is left is done on the blocks and inside one of them;
    a running sum over a vocabulary of 151,936 costs ten times as much, and Gumbel noise thirty.

    Args:
        logits: f32[V, B].
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
    logits = logits * (1.0 / jnp.where(greedy, 1.0, temperature))
    allowed = logits
    if rules.banned_ids:
        banned = np.isin(np.arange(len(logits)), rules.banned_ids)
        allowed = jnp.where(banned[:, None], -jnp.inf, logits)
    blocks = in_blocks(keep_likely(allowed, rules.top_p, rules.top_k))
    # Behind a barrier: XLA would go over all logits again for the top of the tops.
    tops = jax.lax.optimization_barrier(blocks.max(1))
    top = tops.max(0)
    sums = jax.lax.optimization_barrier(jnp.exp(blocks - top).sum(1))
    drawn, rest = first_above(sums, jax.vmap(uniform)(keys, positions) * sums.sum(0))
    block = jnp.where(greedy, jnp.argmax(tops == top, axis=0), drawn)
    inside = jnp.take_along_axis(blocks, block[None, None], axis=0)[0]
    drawn, _ = first_above(jnp.exp(inside - top), rest)
    place = jnp.where(greedy, jnp.argmax(inside == top, axis=0), drawn)
    chosen = jnp.take_along_axis(inside, place[None], axis=0)[0]
    if rules.top_p < 1 or rules.top_k:
        normalizer = jax.nn.logsumexp(logits, axis=0)
    else:
        parts = [(top + jnp.log(sums.sum(0)))[None], logits[np.array(rules.banned_ids, int)]]
        normalizer = jax.nn.logsumexp(jnp.concatenate(parts), axis=0)
    return (block * blocks.shape[1] + place).astype(jnp.int32), chosen - normalizer


def uniform(key: jax.Array, position: jax.Array) -> jax.Array:
    """The uniform number f32[] that a response's token at `position` is drawn with."""
    return jax.random.uniform(jax.random.fold_in(key, position))


def keep_likely(logits: jax.Array, top_p: float, top_k: int) -> jax.Array:
    """Logits [V, B] with -inf where top-k, and then top-p, drop the token."""
    if 0 < top_k < len(logits):
        least = jax.lax.top_k(logits.T, top_k)[0][:, -1]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p < 1:
        ordered = jnp.flip(jnp.sort(logits, axis=0), axis=0)
        p = jax.nn.softmax(ordered, axis=0)
        kept = jnp.cumsum(p, axis=0) - p < top_p
        least = jnp.min(jnp.where(kept, ordered, jnp.inf), axis=0)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


def in_blocks(logits: jax.Array) -> jax.Array:
    """Logits [V, B] -> [V / BLOCK rounded up, BLOCK, B], filled up with -inf."""
    short = -len(logits) % BLOCK
    if short:  # the released models' vocabularies are multiples of 128: no copy for them
        logits = jnp.pad(logits, [(0, short), (0, 0)], constant_values=-jnp.inf)
    return logits.reshape(-1, BLOCK, logits.shape[1])


def first_above(weights: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first entry whose running sum exceeds the target, and what of the target is left there.

    An entry of weight 0 is never taken: where rounding leaves no entry, the last positive one is.

    Args:
        weights: f32[N, B].
        target: f32[B].

    Returns:
        i32[B] and f32[B].
    """
    running = jnp.cumsum(weights, axis=0)
    above = (running > target) & (weights > 0)
    last = len(weights) - 1 - jnp.argmax(jnp.flip(weights > 0, 0), axis=0)
    index = jnp.where(above.any(0), jnp.argmax(above, axis=0), last)
    before = jnp.take_along_axis(running - weights, index[None], axis=0)[0]
    return index, jnp.maximum(target - before, 0.0)
