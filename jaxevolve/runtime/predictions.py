"""Do answers do what theory says? Charts of measured frequencies beside CSRS's recursions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from jaxevolve.runtime.charts import Line, line_chart, number, percent
from jaxevolve.theory import Rule, contrast, contrast_eta, fitted_eta, trajectory
from jaxevolve.visits import successive, tallies, tally

GAPS = 5  # ranges of rho - eps that are told apart
FEWEST = 8  # questions that a drawn mean is made of
# The leading answer's share of half of the first samples, above and up to.
GROUPS = {
    "Leading answer, contested": (0.0, 0.5),
    "Leading answer, ahead": (0.5, 0.99),
    "Leading answer, clear": (0.99, 1),
}

Rows = Sequence[Mapping[str, Any]]
RULES: dict[str, Rule] = {"majority voting": "majority", "softened": "softened"}


def by_frequency(rows: Rows) -> list[Markup]:
    """How right and how many the answers of each frequency are (CSRS Figure 3).

    Args:
        rows: metrics of the run, steps rising.
    """
    third = max(math.ceil(len(rows) / 3), 1)
    parts = [rows[i : i + third] for i in range(0, len(rows), third)]
    stem = "label/right_by_frequency/"
    lows = sorted({key.removeprefix(stem) for row in rows for key in row if key.startswith(stem)})
    if not lows:
        return []
    x = [float(low) + 0.1 for low in lows]
    right, many = [], []
    for part in parts:
        first, last = part[0]["step"], part[-1]["step"]
        name = f"step {first}" if first == last else f"steps {first} to {last}"
        table = np.array(
            [
                [_known(row, f"label/{what}_by_frequency/{low}") for low in lows]
                for row in part
                for what in ("right", "answers")
            ]
        ).reshape(-1, 2, len(lows))
        share, size = table[:, 0], table[:, 1]
        weight = np.where(np.isnan(share), 0.0, size).sum(0)
        mean = np.nansum(share * size, 0) / np.where(weight > 0, weight, np.nan)
        right.append(Line(name, x, _gaps(mean)))
        known = size[~np.isnan(size).any(1)]
        many.append(Line(name, x, _gaps(known.mean(0) if len(known) else np.full(len(x), np.nan))))
    share = {"form": percent, "limits": (0.0, 1.0), "at": _range, "mark": _mark}
    return [
        line_chart(
            "Right answers by frequency",
            right,
            **share,
            note="Of training answers that so large a part of their group gives, the share that is "
            "right. Learning lifts the curve; collapse lowers its right end.",
        ),
        line_chart(
            "Answers by frequency",
            many,
            **share,
            note="Share of all training answers. Sharpening moves them to the right.",
        ),
    ]


def factors(rows: Rows, evaluations: Rows, events: Sequence[float]) -> list[Markup]:
    """The contrastive factor as it was measured and as both rules have it, over steps."""
    names = {
        "measured": "contrast/measured",
        "majority, exp η": "contrast/majority",
        "softened, exp η(ρ−ε)": "contrast/softened",
    }
    note = (
        "Growth of the odds of the majority answer, from one visit of a question to the next; it "
        "gains above 1. η is fitted with the run's own reward."
    )
    return [
        line_chart(
            f"Contrastive factor, {where}",
            [
                Line(name, [row["step"] for row in told], [row.get(key) for row in told])
                for name, key in names.items()
            ],
            note=note,
            events=events,
        )
        for where, told in (("held out", evaluations), ("training", rows))
    ]


def by_gap(visits: Rows) -> Markup:
    """The measured factor over rho - eps, of which the two rules make different curves."""
    pairs = successive(visits)
    if not pairs:
        return Markup("")
    seen = contrast(*tallies(pairs))
    x, y, spread = [], [], []
    for low in np.arange(GAPS) / GAPS:
        inside = (seen.gap >= low) & (seen.gap < low + 1 / GAPS)
        if inside.sum() < FEWEST:
            continue
        logs = seen.log_factor[inside]
        x.append(float(seen.gap[inside].mean()))
        y.append(float(np.exp(logs.mean())))
        spread.append(float(y[-1] * min(2 * logs.std() / math.sqrt(inside.sum()), 1)))
    etas = {name: contrast_eta(seen, rule) for name, rule in RULES.items()}
    if not x or any(map(math.isnan, etas.values())):
        return Markup("")
    return line_chart(
        "Factor by lead, held out",
        [
            Line("measured", x, y, spread),
            Line("majority, exp η", x, [math.exp(etas["majority voting"])] * len(x)),
            Line("softened, exp η(ρ−ε)", x, [math.exp(etas["softened"] * gap) for gap in x]),
        ],
        at=lambda gap: f"ρ−ε = {number(round(gap, 2))}",
        mark="{:g}".format,
        note="Over the lead ρ−ε of the majority answer, all visits together, each rule with the η "
        "that suits it best. The band is two standard errors.",
    )


def trajectories(visits: Rows) -> list[Markup]:
    """Shares of answers of questions that began alike, beside both rules' recursions.

    Which answer leads is told by half of a question's first samples, and its share at every visit
    measured on the other half, so that a lucky start does not seem to be lost again; then the
    halves change places. A group of questions is drawn as one question with their mean shares.
    """
    ids = sorted(set.intersection(*(set(v["classes"]) for v in visits))) if visits[1:] else []
    paths: dict[str, list[np.ndarray]] = {title: [] for title in GROUPS}
    for name in ids:
        for lead, path in _halves([visit["classes"][name] for visit in visits]):
            (title,) = (title for title, (low, high) in GROUPS.items() if low < lead <= high)
            paths[title].append(path)
    means = {t: np.mean(p, 0) for t, p in paths.items() if len(p) >= 2 * FEWEST}
    if not means:
        return []
    before = np.concatenate([mean[:-1] for mean in means.values()])
    after = np.concatenate([mean[1:] for mean in means.values()])
    etas = {name: fitted_eta(before, after, rule) for name, rule in RULES.items()}
    steps = [visit["step"] for visit in visits]
    charts = []
    for title, mean in means.items():
        lines = [Line("measured", steps, mean[:, 0].tolist())]
        for name, eta in etas.items():
            if not math.isnan(eta):
                path = trajectory(mean[0], RULES[name], eta, len(steps) - 1)
                lines.append(Line(f"by {name}", steps, path[:, 0].tolist()))
        lines.append(Line("next answer", steps, mean[:, 1].tolist()))
        charts.append(
            line_chart(
                title,
                lines,
                form=percent,
                limits=(0.0, 1.0),
                note=f"Mean shares over the samples of about {len(paths[title]) // 2} held-out "
                "questions, and what the recursions make of the first.",
            )
        )
    return charts


def _halves(classes: Sequence[Sequence[int]]) -> list[tuple[float, np.ndarray]]:
    """Both halves of a question's samples, each measured where the other tells which answer leads.

    Args:
        classes: [visits][n] of its answers.

    Returns:
        (the leader's share in the half that tells, f64[visits, A] shares in the other: the leader
        first, others by how often they are given), where both have an answer at every visit.
    """
    half, found = len(classes[0]) // 2, []
    for tells, measured in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        start = tally(classes[0][tells])
        counts = np.stack([tally(visit[measured]) for visit in classes])
        if not (start.any() and counts.any(-1).all()):
            continue
        shares = counts / counts.sum(-1, keepdims=True)
        leader = start.argmax()
        others = np.delete(shares, leader, -1)
        order = np.argsort(-others.sum(0), kind="stable")
        path = np.concatenate([shares[:, [leader]], others[:, order]], -1)
        found.append((start[leader] / start.sum(), path))
    return found


def _known(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    return math.nan if value is None else value


def _gaps(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values]


def _mark(share: float) -> str:
    return f"{100 * share:g}%"


def _range(middle: float) -> str:
    return f"{100 * (middle - 0.1):.0f} to {100 * (middle + 0.1):.0f}%"
