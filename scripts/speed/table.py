"""The table that people read, and the file that programs read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxevolve.runtime.errors import UserError

BEGIN, END = "<!-- BENCH BEGIN -->", "<!-- BENCH END -->"


def keep(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows as a JSON array; rows of other names that the file has stay where they are."""
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    new = {row["name"]: row for row in rows}
    kept = [new.pop(row["name"], row) for row in old]
    text = json.dumps([*kept, *new.values()], indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table, and under it what it was measured with."""
    lines = [
        "| name | goal | median | min .. max | in wall time | CPU-s | against | pairs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        sign = "≤" if row["goal_is"] == "at most" else "≥"
        sides = {side: value for side, value in row["cpu"].items() if side != "quotient"}
        seconds = ", ".join(f"{side} {value['median']:.1f}" for side, value in sides.items())
        wall = row["wall"].get("quotient", {}).get("median")
        over, under = row["quotient_of"]
        timed = under is not None and over.endswith(".cpu")
        noisy = f", {row['disturbed']} disturbed" if row["disturbed"] else ""
        cells = (
            row["name"],
            f"{sign} {row['goal']:g}",
            f"{'**' if row['reached'] else ''}{row['median']:.2f}{'**' if row['reached'] else ''}",
            f"{row['min']:.2f} .. {row['max']:.2f}",
            f"{wall:.2f}" if timed and wall else "",
            seconds,
            row["peer"],
            f"{row['pairs']}{noisy}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Bold: the goal is reached. The work of each row:", ""]
    works: dict[str, list[str]] = {}
    for row in rows:
        works.setdefault(row["work"], []).append(row["name"])
    lines += [f"- {', '.join(names)}: {work}." for work, names in works.items()]
    if rows:
        last = rows[-1]
        versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        machine = last["machine"]
        calm = [row["cpu_over_wall"] for row in rows]
        load = [value for row in rows for value in row["load"]]
        lines += [
            "",
            f"{machine['processor']}, {machine['cores']} cores, {' '.join(machine['has'])}; one "
            f"core and one thread used. {versions}. CPU-seconds over wall time "
            f"{min(c['min'] for c in calm):.2f} to {max(c['max'] for c in calm):.2f}, load average "
            f"{min(load):.1f} to {max(load):.1f}.",
        ]
    return "\n".join(lines)


def insert(document: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Puts the table between the marks of a document."""
    text = document.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise UserError(f"{document} has no {BEGIN} and {END}; put them where the table belongs")
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    document.write_text(f"{head}{BEGIN}\n{markdown(rows)}\n{END}{tail}", encoding="utf-8")
