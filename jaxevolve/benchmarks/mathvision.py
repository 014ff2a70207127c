r"""MATH-Vision: letter or the option's text, or the same number at two decimals.

Rule: mathllm/MATH-V, evaluation/evaluate.py and utils.py. A letter at the end (" C.") or alone on
the first line is the answer; a number behind the last "is "; else the last box, or what follows
"the answer is", or all of it. Answers are equal when their letters are, tuple by tuple where they
are tuples, or when both have values that are equal at two decimals. Beyond that rule, an option may
be named in any way that `jaxevolve.answers` understands, such as "C. 52".
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import choose_many, extract, options_of
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import LETTER, ask, bracketed
from jaxevolve.benchmarks.verdicts import (
    Marked,
    Row,
    Texts,
    flat,
    grouped,
    marked,
    number,
    said,
    share,
    shares_by,
)

_FLAG = re.compile(
    r"the (?:final |correct )?answer (?:is|should be)(?P<rest>[^\n]*)", re.IGNORECASE
)
_FIRST_LINE = re.compile(r"(?:\(([A-E])\)(?: \1)?|([A-E]))\n")
_LAST_WORD = re.compile(r" (?:\(([A-E])\)|([A-E]))\.$")
_DROPPED = re.compile(
    r"\\(?:left|right|text|mbox|mathrm|[,!;: ])|\^\{?\\circ\}?|\\?[$%]|[{}\s°]|(?:km|units)\b"
)


def load(path: str) -> list[dict[str, Any]]:
    """Reads test or testmini: authors' JSONL, MathLLMs/MathVision parquet, MathVision.tsv."""
    found = records.read(
        path,
        {"question": ("question",), "answer": ("answer",)},
        {
            "choices": ("options", "choices", "lettered"),
            "subject": ("subject", "category"),
            "level": ("level",),
        },
        image=("decoded_image", "image"),
    )
    for row in found:
        row["question"], row["answer"] = map(records.text, (row["question"], row["answer"]))
        row["choices"] = records.items(row["choices"])
        row["options"] = options_of(row["choices"])
        row["level"] = records.text(row["level"])
        row["family"] = row["subject"]
    return found


def prompt(row: Row) -> dict[str, Any]:
    """Question and options; the marks <image1>, ... name parts of the one image and stay."""
    choices = bracketed(row["options"]) if row["options"] else ""
    return ask(row, row["question"], choices, LETTER if row["options"] else "")


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """The authors' extraction and equality, and option letters as they are named elsewhere."""
    letters = choose_many([(text, rows[p]["options"]) for p, text in flat(texts)])
    answers, right = [], []
    for (p, text), letter in zip(flat(texts), letters):
        row, official, told = rows[p], *_official(text)
        golds = [row["answer"]]
        if place := "ABCDEFGHI".find(row["answer"][:1] or " ") + 1:
            golds += row["choices"][place - 1 : place]
        correct = official is not None and any(same(official, gold) for gold in golds)
        named = letter if row["options"] else None
        right.append(correct or (named is not None and named == row["answer"]))
        # Where letters and content name the same option, a vote must see one answer.
        known = row["answer"] if right[-1] and row["options"] else named
        answers.append(known or (official if told or right[-1] else said(text)))
    return marked(grouped(answers, texts), grouped(right, texts), by_value=True)


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy, by subject (16), by level (5) and by both."""

    def both(row: Row) -> str:
        return f"{row['subject']}, level {row['level']}" if row["level"] and row["subject"] else ""

    return {
        "accuracy": share(right),
        "by_subject": shares_by(rows, right, "subject"),
        "by_level": shares_by(rows, right, "level"),
        "by_subject_and_level": shares_by(rows, right, both),
    }


def same(answer: str, gold: str) -> bool:
    """Equality as the authors have it: spelling, tuples, values at two decimals."""
    left, right = plain(answer), plain(gold)
    if not left or not right:
        return False
    if left == right:
        return True
    pieces = [_pieces(left), _pieces(right)]
    if all(pieces):
        return _rounded(pieces[0]) == _rounded(pieces[1]) and left[0] == right[0]
    values = number(left), number(right)
    return None not in values and round(values[0], 2) == round(values[1], 2)


def plain(text: str) -> str:
    """An answer in small letters without spaces, signs of degree, percent and money, and units."""
    text = text.lower().split("=")[-1].split("\\approx")[-1]
    text = re.sub(r"\\[td]frac", r"\\frac", text)
    wrapped = re.fullmatch(r"\s*\(([a-e])\)\s*", text)
    if wrapped:
        return wrapped[1]
    if "\\frac" in text or "\\sqrt" in text or "^{" in text:  # braces are part of the value
        return re.sub(r"\\(?:left|right|[,!;: ])|\^\{?\\circ\}?|\\?[$%]|\s", "", text).rstrip(".")
    return _DROPPED.sub("", text).strip(".:")


def _official(text: str) -> tuple[str | None, bool]:
    """What the authors compare, and whether the response says that it is its answer."""
    text = text.strip()
    if match := _LAST_WORD.search(text) or _FIRST_LINE.match(text):
        return match[1] or match[2], True
    if is_marked(text):
        return extract(text), True
    tail = text.split("is ")[-1].rstrip(".")
    if re.fullmatch(r"[+-]?\d*\.?\d+", tail):
        return tail, True
    if flags := list(_FLAG.finditer(text)):
        return flags[-1]["rest"].split(". ")[0].strip(" :*") or None, True
    return text or None, False


def _pieces(text: str) -> list[str]:
    closed = (text[:1], text[-1:]) in (("(", ")"), ("[", "]"))
    pieces = text[1:-1].split(",") if closed else []
    return pieces if len(pieces) > 1 else []


def _rounded(pieces: Sequence[str]) -> list[Any]:
    values = [number(piece) for piece in pieces]
    return [piece if v is None else round(v, 2) for piece, v in zip(pieces, values)]
