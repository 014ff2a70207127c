"""MMVP: pairs of images that look alike to CLIP; a pair counts when both its questions are right.

Rule: tsb0601/MMVP, scripts/gpt_grader.py: rows come in consecutive pairs. The authors ask a
language model whether a response is right; here the options' letters and texts decide.
"""

from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import choose_many, options_in, options_of
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import LETTER, ask, bracketed
from jaxevolve.benchmarks.verdicts import Marked, Row, Texts, flat, grouped, marked, share


def load(path: str) -> list[dict[str, Any]]:
    """Reads the authors' Questions.csv with "MMVP Images" beside, MMVP.tsv, and parquet."""
    found = records.read(
        path,
        {"question": ("Question", "question"), "answer": ("Correct Answer", "answer")},
        {"choices": ("Options", "options", "choices", "lettered")},
        identity=("id", "index", "Index", "question_id", "lndex"),
        image=("image", "images", "image_path"),
    )
    folder = records.files(path)[0].parent / "MMVP Images"
    for place, row in enumerate(found):
        row["question"] = records.text(row["question"])
        choices = row["choices"]
        if isinstance(choices, str):
            row["options"] = options_in(choices) or options_of(records.items(choices))
        else:
            row["options"] = options_of([records.text(choice) for choice in choices or ()])
        row["options"] = row["options"] or options_in(row["question"]) or dict.fromkeys("AB", "")
        row["answer"] = records.text(row["answer"]).strip("() .").upper()
        if not row["images"] and folder.is_dir():
            row["images"] = [folder / f"{row['id']}.jpg"]
        row["pair"] = place // 2
        row["family"] = None
    return found


def prompt(row: Row) -> dict[str, Any]:
    """Question and options."""
    listed = any(row["options"].values()) and not options_in(row["question"])
    return ask(row, row["question"], bracketed(row["options"]) if listed else "", LETTER)


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """The option that a response names, by letter or text."""
    letters = choose_many([(text, rows[p]["options"]) for p, text in flat(texts)])
    right = [letter == rows[p]["answer"] for (p, _), letter in zip(flat(texts), letters)]
    return marked(grouped(letters, texts), grouped(right, texts))


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Pair accuracy over the pairs of which both questions are there, and that of questions."""
    pairs: dict[int, list[bool]] = {}
    for row, value in zip(rows, right):
        pairs.setdefault(row["pair"], []).append(bool(value))
    whole = [all(values) for values in pairs.values() if len(values) == 2]
    return {"pair_accuracy": share(whole), "pairs": len(whole), "accuracy": share(right)}
