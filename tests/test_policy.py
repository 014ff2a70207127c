"""The notebook's interface, on a tiny model that answers."""

import shutil
from dataclasses import replace

import answerer
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxevolve import load_policy
from jaxevolve.answers import extract
from jaxevolve.hf.export import copy_texts
from jaxevolve.runtime import checkpoint
from jaxevolve.runtime.errors import UserError

N, LIMIT = 3, 6
SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def prompts(policy):
    return policy.prompts(answerer.rows(5))


@pytest.fixture(scope="module")
def samples(policy, prompts):
    return policy.generate(prompts, n=N, max_tokens=LIMIT, seed=1)


def test_samples_are_texts_and_arrays_of_one_shape(samples):
    assert [len(group) for group in samples.texts] == [N] * 5
    assert samples.tokens.shape == samples.logprobs.shape == (5, N, LIMIT)
    assert samples.lengths.shape == samples.stopped.shape == (5, N)
    assert all(isinstance(x, np.ndarray) for x in (samples.tokens, samples.lengths))


def test_texts_are_the_tokens_without_their_stop_id(policy, samples):
    for texts, group, lengths in zip(samples.texts, samples.tokens, samples.lengths):
        for text, tokens, length in zip(texts, group, lengths):
            kept = [t for t in tokens[:length].tolist() if t not in policy.processor.stop_ids]
            assert text == policy.processor.tokenizer.decode(kept)
            assert ("\\boxed" in text) == (extract(text) is not None)


def test_the_seed_decides(policy, prompts, samples):
    again = policy.generate(prompts, n=N, max_tokens=LIMIT, seed=1)
    np.testing.assert_array_equal(again.tokens, samples.tokens)
    other = policy.generate(prompts, n=N, max_tokens=LIMIT, seed=2)
    assert (other.tokens != samples.tokens).any((1, 2)).all()


def test_more_samples_begin_with_the_fewer(policy, prompts, samples):
    fewer = policy.generate(prompts, n=1, max_tokens=LIMIT, seed=1)
    np.testing.assert_array_equal(fewer.tokens, samples.tokens[:, :1])


def test_a_longer_limit_continues_the_shorter(policy, prompts, samples):
    shorter = policy.generate(prompts, n=N, max_tokens=4, seed=1)
    np.testing.assert_array_equal(shorter.tokens, samples.tokens[..., :4])


def test_temperature_zero_takes_the_likeliest_token_whatever_the_seed(policy, prompts):
    greedy = policy.generate(prompts, n=2, temperature=0.0, max_tokens=LIMIT)
    again = policy.generate(prompts, n=2, temperature=0.0, max_tokens=LIMIT, seed=7)
    np.testing.assert_array_equal(greedy.tokens, again.tokens)
    np.testing.assert_array_equal(greedy.tokens[:, 0], greedy.tokens[:, 1])
    # No token scores better in its place.
    logprobs = policy.logprobs(prompts, greedy.tokens, greedy.lengths)
    np.testing.assert_allclose(logprobs, greedy.logprobs, atol=1e-4)
    for token in (*answerer.BOX_IDS, *policy.processor.stop_ids):
        others = np.where(np.arange(LIMIT) == 0, token, greedy.tokens)
        one = np.ones_like(greedy.lengths)
        assert (policy.logprobs(prompts, others, one)[..., 0] <= logprobs[..., 0] + 1e-5).all()


def test_top_k_of_one_is_greedy(policy, prompts):
    greedy = policy.generate(prompts, n=1, temperature=0.0, max_tokens=LIMIT)
    only = policy.generate(prompts, n=1, top_k=1, max_tokens=LIMIT, seed=3)
    np.testing.assert_array_equal(only.tokens, greedy.tokens)


def test_logprobs_end_with_the_response_and_follow_the_temperature(policy, prompts, samples):
    logprobs = policy.logprobs(prompts, samples.tokens, samples.lengths)
    within = np.arange(LIMIT) < samples.lengths[..., None]
    assert (logprobs[within] < 0).all()
    assert not logprobs[~within].any()
    np.testing.assert_allclose(logprobs, samples.logprobs, atol=1e-4)


def test_an_instruction_follows_every_question(policy, prompts):
    longer = policy.prompts(answerer.rows(5), "Box the answer.")
    assert (longer.length > prompts.length).all()
    tokens = longer.tokens[3, : longer.length[3]]
    assert "find x Box the answer." in policy.processor.tokenizer.decode(tokens)


def test_a_checkpoint_of_a_run_is_loaded_by_any_of_its_names(policy, answering, tmp_path):
    params = jax.tree.map(lambda x: x + 1, policy.params)
    state = {"params": params, "updates": jnp.int32(7)}
    copy = lambda folder: copy_texts(answering, folder)
    step = checkpoint.save(tmp_path / "run", 3, state, {}, write_files=copy)
    for name in (tmp_path / "run", tmp_path / "run" / "checkpoints", step):
        loaded = load_policy(name)
        jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
        assert loaded.processor.stop_ids == policy.processor.stop_ids
    half = load_policy(step, dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(half.params)} == {jnp.dtype("bfloat16")}


def test_bfloat16_samples(answering, prompts):
    half = load_policy(answering, dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(half.params)} == {jnp.dtype("bfloat16")}
    samples = half.generate(prompts, n=1, max_tokens=3)
    assert np.isfinite(samples.logprobs).all()


def test_a_policy_is_a_value(policy, prompts, samples):
    other = replace(policy, params=answerer.prefer(policy.params, {answerer.BOX_IDS[3]: 40.0}))
    texts = other.generate(prompts, n=N, max_tokens=LIMIT, seed=1).texts
    assert {extract(text) for group in texts for text in group} == {"0.5"}
    again = policy.generate(prompts, n=N, max_tokens=LIMIT, seed=1)
    np.testing.assert_array_equal(again.tokens, samples.tokens)


@pytest.mark.parametrize("lacking", ["config.json", "tokenizer.json", SHARD])
def test_a_folder_that_lacks_a_file_is_refused_by_name(answering, tmp_path, lacking):
    folder = shutil.copytree(answering, tmp_path / "model")
    (folder / lacking).unlink()
    with pytest.raises(UserError) as caught:
        load_policy(folder)
    assert str(folder) in str(caught.value)


def test_no_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        load_policy(tmp_path / "nowhere")
