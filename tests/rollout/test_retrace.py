"""Where responses are cut, the prompts that follow from it, and the noise on their images."""

from dataclasses import replace
from fractions import Fraction

import answerer
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.models.inputs import Prompts
from jaxevolve.recipes.csrs import random_rates
from jaxevolve.rollout.retrace import anchors, fork, perturb, position_by_others


def cut(lengths, *, stopped=True, rule="fraction", rate=0.7, token=0, limit=1000):
    """Anchors and limits of responses of so many tokens, the stop id not among them."""
    lengths, stopped = np.asarray(lengths), np.broadcast_to(stopped, np.shape(lengths))
    return anchors(lengths + stopped, stopped, rule=rule, rate=rate, token=token, max_tokens=limit)


@pytest.mark.parametrize(
    ("length", "anchor"), [(0, 0), (1, 0), (2, 1), (3, 2), (9, 6), (10, 7), (11, 7)]
)
def test_the_anchor_is_the_floor_of_seven_tenths(length, anchor):
    assert cut(length)[0].item() == anchor
    assert cut(length, stopped=False)[0].item() == anchor


@given(st.integers(0, 10**6), st.integers(0, 5000))
def test_the_floor_is_that_of_exact_arithmetic(millionths, length):
    exact = int(Fraction(millionths, 10**6) * length)
    anchor, limit = cut(length, rate=millionths / 10**6, limit=5000)
    assert anchor.item() == (exact if length >= 2 else 0)
    assert limit.item() == 5000 - anchor.item()


def test_twenty_nine_hundredths_of_a_hundred_are_twenty_nine():
    assert int(0.29 * 100) == 28  # what floating point makes of it
    assert cut(100, rate=0.29)[0].item() == 29


def test_the_stop_id_does_not_count():
    assert cut(10, stopped=True)[0].item() == cut(10, stopped=False)[0].item() == 7


def test_at_rate_one_a_response_of_full_length_has_nothing_to_follow():
    anchor, limit = cut([4, 4], stopped=[True, False], rate=1.0, limit=4)
    assert anchor.tolist() == [4, 4]
    assert limit.tolist() == [0, 0]


def random_cut(lengths, *, ids=None, seed=0):
    """The same at random fractions, one a response, as the recipe draws them."""
    ids = np.arange(len(lengths), dtype=np.uint32) if ids is None else ids
    rates = random_rates(jax.random.key(seed), ids, len(lengths[0]))
    return cut(lengths, rule="random", rate=rates)


def test_random_anchors_are_uniform_below_the_length_and_one_a_response():
    anchor, limit = random_cut(np.full((500, 8), 10))
    counts = np.bincount(anchor.ravel(), minlength=10)
    assert len(counts) == 10
    assert np.abs(counts - 400).max() < 4 * np.sqrt(400)
    assert (anchor[:, 0] != anchor[:, 1]).any()
    np.testing.assert_array_equal(limit, 1000 - anchor)


def test_random_anchors_follow_from_the_key_and_the_sample_and_not_from_the_batch():
    lengths, ids = np.full((6, 8), 900), np.arange(6, dtype=np.uint32)
    one = random_cut(lengths, ids=ids)[0]
    np.testing.assert_array_equal(one, random_cut(lengths, ids=ids)[0])
    np.testing.assert_array_equal(one[4:5], random_cut(lengths[:1], ids=ids[4:5])[0])
    assert (one != random_cut(lengths, seed=1)[0]).all(-1).any()


def test_random_anchors_of_responses_too_short_to_cut_are_zero():
    assert random_cut([[0, 1]] * 50)[0].max() == 0


def test_a_random_anchor_is_below_the_length_however_near_to_one_its_rate(monkeypatch):
    largest = jnp.nextafter(jnp.float32(1), jnp.float32(0))
    monkeypatch.setattr(jax.random, "uniform", lambda key: largest)
    assert random_cut([[2, 900]])[0].tolist() == [[1, 899]]


def test_a_fixed_anchor_keeps_what_had_ended_before_it_as_it_is():
    lengths, stopped = [3, 5, 6, 9, 3], [True, True, True, True, False]
    anchor, limit = cut(lengths, stopped=stopped, rule="token", token=5, limit=20)
    assert anchor.tolist() == [3, 5, 5, 5, 3]
    assert limit.tolist() == [0, 15, 15, 15, 17]


def test_a_position_by_others_is_the_rate_of_their_mean_length():
    own = np.array([[10, 20, 30], [7, 7, 8]])
    # Means of the others: 25, 20, 15 and 7.5, 7.5, 7.
    assert position_by_others(own, 0.7).tolist() == [[17, 14, 10], [5, 5, 4]]
    assert position_by_others(np.array([100, 100]), 0.29).tolist() == [29, 29]


@given(st.lists(st.integers(0, 2000), min_size=2, max_size=8), st.data())
def test_a_responses_own_length_has_no_part_in_its_position(lengths, data):
    member = data.draw(st.integers(0, len(lengths) - 1))
    changed = list(lengths)
    changed[member] = data.draw(st.integers(0, 2000))
    one, other = (position_by_others(np.array(own), 0.7)[member] for own in (lengths, changed))
    assert one == other
    assert one <= 0.7 * max(lengths)


# A toy reasoner: token 1 thinks on, 2 has decided for a short derivation, 3 for a long one; 0 is
# the stop id. The last token is the answer.
STEP = np.array([[1, 0, 0, 0], [0, 0.4, 0.3, 0.3], [0.5, 0, 0.5, 0], [0.05, 0, 0, 0.95]])
LIMIT = 60


def walk(generator, last, limits):
    """Continues from token `last` for at most `limits` tokens -> tokens [N, LIMIT], lengths."""
    tokens = np.zeros((len(last), LIMIT), np.int32)
    lengths = np.zeros(len(last), np.int32)
    going = limits > 0
    for i in range(LIMIT):
        uniform = generator.random((len(last), 1))
        last = np.where(going, (uniform > STEP.cumsum(1)[last]).sum(1), last)
        tokens[:, i] = np.where(going, last, 0)
        lengths += going
        going &= (last > 0) & (lengths < limits)
    return tokens, lengths


def answers(tokens, lengths):
    """The last token before the stop id; 0 where there is none, or the response was cut."""
    stopped = np.take_along_axis(tokens, lengths[:, None] - 1, 1)[:, 0] == 0
    place = np.maximum(lengths - 2, 0)[:, None]
    return np.where(stopped & (lengths > 1), np.take_along_axis(tokens, place, 1)[:, 0], 0)


def shares_before_and_after(**rule):
    """The answers' shares among maternal responses and among re-inferences; one standard error."""
    generator, count = np.random.default_rng(0), 100_000
    tokens, lengths = walk(generator, np.full(count, 1), np.full(count, LIMIT))
    stopped = np.take_along_axis(tokens, lengths[:, None] - 1, 1)[:, 0] == 0
    if rule["rule"] == "group":
        own = (lengths - stopped).reshape(-1, 8)
        rule["token"] = position_by_others(own, rule["rate"]).reshape(-1)
    anchor, limit = anchors(lengths, stopped, max_tokens=LIMIT, **rule)
    before = np.take_along_axis(tokens, np.maximum(anchor - 1, 0)[:, None], 1)[:, 0]
    more, follow = walk(generator, np.where(anchor > 0, before, 1), limit)
    after = answers(more, np.maximum(follow, 1))
    # A continuation that stops at once leaves the prefix's last token as the answer.
    after = np.where((follow == 1) & (more[:, 0] == 0), np.where(anchor > 0, before, 0), after)
    after = np.where(limit == 0, answers(tokens, lengths), after)
    shares = [np.bincount(a, minlength=4) / count for a in (answers(tokens, lengths), after)]
    return *shares, np.sqrt(2 * 0.25 / count)


@pytest.mark.parametrize("token", [1, 2, 5, 20])
def test_a_fixed_anchor_leaves_the_distribution_of_answers_as_it_was(token):
    before, after, error = shares_before_and_after(rule="token", rate=0.7, token=token)
    assert before[2] > 0.3
    np.testing.assert_allclose(after, before, atol=4 * error)


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_an_anchor_by_the_others_leaves_the_distribution_of_answers_as_it_was(rate):
    before, after, error = shares_before_and_after(rule="group", rate=rate, token=0)
    np.testing.assert_allclose(after, before, atol=4 * error)


@pytest.mark.parametrize("lengths", [[35, 26], [35, 26, 40], [20, 26, 40]])
def test_what_a_fraction_gives_an_answer_follows_from_what_is_decided_again(lengths):
    """Which answer it will be is decided at token 21: share (1 + again on average - again)."""
    generator, lengths, count = np.random.default_rng(1), np.array(lengths), 200_000
    share = np.arange(1, len(lengths) + 1) / np.arange(1, len(lengths) + 1).sum()
    first, second = generator.choice(len(lengths), size=(2, count), p=share)
    anchor, _ = anchors(
        lengths[first], np.False_, rule="fraction", rate=0.7, token=0, max_tokens=60
    )
    after = np.bincount(np.where(anchor <= 21, second, first), minlength=len(lengths)) / count
    again = lengths * 7 // 10 <= 21
    expected = share * (1 + share @ again - again)
    np.testing.assert_allclose(after, expected, atol=4 * np.sqrt(0.25 / count))


def test_an_anchor_at_a_fraction_favors_the_longer_derivation():
    before, after, error = shares_before_and_after(rule="fraction", rate=0.7, token=0)
    assert after[3] - before[3] > 20 * error
    assert before[2] - after[2] > 20 * error


PREFIXES = ("\\boxed{1} find x", "\\boxed{2}")


@pytest.fixture(scope="module")
def forked(policy):
    """Prompts, a response each, and by prefix: the tokens kept and the prompts that follow."""
    prompts = policy.prompts(answerer.rows(5))
    encode = policy.processor.tokenizer.backend_tokenizer.encode
    kept = {text: encode(text, add_special_tokens=False).ids for text in PREFIXES}
    new = {}
    for text, ids in kept.items():
        tokens = np.full((5, 12), 7, np.int32)
        tokens[:, : len(ids)] = ids
        anchor = np.full(5, len(ids), np.int32)
        new[text] = tokens, anchor, fork(prompts, tokens, anchor, 12)
    return prompts, new


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_forked_prompt_is_the_longer_prompt_that_the_processor_makes(policy, forked, prefix):
    processor = policy.processor
    tokenizer = type(processor.tokenizer).from_pretrained(
        processor.folder, chat_template=processor.tokenizer.chat_template + prefix
    )
    longer = replace(processor, tokenizer=tokenizer).prompts(answerer.rows(5))
    mine = forked[1][prefix][2]
    for name in ("length", "next_position", "pixels", "patch_hw", "segment", "ids"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(longer, name), name)
    for row, length in enumerate(longer.length):
        for name in ("tokens", "positions", "image_token"):
            wanted = getattr(longer, name)[row, :length]
            np.testing.assert_array_equal(getattr(mine, name)[row, :length], wanted, name)
        assert not mine.tokens[row, length:].any()
        assert (mine.image_token[row, length:] == -1).all()


def test_rows_are_cut_each_at_its_own_anchor(forked):
    prompts, new = forked
    tokens, long, one = new[PREFIXES[0]]
    anchor = np.where(np.arange(5) % 2, 0, long)
    mixed = fork(prompts, tokens, anchor, 12)
    np.testing.assert_array_equal(mixed.length, prompts.length + anchor)
    for row in range(5):
        wanted = (prompts if row % 2 else one).tokens[row]
        count = mixed.length[row]
        np.testing.assert_array_equal(mixed.tokens[row, :count], wanted[:count])
        assert not mixed.tokens[row, count:].any()


@pytest.mark.parametrize("kept", [0, 1, 5, 12])
def test_a_prompt_forked_alone_is_the_one_forked_among_others(forked, kept):
    prompts, new = forked
    tokens = new[PREFIXES[0]][0]
    longer = fork(prompts, tokens, np.full(5, kept), 12)
    alone = fork(jax.tree.map(lambda x: x[3:4], prompts), tokens[3:4], np.array([kept]), 12)
    for name, value in vars(alone).items():
        padded = name in ("tokens", "positions", "image_token")
        wanted = getattr(longer, name)[3:4]
        np.testing.assert_array_equal(value, wanted[:, : value.shape[1]] if padded else wanted)


@pytest.mark.parametrize(
    ("have", "most", "sizes"),
    [
        (24, 30, {64}),
        (24, 300, {64, 128, 256, 384}),
        (64, 64, {64, 128}),
        (96, 200, {96, 128, 256, 384}),
        (1024, 1536, {1024, 2048, 3072}),
    ],
)
def test_forked_prompts_have_few_sizes(have, most, sizes):
    none = np.zeros((1, have), np.int32)
    prompts = Prompts(
        none, np.array([have - 2]), none[..., None], *[none[:, 0]] * 2, none, *[none] * 3
    )
    tokens = np.ones((1, most), np.int32)
    seen = set()
    for kept in range(0, most + 1, 5):
        size = fork(prompts, tokens, np.array([kept]), most).tokens.shape[1]
        assert size >= have - 2 + kept
        seen.add(size)
    assert seen == sizes


def test_a_forked_prompt_predicts_what_scoring_predicts_at_the_anchor(policy, forked):
    prompts, new = forked
    tokens, anchor, longer = new[PREFIXES[0]]
    params = {"params": policy.params}
    scored = jax.jit(policy.model.apply)(params, prompts, tokens[:, None])
    wanted = np.take_along_axis(np.asarray(scored)[:, 0], anchor[:, None, None], 1)[:, 0]
    prefill = jax.jit(lambda p, x: policy.model.apply(p, x, method="prefill")[0])
    np.testing.assert_allclose(prefill(params, longer), wanted, atol=1e-5)


def gray(value, rows=3, windows=2):
    """Prompts of images of one color."""
    none = np.zeros(rows, np.int32)
    pixels = np.full((rows, windows, 64, 588), value, np.uint8)
    return Prompts(none, none, none, none, none, none, pixels, none, none)


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_noise_has_the_deviation_in_pixel_units_that_was_asked_for(deviation):
    pixels = np.asarray(perturb(gray(128), keys(3), deviation).pixels)
    noise = pixels - 128 / 255
    assert pixels.dtype == np.float32
    assert noise.std() == pytest.approx(deviation, rel=0.01)
    assert abs(noise.mean()) < deviation / 100


@pytest.mark.parametrize("value", [0, 255])
def test_noisy_pixels_are_clipped_to_what_an_image_can_show(value):
    pixels = np.asarray(perturb(gray(value), keys(3), 0.3).pixels)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert (pixels == value / 255).mean() == pytest.approx(0.5, abs=0.01)


def test_no_deviation_leaves_the_image_as_it_was():
    pixels = np.asarray(perturb(gray(77), keys(3), 0.0).pixels)
    np.testing.assert_array_equal(pixels, np.float32(77) / np.float32(255))


def test_noise_follows_from_the_key_and_not_from_padding_or_batch():
    noisy = np.asarray(perturb(gray(128), keys(3), 0.1).pixels)
    wider = np.asarray(perturb(gray(128, windows=6), keys(3), 0.1).pixels)
    alone = np.asarray(perturb(gray(128, rows=1), keys(3)[1:2], 0.1).pixels)
    np.testing.assert_array_equal(wider[:, :2], noisy)
    np.testing.assert_array_equal(alone[0], noisy[1])
    assert (noisy[0] != noisy[1]).mean() > 0.99
    same = np.asarray(perturb(gray(128), keys(3)[jnp.array([0, 0, 1])], 0.1).pixels)
    np.testing.assert_array_equal(same[0], same[1])


def test_the_model_sees_the_noise(policy, forked):
    new = jax.tree.map(jnp.asarray, forked[1][PREFIXES[0]][2])
    noisy = perturb(new, keys(5), 0.1)
    prefill = jax.jit(lambda x: policy.model.apply({"params": policy.params}, x, method="prefill"))
    (clean, _), (seen, _) = prefill(new), prefill(noisy)
    change = np.abs(np.asarray(clean - seen)).max(-1)
    has_image = (np.asarray(new.segment) > 0).any((1, 2))
    assert has_image.tolist() == [True, True, True, False, True]
    assert (change[has_image] > 1e-2).all()
    assert change[3] < 1e-5
