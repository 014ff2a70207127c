"""One self-contained page for many runs: tables above, every curve with its seeds' spread below."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from comparison import table
from comparison.results import FAMILY_MEASURES, Read
from jaxevolve.runtime import page
from jaxevolve.runtime.charts import Line, line_chart, percent
from jaxevolve.runtime.figures import thin
from jaxevolve.runtime.tables import stem

COLUMNS = 10  # points on a training curve: one step alone is a few questions, and noisy

Value = Callable[[Mapping[str, Any]], float | None]


def render(
    title: str,
    summary: table.Summary,
    runs: Sequence[Read],
    *,
    facts: Mapping[str, str],
    command: Sequence[str],
    note: str = "",
    start: Mapping[str, float] | None = None,
) -> str:
    """The page.

    Args:
        title: of the page.
        summary: of `results.summarize`.
        runs: that it was made of.
        facts: name -> fact, shown at the top.
        command: words that made it.
        note: how the arms are to be read.
        start: the paper's figures before training.
    """
    sentences = table.sentences(summary)
    tables = [("All held-out questions", *table.main_table(summary))]
    if any(arm["differences"] for arm in summary["arms"].values()):
        to = f"Difference to {summary['baseline']}"
        tables.append((to, *table.difference_table(summary)))
        if table.families(summary):
            tables.append((f"{to}, by family", *table.difference_table(summary, by_family=True)))
    if table.families(summary):
        tables.append(("By family", *table.family_table(summary)))
    if (beside := table.paper_table(summary, start or {})) is not None:
        tables.append(("Beside the paper", *beside))
    # A value and its interval stay in one line.
    told = [text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for text in sentences]
    notes = [note] if note else []
    notes += [table.PAPER] if beside is not None else []
    return (
        page.environment()
        .get_template("comparison.html")
        .render(
            **page.furniture(),
            head={
                "kind": "comparison",
                "title": title,
                "full": title,
                "name": title,
                "lead": told[0] if told else "",
                "facts": facts,
                "command": command,
            },
            more=told[1:],
            tables=[
                {
                    "caption": caption,
                    "header": header,
                    "rows": [[_broken(row[0]), *map(_cell, row[1:])] for row in rows],
                }
                for caption, header, rows in tables
            ],
            notes=[*notes, *table.caveats(summary)],
            sections=sections(runs),
            each=each(summary),
        )
    )


def sections(runs: Sequence[Read]) -> list[dict[str, Any]]:
    """Headings with their charts, a line an arm; those without any value are left out."""
    keys = {stem(key): key for run in runs for e in run.evaluations for key in e}
    families = sorted({f for run in runs for e in run.evaluations for f in e.get("family", {})})

    def chart(title: str, of: Sequence[Line], note: str) -> Markup:
        return line_chart(title, of, note=note)

    def share(title: str, of: Sequence[Line], note: str = "") -> Markup:
        """Shares of 1; the axis follows the values, as they may be close together."""
        return line_chart(title, of, form=percent, limits=_limits(of), note=note)

    def held_out(measure: str, family: str = "") -> list[Line]:
        key = keys.get(measure, "")
        value = lambda e: (e.get("family", {}).get(family, {}) if family else e).get(key)
        return lines(runs, lambda run: run.evaluations, value)

    def steps(key: str) -> list[Line]:
        return lines(runs, lambda run: thin(run.metrics, COLUMNS)[0], lambda row: row.get(key))

    found = [
        (
            "learning",
            "Do they learn?",
            [
                share("Average of the samples", held_out("average"), "Share of all samples."),
                share("Greedy", held_out("greedy"), "Share of the questions."),
                share("Majority", held_out("majority"), "The most frequent answer is right."),
                share(
                    "Any sample",
                    held_out("pass"),
                    "Falls where a model answers more alike.",
                ),
                share(
                    "Confidently wrong",
                    held_out("high_confidence_wrong"),
                    "Nearly all samples of a question agree on one wrong answer.",
                ),
            ],
        ),
        (
            "families",
            "Which families gain, which lose?",
            [
                share(f"{family}, {measure}", held_out(measure, family))
                for measure in FAMILY_MEASURES
                for family in families
            ],
        ),
        (
            "collapse",
            "Do they collapse?",
            [
                chart("Entropy, held out", held_out("entropy"), "Nats a token of the samples."),
                chart("Entropy, training", steps("policy/entropy"), "Nats a token."),
                share(
                    "Unanimous, held out",
                    held_out("unanimous"),
                    "All samples of a question agree. Sound where accuracy rises as fast.",
                ),
                share("Unanimous, training", steps("rollout/unanimous")),
                share(
                    "Confident answers",
                    steps("rollout/confident"),
                    "Responses whose answer has a frequency of 0.8 or more.",
                ),
                chart(
                    "Distinct answers",
                    steps("rollout/distinct_answers"),
                    "How many different answers the responses to a question give.",
                ),
                chart("Response length", steps("rollout/length"), "Tokens."),
                share(
                    "Retrace agreement",
                    steps("retrace/agreement"),
                    "Re-inferences that keep the answer of the response they continue.",
                ),
            ],
        ),
        (
            "signal",
            "Is the signal right?",
            [
                share(
                    "Vote",
                    steps("label/vote_accuracy"),
                    "Training questions whose most frequent answer is right, by the labels.",
                ),
                share(
                    "Responses",
                    steps("label/accuracy"),
                    "Training responses that are right, by the labels.",
                ),
                chart(
                    "Reward",
                    steps("reward/mean"),
                    "What each pays itself; different signals have different scales.",
                ),
                share(
                    "Groups that teach nothing",
                    steps("advantage/zero_groups"),
                    "All responses earn the same, so every advantage is zero.",
                ),
                share("Judge", steps("judge/score"), "Mean score."),
                chart(
                    "KL to the start",
                    steps("policy/kl"),
                    "Nats a token: how far the model has moved.",
                ),
            ],
        ),
    ]
    return [
        {"id": name, "title": title, "charts": [chart for chart in charts if chart]}
        for name, title, charts in found
        if any(charts)
    ]


def _limits(of: Sequence[Line]) -> tuple[float, float] | None:
    """Of an axis for shares: bands may not widen it beyond 0 and 1. None without a value."""
    edges = [
        y + sign * (spread or 0.0)
        for line in of
        for y, spread in zip(line.y, line.spread or ())
        for sign in (-1, 1)
    ]
    return (max(min(edges), 0.0), min(max(edges), 1.0)) if edges else None


def lines(
    runs: Sequence[Read], rows: Callable[[Read], Sequence[Mapping[str, Any]]], value: Value
) -> list[Line]:
    """A line an arm: means over its seeds, the band one standard deviation among them."""
    arms = dict.fromkeys(run.arm.label for run in runs)
    return [_line(arm, [rows(run) for run in runs if run.arm.label == arm], value) for arm in arms]


def _line(name: str, of_seeds: Sequence[Sequence[Mapping[str, Any]]], value: Value) -> Line:
    known: dict[int, list[float]] = {}
    for rows in of_seeds:
        for row in rows:
            if (found := value(row)) is not None:
                known.setdefault(row["step"], []).append(found)
    steps = sorted(known)
    return Line(
        name,
        steps,
        [statistics.fmean(known[step]) for step in steps],
        [statistics.stdev(known[step]) if len(known[step]) > 1 else None for step in steps],
    )


def each(summary: table.Summary) -> dict[str, Any]:
    """Every run by itself: a row an arm and seed."""
    names = [*table.ordered(summary), *table.family_columns(summary)]
    rows = [
        [label, seed, *(table.value(n, {"mean": f[n]}) if n in f else "–" for n in names)]
        for label, arm in summary["arms"].items()
        for seed, f in arm["by_seed"].items()
    ]
    heads = [" ".join(reversed(table.name_of(name).split("/"))) for name in names]
    return {"header": ["", "seed", *heads], "rows": rows}


def _broken(label: str) -> Markup:
    """A label that may go on in the next line before each of its settings."""
    return Markup("<wbr>+").join(label.split("+"))


def _cell(text: str) -> Markup:
    """What is bold in markdown is bold here."""
    if text.startswith("**"):
        return Markup("<b>{}</b>").format(text.strip("*"))
    return escape(text)
