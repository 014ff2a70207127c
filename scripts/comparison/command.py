"""What compare.py and ablate.py have in common: flags, and the way from arms to a page."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from comparison import page, results, runner, table
from comparison.arms import Arm
from comparison.runner import Run
from jaxevolve.runtime.errors import UserError


def define(values: flags.FlagValues) -> None:
    """Flags of both commands."""
    flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, each a run", flag_values=values)
    flags.DEFINE_string("scale", "tiny", "of the recipes", flag_values=values)
    flags.DEFINE_string("out", None, "folder of runs, table and page", flag_values=values)
    flags.DEFINE_integer("jobs", 1, "runs at a time", lower_bound=1, flag_values=values)


def take_overrides(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """A command line without its --config.key=value words, and these words."""
    settings = tuple(w for w in argv if w.lstrip("-").startswith(("config.", "noconfig.")))
    return [word for word in argv if word not in settings], settings


def carry_out(
    values: flags.FlagValues,
    arms: Sequence[Arm],
    overrides: tuple[str, ...],
    *,
    name: str,
    title: str,
    baseline: str,
    note: str = "",
    start: Mapping[str, float] | None = None,
) -> None:
    """Runs what is missing of the arms and writes DIR/NAME.md, .json and .html.

    Args:
        values: flags of `define`.
        arms: rows of the table, of different labels.
        overrides: words for every run.
        name: of the files.
        title: of the table and the page.
        baseline: label of the arm that the others are compared with.
        note: how the arms are to be read.
        start: the paper's figures before training.

    Raises:
        UserError: the flags make no sense, or a folder holds runs of other settings.
        SystemExit: with 1, after all is written, where a run failed.
    """
    if not values.out:
        raise UserError("--out is missing: give a folder for the runs, the table and the page")
    refuse(arms, overrides)
    out = Path(values.out)
    runs = [Run(a, seed, out, values.scale, overrides) for seed in seeds(values) for a in arms]
    for run in runs:
        run.check()

    def write() -> None:
        read = results.read(runs)
        # In the table's order, whatever order they were run in.
        read = [run for arm in arms for run in read if run.arm == arm]
        if not read:
            return
        summary = results.summarize(read, arms, baseline)
        summary["command"] = command = [
            "python",
            f"scripts/{Path(sys.argv[0]).name}",
            *map(shlex.quote, [*sys.argv[1:], *overrides]),
        ]
        summary["commits"] = sorted({run.commit for run in runs if run.finished} - {None})
        files = {
            "json": json.dumps(summary, indent=1) + "\n",
            "md": table.markdown(title, summary, note=note, start=start),
            "html": page.render(
                title,
                summary,
                read,
                facts=facts(runs[0], summary),
                command=command,
                note=note,
                start=start,
            ),
        }
        for ending, text in files.items():
            (out / f"{name}.{ending}").write_text(text, encoding="utf-8")

    with runner.alone(out):
        failed = runner.run_missing(runs, values.jobs, write)
        write()
    if (out / f"{name}.md").is_file():
        print((out / f"{name}.md").read_text(encoding="utf-8"))
        print(out / f"{name}.html")
    for sentence in failed:
        print(sentence, file=sys.stderr)
    if failed:
        raise SystemExit(1)


def seeds(values: flags.FlagValues) -> list[int]:
    """--seeds as numbers.

    Raises:
        UserError: one is no whole number, or stands twice.
    """
    try:
        found = [int(seed) for seed in values.seeds]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        given = ",".join(values.seeds)
        raise UserError(f"--seeds={given} is wrong; give different whole numbers, such as 0,1,2")
    return found


def refuse(arms: Sequence[Arm], overrides: Sequence[str]) -> None:
    """Refuses a setting for all that is not one.

    Raises:
        UserError: names the setting.
    """
    own = {override.partition("=")[0]: arm.label for arm in arms for override in arm.overrides}
    for word in overrides:
        key = word.lstrip("-").removeprefix("no").removeprefix("config.").partition("=")[0]
        if key == "seed":
            raise UserError(f"{word} would give all runs one seed; use --seeds")
        if key in own:
            raise UserError(f"{word} would undo {own[key]!r}, which differs in {key}; leave it out")


def facts(run: Run, summary: table.Summary) -> dict[str, str]:
    """What is told at the top of the page."""
    arms = summary["arms"].values()
    every = sorted({seed for arm in arms for seed in arm["seeds"]})
    return {
        "Runs": str(sum(len(arm["seeds"]) for arm in arms)),
        "Seeds": ", ".join(map(str, every)),
        "Steps": " to ".join(map(str, dict.fromkeys([summary["steps"][0], summary["steps"][-1]]))),
        "Model": Path(run.config["model.path"]).name,
        "Trained on": run.config["data.path"],
        "Held out": f"{summary['questions']} questions of {summary['benchmark']}",
        "Commit": ", ".join(commit[:10] for commit in summary["commits"]) or "unknown",
    }
