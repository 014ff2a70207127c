"""What does the compiler say of a program? Its memory on one device, kept from run to run."""

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax

from jaxevolve.planning.chips import GIB, Topology

_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12")

# Without a device there is no autotuning, and XLA's untuned Triton products do not take every
# shape; cuBLAS does.
_OPTIONS = {"gpu": {"xla_gpu_enable_triton_gemm": False}}


@dataclass(frozen=True)
class Usage:
    """Bytes of a program on one device.

    Attributes:
        arguments: what it is given.
        outputs: what it returns, less what it returns in the place of arguments.
        peak: the most that is there at once, arguments and outputs included. Where the compiler
            refuses a program it is what it says would be needed.
        refused: whether the compiler refused it, as that of TPUs does when memory is too small.
    """

    arguments: int
    outputs: int
    peak: int
    refused: bool = False


class Compiler:
    """Compiles for one topology; what it has found stays in a file.

    Args:
        topology: what is compiled for.
        cache: a JSON file, made where it does not exist, by the hash of a program; None: no file.
        tell: called with a line before a program is compiled.
    """

    def __init__(self, topology: Topology, cache: Path | None, tell: Callable[[str], None]) -> None:
        self._topology, self._cache, self._tell = topology, cache, tell

    def usage(self, name: str, lowered: jax.stages.Lowered) -> Usage:
        """The memory of a program; `name` is what a person knows it by."""
        key = self._key(lowered.as_text())
        if (kept := self._read().get(key)) is not None:
            return Usage(**kept["usage"])
        self._tell(f"compiling {name} for {self._topology.text} ...")
        usage = _compile(lowered, self._topology.chip.platform)
        if self._cache is not None:
            # Read anew: another process may have written meanwhile.
            entry = {"program": name, "topology": self._topology.text, "usage": asdict(usage)}
            entries = self._read() | {key: entry}
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            self._cache.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
        return usage

    def _key(self, text: str) -> str:
        versions = []
        for package in _COMPILERS:
            try:
                versions.append(importlib.metadata.version(package))
            except importlib.metadata.PackageNotFoundError:
                versions.append("none")
        options = _OPTIONS.get(self._topology.chip.platform, {})
        whole = json.dumps([text, self._topology.text, versions, options])
        return hashlib.sha256(whole.encode()).hexdigest()[:24]

    def _read(self) -> dict[str, dict]:
        if self._cache is None or not self._cache.exists():
            return {}
        return json.loads(self._cache.read_text(encoding="utf-8"))


def _compile(lowered: jax.stages.Lowered, platform: str) -> Usage:
    try:
        found = lowered.compile(compiler_options=_OPTIONS.get(platform)).memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Usage(0, 0, _needed(str(error)), refused=True)
    return Usage(
        arguments=found.argument_size_in_bytes,
        outputs=found.output_size_in_bytes - found.alias_size_in_bytes,
        peak=found.peak_memory_in_bytes,
    )


def _needed(message: str) -> int:
    """Bytes that the compiler says a refused program needs: the largest size that it names."""
    units = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
    sizes = re.findall(r"\b(\d+(?:\.\d+)?)([KMGT])\b", message)
    return max((int(float(size) * units[unit]) for size, unit in sizes), default=0)
