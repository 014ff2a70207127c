"""Decoding on a tiny model: what a sample depends on, where it ends, and how often XLA compiles."""

from dataclasses import replace
from operator import itemgetter

import answerer
import jax
import numpy as np
import pytest
import tiny

from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.policy import load_policy, sampling_rules, step_key
from jaxevolve.rollout import caches, decode, engine
from jaxevolve.rollout.generate import generate, one
from jaxevolve.rollout.sampling import MATERNAL
from jaxevolve.runtime.metrics import CompileCounter

LIMIT, GROUP = 12, 8
STOPS = (tiny.EOS, tiny.PAD)
PROGRAM = "decode_on_cpu" if caches.unrolled() else "decode"


def draw(policy, prompts, *, params=None, chunk=LIMIT, temperature=1.0):
    """8 responses a prompt."""
    responses, stats = generate(
        policy.model,
        policy.params if params is None else params,
        prompts,
        n=GROUP,
        max_tokens=LIMIT,
        rows=64,
        key=step_key(0, 0),
        temperature=temperature,
        rules=sampling_rules(policy.processor, 1.0, 0),
        width=GROUP,
        fewest=GROUP,
        chunk=chunk,
    )
    assert stats.tokens == responses.lengths.sum()
    return responses


def some(tree, rows):
    """Some rows of a tree."""
    return jax.tree.map(itemgetter(np.asarray(rows)), tree)


def assert_same_samples(one, other):
    """Bit by bit what was drawn; log-probabilities as far as other shapes let XLA round alike."""
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_array_equal(one.stopped, other.stopped)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


@pytest.fixture(scope="module")
def rows():
    """Eight rows; the fourth has no image, the fifth two."""
    return answerer.rows(8)


@pytest.fixture(scope="module")
def prompts(policy, rows):
    return policy.prompts(rows)


@pytest.fixture(scope="module")
def samples(policy, prompts):
    return draw(policy, prompts)


def unstoppable(policy):
    return answerer.prefer(policy.params, dict.fromkeys(STOPS, -40.0))


def test_a_sample_does_not_depend_on_what_stands_beside_it(policy, rows, prompts, samples):
    order = np.random.default_rng(0).permutation(len(rows))
    assert_same_samples(draw(policy, some(prompts, order)), some(samples, order))


@pytest.mark.parametrize("row", [1, 3, 4], ids=["one image", "no image", "two images"])
def test_a_sample_is_the_same_alone(policy, rows, samples, row):
    alone = policy.prompts([rows[row]])
    assert_same_samples(draw(policy, alone), some(samples, [row]))


@pytest.mark.parametrize("chunk", [5, 100])
def test_a_sample_does_not_depend_on_the_chunk(policy, prompts, samples, chunk):
    assert_same_samples(draw(policy, prompts, chunk=chunk), samples)


def test_the_members_of_a_group_differ(samples):
    for group in samples.tokens:
        assert len(np.unique(group, axis=0)) == GROUP


def test_a_stop_id_ends_a_response_and_what_follows_is_empty(samples):
    place = np.arange(LIMIT)
    last = place == samples.lengths[..., None] - 1
    stop = np.isin(samples.tokens, STOPS)
    assert {*samples.tokens[stop]} == set(STOPS)  # both have been drawn
    np.testing.assert_array_equal(stop & (place < samples.lengths[..., None]), stop & last)
    np.testing.assert_array_equal((stop & last).any(-1), samples.stopped)
    beyond = place >= samples.lengths[..., None]
    assert beyond.any()
    assert not samples.tokens[beyond].any()
    assert not samples.logprobs[beyond].any()
    assert (samples.lengths[~samples.stopped] == LIMIT).all()


@pytest.fixture
def steps_taken(monkeypatch):
    """How many tokens a row each call of the decoding program made."""
    taken = []
    program = getattr(decode, PROGRAM)

    def watched(*arguments):
        decoding, steps = program(*arguments)
        taken.append(int(steps))
        return decoding, steps

    monkeypatch.setattr(decode, PROGRAM, watched)
    return taken


@pytest.mark.parametrize("stop", STOPS)
def test_nothing_is_decoded_after_every_response_has_ended(policy, prompts, steps_taken, stop):
    params = answerer.prefer(policy.params, {stop: 40.0})
    responses = draw(policy, prompts, params=params)
    assert steps_taken == [1]
    assert (responses.tokens[..., 0] == stop).all()
    assert (responses.lengths == 1).all()


def test_no_chunk_is_begun_after_every_response_has_ended(policy, prompts, steps_taken):
    params = answerer.prefer(policy.params, {tiny.EOS: 40.0})
    responses = draw(policy, prompts, params=params, chunk=5)
    assert steps_taken == [1]
    assert responses.tokens.shape == (8, GROUP, LIMIT)
    assert (responses.lengths == 1).all()


@pytest.mark.parametrize("chunk", [5, LIMIT])
def test_a_response_without_a_stop_ends_exactly_at_the_limit(policy, prompts, chunk):
    samples = draw(policy, prompts, params=unstoppable(policy), chunk=chunk)
    assert samples.tokens.shape[-1] == LIMIT
    assert (samples.lengths == LIMIT).all()
    assert (samples.logprobs < 0).all()
    assert not samples.stopped.any()


def test_each_job_has_its_own_limit(policy, prompts):
    params = unstoppable(policy)
    limits = [0, 1, 2, 5, 7, 11, LIMIT, 3]
    jobs = [
        engine.Job(one(prompts, p), MATERNAL, range(GROUP), limit, tag=p)
        for p, limit in enumerate(limits)
    ]
    whole = draw(policy, prompts, params=params)
    seen = set()

    def finish(job, member, response):
        seen.add((job.tag, member))
        assert len(response.tokens) == len(response.logprobs) == job.limit
        assert not response.stopped
        within = job.tag, member, slice(job.limit)
        np.testing.assert_array_equal(response.tokens, whole.tokens[within])
        np.testing.assert_allclose(response.logprobs, whole.logprobs[within], atol=2e-5)
        return []

    engine.run(
        policy.model,
        params,
        jobs,
        finish,
        key=step_key(0, 0),
        temperature=1.0,
        rules=sampling_rules(policy.processor, 1.0, 0),
        rows=64,
        width=GROUP,
        fewest=GROUP,
        chunk=LIMIT,
        shards=1,
        place=lambda tree, axis=0: jax.device_put(tree),
    )
    assert len(seen) == 8 * GROUP


def test_image_and_padding_ids_are_never_sampled_however_likely(policy, prompts):
    banned = policy.processor.banned_ids
    image_ids = {tiny.SPECIAL_ID[f"<|{name}|>"] for name in ("image_pad", "video_pad")}
    no_token = policy.model.config.vocab_size - 1
    assert image_ids | {tiny.SPECIAL_ID["<|vision_start|>"], no_token} <= {*banned.tolist()}
    params = answerer.prefer(policy.params, dict.fromkeys(banned.tolist(), 20.0))
    samples = draw(policy, prompts, params=params)
    assert samples.logprobs.max(where=samples.tokens > 0, initial=-99) < -15  # it wanted them
    assert not np.isin(samples.tokens, banned).any()
    scored = replace(policy, params=params).logprobs(prompts, samples.tokens, samples.lengths)
    np.testing.assert_allclose(scored, samples.logprobs, rtol=1e-5, atol=1e-4)


def test_stored_logprobs_are_those_that_the_trainer_computes_again(policy, prompts):
    samples = policy.generate(prompts, n=GROUP, max_tokens=LIMIT, temperature=0.7)
    again = policy.logprobs(prompts, samples.tokens, samples.lengths, temperature=0.7)
    np.testing.assert_allclose(again, samples.logprobs, atol=1e-4)
    untempered = policy.logprobs(prompts, samples.tokens, samples.lengths)
    assert np.abs(untempered - samples.logprobs).max() > 0.1


def test_scoring_remembers_nothing_of_an_earlier_generation(policy, prompts, samples):
    part, of_part = some(prompts, [5, 6]), some(samples, [5, 6])
    fresh = load_policy(policy.processor.folder).logprobs(part, of_part.tokens, of_part.lengths)
    policy.generate(prompts, n=GROUP, max_tokens=LIMIT)
    again = policy.logprobs(part, of_part.tokens, of_part.lengths)
    np.testing.assert_array_equal(again, fresh)
    np.testing.assert_allclose(again, of_part.logprobs, atol=1e-4)


def test_a_row_of_text_scores_the_same_among_images_and_alone(policy, rows, prompts, samples):
    mixed = policy.logprobs(prompts, samples.tokens, samples.lengths)[3:4]
    of_row = some(samples, [3])
    alone = policy.logprobs(policy.prompts([rows[3]]), of_row.tokens, of_row.lengths)
    np.testing.assert_allclose(mixed, alone, atol=1e-5)


def test_programs_are_as_many_as_buckets_and_a_second_epoch_compiles_nothing(policy):
    # One layer a tower: what is counted is programs, not their work.
    vision = replace(policy.model.config.vision, depth=1)
    config = replace(policy.model.config, num_hidden_layers=1, vision=vision)
    small = replace(policy, model=Qwen2_5_VL(config), params=answerer.random_params(config, seed=0))
    batches = [small.prompts(answerer.rows(2, seed)) for seed in range(12)]
    prefills = {(b.tokens.shape[1], b.pixels.shape[1]) for b in batches}
    lengths = {b.tokens.shape[1] for b in batches}
    sizes = {len(b.pixels[0]) for b in batches}
    assert len(batches) > len(prefills) > len(lengths) > 1
    assert len(sizes) > 1
    program = getattr(decode, PROGRAM)
    before = decode.prefill._cache_size(), program._cache_size()
    for prompts in batches:
        draw(small, prompts)
    assert decode.prefill._cache_size() - before[0] <= len(prefills)
    assert program._cache_size() - before[1] <= len(lengths)
    counter = CompileCounter()
    for prompts in batches:
        draw(small, prompts)
    assert counter.count == 0


def test_a_sample_is_the_same_in_a_new_program(policy, rows, samples):
    alone = policy.prompts([rows[3]])
    first = draw(policy, alone)
    jax.clear_caches()
    again = draw(policy, alone)
    jax.tree.map(np.testing.assert_array_equal, again, first)
