"""LogicVista: the letters that a response chooses, all of them and no other.

Rule: Yijia-Xiao/LogicVista, eval/extract_accuracy.py: the sorted small letters must be those of the
label ("A, C"). The authors let a language model find the letters; here `jaxevolve.answers` does.
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import choose_many, options_in
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import LETTER, ask
from jaxevolve.benchmarks.verdicts import (
    Marked,
    Row,
    Texts,
    flat,
    grouped,
    marked,
    share,
    shares_by,
)


def load(path: str) -> list[dict[str, Any]]:
    """Reads the authors' dataset.json, parquet, LogicVista.tsv."""
    found = records.read(
        path,
        {"question": ("question",), "answer": ("answer",)},
        {
            "skill": ("skill",),
            "capability": ("broad_capability", "capability"),
            "specific": ("specific_capability", "tool"),
        },
        image=("image", "imagesource", "image_path"),
    )
    for row in found:
        row["question"], row["answer"] = map(records.text, (row["question"], row["answer"]))
        for name in ("skill", "capability", "specific"):
            row[name] = records.items(row[name])
        row["options"] = options_in(row["question"])
        if len(row["options"]) < 2:
            row["options"] = dict.fromkeys("ABCDE", "")
        row["family"] = row["skill"][0] if row["skill"] else None
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question, which lists its options; where it is empty it stands in the image."""
    question = row["question"] or "Answer the question in the image."
    return ask(row, question, LETTER.replace("letter", "letter or letters"))


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """Letters as a set."""
    letters = choose_many([(text, rows[p]["options"]) for p, text in flat(texts)])
    right = [
        letter is not None and set(letter) == _gold(rows[p])
        for (p, _), letter in zip(flat(texts), letters)
    ]
    return marked(grouped(letters, texts), grouped(right, texts))


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy, by reasoning skill (5), by broad and by specific capability."""
    found = {
        "by_skill": shares_by(rows, right, "skill"),
        "by_capability": shares_by(rows, right, "capability"),
        "by_specific_capability": shares_by(rows, right, "specific"),
    }
    return {"accuracy": share(right), **{name: by for name, by in found.items() if by}}


def _gold(row: Row) -> set[str]:
    return set(re.sub(r"[^A-Z]", "", row["answer"].upper()))
