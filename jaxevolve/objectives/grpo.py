"""The clipped policy-gradient loss of GRPO.

Shapes: P prompts, G responses a prompt, L response tokens.

A token's weight in the loss already holds the division by the number of tokens or sequences, and
is made once for a whole minibatch. The loss is then a plain weighted sum: the parts of a minibatch
add up to the same number however it is cut into micro-batches or spread over devices. (A mean of
micro-batch means would not.)
"""

from typing import Literal

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

# exp(20) is 5e8: finite in float32, and so far from 1 that a larger exponent says nothing more.
_MAX_LOG_RATIO = 20.0


def response_mask(lengths: ArrayLike, max_tokens: int) -> Array:
    """Marks real tokens by length alone, whichever stop id ended them and whether one did.

    Args:
        lengths: i32[P, G], sampled tokens of each response, its stop id included.
        max_tokens: L.

    Returns:
        bool[P, G, L].
    """
    return jnp.arange(max_tokens) < jnp.asarray(lengths)[..., None]


def loss_weights(
    mask: ArrayLike,
    aggregation: Literal["token", "sequence", "constant"] = "token",
    max_tokens: int | None = None,
) -> Array:
    """The weight of every token in the loss of a minibatch.

    A sequence without tokens (padding, a filtered group, a masked-out truncated response: clear it
    in `mask`) counts nowhere, so that two batches that differ only by such rows have equal losses.

    Args:
        mask: bool[P, G, L] of the whole minibatch, not of a micro-batch.
        aggregation: "token": mean over all tokens. "sequence": mean over sequences of their token
            means. "constant": sum over tokens divided by `max_tokens` for every sequence (Dr.GRPO).
        max_tokens: the response limit, for "constant"; L when None.

    Returns:
        f32[P, G, L]; zero where the mask is, and everywhere when it is empty.
    """
    mask = jnp.asarray(mask, bool)
    tokens = mask.sum(-1, keepdims=True)
    sequences = jnp.maximum((tokens > 0).sum(), 1)
    if aggregation == "token":
        share = 1 / jnp.maximum(tokens.sum(), 1)
    elif aggregation == "sequence":
        share = 1 / (jnp.maximum(tokens, 1) * sequences)
    elif aggregation == "constant":
        share = 1 / (sequences * (max_tokens or mask.shape[-1]))
    else:
        raise ValueError(f'aggregation is "token", "sequence" or "constant", not {aggregation!r}')
    return jnp.where(mask, share, 0).astype(jnp.float32)


def grpo_loss(
    logprobs: Array,
    old_logprobs: Array,
    ref_logprobs: Array | None,
    advantages: Array,
    weights: Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
    kl: float = 0.01,
    entropy: Array | None = None,
    entropy_coef: float = 0.0,
) -> tuple[Array, dict[str, Array]]:
    """The loss of a minibatch, or of a part of it.

    With r = exp(logprob - old), a token of advantage A loses

        max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), if A < 0 at most -A dual_clip,

    plus kl (exp(d) - d - 1), d = ref - logprob: the low-variance estimate of KL(policy ||
    reference), minus entropy_coef times the entropy. Both log-ratios are clamped to +-20 before
    they are exponentiated, so that value and gradient stay finite (clipping the result would leave
    inf * 0 in the gradient). The estimate itself is not clipped, unlike verl's at 10: at a
    log-ratio of 5 it is 142.4. A NaN at a weighted token reaches the loss; at a token of weight
    zero nothing does.

    Args:
        logprobs: f32[P, G, L] of the policy that is trained, at the sampling temperature.
        old_logprobs: f32[P, G, L] of the policy that sampled; carries no gradient.
        ref_logprobs: f32[P, G, L] of the reference policy, or None for no KL term.
        advantages: f32[P, G].
        weights: f32[P, G, L] of `loss_weights`, sliced like the other arguments.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far it may rise above 1.
        dual_clip: bound of the ratio where the advantage is negative; more than 1.
        kl: weight of the KL term.
        entropy: f32[P, G, L] of the policy's distribution at each token; needed when
            `entropy_coef` is not 0, else only reported.
        entropy_coef: weight of the entropy bonus.

    Returns:
        (loss f32[], metrics). The metrics "clip_fraction", "kl" (with a reference), "entropy" (when
        given) and "weight" are weighted sums as the loss is: add them over the parts, then
        `mean_metrics`.
    """
    if entropy is None and entropy_coef != 0:
        raise ValueError("an entropy bonus needs the entropy of every token")
    live = weights > 0

    def total(values: Array) -> Array:
        return jnp.sum(weights * values)

    def log_ratio(upper: Array, lower: Array) -> Array:
        # Cleared before the exponent: 0 * inf of a padded token would be NaN in the gradient.
        return jnp.clip(jnp.where(live, upper - lower, 0), -_MAX_LOG_RATIO, _MAX_LOG_RATIO)

    advantage = jnp.broadcast_to(advantages[..., None], logprobs.shape)
    advantage = jnp.where(live, advantage, 0)
    ratio = jnp.exp(log_ratio(logprobs, old_logprobs))
    plain = -advantage * ratio
    clipped = -advantage * jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    losses = jnp.maximum(plain, clipped)
    losses = jnp.where(advantage < 0, jnp.minimum(losses, -advantage * dual_clip), losses)
    metrics = {"weight": jnp.sum(weights), "clip_fraction": total(clipped > plain)}
    if ref_logprobs is not None:
        distance = log_ratio(ref_logprobs, logprobs)
        estimate = jnp.exp(distance) - distance - 1
        losses = losses + kl * estimate
        metrics["kl"] = total(estimate)
    if entropy is not None:
        entropy = jnp.where(live, entropy, 0)
        if entropy_coef:
            losses = losses - entropy_coef * entropy
        metrics["entropy"] = total(entropy)
    return total(losses), metrics


def mean_metrics(sums: dict[str, ArrayLike]) -> dict[str, ArrayLike]:
    """Divides added-up metrics of `grpo_loss` by their weight: means over the minibatch's tokens.

    Args:
        sums: the metrics, added over all parts of a minibatch (or of several).

    Returns:
        The same without "weight"; zeros when nothing had weight.
    """
    weight = jnp.asarray(sums["weight"])
    share = jnp.where(weight > 0, 1 / jnp.where(weight > 0, weight, 1), 0)
    return {name: value * share for name, value in sums.items() if name != "weight"}
