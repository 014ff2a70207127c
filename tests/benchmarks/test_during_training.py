"""Evaluations of a run on a published benchmark, and which step they call the best."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from jaxevolve.benchmarks import table
from jaxevolve.evaluations import Evaluations, open_questions
from jaxevolve.policy import Samples
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import read_jsonl
from jaxevolve.visits import Visits

CONFIG = str(Path(__file__).resolve().parents[2] / "configs" / "csrs.py")


@dataclass
class Reciter:
    """A policy that says the same to every question: first greedily, then by sampling."""

    processor: object
    greedy: list
    sampled: list

    def generate(self, prompts, *, n, temperature=1.0, max_tokens, seed=0):
        count = len(prompts.ids)
        said = self.greedy if temperature == 0 else self.sampled
        texts = [[said[i % len(said)]] * n for i in range(count)]
        return Samples(
            texts,
            np.zeros((count, n, max_tokens), np.int32),
            np.full((count, n), 2, np.int32),
            np.zeros((count, n, max_tokens), np.float32),
            np.ones((count, n), bool),
        )


@pytest.fixture
def config(tmp_path):
    """Two pairs of MMVP, without images: only the scores are looked at here."""
    rows = [
        {"index": i, "question": "q", "A": "Yes", "B": "No", "answer": "AB"[i % 2]}
        for i in range(4)
    ]
    path = tmp_path / "mmvp.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = cli.load_config(CONFIG)
    config.eval.update(benchmark="mmvp", path=str(path), n=2, questions=0)
    return config


def test_the_best_step_is_that_of_the_official_score(config, policy, tmp_path):
    benchmark = table.find(config.eval.benchmark)
    rows, visits = benchmark.load(config.eval.path), Visits(tmp_path, 0, "softened")
    judge = Evaluations(tmp_path, benchmark, rows, config, visits)
    # Three of four questions right are one pair of two; two of four may be no pair.
    judge.run(Reciter(policy.processor, ["A"], ["A", "B", "A", "A"]), 10)
    judge.run(Reciter(policy.processor, ["A", "B"], ["A"]), 20)
    first, second = read_jsonl(tmp_path / "eval.jsonl")
    assert first["benchmark"] == f"mmvp {config.eval.path}"
    assert (first["official"], first["official_average@2"]) == (0, 1 / 2)
    assert (second["official"], second["official_average@2"]) == (1, 0)
    assert first["average@2"] == 3 / 4
    assert second["figures"] == {"pair_accuracy": 1.0, "pairs": 2, "accuracy": 1.0}
    assert judge.best_step == 10


def test_questions_without_their_images_end_the_run_before_it_begins(config, policy, tmp_path):
    benchmark = table.find(config.eval.benchmark)
    with pytest.raises(UserError, match="4 of 4 questions have no image"):
        open_questions(config, benchmark, policy.processor, None)
