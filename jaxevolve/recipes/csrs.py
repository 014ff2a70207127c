"""CSRS: continuous softened retracing re-sampling (arXiv 2604.03647, section 3.2, Algorithm 1).

A batch lives here as follows: n maternal responses a prompt; each cut at its anchor, its image
noised, m re-inferences from there; the answers of both grouped by mathematical equality; a reward
by frequency; advantages. With m = 0 and another reward the same path is majority voting (MM-UPT),
self-consistency, Self-Judge, whose judge scores the maternal responses first, or, with labels,
supervised GRPO; with a user's function, what that one says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import struct
from ml_collections import ConfigDict

from jaxevolve.answers.choices import options_for
from jaxevolve.answers.grading import Graded, grade
from jaxevolve.learner import Experience
from jaxevolve.models.inputs import Prompts
from jaxevolve.objectives import group_advantage, log_group_distribution, response_mask
from jaxevolve.packing import make_layout, rows_needed
from jaxevolve.policy import WIDTH, Policy, read, sampling_rules
from jaxevolve.recipes import records, self_judge
from jaxevolve.recipes.measures import Seen, ends_in_loop, measure, speed
from jaxevolve.rewards import (
    consistency,
    format_ok,
    judged,
    majority_vote,
    self_consistency,
    softened_frequency,
    with_format,
)
from jaxevolve.rewards.user import user_reward
from jaxevolve.rollout.generate import Responses, generate
from jaxevolve.rollout.jobs import Job, Response, Stats
from jaxevolve.rollout.retrace import anchors, fork, position_by_others
from jaxevolve.rollout.sampling import ANCHOR, MATERNAL, RETRACE, Sampling, response_keys
from jaxevolve.runtime.distributed import gather
from jaxevolve.runtime.mesh import own_rows, placement
from jaxevolve.runtime.metrics import PhaseTimer

Row = Mapping[str, Any]
Score = Callable[..., tuple[jax.Array, jax.Array, jax.Array | None]]


@dataclass(frozen=True)
class Collected:
    """What collecting a batch yields.

    Attributes:
        experience: to learn from.
        metrics: of the step, over all processes.
        samples: of some questions, for people to read.
        answers: [P][G] of the maternal responses, None for none.
    """

    experience: Experience
    metrics: dict[str, float]
    samples: list[dict[str, Any]]
    answers: list[list[str | None]]


@struct.dataclass
class Retraced:
    """Re-inferences of every maternal response.

    Attributes:
        anchor: i32[P, G], tokens of the maternal response that were kept.
        responses: [P, G, M] what followed.
    """

    anchor: np.ndarray
    responses: Responses


def collect(
    policy: Policy,
    params: Any,
    reference: Any,
    rows: Sequence[Row],
    prompts: Prompts,
    key: jax.Array,
    *,
    config: ConfigDict,
    score: Score,
    timer: PhaseTimer,
    judge: Callable[[], Policy] | None = None,
) -> Collected:
    """Samples a batch and rewards it; of several processes, each its share.

    Args:
        policy: the current policy, its parameters in the type that is computed in, on devices of
            this process alone.
        params: the same parameters where the learner has them, which scores with them.
        reference: frozen parameters for the KL term, or None where there is none.
        rows: P rows; their answers are only watched, unless `reward.kind` is "label".
        prompts: of the rows, on the host.
        key: the key of this step.
        config: the run's config.
        score: what the learner scores with.
        timer: adds to rollout, retrace, judge, answers and score.
        judge: gives what scores the maternal responses, of this process alone; None for nobody.
    """
    rules = sampling_rules(policy.processor, config.rollout.top_p, config.rollout.top_k)
    maternal, retraced, stats = sample(policy, prompts, key, rules, config)
    for name, phase in (("rollout", MATERNAL), ("retrace", RETRACE)):
        timer.add(name, stats.seconds.get(phase, 0.0))

    with timer("answers"):
        texts = read(policy.processor, maternal).texts
        again = continued_texts(policy, maternal, retraced)
        golds = [row.get("answer") for row in rows]
        both = [own + more for own, more in zip(texts, again)]
        options = [options_for(row["question"], row.get("choices")) for row in rows]
        graded = grade(both, golds, config.reward.equality, options)
    judgement = None
    if judge is not None:
        with timer("judge"):
            judgement = self_judge.judge(judge(), rows, prompts.ids, texts, key, config)
    scores = None if judgement is None else judgement.scores
    group = config.rollout.n
    classes = graded.classes[:, :group]
    reclasses = graded.classes[:, group:].reshape(*classes.shape, -1)
    trained, starts, order = maternal, None, np.arange(group)
    if config.retrace.train and config.retrace.m:
        trained, starts, order = with_reinferences(maternal, retraced)
    rewards = reward(rows, classes, reclasses, graded, both, order, scores, config)
    # A user's reward or a judge that said nothing readable may leave a response out; a label that
    # is broken excludes its question.
    counted = ~np.isnan(rewards)
    if config.reward.kind == "label":
        counted &= graded.labeled[:, None]

    with timer("score"):
        limit = config.rollout.max_tokens
        packed = max(gather(rows_needed(trained.lengths, limit)))
        layout = make_layout(trained.lengths, limit, packed)
        _, place = placement(params)
        placed = place((prompts, trained.tokens, layout))
        old, entropy, ref = own_rows(score(params, reference, *placed))
    advantages = advantage(rewards, counted, config)
    experience = Experience(
        prompts, trained.tokens, trained.lengths, advantages, old, ref, starts, layout
    )

    # From here on maternal responses alone are told of.
    own = order < group
    rewards, counted, advantages, old, entropy = (
        x[:, own] for x in (rewards, counted, advantages, old, entropy)
    )
    mask = np.asarray(response_mask(maternal.lengths, limit))
    gap = np.abs(old - maternal.logprobs)
    seen = Seen(
        rewards=rewards,
        counted=counted,
        classes=classes,
        reclasses=reclasses,
        lengths=maternal.lengths,
        stopped=maternal.stopped,
        looping=ends_in_loop(maternal.tokens, maternal.lengths - maternal.stopped),
        continued=retraced.responses.lengths,
        entropy=np.where(mask, entropy, 0.0).sum(-1),
        gap=np.where(mask, gap, 0.0).max(-1),
        labeled=graded.labeled,
        faulty=np.array([fault is not None for fault in graded.faults]),
        correct=graded.correct[:, :group],
        scores=scores,
        unread=None if judgement is None else judgement.unread,
        judging=None if judgement is None else judgement.tokens,
    )
    metrics = measure(jax.tree.map(lambda *x: np.concatenate(x), *gather(seen)))
    metrics |= speed(gather(stats))
    samples = records.samples(
        rows,
        texts,
        again,
        graded,
        rewards,
        advantages,
        maternal,
        retraced.anchor,
        policy.processor.decode,
        judgement,
    )
    return Collected(experience, metrics, samples, [own[:group] for own in graded.answers])


def sample(
    policy: Policy,
    prompts: Prompts,
    key: jax.Array,
    rules: Sampling,
    config: ConfigDict,
) -> tuple[Responses, Retraced, Stats]:
    """Samples n maternal responses a prompt, and m re-inferences from the anchor of each.

    A re-inference starts when its own parent has ended (Eq. 6 and 9), with "group" anchors when the
    whole group has. Where no noise comes between them it takes over its parent's keys, if they are
    still at hand.
    """
    settings, samples = config.retrace, config.retrace.m
    group, most = config.rollout.n, config.rollout.max_tokens
    shape = (len(prompts.length), group, samples)
    retraced = Retraced(np.zeros(shape[:2], np.int32), Responses.empty(*shape, most))
    rates = np.full(shape[:2], settings.rate)
    if settings.anchor == "random":
        rates = random_rates(key, prompts.ids, group)

    together = settings.anchor == "group"
    ended: dict[int, dict[int, Response]] = {}

    def follow(job: Job, member: int, response: Response) -> list[Job]:
        if job.phase == RETRACE:
            retraced.responses.put((*job.tag, job.members[member] % samples), response)
            return []
        if not together:
            return retrace(job, member, response, settings.token)
        found = ended.setdefault(job.tag, {})
        found[member] = response
        if len(found) < group:
            return []
        own = np.array([len(found[g].tokens) - found[g].stopped for g in range(group)])
        positions = position_by_others(own, settings.rate)
        return [new for g in range(group) for new in retrace(job, g, found[g], positions[g])]

    def retrace(job: Job, member: int, response: Response, token: int) -> list[Job]:
        parent = (job.tag, member)
        anchor, limit = anchors(
            np.array([len(response.tokens)]),
            np.array([response.stopped]),
            rule=settings.anchor,
            rate=rates[parent],
            token=token,
            max_tokens=most,
        )
        retraced.anchor[parent] = anchor[0]
        if limit[0] == 0:
            return []
        prompt = fork(job.prompt, response.tokens[None], anchor, most)
        # Re-inference j of maternal response g is member g * m + j of its prompt.
        first = member * samples
        members = [range(first, first + samples)]
        draws: list[int | None] = [None]
        same = settings.image_noise == 0 or not prompt.segment.any()
        if not same:
            draws = [0 if settings.noise_per == "prompt" else member]
            if settings.noise_per == "sample":
                members = [range(m, m + 1) for m in members[0]]
                draws = [m[0] for m in members]
        return [
            Job(
                prompt,
                RETRACE,
                m,
                int(limit[0]),
                noise=draw,
                anchor=int(anchor[0]) if same and not together else None,
                tag=parent,
            )
            for m, draw in zip(members, draws)
        ]

    fewest = min(group, samples or group)
    reused = not settings.image_noise and not together
    if samples and (settings.noise_per == "sample" or reused):
        fewest = 1  # jobs of one response; or a seat for every row, to leave its keys in
    maternal, stats = generate(
        policy.model,
        policy.params,
        prompts,
        n=group,
        max_tokens=most,
        rows=config.rollout.rows,
        follow=follow if samples else None,
        key=key,
        temperature=config.rollout.temperature,
        rules=rules,
        width=max(group, samples, WIDTH),
        fewest=fewest,
        chunk=config.rollout.chunk,
        deviation=settings.image_noise,
    )
    return maternal, retraced, stats


def random_rates(key: jax.Array, ids: np.ndarray, group: int) -> np.ndarray:
    """f64[P, G] in [0, 1), millionths: the rates of "random" anchors (the paper's A.5)."""
    members = np.tile(np.arange(group, dtype=np.int32), len(ids))
    keys = response_keys(key, np.full_like(members, ANCHOR), np.repeat(ids, group), members)
    uniform = np.asarray(jax.vmap(jax.random.uniform)(keys), np.float64)
    # Rounded down, as `anchors` rounds to millionths and 1 would keep the whole response.
    return np.floor(uniform * 1_000_000).reshape(len(ids), group) / 1_000_000


def with_reinferences(
    maternal: Responses, retraced: Retraced
) -> tuple[Responses, np.ndarray, np.ndarray]:
    """Maternal responses and their re-inferences as one group, anchor by anchor.

    Returns:
        Responses [P, G * (1 + M)], a re-inference being prefix and continuation; i32 of that shape,
        the first token that each has of its own; and i32[G * (1 + M)], where each stands among all
        maternal responses followed by all re-inferences.
    """
    count, group, samples, length = retraced.responses.tokens.shape
    joined = Responses.empty(count, group, 1 + samples, length)
    starts = np.zeros(joined.lengths.shape, np.int32)
    joined.tokens[:, :, 0], joined.lengths[:, :, 0] = maternal.tokens, maternal.lengths
    for p, g, m in np.ndindex(count, group, samples):
        tokens = continued(maternal, retraced, p, g, m)
        joined.tokens[p, g, 1 + m, : len(tokens)] = tokens
        joined.lengths[p, g, 1 + m] = len(tokens)
        starts[p, g, 1 + m] = retraced.anchor[p, g]
    flat = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[3:]), (joined, starts))
    behind = group + np.arange(group * samples).reshape(group, samples)
    return *flat, np.concatenate([np.arange(group)[:, None], behind], axis=1).reshape(-1)


def continued_texts(policy: Policy, maternal: Responses, retraced: Retraced) -> list[list[str]]:
    """[P][G * M] texts of the re-inferences: kept prefix and continuation, decoded as one."""
    count, group, samples = retraced.responses.lengths.shape
    return [
        [
            policy.processor.decode(continued(maternal, retraced, p, g, m))
            for g in range(group)
            for m in range(samples)
        ]
        for p in range(count)
    ]


def continued(maternal: Responses, retraced: Retraced, p: int, g: int, m: int) -> np.ndarray:
    """Tokens of one re-inference from its parent's first on: the kept prefix, then its own."""
    own = retraced.responses.tokens[p, g, m, : retraced.responses.lengths[p, g, m]]
    return np.concatenate([maternal.tokens[p, g, : retraced.anchor[p, g]], own])


def reward(
    rows: Sequence[Row],
    classes: np.ndarray,
    reclasses: np.ndarray,
    graded: Graded,
    texts: Sequence[Sequence[str]],
    order: np.ndarray,
    scores: np.ndarray | None,
    config: ConfigDict,
) -> np.ndarray:
    """Rewards by `reward.kind`.

    Args:
        rows: P rows, for a user's reward.
        classes: i32[P, G] of the maternal responses.
        reclasses: i32[P, G, M] of the re-inferences.
        graded: all of them, the maternal ones first.
        texts: [P][G + G * M] all of them.
        order: i32[N], which of all are rewarded.
        scores: f32[P, G] of the judge, NaN where it gave none; None without one.
        config: the run's config.

    Returns:
        f32[P, N], NaN where a user's reward or a judge leaves a response out.
    """
    settings, of = config.reward, graded.classes[:, order]
    if settings.kind == "softened":
        rewards = softened_frequency(
            classes,
            reclasses,
            settings.gamma,
            settings.beta,
            settings.eps,
            of=of,
            pool=settings.pool,
            include_self=settings.include_self,
            no_answer=settings.no_answer,
        )
    elif settings.kind == "majority":
        rewards = majority_vote(classes, reclasses, of=of, no_answer=settings.no_answer)
    elif settings.kind == "self_consistency":
        rewards = self_consistency(classes, of=of, no_answer=settings.no_answer)
    elif settings.kind == "judged":
        base = np.ones(classes.shape)
        if config.judge.base == "consistency":
            base = consistency(
                classes, hard_above=config.judge.hard_above, no_answer=settings.no_answer
            )
        fine = [[format_ok(text) for text in own[: classes.shape[1]]] for own in texts]
        rewards = judged(base, scores, fine, penalty=config.judge.format_penalty)
    elif settings.kind == "label":
        rewards = graded.correct[:, order].astype(np.float32)
    else:
        rewards = user_reward(settings.kind, rows, texts, graded, order, classes.shape[1], scores)
    if settings.format_weight:
        fine = [[format_ok(group[i]) for i in order] for group in texts]
        rewards = with_format(rewards, fine, settings.format_weight)
    return rewards


def advantage(rewards: np.ndarray, valid: np.ndarray, config: ConfigDict) -> np.ndarray:
    """Advantages f32[P, N] by `grpo.advantage`, of rewards times `grpo.alpha`.

    Args:
        rewards: f32[P, N].
        valid: bool[P, N], the rewards that count.
        config: the run's config.
    """
    form, alpha = config.grpo.advantage, config.grpo.alpha
    if form == "log_group":
        return np.asarray(log_group_distribution(rewards, alpha, centered=False, valid=valid))
    return np.asarray(group_advantage(alpha * rewards, form, valid))
