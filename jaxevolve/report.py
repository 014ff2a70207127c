"""Writes a run's report: one self-contained HTML page.

python -m jaxevolve.report --workdir=DIR [--embeddings=20,60,100]
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from jaxevolve.runtime import cli, maps
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import read_jsonl
from jaxevolve.runtime.page import Run, render
from jaxevolve.visits import FILE, HELD_OUT

SAMPLED_STEPS = 7  # steps whose questions are shown


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string("workdir", None, "the folder of a run", flag_values=values)
    flags.DEFINE_list(
        "embeddings",
        [],
        "steps of which to draw maps of the embedded responses, maternal and re-inferences",
        flag_values=values,
    )
    flags.DEFINE_string(
        "encoder",
        None,
        "what embeds them: a Hugging Face folder of a BERT, or ngrams; default all-MiniLM-L6-v2 "
        "where the extra embeddings is installed, else ngrams",
        flag_values=values,
    )


def main(values: flags.FlagValues) -> None:
    """Writes the page and tells where it is."""
    if not values.workdir:
        raise UserError("--workdir is missing: give the folder of a run")
    print(write(values.workdir, values.embeddings, values.encoder))


def write(workdir: str | Path, embeddings: Sequence[str] = (), encoder: str | None = None) -> Path:
    """Writes DIR/report.html, of a run that has ended or goes on.

    Args:
        workdir: DIR, the run's folder.
        embeddings: steps of which to draw maps of responses.
        encoder: what embeds them (jaxevolve/runtime/sentences.py).

    Returns:
        The path of the page.

    Raises:
        UserError: the folder holds no run, no step has been finished, there are no re-inferences
            of a step that is to be mapped, or scikit-learn is missing, which maps ask for.
    """
    if embeddings:
        maps.require()
    page = Path(workdir) / "report.html"
    run = read(Path(workdir))
    more = [maps.section(to_map(Path(workdir), embeddings), encoder)] if embeddings else []
    html = render(run, more)
    beside = page.with_suffix(".rewritten")
    beside.write_text(html, encoding="utf-8")
    os.replace(beside, page)
    return page


def read(workdir: Path) -> Run:
    """Reads what a run has left so far; where it went over a step twice, the later one counts.

    Raises:
        UserError: the folder holds no run, or no step has been finished.
    """
    config = workdir / "config.json"
    if not config.is_file():
        raise UserError(f"{workdir} holds no run: give the --workdir of jaxevolve.train")
    metrics = by_step(read_jsonl(workdir / "metrics.jsonl"))
    if not metrics:
        raise UserError(f"{workdir} has no finished step yet: let the run go on and ask again")
    evaluations = by_step(read_jsonl(workdir / "eval.jsonl"))
    # Evaluations on other questions than the last one's cannot be compared with it.
    evaluations = [e for e in evaluations if e.get("benchmark") == evaluations[-1].get("benchmark")]
    visits = [v for v in read_jsonl(workdir / FILE) if v["of"] == HELD_OUT]
    # A run that was killed may have left samples beyond its last finished step.
    samples = {row["step"]: workdir / "samples" / f"{row['step']}.jsonl" for row in metrics}
    chosen = spread([step for step, path in samples.items() if path.is_file()], SAMPLED_STEPS)
    return Run(
        name=workdir.resolve().name,
        record=json.loads(config.read_text(encoding="utf-8")),
        metrics=metrics,
        evaluations=evaluations,
        visits=by_step(visits),
        samples={step: read_jsonl(samples[step]) for step in chosen},
    )


def to_map(workdir: Path, steps: Sequence[str]) -> dict[int, list[dict[str, Any]]]:
    """Records of the steps that maps are asked of."""
    found = {}
    for step in steps:
        records = read_jsonl(workdir / "samples" / f"{step}.jsonl")
        if not any(response.get("continued") for r in records for response in r["responses"]):
            raise UserError(
                f"--embeddings={step}: {workdir}/samples has no re-inferences of that step; give "
                "steps that it has, of a run with retrace.m above 0"
            )
        found[int(step)] = records
    return found


def by_step(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last row of every step, steps rising."""
    return [row for _, row in sorted({row["step"]: row for row in rows}.items())]


def spread(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of the steps, evenly between the first and the last."""
    if len(steps) <= most:
        return list(steps)
    gap = (len(steps) - 1) / (most - 1)
    return [steps[round(i * gap)] for i in range(most)]


if __name__ == "__main__":
    cli.run(main, define, __doc__)
