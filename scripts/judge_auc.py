"""Measures a judge where there are labels: do its scores tell right answers from wrong ones?

    python scripts/judge_auc.py --config=configs/self_judge.py --questions=256

The run's model answers the config's held-out questions, its judge scores the answers, and labels,
which neither of them sees, tell which are right.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from jaxevolve.answers.choices import options_for
from jaxevolve.answers.grading import grade
from jaxevolve.data.validate import open_data
from jaxevolve.policy import Policy, load_policy, step_key
from jaxevolve.recipes import self_judge
from jaxevolve.rewards import auc
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_integer("questions", 256, "held-out questions", 1, flag_values=values)
    flags.DEFINE_string("out", None, "also writes the figures to this file", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """One measurement, from the flags to the table."""
    config = values.config
    if not config.judge.repeats:
        raise UserError("--config.judge.repeats=0 asks for no judge; give at least 1")
    actor = load_policy(config.model.path, config.model.dtype)
    judge = load_policy(config.judge.path or config.model.path, config.model.dtype)
    source = open_data(config.eval.path, config.data, actor.processor, labels=True)
    rows = [source[i] for i in range(min(values.questions, len(source)))]
    figures = measure(actor, judge, rows, config)
    text = json.dumps(figures, indent=2)
    print(text)
    if values.out:
        with open(values.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


def measure(
    actor: Policy, judge: Policy, rows: Sequence[Mapping[str, Any]], config: ConfigDict
) -> dict[str, dict[str, Any]]:
    """Figures of all candidates, and of each family.

    Args:
        actor: what answers, `rollout.n` times each question.
        judge: what scores the answers.
        rows: questions with labels.
        config: the run's config.
    """
    settings, key = config.rollout, step_key(config.seed, 0)
    prompts = actor.prompts(rows, config.data.instruction)
    sampled = actor.generate(
        prompts,
        n=settings.n,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_tokens=settings.max_tokens,
        seed=config.seed,
    )
    found = self_judge.judge(judge, rows, prompts.ids, sampled.texts, key, config)
    options = [options_for(row["question"], row.get("choices")) for row in rows]
    labels = [row["answer"] for row in rows]
    graded = grade(sampled.texts, labels, config.reward.equality, options)
    families = np.array([str(row.get("family")) for row in rows])
    groups = {"all": graded.labeled}
    if len(set(families)) > 1:
        groups |= {name: graded.labeled & (families == name) for name in sorted(set(families))}
    figures = {}
    for name, here in groups.items():
        scores, correct = found.scores[here], graded.correct[here]
        known = ~np.isnan(scores)
        figures[name] = {
            "candidates": int(correct.size),
            "right": round(float(correct.mean()), 3),
            "auc": None if math.isnan(area := auc(scores, correct)) else round(area, 3),
            "score_if_right": mean(scores[known & correct]),
            "score_if_wrong": mean(scores[known & ~correct]),
            "unread": round(float(found.unread[here].mean()), 4),
            "tokens": round(float(found.tokens[here].mean()), 1),
        }
    return figures


def mean(scores: np.ndarray) -> float | None:
    """The mean of scores; None of none."""
    return round(float(scores.mean()), 3) if scores.size else None


if __name__ == "__main__":
    cli.run(main, define, __doc__, config=True)
