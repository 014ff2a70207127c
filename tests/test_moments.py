"""Rounded moments against exact ones: right on average, as good in training, small, resumable."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType

from jaxevolve.moments import block_size, decode, encode, round_bfloat16, scale_by_adam
from jaxevolve.runtime import checkpoint
from jaxevolve.runtime import mesh as meshes

KEY = jax.random.key(0)
KINDS = ("bfloat16", "int8")


def rounded(kind, x, key, signed):
    bits = jax.random.bits(key, x.shape, jnp.uint16)
    if kind == "bfloat16":
        return round_bfloat16(x, bits).astype(jnp.float32)
    return decode(*encode(x, bits, signed=signed), signed=signed)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("kind", "apart"), [("bfloat16", 2**-7), ("int8", 2 ** (1 / 8) - 1)])
def test_a_number_becomes_a_near_one_and_on_average_itself(kind, apart, signed):
    rng = np.random.default_rng(0)
    x = np.exp2(rng.uniform(-12, 0, (2, 300))) * (rng.choice([-1, 1], (2, 300)) if signed else 1)
    x = jnp.asarray(x, jnp.float32)
    many = jax.jit(jax.vmap(lambda key: rounded(kind, x, key, signed)))(jax.random.split(KEY, 2000))
    assert np.abs(many / x - 1).max() < 1.001 * apart
    # Six standard errors of a mean of 2000 that are at most half a step from it.
    np.testing.assert_allclose(many.mean(0) / x, 1, atol=6 * apart / 2 / 2000**0.5)


@pytest.mark.parametrize(("width", "signed"), [(1, True), (96, False), (300, True), (700, False)])
def test_codes_have_the_shape_of_their_numbers_and_zero_stays_zero(width, signed):
    x = jnp.array(np.random.default_rng(0).standard_normal((3, width)), jnp.float32) ** 2
    x = x.at[0].set(0)
    codes, scales = encode(x, jnp.zeros(x.shape, jnp.uint16), signed=signed)
    assert codes.shape == x.shape
    assert codes.dtype.itemsize == 1
    assert scales.shape == (3, -(-width // block_size(width)))
    back = decode(codes, scales, signed=signed)
    assert not back[0].any()
    np.testing.assert_array_equal(back.max(1), x.max(1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_moment_fades_as_it_should(kind):
    x = jnp.exp2(jax.random.uniform(KEY, (4096,)))
    step = lambda i, y: rounded(kind, 0.999 * y, jax.random.fold_in(KEY, i), False)
    after = jax.jit(lambda x: jax.lax.fori_loop(0, 700, step, x))(x)
    assert (after / x).mean() == pytest.approx(0.999**700, rel=0.05)
    nearest = lambda i, y: (0.999 * y).astype(jnp.bfloat16).astype(jnp.float32)
    still = jax.lax.fori_loop(0, 700, nearest, x)
    assert (still / x).mean() > 0.99  # what rounding to the nearest would do


def regression(transform, steps=400, state=None, params=None):
    """Losses of a small network that learns a fixed function; the state and parameters behind."""
    rng = np.random.default_rng(0)
    x = jnp.array(rng.standard_normal((256, 32)), jnp.float32)
    y = jnp.sin(x @ jnp.array(rng.standard_normal((32, 4)), jnp.float32))
    if params is None:
        params = {
            "up": jnp.array(rng.standard_normal((64, 32)) / 6, jnp.float32),
            "down": jnp.array(rng.standard_normal((4, 64)) / 8, jnp.float32),
        }
        state = transform.init(params)

    def loss(params):
        return jnp.square(jnp.tanh(x @ params["up"].T) @ params["down"].T - y).mean()

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        changes, state = transform.update(grads, state, params)
        return (optax.apply_updates(params, changes), state), value

    (params, state), losses = jax.jit(lambda c: jax.lax.scan(step, c, length=steps))(
        (params, state)
    )
    return np.asarray(losses), state, params


def adam(kind):
    first = optax.scale_by_adam(0.9, 0.999)
    if kind != "float32":
        first = scale_by_adam(0.9, 0.999, kind, KEY)
    return optax.chain(first, optax.scale_by_learning_rate(3e-3))


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_as_good_as_with_exact_moments(kind):
    exact, ours = regression(adam("float32"))[0], regression(adam(kind))[0]
    assert exact[-1] < 1e-3 * exact[0]
    np.testing.assert_allclose(ours, exact, rtol=0.1, atol=1e-4 * exact[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(kind, tmp_path):
    whole = regression(adam(kind), 20)
    half = regression(adam(kind), 10)[1:]
    checkpoint.save(tmp_path, 10, half, {})
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), half)
    again = regression(adam(kind), 10, *checkpoint.restore(tmp_path, wanted).state)
    jax.tree.map(np.testing.assert_array_equal, again[1:], whole[1:])


@pytest.mark.parametrize(("kind", "most"), [("bfloat16", 4), ("int8", 2.26)])
def test_bytes_of_a_parameter(kind, most):
    params = {"layers": {"mlp": {"up_proj": {"weight": jnp.zeros((2, 64, 2048))}}}}
    state = scale_by_adam(0.9, 0.999, kind, KEY).init(params)
    held = sum(x.nbytes for x in jax.tree.leaves((state.mu, state.nu)))
    assert held / (2 * 64 * 2048) <= most


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_split_like_their_parameters(kind):
    mesh = AbstractMesh((1, 8, 2), meshes.AXES, axis_types=(AxisType.Auto,) * 3)
    weight = jax.ShapeDtypeStruct((28, 18944, 3584), jnp.float32)
    params = {"model": {"layers": {"mlp": {"up_proj": {"weight": weight}}}}}
    state = jax.eval_shape(scale_by_adam(0.9, 0.999, kind, KEY).init, params)
    (wanted,) = jax.tree.leaves(meshes.shardings(mesh, params))
    places = jax.tree.leaves(meshes.shardings(mesh, (state.mu, state.nu)))
    assert {place.spec for place in places} == {wanted.spec}


@pytest.mark.parametrize(
    ("width", "size"), [(2048, 256), (3584, 64), (11008, 32), (18944, 64), (96, 96), (300, 256)]
)
def test_blocks_are_whole_in_eight_shards_where_they_can_be(width, size):
    assert block_size(width) == size
