"""How do the embedded models learn? Supervised stages under one learning-rate schedule."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxevolve.hf.processor import Processor
from jaxevolve.learner import Targets, TrainState, make_update
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.objectives import supervised_loss


@dataclass(frozen=True)
class Stage:
    """What is learned, and for how long.

    Attributes:
        name: of the stage.
        steps: updates.
        prompts: all prompts that a batch is drawn from.
        size: tokens of the longest response with its stop id.
        write: (number of a prompt, random numbers) -> the response to it.
    """

    name: str
    steps: int
    prompts: Prompts
    size: int
    write: Callable[[int, random.Random], str]


def targets(texts: Sequence[str], prompts: Prompts, processor: Processor, size: int) -> Targets:
    """Texts as the only response to each prompt, with their stop id."""
    tokens = np.zeros((len(texts), 1, size), np.int32)
    lengths = np.zeros((len(texts), 1), np.int32)
    for i, text in enumerate(texts):
        ids = [*processor.tokenizer.backend_tokenizer.encode(text).ids, processor.stop_ids[0]]
        tokens[i, 0, : len(ids)], lengths[i] = ids, len(ids)
    return Targets(prompts, tokens, lengths)


def fit(
    model: Qwen2_5_VL,
    params: Any,
    processor: Processor,
    stages: Sequence[Stage],
    peak: float,
    *,
    batch: int,
    seed: int,
) -> Any:
    """Goes through the stages; returns the parameters.

    Args:
        model: the model.
        params: what it starts from; consumed.
        processor: makes texts tokens.
        stages: in order.
        peak: highest learning rate, after 50 steps; a twentieth of it is left at the end.
        batch: responses an update.
        seed: of the batches.
    """
    total = sum(stage.steps for stage in stages)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, 50, max(total, 51), peak / 20)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98, weight_decay=0.01)
    )
    update = make_update(
        model,
        optimizer,
        lambda logprobs, entropy, weights, batch: supervised_loss(logprobs, weights),
        temperature=1.0,
        dtype="float32",
        micro_batches=1,
        remat="none",
        aggregation="token",
        max_tokens=max(stage.size for stage in stages),
    )
    state = TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    rng = random.Random(f"batches {seed}")
    for stage in stages:
        recent = []
        for step in range(1, stage.steps + 1):
            index = np.array(rng.sample(range(len(stage.prompts.length)), batch))
            texts = [stage.write(i, rng) for i in index]
            chosen = jax.tree.map(lambda x, index=index: x[index], stage.prompts)
            state, metrics = update(state, targets(texts, chosen, processor, stage.size))
            recent.append(metrics["loss"])
            if step % 100 == 0 or step == stage.steps:
                loss, seconds = float(jnp.stack(recent).mean()), time.process_time()
                told = f"{stage.name} {step}/{stage.steps}"
                print(f"{told}: loss {loss:.4f}, {seconds:.0f} CPU-s", flush=True)
                recent = []
    return state.params
