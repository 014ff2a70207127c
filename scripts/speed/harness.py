"""How two programs are compared on a machine that others use too.

Both sides live in processes of their own, pinned to one core and one thread; only one works at a
time. A pair is one run of each, one right after the other; which comes first alternates. What
counts is the ratio of their CPU-seconds within a pair. A run whose CPU-seconds are far from its
wall time was disturbed, and its pair is made again.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
TOLERANCE = 0.1  # of cpu/wall around 1
PACKAGES = ("jaxevolve", "jax", "torch", "transformers", "trl", "google-tunix")


class Child:
    """A side in a process of its own, see `child`."""

    def __init__(self, kind: str, core: int | None, **arguments: Any) -> None:
        """Starts it.

        Args:
            kind: "module:Class".
            core: the core that it and its threads stay on; None leaves it all cores and devices.
            **arguments: of the class.
        """
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_OFFLINE": "1",
        }
        if core is not None:
            environment |= ONE_CORE
        # What another run has compiled would make compilation look free.
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "speed.child", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        self.kind = kind
        self.loading = self.call("__init__", **arguments)["since_start"]

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Calls a method and waits for its answer."""
        self.process.stdin.write(json.dumps({"call": method, "with": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process has ended; was memory short?"}
        if "error" in answer:
            raise RuntimeError(f"{self.kind}.{method} failed:\n{answer['error']}")
        return answer

    def close(self) -> None:
        """Ends it; a library's threads may keep it from ending by itself."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Row:
    """One line of the table: a quotient of two figures of a comparison's sides.

    A figure is "SIDE.KEY": "cpu" or "wall" of what was timed, or a key of what it returned.

    Attributes:
        name: as --only takes it; what follows a slash tells variants apart.
        goal: what is wanted of the quotient.
        over: the figure that is divided.
        under: the figure that it is divided by; None for `over` alone.
        peer: what the other side is, in words.
        work: what both do, in words.
        most: whether the goal is a limit from above.
    """

    name: str
    goal: float
    over: str
    under: str | None
    peer: str
    work: str
    most: bool = False


@dataclass(frozen=True)
class Comparison:
    """Sides that do the same work, and what is told of them.

    Attributes:
        sides: name -> (kind of `Child`, its arguments).
        rows: of the table.
        gate: children -> figures of agreement; raises where the sides do not do the same. Not
            needed where all sides are our own program, which tests hold.
        prepare: called with the children before anything else.
        gate_first: whether the gate has to see the sides before they have run, as what is timed
            changes parameters.
        once: whether the first runs of fresh processes are what is asked for, and nothing else.
    """

    sides: dict[str, tuple[str, dict[str, Any]]]
    rows: Sequence[Row]
    gate: Callable[[dict[str, Child]], dict[str, Any]] = lambda children: {}
    prepare: Callable[[dict[str, Child]], object] = lambda children: None
    gate_first: bool = False
    once: bool = False


@dataclass
class Measured:
    """What the runs of a comparison took.

    Attributes:
        rounds: side -> answer of its `run`, by round.
        rejected: rounds that were disturbed and made again.
        disturbed: rounds that were disturbed and kept, as none better came.
        loading: side -> CPU-seconds from the start of its process until it was ready.
        first: side -> CPU-seconds of its first run, with what that compiled.
        gate: figures of agreement.
        load: the machine's load average before and after.
    """

    rounds: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    rejected: int = 0
    disturbed: int = 0
    loading: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    gate: dict[str, Any] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)


def calm(answer: dict[str, Any]) -> bool:
    """Whether a run had its core for itself."""
    return abs(answer["cpu"] / answer["wall"] - 1) <= TOLERANCE


def measure(
    children: dict[str, Any],
    pairs: int,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Times the sides in turn.

    A round in which a side was disturbed is repeated, at most as often as there are rounds; the
    calmest of those that were disturbed then fill up.

    Args:
        children: side -> what has `call`; its `run` gets the round's number as a seed.
        pairs: rounds that are wanted.
        say: told of every round.
    """
    measured, disturbed = Measured(), []
    for number in range(2 * pairs):
        order = list(children)[:: 1 if number % 2 == 0 else -1]
        answers = {side: children[side].call("run", seed=number) for side in order}
        fine = all(map(calm, answers.values()))
        (measured.rounds if fine else disturbed).append(answers)
        told = ", ".join(
            f"{side} {answers[side]['cpu']:.2f} (cpu/wall "
            f"{answers[side]['cpu'] / answers[side]['wall']:.2f})"
            for side in children
        )
        say(f"{told}{'' if fine else ', disturbed'}")
        if len(measured.rounds) == pairs:
            break
    worst = lambda answers: max(abs(a["cpu"] / a["wall"] - 1) for a in answers.values())
    filling = sorted(disturbed, key=worst)[: pairs - len(measured.rounds)]
    measured.disturbed, measured.rejected = len(filling), len(disturbed) - len(filling)
    measured.rounds += filling
    return measured


def compare(comparison: Comparison, pairs: int, core: int, say: Callable[[str], None]) -> Measured:
    """Starts the sides, checks that they agree, warms them up and times them.

    Args:
        comparison: what is compared.
        pairs: rounds that are wanted.
        core: where it all runs.
        say: told what happens.
    """
    if comparison.once:
        return first_runs(comparison, pairs, core, say)
    children: dict[str, Child] = {}
    before, first, agreed = os.getloadavg()[0], {}, {}
    try:
        for side, (kind, arguments) in comparison.sides.items():
            children[side] = Child(kind, core, **arguments)
        comparison.prepare(children)
        if comparison.gate_first:
            agreed = comparison.gate(children)
        first = {side: child.call("run", seed=999)["cpu"] for side, child in children.items()}
        say("first runs: " + ", ".join(f"{side} {cpu:.1f}" for side, cpu in first.items()))
        if not comparison.gate_first:
            agreed = comparison.gate(children)
        say(f"gate: {agreed}")
        measured = measure(children, pairs, say)
    finally:
        for child in children.values():
            child.close()
    measured.loading = {side: child.loading for side, child in children.items()}
    measured.first, measured.gate = first, agreed
    measured.load = [before, os.getloadavg()[0]]
    return measured


def first_runs(
    comparison: Comparison, pairs: int, core: int, say: Callable[[str], None]
) -> Measured:
    """The first run of a fresh process for each side, one after the other, `pairs` times."""
    measured, before = Measured(), os.getloadavg()[0]
    for _ in range(pairs):
        answers = {}
        for side, (kind, arguments) in comparison.sides.items():
            child = Child(kind, core, **arguments)
            try:
                answers[side] = child.call("run", seed=0)
            finally:
                child.close()
            measured.loading[side] = child.loading
        say(str({side: answer["result"] for side, answer in answers.items()}))
        measured.rounds.append(answers)
    measured.disturbed = sum(not all(map(calm, answers.values())) for answers in measured.rounds)
    measured.load = [before, os.getloadavg()[0]]
    return measured


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def result(row: Row, measured: Measured) -> dict[str, Any]:
    """A row of the JSON.

    "median", "min" and "max" are of the row's quotient over the rounds. "cpu" and "wall" hold the
    same of either side's seconds, and of their quotient.
    """

    def figure(answers: dict[str, Any], name: str) -> float:
        side, key = name.split(".")
        return answers[side][key] if key in ("cpu", "wall") else answers[side]["result"][key]

    def quotient(over: str, under: str | None) -> dict[str, float]:
        values = [
            figure(answers, over) / (figure(answers, under) if under else 1.0)
            for answers in measured.rounds
        ]
        return spread(values)

    sides = list(dict.fromkeys(n.split(".")[0] for n in (row.over, row.under) if n))

    def seconds(key: str) -> dict[str, Any]:
        told = {side: quotient(f"{side}.{key}", None) for side in sides}
        if len(sides) == 2:
            told["quotient"] = quotient(*(f"{side}.{key}" for side in sides))
        return told

    found = quotient(row.over, row.under)
    median = lambda side: quotient(f"{side}.cpu", None)["median"]
    calmness = [a["cpu"] / a["wall"] for answers in measured.rounds for a in answers.values()]
    return {
        "name": row.name,
        "goal": row.goal,
        "goal_is": "at most" if row.most else "at least",
        "reached": found["median"] <= row.goal if row.most else found["median"] >= row.goal,
        **found,
        "peer": row.peer,
        "work": row.work,
        "quotient_of": [row.over, row.under],
        "cpu": seconds("cpu"),
        "wall": seconds("wall"),
        "pairs": len(measured.rounds),
        "rejected": measured.rejected,
        "disturbed": measured.disturbed,
        "cpu_over_wall": spread(calmness),
        "load": measured.load,
        "loading_cpu": {side: measured.loading[side] for side in sides},
        "compile_cpu": {s: measured.first[s] - median(s) for s in sides if s in measured.first},
        "peak_mb": {
            side: max(answers[side]["peak_mb"] for answers in measured.rounds) for side in sides
        },
        "gate": measured.gate,
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """Of what is compared."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores and instruction sets."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    field = lambda name: next(
        (line.split(":")[1].strip() for line in text.splitlines() if line.startswith(name)), ""
    )
    wide = [word for word in ("avx2", "avx512f", "amx_tile") if word in field("flags").split()]
    return {"processor": field("model name"), "cores": os.cpu_count(), "has": wide}


def cores() -> list[int]:
    """The cores that there are for this process, in order."""
    return sorted(os.sched_getaffinity(0))
