"""What did a question's answers do from one visit to the next?

    WORKDIR/visits.jsonl   one object a visit of many questions: {"step": 20, "of": "held-out",
                           "classes": {ID: [0, 0, 1, -1]}, "new": {ID: ["41", "7"]}}

A class is one answer of a question, the same number at all its visits; `new` spells those that a
visit brought. Visited are the first held-out questions at every evaluation, and the questions of
training where a run goes over its data more than once: the file and the memory are bounded by the
data, and drawn problems that never come again leave nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxevolve.answers import classes_many
from jaxevolve.runtime import distributed, metrics
from jaxevolve.theory import Rule, contrast, contrast_eta

FILE = "visits.jsonl"
PROBE = 256  # held-out questions that are followed
MOST = 32  # different answers of a question that are told apart; a further one counts as none
LONGEST = 200  # characters of an answer; a longer one counts as none
HELD_OUT, TRAINING = "held-out", "training"

Pair = tuple[Sequence[int], Sequence[int]]  # classes at a visit and at the next


class Answered(NamedTuple):
    """A question and the answers of its responses, None for none."""

    id: str
    answers: Sequence[str | None]


class Visits:
    """The answers that each question has had, and those of its last visit.

    Every process makes the same one and tells it the same; process 0 writes.
    """

    def __init__(self, workdir: Path, step: int, rule: Rule) -> None:
        """Goes on where the file ends.

        Args:
            workdir: the run's folder.
            step: number of finished steps; what the file has of later ones is dropped.
            rule: which of the two closed forms the run's reward follows.
        """
        self._path, self._rule = Path(workdir) / FILE, rule
        if distributed.is_first():
            metrics.drop_after(self._path, step)
        self._spelled: dict[tuple[str, str], list[str]] = {}
        self._last: dict[tuple[str, str], tuple[int, list[int]]] = {}
        for line in distributed.from_first(metrics.read_jsonl(self._path)):
            for name, found in line["classes"].items():
                key = (line["of"], name)
                self._spelled.setdefault(key, []).extend(line["new"].get(name, ()))
                self._last[key] = line["step"], found

    def note(self, of: str, step: int, asked: Sequence[Answered]) -> dict[str, float]:
        """Notes a visit of some questions.

        Args:
            of: `HELD_OUT` or `TRAINING`.
            step: after which, or in which.
            asked: of all processes, in the same order on each.

        Returns:
            The contrastive factor since their visits before (`factors`); empty where none of them
            had one.
        """
        asked = list({question.id: question for question in asked}.values())
        keys = [(of, question.id) for question in asked]
        # Known answers first: they keep their numbers, as classes are counted as they come.
        known = [self._spelled.get(key, []) for key in keys]
        given = [[_short(a) for a in question.answers] for question in asked]
        found = classes_many([k + g for k, g in zip(known, given)])
        classes, new, pairs = {}, {}, []
        for key, spelled, answers, numbers in zip(keys, known, given, found):
            own = numbers[len(spelled) :]
            fresh = {int(c): a for c, a in zip(own[::-1], answers[::-1]) if c >= len(spelled)}
            fresh = {c: fresh[c] for c in sorted(fresh) if c < MOST}
            kept = [int(c) if c < MOST else -1 for c in own]
            classes[key[1]] = kept
            if fresh:
                new[key[1]] = list(fresh.values())
                self._spelled[key] = [*spelled, *fresh.values()]
            before, last = self._last.get(key, (step, []))
            if before < step:  # not what a run that was killed had noted of this very step
                pairs.append((last, kept))
            self._last[key] = step, kept
        if distributed.is_first():
            with self._path.open("a", encoding="utf-8") as file:
                metrics.append_jsonl(file, {"step": step, "of": of, "classes": classes, "new": new})
        return factors(pairs, self._rule) if pairs else {}


def factors(pairs: Sequence[Pair], rule: Rule) -> dict[str, float]:
    """The contrastive factor of some questions, measured and by both rules (CSRS Eq. 4, 5).

    Args:
        pairs: classes of the answers at a visit and at the next, of each question.
        rule: the one that eta is fitted with. So a run's own prediction follows its measured factor
            and the other tells what that rule would do to the same odds at the same eta.

    Returns:
        "contrast/measured": the geometric mean over questions; "contrast/majority": exp(eta);
        "contrast/softened": exp(eta (rho - eps)) at the mean of rho - eps; "contrast/eta";
        "contrast/questions", those with two answers or more, of which all this is. Without any
        such question, that alone.
    """
    seen = contrast(*tallies(pairs))
    eta, some = contrast_eta(seen, rule), ~np.isnan(seen.gap)
    mean = lambda values: float(values[some].mean())
    if np.isnan(eta):
        return {"contrast/questions": 0}
    return {
        "contrast/measured": float(np.exp(mean(seen.log_factor))),
        "contrast/majority": float(np.exp(eta)),
        "contrast/softened": float(np.exp(eta * mean(seen.gap))),
        "contrast/eta": eta,
        "contrast/questions": int(some.sum()),
    }


def tally(classes: Sequence[int]) -> np.ndarray:
    """i64[MOST], how often each class occurs; -1 is none."""
    return np.bincount([c for c in classes if c >= 0], minlength=MOST)


def tallies(pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """i64[Q, MOST] of the visits before and of those after; at least one pair."""
    before, after = zip(*pairs)
    return np.stack([*map(tally, before)]), np.stack([*map(tally, after)])


def successive(visits: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """Classes of a question's answers at a visit and at the next, of lines of the file."""
    return [
        (before["classes"][name], after["classes"][name])
        for before, after in pairwise(visits)
        for name in before["classes"].keys() & after["classes"].keys()
    ]


def rule_of(kind: str) -> Rule:
    """The closed form that comes nearest to a reward: by a share of answers, or 1 and 0."""
    return "softened" if kind in ("softened", "self_consistency", "judged") else "majority"


def of_records(records: Sequence[Mapping[str, Any]]) -> list[Answered]:
    """The first held-out questions of an evaluation."""
    return [Answered(r["id"], r["answers"]) for r in records[:PROBE]]


def _short(answer: str | None) -> str | None:
    return answer if answer is not None and len(answer) <= LONGEST else None
