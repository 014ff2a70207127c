"""MMMU: thirty subjects; letters and short answers, parsed by fixed rules.

Rule: MMMU-Benchmark/MMMU, mmmu/utils/eval_utils.py. Of several choices: the last "(A)"; without any
the last " A "; without any, in a response of more than five words, the last option whose text it
holds. Where nothing is found the authors take a choice at random; here that is no answer, unless
`guess` is asked for. Of open questions: key phrases ("answer ", "is ", "=", ...) and numbers,
rounded to two decimals; a text label counts if a prediction holds it, a number if one equals it.
A response with a box or an answer tag is parsed within it, its letter named in any way.
"""

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

from jaxevolve.answers import choose, options_of
from jaxevolve.answers.extraction import is_marked
from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.prompts import LETTER, ask, bracketed
from jaxevolve.benchmarks.verdicts import (
    Marked,
    Row,
    Texts,
    boxed,
    marked,
    share,
    shares_by,
)
from jaxevolve.hf.rows import IMAGE

SEED = 42  # of the authors' random choices
DOMAINS = {
    "Art and Design": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Health and Medicine": (
        "Basic_Medical_Science", "Clinical_Medicine", "Diagnostics_and_Laboratory_Medicine",
        "Pharmacy", "Public_Health",
    ),
    "Humanities and Social Science": ("History", "Literature", "Sociology", "Psychology"),
    "Tech and Engineering": (
        "Agriculture", "Architecture_and_Engineering", "Computer_Science", "Electronics",
        "Energy_and_Power", "Materials", "Mechanical_Engineering",
    ),
}  # fmt: skip
_MARK = re.compile(r"<image (\d)>")
_KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_NUMBERS = re.compile(
    r"-?\b\d{1,3}(?:,\d{3})+\b|-?\d+(?:\.\d+)?[eE][+-]?\d+"
    r"|-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])"
)


def load(path: str) -> list[dict[str, Any]]:
    """Reads MMMU/MMMU parquet, MMMU_DEV_VAL.tsv and the authors' answer_dict_val.json."""
    found = records.read(
        path,
        {"answer": ("answer", "ground_truth")},
        {
            "question": ("question",),
            "choices": ("options", "choices", "lettered"),
            "question_type": ("question_type",),
            "subject": ("subject", "category"),
            **{f"image_{i}": (f"image_{i}",) for i in range(1, 8)},
        },
        image=("image", "images", "image_path"),
    )
    if any(row["id"].startswith("validation_") for row in found):  # the dev questions are examples
        found = [row for row in found if not row["id"].startswith("dev_")]
    folder = records.files(path)[0].parent
    for row in found:
        row["question"] = records.text(row["question"])
        row["options"] = options_of(records.items(row["choices"]))
        row["answer"] = _labels(row["answer"])
        open_ended = row["question_type"] in ("open", "short-answer")
        row["open"] = open_ended or (row["question_type"] is None and not row["options"])
        if not row["options"] and not row["open"]:
            row["options"] = dict.fromkeys("ABCDEFGHI", "")  # as many as there are anywhere
        told = re.fullmatch(r"(?:dev|validation|test)_(\w+?)_\d+", row["id"])
        row["subject"] = told[1] if told else records.text(row["subject"]).replace(" ", "_")
        row["domain"] = next((d for d, names in DOMAINS.items() if row["subject"] in names), None)
        row["numbered"] = {i: records.images(row.pop(f"image_{i}"), [folder]) for i in range(1, 8)}
        row["images"] = row["images"] or [*itertools.chain(*row["numbered"].values())]
        row["family"] = row["domain"]
    return found


def prompt(row: Row) -> dict[str, Any]:
    """Question and options, with every image where its mark <image 1> stands."""
    parts = [row["question"]]
    if any(row["options"].values()):
        parts.append(bracketed(row["options"]))
    parts.append(LETTER if row["options"] else "Answer with a word or a number.")
    marks = [int(mark) for mark in _MARK.findall("\n".join(parts))]
    numbered = [row["numbered"][i] for i in marks if row["numbered"].get(i)]
    if len(numbered) < len(marks) or not marks:  # one image, or a list of them in their order
        return ask(row, *(_MARK.sub("", part) for part in parts))
    placed = [_MARK.sub(IMAGE, part.replace(IMAGE, "")) for part in parts]
    return ask({**row, "images": [*itertools.chain(*numbered)]}, *placed, images=False)


def grade(rows: Sequence[Row], texts: Texts, guess: bool = False) -> Marked:
    """The parse.

    Args:
        rows: P rows.
        texts: [P][N] responses.
        guess: take a choice at random where the parse finds none. It depends on the row's id and
            the response's place, and on nothing else.
    """
    answers: list[list[str | None]] = []
    right: list[list[bool]] = []
    for row, group in zip(rows, texts):
        answers.append([])
        right.append([])
        for place, text in enumerate(group):
            if row["open"]:
                content = boxed(text)
                found = [] if content is None or not content.strip() else predictions(content)
                answers[-1].append(str(found[0]).strip() if found else None)
                right[-1].append(any(_matches(found, label) for label in row["answer"]))
            else:
                letter = _letter(row, text)
                if letter is None and guess:
                    letters = [*row["options"]] if any(row["options"].values()) else [*"ABCD"]
                    letter = random.Random(f"{SEED}:{row['id']}:{place}").choice(letters)
                answers[-1].append(letter)
                right[-1].append(letter in row["answer"])
    return marked(answers, right)


def figures(rows: Sequence[Row], right: Sequence[bool]) -> dict[str, Any]:
    """Accuracy over all questions, by domain (6) and by subject (30)."""
    return {
        "accuracy": share(right),
        "by_domain": shares_by(rows, right, "domain"),
        "by_subject": shares_by(rows, right, "subject"),
    }


def choice(response: str, options: dict[str, str]) -> str | None:
    """The authors' parse of a choice, without its random end."""
    text = f" {_stripped(response)} "
    for form in ("({})", " {} "):
        found = {letter: text.rfind(form.format(letter)) for letter in options}
        if max(found.values()) >= 0:
            return max(found, key=found.get)
    if len(text.split()) > 5:
        found = {a: text.lower().rfind(words.lower()) for a, words in options.items() if words}
        if max(found.values(), default=-1) >= 0:
            return max(found, key=found.get)
    return None


def predictions(response: str) -> list[str | float]:
    """The authors' parse of an open response: phrases in small letters, and numbers."""
    lines = response.strip().strip(".").lower().split("\n")
    phrases = []
    for i, line in enumerate(lines):
        keys = (*_KEYS, "=") if i == len(lines) - 1 else _KEYS
        tails = [line.split(key)[-1].strip() for key in keys if key in line]
        shortest = min(tails, key=len, default="")
        if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'"):
            phrases.append(shortest)
    phrases = phrases or ["\n".join(lines)]
    numbers = [found for phrase in phrases for found in _NUMBERS.findall(phrase)]
    return list(dict.fromkeys(v for text in (*phrases, *numbers) for v in _normalized(text)))


def _letter(row: Row, text: str) -> str | None:
    content = boxed(text)
    if content is None:
        return None
    if is_marked(text):
        letter = choose(text, row["options"])
        if letter and len(letter) == 1:
            return letter
    return choice(content, row["options"])


def _stripped(text: str) -> str:
    for mark in ",.!?;:'":
        text = text.strip(mark)
    return text


def _normalized(text: str) -> list[str | float]:
    """A number at two decimals; else small letters, and a lone one with a space on either side."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        text = text.lower()
    return [f" {text}", f"{text} "] if len(text) == 1 else [text]


def _matches(found: Sequence[str | float], label: str) -> bool:
    for wanted in _normalized(label):
        for prediction in found:
            if isinstance(wanted, str) and isinstance(prediction, str):
                if wanted in prediction:
                    return True
            elif wanted == prediction:
                return True
    return False


def _labels(value: Any) -> list[str]:
    if isinstance(value, str) and not value.strip().startswith("["):
        return [value.strip()] if value.strip() else []
    return records.items(value)
