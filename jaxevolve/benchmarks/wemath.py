"""We-Math: a composite problem and its steps, and what a model that fails one of them lacks.

Rule: We-Math/We-Math, evaluation/four_dimensional_metrics.py and accuracy.py. With "all" for all
steps right, "any" for some step right and "whole" for the composite problem right, a group is

    insufficient knowledge       not all and not whole
    inadequate generalization    all and not whole
    complete mastery             strict: all and whole; loose: any and whole
    rote memorization            strict: whole and not all; loose: whole and no step
    score                        mastery + half of inadequate generalization, over all groups

The rate of rote memorization is of the groups with the whole right. A response's letter is the
first character behind its last "Answer", or the letter in its box where it has one.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxevolve.answers import choose, options_in
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import LETTER, ask
from jaxevolve.benchmarks.verdicts import Marked, Row, Texts, one_by_one, share, shares_by

_KEY = re.compile(r"([23])steps_(\d|multi)")
_NODES = ("knowledge_structure_nodes.json", "knowledge_structure_nodes.jsonl")


def load(path: str) -> list[dict[str, Any]]:
    """Reads testmini: authors' JSON, We-Math/We-Math parquet, WeMath.tsv.

    Where the authors' knowledge_structure_nodes.json lies beside, rows have their field as well.
    """
    found = records.read(
        path,
        {
            "question": ("question",),
            "option": ("option", "options", "lettered"),
            "answer": ("answer",),
            "key": ("key",),
            "group": ("ID", "group"),
        },
        {
            "concept": ("knowledge concept", "knowledge_concept"),
            "own": ("id", "index", "problem_id"),
        },
        identity=("id", "index", "problem_id"),
        image=("image", "image_path", "images"),
    )
    fields = _fields(records.files(path)[0].parent)
    for row in found:
        for name in ("question", "answer", "key", "group", "concept"):
            row[name] = records.text(row[name])
        if row["own"] is None:
            row["id"] = f"{row['group']}/{row['key']}"
        choices = row["option"]
        if isinstance(choices, list):
            choices = "; ".join(f"{chr(65 + i)}. {text}" for i, text in enumerate(choices))
        row["option"] = records.text(choices)
        row["options"] = options_in(row["option"]) or dict.fromkeys("ABCDE", "")
        told = _KEY.fullmatch(row["key"])
        row["steps"], row["step"] = told.groups() if told else ("", "")
        row["field"] = fields.get(row["concept"])
        row["family"] = row["field"]
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question and its options as they are written."""
    return ask(row, row["question"], row["option"], LETTER)


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """The letter, against the letter."""
    return one_by_one(rows, texts, _letter, lambda row, letter: letter == row["answer"])


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Both four-way scores of complete groups, and accuracy by number of steps and by field."""
    groups: dict[str, dict[str, bool]] = {}
    for row, value in zip(rows, right):
        groups.setdefault(row["group"], {"of": row["steps"]})[row["step"]] = bool(value)
    whole, every, some = [], [], []
    for found in groups.values():
        steps = [found[str(i + 1)] for i in range(int(found["of"] or 0)) if str(i + 1) in found]
        if "multi" in found and steps and len(steps) == int(found["of"]):
            whole.append(found["multi"])
            every.append(all(steps))
            some.append(any(steps))
    m, a, s = (np.array(x, bool) for x in (whole, every, some))
    simple = [i for i, row in enumerate(rows) if row["step"] != "multi"]
    result = {
        "score_strict": _score(m & a, ~m & a),
        "score_loose": _score(m & s, ~m & a),
        "groups": len(m),
        "insufficient_knowledge": share(~a & ~m),
        "inadequate_generalization": share(a & ~m),
        "complete_mastery_strict": share(a & m),
        "complete_mastery_loose": share(s & m),
        "rote_memorization_strict": share(~a[m]),
        "rote_memorization_loose": share(~s[m]),
        "one_step": share([right[i] for i in simple]),
        "two_steps": share(_composite(rows, right, "2")),
        "three_steps": share(_composite(rows, right, "3")),
        "accuracy": share(right),
    }
    if fields := _by_field([rows[i] for i in simple], [right[i] for i in simple]):
        result["by_field"] = fields
    return result


def _letter(row: Row, text: str) -> str | None:
    if is_marked(text):
        letter = choose(text, row["options"])
        return letter if letter and len(letter) == 1 else None
    rest = re.sub("[<>:.]", "", text.split("Answer")[-1].strip()).strip()
    return rest[0] if rest and rest[0] in "ABCDEFGH" else None


def _score(mastery: np.ndarray, generalization: np.ndarray) -> float:
    return share(mastery) + 0.5 * share(generalization)


def _composite(rows: Sequence[Row], right: Sequence[bool], steps: str) -> list[bool]:
    return [r for row, r in zip(rows, right) if row["step"] == "multi" and row["steps"] == steps]


def _by_field(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, float]:
    """A field's mean over its concepts, each of them the mean of its items."""
    concepts = shares_by(rows, right, "concept")
    fields: dict[str, list[float]] = {}
    for concept, field in {row["concept"]: row["field"] for row in rows}.items():
        if field:
            fields.setdefault(field, []).append(concepts[concept])
    return {field: float(np.mean(values)) for field, values in sorted(fields.items())}


def _fields(folder: Path) -> dict[str, str]:
    """Concept -> field, the second level of the authors' tree; empty where its file is missing."""
    for name in _NODES:
        if (folder / name).is_file():
            nodes = [
                str(node.get("full node", "")).split("_") for node in records.rows(folder / name)
            ]
            return {path[-1]: path[1] for path in nodes if len(path) > 2}
    return {}
