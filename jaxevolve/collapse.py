"""Has a run collapsed? A rule over its last steps, and what it does about it.

Four signs, each of them judged by itself. Two of them, near-zero entropy and questions on which all
responses agree, are also what mastery looks like: where the data has labels they do not count while
the vote is right often enough. The other two are responses that end in a loop, and responses
without an answer. A collapse is one sign in every one of the last `collapse.patience` steps.

Everything here is a pure function of rows of metrics.jsonl and of the limits in config.collapse.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def signs(row: Row, limits: Any) -> dict[str, str]:
    """What one step shows of a collapse.

    Args:
        row: metrics of the step; what is missing, None or NaN shows nothing.
        limits: config.collapse.

    Returns:
        {"rollout/unanimous": "all responses agree on 97% of the questions"}, by metric.
    """

    def known(name: str) -> float:
        value = row.get(name)
        return float("nan") if value is None else float(value)

    vote = known("label/vote_accuracy")
    found = {}
    if not vote > limits.vote_accuracy:
        told = "" if vote != vote else f", and {vote:.0%} of the votes are right"
        if known("policy/entropy") < limits.entropy:
            spread = known("policy/entropy")
            found["policy/entropy"] = f"the policy has {spread:.2g} nats a token left{told}"
        if known("rollout/unanimous") > limits.unanimous:
            agreed = known("rollout/unanimous")
            found["rollout/unanimous"] = f"all responses agree on {agreed:.0%} of questions{told}"
    if known("rollout/looping") > limits.looping:
        looping = known("rollout/looping")
        found["rollout/looping"] = f"{looping:.0%} of the responses end in a loop"
    if known("rollout/no_answer") > limits.no_answer:
        silent = known("rollout/no_answer")
        found["rollout/no_answer"] = f"{silent:.0%} of the responses have no answer"
    return found


def alarm(rows: Sequence[Row], limits: Any) -> str:
    """Whether the last steps are those of a collapsed run.

    Args:
        rows: metrics of steps in a row, the newest last.
        limits: config.collapse.

    Returns:
        What they show, in words; nothing if there is no alarm.
    """
    last = rows[-limits.patience :]
    if len(last) < limits.patience:
        return ""
    shown = [signs(row, limits) for row in last]
    common = [name for name in shown[-1] if all(name in step for step in shown)]
    if not common:
        return ""
    told = "; ".join(shown[-1][name] for name in common)
    return f"{told} (every step since {last[0]['step']})"


def tripped(rows: Sequence[Row], limits: Any) -> dict[int, str]:
    """The steps at which an alarm began, with what they showed.

    Args:
        rows: metrics of a run, steps rising.
        limits: config.collapse.
    """
    found, before = {}, ""
    for end in range(1, len(rows) + 1):
        now = alarm(rows[max(end - limits.patience, 0) : end], limits)
        if now and not before:
            found[rows[end - 1]["step"]] = now
        before = now
    return found


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
