"""Is a response laid out as it was asked: thought first, then one answer?"""

import re

import numpy as np
from numpy.typing import ArrayLike

_LAYOUT = re.compile(r"\s*<think>(?P<thought>.*)</think>(?P<rest>.*)", re.DOTALL)
_ANSWER = re.compile(r"\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_BOX = re.compile(r"\\boxed\s*\{\s*[^\s}].*\}", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")


def format_ok(response: str) -> bool:
    r"""Checks a response's layout: one thought in <think> tags, then the answer.

    The answer is one <answer> block with nothing after it, or text that holds a complete and not
    empty \boxed{}. Tags may not repeat or nest, and line breaks are allowed everywhere.

    Args:
        response: the response alone. A prompt that quotes the layout must not be in it.
    """
    layout = _LAYOUT.fullmatch(response)
    if layout is None or _TAG.search(layout["thought"]):
        return False
    block = _ANSWER.fullmatch(layout["rest"])
    if block is not None:
        return bool(block["answer"].strip()) and not _TAG.search(block["answer"])
    return not _TAG.search(layout["rest"]) and _BOX.search(layout["rest"]) is not None


def with_format(rewards: ArrayLike, ok: ArrayLike, weight: float) -> np.ndarray:
    """Mixes a format term into rewards.

    Args:
        rewards: f32[P, G].
        ok: bool[P, G], whether a response passed `format_ok`.
        weight: in [0, 1], a share: (1 - weight) reward + weight ok (0.1 is the usual Geometry3K
            reward of verl and EasyR1). Negative, a penalty: a response of wrong format loses its
            size and the sum is clipped to [0, 1] (-0.5 is Self-Judge's). 0 changes nothing.

    Returns:
        f32[P, G].
    """
    rewards = np.asarray(rewards, np.float32)
    ok = np.asarray(ok, bool)
    if not -1 <= weight <= 1:
        raise ValueError(f"a format weight lies in [-1, 1], not {weight}")
    if weight == 0:
        return rewards
    if weight < 0:
        return np.clip(rewards + np.float32(weight) * ~ok, 0, 1)
    return ((1 - weight) * rewards + weight * ok).astype(np.float32)
