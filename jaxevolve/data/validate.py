"""Which rows can be trained on? A pass over all of them before anything is compiled."""

import concurrent.futures
import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxevolve.answers import label_fault, options_for
from jaxevolve.data.sources import Row, Rows, Subset, is_generated, load_rows
from jaxevolve.hf.images import BadImage, open_image
from jaxevolve.hf.processor import Processor
from jaxevolve.hf.rows import images_of
from jaxevolve.runtime.errors import UserError

_LOG = logging.getLogger(__name__)
_GENERATED_SAMPLE = 16  # Rows of the built-in renderer that are looked at: all are alike.


class Problem(NamedTuple):
    """Why a row cannot be used.

    Attributes:
        index: the row's place in its source.
        id: the row's id.
        kind: "image", "overlong", "question", "label", "broken label" or
            "placeholders".
        reason: one sentence.
    """

    index: int
    id: str
    kind: str
    reason: str


def open_data(
    path: str,
    data: ConfigDict,
    processor: Processor,
    *,
    labels: bool = False,
    listing: str | Path | None = None,
) -> Rows:
    """Opens a source and leaves out the rows that cannot be used, counted and listed.

    Args:
        path: as for `load_rows`.
        data: config.data: the keys of columns, overlong, strict, max_prompt_tokens, instruction.
        processor: of the model that will read the rows.
        labels: whether a row is of no use without an answer, or with one that nothing can be
            compared with.
        listing: a JSONL file for the rows left out, one object each; written where there are any.

    Returns:
        The usable rows, in the source's order.

    Raises:
        UserError: as `load_rows` and `refuse`, or no row is left.
    """
    rows = load_rows(path, data.problem_key, data.answer_key, data.image_key)
    checked = range(min(len(rows), _GENERATED_SAMPLE)) if is_generated(path) else range(len(rows))
    problems = find_problems(
        rows,
        checked,
        processor,
        max_prompt_tokens=data.max_prompt_tokens,
        instruction=data.instruction,
        labels=labels,
    )
    refuse(problems, path, overlong=data.overlong, strict=data.strict)
    if not problems:
        return rows
    kinds = ", ".join(
        f"{count} {kind}" for kind, count in Counter(p.kind for p in problems).items()
    )
    if len(problems) == len(checked):
        raise UserError(f"no row of {path} can be used ({kinds}); the first: {problems[0].reason}")
    if listing is not None:
        lines = [json.dumps({"source": path, **p._asdict()}, ensure_ascii=False) for p in problems]
        Path(listing).write_text("\n".join(lines) + "\n", encoding="utf-8")
    _LOG.warning(
        "%d of %d rows of %s are left out (%s): %s%s",
        len(problems),
        len(rows),
        path,
        kinds,
        "; ".join(problem.reason for problem in problems[:3]),
        f"; all are listed in {listing}" if listing is not None else "",
    )
    bad = {problem.index for problem in problems}
    return Subset(rows, [index for index in range(len(rows)) if index not in bad])


def find_problems(
    rows: Rows,
    indices: Sequence[int],
    processor: Processor,
    *,
    max_prompt_tokens: int,
    instruction: str = "",
    labels: bool = False,
    threads: int = 8,
) -> list[Problem]:
    """Looks at rows one by one, in threads, and keeps nothing of them.

    Every image is decoded whole (a file cut in half has a sound header), and the prompt is counted
    with its image tokens.

    Args:
        rows: the source.
        indices: which rows to look at.
        processor: of the model that will read them.
        max_prompt_tokens: limit of a prompt, image tokens counted.
        instruction: text added to every question.
        labels: whether a row is of no use without an answer, or with one that nothing can be
            compared with.
        threads: rows looked at at a time.

    Returns:
        The problems in the order of `indices`, at most one a row.
    """

    def look(index: int) -> Problem | None:
        row = rows[index]
        found = _problem(row, processor, max_prompt_tokens, instruction, labels)
        return found and Problem(index, row["id"], *found)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return [problem for problem in pool.map(look, indices) if problem]


def refuse(problems: Sequence[Problem], path: str, *, overlong: str, strict: bool) -> None:
    """Ends the run before it begins where a problem is not to be passed over.

    A number of `<image>` marks that differs from the number of images is a mistake in the making of
    the data, and is always refused. Broken images, empty questions and missing labels are refused
    where `strict`, prompts that are too long where `overlong` is "refuse". A label that is there
    and broken never is.

    Raises:
        UserError: names the first rows and tells how many there are.
    """
    fatal = {"placeholders"}
    fatal |= {"image", "question", "label"} if strict else set()
    fatal |= {"overlong"} if overlong == "refuse" else set()
    refused = [problem for problem in problems if problem.kind in fatal]
    if not refused:
        return
    more = f", and {len(refused) - 3} rows more" if len(refused) > 3 else ""
    told = "; ".join(problem.reason for problem in refused[:3])
    leave = {
        "placeholders": "correct the data",
        "overlong": "raise --config.data.max_prompt_tokens or give --config.data.overlong=drop",
    }.get(refused[0].kind, "correct the data or give --config.data.strict=false to leave it out")
    raise UserError(f"{path}: {told}{more}; {leave}")


def _problem(
    row: Row, processor: Processor, max_prompt_tokens: int, instruction: str, labels: bool
) -> tuple[str, str] | None:
    """Kind and reason."""
    name = f"row {row['id']}"
    if not row["question"].strip():
        return "question", f"{name} has no question"
    if labels and row["answer"] is None:
        return "label", f"{name} has no answer"
    options = options_for(row["question"], row.get("choices"))
    if labels and (fault := label_fault(row["answer"], options)):
        return "broken label", f"{name}: {fault} ({row['answer'][:60]!r})"
    for number, image in enumerate(images_of(row), 1):
        try:
            open_image(image)
        except BadImage as error:
            return "image", f"{name}, image {number}: {error}"
    try:
        tokens, _ = processor.row_size(row, instruction)
    except BadImage as error:
        return "image", str(error)
    except UserError as error:
        return "placeholders", str(error)
    if tokens > max_prompt_tokens:
        limit = f"data.max_prompt_tokens={max_prompt_tokens}"
        return "overlong", f"{name} has a prompt of {tokens} tokens, more than {limit}"
    return None
