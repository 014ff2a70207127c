"""Tells what a run needs on accelerators that are not there.

    python -m jaxevolve.plan --config=configs/csrs.py:SCALE --topology=v5p:2x2x1

Compiles the functions of the config for the topology, without it, and prints memory by function
against the chip's, the work of a step, and how long it takes at the chips' limits. Needs no weights
and no data. The exit code is 0 if the run fits, 1 if not.
"""

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
from absl import flags
from ml_collections import ConfigDict

from jaxevolve.models.qwen2_5_vl import init_params
from jaxevolve.planning import memory, table, work
from jaxevolve.planning.chips import GIB, Topology, parse_topology
from jaxevolve.planning.compiled import Compiler, Usage
from jaxevolve.planning.programs import Programs, device_bytes, model_config
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.mesh import make_mesh

# Which part of the memory estimate each function belongs to.
PARTS = {"prefill": "sampling", "anchor prefill": "sampling", "decode": "sampling"}


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "topology",
        None,
        "chips and how they are wired: v4, v5e, v5p or v6e:AxB[xC], 2xv5e:4x4 for two slices, "
        "a100, h100 or h200:N, h100:2x8 for two hosts, cpu:N for simulated devices of this machine",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "prompt_tokens",
        None,
        "expected tokens of a prompt; default half of data.max_prompt_tokens",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "response_tokens",
        None,
        "expected tokens of a response; default half of rollout.max_tokens",
        flag_values=values,
    )
    flags.DEFINE_float(
        "share",
        0.4,
        "part of the chips' limits that is reached, for the expected time",
        lower_bound=0.01,
        upper_bound=1.0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "cache",
        str(Path.home() / ".cache" / "jaxevolve" / "plan.json"),
        "keeps what the compilers have found: only what has changed is compiled again",
        flag_values=values,
    )
    flags.DEFINE_string("out", None, "also writes the table to this file", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """One plan, from the flags to the table."""
    if values.topology is None:
        raise UserError("--topology is missing: give one, such as --topology=v5p:2x2x1")
    topology = parse_topology(values.topology)
    # What is planned for is not there, and what is there is not planned for.
    jax.config.update("jax_platforms", "cpu")
    if topology.chip.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", topology.size)
    config = values.config
    lengths = work.Lengths(
        values.prompt_tokens or math.ceil(config.data.max_prompt_tokens / 2),
        values.response_tokens or math.ceil(config.rollout.max_tokens / 2),
    )
    plan = Plan(values.config_name, config, topology, lengths, values.share, Path(values.cache))
    text = plan.text()
    print(text)
    if values.out:
        Path(values.out).parent.mkdir(parents=True, exist_ok=True)
        Path(values.out).write_text(text + "\n", encoding="utf-8")
    if not plan.fits:
        raise SystemExit(1)


@dataclass
class Plan:
    """A config on a topology.

    Attributes:
        name: of the config.
        config: the run's config.
        topology: what it is planned for.
        lengths: that are expected.
        share: part of the chips' limits that is reached.
        cache: the file that keeps what compilers have found, or None.
    """

    name: str
    config: ConfigDict
    topology: Topology
    lengths: work.Lengths
    share: float
    cache: Path | None

    @cached_property
    def counts(self) -> work.Counts:
        """Sizes of the model."""
        shape = model_config(self.config.model.path)
        params = jax.eval_shape(lambda: init_params(shape, jax.random.key(0)))
        return work.Counts(shape, params)

    @cached_property
    def ranked(self) -> list[tuple[tuple[int, int, int], float, dict[str, float]]]:
        """Candidate meshes with the seconds of a step and the memory by part, the best first."""
        found = []
        for mesh in memory.candidates(self.config, self.counts, self.topology):
            works = work.step(self.config, self.counts, self.topology, mesh, self.lengths)
            seconds = sum(s for s, _ in work.seconds(works, self.topology, mesh).values())
            found.append(
                (mesh, seconds, memory.estimate(self.config, self.counts, self.topology, mesh))
            )
        room = self.topology.chip.memory

        def order(each: tuple) -> tuple:
            most = max(each[2].values())
            return (most > room, most if most > room else each[1])

        return sorted(found, key=order)

    @property
    def mesh(self) -> tuple[int, int, int]:
        """The best mesh, or the one that the config asks for."""
        return self.ranked[0][0]

    @cached_property
    def programs(self) -> Programs:
        """The functions on that mesh."""
        devices = make_mesh(self.mesh, self.topology.devices())
        return Programs(self.config, self.counts.shape, devices)

    @cached_property
    def usages(self) -> dict[str, Usage]:
        """What the compiler says of each function."""
        compiler = Compiler(self.topology, self.cache, lambda line: print(line, file=sys.stderr))
        found = {}
        for name, lower in self.programs.lowerings().items():
            found[name] = compiler.usage(f"{self.name} {name}", lower())
        return found

    @cached_property
    def beside(self) -> dict[str, int]:
        """Bytes on a device, by function, of what is there and no argument of it."""
        p, lora = self.programs, bool(self.config.lora.rank)
        state, sampler = device_bytes(p.state), device_bytes(p.sampler)
        policy, reference = device_bytes(p.policy), device_bytes(p.reference)
        if lora:  # the parameters that are adapted are the reference and in the policy
            reference = 0
        elif self.config.model.dtype == "float32":  # the policy is the state's parameters
            policy = 0
        kept, collecting = device_bytes((p.pool, p.decoding)), state + policy + reference
        return {
            "prefill": collecting + kept,
            "anchor prefill": collecting + kept,
            "decode": collecting,
            # Policy and reference are arguments.
            "score": state + sampler - (device_bytes(p.state.params) if not policy else 0),
            "update": 0 if lora or self.config.grpo.offload_reference else reference,
        }

    @property
    def needs(self) -> dict[str, int]:
        """Bytes on a device at the peak of each function, all that is there included."""
        return {name: usage.peak + self.beside[name] for name, usage in self.usages.items()}

    @property
    def fits(self) -> bool:
        """Whether no function needs more than there is."""
        return max(self.needs.values()) <= self.topology.chip.memory

    @cached_property
    def works(self) -> dict[str, work.Work]:
        """The work of a step by phase."""
        return work.step(self.config, self.counts, self.topology, self.mesh, self.lengths)

    @property
    def step_seconds(self) -> float:
        """At the chips' limits."""
        limits = work.seconds(self.works, self.topology, self.mesh)
        return sum(seconds for seconds, _ in limits.values())

    def largest(self) -> tuple[int, int]:
        """Rows, and responses of a prompt, that would about fit.

        What grows with them is taken to grow in proportion: caches and what decoding adds to them;
        in an update all but state, gradients and the copy that is computed with.
        """
        p, room = self.programs, self.topology.chip.memory
        fixed = self.beside["decode"] + device_bytes(p.sampler)
        rows = p.sizes.rows * (room - fixed) / (self.needs["decode"] - fixed)
        # Gradients are as large as the parameters: what they are summed in, and the newest.
        fixed = self.beside["update"] + device_bytes((p.state, p.policy, p.state.params))
        fixed += device_bytes(p.state.params)
        group = p.sizes.group * (room - fixed) / max(self.needs["update"] - fixed, 1)
        return max(int(rows), 0), max(int(group), 0)

    def text(self) -> str:
        """The plan in Markdown."""
        return "\n\n".join([self._title(), self._memory(), self._time(), self._meshes()])

    def _title(self) -> str:
        chip = self.topology.chip
        return (
            f"## {self.name} on {self.topology.text}\n\n"
            f"{self.config.model.path}, {self.counts.all / 1e9:.2f} billion parameters, on "
            f"{self.topology.size} x {chip.name} with {chip.memory / GIB:.2f} GiB to use each; "
            f"mesh {table.shape(self.mesh)} (data, fsdp, tensor)."
        )

    def _memory(self) -> str:
        room, rows = self.topology.chip.memory, []
        for name, usage in self.usages.items():
            need = self.needs[name]
            verdict = "yes" if need <= room else f"over by {table.gib(need - room)}"
            if usage.refused:
                verdict += ", refused"
            rows.append(
                [
                    name,
                    table.gib(usage.arguments),
                    table.gib(usage.peak),
                    table.gib(self.beside[name]),
                    table.gib(need),
                    f"{need / room:.0%}",
                    verdict,
                ]
            )
        header = ["GiB a device", "arguments", "peak", "beside it", "in all", "of chip", "fits"]
        p, s = self.programs, self.programs.sizes
        kept = {
            "train state": p.state,
            "copy to compute with": p.policy,
            "copy to sample with": p.sampler,
            "reference": p.reference,
            "prompts read": p.pool,
            "rows": p.decoding,
        }
        held = ", ".join(f"{name} {table.gib(device_bytes(x))}" for name, x in kept.items())
        lines = [
            table.markdown(header, rows),
            f"Held between programs: {held}. Shapes: prompts of {s.prompt} tokens and "
            f"{s.windows} windows, with an anchor {s.anchor}; {s.group} responses of {s.response}; "
            f"{s.rows} rows a process.",
        ]
        if self.fits:
            most_rows, group = self.largest()
            lines.append(
                f"It fits. About {most_rows} rows would (rollout.rows, now {s.rows}), and a group "
                f"of about {group} (rollout.n, now {s.group}) at this micro-batch."
            )
        else:
            lines.append(self._advice())
        return "\n\n".join(lines)

    def _advice(self) -> str:
        room = self.topology.chip.memory
        over: dict[str, float] = {}
        for name, need in self.needs.items():
            part = PARTS.get(name, name)
            if need > room:
                over[part] = max(over.get(part, 0), need - room)
        told = "; ".join(f"{part} by {table.gib(size)} GiB" for part, size in over.items())
        lines = [f"It does not fit: {told}. By arithmetic, what would help most there:"]
        for flag, saved, enough in memory.advice(
            self.config, self.counts, self.topology, self.mesh, over
        ):
            verdict = "enough by itself" if enough else "not enough by itself"
            lines.append(f"- `{flag}` saves {table.gib(saved)} GiB, {verdict}")
        return "\n".join([*lines, "- a larger slice, or chips with more memory"])

    def _time(self) -> str:
        limits = work.seconds(self.works, self.topology, self.mesh)
        rows = [
            [
                name,
                *(table.short(x) for x in (w.flops, w.bytes, w.sent + w.summed)),
                bound,
                f"{s:.1f}",
            ]
            for (name, w), (s, bound) in zip(self.works.items(), limits.values())
        ]
        total = sum(self.works.values(), work.Work())
        ideal = self.step_seconds
        rows.append(
            [
                "step",
                *(table.short(x) for x in (total.flops, total.bytes, total.sent + total.summed)),
                "",
                f"{ideal:.1f}",
            ]
        )
        tokens = work.sampled_tokens(self.config, self.lengths)
        expected = ideal / self.share
        header = ["all devices", "FLOPs", "bytes", "sent", "bound by", "seconds"]
        return "\n\n".join(
            [
                table.markdown(header, rows),
                f"At the chips' limits a step takes {ideal:.0f} s, {tokens / ideal:.0f} sampled "
                f"tokens a second. At {self.share:.0%} of them, as assumed (--share): "
                f"{expected:.0f} s, {tokens / expected:.0f} tokens a second, "
                f"{tokens / expected / self.topology.size:.0f} a chip.",
                f"Assumed: prompts of {self.lengths.prompt} tokens (--prompt_tokens), filled by "
                f"their image; responses of {self.lengths.response} (--response_tokens), packed "
                f"into {work.packed_rows(self.config, self.lengths)} rows a prompt to be scored "
                "and trained on; rows always full; in each phase computing, memory and network "
                "overlap.",
            ]
        )

    def _meshes(self) -> str:
        room = self.topology.chip.memory
        rows = [
            [
                table.shape(mesh),
                f"{seconds:.1f}",
                *(table.gib(need[part]) for part in ("sampling", "score", "update")),
                "yes" if max(need.values()) <= room else "no",
            ]
            for mesh, seconds, need in self.ranked
        ]
        header = ["mesh", "seconds", "sampling", "score", "update", "fits"]
        return (
            "Meshes by arithmetic, GiB a device, the best first (--config.mesh):\n\n"
            + table.markdown(header, rows)
        )


if __name__ == "__main__":
    cli.run(main, define, __doc__, config=True)
