"""MM-UPT (arXiv 2505.22453): the majority's answer is the label, no labels.

The full-size scales have the hyperparameters of its released script; the small ones those of
configs/csrs.py, so that only the signal differs.
"""

from functools import partial

from ml_collections import ConfigDict

from configs import common


def get_config(scale: str = "tiny") -> ConfigDict:
    scales = {
        "tiny": common.embedded,
        "smoke": common.smoke,
        "qwen2_5_vl_7b": partial(mm_upt, size="7B"),
        "qwen2_5_vl_3b": partial(mm_upt, size="3B"),
    }
    config = common.pick(scale, scales)
    config.reward.kind = "majority"
    config.retrace.m = 0
    return config


def mm_upt(config: ConfigDict, size: str) -> None:
    """Its script: 4 updates a step, clip-higher, advantages by the standard deviation.

    Its quirk, that a group without one answer rewards itself, is --config.reward.no_answer=string.
    Its micro-batch of 4 sequences a device is here one prompt with its 10 responses.
    """
    common.released(config, size)
    config.seed = 1
    config.batch = 512
    config.data.epochs = 15
    config.data.max_prompt_tokens = 2048
    config.data.instruction = (
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    config.rollout.update(n=10, temperature=0.7, top_p=0.99, max_tokens=2048)
    config.grpo.update(advantage="std", clip_low=0.2, clip_high=0.3, kl=0.01, minibatches=4)
    config.optimizer.update(lr=1e-6, weight_decay=0.01)
