"""The layout of a response."""

import numpy as np
import pytest

from jaxevolve.rewards import format_ok, with_format


@pytest.mark.parametrize(
    ("response", "ok"),
    [
        ("<think>a\nb</think> so \\boxed{4}", True),
        ("<think>\nline 1\nline 2\n</think>\n\n<answer>\n9\n</answer>", True),  # A49
        ("<think></think>\\boxed{\\frac{1}{2}}.\n", True),
        ("  <think>a</think> \\boxed{4} ", True),
        ("The area is 40.", False),  # A15: the box is only in the prompt
        ("<think>a</think><think>b</think><answer>9</answer>", False),  # A50
        ("<think>a<think>b</think></think>\\boxed{1}", False),
        ("<think>a</think><answer>9</answer><answer>9</answer>", False),
        ("<think>a</think><answer> </answer>", False),
        ("<think>a</think>\\boxed{}", False),
        ("<think>a</think>\\boxed{4", False),
        ("<think>a \\boxed{4}</think> so 4", False),
        ("<think>a \\boxed{4}", False),
        ("well <think>a</think>\\boxed{4}", False),
        ("<think>a</think><answer>9", False),
        ("", False),
    ],
)
def test_layout(response, ok):
    assert format_ok(response) is ok


def test_weights_mix_or_punish():
    rewards = np.array([[1.0, 1.0, 0.25]], np.float32)
    ok = np.array([[True, False, False]])
    np.testing.assert_array_equal(with_format(rewards, ok, 0.0), rewards)
    np.testing.assert_allclose(with_format(rewards, ok, 0.1), [[1, 0.9, 0.225]])
    np.testing.assert_allclose(with_format(rewards, ok, -0.5), [[1, 0.5, 0]])
    assert with_format(rewards, ok, 0.1).dtype == with_format(rewards, ok, -0.5).dtype == np.float32
    with pytest.raises(ValueError, match=r"1\.5"):
        with_format(rewards, ok, 1.5)
