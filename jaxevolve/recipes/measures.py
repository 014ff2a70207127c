"""What does a step tell of itself? Figures of all its responses, wherever they were sampled."""

from collections.abc import Sequence

import numpy as np
from flax import struct

from jaxevolve.objectives import uninformative_groups
from jaxevolve.rewards import auc, distinct_answers, unanimous, vote
from jaxevolve.rollout.jobs import Stats


@struct.dataclass
class Seen:
    """What the figures of a step are made of: P prompts, G maternal responses each.

    Attributes:
        rewards: f32[P, G].
        counted: bool[P, G], the responses whose rewards mean anything.
        classes: i32[P, G] of the answers.
        reclasses: i32[P, G, M] of the re-inferences.
        lengths: i32[P, G] tokens.
        stopped: bool[P, G].
        continued: i32[P, G, M] tokens of the re-inferences.
        entropy: f32[P, G], the sum over a response's tokens, in nats.
        gap: f32[P, G], the largest |sampler - trainer| log-probability of a response's tokens.
        labeled: bool[P], the prompts with a label that can be compared with.
        faulty: bool[P], those with a broken one.
        correct: bool[P, G].
        scores: f32[P, G] of a judge, NaN where it gave none; None, like the two below, without one.
        unread: bool[P, G, R], its judgements without a score.
        judging: i32[P, G, R] tokens of its judgements.
    """

    rewards: np.ndarray
    counted: np.ndarray
    classes: np.ndarray
    reclasses: np.ndarray
    lengths: np.ndarray
    stopped: np.ndarray
    continued: np.ndarray
    entropy: np.ndarray
    gap: np.ndarray
    labeled: np.ndarray
    faulty: np.ndarray
    correct: np.ndarray
    scores: np.ndarray | None = None
    unread: np.ndarray | None = None
    judging: np.ndarray | None = None


def measure(seen: Seen) -> dict[str, float]:
    """The metrics of a step."""
    earned = seen.rewards[seen.counted] if seen.counted.any() else np.zeros(1)
    return {
        "reward/mean": earned.mean(),
        "reward/std": earned.std(),
        "advantage/zero_groups": np.asarray(
            uninformative_groups(seen.rewards, seen.counted)
        ).mean(),
        "policy/entropy": seen.entropy.sum() / seen.lengths.sum(),
        "rollout/length": seen.lengths.mean(),
        "rollout/truncated": (~seen.stopped).mean(),
        "rollout/no_answer": (seen.classes < 0).mean(),
        "rollout/unanimous": unanimous(seen.classes).mean(),
        "rollout/distinct_answers": distinct_answers(seen.classes).mean(),
        "rollout/logprob_gap": seen.gap.max(),
        "rollout/tokens": seen.lengths.sum(),
        "retrace/agreement": agreement(seen.classes, seen.reclasses),
        "retrace/tokens": seen.continued.sum(),
        **label_metrics(seen),
        **judge_metrics(seen),
    }


def speed(stats: Sequence[Stats]) -> dict[str, float]:
    """How fast a step was sampled, by one process or by several at once.

    Forced tokens are those of prompts and of kept prefixes, read or taken over.
    """
    total = lambda name: sum(getattr(s, name) for s in stats)
    slowest = lambda seconds: max(max(seconds), 1e-9)
    reading = slowest([s.reading for s in stats])
    decoding = slowest([sum(s.seconds.values()) - s.reading for s in stats])
    return {
        "throughput/slot_utilization": total("tokens") / max(total("row_steps"), 1),
        "throughput/sampled_tokens_per_second": total("tokens") / decoding,
        "throughput/forced_tokens_per_second": (total("read_tokens") + total("reused_tokens"))
        / reading,
    }


def agreement(classes: np.ndarray, reclasses: np.ndarray) -> float:
    """Share of re-inferences that keep their parent's answer; NaN without re-inferences."""
    if reclasses.size == 0:
        return float("nan")
    return float(((reclasses == classes[..., None]) & (reclasses >= 0)).mean())


def label_metrics(seen: Seen) -> dict[str, float]:
    """How right the maternal answers and their vote are, where the data has labels."""
    excluded = seen.faulty.sum()
    if not seen.labeled.any():
        return {"label/excluded": excluded} if excluded else {}
    classes, correct = seen.classes[seen.labeled], seen.correct[seen.labeled]
    winner, _ = vote(classes)
    of_winner = (correct & (classes == winner[:, None])).any(-1)
    return {
        "label/accuracy": correct.mean(),
        "label/vote_accuracy": of_winner.mean(),
        "label/pass_at_n": correct.any(-1).mean(),
        "label/excluded": excluded,
    }


def judge_metrics(seen: Seen) -> dict[str, float]:
    """What the judge made of the responses, and how well that tells right from wrong by labels."""
    if seen.scores is None:
        return {}
    known = ~np.isnan(seen.scores)
    found = {
        "judge/score": seen.scores[known].mean() if known.any() else float("nan"),
        "judge/unread": seen.unread.mean(),
        "judge/tokens": seen.judging.sum(),
    }
    if seen.labeled.any():
        found["judge/auc"] = auc(seen.scores[seen.labeled], seen.correct[seen.labeled])
    return found
