"""Collecting a batch by CSRS, with real sampling on a tiny model that answers."""

import dataclasses
import functools
from collections import Counter
from fractions import Fraction
from pathlib import Path

import answerer
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxevolve import training
from jaxevolve.answers import extract
from jaxevolve.data.pipeline import train_batches
from jaxevolve.data.validate import open_data
from jaxevolve.learner import TrainState, make_score
from jaxevolve.policy import sampling_rules
from jaxevolve.recipes import csrs
from jaxevolve.recipes.measures import FREQUENCIES
from jaxevolve.rollout import decode
from jaxevolve.rollout.generate import Responses, generate
from jaxevolve.rollout.jobs import Response
from jaxevolve.rollout.sampling import MATERNAL
from jaxevolve.runtime import cli, mesh
from jaxevolve.runtime.metrics import PhaseTimer

ROOT = Path(__file__).resolve().parents[2]
REAL_ROWS = ROOT.parent / "shared" / "data"
COUNT, GROUP, M, LIMIT = 4, 4, 2, 12
KEY = jax.random.key(0)
ALWAYS = {
    *("reward/mean", "reward/std", "reward/excluded", "advantage/zero_groups", "policy/entropy"),
    *("rollout/length", "rollout/truncated", "rollout/no_answer", "rollout/unanimous"),
    *("rollout/distinct_answers", "rollout/logprob_gap", "rollout/tokens"),
    *("rollout/confident", "rollout/looping", "retrace/agreement", "retrace/tokens"),
    *("throughput/slot_utilization", "throughput/sampled_tokens_per_second"),
    "throughput/forced_tokens_per_second",
}
LABELED = {
    *("label/accuracy", "label/vote_accuracy", "label/pass_at_n", "label/excluded"),
    *("retrace/same_if_right", "retrace/same_if_wrong"),
    *(f"label/right_by_frequency/{low}" for low in FREQUENCIES),
    *(f"label/answers_by_frequency/{low}" for low in FREQUENCIES),
}


def make_config(**changes):
    config = cli.load_config(f"{ROOT}/configs/csrs.py:smoke")
    config.update_from_flattened_dict(
        {
            "batch": COUNT,
            "rollout.n": GROUP,
            "rollout.rows": COUNT * GROUP,
            "rollout.max_tokens": LIMIT,
            "rollout.chunk": LIMIT,
            "retrace.m": M,
            **changes,
        }
    )
    return config


@functools.cache
def score_of(model):
    return make_score(model, temperature=1.0, dtype="float32", micro_batches=1)


def collect(policy, rows, reference=None, **changes):
    return csrs.collect(
        policy,
        policy.params,
        reference,
        rows,
        policy.prompts(rows),
        KEY,
        config=make_config(**changes),
        score=score_of(policy.model),
        timer=PhaseTimer(),
    )


@pytest.fixture(scope="module")
def rows():
    return answerer.rows(COUNT, varied=False)


@pytest.fixture(scope="module")
def collected(policy, rows):
    return collect(policy, rows, reference=policy.params)


def assert_same_experience(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.experience, other.experience)


def test_experience_has_the_shapes_of_the_batch(policy, rows, collected):
    experience = collected.experience
    length = experience.tokens.shape[-1]
    assert experience.tokens.shape == (COUNT, GROUP, length)
    assert experience.lengths.max() <= length <= LIMIT
    assert experience.advantages.shape == experience.lengths.shape == (COUNT, GROUP)
    assert experience.old_logprobs.shape == experience.ref_logprobs.shape == (COUNT, GROUP, length)
    jax.tree.map(np.testing.assert_array_equal, experience.prompts, policy.prompts(rows))
    assert collect(policy, rows).experience.ref_logprobs is None


def test_the_policy_is_its_own_reference_before_any_update(collected):
    experience = collected.experience
    np.testing.assert_array_equal(experience.ref_logprobs, experience.old_logprobs)
    assert collected.metrics["rollout/logprob_gap"] < 1e-4


def test_metrics_are_those_of_the_design(collected):
    assert collected.metrics.keys() == ALWAYS | LABELED
    # A share of nothing is no number: here no answer is as frequent as that.
    empty = {name for name, value in collected.metrics.items() if np.isnan(value)}
    assert empty <= {f"label/right_by_frequency/{low}" for low in FREQUENCIES}
    assert all(not collected.metrics[name.replace("right", "answers")] for name in empty)
    assert not np.isinf(list(collected.metrics.values())).any()


def test_metrics_tell_what_is_in_the_samples(collected):
    responses = [r for sample in collected.samples for r in sample["responses"]]
    metrics, count = collected.metrics, len(responses)
    again = [(r["answer"], a) for r in responses for a in r["reinference"]]
    kept = [a is not None and value(a) == value(b) for b, a in again if b is not None]
    expected = {
        "reward/mean": np.mean([r["reward"] for r in responses]),
        "rollout/length": np.mean([r["tokens"] for r in responses]),
        "rollout/tokens": sum(r["tokens"] for r in responses),
        "rollout/truncated": sum(not r["stopped"] for r in responses) / count,
        "rollout/no_answer": sum(r["answer"] is None for r in responses) / count,
        "retrace/agreement": sum(kept) / len(again),
        "rollout/confident": np.mean([r["count"] >= 0.8 * GROUP for r in responses]),
        "label/accuracy": np.mean([r["correct"] for r in responses]),
        "label/pass_at_n": np.mean(
            [any(r["correct"] for r in sample["responses"]) for sample in collected.samples]
        ),
    }
    for name, wanted in expected.items():
        assert metrics[name] == pytest.approx(wanted, rel=1e-5), name
    assert {r["stopped"] for r in responses} == {True, False}
    for r in responses:
        begun = [r["text"][: r["kept"]] + text for text in r["continued"]]
        assert [answer_of(text) for text in begun] == r["reinference"]
    assert 0 < metrics["rollout/no_answer"] < 1
    assert 0 < metrics["retrace/agreement"] < 1


def value(answer):
    """1/2 and 0.5 are one answer."""
    return None if answer is None else Fraction(answer)


def answer_of(text):
    """The last whole box of a text whose boxes are tokens."""
    found = [(text.rfind(box), box) for box in answerer.BOXES if box in text]
    return max(found)[1].removeprefix("\\boxed{").removesuffix("}") if found else None


def softened(own, again, gamma=Fraction(1, 5), beta=5.0, eps=1e-6):
    """Eq. 7 and 8 of the paper for one prompt, from values of answers."""
    every, after = Counter(own) + Counter(again), Counter(again)
    rewards = []
    for answer in own:
        base = every[answer] / (len(own) + len(again))
        gain = np.tanh(beta * (after[answer] / len(again) / (base + eps) - 1))
        rewards.append(0.0 if answer is None else (1 + float(gamma) * gain) * base)
    return np.array(rewards)


def test_rewards_and_advantages_follow_from_the_texts_by_the_papers_equations(rows, collected):
    distinct = set()
    for p, sample in enumerate(collected.samples):
        responses = sample["responses"]
        for r in responses:
            assert r["answer"] == answer_of(r["text"])
            assert len(r["reinference"]) == M
        own = [value(r["answer"]) for r in responses]
        again = [value(a) for r in responses for a in r["reinference"]]
        rewards = softened(own, again)
        advantages = rewards - rewards.mean()
        np.testing.assert_allclose([r["reward"] for r in responses], rewards, atol=1e-6)
        np.testing.assert_allclose([r["advantage"] for r in responses], advantages, atol=1e-6)
        np.testing.assert_allclose(collected.experience.advantages[p], advantages, atol=1e-6)
        label = value(rows[p]["answer"])
        assert [r["correct"] for r in responses] == [answer == label for answer in own]
        distinct |= {*own}
    assert len(distinct) > 2


def test_what_is_kept_at_the_anchor_are_seven_tenths_without_the_stop_id(collected):
    for sample in collected.samples:
        for r in sample["responses"]:
            length = r["tokens"] - r["stopped"]
            assert r["anchor"] == (length * 7 // 10 if length >= 2 else 0)


@pytest.mark.parametrize("kind", ["majority", "self_consistency", "label"])
def test_without_re_inference_the_same_path_is_another_system(policy, rows, kind):
    other = collect(policy, rows, **{"retrace.m": 0, "reward.kind": kind})
    assert other.metrics["retrace/tokens"] == 0
    assert np.isnan(other.metrics["retrace/agreement"])
    for row, sample in zip(rows, other.samples):
        own = [value(r["answer"]) for r in sample["responses"]]
        counts = Counter(a for a in own if a is not None)
        if kind == "majority":
            winner = max(counts, key=counts.get, default=None)  # of equals the first seen
            wanted = [float(a is not None and a == winner) for a in own]
        elif kind == "self_consistency":
            wanted = [counts[a] / GROUP for a in own]
        else:
            wanted = [float(a == value(row["answer"])) for a in own]
        assert [r["reward"] for r in sample["responses"]] == pytest.approx(wanted)
        assert all(r["reinference"] == [] for r in sample["responses"])


def test_a_broken_label_rewards_nobody_and_is_counted(policy, rows):
    broken = [{**rows[0], "answer": "see figure"}, *rows[1:]]
    made, whole = (
        collect(policy, some, **{"retrace.m": 0, "reward.kind": "label"}) for some in (broken, rows)
    )
    assert made.metrics["label/excluded"] == 1
    assert not made.experience.advantages[0].any()
    assert np.array_equal(made.experience.advantages[1:], whole.experience.advantages[1:])
    assert whole.metrics["label/excluded"] == 0
    assert {r["reason"] for r in made.samples[0]["responses"]} == {"the label points elsewhere"}


def test_a_response_that_a_users_reward_leaves_out_counts_nowhere(policy, rows, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def odd(group):\n"
        "    return [None if a is None else float(len(t)) for t, a in\n"
        "            zip(group.responses, group.answers)]\n"
    )
    made = collect(policy, rows, **{"retrace.m": 0, "reward.kind": f"{file}:odd"})
    left_out = 0
    for p, sample in enumerate(made.samples):
        texts = [None if r["answer"] is None else len(r["text"]) for r in sample["responses"]]
        assert [r["reward"] for r in sample["responses"]] == texts
        counted = [n for n in texts if n is not None]
        wanted = [0 if n is None else n - np.mean(counted) for n in texts]
        np.testing.assert_allclose(made.experience.advantages[p], wanted, rtol=1e-5, atol=1e-5)
        left_out += texts.count(None)
    assert made.metrics["reward/excluded"] == left_out > 0
    everything = [r["reward"] for s in made.samples for r in s["responses"]]
    counted = [reward for reward in everything if reward is not None]
    assert made.metrics["reward/mean"] == pytest.approx(np.mean(counted), rel=1e-5)


def test_maternal_samples_do_not_depend_on_what_follows_them(policy, rows, collected):
    alone = collect(policy, rows, **{"retrace.m": 0, "reward.kind": "majority"})
    np.testing.assert_array_equal(alone.experience.tokens, collected.experience.tokens)


def test_few_rows_that_are_filled_again_give_the_same_batch(policy, rows, collected):
    few = collect(policy, rows, reference=policy.params, **{"rollout.rows": 5})
    assert few.samples == collected.samples
    assert_same_experience(few, collected)


@pytest.mark.parametrize("answers", [["3"] * COUNT, [None] * COUNT], ids=["other", "none"])
def test_labels_are_watched_and_never_used(policy, rows, collected, answers):
    changed = [row | {"answer": answer} for row, answer in zip(rows, answers)]
    other = collect(policy, changed, reference=policy.params)
    assert_same_experience(other, collected)
    labels = LABELED if answers[0] else set()
    assert other.metrics.keys() == ALWAYS | labels
    for name in ALWAYS:
        if not name.endswith("tokens_per_second"):
            assert other.metrics[name] == collected.metrics[name]


def sample(policy, rows, **changes):
    """Maternal responses and their re-inferences."""
    rules = sampling_rules(policy.processor, 1.0, 0)
    return csrs.sample(policy, policy.prompts(rows), KEY, rules, make_config(**changes))[:2]


@pytest.fixture
def images_read(monkeypatch):
    """[(sample id, key of its noise or None, pixels)] of every prompt that is read, in order."""
    seen, last = [], []
    prefill, insert = decode.prefill, decode.insert

    def read(model, params, prompts, noise):
        count = len(prompts.ids)
        keys = [None] * count if noise is None else jax.random.key_data(noise[0]).tolist()
        keys = [key and tuple(key) for key in keys]
        last[:] = zip(prompts.ids.tolist(), keys, map(bytes, prompts.pixels))
        return prefill(model, params, prompts, noise)

    def put(pool, new, places):
        # A place beyond the pool is that of a prompt which fills the shape.
        seen.extend(prompt for prompt, p in zip(last, places.tolist()) if p < len(pool.length))
        return insert(pool, new, places)

    monkeypatch.setattr(decode, "prefill", read)
    monkeypatch.setattr(decode, "insert", put)
    return seen


@pytest.mark.parametrize(
    ("noise_per", "draws"), [("maternal", GROUP), ("prompt", 1), ("sample", GROUP * M)]
)
def test_who_shares_a_draw_of_noise(policy, rows, images_read, noise_per, draws):
    twins = [{**rows[0], "id": f"twin {i}"} for i in range(COUNT)]
    sample(policy, twins, **{"retrace.noise_per": noise_per})
    ids = policy.prompts(twins).ids.tolist()
    # Maternal responses see no noise.
    assert [id for id, key, _ in images_read if key is None] == ids
    noisy = [(id, key) for id, key, _ in images_read if key]
    assert Counter(id for id, _ in noisy) == dict.fromkeys(
        ids, GROUP * M if noise_per == "sample" else GROUP
    )
    assert len(set(noisy)) == len({key for _, key in noisy}) == COUNT * draws


def test_without_noise_every_image_is_read_as_it_is(policy, rows, images_read):
    # Rows, and so seats, enough for all.
    sample(policy, rows, **{"retrace.image_noise": 0.0, "rollout.rows": 32})
    prompts = policy.prompts(rows)
    as_they_are = zip(prompts.ids.tolist(), [None] * COUNT, map(bytes, prompts.pixels))
    assert set(images_read) == set(as_they_are)
    assert len(images_read) == COUNT  # and once: re-inferences take over what is known of it


@pytest.fixture(scope="module")
def endless(policy):
    """The same without stop ids."""
    never = dict.fromkeys(policy.processor.stop_ids, -40.0)
    return dataclasses.replace(policy, params=answerer.prefer(policy.params, never))


@pytest.mark.parametrize("rate", [0.7, 1.0])
def test_prefix_and_continuation_together_keep_the_limit(endless, rows, monkeypatch, rate):
    lengths = [1, 2, 7, LIMIT]

    def shortened(*arguments, follow, **engine):
        """Maternal responses are cut to these lengths before anything follows."""

        def cut(job, member, response):
            if job.phase == MATERNAL:
                n = lengths[member]
                response = Response(response.tokens[:n], response.logprobs[:n], False)
            return follow(job, member, response)

        return generate(*arguments, follow=cut, **engine)

    monkeypatch.setattr(csrs, "generate", shortened)
    maternal, retraced = sample(endless, rows, **{"retrace.rate": rate})
    assert (maternal.lengths == LIMIT).all()
    kept = [0, int(2 * rate), int(7 * rate), int(LIMIT * rate)]
    np.testing.assert_array_equal(retraced.anchor, [kept] * COUNT)
    np.testing.assert_array_equal(
        retraced.anchor[..., None] + retraced.responses.lengths, np.full((COUNT, GROUP, M), LIMIT)
    )


@pytest.mark.parametrize("noise_per", ["maternal", "prompt", "sample"])
def test_every_re_inference_has_random_numbers_of_its_own(endless, rows, noise_per):
    changes = {"retrace.rate": 0.0, "retrace.image_noise": 1e-9, "retrace.noise_per": noise_per}
    maternal, retraced = sample(endless, rows, **changes)
    tokens = retraced.responses.tokens.reshape(COUNT, GROUP * M, LIMIT)
    tokens = np.concatenate([maternal.tokens, tokens], axis=1)
    for group in tokens:
        assert len(np.unique(group, axis=0)) == GROUP * (1 + M)


@pytest.mark.parametrize("anchor", ["random", "token", "group"])
def test_other_anchors_by_flag(policy, rows, anchor):
    changes = {"retrace.anchor": anchor, "retrace.token": 5}
    maternal, retraced = sample(policy, rows, **changes)
    again = sample(policy, rows, **changes)[1]
    np.testing.assert_array_equal(retraced.anchor, again.anchor)
    own = maternal.lengths - maternal.stopped
    if anchor == "token":
        np.testing.assert_array_equal(retraced.anchor, np.minimum(own, 5))
        kept_as_it_is = (own < 5) & maternal.stopped
        assert not retraced.responses.lengths[kept_as_it_is].any()
    elif anchor == "group":
        others = own.sum(1, keepdims=True) - own
        np.testing.assert_array_equal(
            retraced.anchor, np.minimum(own, 7 * others // (10 * (GROUP - 1)))
        )
        assert len(np.unique(retraced.anchor)) > 2
        assert retraced.responses.lengths.any()
    else:
        assert (retraced.anchor < np.maximum(own, 1)).all()
        assert len(np.unique(retraced.anchor[own == LIMIT])) > 2


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_anchors_by_the_group_do_not_depend_on_who_ends_first(policy, rows, noise):
    changes = {"retrace.anchor": "group", "retrace.image_noise": noise}
    wide, narrow = (
        sample(policy, rows, **changes, **{"rollout.rows": count})[1] for count in (32, 5)
    )
    np.testing.assert_array_equal(wide.anchor, narrow.anchor)
    np.testing.assert_array_equal(wide.responses.tokens, narrow.responses.tokens)


def test_the_answer_is_the_last_box_of_prefix_and_continuation(policy):
    one, two = answerer.BOX_IDS[:2]
    stop = policy.processor.stop_ids[0]
    encode = policy.processor.tokenizer.backend_tokenizer.encode
    delta = encode("δ", add_special_tokens=False).ids
    assert len(delta) == 2  # A letter that the cut may tear apart.
    tokens = np.zeros((1, 4, 4), np.int32)
    tokens[0] = [[one, 65, two, stop], [one, 65, 66, stop], [65, delta[0], 66, 66], [one, 65, 5, 5]]
    more = np.zeros((1, 4, 1, 4), np.int32)
    more[0, :, 0] = [[66, 66, stop, 0], [two, stop, 0, 0], [delta[1], two, 9, 9], [0, 0, 0, 0]]
    maternal = Responses(tokens, np.full((1, 4), 4), tokens * 0.0, np.ones((1, 4), bool))
    lengths = np.array([[[3], [2], [2], [0]]])
    followed = Responses(more, lengths, more * 0.0, lengths > 0)
    retraced = csrs.Retraced(np.array([[2, 2, 2, 2]]), followed)
    (texts,) = csrs.continued_texts(policy, maternal, retraced)
    assert [extract(text) for text in texts] == ["1", "2", "2", "1"]
    assert "δ" in texts[2]


def test_re_inferences_can_be_trained_on_from_their_anchor_on(policy, rows, collected):
    both = collect(policy, rows, **{"retrace.train": True}).experience
    shape = (COUNT, GROUP, 1 + M)
    tokens, lengths, starts = (
        np.asarray(x).reshape(*shape, *x.shape[2:])
        for x in (both.tokens, both.lengths, both.starts)
    )
    own = collected.experience
    width = own.tokens.shape[-1]
    np.testing.assert_array_equal(tokens[:, :, 0, :width], own.tokens)
    np.testing.assert_array_equal(lengths[:, :, 0], own.lengths)
    assert not starts[:, :, 0].any()
    for p, sample in enumerate(collected.samples):
        for g, response in enumerate(sample["responses"]):
            anchor = response["anchor"]
            assert (starts[p, g, 1:] == anchor).all()
            same = tokens[p, g, 1:, :anchor] == own.tokens[p, g, :anchor]
            assert same.all()
            texts = [policy.processor.decode(t[:n]) for t, n in zip(tokens[p, g], lengths[p, g])]
            assert [extract(text) for text in texts[1:]] == response["reinference"]
    assert both.advantages.shape == (COUNT, GROUP * (1 + M))
    np.testing.assert_allclose(both.advantages.sum(1), 0, atol=1e-5)


@pytest.fixture(scope="module")
def learner(policy):
    """Everything that training compiles, for batches of two prompts and one device."""
    config = make_config(**{"batch": 2, "data.max_prompt_tokens": 128})
    optimizer, _ = training.make_optimizer(config.optimizer)
    devices = mesh.make_mesh((1, 1, 1), jax.devices()[:1])
    return config, optimizer, *training.make_functions(policy.model, optimizer, devices, 2, config)


@pytest.mark.parametrize("path", ["parquet_layout@train", "geometry3k_redrawn@val"])
def test_from_real_rows_to_one_whole_step(policy, learner, path):
    if not REAL_ROWS.is_dir():
        pytest.skip(f"the real rows are not at hand ({REAL_ROWS})")
    config, optimizer, score, update = learner
    rows = open_data(str(REAL_ROWS / path), config.data, policy.processor)
    batches = train_batches(rows, policy.processor, batch=2, seed=0)
    # The first batch of the size that the other source has too: half the compilations.
    batch = next(
        b for b in batches if (b.prompts.tokens.shape[1], b.prompts.pixels.shape[1]) == (96, 2)
    )
    params = jax.tree.map(jnp.array, policy.params)
    collected = csrs.collect(
        policy,
        policy.params,
        policy.params,
        batch.rows,
        batch.prompts,
        KEY,
        config=config,
        score=score,
        timer=PhaseTimer(),
    )
    assert all(
        r["images"] and r["question"] in s["question"]
        for r, s in zip(batch.rows, collected.samples)
    )
    state = TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    state, learned, skipped = training.improve(state, collected.experience, update, config)
    assert (skipped, int(state.updates)) == (0, 1)
    assert np.isfinite(learned[0]["loss"])
    assert learned[0]["grad_norm"] > 0
    for (name, new), old in zip(
        jax.tree_util.tree_leaves_with_path(state.params), jax.tree.leaves(policy.params)
    ):
        assert np.isfinite(new).all(), name
        assert (np.asarray(new) != np.asarray(old)).any(), name
