"""A plan as a person reads it."""

from collections.abc import Sequence

from jaxevolve.planning.chips import GIB


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its columns as wide as they need be; numbers stand on the right."""
    whole = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in whole) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        return "| " + " | ".join(cells) + " |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(whole[0]), rule, *map(line, whole[1:])])


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / GIB:.2f}"


def short(number: float) -> str:
    """1.23e15 as 1.23 P."""
    for power, letter in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {letter}"
    return f"{number:.3g}"


def shape(mesh: Sequence[int]) -> str:
    """A mesh as --config.mesh takes it."""
    return ",".join(map(str, mesh))
