"""Retrace: a response cut at its anchor becomes a prompt whose image carries noise.

CSRS section 3.2.2: the retracing re-inference mechanism (Eq. 6) and visual semantic perturbation
(Eq. 9). M re-inferences then follow every anchor, by the same prefill and decode as any response.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxevolve.models.inputs import Prompts
from jaxevolve.runtime.buckets import bucket

Anchor = Literal["fraction", "random", "token", "group"]


def anchors(
    lengths: np.ndarray,
    stopped: np.ndarray,
    *,
    rule: Anchor,
    rate: float | np.ndarray,
    token: int | np.ndarray,
    max_tokens: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Where responses are cut, and how many tokens may follow.

    The length that counts is that of a response's own tokens, without the stop id. A response of
    fewer than two tokens is redone from its start.

    "fraction" is the paper's floor(rate * length). It favors answers with long derivations: such
    a one has already committed itself at its anchor, a short one is decided again. "token" cuts
    all responses at one position, which leaves the distribution of answers as it was (the law of
    total probability); a response that had ended before that position is kept as it is. "group"
    is "token" with a position of its own for each response, that of `position_by_others`. "random"
    is "fraction" with a rate of its own for each response, uniform in [0, 1) (the paper's A.5).

    Args:
        lengths: i32[...], the stop id included.
        stopped: bool[...], whether there is one.
        rule: which of the four.
        rate: the retracing rate omega; f[...] for "random".
        token: the position, for "token"; i32[...] for "group".
        max_tokens: the length limit of prefix and continuation together.

    Returns:
        anchors i32[...], the tokens kept, and limits i32[...], the tokens that may follow.
    """
    own = np.asarray(lengths, np.int64) - np.asarray(stopped)
    if rule in ("token", "group"):
        anchor = np.minimum(own, token)
        limit = np.where((own < token) & np.asarray(stopped), 0, max_tokens - anchor)
        return anchor.astype(np.int32), limit.astype(np.int32)
    # In integers: in floating point 0.29 * 100 is below 29.
    anchor = own * np.round(np.multiply(rate, 1_000_000)).astype(np.int64) // 1_000_000
    anchor = np.where(own < 2, 0, anchor).astype(np.int32)
    return anchor, max_tokens - anchor


def position_by_others(own: np.ndarray, rate: float) -> np.ndarray:
    """Positions for "group": floor(rate * mean length of the other responses of the group).

    It follows the lengths that a question calls for, as "fraction" does. But a response's own
    length has no part in where it is cut, so that the law of total probability holds, as for
    "token".

    Args:
        own: i64[..., G] lengths without the stop id, G at least 2.
        rate: the retracing rate.

    Returns:
        i32[..., G].
    """
    others = own.sum(-1, keepdims=True) - own
    return (others * round(rate * 1_000_000) // (1_000_000 * (own.shape[-1] - 1))).astype(np.int32)


def forked_size(have: int, tokens: int, most: int) -> int:
    """Room for a forked prompt: one of few sizes, as every size is a program that reads them.

    Args:
        have: room of the prompts that are forked.
        tokens: that there must be room for.
        most: tokens of the longest response.

    Returns:
        A power of two, at least `have` and 64, or what is enough for all.
    """
    least = max(have, 64)
    if tokens <= least:
        return least
    return max(min(1 << (tokens - 1).bit_length(), bucket(have + most)), least)


def fork(prompts: Prompts, tokens: np.ndarray, anchor: np.ndarray, most: int) -> Prompts:
    """Joins prompts and the kept part of one response each to longer prompts.

    Args:
        prompts: P prompts of T tokens, in numpy.
        tokens: i32[P, L] responses.
        anchor: i32[P] tokens kept of each.
        most: tokens of the longest response.

    Returns:
        P prompts, in numpy, T by `forked_size`.
    """
    have = prompts.tokens.shape[1]
    length = prompts.length + anchor
    size = forked_size(have, int(length.max()), most)
    beyond = np.arange(size) - prompts.length[:, None]  # place in the response
    kept = np.take_along_axis(tokens, np.clip(beyond, 0, tokens.shape[1] - 1), axis=1)
    in_prompt, in_prefix = beyond < 0, (beyond >= 0) & (beyond < anchor[:, None])

    def widen(x: np.ndarray, fill: int = 0) -> np.ndarray:
        return np.pad(x, [(0, 0), (0, size - have), *[(0, 0)] * (x.ndim - 2)], constant_values=fill)

    positions = (prompts.next_position[:, None] + beyond)[..., None]
    return prompts.replace(
        tokens=np.where(in_prompt, widen(prompts.tokens), np.where(in_prefix, kept, 0)),
        length=length,
        positions=np.where(in_prompt[..., None], widen(prompts.positions), positions),
        next_position=prompts.next_position + anchor,
        image_token=widen(prompts.image_token, -1),
    )


def perturb(prompts: Prompts, keys: jax.Array, deviation: jax.Array) -> Prompts:
    """Adds Gaussian noise to the images of every prompt (CSRS Eq. 9).

    The noise is added to the resized image in [0, 1] pixel units, before normalization, and the
    sum is clipped to [0, 1].

    Args:
        prompts: P prompts.
        keys: [P], one draw a prompt; equal keys give equal noise.
        deviation: standard deviation in pixel units.

    Returns:
        The prompts, with pixels f32[P, W, Q, C].
    """
    shape = prompts.pixels.shape[1:]
    noise = jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
    return prompts.replace(pixels=jnp.clip(prompts.pixels / 255.0 + deviation * noise, 0.0, 1.0))
