r"""ChartQA: relaxed accuracy, 5 % for numbers and equality for the rest.

Rule: Masry et al. 2022, section 5.1, as lmms-eval's chartqa/utils.py has it: both are numbers and
their relative difference is at most 0.05, "12%" being 0.12; with anything else, and a label of 0,
equality but for case. What is compared is the box, tag or announced answer of a response, or all of
it where it has none.
"""

import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import extract
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import ask
from jaxevolve.benchmarks.verdicts import Marked, Row, Texts, one_by_one, share, shares_by

RELAXED = 0.05
_WRAPPER = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")


def load(path: str) -> list[dict[str, Any]]:
    """Reads lmms-lab/ChartQA and HuggingFaceM4/ChartQA parquet, ChartQA_TEST.tsv, authors' JSON.

    The authors' test_human.json and test_augmented.json lie beside a folder "png".
    """
    found = records.read(
        path,
        {"question": ("question", "query"), "answer": ("answer", "label")},
        {"split": ("type", "split", "human_or_machine")},
        image=("image", "decoded_image", "imgname", "images"),
        beside="png",
    )
    for row in found:
        row["question"] = records.text(row["question"])
        golds = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        row["answer"] = records.text(golds[0]) if golds else ""
        row["split"] = _split(records.text(row["split"]), row["file"])
        row["family"] = row["split"]
    return found


def prompt(row: Row) -> dict[str, Any]:
    """The question as it is."""
    return ask(row, row["question"], "Answer with a single word or number.")


def grade(rows: Sequence[Row], texts: Texts) -> Marked:
    """Relaxed correctness."""
    return one_by_one(rows, texts, lambda _, text: _answer(text), _right)


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Relaxed accuracy over all, and of the questions of people and of machines."""
    return {"relaxed_accuracy": share(right), "by_split": shares_by(rows, right, "split")}


def relaxed(answer: str, gold: str) -> bool:
    """The rule itself."""
    value, target = _float(answer), _float(gold)
    if value is not None and target:
        return abs(value - target) / abs(target) <= RELAXED
    return answer.lower() == gold.lower()


def _right(row: Row, answer: str) -> bool:
    return relaxed(answer, row["answer"])


def _answer(text: str) -> str | None:
    found = extract(text, final_line=True)
    if found is None and is_marked(text):
        return None
    found = text if found is None else found
    found = _WRAPPER.sub(r"\1", found).replace("\\%", "%").replace("\\$", "$").strip().strip("$")
    bare = found.rstrip(".").strip()
    # A number without separators of thousands is still the number that was said.
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", bare) or None


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def _split(told: str, file: str) -> str | None:
    told = told.lower() or file.lower()
    if "human" in told or told == "0":
        return "human"
    return "augmented" if "augmented" in told or "machine" in told or told == "1" else None
