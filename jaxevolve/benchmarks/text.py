r"""Text benchmarks: GSM8K, MATH-500, AIME 2024, AMC 2023, OlympiadBench, College Math, GaoKao 2023.

Rule: that of Qwen2.5-Math and math-evaluation-harness, by which rStar-Math reports them: the last
box, else what follows "the answer is", else the last number; right when equal in spelling, in value
within 1e-4 of the label (or of 100 times or a hundredth of it, for percent), or by algebra, for
which `jaxevolve.answers` stands in. OlympiadBench: the labels of a question together, in any order
where it has several, and within the row's "error" where it states one.
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import judge_many
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import ask
from jaxevolve.benchmarks.verdicts import (
    Marked,
    Row,
    Texts,
    flat,
    grouped,
    last_number,
    marked,
    number,
    said,
    share,
    shares_by,
)

TOLERANCE = 1e-4
_KINDS = ("subject", "level", "topic", "subfield", "answer_type")


def load(path: str) -> list[dict[str, Any]]:
    """Reads JSONL or JSON of the harness, and parquet of the hub.

    A label may be a text, a list ("final_answer"), or stand behind "####" at the end of a solution,
    as GSM8K has it, or in its last box, as MATH has it.
    """
    found = records.read(
        path,
        {
            "question": ("problem", "question", "Problem", "Question"),
            "answer": ("final_answer", "answer", "Answer", "solution"),
        },
        {
            "error": ("error",),
            "several": ("is_multiple_answer",),
            **{kind: (kind,) for kind in _KINDS},
        },
        identity=("id", "unique_id", "idx", "ID"),
        image=(),
    )
    for row in found:
        row["question"] = records.text(row["question"])
        row["answer"] = _label(row["answer"])
        row["error"] = _error(row["error"])
        row["options"] = {}
        for kind in _KINDS:
            row[kind] = records.text(row[kind])
        row["family"] = next((row[kind] for kind in _KINDS if row[kind]), None)
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question alone."""
    return ask(row, row["question"])


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """The harness's extraction, and equality."""
    answers = [_answer(text) for _, text in flat(texts)]
    golds = [rows[p]["answer"] for p, _ in flat(texts)]
    verdicts = judge_many(list(zip(golds, answers)))
    right = [
        verdict.state == "right" or (answer is not None and close(answer, rows[p]))
        for (p, _), answer, verdict in zip(flat(texts), answers, verdicts)
    ]
    return marked(grouped(answers, texts), grouped(right, texts), by_value=True)


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy, and by what the rows tell: subject, level, topic, kind of answer."""
    found = {f"by_{kind}": shares_by(rows, right, kind) for kind in _KINDS}
    return {"accuracy": share(right), **{name: by for name, by in found.items() if by}}


def close(answer: str, row: Row) -> bool:
    """Whether two numbers are the same within the harness's tolerance, or the row's own."""
    value, gold = number(answer), number(row["answer"])
    if value is None or gold is None:
        return False
    if row["error"] is not None:
        return abs(value - gold) <= row["error"]
    return any(
        abs(value - g) <= TOLERANCE * max(abs(value), abs(g))
        for g in (gold, gold / 100, gold * 100)
    )


def _answer(text: str) -> str | None:
    """What a response answers: a box that is empty or cut off is no answer."""
    found = said(text)
    return last_number(text) if found is None and not is_marked(text) else found


def _label(value: Any) -> str:
    if isinstance(value, str) and "####" in value:
        return value.split("####")[-1].strip().replace(",", "")
    if isinstance(value, list | tuple):
        return ", ".join(records.text(item).strip("$") for item in value)
    label = records.text(value)
    boxed = said(label) if "\\boxed" in label else None
    return boxed or label


def _error(value: Any) -> float | None:
    """OlympiadBench's tolerance, absolute; the widest where it has one for each answer."""
    found = [float(x) for x in re.findall(r"\d*\.?\d+(?:e-?\d+)?", records.text(value))]
    return max(found, default=None)
