"""Runs what is missing: ordinary runs of jaxevolve.train, some at a time, each in its own folder.

DIR/runs/ARM-SEED/     the run, as anyone could have made it
DIR/logs/ARM-SEED.log  what its last start said
DIR/logs/ARM-SEED.json CPU-seconds of all its starts together
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from comparison.arms import ROOT, Arm
from jaxevolve.report import by_step
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import flatten, read_jsonl

# Settings that say where and how fast, not what is computed. More steps continue a run.
_HARMLESS = (
    "checkpoint.",
    "rollout.rows",
    "rollout.chunk",
    "rollout.tensor",
    "grpo.micro_batch",
    "grpo.remat",
    "grpo.offload_reference",
    "mesh",
    "model.attention",
)
_EMBEDDED = ("jaxevolve", "assets", "geo_tiny")
LOOK = 1.0  # seconds between two looks at what runs


@dataclass(frozen=True)
class Run:
    """One arm with one seed.

    Attributes:
        arm: what is trained.
        seed: of the run.
        out: DIR of the comparison.
        scale: of the recipe.
        overrides: command-line words for all arms, such as "--config.steps=40".
    """

    arm: Arm
    seed: int
    out: Path
    scale: str
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """ARM-SEED."""
        return f"{self.arm.folder}-{self.seed}"

    @property
    def workdir(self) -> Path:
        """Where the run goes."""
        return self.out / "runs" / self.name

    @property
    def log(self) -> Path:
        """Where what its last start said is."""
        return self.out / "logs" / f"{self.name}.log"

    @property
    def words(self) -> list[str]:
        """What follows "python -m jaxevolve.train"."""
        return [
            f"--config={self.arm.config(self.scale)}",
            *(f"--config.{override}" for override in self.arm.overrides),
            *self.overrides,
            f"--config.seed={self.seed}",
            f"--workdir={self.workdir}",
        ]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The effective settings, flat.

        Raises:
            UserError: the recipe or a setting is unknown, or a value is out of its limits.
        """
        argv = ["compare", *self.words[:-1]]
        return flatten(cli.parse(argv, lambda _: None, config=True).config.to_dict())

    @property
    def metrics(self) -> list[Any]:
        """A mapping a finished step, steps rising."""
        return by_step(read_jsonl(self.workdir / "metrics.jsonl"))

    @property
    def evaluations(self) -> list[Any]:
        """A mapping an evaluation, steps rising."""
        return by_step(read_jsonl(self.workdir / "eval.jsonl"))

    @property
    def finished(self) -> bool:
        """Whether all of its steps, its last evaluation and its report are there."""
        if not (self.workdir / "report.html").is_file():
            return False
        metrics, evaluations = self.metrics, self.evaluations
        if not metrics or not evaluations or metrics[-1]["step"] < (self.config["steps"] or 0):
            return False
        return evaluations[-1]["step"] == metrics[-1]["step"]

    @property
    def cpu_seconds(self) -> float | None:
        """CPU-seconds of all its starts; None for a run that was made elsewhere."""
        file = self.log.with_suffix(".json")
        return json.loads(file.read_text())["cpu_seconds"] if file.is_file() else None

    @property
    def commit(self) -> str | None:
        """The code that it was last started with, if that is known."""
        file = self.workdir / "config.json"
        return json.loads(file.read_text(encoding="utf-8")).get("git_commit")

    def check(self) -> None:
        """Refuses settings that are wrong, and a run that was made with others.

        Raises:
            UserError: names the setting.
        """
        wanted = json.loads(json.dumps(self.config))
        file = self.workdir / "config.json"
        if not file.is_file():
            return
        made = flatten(json.loads(file.read_text(encoding="utf-8"))["config"])
        # A setting that the run does not know was added later, with what was done before.
        defaults = flatten(cli.load_config(self.arm.config(self.scale)).to_dict())
        for key, new in wanted.items():
            old = made.get(key, json.loads(json.dumps(defaults[key])))
            if key.startswith(_HARMLESS) or old == new or _both_embedded(old, new):
                continue
            if key == "steps" and old and new and new > old:
                continue
            raise UserError(
                f"{self.workdir} was made with {key}={old} and not {new}; give another --out, or "
                "take that folder away"
            )


def _both_embedded(*paths: Any) -> bool:
    """Whether all are the embedded model, of whatever checkout."""
    return all(isinstance(p, str) and Path(p).parts[-3:] == _EMBEDDED for p in paths)


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keeps a second command out of the same folder, and ends in order on SIGTERM.

    Raises:
        UserError: another one is at work, or the folder cannot be written.
    """
    try:
        for folder in ("runs", "logs"):
            (out / folder).mkdir(parents=True, exist_ok=True)
        lock = (out / "logs" / "lock").open("w")
    except OSError as error:
        raise UserError(f"--out={out} cannot be used ({error.strerror}); give another") from error
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another command is at work in {out}; wait for it") from None
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def run_missing(
    runs: Sequence[Run],
    jobs: int,
    done: Callable[[], object],
    program: Sequence[str] = (sys.executable, "-m", "jaxevolve.train"),
) -> list[str]:
    """Runs all that are not finished.

    Where this is ended, the runs at work are asked to save and are waited for.

    Args:
        runs: with checked settings.
        jobs: how many at a time.
        done: called whenever one has finished.
        program: what trains.

    Returns:
        A sentence for each run that failed; the others go on.
    """
    waiting = deque(run for run in runs if not run.finished)
    failed: list[str] = []
    if not waiting:
        return failed
    length = {run.name: run.config["steps"] or 1 for run in waiting}
    reached = {run.name: _reached(run, length[run.name]) for run in waiting}
    live = sys.stderr.isatty()
    bar = tqdm(
        total=sum(length.values()),
        initial=sum(reached.values()),
        unit="step",
        dynamic_ncols=True,
        desc=f"{len(waiting)} of {len(runs)} runs",
    )
    working: dict[str, tuple[Run, subprocess.Popen[bytes]]] = {}
    told = time.monotonic()
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                run = waiting.popleft()
                working[run.name] = run, _start(run, program)
            time.sleep(LOOK)
            for name, (run, process) in list(working.items()):
                if not _ended(run, process):
                    reached[name] = _reached(run, length[name])
                    continue
                del working[name]
                reached[name] = length[name]
                if process.returncode or not run.finished:
                    failed.append(_failure(run, process.returncode))
                    tqdm.write(failed[-1], file=sys.stderr)
                else:
                    done()
            if live or time.monotonic() - told > 60 or not working:
                told = time.monotonic()
                bar.n = sum(reached.values())
                bar.set_postfix_str(", ".join(f"{n} at {reached[n]}" for n in working), False)
                bar.refresh()
    finally:
        for _, process in working.values():
            process.terminate()
        for run, process in working.values():
            while not _ended(run, process):
                time.sleep(0.1)
        bar.close()
    return failed


def _start(run: Run, program: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts training; all share one compilation cache."""
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str((run.out / "xla_cache").resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        **os.environ,
    }
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with run.log.open("wb") as log:
        return subprocess.Popen(
            [*program, *run.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _ended(run: Run, process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended; what it took is then added to what its run has taken."""
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    if not pid:
        return False
    process.returncode = os.waitstatus_to_exitcode(status)
    spent = (run.cpu_seconds or 0.0) + usage.ru_utime + usage.ru_stime
    run.log.with_suffix(".json").write_text(json.dumps({"cpu_seconds": spent}) + "\n")
    return True


def _reached(run: Run, length: int) -> int:
    """Finished steps, at most `length`."""
    rows = read_jsonl(run.workdir / "metrics.jsonl")
    return min(rows[-1]["step"], length) if rows else 0


def _failure(run: Run, code: int) -> str:
    """One sentence: which run, why as far as it said, and where to read on."""
    said = run.log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    why = errors[-1] if errors else f"exit code {code}" if code else "it stopped early"
    return f"{run.name} failed: {why} (see {run.log})"
