"""How do a run's figures and samples become rows that a template can show?"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxevolve.runtime.charts import MINUS, change_bar, number, percent, share_bar
from jaxevolve.runtime.metrics import flatten

LONG = 600  # characters of a response that are shown without scrolling

# Key of eval.jsonl up to its @n: (what it says, whether more is better, or None for neither).
MEASURES = {
    "greedy": ("Greedy answer is right", True),
    "average": ("Samples that are right", True),
    "majority": ("Majority is right", True),
    "pass": ("Any sample is right", True),
    "unanimous": ("All samples agree", None),
    "high_confidence_wrong": ("Confidently wrong", False),
    "no_answer": ("Samples without an answer", False),
    "truncated": ("Samples cut at the limit", False),
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
        "columns": [{"key": key, "label": MEASURES[stem(key)][0]} for key in columns],
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
    text = re.sub(r"^(\s*<image>)+\s*", "", record["question"])
    again = sum(len(response["reinference"]) for response in responses)
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for response in sorted(responses, key=lambda r: (-r["count"], r["class"])):
        groups.setdefault(response["class"], []).append(response)
    votes = [
        {
            "letter": letter(number_of),
            "answer": group[0]["answer"],
            "count": len(group),
            "bar": share_bar(len(group), len(responses)),
            "recount": group[0]["recount"],
            "rebar": share_bar(group[0]["recount"], again),
            "reward": number(sum(response["reward"] for response in group) / len(group)),
            "correct": group[0]["correct"],
        }
        for number_of, group in groups.items()
    ]
    return {
        "id": record["id"],
        "family": record.get("family"),
        "text": text,
        "label": record.get("label"),
        "images": [uri for uri in record["images"] if uri.startswith("data:image/")],
        "votes": votes,
        "again": again,
        "responses": [_response(i, response) for i, response in enumerate(responses, 1)],
    }


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
        "reward": number(response["reward"]),
        "advantage": signed(response["advantage"], number),
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


def _points(change: float) -> str:
    return signed(change, lambda share: f"{100 * share:.1f}")


def _nats(change: float) -> str:
    return signed(change, lambda nats: f"{nats:.3f}")
