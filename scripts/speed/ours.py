"""jaxevolve's side: every call into the product that is timed stands here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxevolve.hf.config import write_config
from jaxevolve.hf.export import export_folder
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.models.qwen2_5_vl import init_params
from jaxevolve.policy import Policy, load_policy, step_key
from jaxevolve.rollout.generate import generate
from jaxevolve.rollout.sampling import Sampling
from speed import work


class Models:
    """Makes the folders that all sides load."""

    def make(self, out: str, size: str, image: bool) -> None:
        """Random weights by our export, so that every side has the same."""
        shape = work.SIZES[size]
        half = shape.hidden // shape.heads // 2
        vision = VisionConfig(
            depth=2,
            hidden_size=128,
            intermediate_size=256,
            num_heads=2,
            patch_size=14,
            temporal_patch_size=2,
            spatial_merge_size=2,
            window_size=56,
            fullatt_block_indexes=(1,),
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
        export_folder(params, config, texts, out)


def load(folder: str) -> Policy:
    """The policy, with nothing that ends a response."""
    policy = load_policy(folder)
    processor = policy.processor
    banned = np.union1d(processor.banned_ids, np.arange(len(work.SPECIAL)))
    return replace(policy, processor=replace(processor, stop_ids=(), banned_ids=banned))


def rules(policy: Policy) -> Sampling:
    """Plain sampling without stop ids."""
    return Sampling(1.0, 0, (), tuple(map(int, policy.processor.banned_ids)))


class Rollout:
    """Maternal responses by the engine."""

    def __init__(self, folder: str, size: str, image: bool, n: int, new: int, rows: int) -> None:
        self.policy = load(folder)
        questions = work.questions(work.PROMPTS, work.SIZES[size].vocabulary, image)
        self.prompts = self.policy.prompts(questions)
        assert (self.prompts.length == work.PROMPT).all()
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
            rules=rules(self.policy),
            width=self.n,
            chunk=self.new,
        )
