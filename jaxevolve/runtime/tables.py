"""How do a run's figures and samples become rows that a template can show?"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from jaxevolve.runtime.charts import MINUS, number, percent
from jaxevolve.runtime.metrics import flatten

LONG = 600  # characters of a response that are shown without scrolling

# Key of eval.jsonl up to its @n: (what it says, whether more is better, or None for neither).
MEASURES = {
    "official": ("Official score, greedy", True),
    "official_average": ("Official score, average", True),
    "greedy": ("Greedy right", True),
    "average": ("Average right", True),
    "majority": ("Majority right", True),
    "pass": ("Any right", True),
    "unanimous": ("All agree", None),
    "high_confidence_wrong": ("Confidently wrong", False),
    "no_answer": ("No answer", False),
    "truncated": ("Cut at the limit", False),
    "entropy": ("Entropy, nats a token", None),
}
FAMILY_MEASURES = ("greedy", "average", "majority", "pass", "high_confidence_wrong")


def result(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The first evaluation beside the last, over all questions and by family; None without any."""
    if not evaluations:
        return None
    before, after = evaluations[0], evaluations[-1]
    earlier, families = before.get("family", {}), after.get("family", {})
    columns = [key for key in after if stem(key) in FAMILY_MEASURES]
    return {
        "before": before["step"],
        "after": after["step"],
        "once": before is after,
        "questions": after["questions"],
        # Half the 95 % interval of a share of one half: the widest there is.
        "margin": f"{98 / math.sqrt(max(after['questions'], 1)):.0f}",
        "benchmark": after.get("benchmark"),
        "lead": _lead(before, after),
        "rows": [change(key, before, after) for key in after if stem(key) in MEASURES],
        "columns": [MEASURES[stem(key)][0] for key in columns],
        "families": [
            {
                "name": name,
                "questions": figures["questions"],
                "cells": [change(key, earlier.get(name, {}), figures) for key in columns],
            }
            for name, figures in families.items()
        ],
    }


def change(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """One measure before and after, in words; shares are in percent, their change in points."""
    label, more_is_better = MEASURES[stem(key)]
    is_share = stem(key) != "entropy"
    form, points = (percent, _points) if is_share else (number, _nats)
    was, now = before.get(key), after.get(key)
    shown = {
        "key": key,
        "label": label,
        "hint": "lower is better" if more_is_better is False else "",
        "before": "–" if was is None else form(was),
        "after": "–" if now is None else form(now),
        "change": "",
        "judged": "",
        "bar": "",
    }
    if was is None or now is None:
        return shown
    shown["change"] = points(now - was)
    if more_is_better is not None and shown["change"] != points(0.0):
        shown["judged"] = "better" if (now > was) == more_is_better else "worse"
    if is_share:
        shown["bar"] = change_bar(was, now)
    return shown


def question(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of samples/STEP.jsonl (recipes/records.py) with its votes counted."""
    responses = record["responses"]
    return {
        "id": record["id"],
        "family": record.get("family"),
        "text": re.sub(r"^(\s*<image>)+\s*", "", record["question"]),
        "label": record.get("label"),
        "images": [uri for uri in record["images"] if uri.startswith("data:image/")],
        "votes": votes(responses),
        "again": sum(len(response["reinference"]) for response in responses),
        "responses": [_response(i, response) for i, response in enumerate(responses, 1)],
    }


def votes(responses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a class of equal answers, the largest first, then other answers, then none."""
    after = [answer for response in responses for answer in response["reinference"]]
    count, recount, none = len(responses), len(after), after.count(None)

    def row(name: str | None, group: Sequence[Mapping[str, Any]], again: int) -> dict[str, Any]:
        return {
            "letter": letter(group[0]["class"]) if group else "",
            "answer": name,
            "count": len(group),
            "bar": share_bar(len(group), count),
            "recount": again,
            "rebar": share_bar(again, recount),
            "reward": _mean([response["reward"] for response in group]),
            "correct": bool(group) and group[0]["correct"],
        }

    groups: dict[int, list[Mapping[str, Any]]] = {}
    for response in sorted(responses, key=lambda r: (-r["count"], r["class"])):
        groups.setdefault(response["class"], []).append(response)
    silent = groups.pop(-1, [])
    rows = [row(group[0]["answer"], group, group[0]["recount"]) for group in groups.values()]
    if others := recount - none - sum(shown["recount"] for shown in rows):
        rows.append(row("others", [], others))
    if silent or none:
        rows.append(row("none", silent, none))
    return rows


def settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Every setting of config.json, and the versions, as text."""
    shown = {key: json.dumps(value) for key, value in flatten(record["config"]).items()}
    return shown | {f"version of {name}": v for name, v in record.get("versions", {}).items()}


def numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metrics as a table: a column a key, a row a step."""
    keys = [key for key in dict.fromkeys(k for row in rows for k in row) if key != "step"]
    cells = [
        [str(row["step"]), *("" if row.get(k) is None else number(row[k]) for k in keys)]
        for row in rows
    ]
    return {"keys": keys, "rows": cells}


def change_bar(before: float, after: float) -> Markup:
    """Two shares of 1 on one track: a ring where it was, a dot where it is."""
    x0, x1 = (6 + 108 * min(max(value, 0.0), 1.0) for value in (before, after))
    return Markup(
        '<svg class="change" viewBox="0 0 120 14" aria-hidden="true">'
        '<line class="track" x1="6" x2="114" y1="7" y2="7"/>'
        f'<line class="moved" x1="{x0:.1f}" x2="{x1:.1f}" y1="7" y2="7"/>'
        f'<circle class="was" cx="{x0:.1f}" cy="7" r="4"/>'
        f'<circle class="now" cx="{x1:.1f}" cy="7" r="5"/></svg>'
    )


def share_bar(count: int, of: int) -> Markup:
    """A share as the filled part of a bar."""
    filled = 60 * count / of if of else 0
    return Markup(
        '<svg class="share" viewBox="0 0 60 10" aria-hidden="true">'
        '<rect class="empty" x=".5" y=".5" width="59" height="9"/>'
        f'<rect class="full" width="{filled:.1f}" height="10"/></svg>'
    )


def letter(number_of: int) -> str:
    """A class of equal answers: A to Z, then 27, 28, ...; nothing for no answer."""
    if number_of < 0:
        return ""
    return chr(ord("A") + number_of) if number_of < 26 else str(number_of + 1)


def stem(key: str) -> str:
    """A key of eval.jsonl without the number of samples: "average" of "average@8"."""
    return key.partition("@")[0]


def _response(position: int, response: Mapping[str, Any]) -> dict[str, Any]:
    text = response["text"]
    kept = response.get("kept", len(text)) if response["reinference"] else len(text)
    return {
        **response,
        "number": position,
        "letter": letter(response["class"]),
        "head": text[:kept],
        "tail": text[kept:],
        "long": len(text) > LONG,
        "reward": _mean([response["reward"]]) or "left out",
        "advantage": signed(response["advantage"], lambda value: f"{value:.3f}"),
        "after": Counter(response["reinference"]).most_common(),
    }


def _lead(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    key = next(key for key in after if stem(key) == "average")
    n = key.partition("@")[2]
    shown = change(key, before, after)
    if before is after or not shown["change"]:
        return f"At step {after['step']}, {shown['after']} of {n} samples a question are right."
    return (
        f"Of {n} samples a question, {shown['before']} were right at step {before['step']} and "
        f"{shown['after']} are at step {after['step']}: {shown['change']} points."
    )


def signed(value: float, form: Callable[[float], str]) -> str:
    """A change: +12.5, −3.0, or 0 without a sign."""
    text = form(abs(value))
    if text == form(0.0):
        return text
    return f"{'+' if value > 0 else MINUS}{text}"


def _mean(rewards: Sequence[float | None]) -> str:
    rewards = [reward for reward in rewards if reward is not None]
    return f"{sum(rewards) / len(rewards):.3f}" if rewards else ""


def _points(change: float) -> str:
    return signed(change, lambda share: f"{100 * share:.1f}")


def _nats(change: float) -> str:
    return signed(change, lambda nats: f"{nats:.3f}")
