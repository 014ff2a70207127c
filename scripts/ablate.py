"""Runs a table of the CSRS paper (arXiv 2604.03647) with the embedded model, or any other.

    python scripts/ablate.py --table=2|3|4|5|9|10|anchors --out=DIR [--seeds=0,1,2] [--scale=tiny]
        [--jobs=2] [--config.key=value]

Tables share the runs that they have in common where they share DIR. The same command goes on where
it was interrupted.
"""

import sys
from functools import partial
from pathlib import Path

from absl import flags

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from comparison import command  # noqa: E402
from comparison.arms import TABLES  # noqa: E402
from jaxevolve.runtime import cli  # noqa: E402
from jaxevolve.runtime.errors import UserError  # noqa: E402


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_enum("table", None, list(TABLES), "which table", flag_values=values)
    command.define(values)


def main(values: flags.FlagValues, overrides: tuple[str, ...] = ()) -> None:
    """Runs what is missing, and writes DIR/table-N.md, .json and .html."""
    if not values.table:
        raise UserError(f"--table is missing: there is {', '.join(TABLES)}")
    chosen = TABLES[values.table]
    command.carry_out(
        values,
        chosen.arms,
        overrides,
        name=f"table-{values.table}",
        title=chosen.title,
        baseline=chosen.baseline,
        note=chosen.note,
        start=chosen.start,
    )


if __name__ == "__main__":
    sys.argv, settings = command.take_overrides(sys.argv)
    cli.run(partial(main, overrides=settings), define, __doc__)
