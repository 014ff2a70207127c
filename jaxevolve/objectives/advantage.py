"""How much better than its group is a response?

Shapes: P prompts, G responses a prompt. A group is a row, never an id column: prompts with equal
text stay apart, and no group can be mixed with another.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def uninformative_groups(rewards: ArrayLike, valid: ArrayLike | None = None) -> Array:
    """Tells which groups carry no signal: all their rewards are equal, or none counts.

    Args:
        rewards: f32[P, G].
        valid: bool[P, G], the samples that count; all when None.

    Returns:
        bool[P].
    """
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    highest = jnp.max(jnp.where(valid, rewards, -jnp.inf), axis=-1)
    lowest = jnp.min(jnp.where(valid, rewards, jnp.inf), axis=-1)
    # Not the standard deviation: rounding makes that of six rewards of 0.3 greater than zero.
    return (highest == lowest) | ~valid.any(-1)


@partial(jax.jit, static_argnames="normalise")
def group_advantage(
    rewards: ArrayLike,
    normalise: Literal["mean", "std"] = "mean",
    valid: ArrayLike | None = None,
) -> Array:
    """Rewards relative to their group (GRPO).

    "mean" is r - mean(r), the form that CSRS's damping argument needs (arXiv 2604.03647, Eq. 1 and
    appendix A.1); "std" divides it by the unbiased standard deviation + 1e-6, the default of verl
    and EasyR1. A group of equal rewards gets exact zeros. A NaN reward makes its group NaN.

    Args:
        rewards: f32[P, G].
        normalise: "mean" or "std".
        valid: bool[P, G]; an excluded sample enters no statistic and gets 0. All count when None.

    Returns:
        f32[P, G].
    """
    if normalise not in ("mean", "std"):
        raise ValueError(f'advantages are normalised by "mean" or "std", not {normalise!r}')
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    count = valid.sum(-1, keepdims=True)
    total = jnp.where(valid, rewards, 0).sum(-1, keepdims=True)
    centered = jnp.where(valid, rewards - total / jnp.maximum(count, 1), 0)
    if normalise == "std":
        squares = jnp.square(centered).sum(-1, keepdims=True)
        centered = centered / (jnp.sqrt(squares / jnp.maximum(count - 1, 1)) + 1e-6)
    return jnp.where(uninformative_groups(rewards, valid)[..., None], 0, centered)


def log_group_distribution(
    rewards: ArrayLike, alpha: float, *, centered: bool = True, valid: ArrayLike | None = None
) -> Array:
    """The group as a distribution q ~ exp(alpha r), and log q as advantage (arXiv 2603.21289).

    Taken literally, log q is negative for every response of the group, and all are pushed down. The
    released code subtracts the group's mean afterwards; then what is left is exactly
    alpha (r - mean r), the normalizer being one number a group.

    Args:
        rewards: f32[P, G].
        alpha: inverse temperature.
        centered: subtract the mean of log q over the group.
        valid: bool[P, G]; an excluded sample is not of the group and gets 0. All count when None.

    Returns:
        f32[P, G].
    """
    rewards = jnp.asarray(rewards, jnp.float32)
    valid = jnp.ones(rewards.shape, bool) if valid is None else jnp.asarray(valid, bool)
    energy = jnp.where(valid, alpha * rewards, -jnp.inf)
    normalizer = jax.nn.logsumexp(energy, axis=-1, keepdims=True, where=valid)
    log_q = jnp.where(valid, energy - normalizer, 0)
    if not centered:
        return log_q
    mean = log_q.sum(-1, keepdims=True) / jnp.maximum(valid.sum(-1, keepdims=True), 1)
    return jnp.where(valid, log_q - mean, 0)
