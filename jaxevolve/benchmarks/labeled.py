"""Geometry3K, GeoQA and MMR1 test sets, any labeled rows, and the drawn problems of this project.

Letters and option texts are one answer where a row has choices; else equality in value. Numbers may
be given to three places, as Geometry3K's own solver gives them: within 1e-3 of a decimal label.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxevolve.answers import grading, label_fault, options_for
from jaxevolve.benchmarks import mathematics, records
from jaxevolve.benchmarks.prompts import LETTER, ask, bracketed
from jaxevolve.benchmarks.verdicts import Marked, Row, Texts, number, share, shares_by

DECIMAL = 1e-3
_DECIMAL = re.compile(r"-?\d*\.\d+")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def load(path: str) -> list[dict[str, Any]]:
    """Reads parquet and JSONL of the hub, and the authors' Geometry3K folders with data.json."""
    singles = sorted(Path(path).glob("*/data.json")) if Path(path).is_dir() else []
    found = [row for file in singles for row in _read(str(file))] if singles else _read(path)
    for row in found:
        row["question"] = records.text(row["question"])
        gold = row["answer"]
        gold = ", ".join(map(records.text, gold)) if isinstance(gold, list) else records.text(gold)
        tagged = _TAG.findall(gold)
        row["answer"] = tagged[-1].strip() if tagged else gold
        choices = records.items(row["choices"])
        row["options"] = options_for(row["question"], choices) or {}
        row["listed"] = bool(choices)
        row["family"] = records.text(row["family"]) or None
    return found


def _read(path: str) -> list[dict[str, Any]]:
    found = records.read(
        path,
        {
            "question": ("problem", "question", "annotat_text", "problem_text"),
            "answer": ("answer", "solution", "ground_truth"),
        },
        {"choices": ("choices", "options"), "family": ("family", "problem_type_graph")},
        image=("images", "image", "img_diagram"),
    )
    if Path(path).name == "data.json":
        for row in found:
            row["images"] = row["images"] or [Path(path).with_name("img_diagram.png")]
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question, and the choices where they are not a part of it."""
    choices = bracketed(row["options"]) if row["listed"] else ""
    marked = "<image>" in row["question"]
    return ask(row, row["question"], choices, LETTER if row["options"] else "", images=not marked)


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """Letters, option texts, equality in value, and decimals to three places."""
    return mathematics.grade(rows, texts, also=_near)


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy, and by family where rows have one."""
    by_family = shares_by(rows, right, "family")
    return {"accuracy": share(right)} | ({"by_family": by_family} if by_family else {})


def _near(row: Row, answer: str) -> bool:
    if not _DECIMAL.fullmatch(row["answer"]):
        return False
    value, gold = number(answer), float(row["answer"])
    return value is not None and abs(value - gold) <= DECIMAL * max(abs(gold), 1e-9)


def grade_rows(rows: Sequence[Row], texts: Texts) -> Marked:
    """The grader of votes and rewards, for rows as training reads them."""
    graded = grading.grade(
        texts, [row["answer"] for row in rows], options=[_options(row) for row in rows]
    )
    return Marked(graded.answers, graded.classes, graded.correct)


def fault(row: Row) -> str | None:
    """What is the matter with the label of such a row."""
    return label_fault(row["answer"], _options(row))


def _options(row: Row) -> dict[str, str] | None:
    return options_for(row["question"], row.get("choices"))
