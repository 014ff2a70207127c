"""Accelerators that are not there: what they can do by their makers' figures, and JAX devices.

A topology is written as its maker writes it: `v5p:2x2x1` (chips along each axis of the slice),
`2xv5e:4x4` (two such slices), `h100:8` (one host), `h100:2x8` (two hosts of eight). `cpu:N` is N
simulated devices of this machine, which need nothing installed.
"""

import math
import os
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec

import jax
import psutil

from jaxevolve.runtime.errors import UserError, nearest

GIB = 2**30
GB = 1e9


@dataclass(frozen=True)
class Chip:
    """One device.

    Attributes:
        name: as a topology names it.
        platform: "tpu", "gpu" or "cpu".
        memory: bytes that a program may use.
        flops: dense multiply-add operations a second, times two, in bfloat16.
        bandwidth: bytes a second from its memory.
        link: bytes a second that leave it in one direction: by one link of a TPU's torus, or by all
            of a GPU's NVLink.
        network: bytes a second that leave it in one direction to another slice or host.
        axes: axes of a TPU's torus, 0 for others.
        wrap: a slice's axis is a ring where its length is a multiple of this.
    """

    name: str
    platform: str
    memory: int
    flops: float
    bandwidth: float
    link: float = math.inf
    network: float = math.inf
    axes: int = 0
    wrap: int = 1


# TPUs: Google Cloud's page of each version; its figure for ICI, one direction, over the ports of a
# chip, and its figure for the data center network over the chips of a host. Memory is what libtpu
# 0.0.52 says is available when a program is too large.
# GPUs: NVIDIA's data sheets of the SXM boards, NVLink in one direction; 400 (H100, H200) and 200
# (A100) Gbit/s of InfiniBand a GPU, as in DGX systems. Memory is what the driver reports on such a
# board less 5 % for the CUDA context, NCCL's buffers and fragments.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", int(30.75 * GIB), 275e12, 1228e9, 50e9, 6.25e9, 3, 4),
        Chip("v5e", "tpu", int(15.75 * GIB), 197e12, 819e9, 50e9, 3.125e9, 2, 16),
        Chip("v5p", "tpu", int(95.73 * GIB), 459e12, 2765e9, 100e9, 6.25e9, 3, 4),
        Chip("v6e", "tpu", int(31.24 * GIB), 918e12, 1638e9, 100e9, 12.5e9, 2, 16),
        Chip("a100", "gpu", int(0.95 * 79.25 * GIB), 312e12, 2039e9, 300e9, 25e9),
        Chip("h100", "gpu", int(0.95 * 79.18 * GIB), 989e12, 3350e9, 450e9, 50e9),
        Chip("h200", "gpu", int(0.95 * 139.8 * GIB), 989e12, 4800e9, 450e9, 50e9),
    )
}

# What XLA's GPU compiler asks of a device (GpuTargetConfigProto in text form), from NVIDIA's tuning
# guides. The fields of both generations are the same but for these.
_COMMON_GPU = """
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
"""
_HOPPER = """
  core_count: 132 clock_rate_ghz: 1.98 l2_cache_size: 52428800
  shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
"""
_AMPERE = """
  core_count: 108 clock_rate_ghz: 1.41 l2_cache_size: 41943040
  shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912
  cuda_compute_capability { major: 8 }
"""


@dataclass(frozen=True)
class Topology:
    """A number of equal chips and how they are wired.

    Attributes:
        text: as it was given.
        chip: what there is of each.
        shape: chips along each axis of a TPU slice, or (chips of a host,).
        groups: slices or hosts, between which only the network runs.
    """

    text: str
    chip: Chip
    shape: tuple[int, ...]
    groups: int

    @property
    def size(self) -> int:
        """Chips in all."""
        return self.groups * math.prod(self.shape)

    @property
    def processes(self) -> int:
        """Processes of a run: one a host; of a TPU slice's chips each has 2 x 2."""
        return max(self.size // 4, 1) if self.chip.axes else self.groups

    @property
    def host(self) -> "Topology":
        """What a process has by itself, as a topology: TPU's compiler takes no part of a slice."""
        shape = (2, 2, 1)[: self.chip.axes] if self.chip.axes and self.processes > 1 else self.shape
        return replace(self, shape=shape, groups=1)

    @property
    def egress(self) -> float:
        """Bytes a second that each chip sends within its slice or host while all of them do.

        Along an axis of a TPU's slice a chip sends to both sides if the axis is a ring; otherwise
        the chip at its end has one neighbor and sets the pace.
        """
        if not self.chip.axes:
            return self.chip.link
        sides = [0 if n == 1 else 2 if n % self.chip.wrap == 0 else 1 for n in self.shape]
        return self.chip.link * sum(sides) if sum(sides) else math.inf

    def devices(self) -> list[jax.Device]:
        """JAX devices to compile for.

        Raises:
            UserError: what compiles for them is not installed, or there is no such slice.
        """
        from jax.experimental import topologies

        if self.chip.platform == "cpu":
            here = jax.devices("cpu")
            if len(here) < self.size:
                raise UserError(
                    f"--topology={self.text} asks for {self.size} CPU devices and {len(here)} are "
                    "there; start the command anew, it simulates them only before JAX runs"
                )
            return here[: self.size]
        package = "libtpu" if self.chip.platform == "tpu" else "jax_cuda12_plugin"
        if find_spec(package) is None:
            raise UserError(
                f"--topology={self.text} needs the compiler of {package}, which is not installed; "
                'run python -m pip install -c constraints.txt -e ".[plan]"'
            )
        dims = "x".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            options = {
                "target_config": gpu_target(self.chip),
                "topology": f"1x{self.groups}x{dims}",
            }
            return topologies.get_topology_desc(platform="cuda", **options).devices
        options = {"topology_name": f"{self.chip.name}:{dims}"}
        if self.groups > 1:
            options["num_slices"] = self.groups
        if self.chip.name == "v4":  # by default a program would see a chip's two cores apart
            options["chip_config_name"] = "megacore"
        # libtpu lets one process in, since a TPU serves one; here there is none to serve.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        try:
            return topologies.get_topology_desc(platform="tpu", **options).devices
        except jax.errors.JaxRuntimeError as error:
            raise UserError(
                f"--topology={self.text} is no slice that can be rented: {error}".splitlines()[0]
            ) from error


def parse_topology(text: str) -> Topology:
    """Reads a topology.

    Args:
        text: see the module.

    Raises:
        UserError: it cannot be read, or names a chip that is not known.
    """
    match = re.fullmatch(r"(?:(\d+)x)?([a-z]\w*):(\d+(?:x\d+)*)", text)
    if not match:
        raise UserError(
            f"--topology={text} cannot be read; write one such as v5p:2x2x1, 2xv5e:4x4, h100:8 or "
            "h100:2x8"
        )
    groups, name, dims = int(match[1] or 1), match[2], tuple(map(int, match[3].split("x")))
    if name != "cpu" and name not in CHIPS:
        near = nearest(name, CHIPS)
        advice = f"did you mean {near}?" if near else f"there is {', '.join(CHIPS)} and cpu"
        raise UserError(f"--topology={text}: chip {name!r} is unknown; {advice}")
    chip = CHIPS.get(name) or Chip("cpu", "cpu", psutil.virtual_memory().total, 1e11, 15e9)
    wanted = chip.axes or (1 if chip.platform == "cpu" else None)
    if min(*dims, groups) < 1 or len(dims) > 3 or (wanted and len(dims) != wanted):
        raise UserError(
            f"--topology={text}: {name} takes {wanted or '1 or 2'} numbers after the colon, all "
            "at least 1"
        )
    if chip.platform != "tpu":
        if match[1] or len(dims) > 2:
            raise UserError(
                f"--topology={text}: hosts come after the colon, such as {name}:2x8 for two hosts "
                "of eight"
            )
        groups, dims = (dims[0] if len(dims) == 2 else 1), dims[-1:]
    return Topology(text, chip, dims, groups)


def gpu_target(chip: Chip) -> str:
    """A GPU in the words of XLA's compiler."""
    generation = _AMPERE if chip.name == "a100" else _HOPPER
    return (
        f"gpu_device_info {{ {_COMMON_GPU} {generation} "
        f"device_memory_size: {chip.memory} memory_bandwidth: {int(chip.bandwidth)} }}\n"
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } '
        f'device_description_str: "NVIDIA {chip.name.upper()}"\n'
    )
