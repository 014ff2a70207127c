"""Every form of attention against the definition in numpy float64, and its gradient against plain.

The splash kernel runs in interpret mode. cuDNN cannot run here: what it is asked for is lowered,
and computed by plain JAX in its stead.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxevolve.models import kernels
from jaxevolve.models.attention import (
    PLAIN,
    Kernel,
    attend,
    attend_images,
    choose,
    segment_firsts,
    segment_starts,
)
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, init_params
from jaxevolve.runtime.errors import UserError

SPLASH = Kernel("splash", interpret=True)
P, K, G, R, WIDTH = 2, 2, 2, 3, 16  # three query heads share a key-value head


def normal(rng, *shape):
    return jnp.array(rng.standard_normal(shape), jnp.float32)


def streams(length, size, packed):
    """Arguments of `attend`: a whole prompt and one of one token, rows of several sequences."""
    rng = np.random.default_rng(0)
    query = normal(rng, P, K, G, R, length, WIDTH)
    own = tuple(normal(rng, P, K, G, length, WIDTH) for _ in range(2))
    segments = prefix = mask = None
    if packed:
        # One sequence that fills its row; three, of which one has one token; padding, as 0.
        a, b = length // 2, length // 2 + 1
        row = np.concatenate([np.full(a, 1), np.full(b - a, 2), np.full(length - b, 3)])
        padded = np.where(np.arange(length) < length - 4, row, 0)
        segments = jnp.array([[np.ones(length), row], [padded, 0 * row]], jnp.int32)
    if size:
        prefix = tuple(normal(rng, P, K, size, WIDTH) for _ in range(2))
        mask = jnp.array(np.arange(size) < np.array([[size], [1]]))
    return query, own, segments, prefix, mask


def defined(*arrays):
    """The same in numpy, one query at a time, over the keys that it sees and no other."""
    query, own, segments, prefix, mask = jax.tree.map(
        lambda x: np.asarray(x, np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype),
        arrays,
    )
    result = np.zeros_like(query)
    for p, k, g, r, i in np.ndindex(query.shape[:-1]):
        seen = np.arange(i + 1)
        if segments is not None:
            seen = seen[segments[p, g, : i + 1] == segments[p, g, i]]
        key, value = (x[p, k, g, seen] for x in own)
        if prefix is not None:
            key, value = (
                np.concatenate([x[p, k, mask[p]], y]) for x, y in zip(prefix, (key, value))
            )
        score = np.exp(key @ query[p, k, g, r, i] / np.sqrt(WIDTH))
        result[p, k, g, r, i] = score @ value / score.sum()
    return result


def with_gradients(form, weigh, *arrays):
    """The value of a form, and the gradients of its weighted sum."""
    value, pull = jax.vjp(form, *arrays)
    return value, pull(weigh)


def close(ours, wanted):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "packed", "size"),
    [(PLAIN, *case) for case in ((True, 11), (False, 11), (True, 0), (False, 0))]
    + [(SPLASH, True, 11)],
)
def test_attention_is_what_it_is_defined_to_be(kernel, packed, size):
    arrays = streams(10, size, packed)
    ours = jax.jit(partial(attend, kernel=kernel))(*arrays)
    np.testing.assert_allclose(ours, defined(*arrays), atol=1e-5)


@pytest.mark.parametrize(("packed", "size"), [(True, 170), (False, 0)])
def test_splash_equals_plain_in_value_and_gradient_over_many_blocks(monkeypatch, packed, size):
    monkeypatch.setattr(kernels, "BLOCK", 128)
    query, own, segments, prefix, mask = streams(300, size, packed)
    weigh = normal(np.random.default_rng(1), *query.shape)

    @partial(jax.jit, static_argnums=0)
    def both(kernel, query, own, prefix):
        form = lambda query, own, prefix: attend(query, own, segments, prefix, mask, kernel)
        return with_gradients(form, weigh, query, own, prefix)

    close(both(SPLASH, query, own, prefix), both(PLAIN, query, own, prefix))


def images():
    """Queries, keys, values and segments: two images and padding in one row, one in the other."""
    rng = np.random.default_rng(2)
    arrays = [normal(rng, 2, 3, 16, 2, WIDTH) for _ in range(3)]
    segments = np.ones((2, 3, 16), np.int32)
    segments[0, 1:], segments[0, 2, 5:] = 2, 0
    return arrays, jnp.array(segments)


def test_splash_equals_plain_on_images():
    arrays, segments = images()
    weigh = normal(np.random.default_rng(3), *arrays[0].shape)

    @partial(jax.jit, static_argnums=0)
    def both(kernel, *arrays):
        return with_gradients(lambda *x: attend_images(*x, segments, kernel), weigh, *arrays)

    close(both(SPLASH, *arrays), both(PLAIN, *arrays))


def test_every_attention_of_a_model_goes_by_the_kernel():
    vision = VisionConfig(
        depth=1,
        hidden_size=32,
        intermediate_size=40,
        num_heads=2,
        patch_size=2,
        temporal_patch_size=1,
        spatial_merge_size=2,
        window_size=8,
        fullatt_block_indexes=(0,),
        out_hidden_size=32,
    )
    config = Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        mrope_section=(2, 1, 1),
        tie_word_embeddings=True,
        vision=vision,
    )
    rng = np.random.default_rng(4)
    whole = lambda *shape: jnp.array(rng.integers(0, 50, shape), jnp.int32)
    prompts = Prompts(
        tokens=whole(2, 9),
        length=jnp.array([9, 5]),
        positions=whole(2, 9, 3),
        next_position=whole(2),
        ids=jnp.arange(2, dtype=jnp.uint32),
        image_token=jnp.array([[-1, 0, 1, 2, 3, 7] + [-1] * 3, [-1, 0] + [-1] * 7]),
        pixels=jnp.array(rng.integers(0, 256, (2, 2, 16, 12)), jnp.uint8),
        patch_hw=whole(2, 2, 16, 2),
        segment=jnp.array(np.arange(16) < np.array([[[16], [16]], [[4], [0]]]), jnp.int32),
    )
    tokens = whole(2, 2, 7)
    parts = jnp.array([[[1, 1, 1, 2, 2, 2, 2], [1] * 7], [[1, 2, 2, 3, 3, 0, 0], [0] * 7]])
    shapes = jax.eval_shape(partial(init_params, config), jax.random.key(0))
    params = jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape).astype("f4"), shapes)

    def traced(kernel):
        model = Qwen2_5_VL(config, kernel)
        return jax.jit(model.apply).trace({"params": params}, prompts, tokens, parts)

    assert str(traced(SPLASH).jaxpr).count("pallas_call[") == 3  # image, prompts, responses
    ours, wanted = (
        np.asarray(traced(kernel).lower().compile()({"params": params}, prompts, tokens, parts))
        for kernel in (SPLASH, PLAIN)
    )
    np.testing.assert_allclose(ours[parts > 0], wanted[parts > 0], atol=1e-5)


def test_a_row_too_long_for_the_numbers_of_splash_is_refused():
    row = jax.ShapeDtypeStruct((1, 1, 1, 1, 2**15 + 1, 8), jnp.float32)
    key = jax.ShapeDtypeStruct((1, 1, 1, 2**15 + 1, 8), jnp.float32)
    with pytest.raises(UserError, match="32769 tokens"):
        jax.eval_shape(partial(attend, kernel=SPLASH), row, (key, key))


def test_segments_begin_where_the_number_changes():
    segments = jnp.array([[1, 1, 2, 3, 3, 0], [4, 4, 4, 4, 4, 4]])
    assert segment_starts(segments).astype(int).tolist() == [[1, 0, 1, 1, 0, 1], [1] + [0] * 5]
    assert segment_firsts(segments).tolist() == [[0, 0, 2, 3, 3, 5], [0] * 6]


def test_a_mesh_splits_prompts_and_heads_as_far_as_they_go():
    script = Path(__file__).with_name("attend_on_shards.py")
    subprocess.run([sys.executable, script], check=True)


def instead_of_cudnn(query, key, value, bias, *rest):
    """What cuDNN computes of the arguments that it is given, heads before tokens."""
    scale, turn = rest[6], lambda x: x.swapaxes(1, 2)
    return turn(jax.nn.dot_product_attention(*map(turn, (query, key, value)), bias, scale=scale))


@pytest.mark.parametrize(("packed", "size"), [(True, 11), (False, 12), (True, 0)])
def test_cudnn_is_given_the_right_keys_and_mask(monkeypatch, packed, size):
    monkeypatch.setattr(kernels.fused, "_dot_product_attention", instead_of_cudnn)
    arrays = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, streams(9, size, packed)
    )
    ours = jax.jit(partial(attend, kernel=Kernel("cudnn")))(*arrays)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(ours.astype(jnp.float32), defined(*arrays), atol=0.03)


def test_cudnn_is_given_the_right_images(monkeypatch):
    monkeypatch.setattr(kernels.fused, "_dot_product_attention", instead_of_cudnn)
    arrays, segments = images()
    arrays = [x.astype(jnp.bfloat16) for x in arrays]
    ours, wanted = (
        jax.jit(partial(attend_images, kernel=k))(*arrays, segments)
        for k in (Kernel("cudnn"), PLAIN)
    )
    np.testing.assert_allclose(ours.astype("f4"), wanted.astype("f4"), atol=0.03)


def test_cudnn_lowers_for_cuda_without_a_gradient_of_the_mask():
    query, own, segments, prefix, mask = streams(9, 11, True)
    query, own, prefix = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (query, own, prefix))

    def total(query, own, prefix):
        return attend(query, own, segments, prefix, mask, Kernel("cudnn")).sum()

    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(query, own, prefix)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @__cudnn" in line]
    assert len(calls) == 2
    assert "@__cudnn$fmhaScaleBiasSoftmax(" in calls[0]
    assert "@__cudnn$fmhaScaleBiasSoftmaxBackward(" in calls[1]
    results = calls[1].rsplit("->", 1)[1]
    assert results.count("bf16") == 3  # of queries, keys and values
    assert "dot_general" not in text


def device(platform):
    return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))


@pytest.mark.parametrize(
    ("platform", "dtype", "setting", "name"),
    [
        ("tpu", "bfloat16", "auto", "splash"),
        ("tpu", "float32", "auto", "splash"),
        ("gpu", "bfloat16", "auto", "cudnn"),
        ("gpu", "float32", "auto", "plain"),
        ("cpu", "bfloat16", "auto", "plain"),
        ("tpu", "bfloat16", "plain", "plain"),
        ("gpu", "bfloat16", "cudnn", "cudnn"),
    ],
)
def test_the_kernel_follows_the_platform(platform, dtype, setting, name):
    mesh = device(platform)
    assert choose(setting, mesh, dtype) == Kernel(name, mesh)


@pytest.mark.parametrize(
    ("platform", "dtype", "setting"),
    [("cpu", "float32", "splash"), ("gpu", "float32", "cudnn"), ("tpu", "bfloat16", "cudnn")],
)
def test_a_kernel_that_a_platform_does_not_have_is_refused(platform, dtype, setting):
    with pytest.raises(UserError, match=f"model.attention={setting} does not run on {platform}"):
        choose(setting, device(platform), dtype)
