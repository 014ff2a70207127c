"""Whole steps of google-tunix's GRPOLearner; it has no Qwen2.5-VL, so on text."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2.params import create_model_from_safe_tensors
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, Mode, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

from speed import work
from speed.turnstile import Turnstile


class Step:
    """GRPO by majority voting."""

    def __init__(self, folder: str, size: str) -> None:
        shape = work.SIZES[size]
        config = qwen2.ModelConfig(
            num_layers=shape.layers,
            vocab_size=shape.vocabulary,
            embed_dim=shape.hidden,
            hidden_dim=shape.feed_forward,
            num_heads=shape.heads,
            head_dim=shape.hidden // shape.heads,
            num_kv_heads=shape.kv_heads,
            rope_theta=1_000_000,
            norm_eps=1e-6,
            use_tied_embedding=True,
        )
        mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        load = lambda: create_model_from_safe_tensors(folder, config, mesh)
        rollout = RolloutConfig(
            max_tokens_to_generate=work.NEW,
            max_prompt_length=work.PROMPT,
            kv_cache_size=work.PROMPT + work.NEW,
            temperature=1.0,
            top_p=None,
            # It has no way to forbid an id, so none that can be drawn may end a response.
            eos_tokens=[shape.vocabulary],
        )
        greedy = dataclasses.replace(rollout, temperature=0.0)
        training = RLTrainingConfig(
            actor_optimizer=optax.chain(
                optax.clip_by_global_norm(work.CLIP_NORM),
                optax.adamw(work.LR, *work.BETAS, weight_decay=work.WEIGHT_DECAY),
            ),
            eval_every_n_steps=1_000_000,
            max_steps=1_000_000,
            mini_batch_size=work.PROMPTS,
            train_micro_batch_size=1,
            rollout_micro_batch_size=work.PROMPTS,
            compute_logps_micro_batch_size=1,
        )
        tokenizer = work.tokenizer(folder)
        self.cluster = RLCluster(
            actor=load(),
            reference=load(),
            tokenizer=tokenizer,
            cluster_config=ClusterConfig(
                role_to_mesh=dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), mesh),
                rollout_engine="vanilla",
                training_config=training,
                rollout_config={Mode.TRAIN: rollout, Mode.EVAL: greedy},
            ),
        )
        learner = GRPOLearner(
            self.cluster,
            GRPOConfig(
                num_generations=work.GROUP, beta=work.KL, epsilon=work.CLIP, num_iterations=1
            ),
            reward_fns=lambda prompts, completions, **_: work.majority(completions),
        )
        rows = work.questions(work.PROMPTS, shape.vocabulary, False)
        self.texts = [f"<|im_start|>{row['question']}<|im_end|><|im_start|>" for row in rows]
        self.ids = np.array([tokenizer.encode(text) for text in self.texts], np.int32)
        assert self.ids.shape[1] == work.PROMPT
        self.turnstile = Turnstile(lambda: learner.train(self._batches()))

    def _batches(self) -> Iterator[dict[str, Any]]:
        # The next batch is asked for when the step before it is done.
        yield {"prompts": self.texts}
        while True:
            self.turnstile.wait()
            yield {"prompts": self.texts}

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed: one step."""
        self.turnstile.step()
        return {}

    def gate(self, given: str) -> dict[str, Any]:
        """Its greedy tokens, and what it thinks of the other side's samples."""
        other = np.load(given)
        made = self.cluster.generate(self.texts, mode=Mode.EVAL).tokens
        assert all(len(tokens) == work.NEW for tokens in made)
        wanted = other["greedy"][:, 0]
        tokens = other["tokens"].reshape(-1, other["tokens"].shape[-1])
        scored = self.cluster.get_ref_per_token_logps(
            np.repeat(self.ids, work.GROUP, 0), tokens, work.PAD, work.IM_END, work.GROUP
        )
        theirs = other["scored"].reshape(tokens.shape)
        return {
            "greedy_differ": int((np.array(made)[:, : wanted.shape[1]] != wanted).sum()),
            "logprob_gap": float(np.abs(np.asarray(scored) - theirs).max()),
        }
