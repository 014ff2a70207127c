"""The loss of imitation: the negative log-likelihood of given responses."""

from jax import Array


def supervised_loss(logprobs: Array, weights: Array) -> tuple[Array, dict[str, Array]]:
    """Negative log-likelihood of a batch, or of a part of it.

    Args:
        logprobs: f32[P, G, L] of the target tokens.
        weights: f32[P, G, L] of `loss_weights`, made for the whole batch.

    Returns:
        (loss f32[] in nats, metrics); both are sums over the parts of a batch.
    """
    return -(logprobs * weights).sum(), {"weight": weights.sum()}
