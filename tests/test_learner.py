"""Scoring and updates against plain formulas: full softmax, every response alone, no pieces."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxevolve import training
from jaxevolve.learner import Experience, TrainState, make_score, split
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Config, Qwen2_5_VL, head, init_params
from jaxevolve.packing import make_layout, rows_needed
from jaxevolve.runtime import cli, mesh

CONFIG = Config(
    vocab_size=40,
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
MODEL = Qwen2_5_VL(CONFIG)
P, G, T, L = 4, 3, 6, 8
TEMPERATURE, KL, ENTROPY, LR = 0.8, 0.1, 0.02, 1e-2
AGGREGATIONS = ("token", "sequence", "constant")


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: init_params(CONFIG, jax.random.key(0)))
    return jax.tree.map(
        lambda x: (0.2 * rng.standard_normal(x.shape) + (x.ndim == 1)).astype("f4"), shapes
    )


@pytest.fixture(scope="module")
def experience(params):
    """Responses of 1 to 8 tokens, and ratios that either bound clips or none."""
    rng = np.random.default_rng(1)
    empty = np.zeros((P, 0, 1), np.int32)
    prompts = Prompts(
        tokens=rng.integers(0, 40, (P, T)).astype(np.int32),
        length=np.array([6, 2, 5, 4], np.int32),
        positions=np.broadcast_to(np.arange(T, dtype=np.int32)[:, None], (P, T, 3)),
        next_position=np.array([6, 2, 5, 4], np.int32),
        ids=np.arange(P, dtype=np.uint32),
        image_token=np.full((P, T), -1, np.int32),
        pixels=empty[..., None].astype(np.uint8),
        patch_hw=empty[..., None],
        segment=empty,
    )
    lengths = rng.integers(1, L + 1, (P, G)).astype(np.int32)
    lengths[0], lengths[3, 2] = [L, 5, 3], 1
    tokens = rng.integers(0, 40, (P, G, L)).astype(np.int32)
    tokens = np.where(np.arange(L) < lengths[..., None], tokens, 0)
    logprobs, _ = plain_logprobs(params, prompts, tokens)
    noise = rng.standard_normal((2, P, G, L)).astype("f4")
    return Experience(
        prompts=prompts,
        tokens=tokens,
        lengths=lengths,
        advantages=rng.standard_normal((P, G)).astype("f4"),
        old_logprobs=np.asarray(logprobs) + 0.5 * noise[0],
        ref_logprobs=np.asarray(logprobs) + 0.3 * noise[1],
    )


def plain_logprobs(params, prompts, tokens):
    """Log-probabilities and entropies, each response behind a copy of its prompt."""
    alone = jax.tree.map(lambda x: jnp.repeat(x, G, axis=0), prompts)
    hidden = MODEL.apply({"params": params}, alone, tokens.reshape(P * G, 1, L))
    logs = jax.nn.log_softmax(hidden.reshape(P, G, L, -1) @ head(params).T / TEMPERATURE)
    chosen = jnp.take_along_axis(logs, jnp.asarray(tokens)[..., None], -1)[..., 0]
    return chosen, -(jnp.exp(logs) * logs).sum(-1)


def plain_terms(params, experience):
    """What each token loses, f32[P, G, L], as the papers write it."""
    logprobs, entropy = plain_logprobs(params, experience.prompts, experience.tokens)
    advantage = experience.advantages[..., None]
    ratio = jnp.exp(logprobs - experience.old_logprobs)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    gain = jnp.where(advantage < 0, jnp.maximum(gain, 3.0 * advantage), gain)
    distance = experience.ref_logprobs - logprobs
    return -gain + KL * (jnp.exp(distance) - distance - 1) - ENTROPY * entropy


def plain_weights(lengths, aggregation):
    """What each token counts, f32[P, G, L]."""
    weights = np.zeros((P, G, L), np.float32)
    for p in range(P):
        for g in range(G):
            n = lengths[p, g]
            whole = {"token": lengths.sum(), "sequence": P * G * n, "constant": P * G * L}
            weights[p, g, :n] = 1 / whole[aggregation]
    return weights


@pytest.fixture(scope="module")
def plain(params, experience):
    """{aggregation: (loss, gradient)}."""
    loss = lambda params, weights: (plain_terms(params, experience) * weights).sum()
    both = jax.jit(jax.value_and_grad(loss))
    return {kind: both(params, plain_weights(experience.lengths, kind)) for kind in AGGREGATIONS}


def settings(**changes):
    config = cli.load_config(f"{Path(__file__).resolve().parents[1]}/configs/csrs.py:smoke")
    config.update_from_flattened_dict(
        {
            "batch": P,
            "rollout.max_tokens": L,
            "rollout.temperature": TEMPERATURE,
            "grpo.kl": KL,
            "grpo.entropy": ENTROPY,
            "optimizer.lr": LR,
            **changes,
        }
    )
    return config


@functools.cache
def make_update(optimizer, micro=P, **changes):
    """The update function that training makes, compiled once for all tests."""
    devices = mesh.make_mesh((1, 1, 1), jax.devices()[:1])
    return training.make_functions(MODEL, optimizer, devices, micro, settings(**changes))[1]


def packed_into_two_rows(experience):
    layout = make_layout(experience.lengths, L, rows_needed(experience.lengths, L))
    assert layout.source.shape == (P, 2, L)
    return experience.replace(layout=layout)


def fresh(params, optimizer):
    """A state of its own: updates consume what they are given."""
    params = jax.tree.map(jnp.array, params)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


# Its state keeps the gradient of the first update as it was.
SGD = optax.sgd(LR, momentum=0.9)
ADAMW, RATE = training.make_optimizer(settings().optimizer)


def assert_close(one, other, share=1e-4):
    """Leaf by leaf, within a share of the leaf's largest value."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other)):
        bound = share * np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=bound, rtol=0, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("aggregation", "micro", "remat", "packed"),
    [
        ("token", 4, "none", False),
        ("token", 4, "none", True),
        ("token", 2, "layer", True),
        ("token", 2, "dots", False),
        ("sequence", 1, "none", True),
        ("constant", 1, "none", False),
    ],
)
def test_an_update_is_the_plain_one_however_it_is_cut(
    params, experience, plain, aggregation, micro, remat, packed
):
    update = make_update(SGD, micro, **{"grpo.aggregation": aggregation, "grpo.remat": remat})
    batch = packed_into_two_rows(experience) if packed else experience
    state, metrics = update(fresh(params, SGD), batch)
    loss, gradient = plain[aggregation]
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(float(optax.tree.norm(gradient)), rel=1e-5)
    assert (metrics["skipped"], state.updates) == (0, 1)
    assert_close(state.opt_state[0].trace, gradient)
    wanted = jax.tree.map(lambda p, g: p - LR * g, params, gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.params, wanted)


def test_the_optimizer_is_adamw_behind_a_clip_of_the_norm(params, experience, plain):
    config = settings()
    state, metrics = make_update(ADAMW)(fresh(params, ADAMW), experience)
    norm = float(metrics["grad_norm"])
    assert norm > config.optimizer.clip_norm
    assert RATE(0) == pytest.approx(LR)
    b1, b2, decay = (config.optimizer[k] for k in ("b1", "b2", "weight_decay"))

    def adamw(p, g):
        g = g * config.optimizer.clip_norm / norm
        first, second = (1 - b1) * g / (1 - b1), (1 - b2) * g**2 / (1 - b2)
        return p - LR * (first / (np.sqrt(second) + 1e-8) + decay * p)

    for new, old, gradient in zip(*map(jax.tree.leaves, (state.params, params, plain["token"][1]))):
        # Where the gradient is mere rounding its first step has no direction.
        clear = np.abs(gradient) > 1e-5 * norm
        wanted = adamw(old, np.asarray(gradient))
        assert np.abs(np.asarray(new) - wanted)[clear].max() < 1e-4 * LR
        assert clear.mean() > 0.5


def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(params, experience):
    update = make_update(ADAMW)
    good, _ = update(fresh(params, ADAMW), experience)
    broken = experience.replace(advantages=experience.advantages.copy())
    broken.advantages[2, 1] = np.nan
    before = jax.tree.map(np.array, good)
    after, metrics = update(good, broken)
    assert metrics["skipped"] == 1
    assert not np.isfinite(metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, after, before)
    onward, metrics = update(after, experience)
    assert (metrics["skipped"], onward.updates) == (0, 2)
    assert np.isfinite(optax.tree.norm(onward.params))


def test_a_gradient_that_overflows_is_skipped_though_the_loss_is_finite(params, experience):
    update = make_update(SGD, P, **{"grpo.aggregation": "token", "grpo.remat": "none"})
    # Its share in a token's loss is finite, the square of its gradient is not.
    steep = experience.replace(advantages=np.full((P, G), 3e37, np.float32))
    after, metrics = update(fresh(params, SGD), steep)
    assert np.isfinite(metrics["loss"])
    assert metrics["skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, after.params, params)


def test_bfloat16_computes_near_float32_and_keeps_float32_weights(params, experience, plain):
    # Cast once for all pieces, whose gradients add up in float32.
    update = make_update(SGD, 1, **{"model.dtype": "bfloat16", "grpo.remat": "layer"})
    state, metrics = update(fresh(params, SGD), packed_into_two_rows(experience))
    kept = jax.tree.leaves((state.params, state.opt_state[0].trace))
    assert {x.dtype for x in kept} == {jnp.dtype("float32")}
    loss, gradient = plain["token"]
    assert metrics["loss"] == pytest.approx(float(loss), rel=0.1)
    mine, theirs = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        for tree in (state.opt_state[0].trace, gradient)
    )
    assert mine @ theirs / np.linalg.norm(mine) / np.linalg.norm(theirs) > 0.99


@pytest.mark.parametrize(("pieces", "packed"), [(1, False), (4, True)])
def test_scores_are_those_of_the_full_softmax(params, experience, pieces, packed):
    score = make_score(MODEL, temperature=TEMPERATURE, dtype="float32", micro_batches=pieces)
    reference = jax.tree.map(lambda x: 1.1 * x, params)
    layout = packed_into_two_rows(experience).layout if packed else None
    old, entropy, ref = score(params, reference, experience.prompts, experience.tokens, layout)
    wanted = plain_logprobs(params, experience.prompts, experience.tokens)
    wanted_ref, _ = plain_logprobs(reference, experience.prompts, experience.tokens)
    mask = np.arange(L) < experience.lengths[..., None]
    for a, b in zip((old, entropy, ref), (*wanted, wanted_ref)):
        np.testing.assert_allclose(np.asarray(a)[mask], np.asarray(b)[mask], atol=2e-5)
        assert not packed or not np.asarray(a)[~mask].any()


def test_without_a_reference_the_policy_alone_is_scored(params, experience):
    score = make_score(MODEL, temperature=TEMPERATURE, dtype="float32", micro_batches=1)
    old, _, ref = score(params, None, experience.prompts, experience.tokens)
    assert ref is None
    assert old.shape == (P, G, L)


def test_every_piece_takes_its_rows_from_each_devices_run():
    pieces = split(np.arange(8), 2)
    np.testing.assert_array_equal(pieces, [[0, 2, 4, 6], [1, 3, 5, 7]])


def test_tokens_before_a_response_starts_are_not_trained_on(params, experience):
    rng = np.random.default_rng(5)
    starts = np.minimum(rng.integers(0, 4, experience.lengths.shape), experience.lengths)
    grads = []
    for noise in (0, 3):
        old = np.array(experience.old_logprobs)
        before = np.arange(old.shape[-1]) < starts[..., None]
        changed = experience.replace(old_logprobs=old + noise * before, starts=starts)
        grads.append(make_update(SGD)(fresh(params, SGD), changed)[1]["grad_norm"])
    assert grads[0] == grads[1]
    assert grads[0] != make_update(SGD)(fresh(params, SGD), experience)[1]["grad_norm"]
