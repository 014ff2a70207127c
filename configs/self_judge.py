"""Self-Judge (arXiv 2603.21289): self-consistency, modulated by the scores of a frozen judge.

The full-size scales have the hyperparameters of its released script; the small ones those of
configs/csrs.py, and the embedded judge, which a copy of the embedded model could not replace.
"""

from functools import partial
from pathlib import Path

from ml_collections import ConfigDict

from configs import common
from jaxevolve.benchmarks.prompts import THINK_ONLY_THEN_BOX

EMBEDDED_JUDGE = str(Path(common.EMBEDDED_MODEL).with_name("geo_judge"))


def get_config(scale: str = "tiny") -> ConfigDict:
    scales = {
        "tiny": partial(embedded_judge, size=common.embedded),
        "smoke": partial(embedded_judge, size=common.smoke),
        "qwen2_5_vl_7b": partial(released_script, size="7B"),
        "qwen2_5_vl_3b": partial(released_script, size="3B"),
    }
    config = common.pick(scale, scales)
    config.reward.kind = "judged"
    config.retrace.m = 0
    config.judge.repeats = 1
    return config


def embedded_judge(config: ConfigDict, size) -> None:
    """A judge of half a million parameters, which was trained on a short prompt."""
    size(config)
    config.judge.update(path=EMBEDDED_JUDGE, prompt="short", max_tokens=80)


def released_script(config: ConfigDict, size: str) -> None:
    """Its script: 4 updates a step, and a judge that is the model before training.

    Its micro-batch of 8 sequences a device is here one prompt with its 8 responses.
    """
    common.released(config, size)
    config.seed = 2
    config.batch = 512
    config.data.epochs = 15
    config.data.max_prompt_tokens = 1024
    config.data.instruction = THINK_ONLY_THEN_BOX
    config.rollout.max_tokens = 2048
    config.grpo.update(kl=0.01, entropy=0.0, minibatches=4)
    config.optimizer.lr = 1e-6
    config.checkpoint.every = 30
    config.eval.every_epochs = 5
