"""What does a run leave behind to be looked at? All of the work directory but checkpoints."""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import psutil
from tensorboardX import SummaryWriter
from tqdm import tqdm

from jaxevolve.runtime.distributed import is_first

_PACKAGES = (
    "jaxevolve",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "transformers",
    "tokenizers",
    "numpy",
    "pillow",
)


class MetricsWriter:
    """Appends one object a step to metrics.jsonl and writes the same numbers as TensorBoard events.

    A line has left the process before `write` returns. Lines of steps after `resumed_step`, which a
    run that was killed had written beyond its last checkpoint, are dropped from metrics.jsonl and
    eval.jsonl.
    """

    def __init__(self, workdir: str | Path, resumed_step: int = 0) -> None:
        workdir = Path(workdir)
        for name in ("metrics.jsonl", "eval.jsonl"):
            drop_after(workdir / name, resumed_step)
        self._file = (workdir / "metrics.jsonl").open("a", encoding="utf-8")
        self._events = SummaryWriter(
            str(workdir / "events"), purge_step=resumed_step + 1 if resumed_step else None
        )

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes one step.

        Args:
            step: number of the step, from 1.
            values: {"reward/mean": 0.4, ...}; Python integers stay integers, anything else becomes
                a float, and what is not finite becomes null (JSON has no NaN) and no event.
        """
        numbers = {key: _number(value) for key, value in values.items()}
        append_jsonl(self._file, {"step": step, **numbers})
        for key, value in numbers.items():
            if value is not None:
                self._events.add_scalar(key, value, step)
        self._events.flush()

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        self._events.close()


def append_jsonl(file: Any, value: Mapping[str, Any]) -> None:
    """Writes one object as one line and flushes it to the operating system."""
    file.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    file.flush()


def append_evaluation(workdir: str | Path, values: Mapping[str, Any]) -> None:
    """Appends one evaluation, an object with its step, to eval.jsonl."""
    with (Path(workdir) / "eval.jsonl").open("a", encoding="utf-8") as file:
        append_jsonl(file, values)


def write_samples(workdir: str | Path, step: int, samples: Iterable[Mapping[str, Any]]) -> None:
    """Writes samples/STEP.jsonl, one object a prompt with all its responses."""
    folder = Path(workdir) / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{step}.jsonl").open("w", encoding="utf-8") as file:
        for sample in samples:
            append_jsonl(file, sample)


def drop_after(path: str | Path, step: int) -> None:
    """Drops the lines of a JSONL file whose "step" is greater, and a last line that was cut short.

    The file is written anew beside and renamed, so a kill leaves the old one or the new one.
    """
    path = Path(path)
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        with contextlib.suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    beside = path.with_suffix(".rewritten")
    beside.write_text("".join(kept), encoding="utf-8")
    os.replace(beside, path)


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file but a last one that was cut short; none if there is no file."""
    path, objects = Path(path), []
    if path.exists():
        # Not splitlines: a response may hold line ends of Unicode, which JSON leaves as they are.
        for line in path.read_text(encoding="utf-8").split("\n"):
            with contextlib.suppress(json.JSONDecodeError):
                objects.append(json.loads(line))
    return objects


def write_config(workdir: str | Path, config: Any) -> dict[str, tuple[Any, Any]]:
    """Writes config.json: the effective config, the versions, the seed and the git commit, if any.

    Args:
        workdir: the run's folder, which exists.
        config: the ConfigDict after all flags.

    Returns:
        {"optimizer.lr": (old, new)}: what differs from the config.json that an earlier start of
        this run left here.
    """
    path = Path(workdir) / "config.json"
    values = json.loads(json.dumps(config.to_dict()))
    before = {}
    if path.exists():
        before = flatten(json.loads(path.read_text(encoding="utf-8"))["config"])
    now = flatten(values)
    changed = {
        key: (before.get(key), now.get(key))
        for key in before.keys() | now.keys()
        if before and before.get(key) != now.get(key)
    }
    record = {
        "config": values,
        "seed": values.get("seed"),
        "command": sys.argv,
        "versions": {"python": platform.python_version(), **_versions()},
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "processes": jax.process_count(),
        "git_commit": _git_commit(),
    }
    beside = path.with_suffix(".rewritten")
    beside.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, path)
    return changed


def show_config(config: Any) -> str:
    """The settings for people to read, a line a section."""
    lines = {"": []}
    for key, value in flatten(config.to_dict()).items():
        section, _, name = key.rpartition(".")
        lines.setdefault(section, []).append(f"{name}={value}")
    return "\n".join(f"{section or 'run':<11} {' '.join(told)}" for section, told in lines.items())


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


class CompileCounter:
    """Counts the programs that XLA has built, or loaded from its persistent cache, from now on."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_: Any) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


class PhaseTimer:
    """Adds up wall-clock seconds by phase.

    with timer("rollout"): ...
    timer.take()   # {"time/rollout": 1.25}, and starts again at nothing

    The caller's block must wait for its device results, or the time shows up in a later phase.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[f"time/{phase}"] += time.perf_counter() - start

    def add(self, phase: str, seconds: float) -> None:
        """Adds seconds that were measured elsewhere."""
        self._seconds[f"time/{phase}"] += seconds

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken


def host_rss_mb() -> float:
    """Resident memory of this process in MiB."""
    return psutil.Process().memory_info().rss / 2**20


def progress_line(steps: int, resumed_step: int = 0) -> tqdm:
    """A live line of progress that starts where the run was resumed.

    Update it by `update(1)` and `set_postfix`. Where the output is no terminal it writes a line at
    most every ten seconds.
    """
    return tqdm(
        total=steps,
        initial=resumed_step,
        unit="step",
        dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 10,
        disable=not is_first(),
    )


def _number(value: Any) -> int | float | None:
    if isinstance(value, int):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else None


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _git_commit() -> str | None:
    """The commit of this very code, with "-dirty" for changed files; None outside a checkout."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here.parent), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        dirty = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return None
