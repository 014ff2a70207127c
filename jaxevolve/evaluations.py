"""How good is the model while it trains? Evaluations on held-out questions, and the last word."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxevolve.benchmarks import accuracy
from jaxevolve.benchmarks import questions as questions_of
from jaxevolve.benchmarks.table import Benchmark
from jaxevolve.data.validate import open_data
from jaxevolve.hf.processor import Processor
from jaxevolve.policy import Policy
from jaxevolve.runtime import distributed, metrics
from jaxevolve.visits import HELD_OUT, Visits, of_records

ROWS = "rows"  # questions in the layouts of training data, no published benchmark


def open_questions(
    config: ConfigDict, benchmark: Benchmark, processor: Processor, listing: Path | None
) -> Any:
    """The held-out questions, every one of them looked at.

    Rows that cannot be used are left out, as from training data, and listed; in a published
    benchmark they are an error, since its figures would be those of other questions.
    """
    settings = config.eval
    if benchmark.name == ROWS:
        return open_data(settings.path, config.data, processor, labels=True, listing=listing)
    rows, _ = questions_of.load(benchmark, settings.path, settings.questions)
    questions_of.check(benchmark, rows, processor, config.data.instruction)
    return rows


class Evaluations:
    """The run's evaluations on held-out questions: eval.jsonl, and which step was best.

    Attributes:
        all: every evaluation so far, in order; the same on all processes, of which one writes.
    """

    def __init__(
        self,
        workdir: Path,
        benchmark: Benchmark,
        rows: Any,
        config: ConfigDict,
        visits: Visits,
    ) -> None:
        self._workdir, self._benchmark, self._visits = workdir, benchmark, visits
        self._rows, self._config = rows, config
        self.all: list[dict[str, Any]] = distributed.from_first(
            metrics.read_jsonl(workdir / "eval.jsonl")
        )

    @property
    def best_step(self) -> int | None:
        """The step with the best average, the first of equals; None before the first update.

        It is the average of the official score where the benchmark has one.
        """
        scored = [e for e in self.all if e["step"]]
        average = f"average@{self._config.eval.n}"

        def score(evaluation: dict[str, Any]) -> float:
            return evaluation.get(f"official_{average}", evaluation[average])

        return max(scored, key=score)["step"] if scored else None

    def run(self, policy: Policy, step: int) -> None:
        """Evaluates, unless this step has been evaluated before the run was interrupted."""
        settings = self._config.eval
        if any(e["step"] == step for e in self.all):
            return
        outcome, records = accuracy.evaluate(
            policy,
            self._rows,
            questions=settings.questions,
            n=settings.n,
            max_tokens=self._config.rollout.max_tokens,
            instruction=self._config.data.instruction,
            benchmark=self._benchmark,
        )
        figures = accuracy.summary(outcome, [record["family"] for record in records])
        name = settings.path
        if self._benchmark.name != ROWS:
            name = f"{self._benchmark.name} {name}"
            figures |= accuracy.official(self._benchmark, self._rows, records)
        figures |= self._visits.note(HELD_OUT, step, of_records(records))
        self.all.append({"step": step, "benchmark": name, **figures})
        if distributed.is_first():
            metrics.append_evaluation(self._workdir, self.all[-1])


def print_table(evaluations: list[dict[str, Any]], saved: Path, exported: Path, page: Path) -> None:
    """What the model was, what it is, and where everything lies."""
    before, after = evaluations[0], evaluations[-1]
    told = ("greedy", "official", "high_confidence_wrong", "entropy")
    names = [k for k in before if "@" in k or k in told]
    print(f"\n{'held-out questions':<24}{'before':>10}{'after':>10}{'change':>10}")
    for name in names:
        scale = 1 if name == "entropy" else 100
        was, now = before[name] * scale, after[name] * scale
        print(f"{name.replace('_', ' '):<24}{was:>10.2f}{now:>10.2f}{now - was:>+10.2f}")
    for family, figures in before.get("family", {}).items():
        key = next(k for k in figures if k.startswith("average@"))
        was, now = 100 * figures[key], 100 * after["family"][family][key]
        print(f"{key + ' ' + family:<24}{was:>10.2f}{now:>10.2f}{now - was:>+10.2f}")
    print(f"\ncheckpoint       {saved}\nHugging Face     {exported}\nreport           {page}")
