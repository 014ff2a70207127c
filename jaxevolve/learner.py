"""How do parameters change? Scoring and the one update that every recipe uses.

Both split their batch into micro-batches inside one compiled program. A loss is a sum of terms
whose weights were made for the whole batch, so that micro-batches add up to the same number
however the batch is split, and on however many devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax

from jaxevolve.models.inputs import Prompts
from jaxevolve.models.logprobs import token_logprobs
from jaxevolve.models.lora import attach
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head
from jaxevolve.objectives import loss_weights, response_mask

Metrics = dict[str, jax.Array]


@struct.dataclass
class Targets:
    """Responses to imitate.

    Attributes:
        prompts: P prompts.
        tokens: i32[P, G, L].
        lengths: i32[P, G], the stop id included.
    """

    prompts: Prompts
    tokens: jax.Array
    lengths: jax.Array


@struct.dataclass
class Experience:
    """Sampled responses and what they are worth, made by a recipe.

    Attributes:
        prompts: P prompts.
        tokens: i32[P, G, L] responses.
        lengths: i32[P, G].
        advantages: f32[P, G].
        old_logprobs: f32[P, G, L] of the policy that sampled, computed as the update does.
        ref_logprobs: f32[P, G, L] of the frozen reference, or None without a KL term.
        starts: i32[P, G], the first token of each response that is trained on; 0 if None.
    """

    prompts: Prompts
    tokens: jax.Array
    lengths: jax.Array
    advantages: jax.Array
    old_logprobs: jax.Array
    ref_logprobs: jax.Array | None
    starts: jax.Array | None = None


@struct.dataclass
class TrainState:
    """What training carries from update to update: parameters, optimizer state, update count."""

    params: Any
    opt_state: Any
    updates: jax.Array


# (log-probabilities, entropies, weights, piece of the batch) -> loss and metrics, all sums.
Loss = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, Metrics]]


def assemble(params: Any, frozen: Any, dtype: str, lora_scale: float) -> Any:
    """What the model computes with: the trained parameters, or frozen ones with trained adapters.

    Args:
        params: what is trained.
        frozen: None, or the parameters that `params` adapts (see `models.lora`).
        dtype: the type to compute in.
        lora_scale: of the adapters.
    """
    if frozen is None:
        return cast(params, dtype)
    return attach(cast(frozen, dtype), params, lora_scale)


def cast(params: Any, dtype: str) -> Any:
    """Floating-point parameters in the type that is computed in."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def split(tree: Any, count: int) -> Any:
    """Arrays [P, ...] -> [count, P / count, ...], so that a mesh's share of every piece is equal.

    Piece j takes rows j, j + count, ...: each device's run of rows gives its part to every piece.
    """
    return jax.tree.map(
        lambda x: x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1), tree
    )


def make_score(
    model: Qwen2_5_VL, *, temperature: float, dtype: str, micro_batches: int
) -> Callable[[Any, Prompts, jax.Array], tuple[jax.Array, jax.Array]]:
    """Makes the scoring function.

    Args:
        model: the model.
        temperature: that of sampling.
        dtype: the type to compute in.
        micro_batches: pieces that the batch is scored in, a divisor of P.

    Returns:
        Jitted (params, prompts, tokens i32[P, G, L]) -> log-probabilities and entropies
        f32[P, G, L] of each response token, in nats.
    """

    @jax.jit
    def score(params: Any, prompts: Prompts, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = cast(params, dtype)

        def piece(batch: tuple[Prompts, jax.Array]) -> tuple[jax.Array, jax.Array]:
            hidden = model.apply({"params": params}, *batch)
            return token_logprobs(hidden, head(params), batch[1], temperature)

        results = lax.map(piece, split((prompts, tokens), micro_batches))
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(tokens.shape), results)

    return score


def make_update(
    model: Qwen2_5_VL,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    *,
    temperature: float,
    dtype: str,
    micro_batches: int,
    remat: bool,
    aggregation: str,
    max_tokens: int,
    lora_scale: float = 0.0,
    shardings: Any = None,
) -> Callable[[TrainState, Any, Any], tuple[TrainState, Metrics]]:
    """Makes the update function.

    Args:
        model: the model.
        optimizer: maps summed gradients to updates.
        loss: what is minimized, see `Loss`.
        temperature: that of sampling.
        dtype: the type to compute in; parameters and optimizer state stay float32.
        micro_batches: pieces that gradients are accumulated over, a divisor of P.
        remat: recompute activations, layer by layer, in the backward pass.
        aggregation: "token", "sequence" or "constant", see `loss_weights`.
        max_tokens: the response limit, which "constant" divides by.
        lora_scale: of the adapters, where the state holds such.
        shardings: of the state, a tree like it. Where None, the compiler may return arrays in
            another sharding than they came in, and every program is then compiled once more.

    Returns:
        Jitted (state, batch, frozen=None) -> (state, metrics), the batch being Experience or
        Targets as the loss reads it, and frozen as for `assemble`; the state is consumed. An
        update with a loss or gradient that is not finite changes nothing and reports "skipped" 1.
    """

    def piece_loss(
        params: Any, frozen: Any, piece: tuple[Any, jax.Array]
    ) -> tuple[jax.Array, Metrics]:
        batch, weights = piece
        params = assemble(params, frozen, dtype, lora_scale)
        hidden = model.apply({"params": params}, batch.prompts, batch.tokens, remat=remat)
        logprobs, entropy = token_logprobs(hidden, head(params), batch.tokens, temperature)
        return loss(logprobs, entropy, weights, batch)

    def update(state: TrainState, batch: Any, frozen: Any = None) -> tuple[TrainState, Metrics]:
        mask = response_mask(batch.lengths, batch.tokens.shape[-1])
        if getattr(batch, "starts", None) is not None:
            mask &= jnp.arange(mask.shape[-1]) >= batch.starts[..., None]
        weights = loss_weights(mask, aggregation, max_tokens)
        grad = jax.value_and_grad(piece_loss, has_aux=True)

        def accumulate(total: Any, piece: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, grad(state.params, frozen, piece)), None

        pieces = split((batch, weights), micro_batches)
        one = jax.tree.map(lambda x: x[0], pieces)
        shapes = jax.eval_shape(grad, state.params, frozen, one)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        ((value, metrics), grads), _ = lax.scan(accumulate, zeros, pieces)

        norm = optax.global_norm(grads)
        fine = jnp.isfinite(norm) & jnp.isfinite(value)
        changes, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, changes)
        new = TrainState(params, opt_state, state.updates + 1)
        state = jax.tree.map(lambda new, old: jnp.where(fine, new, old), new, state)
        return state, metrics | {"loss": value, "grad_norm": norm, "skipped": 1 - fine}

    kept = None if shardings is None else (shardings, None)
    return jax.jit(update, donate_argnums=0, out_shardings=kept)
