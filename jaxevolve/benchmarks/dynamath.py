r"""DynaMath: the same question in ten variants; right on average, and right in the worst case.

Rule: VLMEvalKit, vlmeval/dataset/dynamath.py. The answer is what a JSON object in the response has
under "short answer", or the box where it has one. Numbers may differ by 0.001, "k π" is understood;
of choices one letter of A to E counts; a text is right when the label contains it, case aside.
Where VLMEvalKit asks a language model, the announced answer is taken.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import choose, extract, options_in
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import ask
from jaxevolve.benchmarks.verdicts import (
    Marked,
    Row,
    Texts,
    number,
    one_by_one,
    said,
    said_number,
    share,
    shares_by,
)

TOLERANCE = 1e-3
_SHORT = re.compile(r'"short[ _]answer"\s*:\s*("(?:[^"\\]|\\.)*"|[-+.\w]+)', re.IGNORECASE)
_FORM = {
    "float": "Give the answer as a number with three decimals.",
    "multiple choice": "Answer with the letter of the right option.",
    "text": "Give numbers in the answer with three decimals.",
}


def load(path: str) -> list[dict[str, Any]]:
    """Reads DynaMath/DynaMath_Sample parquet, DynaMath.tsv, and JSON with a row a variant.

    Where no column tells the variant, the file's name does ("sample_variant3-...").
    """
    found = records.read(
        path,
        {
            "question": ("question",),
            "answer": ("answer", "ground_truth"),
            "answer_type": ("answer_type",),
            "seed": ("qid", "question_id", "id"),
        },
        {
            "variant": ("varid", "variant_id", "variant"),
            "subject": ("subject",),
            "level": ("level", "knowledge_level"),
            "own": ("id", "index"),
        },
        identity=(),
        image=("decoded_image", "image"),
    )
    for row in found:
        for name in ("question", "answer", "answer_type", "seed", "variant", "subject", "level"):
            row[name] = records.text(row[name])
        if not row["variant"] and (told := re.search(r"variant_?(\d+)", row["id"])):
            row["variant"] = told[1]
        row["options"] = {}
        if row["answer_type"] == "multiple choice":
            row["options"] = options_in(row["question"]) or dict.fromkeys("ABCDE", "")
        row["family"] = row["subject"] or None
    own = {records.text(row["own"]) for row in found}
    for row in found:
        alone = len(own) == len(found)
        row["id"] = records.text(row["own"]) if alone else f"{row['seed']}-{row['variant']}"
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question, and the form of its answer; responses in the authors' JSON are read too."""
    return ask(row, row["question"], _FORM.get(row["answer_type"], ""))


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """By the type of the answer."""
    return one_by_one(rows, texts, _answer, _right)


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Average over all variants, and worst case: seeds of which every variant is right."""
    seeds: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        seeds.setdefault(row["seed"], []).append(i)
    first = [rows[places[0]] for places in seeds.values()]
    worst = [all(right[i] for i in places) for places in seeds.values()]
    return {
        "average": share(right),
        "worst_case": share(worst),
        "seeds": len(seeds),
        "average_by_subject": shares_by(rows, right, "subject"),
        "average_by_level": shares_by(rows, right, "level"),
        "worst_case_by_subject": shares_by(first, worst, "subject"),
        "worst_case_by_level": shares_by(first, worst, "level"),
    }


def _answer(row: Row, text: str) -> str | None:
    """The short answer, a number as its value and a choice as its letter."""
    short = _short(text)
    if short is not None and not short.strip():
        return None
    if row["answer_type"] == "float":
        value = _float(short) if short is not None else said_number(text)
        return None if value is None else repr(value)
    if row["answer_type"] == "multiple choice":
        if short is not None:
            return _letter(short) or _one(choose(short, row["options"]))
        return _one(choose(text, row["options"])) or _letter(said(text) or "")
    return short if short is not None else said(text) or _line(text)


def _right(row: Row, answer: str) -> bool:
    if row["answer_type"] == "float":
        gold = number(row["answer"])
        # The last digits of a difference of decimals are noise of their binary form.
        return gold is not None and abs(float(answer) - gold) <= TOLERANCE + 1e-12
    if row["answer_type"] == "multiple choice":
        return answer == row["answer"]
    return answer.strip().lower() in row["answer"].lower()


def _short(text: str) -> str | None:
    """What a JSON object in a response gives as short answer, also one that is not quite JSON."""
    if is_marked(text) and (found := extract(text)) is not None and "short" not in found:
        return None
    start, end = text.find("{"), text.rfind("}")
    try:
        value = json.loads(text[start : end + 1], strict=False) if 0 <= start < end else None
    except json.JSONDecodeError:
        value = None
    if isinstance(value, dict) and value.get("short answer") is not None:
        return str(value["short answer"])
    if match := _SHORT.search(text):
        return match[1].strip('"')
    return None


def _float(short: str) -> float | None:
    """A number as the authors read it, the first word with "π" understood; else by value."""
    word = short.strip().split(" ")[0]
    try:
        if "π" in word:
            return float(word.split("π")[0]) * math.pi
        return float(word)
    except ValueError:
        return number(short)


def _letter(short: str) -> str | None:
    """A lone letter, or the only one of A to E that an answer has in it anywhere."""
    found = [letter for letter in "ABCDE" if letter in short.upper()]
    return found[0] if len(found) == 1 else None


def _one(letters: str | None) -> str | None:
    return letters if letters and len(letters) == 1 else None


def _line(text: str) -> str | None:
    """A response of one short line is its answer."""
    bare = text.strip().rstrip(".")
    return bare if bare and "\n" not in bare and len(bare) <= 40 and not is_marked(text) else None
