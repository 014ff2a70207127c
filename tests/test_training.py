"""What a config makes of a model, where no array is needed to tell."""

from pathlib import Path

import pytest

from jaxevolve.runtime import cli
from jaxevolve.training import alarms, lora_scale, make_optimizer

ROOT = Path(__file__).resolve().parents[1]
HEALTHY = {"rollout/truncated": 0.1, "advantage/zero_groups": 0.3, "rollout/logprob_gap": 1e-5}


@pytest.fixture
def config():
    return cli.load_config(str(ROOT / "configs" / "csrs.py"))


def test_a_healthy_step_raises_no_alarm(config):
    assert alarms(HEALTHY, config) == alarms({}, config) == {}


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        (
            "rollout/truncated",
            1.0,
            "100% of the responses were cut before they ended; raise rollout.max_tokens=64",
        ),
        ("advantage/zero_groups", 0.95, "95% of the questions teach nothing"),
        ("rollout/logprob_gap", 0.05, "sampler and trainer differ by 0.05"),
    ],
)
def test_a_sick_step_is_told_with_its_figures(config, name, value, word):
    told = alarms(HEALTHY | {name: value}, config)
    assert list(told) == [name]
    assert word in told[name]


def test_bfloat16_may_differ_more_than_float32(config):
    config.model.dtype = "bfloat16"
    assert alarms(HEALTHY | {"rollout/logprob_gap": 0.05}, config) == {}


def test_adapters_are_scaled_by_alpha_over_rank(config):
    config.lora.update(rank=8, alpha=16.0)
    assert lora_scale(config) == 2.0


def test_the_learning_rate_warms_up_and_stays(config):
    config.optimizer.update(lr=1e-3, warmup=4)
    _, rate = make_optimizer(config.optimizer)
    assert [float(rate(i)) for i in (0, 2, 4, 40)] == pytest.approx([0, 5e-4, 1e-3, 1e-3])
