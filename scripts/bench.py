"""Compares jaxevolve with what people use today, side by side on one core.

    python scripts/bench.py [--only=NAME,...] [--pairs=N] [--out=FILE]

Every comparison first checks that both sides do the same, then times them in turn.
docs/performance.md says how to read the table. The peers come with the extra `bench`. Use a machine
that is idle.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from absl import flags

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from jaxevolve.runtime import cli  # noqa: E402
from jaxevolve.runtime.errors import UserError  # noqa: E402
from speed import comparisons, harness, table  # noqa: E402


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_list("only", [], "names of rows; all if empty", flag_values=values)
    flags.DEFINE_integer("pairs", 5, "runs of either side", lower_bound=1, flag_values=values)
    flags.DEFINE_string("out", None, "JSON file; rows of other names stay", flag_values=values)
    flags.DEFINE_string("document", None, "file with marks around a table", flag_values=values)
    flags.DEFINE_enum(
        "size", "S", ["S", "tiny"], "tiny: only to see that it all runs", flag_values=values
    )
    flags.DEFINE_integer("core", -1, "that all runs on; -1 is the last", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Runs the comparisons and writes the table."""
    core = harness.cores()[values.core]
    with tempfile.TemporaryDirectory() as scratch:
        folders = {
            (size, image): str(Path(scratch) / f"{size}{'' if image else '-text'}")
            for size, image in ((values.size, True), (values.size, False), ("M", True))
        }
        if values.document and not values.out:
            raise UserError("--document shows all rows of a file; give --out as well")
        chosen = comparisons.choose(comparisons.Models(folders, scratch), values.size)
        known = {row.name.split("/")[0] for c in chosen.values() for row in c.rows}
        if unknown := set(values.only) - known:
            raise UserError(f"--only={','.join(unknown)}: there is {', '.join(sorted(known))}")
        wanted = {
            name: comparison
            for name, comparison in chosen.items()
            if not values.only or any(r.name.split("/")[0] in values.only for r in comparison.rows)
        }
        maker = harness.Child("speed.ours:Models", core)
        for (size, image), folder in folders.items():
            maker.call("make", out=folder, size=size, image=image)
        maker.close()
        rows, failed, begun = [], [], time.perf_counter()
        for name, comparison in wanted.items():
            say = lambda text, name=name: print(f"{name}: {text}", file=sys.stderr, flush=True)
            try:
                measured = harness.compare(comparison, values.pairs, core, say)
            except RuntimeError as error:
                say(str(error))
                failed.append(name)
                continue
            rows += [harness.result(row, measured) for row in comparison.rows]
            say(f"{time.perf_counter() - begun:.0f} s since the start")
            if values.out:
                table.keep(Path(values.out), rows)
    print(table.markdown(rows))
    if failed:
        raise UserError(f"no rows of {'; '.join(failed)}: see above why")
    if values.document:
        table.insert(Path(values.document), json.loads(Path(values.out).read_text("utf-8")))


if __name__ == "__main__":
    cli.run(main, define, __doc__)
