"""How do parameters change? Scoring and the one update that every recipe uses.

Both split their batch into micro-batches inside one compiled program, and read the responses of a
prompt packed into rows where the batch says how. A loss is a sum of terms whose weights were made
for the whole batch, so that micro-batches add up to the same number however the batch is split,
and on however many devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from jaxevolve.packing import Layout, pack, segments, unpack

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
        layout: how the responses share rows; one a row if None.
    """

    prompts: Prompts
    tokens: jax.Array
    lengths: jax.Array
    advantages: jax.Array
    old_logprobs: jax.Array
    ref_logprobs: jax.Array | None
    starts: jax.Array | None = None
    layout: Layout | None = None


@struct.dataclass
class TrainState:
    """What training carries from update to update.

    Attributes:
        params: what is trained.
        opt_state: of the optimizer.
        updates: i32[], how many there have been.
        judge: an earlier state of `params`, which no update changes; None where nobody needs one.
    """

    params: Any
    opt_state: Any
    updates: jax.Array
    judge: Any = None


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


def read_responses(
    model: Qwen2_5_VL,
    params: Any,
    prompts: Prompts,
    tokens: jax.Array,
    layout: Layout | None,
    temperature: float,
    remat: str = "none",
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities and entropies f32[P, G, L] of response tokens, in nats.

    Args:
        model: the model.
        params: its parameters, in the type that is computed in.
        prompts: P prompts.
        tokens: i32[P, G, L].
        layout: how the responses share rows, which changes no number that counts: what stands
            after a response's end is 0 with a layout, and anything without one.
        temperature: what logits are divided by.
        remat: see `models.layers.run_layers`.
    """
    length, parts = tokens.shape[-1], None
    if layout is not None:
        tokens, parts = pack(layout, tokens), segments(layout, length)
    hidden = model.apply({"params": params}, prompts, tokens, parts, remat)
    values = token_logprobs(hidden, head(params), tokens, temperature)
    if layout is None:
        return values
    return jax.tree.map(lambda x: unpack(layout, x, length), values)


def make_score(
    model: Qwen2_5_VL, *, temperature: float, dtype: str, micro_batches: int
) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array | None]]:
    """Makes the scoring function.

    Args:
        model: the model.
        temperature: that of sampling.
        dtype: the type to compute in.
        micro_batches: pieces that the batch is scored in, a divisor of P.

    Returns:
        Jitted (params, reference, prompts, tokens i32[P, G, L], layout=None) -> log-probabilities
        and entropies f32[P, G, L] of each response token under the policy, in nats, and its
        log-probabilities under the reference, or None where there is none. Every piece of the batch
        is read by both before the next one is.
    """

    @jax.jit
    def score(
        params: Any,
        reference: Any,
        prompts: Prompts,
        tokens: jax.Array,
        layout: Layout | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        params, reference = cast(params, dtype), cast(reference, dtype)

        def piece(batch: Any) -> Any:
            own = read_responses(model, params, *batch, temperature)
            if reference is None:
                return *own, None
            return *own, read_responses(model, reference, *batch, temperature)[0]

        results = lax.map(piece, split((prompts, tokens, layout), micro_batches))
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(tokens.shape), results)

    return score


@dataclass(frozen=True)
class Update:
    """An update as two programs: gradients have one for every shape of a batch, their use one.

    Attributes:
        gradients: jitted (params, batch, frozen=None) -> (loss, metrics, gradients in float32).
        apply: jitted (state, loss, gradients) -> (state, norm of the gradients, f32[] 1 where they
            were not used); the state is consumed.
    """

    gradients: Callable[..., tuple[jax.Array, Metrics, Any]]
    apply: Callable[[TrainState, jax.Array, Any], tuple[TrainState, jax.Array, jax.Array]]

    def __call__(
        self, state: TrainState, batch: Any, frozen: Any = None
    ) -> tuple[TrainState, Metrics]:
        """Updates the state, which is consumed.

        Args:
            state: the state.
            batch: Experience or Targets, as the loss reads it.
            frozen: as for `assemble`.

        Returns:
            The new state and the metrics. A loss or gradient that is not finite changes nothing and
            reports "skipped" 1.
        """
        value, metrics, grads = self.gradients(state.params, batch, frozen)
        state, norm, skipped = self.apply(state, value, grads)
        return state, metrics | {"loss": value, "grad_norm": norm, "skipped": skipped}


def make_update(
    model: Qwen2_5_VL,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    *,
    temperature: float,
    dtype: str,
    micro_batches: int,
    remat: str,
    aggregation: str,
    max_tokens: int,
    lora_scale: float = 0.0,
    shardings: Any = None,
) -> Update:
    """Makes the update function.

    Args:
        model: the model.
        optimizer: maps summed gradients to updates.
        loss: what is minimized, see `Loss`.
        temperature: that of sampling.
        dtype: the type to compute in; parameters and optimizer state stay float32.
        micro_batches: pieces that gradients are accumulated over, a divisor of P.
        remat: which activations are recomputed in the backward pass, see
            `models.layers.run_layers`.
        aggregation: "token", "sequence" or "constant", see `loss_weights`.
        max_tokens: the response limit, which "constant" divides by.
        lora_scale: of the adapters, where the state holds such.
        shardings: of the state, a tree like it. Where None, the compiler may return arrays in
            another sharding than they came in, and every program is then compiled once more.
    """

    def gradients(params: Any, batch: Any, frozen: Any = None) -> tuple[jax.Array, Metrics, Any]:
        mask = response_mask(batch.lengths, batch.tokens.shape[-1])
        if getattr(batch, "starts", None) is not None:
            mask &= jnp.arange(mask.shape[-1]) >= batch.starts[..., None]
        weights = loss_weights(mask, aggregation, max_tokens)
        # Cast once: each piece's gradient is that of what is computed with, summed in float32.
        trained = params if frozen is not None else cast(params, dtype)

        def piece_loss(trained: Any, piece: tuple[Any, jax.Array]) -> tuple[jax.Array, Metrics]:
            batch, weights = piece
            params = assemble(trained, frozen, dtype, lora_scale)
            layout = getattr(batch, "layout", None)
            logprobs, entropy = read_responses(
                model, params, batch.prompts, batch.tokens, layout, temperature, remat
            )
            return loss(logprobs, entropy, weights, batch)

        grad = jax.value_and_grad(piece_loss, has_aux=True)

        def accumulate(total: Any, piece: Any) -> tuple[Any, None]:
            more = grad(trained, piece)
            return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, more), None

        whole = (batch, weights)
        if micro_batches == 1:
            (value, metrics), grads = grad(trained, whole)
            return value, metrics, cast(grads, "float32")
        pieces = split(whole, micro_batches)
        shapes = jax.eval_shape(grad, trained, jax.tree.map(lambda x: x[0], pieces))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)
        ((value, metrics), grads), _ = lax.scan(accumulate, zeros, pieces)
        return value, metrics, grads

    def apply(
        state: TrainState, value: jax.Array, grads: Any
    ) -> tuple[TrainState, jax.Array, jax.Array]:
        norm = optax.tree.norm(grads)
        fine = jnp.isfinite(norm) & jnp.isfinite(value)
        changes, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, changes)
        new = state.replace(params=params, opt_state=opt_state, updates=state.updates + 1)
        state = jax.tree.map(lambda new, old: jnp.where(fine, new, old), new, state)
        return state, norm, 1 - fine

    of_grads, of_state = None, None
    if shardings is not None:
        of_grads, of_state = (None, None, shardings.params), (shardings, None, None)
    return Update(
        jax.jit(gradients, out_shardings=of_grads),
        jax.jit(apply, donate_argnums=0, out_shardings=of_state),
    )
