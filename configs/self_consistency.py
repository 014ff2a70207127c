"""Self-consistency: a response earns the share of its group that answers as it does, no labels.

The base of Self-Judge's reward (arXiv 2603.21289), and what CSRS's softened frequency is without
re-inferences: its own ablation "+SFR". Hyperparameters are those of configs/csrs.py, so that only
the signal differs.
"""

from functools import partial

from ml_collections import ConfigDict

from configs import common, csrs


def get_config(scale: str = "tiny") -> ConfigDict:
    scales = {
        "tiny": common.embedded,
        "smoke": common.smoke,
        "qwen2_5_vl_7b": partial(csrs.table_6, size="7B"),
        "qwen2_5_vl_3b": partial(csrs.table_6, size="3B"),
    }
    config = common.pick(scale, scales)
    config.reward.kind = "self_consistency"
    config.retrace.m = 0
    return config
