"""Ourselves on both sides, or alone: figures that need no other project to compare with."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxevolve.models.logprobs import token_logprobs
from jaxevolve.policy import sampling_rules, step_key
from jaxevolve.rollout.generate import generate
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
        self.rows, self.most = rows, prompts * work.GROUP * work.NEW

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
        assert 0.3 < tokens / self.most < 0.5, tokens / self.most
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


class Programs:
    """An epoch of random lengths and image sizes in a process that has compiled nothing yet.

    A program counts from half a CPU-second of compilation on; smaller ones are single operations.
    """

    def __init__(self, folder: str, size: str, cache: str) -> None:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
        self.seconds: list[float] = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        self.step = Step(folder, size, True, "csrs", 16, work.CHUNK, prompts=2, ragged=True)
        vocabulary = work.SIZES[size].vocabulary
        batches = [work.mixed(2, vocabulary, seed) for seed in range(4)]
        self.batches = [(rows, self.step.policy.prompts(rows)) for rows in batches]

    def _listen(self, event: str, _: float, **__: Any) -> None:
        # JAX tells wall time; of a program, this event is followed by its compilation.
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            self._begun = time.process_time()
        if event == "/jax/core/compile/backend_compile_duration":
            self.seconds.append(time.process_time() - self._begun)

    def run(self, seed: int) -> dict[str, Any]:
        """Two passes over the same batches: what the first took longer is compilation."""
        self.seconds.clear()
        cold = self._epoch()
        built = [seconds for seconds in self.seconds if seconds >= 0.5]
        warm = self._epoch()
        return {"shapes": len(built), "largest": max(built, default=0.0), "extra": cold - warm}

    def _epoch(self) -> float:
        begun = time.process_time()
        for seed, (rows, prompts) in enumerate(self.batches):
            self.step.step(rows, prompts, seed)
        return time.process_time() - begun
