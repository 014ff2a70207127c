"""Chunked log-probabilities and entropies against the full softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxevolve.models import logprobs
from jaxevolve.models.logprobs import token_logprobs


@pytest.fixture(params=[(7, 8192), (100, 32), (100, 25), (33, 32), (33, None)], ids=str)
def case(request, monkeypatch):
    vocabulary, chunk = request.param
    if chunk:
        monkeypatch.setattr(logprobs, "CHUNK", chunk)
        monkeypatch.setattr(logprobs, "KEPT", 0)
    rng = np.random.default_rng(vocabulary)
    hidden = jnp.array(rng.standard_normal((2, 5, 16)), jnp.float32)
    head = jnp.array(rng.standard_normal((vocabulary, 16)), jnp.float32)
    return hidden, head, jnp.array(rng.integers(0, vocabulary, (2, 5)))


def full(hidden, head, tokens, temperature):
    logits = jax.nn.log_softmax(hidden @ head.T / temperature)
    chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return chosen, -(jnp.exp(logits) * logits).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_equal_the_full_softmax(case, temperature):
    for ours, wanted in zip(token_logprobs(*case, temperature), full(*case, temperature)):
        np.testing.assert_allclose(ours, wanted, atol=1e-5)


@pytest.mark.parametrize("of", [[1, 1], [1, 0], [0, 1]], ids=str)
def test_gradients_equal_those_of_the_full_softmax(case, of):
    hidden, head, tokens = case
    weights = jax.random.normal(jax.random.key(0), (2, *tokens.shape))

    def loss(function, hidden, head):
        values = function(hidden, head, tokens, 0.8)
        return sum((w * x).sum() for w, x, wanted in zip(weights, values, of) if wanted)

    ours = jax.grad(lambda *x: loss(token_logprobs, *x), (0, 1))(hidden, head)
    wanted = jax.grad(lambda *x: loss(full, *x), (0, 1))(hidden, head)
    for mine, theirs in zip(ours, wanted):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


def test_no_array_holds_the_logits_of_all_tokens_unless_they_are_small(monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK", 64)
    monkeypatch.setattr(logprobs, "KEPT", 4 * 100 * 1000 - 1)
    tokens, vocabulary = 100, 1000
    arguments = (jnp.zeros((tokens, 8)), jnp.zeros((vocabulary, 8)), jnp.zeros(tokens, int))
    loss = lambda *x: token_logprobs(*x)[0].sum()
    program = jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).compile().as_text()
    assert f"f32[{tokens},{vocabulary}]" not in program
    assert f"f32[{vocabulary},{tokens}]" not in program
    assert f"f32[{tokens},64]" in program
