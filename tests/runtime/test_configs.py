from pathlib import Path

import jax
import pytest

from jaxevolve.runtime.cli import load_config
from jaxevolve.runtime.limits import check_limits
from jaxevolve.runtime.mesh import make_mesh
from jaxevolve.runtime.metrics import flatten

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SCALES = ("tiny", "smoke", "qwen2_5_vl_7b", "qwen2_5_vl_3b")
RECIPES = ("csrs", "majority_vote", "self_consistency", "self_judge", "supervised")

# CSRS, Table 6: (its row, its value, our setting, our value).
TABLE_6 = [
    ("Train Batch Size", 256, "batch", 256),
    ("Max Prompt Length", 1024, "data.max_prompt_tokens", 1024),
    ("Max Response Length", 1536, "rollout.max_tokens", 1536),
    ("Filter Overlong Prompts", True, "data.overlong", "drop"),
    ("Truncation Strategy", "error", "data.overlong", "drop"),
    ("Image Key", "images", "data.image_key", "images"),
    ("Base Model", "Qwen2.5-VL-7B-Instruct", "model.path", "Qwen2.5-VL-7B-Instruct"),
    ("Optimizer Learning Rate", 1e-6, "optimizer.lr", 1e-6),
    ("KL Loss Coefficient", 0.01, "grpo.kl", 0.01),
    ("Entropy Coefficient", 0, "grpo.entropy", 0.0),
    ("Gradient Checkpointing", "Enabled", "grpo.remat", "layer"),
    ("PPO Mini Batch Size", 64, "grpo.minibatches", 256 // 64),
    ("PPO Micro Batch Size (per GPU)", 8, "grpo.micro_batch", 8 // 8),
    ("Rollout Group Size", 8, "rollout.n", 8),
    ("Param Offload (Ref Model)", True, "grpo.offload_reference", True),
    ("Sampling Group Size", 8, "rollout.n", 8),
    ("Re-inference Number", 5, "retrace.m", 5),
    ("Retracing Rate", 0.7, "retrace.rate", 0.7),
    ("Total Epochs", 15, "data.epochs", 15),
    ("GPUs per Node, Number of Nodes", (8, 1), "mesh", None),
    ("Test Frequency", "5 epochs", "eval.every_epochs", 5),
    ("Save Frequency", "20 steps", "checkpoint.every", 20),
]
# Rows without a setting: (row, the words of configs/csrs.py that say why).
NOT_SETTINGS = [
    ("KL Loss Type", "Low-Var KL"),
    ("Algorithm", "GRPO"),
    ("Remove Padding / Fused Kernels", "bucket table"),
    ("Ref Log-Prob Micro Batch", "same pass"),
    ("Rollout Engine", "vLLM"),
    ("GPU Memory Utilization", "0.6"),
]


def config(recipe, scale):
    return load_config(f"{CONFIGS / recipe}.py:{scale}")


@pytest.mark.parametrize(("row", "paper", "setting", "value"), TABLE_6)
def test_every_row_of_table_6_is_in_the_7b_config(row, paper, setting, value):
    assert flatten(config("csrs", "qwen2_5_vl_7b").to_dict())[setting] == value


@pytest.mark.parametrize(("row", "reason"), NOT_SETTINGS)
def test_rows_of_table_6_without_a_setting_are_explained(row, reason):
    text = " ".join((CONFIGS / "csrs.py").read_text().split())
    assert row in text
    assert reason in text


def test_the_hyperparameters_in_the_papers_text():
    values = flatten(config("csrs", "qwen2_5_vl_7b").to_dict())
    expected = {
        "reward.kind": "softened",
        "reward.gamma": 0.2,
        "reward.beta": 5.0,
        "retrace.anchor": "fraction",
        "retrace.noise_per": "maternal",
        "grpo.advantage": "mean",
        "optimizer.weight_decay": 0.01,
        "steps": None,
    }
    assert {key: values[key] for key in expected} == expected


def test_the_3b_config_differs_from_the_7b_in_its_model_alone():
    large, small = (flatten(config("csrs", scale).to_dict()) for scale in SCALES[2:])
    differing = {key: small[key] for key in small if small[key] != large[key]}
    assert differing == {"model.path": "Qwen2.5-VL-3B-Instruct"}


def test_the_embedded_default_is_the_run_that_was_measured():
    values = flatten(config("csrs", "tiny").to_dict())
    expected = {
        "steps": 20,
        "batch": 16,
        "rollout.n": 8,
        "rollout.temperature": 1.0,
        "rollout.max_tokens": 64,
        "retrace.m": 5,
        "retrace.image_noise": 0.1,
        "grpo.minibatches": 2,
        "grpo.advantage": "mean",
        "grpo.clip_low": 0.2,
        "grpo.clip_high": 0.2,
        "grpo.kl": 0.01,
        "optimizer.lr": 1e-4,
        "optimizer.clip_norm": 1.0,
        "eval.every": 10,
        "eval.questions": 256,
    }
    assert {key: values[key] for key in expected} == expected


def test_majority_voting_has_the_hyperparameters_of_its_own_paper():
    values = flatten(config("majority_vote", "qwen2_5_vl_7b").to_dict())
    expected = {
        "batch": 512,
        "seed": 1,
        "reward.kind": "majority",
        "retrace.m": 0,
        "rollout.n": 10,
        "rollout.temperature": 0.7,
        "rollout.top_p": 0.99,
        "rollout.max_tokens": 2048,
        "data.max_prompt_tokens": 2048,
        "grpo.advantage": "std",
        "grpo.minibatches": 512 // 128,
        "grpo.clip_low": 0.2,
        "grpo.clip_high": 0.3,
        "grpo.dual_clip": 3.0,
        "optimizer.lr": 1e-6,
        "data.epochs": 15,
    }
    assert {key: values[key] for key in expected} == expected


def test_self_judge_has_the_hyperparameters_of_its_released_script():
    values = flatten(config("self_judge", "qwen2_5_vl_7b").to_dict())
    expected = {
        "batch": 512,
        "seed": 2,
        "reward.kind": "judged",
        "retrace.m": 0,
        "rollout.n": 8,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "rollout.max_tokens": 2048,
        "data.max_prompt_tokens": 1024,
        "data.epochs": 15,
        "judge.path": None,
        "judge.repeats": 1,
        "judge.refresh": 0,
        "judge.prompt": "rubric",
        "judge.temperature": 1.0,
        "judge.top_p": 0.9,
        "judge.max_tokens": 1024,
        "judge.unread": "zero",
        "judge.base": "consistency",
        "judge.hard_above": 0.85,
        "judge.format_penalty": 0.5,
        "grpo.advantage": "mean",
        "grpo.alpha": 1.0,
        "grpo.minibatches": 512 // 128,
        "grpo.clip_low": 0.2,
        "grpo.clip_high": 0.2,
        "grpo.kl": 0.01,
        "grpo.entropy": 0.0,
        "optimizer.lr": 1e-6,
        "optimizer.weight_decay": 0.01,
        "checkpoint.every": 30,
        "eval.every_epochs": 5,
    }
    assert {key: values[key] for key in expected} == expected


def test_recipes_differ_in_their_signal_alone_at_small_scale():
    base = flatten(config("csrs", "tiny").to_dict())
    for recipe, kind in (("majority_vote", "majority"), ("supervised", "label")):
        other = flatten(config(recipe, "tiny").to_dict())
        changed = {key: other[key] for key in other if other[key] != base[key]}
        assert changed == {"reward.kind": kind, "retrace.m": 0}
    other = flatten(config("self_judge", "tiny").to_dict())
    changed = {key for key in other if other[key] != base[key] and not key.startswith("judge.")}
    assert changed == {"reward.kind", "retrace.m"}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_config_is_within_limits_and_has_every_setting(recipe, scale):
    values = config(recipe, scale)
    check_limits(values)
    assert flatten(values.to_dict()).keys() == flatten(config("csrs", "tiny").to_dict()).keys()


def test_eight_gpus_on_one_node_are_all_on_fsdp():
    mesh = make_mesh(config("csrs", "qwen2_5_vl_7b").mesh)
    assert tuple(mesh.shape.values()) == (1, jax.device_count(), 1)
