"""Has a run collapsed? A rule over its steps, and which checkpoint is from before.

Five signs, each judged by itself: votes that have become wrong, where labels tell; an entropy near
zero; questions on which all responses agree; responses that end in a loop; responses without an
answer. Low entropy and agreement are what mastery looks like too: where the data has labels they do
not count while enough votes are right. A collapse is one sign in every one of the last
`collapse.patience` steps.

Everything here is a pure function of rows of metrics.jsonl and of the limits in config.collapse.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
# What the rule looks at.
KEYS = (
    "label/vote_accuracy",
    "policy/entropy",
    "rollout/unanimous",
    "rollout/looping",
    "rollout/no_answer",
)


def signs(row: Row, best: float, limits: Any) -> dict[str, str]:
    """What one step shows of a collapse.

    Args:
        row: metrics of the step; what is missing, None or NaN shows nothing.
        best: the vote accuracy that the run has had; NaN where nobody knows.
        limits: config.collapse.

    Returns:
        {"rollout/unanimous": "all responses agree on 97% of the questions"}, by metric.
    """
    known = [row.get(key) for key in KEYS]
    vote, entropy, agreed, looping, silent = (float("nan") if v is None else v for v in known)
    found = {}
    if vote < best - limits.vote_drop:
        found[KEYS[0]] = f"{vote:.0%} of the votes are right, and {best:.0%} were"
    if not vote > limits.vote_accuracy:
        if entropy < limits.entropy:
            found[KEYS[1]] = f"the policy has {entropy:.2g} nats a token left"
        if agreed > limits.unanimous:
            found[KEYS[2]] = f"all responses agree on {agreed:.0%} of the questions"
    if looping > limits.looping:
        found[KEYS[3]] = f"{looping:.0%} of the responses end in a loop"
    if silent > limits.no_answer:
        found[KEYS[4]] = f"{silent:.0%} of the responses have no answer"
    return found


def alarm(rows: Sequence[Row], limits: Any) -> str:
    """Whether the last steps are those of a collapsed run.

    Args:
        rows: metrics of the run's steps so far.
        limits: config.collapse.

    Returns:
        What they show, in words; nothing if there is no alarm.
    """
    start = len(rows) - limits.patience
    if start < 0:
        return ""
    shown = [signs(rows[i], best_vote(rows[:i], limits), limits) for i in range(start, len(rows))]
    common = [name for name in shown[-1] if all(name in step for step in shown)]
    if not common:
        return ""
    told = "; ".join(shown[-1][name] for name in common)
    return f"{told} (every step since {rows[start]['step']})"


def best_vote(rows: Sequence[Row], limits: Any) -> float:
    """The mean vote accuracy of the best few steps; NaN where none is known.

    They are half of `patience`, rounded up: a single step may have been lucky, and with many a run
    that collapses at its very start would be measured by steps of the collapse.
    """
    known = [row.get(KEYS[0]) for row in rows]
    few = (limits.patience + 1) // 2
    best = sorted(v for v in known if v is not None and v == v)[-few:]
    return sum(best) / len(best) if best else float("nan")


def history(rows: Iterable[Row]) -> list[Row]:
    """Rows with nothing but their step and what the rule looks at."""
    return [{key: row.get(key) for key in ("step", *KEYS)} for row in rows]


def told(rows: Sequence[Row], limits: Any) -> dict[int, str]:
    """The steps at which the alarm of a run went on, with what they showed.

    Args:
        rows: metrics of the run, "collapse/alarm" among them.
        limits: config.collapse.
    """
    on = [bool(row.get("collapse/alarm")) for row in rows]
    return {
        row["step"]: alarm(rows[: i + 1], limits)
        for i, row in enumerate(rows)
        if on[i] and not (i and on[i - 1])
    }


def good(steps: Iterable[int], step: int, limits: Any) -> int | None:
    """The newest checkpoint from before the window of an alarm at `step`; None if there is none.

    Args:
        steps: of the checkpoints.
        step: at which the alarm is given.
        limits: config.collapse.
    """
    return max((s for s in steps if s <= step - limits.patience), default=None)


def needed(steps: Iterable[int], step: int, limits: Any) -> set[int]:
    """The checkpoints that an alarm after `step` may roll back to.

    Args:
        steps: of the checkpoints, that of `step` among them.
        step: which is finished.
        limits: config.collapse.
    """
    if limits.action != "rollback":
        return set()
    steps = set(steps)
    newest = good(steps, step + 1, limits)
    return {s for s in steps if newest is None or s >= newest}
