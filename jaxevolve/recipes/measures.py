"""What does a step tell of itself? Figures of all its responses, wherever they were sampled."""

from collections.abc import Sequence

import numpy as np
from flax import struct

from jaxevolve.objectives import uninformative_groups
from jaxevolve.rewards import auc, distinct_answers, unanimous, vote
from jaxevolve.rewards.voting import matches
from jaxevolve.rollout.jobs import Stats

# Lower edges of the ranges of frequency that CSRS's Figure 3 tells apart; the last one ends at 1.
FREQUENCIES = (0.0, 0.2, 0.4, 0.6, 0.8)
LOOP = 16  # tokens at least that a loop fills, and
TIMES = 4  # how often at least it says the same
PERIOD = 32  # tokens of the longest loop that is looked for


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
        looping: bool[P, G], those that end in a loop.
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
    looping: np.ndarray
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
        "reward/excluded": (~seen.counted).sum(),
        "advantage/zero_groups": np.asarray(
            uninformative_groups(seen.rewards, seen.counted)
        ).mean(),
        "policy/entropy": seen.entropy.sum() / seen.lengths.sum(),
        "rollout/length": seen.lengths.mean(),
        "rollout/truncated": (~seen.stopped).mean(),
        "rollout/looping": seen.looping.mean(),
        "rollout/no_answer": (seen.classes < 0).mean(),
        "rollout/confident": (frequency(seen.classes) >= FREQUENCIES[-1]).mean(),
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


def frequency(classes: np.ndarray) -> np.ndarray:
    """f64[P, G]: an answer's share of its group's responses; 0 for no answer."""
    return matches(classes, classes) / classes.shape[-1]


def ends_in_loop(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tells which responses end by saying the same again and again.

    A response does whose last tokens repeat with a period of at most `PERIOD`, at least `TIMES`
    times over and for at least `LOOP` tokens. Four words that are repeated once are no loop.

    Args:
        tokens: i32[..., L].
        lengths: i32[...], without the stop id.

    Returns:
        bool[...].
    """
    width = max(TIMES * PERIOD, LOOP)
    # The last tokens, right-aligned; what lies before a response's first equals nothing.
    places = lengths[..., None] - width + np.arange(width)
    tail = np.take_along_axis(tokens, np.clip(places, 0, tokens.shape[-1] - 1), -1)
    tail = np.where(places >= 0, tail, -1 - np.arange(width))
    found = np.zeros(lengths.shape, bool)
    for period in range(1, PERIOD + 1):
        needed = max(TIMES * period, LOOP)
        last = tail[..., width - needed :]
        found |= (last[..., period:] == last[..., :-period]).all(-1)
    return found


def agreement(classes: np.ndarray, reclasses: np.ndarray) -> float:
    """Share of re-inferences that keep their parent's answer; NaN without re-inferences."""
    if reclasses.size == 0:
        return float("nan")
    return float(((reclasses == classes[..., None]) & (reclasses >= 0)).mean())


def label_metrics(seen: Seen) -> dict[str, float]:
    """How right the maternal answers and their vote are, where the data has labels.

    A share of nothing is NaN: no answer had that frequency, or there was no re-inference.
    """
    excluded = seen.faulty.sum()
    if not seen.labeled.any():
        return {"label/excluded": excluded} if excluded else {}
    classes, correct = seen.classes[seen.labeled], seen.correct[seen.labeled]
    winner, _ = vote(classes)
    of_winner = (correct & (classes == winner[:, None])).any(-1)
    found = {
        "label/accuracy": correct.mean(),
        "label/vote_accuracy": of_winner.mean(),
        "label/pass_at_n": correct.any(-1).mean(),
        "label/excluded": excluded,
    }
    again = seen.reclasses[seen.labeled]
    for name, parents in (("right", correct), ("wrong", ~correct)):
        found[f"retrace/same_if_{name}"] = agreement(classes[parents], again[parents])
    how_often = frequency(classes)
    for low, high in zip(FREQUENCIES, (*FREQUENCIES[1:], 2.0)):
        inside = (classes >= 0) & (how_often >= low) & (how_often < high)
        found[f"label/right_by_frequency/{low}"] = share(correct, inside)
        found[f"label/answers_by_frequency/{low}"] = inside.mean()
    return found


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


def share(values: np.ndarray, of: np.ndarray) -> float:
    """The share of those of a mask that are true; NaN of none."""
    return float(values[of].mean()) if of.any() else float("nan")
