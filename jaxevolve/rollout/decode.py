"""The compiled half of sampling: prompts are read into a pool, responses are decoded in rows.

`engine` decides on the host which prompt goes where; here are the programs that it calls, all of
fixed shape, on what `caches` holds.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxevolve.models.inputs import Prompts, Rows
from jaxevolve.models.layers import unstack
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head, unstacked
from jaxevolve.models.rows import product
from jaxevolve.rollout import caches
from jaxevolve.rollout.caches import Decoding, Pool, map_caches
from jaxevolve.rollout.retrace import perturb
from jaxevolve.rollout.sampling import Sampling, sample


@partial(jax.jit, static_argnames=("model",))
def prefill(
    model: Qwen2_5_VL,
    params: Any,
    prompts: Prompts,
    noise: tuple[jax.Array, jax.Array] | None = None,
) -> Pool:
    """Reads J prompts.

    Args:
        model: the model.
        params: its parameters.
        prompts: J prompts.
        noise: keys [J] and a deviation f32[], to add noise to their images.

    Returns:
        A pool of these prompts alone.
    """
    if noise is not None:
        prompts = perturb(prompts, *noise)
    _, (keys, values) = model.apply({"params": params}, prompts, method="prefill")
    keys = (keys.swapaxes(-1, -2), values)
    if caches.unrolled():
        keys = unstack(keys)
    last = jnp.take_along_axis(prompts.tokens, prompts.length[:, None] - 1, axis=1)[:, 0]
    return Pool(keys, prompts.length - 1, last, prompts.next_position - 1)


@partial(jax.jit, donate_argnames=("pool",))
def insert(pool: Pool, new: Pool, places: jax.Array) -> Pool:
    """Puts J prompts that have been read into the pool, which is consumed.

    Args:
        pool: of N prompts of at most T tokens.
        new: J prompts of no more tokens.
        places: i32[J], where they go; N for one that only fills the shape.
    """

    def write(old: jax.Array, new: jax.Array) -> jax.Array:
        if old.ndim == 1:
            return old.at[places].set(new, mode="drop")
        # A cache, [N, K, ., .] or stacked; where the new one is shorter, the old rest is masked.
        corner = [slice(size) for size in new.shape[-2:]]
        layers = [slice(None)] * (old.ndim - 4)
        return old.at[(*layers, places, slice(None), *corner)].set(new, mode="drop")

    return jax.tree.map(write, pool, new)


@partial(jax.jit, donate_argnames=("pool",))
def branch(
    pool: Pool, decoding: Decoding, rows: jax.Array, anchors: jax.Array, places: jax.Array
) -> Pool:
    """Makes prompts of J responses, each cut at its anchor, from keys that are there already.

    The row of a response that has ended holds its keys until another one starts there.

    Args:
        pool: of N prompts, consumed; T is at least every prompt's tokens and what is kept.
        decoding: the rows.
        rows: i32[J], where the responses are.
        anchors: i32[J], tokens kept of each.
        places: i32[J], where they go, none where one of the J has its prompt; N for a filler.
    """
    prompts = decoding.prefix[rows]
    token = decoding.tokens[rows, jnp.maximum(anchors - 1, 0)]
    last = jnp.where(anchors > 0, token, pool.last[prompts])
    return _join(pool, prompts, decoding.cache, rows, anchors, last, places)


@partial(jax.jit, static_argnames=("model", "room"), donate_argnames=("pool",))
def extend(
    model: Qwen2_5_VL,
    params: Any,
    pool: Pool,
    stems: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    places: jax.Array,
    room: int,
) -> Pool:
    """Makes J prompts of prompts that have been read and text that follows them.

    Args:
        model: the model.
        params: its parameters.
        pool: of N prompts, consumed; T is at least every new prompt's tokens.
        stems: i32[J], what the text follows, none of them in one of the places.
        tokens: i32[J, L], the text.
        lengths: i32[J], its tokens, at least one.
        places: i32[J], where they go; N for a filler.
        room: tokens of the longest stem, at most T.
    """
    # The stem's last token has not been read, and the last one of the text shall not be.
    block = jnp.concatenate([pool.last[stems][:, None], tokens[:, :-1]], axis=1)

    def take(cache: jax.Array, axis: int) -> jax.Array:
        picked = jnp.take(cache, stems, axis=cache.ndim - 4)
        return jax.lax.slice_in_dim(picked, 0, room, axis=axis)

    keys = map_caches(take, pool.keys)
    if caches.unrolled():
        keys = tuple(map(jnp.stack, zip(*keys)))
    prefix = (keys[0].swapaxes(-1, -2), keys[1])
    there = jnp.arange(room) < pool.length[stems][:, None]
    own, values = model.apply(
        {"params": params}, block, pool.position[stems], prefix, there, method="extend"
    )
    own = (own.swapaxes(-1, -2), values)
    if caches.unrolled():
        own = unstack(own)
    last = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)[:, 0]
    return _join(pool, stems, own, jnp.arange(len(stems)), lengths, last, places)


def _join(
    pool: Pool,
    prompts: jax.Array,
    cache: Any,
    rows: jax.Array,
    kept: jax.Array,
    last: jax.Array,
    places: jax.Array,
) -> Pool:
    """Puts prompts into the pool that are others of it, and behind them tokens of a cache's rows.

    Args:
        pool: of N prompts.
        prompts: i32[J], the others.
        cache: each layer's keys [B, K, h, S] and values [B, K, S, h], the first of which are those
            of the last token of the row's prompt.
        rows: i32[J], of the cache.
        kept: i32[J], tokens that are kept of each.
        last: i32[J], the last token of each new prompt.
        places: i32[J], where they go; N for a filler.
    """
    length = pool.length[prompts]
    # Where a token's keys are among the row's own, which begin with the prompt's last token.
    own = jnp.arange(pool.prompt_tokens) - length[:, None]

    def join(old: jax.Array, row: jax.Array, axis: int) -> jax.Array:
        at = (slice(None),) * (old.ndim - 4)
        shape = [1] * old.ndim
        shape[old.ndim - 4], shape[axis] = own.shape
        place = own.reshape(shape)
        more = jnp.take_along_axis(row[(*at, rows)], jnp.maximum(place, 0), axis, mode="clip")
        new = jnp.where(place < 0, old[(*at, prompts)], more)
        return old.at[(*at, places)].set(new, mode="drop")

    put = lambda old, new: old.at[places].set(new, mode="drop")
    return Pool(
        keys=map_caches(join, pool.keys, cache),
        length=put(pool.length, length + kept),
        last=put(pool.last, last),
        position=put(pool.position, pool.position[prompts] + kept),
    )


@partial(jax.jit, donate_argnames=("decoding",))
def start_rows(
    decoding: Decoding,
    new: jax.Array,
    limit: jax.Array,
    prefix: jax.Array,
    number: jax.Array,
    keys: jax.Array,
) -> Decoding:
    """Starts responses in the rows where `new` bool[B] says so; the other arguments are [B]."""
    pick = lambda fresh, old: jnp.where(new, fresh, old)
    return decoding.replace(
        index=pick(0, decoding.index),
        limit=pick(limit, decoding.limit),
        stopped=decoding.stopped & ~new,
        keys=pick(keys, decoding.keys),
        prefix=pick(prefix, decoding.prefix),
        number=pick(number, decoding.number),
    )


_unstacked = jax.jit(unstacked)


def prepare(params: Any) -> Any:
    """The parameters as `decode` wants them, made once and not for every chunk."""
    return _unstacked(params) if caches.unrolled() else params


def _decode(
    model: Qwen2_5_VL,
    params: Any,
    pool: Pool,
    decoding: Decoding,
    temperature: jax.Array,
    rules: Sampling,
    width: int,
    steps: jax.Array,
    least: jax.Array,
) -> tuple[Decoding, jax.Array]:
    """Decodes until `steps` tokens are made or no more than `least` rows go on.

    Args:
        model: the model.
        params: its parameters, of `prepare`.
        pool: the prompts.
        decoding: the rows, which are consumed; S is at least every index + `steps`.
        temperature: f32[], see `sample`.
        rules: sampling rules.
        width: C, most rows of one prompt.
        steps: i32[].
        least: i32[].

    Returns:
        The rows, and i32[] tokens made a row.
    """
    count, seats = len(decoding.index), len(pool.length)
    numbers = jnp.arange(count)
    # A row that has ended must not stand where one of a later prompt stands.
    prefix = jnp.where(decoding.live, decoding.prefix, seats)
    cells = jnp.zeros((seats, width), jnp.int32)
    cells = cells.at[prefix, decoding.number].set(numbers, mode="drop")
    last, position = pool.last[prefix], pool.position[prefix]
    longest = jnp.where(decoding.live, pool.length[decoding.prefix], 0).max()
    in_use = jnp.zeros(seats, bool).at[prefix].set(True, mode="drop")
    order = jnp.argsort(~in_use)

    def step(carry: tuple[Decoding, jax.Array]) -> tuple[Decoding, jax.Array]:
        d, done = carry
        live = d.live
        before = d.tokens[numbers, jnp.maximum(d.index - 1, 0)]
        rows = Rows(
            token=jnp.where(d.index == 0, last, before),
            index=d.index,
            position=position + d.index,
            prefix=prefix,
            number=d.number,
            cells=cells,
            length=pool.length,
            order=order,
            used=in_use.sum(),
            reach=jnp.stack([longest, jnp.where(live, d.index, 0).max() + 1]),
        )
        hidden, cache = model.apply({"params": params}, rows, pool.keys, d.cache, method="decode")
        logits = product(head(params), hidden).astype(jnp.float32)
        token, logprob = sample(logits, d.keys, d.index, temperature, rules)
        place = jnp.where(live, d.index, d.tokens.shape[1])
        stop = jnp.isin(token, jnp.array(rules.stop_ids, jnp.int32))
        d = d.replace(
            tokens=d.tokens.at[numbers, place].set(token, mode="drop"),
            logprobs=d.logprobs.at[numbers, place].set(logprob, mode="drop"),
            index=d.index + live,
            stopped=d.stopped | (live & stop),
            cache=cache,
        )
        return d, done + 1

    def more(carry: tuple[Decoding, jax.Array]) -> jax.Array:
        return (carry[1] < steps) & (carry[0].live.sum() > least)

    return lax.while_loop(more, step, (decoding, jnp.zeros((), jnp.int32)))


_jit = partial(jax.jit, static_argnames=("model", "rules", "width"), donate_argnames=("decoding",))
decode = _jit(_decode)
# Of XLA's two libraries for CPU, Eigen is the faster in products of weights with some dozens of
# rows, by up to a fifth, and YNNPACK in sums, by far.
_SUMS_ONLY = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
decode_on_cpu = _jit(_decode, compiler_options=_SUMS_ONLY)
