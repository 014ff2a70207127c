r"""Measures what an anchor does to the answers, at a fixed model: no training.

    python scripts/anchor_study.py --config=configs/csrs.py --out=study.json

For every family of drawn problems and every anchor, n maternal responses and m re-inferences of
each are sampled and graded as a run of CSRS does it. An anchor that tells nothing but noise leaves
the share of right answers as it was; the table has both shares, their difference, and a bootstrap
interval of that over questions. FILE.npz beside FILE.json has the classes, lengths and anchors.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from jaxevolve.answers.grading import grade
from jaxevolve.data.sources import load_rows
from jaxevolve.policy import Policy, load_policy, read, sampling_rules, step_key
from jaxevolve.recipes import csrs
from jaxevolve.runtime import cli

BATCH = 32  # questions sampled at a time
RESAMPLES = 2000


def define(values: flags.FlagValues) -> None:
    """The script's own flags."""
    define = {
        "families": ("tri,ext,iso,parI,parC", "families of drawn problems"),
        "anchors": ("fraction,random,token:21,group", "rules; a token with its place"),
        "noises": ("0,0.1", "standard deviations of image noise"),
        "out": (None, "the file to write, .json"),
    }
    for name, (default, told) in define.items():
        flags.DEFINE_string(name, default, told, flag_values=values)
    flags.DEFINE_integer("questions", 128, "questions of each family", flag_values=values)
    flags.mark_flag_as_required("out", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Samples every setting, prints a table and writes it with the samples' figures."""
    config, policy = values.config, load_policy(values.config.model.path)
    table, arrays = [], {}
    print(f"{'family':<7}{'anchor':<10}{'noise':>6}{'maternal':>10}{'again':>8}  difference")
    for family in values.families.split(","):
        for anchor in values.anchors.split(","):
            for noise in map(float, values.noises.split(",")):
                config.retrace.anchor, _, token = anchor.partition(":")
                config.retrace.token = int(token or config.retrace.token)
                config.retrace.image_noise = noise
                sampled = study(policy, family, values.questions, config)
                line = {"family": family, "anchor": anchor, "noise": noise, **figures(sampled)}
                table.append(line)
                arrays |= {f"{family} {anchor} {noise} {k}": v for k, v in sampled.items()}
                low, high = line["interval"]
                print(
                    f"{family:<7}{anchor:<10}{noise:>6}{line['maternal']:>10.3f}"
                    f"{line['again']:>8.3f}  {line['difference']:+.3f} [{low:+.3f}, {high:+.3f}]",
                    flush=True,
                )
    out = Path(values.out)
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    np.savez_compressed(out.with_suffix(".npz"), **arrays)


def study(policy: Policy, family: str, questions: int, config: ConfigDict) -> dict[str, Any]:
    """Samples and grades questions of one family that no run trains on.

    Returns:
        classes i32[Q, G], reclasses i32[Q, G, M], correct bool[Q, G], recorrect bool[Q, G, M],
        lengths i32[Q, G] and anchors i32[Q, G], in tokens.
    """
    rows = load_rows(f"geometry:{family}=1,seed=2")
    rules = sampling_rules(policy.processor, config.rollout.top_p, config.rollout.top_k)
    parts = []
    for start in range(0, questions, BATCH):
        some = [rows[i] for i in range(start, min(start + BATCH, questions))]
        prompts = policy.prompts(some)
        maternal, retraced, _ = csrs.sample(policy, prompts, step_key(0, 0), rules, config)
        own = read(policy.processor, maternal).texts
        again = csrs.continued_texts(policy, maternal, retraced)
        texts = [a + b for a, b in zip(own, again)]
        graded = grade(texts, [row["answer"] for row in some], config.reward.equality)
        group = config.rollout.n
        shape = (len(some), group, -1)
        parts.append(
            {
                "classes": graded.classes[:, :group],
                "reclasses": graded.classes[:, group:].reshape(shape),
                "correct": graded.correct[:, :group],
                "recorrect": graded.correct[:, group:].reshape(shape),
                "lengths": maternal.lengths,
                "anchors": retraced.anchor,
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def figures(sampled: dict[str, np.ndarray]) -> dict[str, Any]:
    """One line of the table; the interval is that of the difference, 95 % by bootstrap."""
    before, after = sampled["correct"].mean(1), sampled["recorrect"].mean((1, 2))
    drawn = np.random.default_rng(0).integers(len(before), size=(RESAMPLES, len(before)))
    right, lengths = sampled["correct"], sampled["lengths"]
    kept = sampled["reclasses"] == sampled["classes"][..., None]
    return {
        "questions": len(before),
        "maternal": before.mean(),
        "again": after.mean(),
        "difference": (after - before).mean(),
        "interval": np.quantile((after - before)[drawn].mean(1), [0.025, 0.975]).tolist(),
        "tokens_if_right": lengths[right].mean(),
        "tokens_if_wrong": lengths[~right].mean(),
        "same_if_right": kept[right].mean(),
        "same_if_wrong": kept[~right].mean(),
        "anchor": sampled["anchors"].mean(),
    }


if __name__ == "__main__":
    cli.run(main, define, __doc__, config=True)
