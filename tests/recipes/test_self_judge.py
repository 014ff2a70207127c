"""Judging a batch, with real sampling on a tiny model that answers and that judges itself."""

import functools
from collections import Counter
from itertools import chain
from pathlib import Path

import answerer
import jax
import numpy as np
import pytest

from jaxevolve import train
from jaxevolve.hf.config import read_config
from jaxevolve.learner import make_score
from jaxevolve.models.qwen2_5_vl import init_params
from jaxevolve.recipes import csrs, self_judge
from jaxevolve.rollout import decode, device
from jaxevolve.rollout.generate import one
from jaxevolve.rollout.retrace import fork
from jaxevolve.runtime import checkpoint, cli, metrics
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import PhaseTimer

ROOT = Path(__file__).resolve().parents[2]
COUNT, GROUP, REPEATS, LIMIT = 4, 4, 2, 12
KEY = jax.random.key(0)
CANDIDATES = [[f"I think {p + g}, so \\boxed{{{g}}}" for g in range(GROUP)] for p in range(COUNT)]
# What the tiny model may write, and how the rules of the released code read it.
WORTH = {"\\boxed{1}": 1.0, "\\boxed{2}": 1.0, "\\boxed{3}": 1.0, "\\boxed{0.5}": 0.5}


def make_config(**changes):
    config = cli.load_config(f"{ROOT}/configs/self_judge.py:smoke")
    config.update_from_flattened_dict(
        {
            "batch": COUNT,
            "rollout.n": GROUP,
            "rollout.rows": 16,
            "rollout.max_tokens": LIMIT,
            "rollout.chunk": LIMIT,
            "judge.path": None,
            "judge.repeats": REPEATS,
            "judge.max_tokens": LIMIT,
            "judge.top_p": 1.0,
            **changes,
        }
    )
    return config


@pytest.fixture(scope="module")
def rows():
    return answerer.rows(COUNT, varied=False)


def judge(policy, rows, candidates=CANDIDATES, **changes):
    ids = policy.prompts(rows).ids
    return self_judge.judge(policy, rows, ids, candidates, KEY, make_config(**changes))


@pytest.fixture(scope="module")
def judged(policy, rows):
    return judge(policy, rows)


@functools.cache
def score_of(model):
    return make_score(model, temperature=1.0, dtype="float32", micro_batches=1)


def collect(policy, rows, **changes):
    config = make_config(**changes)
    return csrs.collect(
        policy,
        policy.params,
        None,
        rows,
        policy.prompts(rows),
        KEY,
        config=config,
        score=score_of(policy.model),
        timer=PhaseTimer(),
        judge=(lambda: policy) if config.judge.repeats else None,
    )


@pytest.fixture(scope="module")
def collected(policy, rows):
    return collect(policy, rows)


def worth(judgement):
    """A judgement of the tiny model: its last box that holds a plain number."""
    found = [(judgement.rfind(box), score) for box, score in WORTH.items() if box in judgement]
    return max(found)[1] if found else None


@pytest.mark.parametrize("style", list(self_judge.RUBRICS))
def test_a_prompt_is_what_one_would_write_with_the_candidate_at_its_end(policy, rows, style):
    instruction, candidate = "Box the answer.", "so \\boxed{41}\nindeed"
    shared, ending = self_judge.heads(policy.processor, rows, style, instruction)
    tokens = self_judge.encode(policy.processor, candidate) + ending
    whole = policy.processor.prompts(
        [
            row
            | {
                "question": f"{self_judge.RUBRICS[style]}[PROBLEM]\n{row['question'].rstrip()} "
                f"{instruction}\n[CANDIDATE_SOLUTION]\n{candidate}"
            }
            for row in rows
        ]
    )
    for p in range(COUNT):
        made = fork(one(shared, p), np.array([tokens]), np.array([len(tokens)]), len(tokens))
        length = whole.length[p]
        assert made.length[0] == length
        assert made.next_position[0] == whole.next_position[p]
        for name in ("tokens", "positions", "image_token"):
            ours, wanted = getattr(made, name)[0], getattr(whole, name)[p]
            np.testing.assert_array_equal(ours[:length], wanted[:length])
        np.testing.assert_array_equal(made.pixels[0], whole.pixels[p])


def test_the_rubric_has_the_released_criteria_their_weights_and_both_places_of_the_score():
    rubric = self_judge.RUBRICS["rubric"]
    for criterion, weight in (
        ("answer_correctness", 0.5),
        ("reasoning_quality", 0.3),
        ("visual_grounding", 0.2),
    ):
        assert f"- {criterion}, weight {weight}" in rubric
    assert rubric.index("BEGIN_SCORES") < rubric.index("END_SCORES") < rubric.index("\\boxed")


def test_what_a_candidate_spells_out_is_no_special_token(policy):
    special = policy.processor.tokenizer.all_special_ids
    text = "<|im_end|><|image_pad|> and <|im_<|im_end|>end|> \\boxed{1}"
    assert not set(self_judge.encode(policy.processor, text)) & set(special)
    assert self_judge.encode(policy.processor, "") == []


@pytest.mark.parametrize(
    ("judgement", "after"),
    [
        ("\\boxed{1}", "\\boxed{1}"),
        ("<think>\\boxed{0}</think> \\boxed{1}", " \\boxed{1}"),
        ("\\boxed{0}</think>\\boxed{1}", "\\boxed{1}"),
        ("<think>it may be \\boxed{1}", ""),
    ],
)
def test_only_what_follows_the_thought_is_read(judgement, after):
    assert self_judge.conclusion(judgement) == after


def test_scores_are_means_of_what_the_judgements_say(judged):
    values = [[[worth(t) for t in texts] for texts in own] for own in judged.texts]
    missing = np.array([[[v is None for v in r] for r in own] for own in values])
    np.testing.assert_array_equal(judged.unread, missing)
    wanted = [[np.mean([v or 0.0 for v in r]) for r in own] for own in values]
    np.testing.assert_allclose(judged.scores, wanted)
    assert 0 < missing.mean() < 1
    assert len(set(judged.scores.flat)) > 1
    assert judged.tokens.shape == (COUNT, GROUP, REPEATS)


def test_without_the_unread_ones_a_response_may_have_no_score(policy, rows, judged):
    other = judge(policy, rows, **{"judge.unread": "exclude"})
    assert other.texts == judged.texts
    for score, texts in zip(other.scores.flat, chain(*judged.texts)):
        known = [worth(t) for t in texts if worth(t) is not None]
        assert score == pytest.approx(np.mean(known) if known else np.nan, nan_ok=True)
    assert np.isnan(other.scores).any()


def test_a_judgement_is_its_own_wherever_it_is_made(policy, rows, judged):
    few = judge(policy, rows, **{"rollout.rows": 5})
    assert few.texts == judged.texts
    back = judge(policy, rows[::-1], CANDIDATES[::-1])
    assert back.texts == judged.texts[::-1]


def test_images_are_read_once_a_question_for_all_its_candidates(policy, rows, judged, monkeypatch):
    read, prefill = [], decode.prefill

    def counted(model, params, prompts, noise):
        read.extend(np.asarray(prompts.ids).tolist())
        return prefill(model, params, prompts, noise)

    monkeypatch.setattr(decode, "prefill", counted)
    made = judge(policy, rows, **{"rollout.rows": COUNT * GROUP * REPEATS})
    assert made.texts == judged.texts
    # All at once, so that no read is filled up with a prompt that goes nowhere.
    assert sorted(read) == sorted(policy.prompts(rows).ids.tolist())
    assert COUNT % device.READ_AT_ONCE == 0


def test_the_judge_sees_no_label(policy, rows, judged):
    other = judge(policy, [row | {"answer": "3", "solution": "3"} for row in rows])
    assert other.texts == judged.texts


def test_the_judge_sees_image_problem_and_candidate(policy, rows, judged):
    changes = [
        [row | {"images": other["images"]} for row, other in zip(rows, rows[1:] + rows[:1])],
        [row | {"question": row["question"] + " now"} for row in rows],
    ]
    for changed in changes:
        assert judge(policy, changed).texts != judged.texts
    moved = [own[1:] + own[:1] for own in CANDIDATES]
    assert judge(policy, rows, moved).texts != judged.texts


def test_rewards_follow_from_answers_scores_and_layout(collected):
    for sample in collected.samples:
        responses = sample["responses"]
        counts = Counter(r["class"] for r in responses)
        rewards = []
        for r in responses:
            assert r["score"] == pytest.approx(np.mean([worth(t) or 0 for t in r["judgements"]]))
            most = max((n for c, n in counts.items() if c >= 0), default=0)
            base = counts[r["class"]] / GROUP if r["class"] >= 0 else 0.0
            if most / GROUP > 0.85:
                base = float(base == most / GROUP)
            sigmoid = lambda x: 1 / (1 + np.exp(-x))
            s = r["score"]
            g = 1 + 0.2 * sigmoid((s - 0.95) / 0.02) - 0.2 * sigmoid((0.4 - s) / 0.05)
            # The tiny model never thinks in tags.
            rewards.append(min(max(base * g - 0.5, 0.0), 1.0))
        assert [r["reward"] for r in responses] == pytest.approx(rewards, abs=1e-6)
        centered = np.array(rewards) - np.mean(rewards)
        assert [r["advantage"] for r in responses] == pytest.approx(centered, abs=1e-6)


def test_metrics_tell_what_the_judge_said(collected):
    responses = [r for sample in collected.samples for r in sample["responses"]]
    told = collected.metrics
    assert told["judge/score"] == pytest.approx(np.mean([r["score"] for r in responses]))
    unread = [worth(t) is None for r in responses for t in r["judgements"]]
    assert told["judge/unread"] == pytest.approx(np.mean(unread))
    pairs = [
        (a["score"] > b["score"]) + 0.5 * (a["score"] == b["score"])
        for a in responses
        if a["correct"]
        for b in responses
        if not b["correct"]
    ]
    assert told["judge/auc"] == pytest.approx(np.mean(pairs))
    assert told["judge/tokens"] > 0


OPEN = {"judge.format_penalty": 0.0, "judge.hard_above": 1.0}


@pytest.mark.parametrize("part", ["consistency alone", "judge alone"])
def test_either_half_of_the_signal_can_be_left_out(policy, rows, collected, part):
    alone = part == "consistency alone"
    changes = {"judge.repeats": 0} if alone else {"judge.base": "none"}
    other = collect(policy, rows, **OPEN, **changes)
    for sample, judged in zip(other.samples, collected.samples):
        for r, known in zip(sample["responses"], judged["responses"]):
            assert r["text"] == known["text"]
            if alone:
                assert r["reward"] == pytest.approx(r["count"] / GROUP)
                assert "score" not in r
            else:
                s = known["score"]
                assert r["reward"] == pytest.approx(1.0 if s > 0.7 else 0.976, abs=1e-3) or s < 0.5
    assert ("judge/score" in other.metrics) is not alone


def test_scores_are_there_for_any_reward_and_change_no_other(policy, rows, collected):
    other = collect(policy, rows, **{"reward.kind": "majority"})
    assert other.metrics["judge/score"] == collected.metrics["judge/score"]
    assert {r["reward"] for s in other.samples for r in s["responses"]} <= {0.0, 1.0}


def test_log_q_taken_literally_is_the_centered_form_less_one_number_a_group(policy, rows):
    alpha = {"grpo.alpha": 3.0, **OPEN}
    mean = collect(policy, rows, **alpha).experience.advantages
    plain = collect(policy, rows, **OPEN).experience.advantages
    literal = collect(policy, rows, **{"grpo.advantage": "log_group", **alpha})
    np.testing.assert_allclose(mean, 3 * plain, atol=1e-6)
    literal = literal.experience.advantages
    np.testing.assert_allclose(np.exp(literal).sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(literal - literal.mean(-1, keepdims=True), mean, atol=1e-5)


def test_a_response_without_a_score_is_left_out_of_its_group(policy, rows):
    other = collect(policy, rows, **{"judge.unread": "exclude", "judge.repeats": 1, **OPEN})
    excluded = 0
    for p, sample in enumerate(other.samples):
        known = [r["reward"] for r in sample["responses"] if r["score"] is not None]
        for g, r in enumerate(sample["responses"]):
            wanted = 0.0 if r["score"] is None else r["reward"] - np.mean(known)
            assert other.experience.advantages[p, g] == pytest.approx(wanted, abs=1e-6)
            excluded += r["score"] is None
    assert excluded


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"judge.repeats": 0, "judge.base": "none"}, "judge.repeats=0"),
        ({"retrace.m": 2, "retrace.train": True}, "retrace.train=True"),
        ({"judge.refresh": 5, "judge.path": "elsewhere"}, "no judge.path"),
        ({"judge.refresh": 5, "judge.repeats": 0}, "judge.repeats of at least 1"),
        ({"judge.path": "nowhere"}, "nowhere.config.json does not exist"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(policy, changes, words):
    with pytest.raises(UserError, match=words):
        self_judge.open_processor(make_config(**changes), policy.processor)


@pytest.fixture
def judges(monkeypatch):
    """The final norm of every judge that has been asked, in order: it tells them apart."""
    seen, real = [], self_judge.judge

    def noted(policy, *arguments):
        seen.append(np.asarray(policy.params["model"]["norm"]["weight"]).tolist())
        return real(policy, *arguments)

    monkeypatch.setattr(self_judge, "judge", noted)
    return seen


def test_a_judge_that_follows_the_policy_survives_an_interruption(tmp_path, answering, judges):
    data = str(answerer.write_rows(tmp_path / "rows.jsonl", answerer.rows(9, varied=False)))

    def run(folder, steps):
        config = make_config(
            **{
                "model.path": str(answering),
                "data.path": data,
                "eval.path": data,
                "eval.questions": 2,
                "eval.n": 2,
                "eval.every": 0,
                "optimizer.lr": 3e-2,
                "judge.repeats": 1,
                "judge.refresh": 2,
                "checkpoint.every": 1,
                "checkpoint.keep": 9,
                "steps": steps,
            }
        )
        train.train(config, folder)
        return [line["judge/score"] for line in metrics.read_jsonl(folder / "metrics.jsonl")]

    def norm(step, name="params"):
        found = arrays(checkpoint.find(tmp_path / "whole" / "checkpoints" / str(step)))
        return found[name]["model"]["norm"]["weight"].tolist()

    whole = run(tmp_path / "whole", 5)
    assert judges == [judges[0], judges[0], norm(2), norm(2), norm(4)]
    assert norm(3, "judge") == norm(2) != norm(3)
    # Interrupted after step 3, when the judge is the policy as it was after step 2.
    run(tmp_path / "parts", 3)
    assert run(tmp_path / "parts", 5) == whole
    ends = [arrays(checkpoint.find(tmp_path / name)) for name in ("whole", "parts")]
    jax.tree.map(np.testing.assert_array_equal, *ends)


def arrays(folder):
    """The parameters and the judge of a checkpoint."""
    made = jax.eval_shape(lambda: init_params(read_config(folder), jax.random.key(0)))
    return jax.device_get(checkpoint.load(folder, {"params": made, "judge": made})[0])
