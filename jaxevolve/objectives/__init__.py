"""What is minimised? Pure functions of log-probabilities, advantages and weights."""

from jaxevolve.objectives.advantage import (
    group_advantage,
    log_group_distribution,
    uninformative_groups,
)
from jaxevolve.objectives.grpo import grpo_loss, loss_weights, mean_metrics, response_mask
from jaxevolve.objectives.supervised import supervised_loss

__all__ = [
    "group_advantage",
    "grpo_loss",
    "log_group_distribution",
    "loss_weights",
    "mean_metrics",
    "response_mask",
    "supervised_loss",
    "uninformative_groups",
]
