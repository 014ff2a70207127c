"""GRPO with true labels: what a label-free signal is measured against. The data needs answers."""

from functools import partial

from ml_collections import ConfigDict

from configs import common


def get_config(scale: str = "tiny") -> ConfigDict:
    scales = {
        "tiny": common.embedded,
        "smoke": common.smoke,
        "qwen2_5_vl_7b": partial(full, size="7B"),
        "qwen2_5_vl_3b": partial(full, size="3B"),
    }
    config = common.pick(scale, scales)
    config.reward.kind = "label"
    config.retrace.m = 0
    return config


def full(config: ConfigDict, size: str) -> None:
    """The batch, lengths and optimizer of configs/csrs.py, so that only the signal differs."""
    common.released(config, size)
    config.batch = 256
    config.data.epochs = 15
    config.eval.every_epochs = 5
    config.grpo.offload_reference = True
