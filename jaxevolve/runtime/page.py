"""What does a run look like to a person? One self-contained HTML page.

Text of models and data sets enters through Jinja's escaping or `Markup.format` only, and a content
security policy forbids every request and every script but the page's own.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jaxevolve.runtime import figures, tables
from jaxevolve.runtime.charts import seconds
from jaxevolve.runtime.metrics import flatten

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "report"
SAMPLES_BYTES = 2_000_000  # for all questions that are shown


@dataclass(frozen=True)
class Run:
    """What a work directory holds, read.

    Attributes:
        name: of the folder.
        record: config.json.
        metrics: a mapping a finished step, steps rising; at least one.
        evaluations: a mapping an evaluation, steps rising.
        visits: lines of visits.jsonl of held-out questions, steps rising.
        samples: step -> records of questions (recipes/records.py), of the steps to be shown.
    """

    name: str
    record: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    visits: Sequence[Mapping[str, Any]]
    samples: Mapping[int, Sequence[Mapping[str, Any]]]


def render(run: Run, more: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page of a run.

    Args:
        run: what it has left.
        more: sections behind those that every run has.
    """
    templates = environment()
    rows, every = figures.thin(run.metrics)
    return templates.get_template("page.html").render(
        **furniture(),
        head=head(run),
        result=tables.result(run.evaluations),
        sections=[
            *figures.sections(run.metrics, run.evaluations, run.visits, run.record["config"]),
            *more,
        ],
        every=every,
        samples=panels(run.samples, templates),
        settings=tables.settings(run.record),
        numbers=tables.numbers(rows),
    )


def environment() -> Environment:
    """The templates, escaping whatever is put into them."""
    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def furniture() -> dict[str, Any]:
    """What every page has: style, script with its hash for the security policy, time of writing."""
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    return {
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": Markup((ASSETS / "page.css").read_text(encoding="utf-8")),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def head(run: Run) -> dict[str, Any]:
    """What ran: a title, one sentence, facts, and the command."""
    config = flatten(run.record["config"])
    command = list(map(str, run.record.get("command", ())))
    versions = run.record.get("versions", {})
    done, wanted = run.metrics[-1]["step"], config.get("steps")
    counts = {
        "step{s}": f"{done} of {wanted}" if wanted and wanted != done else done,
        "question{s} each": config.get("batch"),
        "response{s} a question": config.get("rollout.n"),
        "re-inference{s} a response": config.get("retrace.m"),
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
        # Ten figures of the commit, and "-dirty" where files were changed.
        "Commit": re.sub(r"^([0-9a-f]{10})[0-9a-f]+", r"\1", run.record.get("git_commit") or ""),
    }
    title = _recipe(command) or run.name
    sentence = ", ".join(
        f"{count} {what.format(s='' if str(count) == '1' else 's')}"
        for what, count in counts.items()
        if count
    )
    return {
        "kind": "report",
        "title": title,
        "full": f"{title} · {sentence}",
        "name": run.name,
        "lead": f"{sentence}.",
        "facts": {name: fact for name, fact in facts.items() if fact not in (None, "")},
        "command": _command(command),
    }


def panels(
    samples: Mapping[int, Sequence[Mapping[str, Any]]], templates: Environment
) -> list[dict[str, Any]]:
    """Questions of the last step, the first, the middle one and others, while there is room.

    Returns:
        {"step": 40, "questions": [{"name": ..., "html": ...}]}, steps rising.
    """
    template = templates.get_template("question.html")
    steps = [step for step, records in sorted(samples.items()) if records]
    shown: dict[int, list[dict[str, Any]]] = {}
    spent = 0
    for step in dict.fromkeys([*steps[-1:], *steps[:1], *steps[len(steps) // 2 :], *steps]):
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


def _recipe(command: Sequence[str]) -> str | None:
    """The recipe and scale, "csrs:tiny", of a command line with --config=configs/csrs.py:tiny."""
    found = re.search(r"--?config[= ](\S+?)\.py(:\S+)?(?= |$)", " ".join(command))
    return Path(found[1]).name + (found[2] or "") if found else None


def _command(command: Sequence[str]) -> list[str]:
    """The words of a command line as a person would type it."""
    if not command:
        return []
    program, *rest = command
    found = re.search(r"jaxevolve[/\\](\w+)\.py$", program)
    start = ["python", "-m", f"jaxevolve.{found[1]}"] if found else [shlex.quote(program)]
    return [*start, *map(shlex.quote, rest)]


def _signal(config: Mapping[str, Any]) -> str:
    """The reward in words."""
    kind = str(config.get("reward.kind") or "")
    if ":" in kind:
        return f"the user's {kind}"
    kind = kind.replace("_", " ")
    if kind == "softened":
        kind += f", gamma {config.get('reward.gamma')}, beta {config.get('reward.beta')}"
    return kind
