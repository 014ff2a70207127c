"""Adapters on the tiny model that answers."""

import answerer
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jaxevolve.models.lora import attach, init_adapters, merge, pairs
from jaxevolve.models.qwen2_5_vl import unstacked
from jaxevolve.runtime.errors import UserError

BOTH = "model/layers|visual/blocks"


@pytest.fixture(scope="module")
def inputs(policy):
    prompts = jax.tree.map(jnp.asarray, policy.prompts(answerer.rows(3)))
    return prompts, jnp.array(np.random.default_rng(0).integers(0, 300, (3, 2, 4)))


@pytest.fixture(scope="module")
def trained(policy):
    """Adapters that change something."""
    adapters = init_adapters(policy.params, 3, BOTH, jax.random.key(0))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + 0.1 * rng.standard_normal(x.shape).astype("f4"), adapters)


def hidden(policy, params, inputs):
    return policy.model.apply({"params": params}, *inputs)


def test_fresh_adapters_change_nothing(policy, inputs):
    adapters = init_adapters(policy.params, 3, BOTH, jax.random.key(0))
    one = hidden(policy, policy.params, inputs)
    other = hidden(policy, attach(policy.params, adapters, 2.0), inputs)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("layered", [False, True])
def test_merged_weights_compute_what_attached_adapters_do(policy, inputs, trained, layered):
    attached = attach(policy.params, trained, 0.5)
    if layered:
        attached = unstacked(attached)
    one = hidden(policy, attached, inputs)
    other = hidden(policy, merge(policy.params, trained, 0.5), inputs)
    np.testing.assert_allclose(one, other, atol=1e-4)
    assert np.abs(one - hidden(policy, policy.params, inputs)).max() > 0.1


def test_a_merged_weight_is_the_sum_of_both(policy, trained):
    merged = flatten_dict(merge(policy.params, trained, 0.5), sep="/")
    before = flatten_dict(policy.params, sep="/")
    for path, leaf in before.items():
        if path in pairs(trained):
            a, b = (np.asarray(pairs(trained)[path][k], np.float64) for k in "ab")
            leaf = leaf + 0.5 * np.stack([y @ x for x, y in zip(a, b)])
        np.testing.assert_allclose(merged[path], leaf, atol=1e-5, err_msg=path)


def test_targets_choose_the_weights(policy):
    adapters = init_adapters(policy.params, 2, r"self_attn/[qv]_proj", jax.random.key(0))
    assert sorted(pairs(adapters)) == [
        "model/layers/self_attn/q_proj/weight",
        "model/layers/self_attn/v_proj/weight",
    ]
    visual = pairs(init_adapters(policy.params, 2, "visual", jax.random.key(0)))
    assert "visual/merger/mlp/2/weight" in visual
    assert "visual/patch_embed/proj/weight" not in visual


def test_targets_that_name_nothing_are_refused(policy):
    with pytest.raises(UserError, match="'deocder' names no weight"):
        init_adapters(policy.params, 2, "deocder", jax.random.key(0))


def test_gradients_reach_every_adapter_in_both_towers(policy, inputs, trained):
    def loss(adapters):
        return jnp.square(hidden(policy, attach(policy.params, adapters, 1.0), inputs)).sum()

    for path, leaf in flatten_dict(jax.grad(loss)(trained), sep="/").items():
        assert np.abs(leaf).max() > 0, path
