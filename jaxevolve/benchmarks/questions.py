"""Is everything there before a model is asked, and what did other systems answer?"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxevolve.benchmarks import records
from jaxevolve.benchmarks.accuracy import Record, askable, judge
from jaxevolve.benchmarks.table import Benchmark
from jaxevolve.benchmarks.verdicts import Row
from jaxevolve.data.validate import find_problems
from jaxevolve.hf.processor import Processor
from jaxevolve.runtime.errors import UserError, nearest

_IDS = ("id", "index", "pid", "question_id", "sample_index", "unique_id")
_RESPONSES = ("responses", "response", "prediction", "output", "model_answer")
_ENDLESS = 1 << 30


def load(benchmark: Benchmark, path: str, wanted: int = 0) -> tuple[list[Row], list[str]]:
    """The questions that can be asked, and the ids of those whose labels are broken.

    Args:
        benchmark: whose rows.
        path: as its `load` takes it.
        wanted: the first so many rows; 0 for all.

    Raises:
        UserError: as its `load`, or no question has a label.
    """
    rows = benchmark.load(path)
    chosen = [rows[i] for i in range(min(wanted or len(rows), len(rows)))]
    left_out = [row for row in chosen if benchmark.fault(row) is not None]
    unlabeled = [row for row in left_out if not row["answer"]]
    none_left = len(left_out) == len(chosen)
    if unlabeled and (none_left or not benchmark.instruction):
        raise UserError(
            f"{len(unlabeled)} of {len(chosen)} rows of {path} have no answer, the first is "
            f"{unlabeled[0]['id']}; an evaluation needs labels"
        )
    if none_left:
        raise UserError(
            f"no row of {path} has a label that an answer can be compared with, the first, "
            f"{left_out[0]['id']}: {benchmark.fault(left_out[0])}"
        )
    kept, _ = askable(benchmark, chosen)
    ids = [row["id"] for row in kept]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise UserError(f"{path} has two rows with the id {twice!r}; give every row its own")
    return kept, [row["id"] for row in left_out]


def check(benchmark: Benchmark, rows: Sequence[Row], processor: Processor, text: str) -> None:
    """Looks at all prompts before anything is compiled: images that are missing or broken.

    Args:
        benchmark: whose rows.
        rows: the rows that will be asked.
        processor: of the model.
        text: the instruction.

    Raises:
        UserError: names the first of them.
    """
    put = [benchmark.prompt(row) for row in rows]
    bare = [row["id"] for row in put if not row["images"]]
    if benchmark.images and bare:
        raise UserError(
            f"{len(bare)} of {len(put)} questions have no image, the first is {bare[0]}, and "
            f"{benchmark.name} asks about images; give --data a file that has them"
        )
    found = find_problems(
        put, range(len(put)), processor, max_prompt_tokens=_ENDLESS, instruction=text
    )
    if found:
        told = "; ".join(problem.reason for problem in found[:3])
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise UserError(f"{told}{more}; correct the data")


def rescored(benchmark: Benchmark, rows: Sequence[Row], path: Path) -> list[Record]:
    """Judges responses that lie in a file.

    Args:
        benchmark: whose rule.
        rows: the questions.
        path: JSON, JSONL or TSV with an id and a response a row; "responses" may hold several, and
            so may several rows of one id. "greedy" is the greedy one where it is told; otherwise
            the first response stands for it as well.

    Returns:
        Records of the questions that have responses, in their order.

    Raises:
        UserError: no such file, no such columns, an id that no question has, or questions with
            different numbers of responses.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; give --rescore a file of responses")
    found: dict[str, list[str]] = {}
    told: dict[str, Mapping[str, Any]] = {}
    raw = list(records.rows(path))
    columns = list(dict.fromkeys(name for row in raw for name in row))
    for role, names in (("id", _IDS), ("response", _RESPONSES)):
        if not any(name in columns for name in names):
            raise UserError(
                f"{path} has no column for the {role}: wanted is {' or '.join(names)}, "
                f"it has {', '.join(columns)}"
            )
    known = {row["id"] for row in rows}
    for row in raw:
        names = [records.text(row[key]) for key in _IDS if not records.is_empty(row.get(key))]
        name = next((name for name in names if name in known), names[0] if names else "")
        if name not in known:
            near = nearest(name, known)
            raise UserError(
                f"{path} has a response to {name!r}, which is no question here"
                + (f"; did you mean {near}?" if near else "; give the --data it belongs to")
            )
        value = next((row[key] for key in _RESPONSES if row.get(key) is not None), "")
        several = value if isinstance(value, list | tuple) else [value]
        found.setdefault(name, []).extend(_text(text) for text in several)
        told[name] = row
    counts = {len(texts): name for name, texts in found.items()}
    if len(counts) > 1:
        (a, first), (b, second) = list(counts.items())[:2]
        raise UserError(
            f"{path} has {a} responses to {first} and {b} to {second}; give every question as many"
        )
    answered = [row for row in rows if row["id"] in found]
    texts = [
        [_text(told[row["id"]].get("greedy", found[row["id"]][0])), *found[row["id"]]]
        for row in answered
    ]
    kept = ("stopped", "greedy_stopped", "entropy", "tokens", "seconds")
    return [
        {
            **{name: told[record["id"]][name] for name in kept if name in told[record["id"]]},
            **record,
        }
        for record in judge(benchmark, answered, texts)
    ]


def with_limits(processor: Processor, least: int, most: int) -> Processor:
    """The processor with other limits on the area of an image, in pixels; 0 keeps its own.

    Raises:
        UserError: the limits cross.
    """
    if processor.image_processor is None or not (least or most):
        return processor
    images = copy.deepcopy(processor.image_processor)
    images.size.shortest_edge = least or images.size.shortest_edge
    images.size.longest_edge = most or images.size.longest_edge
    if images.size.shortest_edge > images.size.longest_edge:
        raise UserError(
            f"images cannot have at least {images.size.shortest_edge} and at most "
            f"{images.size.longest_edge} pixels; change --min_pixels or --max_pixels"
        )
    return replace(processor, image_processor=images)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
