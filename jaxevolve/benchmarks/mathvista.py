"""MathVista: by the type of a question's answer, to the precision that it states.

Rule: lupantech/MathVista, evaluation/extract_answer.py and calculate_score.py. Where the authors
let a language model extract the answer, the box, the tag or the announced answer is taken.
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import choose, options_of
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import ask, bracketed
from jaxevolve.benchmarks.verdicts import (
    Marked,
    Row,
    Texts,
    boxed,
    one_by_one,
    said,
    said_number,
    share,
    shares_by,
)

_BRACKETED = re.compile(r"\(([A-Z])\)")
_QUICK = re.compile(r'The answer is "(.*)"\.')
_KINDS = (
    "question_type", "answer_type", "language", "source", "category", "task", "context", "grade",
    "skills",
)  # fmt: skip


def load(path: str) -> list[dict[str, Any]]:
    """Reads testmini or test: authors' JSON, AI4Math/MathVista parquet, MathVista_MINI.tsv."""
    wanted = {
        "question": ("question",),
        "answer": ("answer",),
        "question_type": ("question_type",),
        "answer_type": ("answer_type",),
    }
    more = dict.fromkeys(("choices", "precision", "unit", "query", *_KINDS[2:]))
    found = records.read(
        path,
        wanted,
        {name: (name,) for name in more},
        identity=("id", "pid", "index"),
        image=("decoded_image", "image"),
    )
    for row in found:
        row["question"], row["answer"] = map(records.text, (row["question"], row["answer"]))
        row["choices"] = records.items(row["choices"])
        decimals = len(row["answer"].partition(".")[2])
        row["precision"] = decimals if row["precision"] is None else int(float(row["precision"]))
        row["skills"] = records.items(row["skills"])
        row["family"] = records.text(row["task"] or row["source"]) or None
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question with a hint: the authors' "query" column, or the like where there is none."""
    if row["query"]:
        return ask(row, row["query"])
    unit = f" (Unit: {row['unit']})" if row["unit"] else ""
    parts = [f"Hint: {_hint(row)}", f"Question: {row['question'].strip()}{unit}"]
    if row["choices"]:
        parts += ["Choices:", bracketed(row["choices"])]
    return ask(row, *parts)


def _hint(row: Row) -> str:
    if row["question_type"] == "multi_choice":
        return "Please answer with the letter of the right option, e.g., A, B, C, D, at the end."
    kinds = {
        "integer": "an integer, e.g., 1, 2, 3",
        "list": "a Python list, e.g., [1, 2, 3], [1.2, 1.3, 1.4]",
    }
    kind = kinds.get(row["answer_type"], "the final value")
    if row["answer_type"] == "float":
        places = row["precision"] or 1
        plural = "" if places == 1 else "s"
        examples = ", ".join(f"{x:.{places}f}" for x in (1.234, 1.345, 1.456))
        kind = f"a number with {places} decimal place{plural}, e.g., {examples}"
    return f"Please answer with {kind}, at the end."


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """Extraction, normalization to the answer's type, and equality of strings."""
    return one_by_one(rows, texts, _answer, lambda row, answer: answer == _gold(row))


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy, and by each of the fields that the authors report."""
    found = {f"by_{kind}": shares_by(rows, right, kind) for kind in _KINDS}
    return {"accuracy": share(right), **{name: by for name, by in found.items() if by}}


def _answer(row: Row, text: str) -> str | None:
    """A response as the normalized string of its question's type."""
    text = text.strip()
    if row["question_type"] == "multi_choice":
        return _choice(row["choices"], text)
    quick = _QUICK.search(text)
    if row["answer_type"] in ("integer", "float"):
        return _number(row, quick[1] if quick else text)
    found = quick[1] if quick else said(text)
    return _list(found) if found and row["answer_type"] == "list" else found


def _number(row: Row, text: str) -> str | None:
    """A number as Python writes it: the authors cut integers and round the rest."""
    value = said_number(text)
    if value is None:
        return None
    if row["answer_type"] == "integer":
        return str(int(value))
    return str(round(value, row["precision"]))


def _choice(choices: Sequence[str], text: str) -> str | None:
    if not text or not choices:
        return None
    if text in choices:
        return text
    if quick := _QUICK.search(text):
        text = quick[1]
    letter = choose(text, options_of(choices))
    if letter is None and not is_marked(text):
        bracketed_ones = set(_BRACKETED.findall(text.splitlines()[-1]))
        letter = bracketed_ones.pop() if len(bracketed_ones) == 1 else None
        letter = letter if letter in options_of(choices) else None
    if letter and len(letter) == 1:
        return choices[ord(letter) - ord("A")]
    content = boxed(text)
    if content is None or (content == text and (content := said(text)) is None):
        return None
    # What is no choice counts as the one that it is nearest to in spelling.
    return min(choices, key=lambda choice: _distance(content, choice))


def _gold(row: Row) -> str:
    return (_list(row["answer"]) if row["answer_type"] == "list" else None) or row["answer"]


def _list(answer: str) -> str:
    """A list as Python writes it; the answer itself where it is none."""
    value = records.literal(answer.strip().strip("$"))
    return str(list(value)) if isinstance(value, list | tuple) else answer


def _distance(left: str, right: str) -> int:
    """Levenshtein's: insertions, deletions and replacements."""
    previous = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        current = [i]
        for j, b in enumerate(right, 1):
            change = previous[j - 1] + (a != b)
            current.append(min(previous[j] + 1, current[j - 1] + 1, change))
        previous = current
    return previous[-1]
