"""The verdicts of tests/answer_kinds.py, each in both orders."""

import pytest
from answer_kinds import KINDS

from jaxevolve.answers import equal


@pytest.mark.parametrize(("kind", "left", "right", "verdict"), KINDS)
def test_verdict(kind, left, right, verdict):
    assert equal(gold=left, pred=right) is verdict
    assert equal(gold=right, pred=left) is verdict
