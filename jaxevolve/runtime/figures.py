"""Which curves tell whether a run learns, collapses, updates soundly, and where its time goes?

A new figure is one more entry in `sections`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from jaxevolve import collapse
from jaxevolve.runtime import predictions
from jaxevolve.runtime.charts import Line, line_chart, percent, stacked_chart
from jaxevolve.runtime.tables import stem

COLUMNS = 120  # points on a training curve; a longer run is averaged to as many
FAMILIES = 6  # lines that a chart can tell apart
THEORY = (
    "At every visit of a question an update should multiply the odds of an answer by exp(η r). "
    "Under majority voting r is 1 for the majority answer and 0 for any other; under the softened "
    "frequency it is the answer's share (CSRS 3.1). ρ is the share of the majority answer, ε that "
    "of another one; η, which the theory takes for given, is fitted."
)
PHASES = ("rollout", "retrace", "judge", "answers", "score", "update")


def sections(
    metrics: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    visits: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Headings with their charts; those without any value are left out.

    Args:
        metrics: a mapping a finished step, steps rising.
        evaluations: a mapping an evaluation, steps rising.
        visits: lines of visits.jsonl of held-out questions, steps rising.
        config: of the run.

    Returns:
        {"id": "collapse", "title": ..., "text": what to heed, "note": what to know, "charts":
        [figures]}, in order.
    """
    rows, _ = thin(metrics)
    keys = {stem(key): key for e in evaluations for key in e}
    sizes = Counter(
        {f: v["questions"] for e in evaluations for f, v in e.get("family", {}).items()}
    )
    families = sorted(name for name, _ in sizes.most_common(FAMILIES))
    told = collapse.told(metrics, SimpleNamespace(**config.get("collapse", {})))
    events = list(told)

    def steps(name: str, key: str, spread: str = "") -> Line:
        y, around = ([row.get(k) for row in rows] for k in (key, spread))
        return Line(name, [row["step"] for row in rows], y, around if spread else None)

    def over_ideal(name: str, key: str) -> Line:
        y = [1 / row[key] if row.get(key) else None for row in rows]
        return Line(name, [row["step"] for row in rows], y)

    def held_out(name: str, measure: str, family: str = "") -> Line:
        figures = [e.get("family", {}).get(family, {}) if family else e for e in evaluations]
        y = [figure.get(keys.get(measure, "")) for figure in figures]
        return Line(name, [e["step"] for e in evaluations], y)

    share = {"form": percent, "limits": (0.0, 1.0)}
    learning = [
        line_chart(
            "Held-out questions",
            [
                held_out("samples", "average"),
                held_out("greedy", "greedy"),
                held_out("majority", "majority"),
                held_out("any sample", "pass"),
            ],
            **share,
            note="Share of the questions, or of all samples, that is right.",
        ),
        line_chart(
            "Held out, by family",
            [held_out(name, "average", name) for name in families],
            **share,
            note="Share of samples that is right. What helps one family may harm another.",
        ),
        line_chart(
            "Training questions",
            [
                steps("responses", "label/accuracy"),
                steps("vote", "label/vote_accuracy"),
                steps("any response", "label/pass_at_n"),
            ],
            **share,
            events=events,
            note="Share that is right by the labels.",
        ),
        line_chart(
            "Reward",
            [steps("mean", "reward/mean", "reward/std")],
            note="The band is one standard deviation among the responses of a step.",
        ),
    ]
    over_time = partial(line_chart, events=events)
    collapsing = [
        over_time(
            "Entropy",
            [steps("nats a token", "policy/entropy")],
            note="Near zero the model has nothing left to explore.",
        ),
        over_time(
            "Agreement",
            [
                steps("unanimous questions", "rollout/unanimous"),
                steps("confident answers", "rollout/confident"),
                steps("right votes", "label/vote_accuracy"),
                held_out("unanimous, held out", "unanimous"),
            ],
            **share,
            note="All responses to a question agree, or four of five do. Sound while as many votes "
            "are right; agreement above them is on wrong answers.",
        ),
        over_time(
            "Confidently wrong",
            [held_out("held out", "high_confidence_wrong")],
            form=percent,
            note="Nearly all samples agree on one wrong answer.",
        ),
        over_time(
            "Distinct answers",
            [steps("a question", "rollout/distinct_answers")],
            note="How many different answers the responses to a question give.",
        ),
        *predictions.by_frequency(metrics),
        over_time(
            "Retrace agreement",
            [
                steps("all", "retrace/agreement"),
                steps("of right parents", "retrace/same_if_right"),
                steps("of wrong parents", "retrace/same_if_wrong"),
            ],
            **share,
            note="Re-inferences that keep the answer of the response that they continue. They tell "
            "right from wrong by the distance of the two.",
        ),
        over_time(
            "Unfinished responses",
            [
                steps("no answer", "rollout/no_answer"),
                steps("cut at the limit", "rollout/truncated"),
                steps("ending in a loop", "rollout/looping"),
            ],
            form=percent,
            note="No answer can be read, the token limit came first, or the end says the same over "
            "and over.",
        ),
        over_time(
            "Response length",
            [steps("tokens", "rollout/length")],
            note="Mean over the responses of a step.",
        ),
        over_time(
            "Groups that teach nothing",
            [steps("of questions", "advantage/zero_groups")],
            **share,
            note="All responses earn the same, so every advantage is zero.",
        ),
    ]
    theory = [
        *predictions.factors(metrics, evaluations, events),
        predictions.by_gap(visits),
        *predictions.trajectories(visits),
    ]
    updates = [
        line_chart(
            "KL to the reference",
            [steps("nats a token", "policy/kl")],
            note="How far the model has moved from where it began.",
        ),
        line_chart(
            "Gradient norm",
            [steps("before clipping", "policy/grad_norm")],
            note="Of all parameters, mean over the updates of a step.",
        ),
        line_chart(
            "Clipped tokens",
            [steps("of tokens", "policy/clip_fraction")],
            form=percent,
            note="Tokens whose probability has moved beyond the clip range.",
        ),
        line_chart(
            "Sampler against trainer",
            [steps("log-probability gap", "rollout/logprob_gap")],
            note="Largest difference of one token; rounding error where both run the same model.",
        ),
    ]
    time = [
        stacked_chart("Seconds a step", [row["step"] for row in rows], _times(rows)),
        line_chart(
            "Throughput",
            [steps("tokens a second", "throughput/tokens_per_second")],
            note="Sampled tokens, re-inferences too, over the time of whole steps.",
        ),
        line_chart(
            "Sampling",
            [
                steps("sampled", "throughput/sampled_tokens_per_second"),
                steps("forced", "throughput/forced_tokens_per_second"),
            ],
            note="Tokens a second: sampled ones while decoding, those of prompts and kept prefixes "
            "while reading.",
        ),
        line_chart(
            "Slot-steps over ideal",
            [over_ideal("of rows", "throughput/slot_utilization")],
            note="Rows times decode steps over sampled tokens; 1 if no row ever waits.",
        ),
        line_chart(
            "Compiled programs",
            [steps("since the start", "system/compiles")],
            note="A curve that goes on rising means new shapes at every step.",
        ),
        line_chart(
            "Memory",
            [steps("MiB of the host", "system/host_rss_mb")],
            note="Of this process. A rise without end is a leak.",
        ),
    ]
    found = [
        ("learning", "Does it learn?", "", "", learning),
        ("collapse", "Does it collapse?", _alarms(told), "", collapsing),
        ("theory", "Does it follow theory?", "", THEORY, theory),
        ("updates", "Are the updates sound?", _skipped(metrics), "", updates),
        ("time", "Where does the time go?", "", "", time),
    ]
    return [
        {
            "id": name,
            "title": title,
            "text": text,
            "note": note,
            "charts": [chart for chart in charts if chart],
        }
        for name, title, text, note, charts in found
        if any(charts)
    ]


def thin(
    rows: Sequence[Mapping[str, Any]], columns: int = COLUMNS
) -> tuple[list[dict[str, Any]], int]:
    """Averages consecutive steps where there are more than `columns`.

    Returns:
        The rows, each under its last step, and how many steps one of them stands for.
    """
    every = math.ceil(len(rows) / columns)
    thinned = []
    for first in range(0, len(rows), every):
        part = rows[first : first + every]
        merged = {}
        for key in dict.fromkeys(key for row in part for key in row):
            known = [row[key] for row in part if row.get(key) is not None]
            merged[key] = sum(known) / len(known) if known else None
        thinned.append(merged | {"step": part[-1]["step"]})
    return thinned, every


def _alarms(told: Mapping[int, str]) -> str:
    """When the collapse alarm went on, and why."""
    return " ".join(f"Collapse alarm at step {step}: {why}." for step, why in told.items())


def _skipped(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many updates were not finite, and where."""
    skipped = {row["step"]: row.get("policy/skipped_updates") or 0 for row in rows}
    where = [str(step) for step, count in skipped.items() if count]
    if not where:
        return ""
    named = ", ".join(where[:10]) + (", …" if len(where) > 10 else "")
    return f"Updates skipped as not finite: {sum(skipped.values())}, at step {named}."


def _times(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float]]]:
    """Seconds by phase, and what a step took beside its phases."""
    layers = [(name, [row.get(f"time/{name}") or 0.0 for row in rows]) for name in PHASES]
    known = [sum(column) for column in zip(*(values for _, values in layers))]
    rest = [max((row.get("time/step") or 0.0) - k, 0.0) for row, k in zip(rows, known)]
    return [*layers, ("other", rest)]
