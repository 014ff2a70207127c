import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from jaxevolve.rollout import sampling
from jaxevolve.rollout.sampling import Sampling, first_above, keep_likely, response_keys, sample

DRAWS = 40_000


def drawn(logits, rules=Sampling(), temperature=1.0):
    keys = keys_of(np.arange(DRAWS))
    logits = jnp.broadcast_to(jnp.asarray(logits, jnp.float32)[:, None], (len(logits), DRAWS))
    tokens, _ = jax.jit(sample, static_argnums=4)(
        logits, keys, jnp.full(DRAWS, 3), temperature, rules
    )
    return np.bincount(tokens, minlength=len(logits))


def keys_of(ids, members=None, phases=None, key=jax.random.key(0)):
    zeros = np.zeros(len(ids), np.int32)
    members, phases = (zeros if x is None else np.array(x) for x in (members, phases))
    return response_keys(key, phases, np.array(ids, np.uint32), members)


def assert_follows(counts, p):
    """Chi-square at 1e-4, small expectations pooled so that the tail is tested too."""
    assert counts[p == 0].sum() == 0
    order = np.argsort(p)
    groups = np.cumsum(p[order] * DRAWS) // 10
    expected = np.array([p[order][groups == g].sum() for g in np.unique(groups)]) * DRAWS
    seen = np.array([counts[order][groups == g].sum() for g in np.unique(groups)])
    keep = expected > 1
    statistic = ((seen - expected)[keep] ** 2 / expected[keep]).sum()
    assert statistic < chi2.ppf(1 - 1e-4, keep.sum() - 1)


@pytest.mark.parametrize("vocabulary", [10, 700, 3000])
def test_tokens_follow_the_softmax_also_in_the_tail(vocabulary):
    logits = np.random.default_rng(vocabulary).standard_normal(vocabulary) * 2
    p = np.exp(logits - logits.max())
    assert_follows(drawn(logits), p / p.sum())


def test_temperature_divides_the_logits():
    logits = np.random.default_rng(1).standard_normal(50)
    p = np.exp(logits / 0.5)
    assert_follows(drawn(logits, temperature=0.5), p / p.sum())


def test_top_k_keeps_the_k_likeliest():
    logits = np.random.default_rng(2).standard_normal(50)
    p = np.where(logits >= np.sort(logits)[-5], np.exp(logits), 0)
    assert_follows(drawn(logits, Sampling(top_k=5)), p / p.sum())


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    p = np.array([0.5, 0.25, 0.15, 0.06, 0.04])
    kept = np.array([0.5, 0.25, 0.15, 0, 0])
    assert_follows(drawn(np.log(p), Sampling(top_p=0.8)), kept / kept.sum())


def test_banned_tokens_are_never_drawn():
    logits = np.zeros(20)
    logits[7] = 50
    counts = drawn(logits, Sampling(banned_ids=(7, 8)))
    assert_follows(counts, np.where(np.isin(np.arange(20), (7, 8)), 0, 1 / 18))


def test_temperature_zero_takes_the_likeliest_allowed_token():
    logits = jnp.array([[0.0, 3.0, 2.0, 9.0], [5.0, 3.0, 5.0, 9.0]]).T
    rules = Sampling(banned_ids=(3,))
    token, logprob = sample(logits, keys_of([1, 2]), jnp.zeros(2, int), jnp.float32(0), rules)
    assert token.tolist() == [1, 0]  # of two equal ones the first
    wanted = jax.nn.log_softmax(logits, axis=0)[token, jnp.arange(2)]
    np.testing.assert_allclose(logprob, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "rules", [Sampling(), Sampling(banned_ids=(4, 7)), Sampling(top_p=0.5), Sampling(top_k=2)]
)
def test_stored_logprobs_are_those_of_the_tempered_softmax(rules):
    logits = jax.random.normal(jax.random.key(1), (300, 12)).at[7].add(3.0)
    keys = keys_of(np.arange(12))
    tokens, logprobs = sample(logits, keys, jnp.zeros(12, int), 0.7, rules)
    wanted = jax.nn.log_softmax(logits / 0.7, axis=0)[tokens, jnp.arange(12)]
    np.testing.assert_allclose(logprobs, wanted, atol=1e-6)


def test_a_banned_token_may_be_likelier_than_float32_can_tell():
    logits = jnp.zeros((20, 200)).at[7].set(500.0)
    tokens, logprobs = sample(
        logits, keys_of(np.arange(200)), jnp.zeros(200, int), 1.0, Sampling(banned_ids=(7,))
    )
    assert set(tokens.tolist()) == set(range(20)) - {7}
    np.testing.assert_allclose(logprobs, -500.0)


def test_keys_differ_by_phase_sample_and_member_and_not_by_the_batch():
    grid = [(p, i, m) for p in range(2) for i in (3, 9, 4) for m in range(8)]
    phases, ids, members = zip(*grid)
    keys = jax.random.key_data(keys_of(ids, members, phases))
    assert len(np.unique(keys, axis=0)) == len(grid)
    alone = jax.random.key_data(keys_of(ids[13:14], members[13:14], phases[13:14]))
    np.testing.assert_array_equal(alone[0], keys[13])
    other = keys_of(ids, members, phases, jax.random.key(1))
    assert (jax.random.key_data(other) != keys).any(1).all()


@settings(max_examples=50)
@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True, width=32), st.integers(0, 2**16))
def test_a_token_of_probability_zero_is_never_taken(size, uniform, seed):
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random(size) < 0.5, 0, rng.random(size)).astype("f4")
    weights[rng.integers(size)] = 1.0
    target = jnp.float32(uniform) * weights.sum()
    index, rest = first_above(jnp.array(weights)[:, None], target[None])
    assert 0 <= index[0] < size
    assert weights[index[0]] > 0
    assert rest[0] >= 0


@pytest.mark.parametrize("vocabulary", [1000, 1024])
def test_a_draw_is_the_inverse_of_the_running_sum_in_the_order_of_the_vocabulary(vocabulary):
    count = 200
    logits = 2 * jax.random.normal(jax.random.key(2), (vocabulary, count))
    keys = keys_of(np.arange(count))
    tokens, _ = sample(logits, keys, jnp.full(count, 5), 1.0, Sampling())
    uniforms = np.asarray(jax.vmap(sampling.uniform, (0, None))(keys, 5), np.float64)
    weights = np.exp(np.asarray(logits, np.float64))
    running = np.cumsum(weights, axis=0) / weights.sum(0)
    before = np.where(tokens > 0, running[tokens - 1, np.arange(count)], 0)
    assert (before - 1e-6 <= uniforms).all()
    assert (uniforms <= running[tokens, np.arange(count)] + 1e-6).all()


def test_top_p_of_one_and_top_k_of_zero_keep_all():
    logits = jnp.array([[1.0, 2.0, 3.0]]).T
    np.testing.assert_array_equal(keep_likely(logits, 1.0, 0), logits)
