"""The GRPO update in torch on a model of transformers."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from jaxevolve.answers.grading import grade
from jaxevolve.rewards import softened_frequency
from speed import work
from speed.hugging_face import fork, inputs, load, logprobs, repeat, sample, select


def token_logprobs(
    model: Any, inputs: dict[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """Log-probabilities f32[B, L] of responses i64[B, L] behind prompts of one length.

    Only the positions that predict a response's tokens go through the head.
    """
    model.model.rope_deltas = None
    ids = torch.cat([inputs["input_ids"], tokens], 1)
    own = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "pixel_values" in inputs:
        types = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], 1)
        own |= {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        own["mm_token_type_ids"] = types
    kept = tokens.shape[1] + 1
    logits = model(**own, use_cache=False, logits_to_keep=kept).logits[:, :-1]
    losses = cross_entropy(
        logits.reshape(-1, logits.shape[-1]), tokens.reshape(-1), reduction="none"
    )
    return -losses.reshape(tokens.shape)


def grpo_loss(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    reference: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Clipped policy-gradient loss with a low-variance KL term, a weighted sum over tokens."""
    advantages = advantages[:, None]
    ratio = torch.exp(logprobs - old)
    clipped = torch.clamp(ratio, 1 - work.CLIP, 1 + work.CLIP)
    losses = torch.maximum(-advantages * ratio, -advantages * clipped)
    losses = torch.where(
        advantages < 0, torch.minimum(losses, -advantages * work.DUAL_CLIP), losses
    )
    distance = reference - logprobs
    losses = losses + work.KL * (torch.exp(distance) - distance - 1)
    return (losses * weights).sum()


class Learner:
    """Policy, reference and optimizer."""

    def __init__(self, folder: str, micro: int, attention: str) -> None:
        self.policy = load(folder, attention)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.micro = micro
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=work.LR,
            betas=work.BETAS,
            weight_decay=work.WEIGHT_DECAY,
            fused=True,
        )

    def gradients(
        self,
        inputs: dict[str, torch.Tensor],
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        advantages: torch.Tensor,
        old: torch.Tensor | None,
    ) -> float:
        """Adds up gradients over micro-batches; without `old`, the policy has just sampled."""
        self.optimizer.zero_grad(set_to_none=True)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        weights = mask / mask.sum()
        total = 0.0
        # Sorted by length, so that a micro-batch is padded to its own longest.
        order = torch.argsort(lengths, stable=True)
        for first in range(0, len(tokens), self.micro):
            rows = order[first : first + self.micro]
            longest = int(lengths[rows].max())
            part, own = select(inputs, rows), tokens[rows, :longest]
            with torch.no_grad():
                reference = token_logprobs(self.reference, part, own)
            logprobs = token_logprobs(self.policy, part, own)
            before = logprobs.detach() if old is None else old[rows, :longest]
            loss = grpo_loss(logprobs, before, reference, advantages[rows], weights[rows, :longest])
            loss.backward()
            total += loss.item()
        return total

    def step(self) -> float:
        """Clips and applies the gradients; their norm before that."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), work.CLIP_NORM)
        self.optimizer.step()
        return float(norm)


class Step:
    """A whole CSRS step, written on `generate` with its best use of the cache."""

    def __init__(self, folder: str, size: str, micro: int) -> None:
        self.learner = Learner(folder, micro, "sdpa")
        self.tokenizer = work.tokenizer(folder)
        questions = work.questions(work.PROMPTS, work.SIZES[size].vocabulary, True)
        self.inputs = inputs(folder, questions)

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed: 6 x 8 responses, 5 re-inferences of each, rewards, an update."""
        torch.manual_seed(seed)
        model, repeated = self.learner.policy, repeat(self.inputs, work.GROUP)
        with torch.no_grad():
            tokens = sample(model, self.inputs, work.GROUP, work.NEW, shared=True)
            forked = fork(repeated, tokens[:, : work.KEPT], work.NOISE)
            again = sample(model, forked, work.SAMPLES, work.NEW - work.KEPT, shared=True)
        kept = tokens[:, : work.KEPT].repeat_interleave(work.SAMPLES, 0)
        decode = lambda x: self.tokenizer.batch_decode(x, skip_special_tokens=True)
        own, more = decode(tokens), decode(torch.cat([kept, again], 1))
        group, samples = work.GROUP, work.GROUP * work.SAMPLES
        texts = [
            own[p * group : (p + 1) * group] + more[p * samples : (p + 1) * samples]
            for p in range(work.PROMPTS)
        ]
        classes = grade(texts, [None] * work.PROMPTS).classes
        reclasses = classes[:, group:].reshape(work.PROMPTS, group, -1)
        rewards = np.asarray(softened_frequency(classes[:, :group], reclasses, 0.2, 5.0, 1e-6))
        advantages = torch.tensor(rewards - rewards.mean(1, keepdims=True)).flatten()
        lengths = torch.full((len(tokens),), work.NEW)
        loss = self.learner.gradients(repeated, tokens, lengths, advantages, None)
        norm = self.learner.step()
        return {"loss": loss, "grad_norm": norm, "reward": float(rewards.mean())}

    @torch.no_grad()
    def gate(self, given: str) -> dict[str, Any]:
        """What it thinks of the other side's samples."""
        other = np.load(given)
        tokens = torch.tensor(other["tokens"].reshape(-1, other["tokens"].shape[-1])).long()
        inputs = repeat(self.inputs, work.GROUP)
        scored = logprobs(self.learner.policy, inputs, tokens).numpy()
        return {"logprob_gap": float(np.abs(scored - other["scored"].reshape(scored.shape)).max())}


class Update:
    """One update on drawn responses."""

    def __init__(
        self, folder: str, size: str, prompts: int, micro: int, attention: str = "sdpa"
    ) -> None:
        self.learner = Learner(folder, micro, attention)
        questions = work.questions(prompts, work.SIZES[size].vocabulary, True)
        self.inputs = repeat(inputs(folder, questions), work.GROUP)

    def take(self, given: str) -> None:
        """Takes what both sides learn from."""
        drawn = {name: torch.tensor(value) for name, value in np.load(given).items()}
        flat = {name: value.flatten(0, 1) for name, value in drawn.items()}
        self.batch = (flat["tokens"].long(), flat["lengths"], flat["advantages"], flat["old"])

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        loss = self.learner.gradients(self.inputs, *self.batch)
        return {"loss": loss, "grad_norm": self.learner.step()}

    def gate(self, given: str) -> dict[str, Any]:
        """Loss, norm and first moments at the first parameters against those of the other side."""
        policy = self.learner.policy
        policy.load_state_dict(self.learner.reference.state_dict())
        loss = self.learner.gradients(self.inputs, *self.batch)
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), work.CLIP_NORM)
        moments = load_file(next(Path(given).glob("*.safetensors")))
        worst = 0.0
        for name, parameter in policy.named_parameters():
            wanted = (1 - work.BETAS[0]) * parameter.grad
            # Keys of attention are blind to their bias: its gradient is zero but for rounding.
            if not name.endswith("k_proj.bias"):
                gap = (moments[on_disk(name, moments)] - wanted).abs().max() / wanted.abs().max()
                worst = max(worst, float(gap))
        return {"loss": loss, "grad_norm": float(norm), "gradient_gap": worst}


def on_disk(name: str, found: dict[str, Any]) -> str:
    """A parameter's name in the file, which may be spelled as the released models are."""
    if name in found:
        return name
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
