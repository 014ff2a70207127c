r"""Measures what an anchor does to answers and rewards, at a fixed model: no training.

    python scripts/anchor_study.py --config=configs/csrs.py --out=study.json

For every family of drawn problems and every anchor, n maternal responses and m re-inferences of
each are sampled and graded as a run of CSRS does it. The first table has the share of right answers
before and after: an anchor that favors nothing leaves it as it was. The second tells how well
rewards made from the same samples know right from wrong. Intervals are of 95 %, by bootstrap over
questions. FILE.npz beside FILE.json keeps classes, lengths and anchors; where it is there already,
nothing is sampled.
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
from jaxevolve.rewards import self_consistency, softened_frequency
from jaxevolve.rewards.voting import matches
from jaxevolve.runtime import cli

BATCH = 32  # questions sampled at a time
RESAMPLES = 2000

Sampled = dict[str, np.ndarray]


def define(values: flags.FlagValues) -> None:
    """The script's own flags."""
    texts = {
        "families": ("parI,parC", "families of drawn problems"),
        "anchors": (
            "fraction,random,token:13,token:21,token:26,group,group:0.3",
            "rules of retrace.anchor, a token with its place, others with a rate if not the usual",
        ),
        "noises": ("0", "standard deviations of image noise"),
        "out": (None, "the file to write, .json"),
    }
    for name, (default, told) in texts.items():
        flags.DEFINE_string(name, default, told, flag_values=values)
    flags.DEFINE_integer("questions", 96, "questions of each family", flag_values=values)
    flags.mark_flag_as_required("out", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Samples every setting, prints both tables and writes them with the samples."""
    config, out, policy = values.config, Path(values.out), None
    usual = config.retrace.rate
    stored = out.with_suffix(".npz")
    arrays = dict(np.load(stored)) if stored.exists() else {}
    names = ("classes", "reclasses", "correct", "recorrect", "lengths", "anchors")
    table = []
    for family in values.families.split(","):
        for anchor in values.anchors.split(","):
            for noise in map(float, values.noises.split(",")):
                keys = {name: f"{family} {anchor} {noise} {name}" for name in names}
                if keys["classes"] not in arrays:
                    policy = policy or load_policy(config.model.path)
                    rule, _, number = anchor.partition(":")
                    settings = {"anchor": rule, "image_noise": noise, "rate": usual}
                    if number:
                        settings |= (
                            {"token": int(number)} if rule == "token" else {"rate": float(number)}
                        )
                    config.retrace.update(settings)
                    sampled = study(policy, family, values.questions, config)
                    arrays |= {keys[name]: sampled[name] for name in names}
                    np.savez_compressed(stored, **arrays)
                sampled = {name: arrays[key] for name, key in keys.items()}
                table.append({"family": family, "anchor": anchor, "noise": noise})
                table[-1] |= shift(sampled) | quality(sampled)
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    show(table)


def study(policy: Policy, family: str, questions: int, config: ConfigDict) -> Sampled:
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


def shift(sampled: Sampled) -> dict[str, Any]:
    """How the anchor moves the share of right answers, and what lies beside that."""
    before, after = sampled["correct"].mean(1), sampled["recorrect"].mean((1, 2))
    right, lengths = sampled["correct"], sampled["lengths"]
    kept = sampled["reclasses"] == sampled["classes"][..., None]
    return {
        "questions": len(before),
        "before": before.mean(),
        "after": after.mean(),
        "shift": with_interval(after - before),
        "tokens_if_right": lengths[right].mean(),
        "tokens_if_wrong": lengths[~right].mean(),
        "same_if_right": kept[right].mean(),
        "same_if_wrong": kept[~right].mean(),
        "kept_tokens": sampled["anchors"].mean(),
        "tokens_again": (lengths - sampled["anchors"]).mean() * kept.shape[-1],
    }


def signals(classes: np.ndarray, reclasses: np.ndarray) -> dict[str, np.ndarray]:
    """Rewards f[Q, G] from one set of samples, most of them tried for a correction of f_r.

    "consistency": the share of the maternal answers alone. "pooled": of all (Eq. 7). "softened":
    the paper's reward. "leave one out": the share of all but a response itself and what follows its
    own anchor. "commitment": pooled, modulated as f_r does it by how much more often than by chance
    an answer is kept at its own anchors.
    """
    count, group, samples = reclasses.shape
    pooled = softened_frequency(classes, reclasses, gamma=0.0)
    own = matches(classes[..., None], reclasses)[..., 0]
    left = matches(classes, classes) + matches(classes, reclasses.reshape(count, -1)) - 1 - own
    alike = (classes[:, :, None] == classes[:, None, :]) & (classes >= 0)[:, None, :]
    kept = (alike * own[:, None, :]).sum(-1) / np.maximum(alike.sum(-1), 1) / samples
    beyond_chance = np.clip((kept - pooled) / np.maximum(1 - pooled, 0.05), 0, 1)
    centered = beyond_chance - beyond_chance.mean(1, keepdims=True)
    return {
        "consistency": self_consistency(classes),
        "pooled": pooled,
        "softened": softened_frequency(classes, reclasses),
        "leave one out": np.maximum(left, 0) / ((group - 1) * (samples + 1)),
        "commitment": pooled * (1 + 0.2 * np.tanh(5 * centered)),
    }


def quality(sampled: Sampled) -> dict[str, Any]:
    """By signal: the chance that a right response earns more than a wrong one of its group.

    "gain" is that of the softened reward beyond that of self-consistency, question by question.
    """
    right = sampled["correct"]
    mixed = right.any(1) & ~right.all(1)
    areas = {}
    for name, rewards in signals(sampled["classes"], sampled["reclasses"]).items():
        areas[name] = np.zeros(mixed.sum())
        for i, (reward, fine) in enumerate(zip(rewards[mixed], right[mixed])):
            gaps = reward[fine][:, None] - reward[~fine]
            areas[name][i] = ((gaps > 0) + 0.5 * (gaps == 0)).mean()
    areas["gain"] = areas["softened"] - areas["consistency"]
    return {"mixed": int(mixed.sum()), "area": {k: with_interval(v) for k, v in areas.items()}}


def with_interval(values: np.ndarray) -> list[float]:
    """The mean over questions and its interval: [mean, low, high]."""
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return [values.mean(), *np.quantile(values[drawn].mean(1), [0.025, 0.975])]


def show(table: list[dict[str, Any]]) -> None:
    """Prints both tables."""
    names = list(table[0]["area"])
    print("family anchor     noise  before   after  shift                     same if right, wrong")
    for line in table:
        mean, low, high = line["shift"]
        print(
            f"{line['family']:<6} {line['anchor']:<9}{line['noise']:>7}{line['before']:>8.3f}"
            f"{line['after']:>8.3f}  {mean:+.3f} [{low:+.3f}, {high:+.3f}]  "
            f"{line['same_if_right']:.3f}, {line['same_if_wrong']:.3f}"
        )
    print("\nfamily anchor     noise  tokens " + "".join(f"{name:>23}" for name in names))
    for line in table:
        cells = [
            f"{mean:.3f} [{low:.3f}, {high:.3f}]"
            for mean, low, high in map(line["area"].get, names)
        ]
        setting = f"{line['family']:<6} {line['anchor']:<9}{line['noise']:>7}"
        print(f"{setting}{line['tokens_again']:>8.0f} " + "".join(f"{c:>23}" for c in cells))


if __name__ == "__main__":
    cli.run(main, define, __doc__, config=True)
