"""Retrace: a response cut at its anchor becomes a prompt whose image carries noise.

CSRS section 3.2.2: the retracing re-inference mechanism (Eq. 6) and visual semantic perturbation
(Eq. 9). M re-inferences then follow every anchor, by the same prefill and decode as any response.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxevolve.models.inputs import Prompts
from jaxevolve.rollout.decode import Responses
from jaxevolve.rollout.sampling import response_keys

Anchor = Literal["fraction", "random", "token"]


def anchors(
    responses: Responses,
    *,
    rule: Anchor,
    rate: float,
    token: int,
    key: jax.Array,
    ids: np.ndarray,
    max_tokens: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Where each maternal response is cut, and how many tokens may follow.

    The length that counts is that of the response's own tokens, without the stop id. A response
    of fewer than two tokens is redone from its start.

    "fraction" is the paper's floor(rate * length). It favors answers with long derivations: such
    a one has already committed itself at its anchor, a short one is decided again. "token" cuts
    all responses at one position, which leaves the distribution of answers as it was (the law of
    total probability); a response that had ended before that position is kept as it is. "random"
    draws a rate for each maternal response, uniform in [0, 1) (the paper's A.5).

    Args:
        responses: maternal responses, as numpy arrays.
        rule: which of the three.
        rate: the retracing rate omega, for "fraction".
        token: the position, for "token".
        key: the key of seed, step and phase, for "random".
        ids: u32[P] sample ids.
        max_tokens: the length limit of prefix and continuation together.

    Returns:
        anchors i32[P, G], the tokens kept, and limits i32[P, G], the tokens that may follow.
    """
    length = np.asarray(responses.lengths) - np.asarray(responses.stopped)
    if rule == "fraction":
        # In integers: in floating point 0.29 * 100 is below 29.
        anchor = length.astype(np.int64) * round(rate * 1_000_000) // 1_000_000
    elif rule == "random":
        keys = response_keys(key, jnp.asarray(ids), jnp.arange(length.shape[1]))
        uniform = jax.vmap(jax.vmap(jax.random.uniform))(keys)
        anchor = np.floor(np.asarray(uniform) * length)
    else:
        anchor = np.minimum(length, token)
    anchor = np.where((length < 2) & (rule != "token"), 0, anchor).astype(np.int32)
    limit = max_tokens - anchor
    if rule == "token":
        limit = np.where((length < token) & np.asarray(responses.stopped), 0, limit)
    return anchor, limit.astype(np.int32)


@partial(jax.jit, static_argnames=("size", "copies"))
def fork(
    prompts: Prompts, tokens: jax.Array, anchor: jax.Array, *, size: int, copies: int = 1
) -> Prompts:
    """Joins prompts and the kept part of their responses to new prompts.

    Args:
        prompts: P prompts of T tokens.
        tokens: i32[P, G, L] maternal responses.
        anchor: i32[P, G] tokens kept of each.
        size: room for the kept part, at least the largest anchor.
        copies: new prompts a maternal response: 1, or M when each re-inference has its own image.

    Returns:
        P * G * copies prompts of T + `size` tokens, in the order of the responses.
    """
    group = tokens.shape[1]
    rows = jax.tree.map(lambda x: jnp.repeat(x, group, axis=0), prompts)
    anchor, length = anchor.reshape(-1), rows.length
    place = jnp.arange(rows.tokens.shape[1] + size)
    beyond = place - length[:, None]  # index into the response
    kept = tokens.reshape(-1, tokens.shape[-1])
    kept = jnp.take_along_axis(kept, jnp.clip(beyond, 0, kept.shape[1] - 1), axis=1)
    in_prompt, in_prefix = beyond < 0, (beyond >= 0) & (beyond < anchor[:, None])
    widen = lambda x, fill: jnp.pad(
        x, [(0, 0), (0, size)] + [(0, 0)] * (x.ndim - 2), constant_values=fill
    )
    positions = (rows.next_position[:, None] + beyond)[..., None]
    new = rows.replace(
        tokens=jnp.where(in_prompt, widen(rows.tokens, 0), jnp.where(in_prefix, kept, 0)),
        length=length + anchor,
        positions=jnp.where(in_prompt[..., None], widen(rows.positions, 0), positions),
        next_position=rows.next_position + anchor,
        image_token=widen(rows.image_token, -1),
    )
    return jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), new)


@jax.jit
def perturb(prompts: Prompts, keys: jax.Array, deviation: jax.Array) -> Prompts:
    """Adds Gaussian noise to the images of every prompt (CSRS Eq. 9).

    The noise is added to the resized image in [0, 1] pixel units, before normalization, and the
    sum is clipped to [0, 1].

    Args:
        prompts: B prompts.
        keys: [B], one draw a prompt; equal keys give equal noise.
        deviation: standard deviation in pixel units.

    Returns:
        The prompts, with pixels f32[B, W, Q, C].
    """
    shape = prompts.pixels.shape[1:]
    noise = jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
    return prompts.replace(pixels=jnp.clip(prompts.pixels / 255.0 + deviation * noise, 0.0, 1.0))
