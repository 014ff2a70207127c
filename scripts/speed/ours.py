"""jaxevolve's side: every call into the product that is timed against a peer stands here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs import csrs as csrs_config
from configs import majority_vote
from jaxevolve.hf.config import write_config
from jaxevolve.hf.export import export_folder
from jaxevolve.hf.weights import save_params
from jaxevolve.learner import Experience, TrainState
from jaxevolve.models import attention
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, init_params
from jaxevolve.packing import make_layout, rows_needed
from jaxevolve.policy import Policy, load_policy, sampling_rules, step_key
from jaxevolve.recipes import csrs
from jaxevolve.rollout.engine import run
from jaxevolve.rollout.generate import generate, one
from jaxevolve.rollout.jobs import Job, Response
from jaxevolve.rollout.retrace import fork
from jaxevolve.rollout.sampling import RETRACE
from jaxevolve.runtime import mesh
from jaxevolve.runtime.metrics import PhaseTimer
from jaxevolve.training import frozen_parameters, improve, make_functions, make_optimizer
from speed import work


class Models:
    """Makes the folders that all sides load."""

    def make(self, out: str, size: str, image: bool, dtype: str = "float32") -> None:
        """Random weights by our export, so that every side has the same."""
        shape = work.SIZES[size]
        half = shape.hidden // shape.heads // 2
        vision = VisionConfig(
            depth=shape.vision.layers,
            hidden_size=shape.vision.hidden,
            intermediate_size=shape.vision.feed_forward,
            num_heads=shape.vision.heads,
            patch_size=14,
            temporal_patch_size=2,
            spatial_merge_size=2,
            window_size=shape.vision.window,
            fullatt_block_indexes=shape.vision.whole,
            out_hidden_size=shape.hidden,
        )
        config = Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            mrope_section=(half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8)
            if image
            else (half,),
            tie_word_embeddings=True,
            image_token_id=work.IMAGE if image else None,
            video_token_id=work.VIDEO if image else None,
            vision_start_token_id=work.VISION_START if image else None,
            vision_end_token_id=work.VISION_END if image else None,
            vision=vision if image else None,
        )
        texts = Path(out + ".texts")
        work.write_texts(texts, shape, write_config(config, None))
        params = jax.jit(lambda key: init_params(config, key))(jax.random.key(0))
        # Wider than usual: with narrow layers a tied model only repeats its last token.
        params["model"]["layers"] = jax.tree.map(lambda x: 2 * x, params["model"]["layers"])
        export_folder(params, config, texts, out, dtype)


def load(folder: str, stop_ids: tuple[int, ...] = (), dtype: str = "float32") -> Policy:
    """The policy with the kernels of its device; nothing but `stop_ids` ends a response."""
    policy = load_policy(folder, dtype)
    processor = policy.processor
    kernel = attention.choose("auto", mesh.make_mesh(), dtype)
    banned = np.union1d(processor.banned_ids, np.arange(len(work.SPECIAL)))
    # AutoTokenizer would take the folder of a text model for one with Qwen's own vocabulary.
    words = work.tokenizer(folder)
    processor = replace(processor, tokenizer=words, stop_ids=stop_ids, banned_ids=banned)
    return replace(policy, model=Qwen2_5_VL(processor.config, kernel), processor=processor)


class Rollout:
    """Maternal responses by the engine."""

    def __init__(
        self,
        folder: str,
        size: str,
        image: bool,
        n: int,
        new: int,
        rows: int,
        prompts: int = work.PROMPTS,
        tokens: int = work.PROMPT,
        dtype: str = "float32",
    ) -> None:
        self.policy = load(folder, dtype=dtype)
        questions = work.questions(prompts, work.SIZES[size].vocabulary, image, tokens)
        self.prompts = self.policy.prompts(questions)
        assert (self.prompts.length == tokens).all()
        self.n, self.new, self.rows = n, new, rows

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        responses, stats = self._generate(self.n, self.new, 1.0, seed)
        assert (responses.lengths == self.new).all()
        return {"tokens": int(responses.lengths.sum()), "row_steps": stats.row_steps}

    def gate(self, out: str) -> None:
        """Greedy tokens, and samples with their log-probabilities twice."""
        greedy, _ = self._generate(1, 32, 0.0, 0)
        sampled, _ = self._generate(self.n, self.new, 1.0, 1)
        scored = self.policy.logprobs(self.prompts, sampled.tokens, sampled.lengths)
        np.savez(
            out,
            greedy=greedy.tokens,
            tokens=sampled.tokens,
            sampled=sampled.logprobs,
            scored=scored,
        )

    def _generate(self, n: int, new: int, temperature: float, seed: int) -> Any:
        return generate(
            self.policy.model,
            self.policy.params,
            self.prompts,
            n=n,
            max_tokens=new,
            rows=self.rows,
            key=step_key(seed, 0),
            temperature=temperature,
            rules=sampling_rules(self.policy.processor, 1.0, 0),
            width=n,
            fewest=n,
            chunk=self.new,
        )


class Update:
    """One clipped update behind a pass over the reference, as `train` does it."""

    def __init__(
        self,
        folder: str,
        size: str,
        prompts: int,
        ragged: bool,
        shared: bool,
        micro: int,
        dtype: str = "float32",
    ) -> None:
        self.policy = load(folder)
        self.config = majority_vote.get_config()
        self.config.model.dtype = dtype
        self.config.batch = prompts if shared else prompts * work.GROUP
        self.config.rollout.max_tokens = work.NEW
        self.config.grpo.update(minibatches=1, micro_batch=micro)
        self.shared, self.ragged, self.prompts = shared, ragged, prompts
        vocabulary = work.SIZES[size].vocabulary
        self.batch = self.policy.prompts(work.questions(prompts, vocabulary, True))
        self.devices = mesh.make_mesh()
        self.params = jax.device_put(
            self.policy.params, mesh.shardings(self.devices, self.policy.params)
        )
        self.optimizer, _ = make_optimizer(self.config.optimizer)

    def make(self, out: str) -> None:
        """Draws what both sides learn from."""
        drawn = work.responses(self.prompts, self.policy.model.config.vocab_size, self.ragged)
        old = self.policy.logprobs(self.batch, drawn["tokens"], drawn["lengths"])
        # As if the policy had moved since it sampled.
        old = old + 0.1 * np.random.default_rng(2).normal(size=old.shape).astype(np.float32)
        np.savez(out, old=old, **drawn)

    def take(self, given: str) -> None:
        """Takes what another side has drawn, and compiles nothing yet."""
        drawn = dict(np.load(given))
        prompts = self.batch
        if not self.shared:  # each response with a prompt of its own, padded
            prompts = jax.tree.map(lambda x: np.repeat(x, work.GROUP, 0), prompts)
            drawn = {name: value.reshape(-1, 1, *value.shape[2:]) for name, value in drawn.items()}
        lengths = drawn["lengths"]
        packed = rows_needed(lengths, work.NEW)
        self.experience = Experience(
            prompts,
            drawn["tokens"],
            lengths,
            drawn["advantages"],
            drawn["old"],
            None,
            layout=make_layout(lengths, work.NEW, packed) if self.shared else None,
        )
        self.state, where = start(self.params, self.optimizer, self.devices)
        micro, model = self.config.grpo.micro_batch, self.policy.model
        self.functions = make_functions(
            model, self.optimizer, self.devices, micro, self.config, where
        )

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        self.state, metrics = self._update(self.state, *self.functions)
        return {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"])}

    def gate(self, out: str) -> dict[str, Any]:
        """Loss and norm at the first parameters; on disk Adam's first moments, of the gradients."""
        state, _ = start(self.params, self.optimizer, self.devices)
        state, metrics = self._update(state, *self.functions)
        is_adam = lambda x: isinstance(x, optax.ScaleByAdamState)
        (adam,) = filter(is_adam, jax.tree.leaves(state.opt_state, is_leaf=is_adam))
        save_params(adam.mu, self.policy.model.config, Path(out), 5_000_000_000)
        return {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"])}

    def _update(self, state: TrainState, score: Any, update: Any) -> Any:
        _, place = mesh.placement(self.params)
        batch = self.experience
        read = place((batch.prompts, batch.tokens, batch.layout))
        reference = np.asarray(score(self.params, None, *read)[0])
        experience = batch.replace(ref_logprobs=reference)
        state, learned, _ = improve(state, experience, update, self.config)
        return state, learned[0]


class Step:
    """A whole step as `train` takes it, from the batch to the new parameters."""

    def __init__(
        self,
        folder: str,
        size: str,
        image: bool,
        recipe: str,
        rows: int,
        chunk: int,
        new: int = work.NEW,
        ragged: bool = False,
    ) -> None:
        vocabulary = work.SIZES[size].vocabulary
        self.policy = load(folder, work.stop_ids(vocabulary) if ragged else ())
        self.config = {"csrs": csrs_config, "majority": majority_vote}[recipe].get_config()
        self.config.batch = work.PROMPTS
        self.config.rollout.update(max_tokens=new, rows=rows, chunk=chunk)
        self.config.grpo.update(minibatches=1, micro_batch=1)
        self.config.retrace.image_noise = work.NOISE
        self.rows = work.questions(work.PROMPTS, vocabulary, image)
        self.prompts = self.policy.prompts(self.rows)
        devices = mesh.make_mesh()
        self.sampling = mesh.sampling_mesh(devices, self.config.rollout.tensor)
        params = jax.device_put(self.policy.params, mesh.shardings(devices, self.policy.params))
        optimizer, _ = make_optimizer(self.config.optimizer)
        self.state, where = start(params, optimizer, devices)
        self.reference, _ = frozen_parameters(params, devices, self.config)
        self.score, self.update = make_functions(
            self.policy.model, optimizer, devices, 1, self.config, where
        )

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        collected, learned = self.step(self.rows, self.prompts, seed)
        assert (collected.experience.lengths == work.NEW).all()
        return {
            "loss": float(learned["loss"]),
            "grad_norm": float(learned["grad_norm"]),
            "reward": float(collected.metrics["reward/mean"]),
        }

    def step(self, rows: Any, prompts: Any, seed: int) -> Any:
        """What was collected, and the metrics of the update."""
        collected = csrs.collect(
            replace(self.policy, params=mesh.spread(self.sampling, self.state.params)),
            self.state.params,
            self.reference(),
            rows,
            prompts,
            step_key(0, seed),
            config=self.config,
            score=self.score,
            timer=PhaseTimer(),
        )
        self.state, learned, skipped = improve(
            self.state, collected.experience, self.update, self.config
        )
        assert not skipped
        return collected, learned[0]

    def gate(self, out: str) -> None:
        """Greedy tokens and scored samples of the first parameters."""
        common = {"temperature": 1.0, "max_tokens": work.NEW}
        greedy = self.policy.generate(self.prompts, **common | {"temperature": 0, "max_tokens": 32})
        sampled = self.policy.generate(self.prompts, n=work.GROUP, **common)
        scored = self.policy.logprobs(self.prompts, sampled.tokens, sampled.lengths)
        np.savez(out, greedy=greedy.tokens, tokens=sampled.tokens, scored=scored)


class Reinference:
    """Re-inferences of drawn responses, each anchor with its own noise."""

    def __init__(self, folder: str, size: str, prompts: int, rows: int, chunk: int) -> None:
        self.policy = load(folder)
        vocabulary = work.SIZES[size].vocabulary
        batch = self.policy.prompts(work.questions(prompts, vocabulary, True))
        tokens = work.responses(prompts, vocabulary, False)["tokens"]
        kept = np.array([work.KEPT], np.int32)
        self.prompts = [
            fork(one(batch, p), tokens[p, g][None], kept, work.NEW)
            for p, g in np.ndindex(tokens.shape[:2])
        ]
        self.rows, self.chunk = rows, chunk

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        made, _ = self._sample(work.SAMPLES, seed, 1.0, work.NOISE)
        assert all(len(response.tokens) == work.NEW - work.KEPT for response in made.values())
        return {"tokens": len(made) * (work.NEW - work.KEPT)}

    def gate(self, out: str) -> None:
        """The same without noise: greedy tokens, and samples with their log-probabilities."""
        greedy, _ = self._sample(1, 0, 0.0, 0.0)
        sampled, _ = self._sample(work.SAMPLES, 0, 1.0, 0.0)
        stack = lambda made, name: np.stack([getattr(made[k], name) for k in sorted(made)])
        np.savez(
            out,
            greedy=stack(greedy, "tokens"),
            tokens=stack(sampled, "tokens"),
            sampled=stack(sampled, "logprobs"),
        )

    def _sample(self, n: int, seed: int, temperature: float, deviation: float) -> Any:
        made: dict[tuple[int, int], Response] = {}

        def finish(job: Job, member: int, response: Response) -> tuple[()]:
            made[job.tag, member] = response
            return ()

        new = work.NEW - work.KEPT
        jobs = [
            Job(prompt, RETRACE, range(n), new, noise=number % work.GROUP, tag=number)
            for number, prompt in enumerate(self.prompts)
        ]
        shards, place = mesh.placement(self.policy.params)
        stats = run(
            self.policy.model,
            self.policy.params,
            jobs,
            finish,
            key=step_key(seed, 0),
            temperature=temperature,
            rules=sampling_rules(self.policy.processor, 1.0, 0),
            rows=self.rows,
            width=work.GROUP,
            fewest=n,
            chunk=self.chunk,
            shards=shards,
            place=place,
            alone=True,
            deviation=deviation,
        )
        return made, stats


def start(params: Any, optimizer: Any, devices: Any) -> tuple[TrainState, Any]:
    """A fresh state, and its shardings."""

    def fresh(params: Any) -> TrainState:
        params = jax.tree.map(jnp.copy, params)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    where = mesh.shardings(devices, jax.eval_shape(fresh, params))
    return jax.jit(fresh, out_shardings=where)(params), where
