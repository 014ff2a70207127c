"""MathVerse: six versions of every problem, from text alone to the picture alone.

Rule: ZrrSkywalker/MathVerse, evaluation/score_answer_s2.py. The authors let a language model
extract and compare; here the option letters and the equality of `jaxevolve.answers` do, of which
their "quick match", equality of strings, is a part.
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import options_in, options_of
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.mathematics import grade
from jaxevolve.benchmarks.prompts import LETTER, ask, bracketed
from jaxevolve.benchmarks.verdicts import Row, share, shares_by

__all__ = ["figures", "grade", "load", "prompt"]

VERSIONS = ("Text Dominant", "Text Lite", "Vision Intensive", "Vision Dominant", "Vision Only")
TEXT_ONLY = "Text Only"
_LETTERS = re.compile(r"[A-F](?:\s+[A-F])+")


def load(path: str) -> list[dict[str, Any]]:
    """Reads testmini: authors' JSON, AI4Math/MathVerse parquet, MathVerse_MINI.tsv.

    The picture-only version has no question, and often no choices: they are those of the problem's
    other versions, or stand in "question_for_eval".
    """
    found = records.read(
        path,
        {"problem_version": ("problem_version",), "answer": ("answer",)},
        {
            "question": ("question",),
            "question_for_eval": ("question_for_eval",),
            "question_type": ("question_type",),
            "problem": ("problem_index", "problem"),
            "choices": ("choices",),
            "subject": ("subject",),
            "subfield": ("subfield",),
            "source": ("source",),
        },
        identity=("id", "sample_index", "index"),
    )
    known: dict[str, dict[str, str]] = {}
    for row in found:
        row["question"], row["answer"] = map(records.text, (row["question"], row["answer"]))
        if _LETTERS.fullmatch(row["answer"]):  # two answers are wanted, a line each
            row["answer"] = ", ".join(row["answer"].split())
        row["family"] = row["problem_version"]
        row["listed"] = bool(row["choices"])
        row["options"] = {}
        if row["question_type"] is None or "multi" in row["question_type"]:
            whole = records.text(row["question_for_eval"]) or row["question"]
            choices = records.items(row["choices"])
            row["options"] = options_of(choices) if choices else options_in(whole)
            if row["options"] and row["problem"] is not None:
                known.setdefault(str(row["problem"]), row["options"])
        if row["problem_version"] == TEXT_ONLY:
            row["images"] = []
    for row in found:
        if not row["options"] and row["question_type"] and "multi" in row["question_type"]:
            # Of a problem whose choices stand in the picture only, the letters are known.
            row["options"] = known.get(str(row["problem"]), dict.fromkeys("ABCDEF", ""))
    return found


def prompt(row: Row) -> dict[str, Any]:
    """Question and choices as far as the version shows them; the picture alone asks by itself."""
    parts = [row["question"] or "Answer the question in the image."]
    if row["listed"]:
        parts += ["Choices:", bracketed(row["options"])]
    return ask(row, *parts, LETTER if row["options"] else "")


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """The overall of the five versions with an image; text alone is apart and not part of it."""
    seen = [i for i, row in enumerate(rows) if row["problem_version"] in VERSIONS]
    shown, ours = [rows[i] for i in seen], [right[i] for i in seen]
    result: dict[str, Any] = {"overall": share(ours)} if seen else {}
    alone = [r for row, r in zip(rows, right) if row["problem_version"] == TEXT_ONLY]
    if alone:
        result["text_only"] = share(alone)
    result["by_version"] = shares_by(rows, right, "problem_version")
    result["by_subject"] = shares_by(shown, ours, "subject")
    result["by_subfield"] = shares_by(shown, ours, "subfield")
    return result
