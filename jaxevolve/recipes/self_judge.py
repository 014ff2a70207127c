"""Self-Judge (Actor-Judge, arXiv 2603.21289): a frozen copy of the actor scores its responses.

The judge reads what the actor read, and behind it one response: the candidate. It samples a
judgement, whose score in [0, 1] is parsed (`rewards.parse_score`); repeats are averaged. It never
sees a label. What the scores do to a reward is in `rewards.judge`; everything else of the system is
the path of `csrs.collect`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxevolve.hf.processor import Processor
from jaxevolve.models.inputs import Prompts
from jaxevolve.policy import Policy, load_model_processor, sampling_rules
from jaxevolve.rewards import mean_score, parse_score
from jaxevolve.rollout.engine import run
from jaxevolve.rollout.generate import one
from jaxevolve.rollout.jobs import Job, Response
from jaxevolve.rollout.retrace import fork
from jaxevolve.rollout.sampling import JUDGE
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.mesh import placement

# In front of the problem, by `judge.prompt`. The three criteria, their weights and the two places
# of the result are those of the released code; the words are ours. "short" is for a judge that was
# trained to answer in this form, and does not have the words.
RUBRICS = {
    "rubric": """\
You are a strict examiner of mathematics. Below are a problem with its figure and one candidate \
solution, and you grade the solution. Nobody tells you the answer: read the figure and solve the \
problem yourself first.

Give three scores, each from 0 to 1:
- answer_correctness, weight 0.5: is the final answer right?
- reasoning_quality, weight 0.3: does each step follow, with no gap and no slip of arithmetic?
- visual_grounding, weight 0.2: does it use what the figure shows, and nothing that it does not?
The overall_score is their weighted sum. A solution that is not laid out as the problem demands \
gets 0 for everything, no exceptions.

Think inside <think> and </think> first. Then write these lines with your numbers:
BEGIN_SCORES
{"answer_correctness": 0.0, "reasoning_quality": 0.0, "visual_grounding": 0.0, \
"overall_score": 0.0}
END_SCORES
and in the last line the overall score once more, as \\boxed{0.0}.

""",
    "short": "",
}
PROBLEM, CANDIDATE = "[PROBLEM]\n", "\n[CANDIDATE_SOLUTION]\n"


@dataclass(frozen=True)
class Judgement:
    """What the judge says of P x G candidates.

    Attributes:
        scores: f32[P, G] in [0, 1]; NaN where no judgement could be read and `judge.unread` is
            "exclude".
        unread: bool[P, G, R], which of the R judgements of each have no score.
        texts: [P][G][R] the judgements.
        tokens: i32[P, G, R] sampled for them.
    """

    scores: np.ndarray
    unread: np.ndarray
    texts: list[list[list[str]]]
    tokens: np.ndarray


def open_processor(config: ConfigDict, actor: Processor) -> Processor | None:
    """The processor of a judge that is a model of its own, None without one; reads no weights.

    Args:
        config: the run's config.
        actor: the policy's own.

    Raises:
        UserError: settings contradict each other, or the judge cannot be used.
    """
    settings, kind = config.judge, config.reward.kind
    if kind == "judged" and not settings.repeats and settings.base == "none":
        raise UserError(
            "--config.judge.base=none leaves the reward to a judge, and --config.judge.repeats=0 "
            "asks for none; give at least 1 repeat"
        )
    if kind == "judged" and config.retrace.train and config.retrace.m:
        raise UserError(
            "--config.retrace.train=True trains on re-inferences, which no judge has scored; leave "
            "it out with --config.reward.kind=judged"
        )
    if settings.refresh and (settings.path is not None or not settings.repeats):
        raise UserError(
            f"--config.judge.refresh={settings.refresh} makes the policy its own judge; it needs "
            "judge.repeats of at least 1, and no judge.path"
        )
    if not settings.repeats or settings.path is None:
        return None
    processor = load_model_processor(settings.path)
    if processor.config.vision is None and actor.config.vision is not None:
        raise UserError(
            f"the judge in {settings.path} reads text only; give --config.judge.path a model that "
            "reads images"
        )
    return processor


def judge(
    policy: Policy,
    rows: Sequence[Mapping[str, Any]],
    ids: np.ndarray,
    candidates: Sequence[Sequence[str]],
    key: jax.Array,
    config: ConfigDict,
) -> Judgement:
    """Judges every response of a batch.

    Image, rubric and problem are read once a question, the candidates behind them. A judgement is a
    function of the step's key, the sample id, the response's number in its group and the number of
    the repeat.

    Args:
        policy: the judge.
        rows: P rows, whose labels are not looked at.
        ids: u32[P], sample ids of the rows.
        candidates: [P][G] responses as texts.
        key: the key of this step.
        config: the run's config.
    """
    settings = config.judge
    questions, ending = heads(policy.processor, rows, settings.prompt, config.data.instruction)
    questions = questions.replace(ids=ids)
    shape = (len(rows), len(candidates[0]), settings.repeats)
    texts = [[[""] * shape[2] for _ in group] for group in candidates]
    lengths = np.zeros(shape, np.int32)
    encoded = [[encode(policy.processor, text) + ending for text in own] for own in candidates]
    longest = max(len(tokens) for own in encoded for tokens in own)
    jobs = []
    for p, own in enumerate(encoded):
        stem = one(questions, p)
        for g, tokens in enumerate(own):
            kept = np.array([tokens], np.int32), np.array([len(tokens)])
            members = range(g * shape[2], (g + 1) * shape[2])
            prompt = fork(stem, *kept, longest)
            job = Job(prompt, JUDGE, members, settings.max_tokens, stem=stem, tag=(p, g))
            jobs.append(job)

    def finish(job: Job, member: int, response: Response) -> tuple[()]:
        p, g = job.tag
        texts[p][g][member] = policy.processor.decode(response.tokens)
        lengths[p, g, member] = len(response.tokens)
        return ()

    shards, place = placement(policy.params)
    run(
        policy.model,
        policy.params,
        jobs,
        finish,
        key=key,
        temperature=settings.temperature,
        rules=sampling_rules(policy.processor, settings.top_p, 0),
        rows=config.rollout.rows,
        width=shape[2],
        fewest=shape[2],
        chunk=config.rollout.chunk,
        shards=shards,
        place=place,
        alone=True,
    )
    missing = None if settings.unread == "exclude" else 0.0
    scores = np.full(shape[:2], np.nan, np.float32)
    unread = np.zeros(shape, bool)
    for p, g in np.ndindex(*shape[:2]):
        parsed = [parse_score(conclusion(text)) for text in texts[p][g]]
        unread[p, g] = [score is None for score in parsed]
        mean = mean_score(parsed, unread=missing)
        scores[p, g] = np.nan if mean is None else mean
    return Judgement(scores, unread, texts, lengths)


def heads(
    processor: Processor, rows: Sequence[Mapping[str, Any]], prompt: str, instruction: str
) -> tuple[Prompts, list[int]]:
    """The part of a judge's prompt that all candidates of a question share, and what ends it.

    Args:
        processor: the judge's.
        rows: P rows.
        prompt: a key of `RUBRICS`.
        instruction: that the actor was given after the question.

    Returns:
        P prompts that end where the candidate begins, and the tokens that follow the candidate.

    Raises:
        UserError: the chat template puts something after a user's turn that depends on the turn.
    """
    asked = [
        {
            **row,
            "question": RUBRICS[prompt]
            + PROBLEM
            + f"{row['question'].rstrip()} {instruction}".rstrip()
            + CANDIDATE,
        }
        for row in rows
    ]
    whole = processor.prompts(asked)
    message = {"role": "user", "content": CANDIDATE}
    text = processor.tokenizer.apply_chat_template(
        [message], tokenize=False, add_generation_prompt=True
    )
    ending = _ids(processor, text.rpartition(CANDIDATE)[2])
    length = whole.length - len(ending)
    places = length[:, None] + np.arange(len(ending))
    if not (np.take_along_axis(whole.tokens, places, axis=1) == ending).all():
        raise UserError(
            f"the chat template of the judge in {processor.folder} ends a turn in a way that "
            "depends on it; give --config.judge.path a model with another template"
        )
    beyond = np.arange(whole.tokens.shape[1]) >= length[:, None]
    return (
        whole.replace(
            tokens=np.where(beyond, 0, whole.tokens),
            length=length,
            next_position=whole.next_position - len(ending),
        ),
        ending,
    )


def encode(processor: Processor, candidate: str) -> list[int]:
    """Tokens of a candidate, in which nothing is a special token: a response may spell one out."""
    for token in processor.tokenizer.added_tokens_decoder.values():
        if token.special:
            candidate = candidate.replace(token.content, f"{token.content[0]} {token.content[1:]}")
    return _ids(processor, candidate)


def conclusion(judgement: str) -> str:
    """What a judge says when it has thought; nothing where it was cut while it thought."""
    _, closed, after = judgement.rpartition("</think>")
    return "" if "<think>" in judgement and not closed else after


def _ids(processor: Processor, text: str) -> list[int]:
    encoded = processor.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return encoded.ids
