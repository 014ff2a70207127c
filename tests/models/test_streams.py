"""Prefill, decode, scoring and training against plain attention over concatenated sequences.

The oracle below is numpy-plain: one sequence at a time, full causal attention, no streams, no
shared prefix, no cache; it takes the same parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxevolve.models.config import Config
from jaxevolve.models.inputs import Prompts, Rows
from jaxevolve.models.layers import rotate, unstack
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, head, init_params, unstacked
from jaxevolve.runtime.target import compiling_for

CONFIG = Config(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    mrope_section=(2, 1, 1),
    tie_word_embeddings=True,
)
P, G, T, L = 3, 4, 9, 6
LENGTHS = np.array([9, 4, 7])


@pytest.fixture(scope="module")
def setting():
    rng = np.random.default_rng(0)
    params = init_params(CONFIG, jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.2 * rng.standard_normal(x.shape).astype("f4"), params)
    positions = rng.integers(0, 12, (P, T, 3))
    following = np.array([13, 8, 20])
    positions[np.arange(P), LENGTHS - 1] = following[:, None] - 1  # the last token is text
    empty = np.zeros((P, 0, 1), np.int32)
    prompts = Prompts(
        tokens=rng.integers(0, 50, (P, T)),
        length=LENGTHS,
        positions=positions,
        next_position=following,
        ids=np.arange(P, dtype=np.uint32),
        image_token=np.full((P, T), -1),
        pixels=empty[..., None],
        patch_hw=empty[..., None],
        segment=empty,
    )
    responses = jnp.array(rng.integers(0, 50, (P, G, L)))
    return params, jax.tree.map(jnp.asarray, prompts), responses


def plain_norm(x, weight):
    return weight * x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def plain_hidden(params, tokens, positions):
    """Hidden states of one sequence [S] with positions [S, 3]; every matrix written out."""
    decoder = params["model"]
    x = decoder["embed_tokens"]["weight"][tokens]
    axis = np.array([0, 0, 1, 2])
    angles = positions[:, axis] * 1e4 ** -(np.arange(4) / 4)
    count = len(tokens)
    for i in range(CONFIG.num_hidden_layers):
        p = jax.tree.map(lambda w, i=i: w[i], decoder["layers"])
        attn = p["self_attn"]
        y = plain_norm(x, p["input_layernorm"]["weight"])
        q, k, v = (
            (y @ attn[f"{n}_proj"]["weight"].T + attn[f"{n}_proj"]["bias"]).reshape(count, -1, 8)
            for n in "qkv"
        )
        q, k = rotate(q, angles[:, None]), rotate(k, angles[:, None])
        k, v = jnp.repeat(k, 2, axis=1), jnp.repeat(v, 2, axis=1)
        scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(8)
        scores = jnp.where(np.tril(np.ones((count, count), bool)), scores, -jnp.inf)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v).reshape(count, -1)
        x = x + mixed @ attn["o_proj"]["weight"].T
        y = plain_norm(x, p["post_attention_layernorm"]["weight"])
        mlp = p["mlp"]
        gate = jax.nn.silu(y @ mlp["gate_proj"]["weight"].T)
        x = x + (gate * (y @ mlp["up_proj"]["weight"].T)) @ mlp["down_proj"]["weight"].T
    return plain_norm(x, decoder["norm"]["weight"])


def plain_logits(params, prompts, responses):
    """[P, G, L, V]: the logits that predict each response token."""
    rows = []
    for p in range(P):
        n = int(LENGTHS[p])
        follow = int(prompts.next_position[p]) + np.arange(L)
        positions = np.concatenate([prompts.positions[p, :n], np.stack([follow] * 3, -1)])
        for g in range(G):
            tokens = jnp.concatenate([prompts.tokens[p, :n], responses[p, g]])
            hidden = plain_hidden(params, tokens, positions)
            rows.append(hidden[n - 1 : n - 1 + L] @ head(params).T)
    return jnp.stack(rows).reshape(P, G, L, -1)


def scored_logits(params, prompts, responses, remat="none"):
    hidden = Qwen2_5_VL(CONFIG).apply({"params": params}, prompts, responses, remat=remat)
    return hidden @ head(params).T


def test_scoring_equals_plain_attention(setting):
    np.testing.assert_allclose(scored_logits(*setting), plain_logits(*setting), atol=2e-5)


@pytest.mark.parametrize("unrolled", [False, True])
def test_prefill_and_decode_equal_plain_attention_whatever_row_holds_what(setting, unrolled):
    params, prompts, responses = setting
    model = Qwen2_5_VL(CONFIG)
    # The first row token is the prompt's last, so only the prompt before it is a prefix.
    _, (keys, values) = model.apply({"params": params}, prompts, method="prefill")
    prefix = (keys.swapaxes(-1, -2), values)
    layers = CONFIG.num_hidden_layers
    if unrolled:
        params = unstacked(params)
        prefix = unstack(prefix)
    wanted = np.asarray(plain_logits(*setting))
    # Rows in any order, each two tokens behind the one before it, one of them not in use.
    rows = np.random.default_rng(1).permutation(P * G + 1)
    of_prompt, member = np.minimum(rows // G, P), rows % G
    used = np.flatnonzero(of_prompt < P)
    late = np.arange(len(rows)) % 3 * 2
    shapes = [(layers, len(rows), 2, 8, L), (layers, len(rows), 2, L, 8)]
    cache = tuple(jnp.full(shape, 1e3) for shape in shapes)  # what an earlier response left
    cache = unstack(cache) if unrolled else cache
    cells = np.full((P, G), len(rows))
    cells[of_prompt[used], member[used]] = used
    inside = np.minimum(of_prompt, P - 1)
    last = prompts.tokens[inside, LENGTHS[inside] - 1]
    seen = 0
    for step in range(L + 4):
        index = np.clip(step - late, 0, L - 1)
        fed = responses[inside, member, np.maximum(index - 1, 0)]
        state = Rows(
            token=jnp.where(index > 0, fed, last),
            index=jnp.asarray(index),
            position=prompts.next_position[inside] - 1 + index,
            prefix=jnp.asarray(of_prompt),
            number=jnp.asarray(member),
            cells=jnp.asarray(cells),
            length=jnp.asarray(LENGTHS - 1),
            order=jnp.arange(P)[::-1],
            used=jnp.int32(P),
            reach=jnp.array([max(LENGTHS) - 1, index.max() + 1]),
        )
        out, cache = model.apply({"params": params}, state, prefix, cache, method="decode")
        logits = np.asarray((head(params) @ out).T)
        for r in np.flatnonzero((of_prompt < P) & (index == step - late)):
            expected = wanted[of_prompt[r], member[r], index[r]]
            np.testing.assert_allclose(logits[r], expected, atol=2e-5)
            seen += 1
    assert seen == P * G * L


def test_prefill_predicts_the_first_token(setting):
    params, prompts, _ = setting
    hidden, _ = Qwen2_5_VL(CONFIG).apply({"params": params}, prompts, method="prefill")
    wanted = np.asarray(plain_logits(*setting))[:, 0, 0]
    np.testing.assert_allclose(hidden @ head(params).T, wanted, atol=2e-5)


@pytest.mark.parametrize("remat", ["none", "layer", "dots"])
def test_training_gradients_equal_those_of_plain_attention(setting, remat):
    params, prompts, responses = setting
    weights = jax.random.normal(jax.random.key(1), (P, G, L, 50))
    ours = jax.grad(lambda p: (scored_logits(p, prompts, responses, remat) * weights).sum())(params)
    wanted = jax.grad(lambda p: (plain_logits(p, prompts, responses) * weights).sum())(params)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(mine, theirs, atol=2e-4 * np.abs(theirs).max())


def test_what_stands_in_the_padding_changes_nothing(setting):
    params, prompts, responses = setting
    beyond = np.arange(T) >= LENGTHS[:, None]
    other = prompts.replace(tokens=jnp.where(beyond, 49, prompts.tokens))
    one = scored_logits(params, prompts, responses)
    np.testing.assert_array_equal(one, scored_logits(params, other, responses))


@st.composite
def packings(draw):
    """Lengths of the responses of a prompt, and which of two rows each is in."""
    lengths = draw(st.lists(st.integers(1, L), min_size=G, max_size=G))
    return lengths, draw(st.lists(st.integers(0, 1), min_size=G, max_size=G))


@jax.jit
def cubes(params, prompts, tokens, segments, weights):
    """Hidden states of responses, and the gradient of the sum of their weighted cubes."""

    def loss(params):
        hidden = Qwen2_5_VL(CONFIG).apply({"params": params}, prompts, tokens, segments)
        return (hidden**3 * weights[..., None]).sum(), hidden

    return jax.grad(loss, has_aux=True)(params)


@given(packings())
@settings(max_examples=20)
def test_responses_behind_each_other_are_read_as_if_alone(setting, packing):
    params, prompts, responses = setting
    tokens = np.full((P, 2, G * L), 49)
    segments, weights = np.zeros_like(tokens), np.zeros((P, G, L))
    places, ends = [], [0, 0]
    for g, (n, row) in enumerate(zip(*packing)):
        place = np.arange(ends[row], ends[row] + n)
        tokens[:, row, place], segments[:, row, place] = responses[:, g, :n], g + 1
        weights[:, g, :n] = 1
        places.append((row, place))
        ends[row] += n
    wanted_grads, wanted = cubes(params, prompts, responses, None, weights)
    grads, ours = cubes(params, prompts, tokens, segments, np.sign(segments))
    for g, (row, place) in enumerate(places):
        alone = wanted[:, g, : len(place)]
        np.testing.assert_allclose(ours[:, row, place], alone, atol=2e-5)
    for mine, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted_grads)):
        np.testing.assert_allclose(mine, theirs, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("remat", ["none", "layer", "dots"])
def test_scanned_layers_give_the_gradients_of_unrolled_ones(setting, remat):
    params, prompts, responses = setting
    model = Qwen2_5_VL(CONFIG)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        hidden = model.apply({"params": params}, prompts, responses, None, remat)
        return jnp.sin(hidden).mean()

    unrolled = loss(params)
    assert "while" not in loss.lower(params).as_text()
    with compiling_for("gpu"):  # where layers are scanned
        scanned = loss(params)
        assert "while" in loss.lower(params).as_text()
    for one, other in zip(jax.tree.leaves(scanned), jax.tree.leaves(unrolled)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
