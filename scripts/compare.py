"""Compares recipes: same start, same data, the same seeds; one table and one page.

    python scripts/compare.py --recipes=majority_vote,csrs --out=DIR [--seeds=0,1,2] [--scale=tiny]
        [--jobs=2] [--baseline=RECIPE] [--config.key=value]

A recipe is NAME of configs/NAME.py, or a file, and may have settings of its own:
csrs+retrace.anchor=token. Every run is an ordinary one in DIR/runs. The same command goes on where
it was interrupted; runs that are finished stay as they are.
"""

import sys
from functools import partial
from pathlib import Path

from absl import flags

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from comparison import command  # noqa: E402
from comparison.arms import parse  # noqa: E402
from jaxevolve.runtime import cli  # noqa: E402
from jaxevolve.runtime.errors import UserError, nearest  # noqa: E402


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_list("recipes", [], "what is compared", flag_values=values)
    flags.DEFINE_string(
        "baseline", None, "that others are compared with; the first if not set", flag_values=values
    )
    command.define(values)


def main(values: flags.FlagValues, overrides: tuple[str, ...] = ()) -> None:
    """Runs what is missing, and writes DIR/comparison.md, .json and .html."""
    if not values.recipes:
        raise UserError("--recipes is missing: give some, such as majority_vote,csrs")
    if len(set(values.recipes)) < len(values.recipes):
        raise UserError(f"--recipes={','.join(values.recipes)} names one twice; leave it out")
    baseline = values.baseline or values.recipes[0]
    if baseline not in values.recipes:
        near = nearest(baseline, values.recipes) or values.recipes[0]
        raise UserError(f"--baseline={baseline} is none of --recipes; did you mean {near}?")
    command.carry_out(
        values,
        parse(values.recipes),
        overrides,
        name="comparison",
        title="Signals compared",
        baseline=baseline,
    )


if __name__ == "__main__":
    sys.argv, settings = command.take_overrides(sys.argv)
    cli.run(partial(main, overrides=settings), define, __doc__)
