"""Which values may a setting have? One table, read before anything is loaded or compiled."""

import re
from collections.abc import Callable

from ml_collections import ConfigDict

from jaxevolve.runtime.errors import UserError

_CHOICES = {
    "model.dtype": ("float32", "bfloat16"),
    "model.attention": ("auto", "plain", "splash", "cudnn"),
    "data.overlong": ("drop", "refuse"),
    "retrace.anchor": ("fraction", "random", "token", "group"),
    "retrace.noise_per": ("maternal", "prompt", "sample"),
    "reward.kind": ("softened", "majority", "self_consistency", "label", "judged"),
    "reward.pool": ("prompt", "anchor"),
    "reward.equality": ("math", "string"),
    "reward.no_answer": ("zero", "string"),
    "judge.prompt": ("rubric", "short"),
    "judge.unread": ("zero", "exclude"),
    "judge.base": ("consistency", "none"),
    "grpo.advantage": ("mean", "std", "log_group"),
    "grpo.aggregation": ("token", "sequence", "constant"),
    "optimizer.moments": ("float32", "bfloat16", "int8"),
    "grpo.remat": ("none", "layer", "dots"),
    "collapse.action": ("warn", "stop", "rollback"),
}

# A setting that may name a user's function instead of a choice, and how.
_FUNCTIONS = {"reward.kind": (re.compile(r".+\.py:[^\W\d]\w*"), "FILE.py:FUNCTION")}

_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(
        (
            "batch",
            "data.max_prompt_tokens",
            "rollout.rows",
            "rollout.tensor",
            "rollout.max_tokens",
            "rollout.chunk",
            "grpo.minibatches",
            "grpo.micro_batch",
            "checkpoint.keep",
            "collapse.patience",
            "eval.n",
            "optimizer.max_skipped",
            "judge.max_tokens",
        ),
        ("at least 1", lambda value: value >= 1),
    ),
    **dict.fromkeys(
        (
            "steps",
            "seed",
            "data.epochs",
            "rollout.top_k",
            "retrace.m",
            "retrace.token",
            "retrace.image_noise",
            "reward.format_weight",
            "grpo.kl",
            "optimizer.lr",
            "optimizer.weight_decay",
            "optimizer.warmup",
            "checkpoint.every",
            "collapse.entropy",
            "eval.every",
            "eval.every_epochs",
            "eval.questions",
            "lora.rank",
            "judge.repeats",
            "judge.refresh",
        ),
        ("at least 0", lambda value: value >= 0),
    ),
    **dict.fromkeys(
        ("rollout.top_p", "judge.top_p", "judge.hard_above", "grpo.clip_low"),
        ("above 0 and at most 1", lambda v: 0 < v <= 1),
    ),
    **dict.fromkeys(
        (
            "rollout.temperature",
            "judge.temperature",
            "reward.eps",
            "grpo.alpha",
            "grpo.clip_high",
            "optimizer.clip_norm",
        ),
        ("above 0", lambda v: v > 0),
    ),
    **dict.fromkeys(
        ("optimizer.b1", "optimizer.b2"), ("at least 0 and below 1", lambda v: 0 <= v < 1)
    ),
    # A group of one has no mean to differ from.
    "rollout.n": ("at least 2", lambda value: value >= 2),
    **dict.fromkeys(
        (
            "retrace.rate",
            "judge.format_penalty",
            "collapse.unanimous",
            "collapse.vote_accuracy",
            "collapse.vote_drop",
            "collapse.looping",
            "collapse.no_answer",
        ),
        ("between 0 and 1", lambda value: 0 <= value <= 1),
    ),
    "grpo.dual_clip": ("above 1", lambda value: value > 1),
}


def check_limits(config: ConfigDict) -> None:
    """Refuses a value that no part of the program could use.

    Settings that are None, or that a config does not have, are passed over.

    Raises:
        UserError: names the setting, its value and what it may be.
    """
    for key, choices in _CHOICES.items():
        value = _get(config, key)
        form, example = _FUNCTIONS.get(key, (None, ""))
        if value is None or value in choices or (form and form.fullmatch(value)):
            continue
        known = ", ".join(choices) + (f" or {example}" if form else "")
        raise UserError(f"--config.{key}={value} is unknown; it is one of {known}")
    for key, (wanted, fine) in _RANGES.items():
        value = _get(config, key)
        if value is not None and not fine(value):
            raise UserError(f"--config.{key}={value} is out of range; it must be {wanted}")


def _get(config: ConfigDict, key: str) -> object:
    *groups, name = key.split(".")
    for group in groups:
        config = config.get(group, ConfigDict())
    return config.get(name)
