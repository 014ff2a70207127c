"""What does a run look like to a person? One self-contained HTML page.

Text of models and data sets enters through Jinja's escaping or `Markup.format` only, and a content
security policy forbids every request and every script but the page's own.
"""

import base64
import hashlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jaxevolve.runtime import tables
from jaxevolve.runtime.charts import Line, line_chart, percent, seconds, stacked_chart
from jaxevolve.runtime.metrics import flatten

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "report"
COLUMNS = 120  # points on a training curve; a longer run is averaged to as many
FAMILIES = 6  # lines that a chart can tell apart
SAMPLES_BYTES = 2_000_000  # for all questions that are shown
PHASES = ("rollout", "retrace", "answers", "score", "update")


@dataclass(frozen=True)
class Run:
    """What a work directory holds, read.

    Attributes:
        name: of the folder.
        record: config.json.
        metrics: a mapping a finished step, steps rising; at least one.
        evaluations: a mapping an evaluation, steps rising.
        samples: step -> records of questions (recipes/records.py), of the steps to be shown.
    """

    name: str
    record: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    samples: Mapping[int, Sequence[Mapping[str, Any]]]


def render(run: Run) -> str:
    """The page of a run."""
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    rows, every = thin(run.metrics)
    return environment.get_template("page.html").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup((ASSETS / "page.css").read_text(encoding="utf-8")),
        head=head(run),
        result=tables.result(run.evaluations),
        sections=sections(run, rows),
        every=every,
        samples=panels(run.samples, environment),
        settings=tables.settings(run.record),
        numbers=tables.numbers(rows),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def head(run: Run) -> dict[str, Any]:
    """What ran: a title, one sentence, facts, and the command."""
    config = flatten(run.record["config"])
    command = list(map(str, run.record.get("command", ())))
    versions = run.record.get("versions", {})
    done, wanted = run.metrics[-1]["step"], config.get("steps")
    steps = f"{done} of {wanted}" if wanted and wanted != done else str(done)
    counts = {
        "{} questions each": config.get("batch"),
        "{} responses a question": config.get("rollout.n"),
        "{} re-inferences a response": config.get("retrace.m"),
    }
    spent = sum(row.get("time/step") or 0.0 for row in run.metrics)
    tokens = sum(
        row.get(key) or 0.0 for row in run.metrics for key in ("rollout/tokens", "retrace/tokens")
    )
    facts = {
        "Signal": _signal(config),
        "Model": Path(str(config.get("model.path", ""))).name,
        "Questions": config.get("data.path"),
        "Seed": config.get("seed"),
        "Sampled": f"{tokens:,.0f} tokens in {seconds(spent)}",
        "Devices": run.record.get("devices"),
        "Version": versions.get("jaxevolve"),
        "Commit": run.record.get("git_commit"),
    }
    return {
        "title": _recipe(command) or run.name,
        "name": run.name,
        "sentence": ", ".join(
            [f"{steps} step" + ("" if steps == "1" else "s")]
            + [text.format(count) for text, count in counts.items() if count]
        ),
        "facts": {name: fact for name, fact in facts.items() if fact not in (None, "")},
        "command": _command(command),
    }


def sections(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Headings with their charts.

    A new figure is one more entry here. Lines without values, charts without lines and sections
    without charts are left out.

    Args:
        run: the run.
        rows: its metrics, thinned.
    """
    held = run.evaluations
    keys = {tables.stem(key): key for e in held for key in e}
    sizes = Counter({f: v["questions"] for e in held for f, v in e.get("family", {}).items()})
    families = sorted(name for name, _ in sizes.most_common(FAMILIES))

    def steps(name: str, key: str, spread: str = "") -> Line:
        y, around = ([row.get(k) for row in rows] for k in (key, spread))
        return Line(name, [row["step"] for row in rows], y, around if spread else None)

    def tests(name: str, measure: str, family: str = "") -> Line:
        figures = [e.get("family", {}).get(family, {}) if family else e for e in held]
        y = [figure.get(keys.get(measure, "")) for figure in figures]
        return Line(name, [e["step"] for e in held], y)

    share = {"form": percent, "limits": (0.0, 1.0)}
    learning = [
        line_chart(
            "Held-out questions",
            [
                tests("any sample", "pass"),
                tests("majority", "majority"),
                tests("greedy", "greedy"),
                tests("samples", "average"),
            ],
            **share,
            note="Share of the questions, or of all samples, that is right.",
        ),
        line_chart(
            "Held-out questions by family",
            [tests(name, "average", name) for name in families],
            **share,
            note="Share of samples that is right. What helps one family may harm another.",
        ),
        line_chart(
            "Training questions",
            [
                steps("any response", "label/pass_at_n"),
                steps("vote", "label/vote_accuracy"),
                steps("responses", "label/accuracy"),
            ],
            **share,
            note="Share that is right by the labels.",
        ),
        line_chart(
            "Reward",
            [steps("mean", "reward/mean", "reward/std")],
            note="The band is one standard deviation among the responses of a step.",
        ),
    ]
    collapse = [
        line_chart(
            "Entropy",
            [steps("nats a token", "policy/entropy")],
            note="Near zero the model has nothing left to explore.",
        ),
        line_chart(
            "Unanimous questions",
            [steps("training", "rollout/unanimous"), tests("held out", "unanimous")],
            **share,
            note="All responses agree. Sound where accuracy rises as fast.",
        ),
        line_chart(
            "Confidently wrong",
            [tests("held out", "high_confidence_wrong")],
            form=percent,
            note="Nearly all samples agree on one wrong answer.",
        ),
        line_chart(
            "Distinct answers",
            [steps("a question", "rollout/distinct_answers")],
            note="How many different answers the responses to a question give.",
        ),
        line_chart(
            "Retrace agreement",
            [steps("of re-inferences", "retrace/agreement")],
            **share,
            note="Re-inferences that keep the answer of the response that they continue.",
        ),
        line_chart(
            "Unfinished responses",
            [
                steps("no answer", "rollout/no_answer"),
                steps("cut at the limit", "rollout/truncated"),
            ],
            form=percent,
        ),
        line_chart("Response length", [steps("tokens", "rollout/length")]),
        line_chart(
            "Groups that teach nothing",
            [steps("of questions", "advantage/zero_groups")],
            **share,
            note="All responses earn the same, so every advantage is zero.",
        ),
    ]
    updates = [
        line_chart("KL to the reference", [steps("nats a token", "policy/kl")]),
        line_chart("Gradient norm", [steps("before clipping", "policy/grad_norm")]),
        line_chart("Clipped tokens", [steps("of tokens", "policy/clip_fraction")], form=percent),
        line_chart(
            "Sampler against trainer",
            [steps("log-probability gap", "rollout/logprob_gap")],
            note="Largest difference of one token; rounding error where both run the same model.",
        ),
    ]
    time = [
        stacked_chart("Time a step", [row["step"] for row in rows], _times(rows)),
        line_chart(
            "Throughput",
            [steps("tokens a second", "throughput/tokens_per_second")],
            note="Sampled tokens, re-inferences too, over the time of whole steps.",
        ),
        line_chart(
            "Compiled programs",
            [steps("since the start", "system/compiles")],
            note="A curve that goes on rising means new shapes at every step.",
        ),
        line_chart("Memory", [steps("MiB of the host", "system/host_rss_mb")]),
    ]
    found = [
        ("learning", "Does it learn?", "", learning),
        ("collapse", "Does it collapse?", "", collapse),
        ("updates", "Are the updates sound?", _skipped(run.metrics), updates),
        ("time", "Where does the time go?", "", time),
    ]
    return [
        {"id": name, "title": title, "text": text, "charts": [chart for chart in charts if chart]}
        for name, title, text, charts in found
        if any(charts)
    ]


def thin(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Averages consecutive steps where there are more than `COLUMNS`.

    Returns:
        The rows, each under its last step, and how many steps one of them stands for.
    """
    every = math.ceil(len(rows) / COLUMNS)
    thinned = []
    for first in range(0, len(rows), every):
        part = rows[first : first + every]
        merged = {}
        for key in dict.fromkeys(key for row in part for key in row):
            known = [row[key] for row in part if row.get(key) is not None]
            merged[key] = sum(known) / len(known) if known else None
        thinned.append(merged | {"step": part[-1]["step"]})
    return thinned, every


def panels(
    samples: Mapping[int, Sequence[Mapping[str, Any]]], environment: Environment
) -> list[dict[str, Any]]:
    """Questions of the last step, of the first and of those between, while there is room for them.

    Returns:
        {"step": 40, "questions": [{"name": ..., "html": ...}]}, steps rising.
    """
    template = environment.get_template("question.html")
    steps = [step for step, records in sorted(samples.items()) if records]
    shown: dict[int, list[dict[str, Any]]] = {}
    spent = 0
    for step in dict.fromkeys([*steps[-1:], *steps]):
        for i, record in enumerate(samples[step], 1):
            seen = tables.question(record)
            html = template.render(seen)
            size = len(html.encode())
            if spent and spent + size > SAMPLES_BYTES:
                break
            spent += size
            text = seen["text"] if len(seen["text"]) <= 60 else seen["text"][:59] + "…"
            name = " · ".join(filter(None, [f"Question {i}", seen["family"], text]))
            shown.setdefault(step, []).append({"name": name, "html": Markup(html)})
    return [{"step": step, "questions": shown[step]} for step in steps if step in shown]


def _skipped(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many updates were not finite, and where."""
    skipped = {row["step"]: row.get("policy/skipped_updates") or 0 for row in rows}
    where = [str(step) for step, count in skipped.items() if count]
    if not where:
        return ""
    named = ", ".join(where[:10]) + (", …" if len(where) > 10 else "")
    return f"{sum(skipped.values())} updates were skipped as not finite, at step {named}."


def _times(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float]]]:
    """Seconds by phase, and what a step took beside its phases."""
    layers = [(name, [row.get(f"time/{name}") or 0.0 for row in rows]) for name in PHASES]
    known = [sum(column) for column in zip(*(values for _, values in layers))]
    rest = [max((row.get("time/step") or 0.0) - k, 0.0) for row, k in zip(rows, known)]
    return [*layers, ("other", rest)]


def _recipe(command: Sequence[str]) -> str | None:
    """The recipe and scale, "csrs:tiny", of a command line with --config=configs/csrs.py:tiny."""
    found = re.search(r"--?config[= ](\S+?)\.py(:\S+)?(?= |$)", " ".join(command))
    return Path(found[1]).name + (found[2] or "") if found else None


def _command(command: Sequence[str]) -> str:
    """A command line as a person would type it."""
    if not command:
        return ""
    program, *rest = command
    found = re.search(r"jaxevolve[/\\](\w+)\.py$", program)
    start = f"python -m jaxevolve.{found[1]}" if found else shlex.quote(program)
    return " ".join([start, *map(shlex.quote, rest)])


def _signal(config: Mapping[str, Any]) -> str:
    """The reward in words."""
    kind = str(config.get("reward.kind") or "").replace("_", " ")
    if kind == "softened":
        kind += f", gamma {config.get('reward.gamma')}, beta {config.get('reward.beta')}"
    return kind
