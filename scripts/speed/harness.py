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
TOLERANCE = 0.1  # of cpu/wall around 1
PACKAGES = ("jaxevolve", "jax", "torch", "transformers", "trl", "google-tunix")


class Child:
    """A side in a process of its own, see `child`."""

    def __init__(self, kind: str, core: int, **arguments: Any) -> None:
        """Starts it.

        Args:
            kind: "module:Class".
            core: the core that it and its threads stay on.
            **arguments: of the class.
        """
        flags = "--xla_cpu_multi_thread_eigen=false"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": flags,
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_OFFLINE": "1",
        }
        # What another run has compiled would make compilation look free.
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "speed.child", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        self.kind = kind
        self.loading = self.call("__init__", **arguments)["since_start"]

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Calls a method and waits for its answer."""
        self.process.stdin.write(json.dumps({"call": method, "with": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in answer:
            raise RuntimeError(f"{self.kind}.{method} failed:\n{answer['error']}")
        return answer

    def close(self) -> None:
        """Ends it."""
        self.process.stdin.close()
        self.process.wait()


@dataclass(frozen=True)
class Row:
    """One line of the table: a quotient of two sides of a comparison.

    Attributes:
        name: as --only takes it; a second part after a slash tells variants apart.
        goal: the quotient that is wanted.
        over: the side whose cost is divided.
        under: the side that it is divided by.
        peer: what the other side is, in words.
        work: what both do, in words.
        most: whether the goal is a limit from above.
        measure: "cpu", or a key of what both sides' `run` returns.
    """

    name: str
    goal: float | None
    over: str
    under: str
    peer: str
    work: str
    most: bool = False
    measure: str = "cpu"


@dataclass(frozen=True)
class Comparison:
    """Sides that do the same work, and what is told of them.

    Attributes:
        sides: name -> (kind of `Child`, its arguments).
        rows: of the table.
        gate: (children) -> figures of agreement; raises where the sides do not do the same.
        method: what is timed, called with a seed.
    """

    sides: dict[str, tuple[str, dict[str, Any]]]
    rows: Sequence[Row]
    gate: Callable[[dict[str, Any]], dict[str, Any]]
    method: str = "run"


@dataclass
class Measured:
    """What a comparison's runs took: one mapping of side -> answer a round, and what else was."""

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
    method: str = "run",
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Times the sides in turn.

    A round in which a side was disturbed is repeated, at most as often as there are rounds; the
    calmest of those that were disturbed then fill up.

    Args:
        children: side -> what has `call`.
        pairs: rounds that are wanted.
        method: what is timed; it gets the round's number as its seed.
        say: told of every round.
    """
    measured, disturbed = Measured(), []
    for number in range(2 * pairs):
        order = list(children)[:: 1 if number % 2 == 0 else -1]
        answers = {side: children[side].call(method, seed=number) for side in order}
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


def compare(
    comparison: Comparison, pairs: int, core: int, say: Callable[[str], None]
) -> Measured:
    """Starts the sides, checks that they agree, warms them up and times them."""
    children: dict[str, Child] = {}
    before = os.getloadavg()[0]
    try:
        for side, (kind, arguments) in comparison.sides.items():
            children[side] = Child(kind, core, **arguments)
            say(f"{side} loaded in {children[side].loading:.1f} CPU-s")
        first = {s: child.call(comparison.method, seed=10_000)["cpu"] for s, child in children.items()}
        say("first runs " + ", ".join(f"{side} {cpu:.1f} CPU-s" for side, cpu in first.items()))
        agreed = comparison.gate(children)
        say(f"gate passed: {agreed}")
        measured = measure(children, pairs, comparison.method, say)
    finally:
        for child in children.values():
            child.close()
    measured.loading = {side: child.loading for side, child in children.items()}
    measured.first, measured.gate = first, agreed
    measured.load = [before, os.getloadavg()[0]]
    return measured


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def result(row: Row, measured: Measured) -> dict[str, Any]:
    """A row of the JSON.

    "median", "min" and "max" are of the quotient, in CPU-seconds or in the row's measure; "cpu"
    and "wall" hold the same of the seconds of either side and of their quotient.
    """

    def taken(key: str) -> dict[str, Any]:
        over = [answers[row.over][key] for answers in measured.rounds]
        under = [answers[row.under][key] for answers in measured.rounds]
        quotients = [a / b for a, b in zip(over, under)]
        return {"over": spread(over), "under": spread(under), "quotient": spread(quotients)}

    def quotient(answers: dict[str, Any]) -> float:
        sides = (answers[row.over], answers[row.under])
        over, under = (
            side["cpu"] if row.measure == "cpu" else side["result"][row.measure] for side in sides
        )
        return over / under

    found = spread([quotient(answers) for answers in measured.rounds])
    reached = None
    if row.goal is not None:
        reached = found["median"] <= row.goal if row.most else found["median"] >= row.goal
    ratios = [a["cpu"] / a["wall"] for answers in measured.rounds for a in answers.values()]
    after = lambda side: measured.first[side] - statistics.median(
        answers[side]["cpu"] for answers in measured.rounds
    )
    return {
        "name": row.name,
        "goal": row.goal,
        "goal_is": "at most" if row.most else "at least",
        "reached": reached,
        **found,
        "measure": row.measure,
        "peer": row.peer,
        "work": row.work,
        "quotient_of": [row.over, row.under],
        "cpu": taken("cpu"),
        "wall": taken("wall"),
        "pairs": len(measured.rounds),
        "rejected": measured.rejected,
        "disturbed": measured.disturbed,
        "cpu_over_wall": spread(ratios),
        "load": measured.load,
        "compile_cpu": {side: after(side) for side in (row.over, row.under)},
        "gate": measured.gate,
        "peak_mb": {
            side: max(answers[side]["peak_mb"] for answers in measured.rounds)
            for side in (row.over, row.under)
        },
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
