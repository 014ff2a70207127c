"""The check of a run's answers against the recursions, on answers that follow one of them."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from jaxevolve.theory import contrast, reward, tilted

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_theory.py"


@pytest.fixture(scope="module")
def check():
    return runpy.run_path(str(SCRIPT))


def test_the_slope_tells_the_rules_apart(check):
    numbers = np.random.default_rng(0)
    p = numbers.dirichlet([2, 2, 1], 2000)
    found = {}
    for rule in ("majority", "softened"):
        after = tilted(p, reward(p, rule), 0.8)
        counts = [np.stack([numbers.multinomial(400, q) for q in shares]) for shares in (p, after)]
        found[rule], _ = check["fit"](contrast(*counts))
    assert found["majority"] == pytest.approx([0.8, 0.0], abs=0.05)
    assert found["softened"] == pytest.approx([0.0, 0.8], abs=0.12)


def test_a_run_is_read_and_both_rules_are_drawn_beside_it(check, tmp_path, capsys):
    numbers = np.random.default_rng(1)
    lines = [
        {
            "step": step,
            "of": "held-out",
            "classes": {f"q{i}": numbers.choice(3, 8).tolist() for i in range(40)},
            "new": {},
        }
        for step in (0, 10)
    ]
    (tmp_path / "visits.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    check["main"].__globals__["DRAWS"] = 2
    check["main"](tmp_path)
    names = [line.split(",")[0].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["a", "measured", *["majority"] * 3, *["softened"] * 3]
