"""The GRPO loss against an independent float64 reference and the case collection."""

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxevolve.objectives import grpo_loss, loss_weights, mean_metrics, response_mask

AGGREGATIONS = ["token", "sequence", "constant"]


def batch(seed=0, shape=(4, 3, 6), spread=0.5):
    """Log-probabilities, advantages and a mask of ragged responses."""
    rng = np.random.default_rng(seed)
    new, old, ref = (rng.normal(-1, spread, shape).astype(np.float32) for _ in "nor")
    advantages = rng.normal(size=shape[:2]).astype(np.float32)
    mask = np.array(response_mask(rng.integers(0, shape[2] + 1, shape[:2]), shape[2]))
    entropy = rng.random(shape).astype(np.float32)
    return new, old, ref, advantages, mask, entropy


def by_numpy(new, old, ref, advantages, mask, entropy, aggregation, **p):
    """The loss token by token in float64."""
    sequences = []
    for g in np.ndindex(mask.shape[:2]):
        losses = []
        for t in range(mask.shape[2]):
            if not mask[g][t]:
                continue
            ratio = math.exp(float(new[g][t]) - float(old[g][t]))
            a = float(advantages[g])
            clipped = min(max(ratio, 1 - p["clip_low"]), 1 + p["clip_high"])
            surrogate = min(ratio * a, clipped * a)
            if a < 0:
                surrogate = max(surrogate, p["dual_clip"] * a)
            d = float(ref[g][t]) - float(new[g][t])
            kl = math.exp(d) - d - 1
            losses.append(-surrogate + p["kl"] * kl - p["entropy_coef"] * float(entropy[g][t]))
        if losses:
            sequences.append(losses)
    if not sequences:
        return 0.0
    if aggregation == "token":
        return sum(map(sum, sequences)) / sum(map(len, sequences))
    if aggregation == "sequence":
        return sum(sum(s) / len(s) for s in sequences) / len(sequences)
    return sum(map(sum, sequences)) / (len(sequences) * mask.shape[2])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_value_agrees_with_numpy(aggregation, seed):
    new, old, ref, advantages, mask, entropy = batch(seed, spread=1.5)
    options = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0, "kl": 0.02}
    loss, _ = grpo_loss(
        new, old, ref, advantages, loss_weights(mask, aggregation),
        entropy=entropy, entropy_coef=0.01, **options,
    )  # fmt: skip
    expected = by_numpy(
        new, old, ref, advantages, mask, entropy, aggregation, entropy_coef=0.01, **options
    )
    assert float(loss) == pytest.approx(expected, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradient_agrees_with_finite_differences(aggregation):
    new, old, ref, advantages, mask, entropy = batch(3)
    options = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "kl": 0.1, "entropy_coef": 0.0}
    weights = loss_weights(mask, aggregation)
    gradient = jax.grad(
        lambda x: grpo_loss(x, old, ref, advantages, weights, kl=0.1, entropy=entropy)[0]
    )(new)
    step = 1e-6
    for place in np.ndindex(new.shape):
        up, down = (new.astype(np.float64) for _ in range(2))
        up[place] += step
        down[place] -= step
        rest = (old, ref, advantages, mask, entropy, aggregation)
        expected = (by_numpy(up, *rest, **options) - by_numpy(down, *rest, **options)) / (2 * step)
        assert float(gradient[place]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 1.0, -1.0, -1.0, 0),
        (1.5, 1.0, -1.2, 0.0, 1),  # already risen enough
        (0.5, 1.0, -0.5, -0.5, 0),
        (1.5, -1.0, 1.5, 1.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),  # already fallen enough
        (5.0, -1.0, 3.0, 0.0, 0),  # dual clip
        (5.0, 0.0, 0.0, 0.0, 0),
    ],
)
def test_where_the_ratio_is_clipped(ratio, advantage, loss, slope, clipped):
    def value(new):
        return grpo_loss(
            new, jnp.zeros((1, 1, 1)), None, jnp.full((1, 1), advantage), jnp.ones((1, 1, 1))
        )

    new = jnp.full((1, 1, 1), math.log(ratio))
    (found, metrics), gradient = jax.value_and_grad(value, has_aux=True)(new)
    assert float(found) == pytest.approx(loss, abs=1e-6)
    assert float(gradient[0, 0, 0]) == pytest.approx(slope, abs=1e-6)
    assert float(metrics["clip_fraction"]) == clipped


def test_on_policy_the_gradient_is_the_policy_gradient():
    new, _, _, advantages, mask, _ = batch(1)
    weights = loss_weights(mask)
    gradient = jax.grad(lambda x: grpo_loss(x, new, None, advantages, weights)[0])(new)
    np.testing.assert_allclose(gradient, -advantages[..., None] * weights, rtol=1e-6)


def kl_of(distance):
    zero = jnp.zeros((1, 1, 1))

    def value(new):
        loss, metrics = grpo_loss(new, new, zero, jnp.zeros((1, 1)), jnp.ones((1, 1, 1)), kl=1.0)
        return loss, metrics["kl"]

    return jax.value_and_grad(value, has_aux=True)(zero - distance)


def test_kl_is_bounded_before_the_exponent_only():
    (loss, kl), gradient = kl_of(5.0)  # C04
    assert float(loss) == float(kl) == pytest.approx(142.413, abs=1e-3)
    assert float(gradient.sum()) == pytest.approx(1 - math.exp(5), rel=1e-5)
    for distance in (89.0, 100.0, 1e30, -100.0):
        (loss, _), gradient = kl_of(distance)
        assert np.isfinite(loss)
        assert np.isfinite(gradient).all()
    (loss, _), _ = kl_of(math.nan)
    assert np.isnan(loss)


@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_policy_far_from_its_sampler_has_a_finite_loss(gap, advantage):
    arguments = (jnp.zeros((1, 1, 1)), None, jnp.full((1, 1), advantage), jnp.ones((1, 1, 1)))
    loss, gradient = jax.value_and_grad(lambda x: grpo_loss(x, *arguments)[0])(
        jnp.full((1, 1, 1), gap)
    )
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("aggregation", "both", "first"),
    [("sequence", 2.0, 1.0), ("token", 2.5, 1.0), ("constant", 1.25, 0.25)],
)
def test_aggregations_of_the_case_collection(aggregation, both, first):
    losses = np.array([1.0, 3.0])[None, :, None]  # 2 tokens of loss 1, 6 of loss 3, limit 8
    mask = np.array(response_mask([[2, 6]], 8))
    assert float((loss_weights(mask, aggregation) * losses).sum()) == pytest.approx(both)  # C08
    mask[0, 1] = False  # the second is masked out as truncated (C09)
    assert float((loss_weights(mask, aggregation) * losses).sum()) == pytest.approx(first)


def test_constant_aggregation_divides_by_the_limit_not_by_the_padding():
    mask = response_mask([[2, 6]], 6)
    np.testing.assert_allclose(loss_weights(mask, "constant", 8).max(), 1 / 16)


@settings(max_examples=20)
@given(
    st.integers(0, 1000),
    st.sampled_from(AGGREGATIONS),
    st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=3),
)
def test_micro_batches_add_up_however_they_are_cut(seed, aggregation, cuts):
    arrays = batch(seed)
    new, old, ref, advantages, mask, entropy = arrays
    weights = loss_weights(mask, aggregation)

    def run(rows):
        return grpo_loss(
            new[rows], old[rows], ref[rows], advantages[rows], weights[rows],
            entropy=entropy[rows], entropy_coef=0.1,
        )  # fmt: skip

    whole, metrics = run(slice(None))
    edges = [0, *sorted(cuts), 4]
    parts = [run(slice(a, b)) for a, b in pairwise(edges)]
    assert sum(float(loss) for loss, _ in parts) == pytest.approx(float(whole), abs=1e-5)
    summed = {name: sum(m[name] for _, m in parts) for name in metrics}
    for name, value in mean_metrics(metrics).items():
        assert float(mean_metrics(summed)[name]) == pytest.approx(float(value), abs=1e-5)


def test_sharded_over_devices_it_is_the_same_number():
    new, old, ref, advantages, mask, _ = batch(2)
    weights = loss_weights(mask)
    devices = jax.devices()[: math.gcd(len(jax.devices()), len(new))]
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    placed = jax.device_put((new, old, ref, advantages, weights), sharding)
    alone, _ = grpo_loss(new, old, ref, advantages, weights)
    assert float(jax.jit(grpo_loss)(*placed)[0]) == pytest.approx(float(alone), rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_empty_batch_is_zero_with_zero_gradient(aggregation):
    new, old, ref, advantages, mask, _ = batch()
    weights = loss_weights(np.zeros_like(mask), aggregation)
    (loss, metrics), gradient = jax.value_and_grad(
        lambda x: grpo_loss(x, old, ref, advantages, weights), has_aux=True
    )(new)
    assert float(loss) == 0
    assert (np.asarray(gradient) == 0).all()
    assert all(float(value) == 0 for value in mean_metrics(metrics).values())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_masked_out_rows_and_padding_change_nothing(aggregation):
    new, old, ref, advantages, mask, _ = batch(5)
    loss, _ = grpo_loss(new, old, ref, advantages, loss_weights(mask, aggregation))

    def padded(x, value):  # a filtered group (C06), and garbage in the padding
        x = np.where(mask, x, value) if x.ndim == 3 else x
        return np.concatenate([x, np.full_like(x[:1], value)])

    more = np.concatenate([mask, np.zeros_like(mask[:1])])
    weights = loss_weights(more, aggregation)
    arguments = [padded(x, np.nan) for x in (old, ref, advantages)]
    other, gradient = jax.value_and_grad(lambda x: grpo_loss(x, *arguments, weights)[0])(
        padded(new, -np.inf)
    )
    assert float(other) == pytest.approx(float(loss), rel=1e-6)
    assert np.isfinite(gradient).all()


def test_a_nan_advantage_reaches_the_loss():
    new, old, ref, advantages, mask, _ = batch()
    mask[0, 0] = True
    advantages[0, 0] = np.nan
    assert np.isnan(grpo_loss(new, old, ref, advantages, loss_weights(mask))[0])


def test_mask_goes_by_length_alone():
    mask = response_mask([[5, 8, 0]], 8)  # C10: no stop id among the five
    np.testing.assert_array_equal(mask.astype(int)[0, 0], [1, 1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(mask.sum(-1), [[5, 8, 0]])


def test_an_entropy_bonus_needs_entropy():
    new, old, ref, advantages, mask, _ = batch()
    with pytest.raises(ValueError, match="entropy"):
        grpo_loss(new, old, ref, advantages, loss_weights(mask), entropy_coef=0.1)
    with pytest.raises(ValueError, match="mean"):
        loss_weights(mask, "mean")
