"""Which benchmarks are there? One table, by the names that the commands take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxevolve.answers import label_fault
from jaxevolve.benchmarks import (
    chartqa,
    dynamath,
    labeled,
    logicvista,
    mathverse,
    mathvision,
    mathvista,
    mmmu,
    mmvp,
    prompts,
    text,
    wemath,
)
from jaxevolve.benchmarks.verdicts import Marked, Row, Texts
from jaxevolve.data.sources import load_rows
from jaxevolve.runtime.errors import UserError, nearest

GRADER = "jaxevolve.answers"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: all pure functions.

    Attributes:
        name: what the commands call it.
        load: path -> rows, each with "id", "images", "answer", "family" and its own fields.
        prompt: row -> the row for the processor, with "question" as it is put.
        grade: (P rows, [P][N] responses) -> `Marked`.
        figures: (P rows, bool[P] right) -> the official figures, the one that is quoted first.
            Shares of 1; those of parts under "by_...".
        grader: the rule by which it is scored, for results.
        instruction: what the paper that reports it adds to every question.
        images: whether every question has an image, so that one without is a mistake.
        fault: row -> what is the matter with its label, or None.
    """

    name: str
    load: Callable[[str], Sequence[Row]]
    prompt: Callable[[Row], Row]
    grade: Callable[[Sequence[Row], Texts], Marked]
    figures: Callable[[Sequence[Row], Sequence[bool]], dict[str, Any]]
    grader: str
    instruction: str = ""
    images: bool = True
    fault: Callable[[Row], str | None] = lambda row: None if row["answer"] else "it has no label"

    def score(self, rows: Sequence[Row], responses: Sequence[str]) -> dict[str, Any]:
        """The official figures of one response a row."""
        right = self.grade(rows, [[response] for response in responses]).correct
        return self.figures(rows, right[:, 0].tolist())


def headline(figures: dict[str, Any]) -> float:
    """The official figure that papers quote."""
    return next(iter(figures.values()))


def find(name: str, *, guess: bool = False) -> Benchmark:
    """The benchmark of a name.

    Args:
        name: as in `NAMES`, small and capital letters, dashes and underscores alike.
        guess: take MMMU's random choice where its parse finds none; the grader says so.

    Raises:
        UserError: there is no such benchmark, or only MMMU guesses.
    """
    found = _BY_NAME.get(_plain(name))
    if found is None:
        near = nearest(_plain(name), _BY_NAME)
        advice = f"did you mean {_BY_NAME[near].name}?" if near else f"there is {', '.join(NAMES)}"
        raise UserError(f"benchmark {name!r} is unknown; {advice}")
    if guess and found.name != "mmmu":
        raise UserError(f"{found.name} has no random guess; leave --mmmu_random_guess out")
    if guess:
        how = f"{found.grader}, what it cannot parse GUESSED AT RANDOM (seed {mmmu.SEED} and id)"
        return replace(found, grade=partial(mmmu.grade, guess=True), grader=how)
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _of(module: Any, name: str, grader: str, instruction: str, **more: Any) -> Benchmark:
    functions = (module.load, module.prompt, module.grade, module.figures)
    return Benchmark(name, *functions, grader, instruction, **more)


def _mathematical(row: Row) -> str | None:
    return label_fault(row["answer"], row["options"] or None)


def _text(name: str) -> Benchmark:
    grader = f"Qwen2.5-Math extraction and tolerance, equality by {GRADER}"
    more = {"images": False, "fault": _mathematical}
    return _of(text, name, grader, prompts.STEP_BY_STEP, **more)


def _ours(name: str) -> Benchmark:
    """Questions in the layouts of training: asked as they are, and without official figures."""
    functions = (load_rows, lambda row: row, labeled.grade_rows, lambda rows, right: {})
    return Benchmark(name, *functions, GRADER, images=False, fault=labeled.fault)


def _trained(name: str) -> Benchmark:
    return _of(labeled, name, GRADER, prompts.THINK_THEN_BOX, images=False, fault=_mathematical)


# Instructions: CSRS for its four, Self-Judge for what only it reports, Guided Verifier for MMMU,
# Qwen2.5-Math's for the text sets of rStar-Math, and the training prompt for the training sets.
_ALL = (
    _of(mathvision, "mathvision", f"MATH-V evaluate.py, letters by {GRADER}",
        prompts.THINK_THEN_BOX, fault=_mathematical),
    _of(mathverse, "mathverse", f"{GRADER} for the authors' language model",
        prompts.THINK_THEN_BOX, images=False, fault=_mathematical),
    _of(mathvista, "mathvista", f"MathVista calculate_score.py, extraction by {GRADER}",
        prompts.THINK_THEN_BOX),
    _of(wemath, "wemath", "We-Math four_dimensional_metrics.py", prompts.THINK_THEN_BOX),
    _of(logicvista, "logicvista", f"LogicVista letter sets, extraction by {GRADER}",
        prompts.THINK_ONLY_THEN_BOX),
    _of(dynamath, "dynamath", f"DynaMath as VLMEvalKit scores it, extraction by {GRADER}",
        prompts.THINK_ONLY_THEN_BOX),
    _of(chartqa, "chartqa", "ChartQA relaxed accuracy, 5 %", prompts.THINK_ONLY_THEN_BOX),
    _of(mmvp, "mmvp", f"MMVP pairs, options by {GRADER}", prompts.THINK_ONLY_THEN_BOX),
    _of(mmmu, "mmmu", "MMMU eval_utils.py without its random guess", prompts.RESTATE_THEN_SOLVE),
    *map(_text, (
        "gsm8k", "math500", "aime2024", "amc2023", "olympiadbench", "college_math", "gaokao2023en",
    )),
    *map(_trained, ("geometry3k", "geoqa", "mmr1")),
    *map(_ours, ("geometry", "rows")),
)  # fmt: skip

NAMES = tuple(benchmark.name for benchmark in _ALL)
_USUAL = {"math": "math500", "aime24": "aime2024", "amc23": "amc2023", "mathv": "mathvision"}
_BY_NAME = {_plain(benchmark.name): benchmark for benchmark in _ALL}
_BY_NAME |= {usual: _BY_NAME[name] for usual, name in _USUAL.items()}
