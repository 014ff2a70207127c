"""What is a response worth? Pure functions of class ids; no labels, no text, no jax."""

from jaxevolve.rewards.format import format_ok, with_format
from jaxevolve.rewards.frequency import self_consistency, softened_frequency
from jaxevolve.rewards.judge import auc, consistency, judged, mean_score, modulation, parse_score
from jaxevolve.rewards.voting import distinct_answers, majority_vote, unanimous, vote

__all__ = [
    "auc",
    "consistency",
    "distinct_answers",
    "format_ok",
    "judged",
    "majority_vote",
    "mean_score",
    "modulation",
    "parse_score",
    "self_consistency",
    "softened_frequency",
    "unanimous",
    "vote",
    "with_format",
]
