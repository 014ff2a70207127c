"""CSRS: continuous softened retracing re-sampling (arXiv 2604.03647, section 3.2, Algorithm 1).

A batch lives here as follows: n maternal responses a prompt; each cut at its anchor, its image
noised, m re-inferences from there; the answers of both grouped by mathematical equality; a reward
by frequency; advantages. With m = 0 and another reward the same path is majority voting (MM-UPT),
self-consistency or, with labels, supervised GRPO.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from ml_collections import ConfigDict

from jaxevolve.answers.grading import Graded, grade
from jaxevolve.learner import Experience
from jaxevolve.models.inputs import Prompts
from jaxevolve.objectives import group_advantage, response_mask, uninformative_groups
from jaxevolve.policy import ANCHOR, MATERNAL, NOISE, RETRACE, Policy, read, sampling_rules
from jaxevolve.recipes import records
from jaxevolve.rewards import (
    distinct_answers,
    format_ok,
    majority_vote,
    self_consistency,
    softened_frequency,
    unanimous,
    vote,
    with_format,
)
from jaxevolve.rollout.decode import Responses, generate
from jaxevolve.rollout.retrace import anchors, fork, perturb
from jaxevolve.rollout.sampling import Sampling, response_keys
from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.metrics import PhaseTimer

Row = Mapping[str, Any]
Score = Callable[[Any, Prompts, jax.Array], tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class Collected:
    """What collecting a batch yields: the experience, metrics of the step, readable samples."""

    experience: Experience
    metrics: dict[str, float]
    samples: list[dict[str, Any]]


@struct.dataclass
class Retraced:
    """Re-inferences of every maternal response.

    Attributes:
        anchor: i32[P, G], tokens of the maternal response that were kept.
        tokens: i32[P, G, M, L], what followed.
        lengths: i32[P, G, M].
    """

    anchor: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray


def collect(
    policy: Policy,
    reference: Any,
    rows: Sequence[Row],
    prompts: Prompts,
    key: jax.Array,
    *,
    config: ConfigDict,
    score: Score,
    place: Callable[[Any], Any],
    timer: PhaseTimer,
) -> Collected:
    """Samples a batch and rewards it.

    Args:
        policy: the current policy, its parameters in the type that is computed in.
        reference: frozen parameters for the KL term, or None where there is none.
        rows: P rows; their answers are only watched, unless `reward.kind` is "label".
        prompts: of the rows, on the host.
        key: the key of this step.
        config: the run's config.
        score: what the learner scores with.
        place: puts host arrays onto the mesh, axis 0 over its data axes.
        timer: adds to rollout, retrace, answers and score.
    """
    rules = sampling_rules(
        policy.processor, config.rollout.temperature, config.rollout.top_p, config.rollout.top_k
    )
    parts = []
    size = config.rollout.batch or len(rows)
    for first in range(0, len(rows), size):
        piece = place(jax.tree.map(itemgetter(slice(first, first + size)), prompts))
        with timer("rollout"):
            maternal = sample_maternal(policy, piece, key, rules, config)
        with timer("retrace"):
            parts.append((maternal, retrace(policy, piece, maternal, key, rules, config, place)))
    maternal, retraced = jax.tree.map(lambda *x: np.concatenate(x), *parts)

    with timer("answers"):
        texts = read(policy.processor, maternal).texts
        again = continued_texts(policy, maternal, retraced)
        golds = [row.get("answer") for row in rows]
        both = [own + more for own, more in zip(texts, again)]
        graded = grade(both, golds, config.reward.equality)
    group = config.rollout.n
    classes = graded.classes[:, :group]
    reclasses = graded.classes[:, group:].reshape(*classes.shape, -1)
    rewards = reward(classes, reclasses, graded, texts, config)

    with timer("score"):
        longest = bucket(int(maternal.lengths.max()))
        tokens = maternal.tokens[:, :, : min(longest, config.rollout.max_tokens)]
        placed = place((prompts, tokens))
        old, entropy = score(policy.params, *placed)
        ref = score(reference, *placed)[0] if reference is not None else None
        old, entropy, ref = jax.tree.map(np.asarray, (old, entropy, ref))
    advantages = np.asarray(group_advantage(rewards, config.grpo.advantage))
    experience = Experience(prompts, tokens, maternal.lengths, advantages, old, ref)

    mask = np.asarray(response_mask(maternal.lengths, tokens.shape[-1]))
    gap = np.abs(old - maternal.logprobs[..., : tokens.shape[-1]])
    metrics = {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "advantage/zero_groups": np.asarray(uninformative_groups(rewards)).mean(),
        "policy/entropy": entropy[mask].mean(),
        "rollout/length": maternal.lengths.mean(),
        "rollout/truncated": (~maternal.stopped).mean(),
        "rollout/no_answer": (classes < 0).mean(),
        "rollout/unanimous": unanimous(classes).mean(),
        "rollout/distinct_answers": distinct_answers(classes).mean(),
        "rollout/logprob_gap": gap[mask].max(),
        "rollout/tokens": maternal.lengths.sum(),
        "retrace/agreement": agreement(classes, reclasses),
        "retrace/tokens": retraced.lengths.sum(),
        **label_metrics(graded, group),
    }
    samples = records.samples(rows, texts, graded, rewards, advantages, maternal, retraced.anchor)
    return Collected(experience, metrics, samples)


def sample_maternal(
    policy: Policy, prompts: Prompts, key: jax.Array, rules: Sampling, config: ConfigDict
) -> Responses:
    """Samples n maternal responses a prompt, brought to the host."""
    group = config.rollout.n
    responses = generate(
        policy.model,
        policy.params,
        prompts,
        members=jnp.arange(group),
        key=jax.random.fold_in(key, MATERNAL),
        rules=rules,
        limits=jnp.full((len(prompts.length), group), config.rollout.max_tokens, jnp.int32),
        max_tokens=config.rollout.max_tokens,
        chunk=config.rollout.chunk,
    )
    return jax.tree.map(np.asarray, responses)


def retrace(
    policy: Policy,
    prompts: Prompts,
    maternal: Responses,
    key: jax.Array,
    rules: Sampling,
    config: ConfigDict,
    place: Callable[[Any], Any],
) -> Retraced:
    """Samples m re-inferences from the anchor of every maternal response (Eq. 6 and 9)."""
    settings, samples = config.retrace, config.retrace.m
    count, group, length = maternal.tokens.shape
    if samples == 0:
        empty = np.zeros((count, group, 0, length), np.int32)
        return Retraced(np.zeros((count, group), np.int32), empty, empty[..., 0])
    anchor, limit = anchors(
        maternal,
        rule=settings.anchor,
        rate=settings.rate,
        token=settings.token,
        key=jax.random.fold_in(key, ANCHOR),
        ids=np.asarray(prompts.ids),
        max_tokens=config.rollout.max_tokens,
    )
    noisy = settings.image_noise > 0 and prompts.pixels.shape[1] > 0
    copies = samples if noisy and settings.noise_per == "sample" else 1
    forked = fork(
        prompts, maternal.tokens, anchor, size=max(bucket(int(anchor.max())), 1), copies=copies
    )
    if noisy:
        draws = jnp.arange(group * copies)
        if settings.noise_per == "prompt":
            draws = jnp.zeros_like(draws)
        keys = response_keys(jax.random.fold_in(key, NOISE), prompts.ids, draws)
        forked = perturb(forked, keys.reshape(-1), settings.image_noise)
    forked = place(forked)
    # Re-inference j of maternal response g is member g * m + j of its prompt.
    shape = (count * group * copies, samples // copies)
    members = jnp.tile(jnp.arange(group * samples), count).reshape(shape)
    limits = jnp.repeat(jnp.asarray(limit).reshape(-1), samples).reshape(shape)
    responses = generate(
        policy.model,
        policy.params,
        forked,
        members=members,
        key=jax.random.fold_in(key, RETRACE),
        rules=rules,
        limits=limits,
        max_tokens=config.rollout.max_tokens,
        chunk=config.rollout.chunk,
    )
    tokens = np.asarray(responses.tokens).reshape(count, group, samples, -1)
    return Retraced(anchor, tokens, np.asarray(responses.lengths).reshape(tokens.shape[:3]))


def continued_texts(policy: Policy, maternal: Responses, retraced: Retraced) -> list[list[str]]:
    """[P][G * M] texts of the re-inferences: kept prefix and continuation, decoded as one."""
    count, group, samples = retraced.lengths.shape
    return [
        [
            policy.processor.decode(
                np.concatenate(
                    [
                        maternal.tokens[p, g, : retraced.anchor[p, g]],
                        retraced.tokens[p, g, m, : retraced.lengths[p, g, m]],
                    ]
                )
            )
            for g in range(group)
            for m in range(samples)
        ]
        for p in range(count)
    ]


def reward(
    classes: np.ndarray,
    reclasses: np.ndarray,
    graded: Graded,
    texts: Sequence[Sequence[str]],
    config: ConfigDict,
) -> np.ndarray:
    """Rewards of the maternal responses, f32[P, G], by `reward.kind`."""
    settings = config.reward
    if settings.kind == "softened":
        rewards = softened_frequency(
            classes,
            reclasses,
            settings.gamma,
            settings.beta,
            settings.eps,
            pool=settings.pool,
            include_self=settings.include_self,
            no_answer=settings.no_answer,
        )
    elif settings.kind == "majority":
        rewards = majority_vote(classes, reclasses, no_answer=settings.no_answer)
    elif settings.kind == "self_consistency":
        rewards = self_consistency(classes, no_answer=settings.no_answer)
    else:
        rewards = graded.correct[:, : classes.shape[1]].astype(np.float32)
    if settings.format_weight:
        fine = [[format_ok(text) for text in group] for group in texts]
        rewards = with_format(rewards, fine, settings.format_weight)
    return rewards


def agreement(classes: np.ndarray, reclasses: np.ndarray) -> float:
    """Share of re-inferences that keep their parent's answer; NaN without re-inferences."""
    if reclasses.size == 0:
        return float("nan")
    return float(((reclasses == classes[..., None]) & (reclasses >= 0)).mean())


def label_metrics(graded: Graded, group: int) -> dict[str, float]:
    """How right the maternal answers and their vote are, where the data has labels."""
    labeled = graded.labeled
    if not labeled.any():
        return {}
    classes, correct = graded.classes[labeled, :group], graded.correct[labeled, :group]
    winner, _ = vote(classes)
    of_winner = (correct & (classes == winner[:, None])).any(-1)
    return {
        "label/accuracy": correct.mean(),
        "label/vote_accuracy": of_winner.mean(),
        "label/pass_at_n": correct.any(-1).mean(),
    }
