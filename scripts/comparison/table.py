"""The numbers as people read them: markdown tables, and sentences by rule."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from comparison.results import COSTS, FAMILY_MEASURES, MEASURES
from jaxevolve.runtime.charts import MINUS
from jaxevolve.runtime.tables import stem

Summary = Mapping[str, Any]
Cells = list[list[str]]

_NAMES = {"high_confidence_wrong": "confidently wrong"}  # where a figure has another for people
TOLD = ("average", "greedy", "high_confidence_wrong")  # measures with a sentence each


def name_of(figure: str) -> str:
    """A figure's name for people: "average@8", "confidently wrong"."""
    return _NAMES.get(figure, figure)


def ordered(summary: Summary) -> list[str]:
    """Names of the figures over all questions, in the table's order."""
    known = [name for arm in summary["arms"].values() for name in arm["figures"]]
    chosen = {stem(name): name for name in known if "/" not in name}
    return [chosen[measure] for measure in MEASURES if measure in chosen]


def families(summary: Summary) -> list[str]:
    """Names of the families, sorted."""
    arms = summary["arms"].values()
    return sorted({n.split("/")[0] for arm in arms for n in arm["figures"] if "/" in n})


def value(figure: str, found: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """An estimate: "87.4 ± 2.1" in percent or points, entropy in nats, costs as they are."""
    if found is None:
        return "–"
    text = _number(figure, found["mean"], signed)
    half = found.get("half")
    return text if half is None else f"{text} ± {_number(figure, half, False)}"


def _number(figure: str, number: float, signed: bool) -> str:
    measure = stem(figure.rpartition("/")[2])
    if measure == "entropy":
        text = f"{abs(number):.3f}"
    elif measure == "seconds a step":
        text = f"{abs(number):.2f}"
    elif measure in COSTS:
        text = f"{abs(number):,.0f}"
    else:
        text = f"{100 * abs(number):.1f}"
    zero = not text.strip("0.,")
    sign = "" if zero else MINUS if number < 0 else "+" if signed else ""
    return sign + text


def main_table(summary: Summary) -> tuple[list[str], Cells]:
    """Header and a row an arm, the start first: every measure, then costs."""
    names = ordered(summary)
    costs = [c for c in COSTS if any(c in arm["figures"] for arm in summary["arms"].values())]
    rows = [["before", "", *(value(n, _once(summary, n)) for n in names), *("" for _ in costs)]]
    for label, arm in summary["arms"].items():
        cells = (value(name, arm["figures"].get(name)) for name in [*names, *costs])
        rows.append([label, str(len(arm["seeds"])), *cells])
    return ["", "seeds", *map(name_of, names), *costs], rows


def family_table(summary: Summary) -> tuple[list[str], Cells]:
    """Header and a row an arm: average and greedy by family."""
    columns = family_columns(summary)
    rows = [["before", *(value(name, _once(summary, name)) for name in columns)]]
    for label, arm in summary["arms"].items():
        rows.append([label, *(value(name, arm["figures"].get(name)) for name in columns)])
    return ["", *(" ".join(reversed(name.split("/"))) for name in columns)], rows


def family_columns(summary: Summary) -> list[str]:
    """Figures by family: the averages of all families, then the greedy ones."""
    known = dict.fromkeys(n for arm in summary["arms"].values() for n in arm["figures"])
    return [
        name
        for measure in FAMILY_MEASURES
        for name in sorted(known)
        if "/" in name and stem(name.split("/")[1]) == measure
    ]


def difference_table(summary: Summary, *, by_family: bool = False) -> tuple[list[str], Cells]:
    """Header and a row an arm but the baseline; what is significant is bold in markdown."""
    columns = family_columns(summary) if by_family else ordered(summary)
    rows = []
    for label, arm in summary["arms"].items():
        if label == summary["baseline"]:
            continue
        found = [arm["differences"].get(name) for name in columns]
        shown = [value(name, f, signed=True) for name, f in zip(columns, found)]
        bold = [f is not None and f["significant"] for f in found]
        rows.append([label, *(f"**{s}**" if b else s for s, b in zip(shown, bold))])
    heads = [" ".join(reversed(name_of(name).split("/"))) for name in columns]
    return ["", *heads], rows


def paper_table(summary: Summary, start: Mapping[str, float]) -> tuple[list[str], Cells] | None:
    """Header and rows of our average and greedy beside the paper's own figures, if it has any."""
    columns = list(dict.fromkeys(c for arm in summary["arms"].values() for c in arm["paper"]))
    if not columns:
        return None
    names = [n for n in ordered(summary) if stem(n) in FAMILY_MEASURES]
    costs = [relative(summary, cost) or {} for cost in COSTS]
    paper = lambda figures: [f"{figures[c]:.2f}" if c in figures else "" for c in columns]
    rows = []
    if start:
        before = (value(name, _once(summary, name)) for name in names)
        rows.append(["before", *before, "", "", "", *paper(start)])
    for label, arm in summary["arms"].items():
        ours = [value(name, arm["figures"].get(name)) for name in names]
        ratios = [f"{r[label]:.2f}" if label in r else "" for r in costs]
        rows.append([label, *ours, *ratios, *paper(arm["paper"])])
    heads = [*map(name_of, names), "time", "CPU", "tokens", *(f"paper: {c}" for c in columns)]
    return ["", *heads], rows


def relative(summary: Summary, cost: str) -> dict[str, float] | None:
    """A cost of each arm over the baseline's, where both are known."""
    of = {
        label: arm["figures"][cost]["mean"]
        for label, arm in summary["arms"].items()
        if cost in arm["figures"]
    }
    base = of.get(summary["baseline"])
    return {label: cost / base for label, cost in of.items()} if base else None


def sentences(summary: Summary) -> list[str]:
    """What is and what is not significant, a sentence a measure, by rule from the numbers."""
    baseline = summary["baseline"]
    told = []
    of = {stem(name): name for name in ordered(summary)}
    for name in (of[measure] for measure in TOLD if measure in of):
        found = {
            label: arm["differences"][name]
            for label, arm in summary["arms"].items()
            if name in arm["differences"]
        }
        if not found:
            continue
        say = lambda label, name=name, found=found: (
            f"{label} ({value(name, found[label], signed=True)})"
        )
        yes = [say(label) for label, f in found.items() if f["significant"]]
        no = [say(label) for label, f in found.items() if f["half"] is not None]
        no = [text for text in no if text not in yes]
        one = [say(label) for label, f in found.items() if f["half"] is None]
        parts = []
        if yes:
            parts.append(f"significantly different from {baseline}: {', '.join(yes)}")
        if no:
            parts.append(f"not significantly different from {baseline}: {', '.join(no)}")
        if one:
            parts.append(f"with one seed, against {baseline}: {', '.join(one)}")
        told.append(f"{name_of(name)[:1].upper()}{name_of(name)[1:]}, {'; '.join(parts)}.")
    return told


def caveats(summary: Summary) -> list[str]:
    """How the numbers are to be read."""
    counts = sorted({len(arm["seeds"]) for arm in summary["arms"].values()})
    seeds = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    steps = " to ".join(map(str, dict.fromkeys([summary["steps"][0], summary["steps"][-1]])))
    paired = [d for arm in summary["arms"].values() for d in arm["differences"].values()]
    shown = len(ordered(summary)) + len(family_columns(summary))
    others = sum(bool(arm["differences"]) for arm in summary["arms"].values())
    told = [
        f"Measured after {steps} steps on {summary['questions']} held-out questions, the same for "
        "all; in percent, entropy in nats a token.",
        f"± is half of the 95 % interval of the mean over seeds (Student's t; {seeds} seed"
        f"{'s' if counts[-1] > 1 else ''}). It tells what other seeds would give on these "
        "questions. Other questions add their own error, which it does not hold: up to "
        f"{98 / math.sqrt(max(summary['questions'], 1)):.1f} points (95 %) for a share of all "
        "questions, more for a family, less for a difference on the same questions.",
    ]
    if any(d["half"] is not None for d in paired):
        told.append(
            f"Differences are to {summary['baseline']}, seed by seed; bold and “significant” mean "
            "that the interval leaves out 0. Nothing is corrected for their number: "
            f"{others * shown} differences are shown, and if none were real, about "
            f"{0.05 * others * shown:.0f} of them would still look significant."
        )
    else:
        told.append("With one seed nothing can be called significant.")
    if any(cost in arm["figures"] for arm in summary["arms"].values() for cost in COSTS):
        told.append(
            "Seconds a step are wall-clock time, the median over steps, on a machine that may have "
            "had other work; CPU-seconds are those of the whole run with compilation and "
            "evaluations; tokens are sampled ones, re-inferences included."
        )
    return told


def markdown(
    title: str, summary: Summary, *, note: str = "", start: Mapping[str, float] | None = None
) -> str:
    """The whole as one document."""
    parts = [f"# {title}", *sentences(summary), _table(*main_table(summary))]
    if any(arm["differences"] for arm in summary["arms"].values()):
        parts += [f"## Difference to {summary['baseline']}", _table(*difference_table(summary))]
        if families(summary):
            parts.append(_table(*difference_table(summary, by_family=True)))
    if families(summary):
        parts += ["## By family", _table(*family_table(summary))]
    if (beside := paper_table(summary, start or {})) is not None:
        parts += ["## Beside the paper", PAPER, _table(*beside)]
    parts += ["## How to read this", *([note] if note else []), *caveats(summary)]
    return "\n\n".join(parts) + "\n"


PAPER = (
    "The paper's figures are those of Qwen2.5-VL-7B on benchmarks of its own, ours those of the "
    "model and questions of this run: compare the order of the rows, not the values. Time (of a "
    "step), CPU (of the run, with what all have in common) and tokens are over the baseline's."
)


def _once(summary: Summary, figure: str) -> dict[str, Any] | None:
    """A figure before training, which is the same for all."""
    if figure not in summary["start"]:
        return None
    return {"mean": summary["start"][figure], "half": None}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
