"""Prefill once, then decode G responses a prompt in chunks.

Inside a chunk a `while_loop` runs on the device until the chunk is full or every response has
ended; between chunks the host looks once and grows the cache of the responses by one chunk. The
keys of a prompt are never copied to its responses.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from jaxevolve.models.inputs import Prompts
from jaxevolve.models.layers import matmul, unstack
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head, unstacked
from jaxevolve.rollout.sampling import Sampling, response_keys, sample


@struct.dataclass
class Responses:
    """G sampled responses a prompt.

    Attributes:
        tokens: i32[P, G, L], 0 after a response's end.
        lengths: i32[P, G], the stop id included where there is one.
        logprobs: f32[P, G, L], as sampled (see `sample`), 0 after a response's end.
        stopped: bool[P, G], whether a stop id ended it; otherwise it was cut at its limit.
    """

    tokens: jax.Array
    lengths: jax.Array
    logprobs: jax.Array
    stopped: jax.Array


@struct.dataclass
class DecodeState:
    """What decoding carries from token to token.

    Attributes:
        index: i32[], tokens written so far, the same for all responses.
        responses: the arrays of `Responses`, S tokens long.
        cache: each layer's keys and values [P, K, G, S, h].
    """

    index: jax.Array
    responses: Responses
    cache: Any


def generate(
    model: Qwen2_5_VL,
    params: Any,
    prompts: Prompts,
    *,
    members: jax.Array,
    key: jax.Array,
    rules: Sampling,
    limits: jax.Array,
    max_tokens: int,
    chunk: int,
) -> Responses:
    """Samples responses.

    Args:
        model: the model, static.
        params: its parameters.
        prompts: P prompts.
        members: i32[G] or i32[P, G], numbers of the responses in their groups; they and
            `prompts.ids` say which random numbers a response gets.
        key: the key of seed, step and phase.
        rules: sampling rules.
        limits: i32[P, G], most tokens of each response; 0 leaves it empty.
        max_tokens: L, at least every limit.
        chunk: tokens between two looks from the host.

    Returns:
        Responses of L = `max_tokens`.
    """
    keys = response_keys(key, prompts.ids, members)
    chunk = min(chunk, max_tokens)
    state, prefix = start(model, params, prompts, keys, rules, limits, chunk)
    prompts = without_pixels(prompts)
    while True:
        state, going = decode_chunk(model, params, prompts, prefix, state, keys, rules, limits)
        size = state.responses.tokens.shape[-1]
        if size >= max_tokens or not bool(going):
            break
        state = grow(state, min(size + chunk, max_tokens))
    return fit(state.responses, max_tokens)


@partial(jax.jit, static_argnames=("model", "rules", "size"))
def start(
    model: Qwen2_5_VL,
    params: Any,
    prompts: Prompts,
    keys: jax.Array,
    rules: Sampling,
    limits: jax.Array,
    size: int,
) -> tuple[DecodeState, Any]:
    """Reads the prompts and samples the first token of every response."""
    hidden, prefix = model.apply({"params": params}, prompts, method="prefill")
    group = limits.shape
    hidden = jnp.broadcast_to(hidden[:, None], (*group, hidden.shape[-1]))
    empty = Responses(
        tokens=jnp.zeros((*group, size), jnp.int32),
        lengths=jnp.zeros(group, jnp.int32),
        logprobs=jnp.zeros((*group, size), jnp.float32),
        stopped=jnp.zeros(group, bool),
    )
    index = jnp.zeros((), jnp.int32)
    responses = write_sample(params, hidden, keys, index, rules, limits, empty)
    if unrolled():
        prefix = unstack(prefix)
    caches = jax.tree.map(lambda x: response_cache(x, group[1], size), prefix)
    return DecodeState(index + 1, responses, caches), prefix


def without_pixels(prompts: Prompts) -> Prompts:
    """What decoding reads of the prompts: images of another size are no reason to compile anew."""
    return prompts.replace(pixels=None, patch_hw=None, segment=None)


def response_cache(prefix: jax.Array, group: int, size: int) -> jax.Array:
    """Zeros [.., P, K, G, S, h] for a prompt's keys [.., P, K, T, h]."""
    shape = (*prefix.shape[:-2], group, size, prefix.shape[-1])
    return jnp.zeros(shape, prefix.dtype)


@partial(jax.jit, static_argnames=("model", "rules"), donate_argnames=("state",))
def decode_chunk(
    model: Qwen2_5_VL,
    params: Any,
    prompts: Prompts,
    prefix: Any,
    state: DecodeState,
    keys: jax.Array,
    rules: Sampling,
    limits: jax.Array,
) -> tuple[DecodeState, jax.Array]:
    """Decodes until the arrays of `state` are full or every response has ended.

    Returns:
        The state, and bool[] whether any response goes on.
    """
    size = state.responses.tokens.shape[-1]
    layered = unstacked(params) if unrolled() else params

    def going(responses: Responses) -> jax.Array:
        return (~responses.stopped) & (responses.lengths < limits)

    def step(state: DecodeState) -> DecodeState:
        tokens = lax.dynamic_index_in_dim(state.responses.tokens, state.index - 1, 2, False)
        hidden, cache = model.apply(
            {"params": layered},
            prompts,
            tokens,
            state.index - 1,
            prefix,
            state.cache,
            method="decode",
        )
        responses = write_sample(params, hidden, keys, state.index, rules, limits, state.responses)
        return DecodeState(state.index + 1, responses, cache)

    def more(state: DecodeState) -> jax.Array:
        return (state.index < size) & going(state.responses).any()

    state = lax.while_loop(more, step, state)
    return state, going(state.responses).any()


def write_sample(
    params: Any,
    hidden: jax.Array,
    keys: jax.Array,
    index: jax.Array,
    rules: Sampling,
    limits: jax.Array,
    responses: Responses,
) -> Responses:
    """Samples the token at `index` of every response that goes on, and writes it."""
    logits = matmul(hidden, head(params)).astype(jnp.float32)
    token, logprob = sample(logits, keys, index, rules)
    going = (~responses.stopped) & (responses.lengths < limits)
    token, logprob = jnp.where(going, token, 0), jnp.where(going, logprob, 0.0)
    stop = jnp.isin(token, jnp.array(rules.stop_ids, jnp.int32)) & going
    write = lax.dynamic_update_index_in_dim
    return Responses(
        tokens=write(responses.tokens, token, index, 2),
        lengths=responses.lengths + going,
        logprobs=write(responses.logprobs, logprob, index, 2),
        stopped=responses.stopped | stop,
    )


@partial(jax.jit, static_argnames=("size",))
def grow(state: DecodeState, size: int) -> DecodeState:
    """Lengthens every array of the state to S = `size` tokens."""
    responses = fit(state.responses, size)
    extra = size - state.responses.tokens.shape[-1]
    pad = [(0, extra), (0, 0)]
    cache = jax.tree.map(lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 2) + pad), state.cache)
    return DecodeState(state.index, responses, cache)


def fit(responses: Responses, size: int) -> Responses:
    """Pads, or cuts what is empty, to L = `size` tokens."""
    have = responses.tokens.shape[-1]

    def resize(x: Any) -> Any:
        if size <= have:
            return x[..., :size]
        widths = [(0, 0), (0, 0), (0, size - have)]
        return (np if isinstance(x, np.ndarray) else jnp).pad(x, widths)

    return responses.replace(tokens=resize(responses.tokens), logprobs=resize(responses.logprobs))


def unrolled() -> bool:
    """Whether decoding unrolls its layers: on CPU a scan copies weights and cache each step."""
    return jax.default_backend() == "cpu"
