"""What do runs tell together? Means over seeds with intervals, and differences seed by seed.

A figure is named as in eval.jsonl, "average@8"; of a family "ext/average@8"; or one of `COSTS`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import t as student

from comparison.arms import Arm
from comparison.runner import Run
from jaxevolve.runtime.tables import stem

MEASURES = (
    "greedy",
    "average",
    "majority",
    "pass",
    "high_confidence_wrong",
    "entropy",
    "unanimous",
)
FAMILY_MEASURES = ("average", "greedy")
COSTS = ("seconds a step", "CPU-seconds", "tokens a step")


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the seeds.
        half: half of the 95 % interval of the mean, Student's t over seeds; None with one seed.
        seeds: how many.
    """

    mean: float
    half: float | None
    seeds: int

    @property
    def significant(self) -> bool:
        """Whether the interval is known and leaves out 0."""
        return self.half is not None and abs(self.mean) > self.half


@dataclass(frozen=True)
class Read:
    """A finished run, read.

    Attributes:
        arm: what was trained.
        seed: of the run.
        metrics: a mapping a step, steps rising.
        evaluations: a mapping an evaluation, steps rising.
        cpu_seconds: of the whole run; None where nobody counted.
    """

    arm: Arm
    seed: int
    metrics: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    cpu_seconds: float | None

    @property
    def figures(self) -> dict[str, float]:
        """Its last evaluation, and what it cost."""
        found = flat(self.evaluations[-1])
        times = [row["time/step"] for row in self.metrics if row.get("time/step")]
        if times:
            # The first steps compile, and others may have been disturbed: a median.
            found["seconds a step"] = statistics.median(times)
        if self.cpu_seconds is not None:
            found["CPU-seconds"] = self.cpu_seconds
        tokens = [
            row["rollout/tokens"] + (row.get("retrace/tokens") or 0.0)
            for row in self.metrics
            if row.get("rollout/tokens")
        ]
        if tokens:
            found["tokens a step"] = statistics.fmean(tokens)
        return found


def read(runs: Sequence[Run]) -> list[Read]:
    """The finished ones among runs."""
    return [
        Read(run.arm, run.seed, run.metrics, run.evaluations, run.cpu_seconds)
        for run in runs
        if run.finished
    ]


def flat(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """An evaluation's figures by name, those of families behind the family's name."""
    found = {k: v for k, v in evaluation.items() if stem(k) in MEASURES and v is not None}
    for family, figures in evaluation.get("family", {}).items():
        found |= {
            f"{family}/{k}": v
            for k, v in figures.items()
            if stem(k) in FAMILY_MEASURES and v is not None
        }
    return found


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval of one value a seed; at least one."""
    count = len(values)
    half = None
    if count > 1:
        error = statistics.stdev(values) / math.sqrt(count)
        half = float(student.ppf(0.975, count - 1)) * error
    return Estimate(statistics.fmean(values), half, count)


def summarize(runs: Sequence[Read], arms: Sequence[Arm], baseline: str) -> dict[str, Any]:
    """All that the table and the page tell in numbers, as JSON has it.

    Args:
        runs: at least one.
        arms: in the order of the table; those without a run are left out.
        baseline: label of the arm that the others are compared with, by seeds that both have.

    Returns:
        "start": the first evaluation; "steps" and "questions" of the last ones; "arms": label ->
        recipe, overrides, seeds, paper, "figures" and "differences": name -> estimate, the latter
        with "significant", and "by_seed".
    """
    of = {arm.label: {run.seed: run for run in runs if run.arm == arm} for arm in arms}
    by_seed = {
        label: {seed: run.figures for seed, run in those.items()} for label, those in of.items()
    }
    reference = by_seed.get(baseline, {})
    described = {}
    for arm in arms:
        figures = by_seed[arm.label]
        if not figures:
            continue
        names = list(dict.fromkeys(name for f in figures.values() for name in f))
        differences = {}
        for name in names:
            paired = [
                figures[seed][name] - reference[seed][name]
                for seed in figures
                if name in figures[seed] and name in reference.get(seed, {})
            ]
            if paired and arm.label != baseline:
                found = estimate(paired)
                differences[name] = asdict(found) | {"significant": found.significant}
        described[arm.label] = {
            "recipe": arm.recipe,
            "overrides": list(arm.overrides),
            "seeds": sorted(figures),
            "paper": dict(arm.paper),
            "figures": {
                name: asdict(estimate([f[name] for f in figures.values() if name in f]))
                for name in names
            },
            "differences": differences,
            "by_seed": {str(seed): figures[seed] for seed in sorted(figures)},
        }
    first = runs[0].evaluations
    return {
        "baseline": baseline,
        "start": flat(first[0]),
        "steps": sorted({run.evaluations[-1]["step"] for run in runs}),
        "questions": first[-1]["questions"],
        "benchmark": first[-1].get("benchmark"),
        "arms": described,
    }
