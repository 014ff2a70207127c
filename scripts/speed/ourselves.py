"""Ourselves on both sides, or alone: figures that need no other project to compare with."""

import math
import shutil
import time
from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxevolve.models.logprobs import token_logprobs
from jaxevolve.models.rows import product
from jaxevolve.policy import sampling_rules, step_key
from jaxevolve.rollout import engine
from jaxevolve.rollout.generate import generate
from jaxevolve.rollout.sampling import Sampling, response_keys, sample
from speed import work
from speed.ours import Step, load


class Ragged:
    """Responses of random length: one fixed batch after the other, or all through the engine.

    Stop ids that together are drawn once in about fifty tokens make the lengths geometric, cut at
    128 tokens.
    """

    def __init__(self, folder: str, size: str, prompts: int, rows: int, at_once: int) -> None:
        vocabulary = work.SIZES[size].vocabulary
        self.policy = load(folder, work.stop_ids(vocabulary))
        batch = self.policy.prompts(work.questions(prompts, vocabulary, True))
        self.batches = [
            jax.tree.map(lambda x, i=first: x[i : i + at_once], batch)
            for first in range(0, prompts, at_once)
        ]
        self.rows, self.fixed = rows, at_once < prompts
        if self.fixed:  # no fewer rows when some have ended
            engine.LARGE = math.inf

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        tokens = row_steps = 0
        for batch in self.batches:
            _, stats = generate(
                self.policy.model,
                self.policy.params,
                batch,
                n=work.GROUP,
                max_tokens=work.NEW,
                rows=self.rows,
                key=step_key(seed, 0),
                temperature=1.0,
                rules=sampling_rules(self.policy.processor, 1.0, 0),
                width=work.GROUP,
                fewest=work.GROUP,
                chunk=work.CHUNK,
            )
            tokens, row_steps = tokens + stats.tokens, row_steps + stats.row_steps
        assert not self.fixed or 0.3 < tokens / row_steps < 0.5, tokens / row_steps
        return {"tokens": tokens, "row_steps": row_steps}


class Logprobs:
    """Log-probabilities and their gradient at the released vocabulary, chunked or naive."""

    VOCABULARY, WIDTH, TOKENS = 151_936, 512, 1024

    def __init__(self, naive: bool) -> None:
        rng = np.random.default_rng(0)
        draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
        hidden, head = draw(self.TOKENS, self.WIDTH), 0.02 * draw(self.VOCABULARY, self.WIDTH)
        tokens = jnp.asarray(rng.integers(0, self.VOCABULARY, self.TOKENS), jnp.int32)
        weights = draw(self.TOKENS)

        def loss(hidden: jax.Array, head: jax.Array) -> jax.Array:
            if naive:
                logprobs = jax.nn.log_softmax(hidden @ head.T)
                chosen = jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
            else:
                chosen, _ = token_logprobs(hidden, head, tokens)
            return weights @ chosen

        self.inputs = hidden, head
        lowered = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*self.inputs)
        self.compiled = lowered.compile()

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        jax.block_until_ready(self.compiled(*self.inputs))
        return {"temp_bytes": self.compiled.memory_analysis().temp_size_in_bytes}

    def gate(self) -> list[float]:
        """The loss, and the norms of its gradients."""
        value, gradients = self.compiled(*self.inputs)
        return [float(value), *(float(jnp.linalg.norm(g)) for g in gradients)]


class Vocabulary:
    """What a decode step does at the released vocabulary: the head's product, or the drawing."""

    VOCABULARY, WIDTH, STEPS = 151_936, 2048, 8

    def __init__(self, draws: bool) -> None:
        rng = np.random.default_rng(0)
        array = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))
        numbers = jnp.arange(work.ROWS)
        if draws:
            keys = response_keys(jax.random.key(0), numbers, numbers.astype(jnp.uint32), numbers)
            draw = jax.jit(partial(sample, rules=Sampling(stop_ids=(0,), banned_ids=(1, 2))))
            logits = array(self.VOCABULARY, work.ROWS)
            self.step = lambda number: draw(logits, keys, numbers + number, jnp.float32(1))
        else:
            weight, hidden = array(self.VOCABULARY, self.WIDTH), array(self.WIDTH, work.ROWS)
            multiply = jax.jit(product)
            self.step = lambda number: multiply(weight, hidden)

    def run(self, seed: int) -> None:
        """What is timed."""
        for number in range(self.STEPS):
            jax.block_until_ready(self.step(number))


class Programs:
    """An epoch of random lengths and image sizes in a process that has compiled nothing yet.

    A program counts from half a CPU-second of compilation on; smaller ones are single operations.
    """

    BATCHES, MOST = 4, 32  # short responses: what is measured does not grow with them

    def __init__(self, folder: str, size: str, cache: str, cold: bool) -> None:
        if cold:
            shutil.rmtree(cache, ignore_errors=True)
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        self.built: list[tuple[str, float]] = []  # functions, and CPU-seconds
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        self.step = Step(folder, size, True, "csrs", work.ROWS, work.CHUNK, self.MOST, ragged=True)
        vocabulary = work.SIZES[size].vocabulary
        batches = [work.mixed(work.PROMPTS, vocabulary, seed) for seed in range(self.BATCHES)]
        self.batches = [(rows, self.step.policy.prompts(rows)) for rows in batches]

    def _listen(self, event: str, _: float, fun_name: str = "", **__: Any) -> None:
        # JAX tells wall time; of a program, this event is followed by its compilation.
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            self._begun = time.process_time()
        if event == "/jax/core/compile/backend_compile_duration":
            self.built.append((fun_name, time.process_time() - self._begun))

    def run(self, seed: int) -> dict[str, Any]:
        """Two passes over the same batches: what the first took longer is compilation."""
        self.built.clear()
        cold = self._epoch()
        built = [(name, seconds) for name, seconds in self.built if seconds >= 0.5]
        warm = self._epoch()
        return {
            "programs": len(built),
            "shapes": max(Counter(name for name, _ in built).values(), default=0),
            "largest": max((seconds for _, seconds in built), default=0.0),
            "extra": cold - warm,
        }

    def _epoch(self) -> float:
        begun = time.process_time()
        for seed, (rows, prompts) in enumerate(self.batches):
            self.step.step(rows, prompts, seed)
        return time.process_time() - begun
