"""A config on a topology: the mesh, what the compiler says, whether it fits, how long it takes."""

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
from ml_collections import ConfigDict

from jaxevolve.models.qwen2_5_vl import init_params
from jaxevolve.planning import memory, work
from jaxevolve.planning.chips import Topology
from jaxevolve.planning.compiled import Compiler, Usage
from jaxevolve.planning.programs import Programs, device_bytes
from jaxevolve.planning.shapes import model_config
from jaxevolve.runtime.mesh import make_mesh

# Which part of the memory estimate each function belongs to, where it is not one of its own.
PARTS = dict.fromkeys(("prefill", "anchor prefill", "branch", "decode"), "sampling")
PARTS |= dict.fromkeys(("gradients", "optimizer"), "update")
Limits = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Candidate:
    """A mesh (data, fsdp, tensor), a step's `work.limits` and the `memory.estimate` on it."""

    mesh: tuple[int, int, int]
    limits: Limits
    needs: dict[str, float]


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
    def ranked(self) -> list[Candidate]:
        """Candidate meshes, or the one that is asked for; the best first, the fastest that fits.

        Where the chips' limits make a difference below some two in a hundred, it is the fastest if
        nothing overlapped; and where that does not tell either, the one that needs least memory.
        """
        if self.config.mesh is None:
            meshes = memory.candidates(self.config, self.counts, self.topology)
        else:
            asked = make_mesh(self.config.mesh, self.topology.devices())
            meshes = [tuple(asked.shape.values())]
        found = []
        for mesh in meshes:
            need = memory.estimate(self.config, self.counts, self.topology, mesh)
            found.append(Candidate(mesh, self.limits(self.config, mesh), need))
        room = self.topology.chip.memory

        def order(each: Candidate) -> tuple[float, ...]:
            most = max(each.needs.values())
            seconds = (work.step_seconds(each.limits, overlap) for overlap in (True, False))
            return max(most - room, 0), *(round(50 * math.log(s)) for s in seconds), most

        return sorted(found, key=order)

    def limits(self, config: ConfigDict, mesh: tuple[int, int, int]) -> Limits:
        """Seconds of a step by phase and limit."""
        works = work.step(config, self.counts, self.topology, mesh, self.lengths)
        return work.limits(works, self.topology, mesh)

    @property
    def mesh(self) -> tuple[int, int, int]:
        """The best mesh, or the one that the config asks for."""
        return self.ranked[0].mesh

    @cached_property
    def programs(self) -> Programs:
        """The functions on that mesh."""
        devices = make_mesh(self.mesh, self.topology.devices())
        return Programs(self.config, self.counts.shape, devices, self.topology.host.devices())

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
        state, reference = device_bytes(p.state), device_bytes(p.reference)
        policy, sampler = device_bytes(p.policy), device_bytes(p.sampler)
        if policy == sampler:  # on a mesh without fsdp they are the same arrays
            sampler = 0
        copy, given = policy, 0
        if lora:  # the parameters that are adapted are the reference and in the policy
            reference = 0
        elif self.config.model.dtype == "float32":  # the policy is the state's parameters
            copy, given = 0, policy
        frozen = 0 if lora or self.config.grpo.offload_reference else reference
        kept, collecting = device_bytes((p.pool, p.decoding)), state + copy + reference
        if not sampler:  # what is sampled with is an argument of sampling
            collecting -= policy if copy else given
        return {
            "prefill": collecting + kept,
            "anchor prefill": collecting + kept,
            "branch": collecting + (sampler or policy),
            "decode": collecting,
            # Policy and reference are arguments.
            "score": state - given + sampler,
            "gradients": device_bytes(p.state.opt_state) + frozen,
            "optimizer": frozen,
        }

    @property
    def needs(self) -> dict[str, int]:
        """Bytes on a device at the peak of each function, all that is there included."""
        return {name: usage.peak + self.beside[name] for name, usage in self.usages.items()}

    @property
    def fits(self) -> bool:
        """Whether no function needs more than there is."""
        return max(self.needs.values()) <= self.topology.chip.memory

    @property
    def step_seconds(self) -> float:
        """Of a step, at the chips' limits."""
        return work.step_seconds(self.ranked[0].limits)

    def largest(self) -> tuple[int, int]:
        """Rows, and responses of a prompt, that would about fit.

        What grows with them is taken to grow in proportion: caches and what decoding adds to them;
        for gradients all but the state, themselves and the copy that is computed with.
        """
        p, room = self.programs, self.topology.chip.memory
        fixed = self.beside["decode"] + device_bytes(p.sampler)
        rows = p.sizes.rows * (room - fixed) / (self.needs["decode"] - fixed)
        # Gradients are as large as the parameters: what they are summed in, and the newest.
        params = device_bytes(p.state.params)
        fixed = self.beside["gradients"] + device_bytes(p.policy) + 3 * params
        group = p.sizes.group * (room - fixed) / max(self.needs["gradients"] - fixed, 1)
        return max(int(rows), 0), max(int(group), 0)

    def over(self) -> dict[str, int]:
        """Bytes that are missing, by part of the memory estimate."""
        found: dict[str, int] = {}
        for name, need in self.needs.items():
            part, missing = PARTS.get(name, name), need - self.topology.chip.memory
            if missing > 0:
                found[part] = max(found.get(part, 0), missing)
        return found


def assumed_lengths(config: ConfigDict) -> work.Lengths:
    """Half of the limits."""
    return work.Lengths(
        math.ceil(config.data.max_prompt_tokens / 2), math.ceil(config.rollout.max_tokens / 2)
    )
