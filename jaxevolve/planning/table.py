"""A plan as a person reads it."""

from collections.abc import Sequence

from jaxevolve.planning import memory, work
from jaxevolve.planning.chips import GIB
from jaxevolve.planning.planner import Plan
from jaxevolve.planning.programs import device_bytes


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


def text(plan: Plan) -> str:
    """The plan in Markdown."""
    return "\n\n".join([_title(plan), _memory(plan), _time(plan), _meshes(plan)])


def _title(plan: Plan) -> str:
    chip = plan.topology.chip
    return (
        f"## {plan.name} on {plan.topology.text}\n\n"
        f"{plan.config.model.path}, {plan.counts.all / 1e9:.2f} billion parameters, on "
        f"{plan.topology.size} x {chip.name} with {chip.memory / GIB:.2f} GiB to use each; "
        f"mesh {shape(plan.mesh)} (data, fsdp, tensor)."
    )


def _memory(plan: Plan) -> str:
    room, rows = plan.topology.chip.memory, []
    for name, usage in plan.usages.items():
        need = plan.needs[name]
        verdict = "yes" if need <= room else f"over by {gib(need - room)}"
        if usage.refused:
            verdict += ", refused"
        rows.append(
            [
                name,
                gib(usage.arguments),
                gib(usage.peak),
                gib(plan.beside[name]),
                gib(need),
                f"{need / room:.0%}",
                verdict,
            ]
        )
    header = ["GiB a device", "arguments", "peak", "beside it", "in all", "of chip", "fits"]
    p, s = plan.programs, plan.programs.sizes
    kept = {
        "train state": p.state,
        "copy to compute with": p.policy,
        "copy to sample with": p.sampler,
        "reference": p.reference,
        "prompts read": p.pool,
        "rows": p.decoding,
    }
    held = ", ".join(f"{name} {gib(device_bytes(x))}" for name, x in kept.items())
    lines = [
        markdown(header, rows),
        f"Held between programs: {held}. Shapes: prompts of {s.prompt} tokens and "
        f"{s.windows} windows, with an anchor {s.anchor}; {s.group} responses of {s.response}; "
        f"{s.rows} rows a process.",
    ]
    most_rows, group = plan.largest()
    lines.append(
        f"About {most_rows} rows would fit (rollout.rows, now {s.rows}), and a group of about "
        f"{group} (rollout.n, now {s.group}) at this micro-batch."
    )
    if most_rows > s.rows:
        more = plan.config.copy_and_resolve_references()
        with more.unlocked():
            more.rollout.rows = most_rows
        then = work.step_seconds(plan.limits(more, plan.mesh))
        lines[-1] += (
            f" With so many rows a step would take {then:.3g} s instead of {plan.step_seconds:.3g} "
            "s at the chips' limits, as weights are read once for all rows."
        )
    lines.append("It fits." if plan.fits else _advice(plan))
    return "\n\n".join(lines)


def _advice(plan: Plan) -> str:
    over = plan.over()
    told = "; ".join(f"{part} by {gib(size)} GiB" for part, size in over.items())
    lines = [f"It does not fit: {told}. By arithmetic, what would help most there:"]
    where = (plan.config, plan.counts, plan.topology, plan.mesh)
    for flag, saved, enough in memory.advice(*where, over):
        verdict = "enough by itself" if enough else "not enough by itself"
        lines.append(f"- `{flag}` saves {gib(saved)} GiB, {verdict}")
    if combined := memory.together(*where, over):
        lines.append(f"- `{' '.join(combined)}` together are enough")
    return "\n".join([*lines, "- a larger slice, or chips with more memory"])


def _time(plan: Plan) -> str:
    works = work.step(plan.config, plan.counts, plan.topology, plan.mesh, plan.lengths)
    limits = work.limits(works, plan.topology, plan.mesh)
    ideal = plan.step_seconds

    def row(name: str, w: work.Work, bound: str, seconds: float) -> list[str]:
        amounts = (w.flops, w.bytes, w.sent + w.summed)
        return [name, *(short(x) for x in amounts), bound, f"{seconds:.3g}"]

    rows = [
        row(name, w, max(limits[name], key=limits[name].get), max(limits[name].values()))
        for name, w in works.items()
    ]
    rows.append(row("step", sum(works.values(), work.Work()), "", ideal))
    tokens = work.sampled_tokens(plan.config, plan.lengths)
    judge = ""
    if plan.config.judge.repeats:
        judge = (
            " The judge's rollout, which follows the maternal one, and the parameters of a judge "
            "that is a model of its own are not in this plan."
        )
    expected = ideal / plan.share
    header = ["all devices", "FLOPs", "bytes", "sent", "bound by", "seconds"]
    return "\n\n".join(
        [
            markdown(header, rows),
            f"At the chips' limits a step takes {ideal:.3g} s, {tokens / ideal:.0f} sampled "
            f"tokens a second. At {plan.share:.0%} of them, as assumed (--share): "
            f"{expected:.3g} s, {tokens / expected:.0f} tokens a second, "
            f"{tokens / expected / plan.topology.size:.0f} a chip.",
            f"Assumed: prompts of {plan.lengths.prompt} tokens (--prompt_tokens), filled by "
            f"their image; responses of {plan.lengths.response} (--response_tokens), packed "
            f"into {work.packed_rows(plan.config, plan.lengths)} rows a prompt to be scored "
            "and trained on; rows always full; in each phase computing, memory and network "
            f"overlap.{judge}",
        ]
    )


def _meshes(plan: Plan) -> str:
    room = plan.topology.chip.memory
    rows = [
        [
            shape(each.mesh),
            f"{work.step_seconds(each.limits):.3g}",
            f"{work.step_seconds(each.limits, overlap=False):.3g}",
            *(gib(each.needs[part]) for part in ("sampling", "score", "update")),
            "yes" if max(each.needs.values()) <= room else "no",
        ]
        for each in plan.ranked
    ]
    header = ["mesh", "seconds", "no overlap", "sampling", "score", "update", "fits"]
    return "Meshes by arithmetic, GiB a device, the best first (--config.mesh):\n\n" + markdown(
        header, rows
    )
