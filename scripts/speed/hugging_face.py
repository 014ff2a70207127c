"""The Hugging Face side: `generate` of transformers, and an update in torch."""

from typing import Any

import numpy as np
import torch
from transformers import (
    DynamicCache,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from speed import work

torch.set_num_threads(1)
BANNED = list(range(len(work.SPECIAL)))


def load(folder: str, attention: str = "sdpa", dtype: str = "float32") -> Any:
    """The folder's model on torch's default device; sdpa and a dynamic cache are its fastest."""
    kind = Qwen2_5_VLForConditionalGeneration
    model = kind.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    model.generation_config.eos_token_id = None
    return model.to(torch.get_default_device()).eval()


def inputs(folder: str, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What the model reads; all prompts have one length."""
    tokenizer = work.tokenizer(folder)
    pads = f"<|vision_start|>{'<|image_pad|>' * work.IMAGE_TOKENS}<|vision_end|>"
    texts = [
        f"<|im_start|>{row['question'].replace('<image>', pads)}<|im_end|><|im_start|>"
        for row in rows
    ]
    ids = torch.tensor([tokenizer(text)["input_ids"] for text in texts])
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "images" in rows[0]:
        images = [row["images"][0] for row in rows]
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        pixels = processor(images=images, return_tensors="pt")
        names = ("pixel_values", "image_grid_thw")
        found |= {name: pixels[name].to(ids.device) for name in names}
        found["mm_token_type_ids"] = (ids == work.IMAGE).long()
    return found


def repeat(inputs: dict[str, torch.Tensor], n: int) -> dict[str, torch.Tensor]:
    """Every prompt n times, its image as well."""
    patches = (work.SIDE // 14) ** 2
    repeated = {}
    for name, value in inputs.items():
        if name == "pixel_values":
            value = value.reshape(-1, patches, value.shape[-1]).repeat_interleave(n, 0)
            repeated[name] = value.reshape(-1, value.shape[-1])
        else:
            repeated[name] = value.repeat_interleave(n, 0)
    return repeated


def select(inputs: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Some rows."""
    patches = (work.SIDE // 14) ** 2
    chosen = {}
    for name, value in inputs.items():
        if name == "pixel_values":
            chosen[name] = value.reshape(-1, patches, value.shape[-1])[rows].flatten(0, 1)
        else:
            chosen[name] = value[rows]
    return chosen


def read_once(model: Any, inputs: dict[str, torch.Tensor], n: int) -> dict[str, Any]:
    """Prefills every prompt once and repeats its cache for n responses."""
    per_token = ("input_ids", "attention_mask", "mm_token_type_ids")
    # generate reads the last token itself.
    short = {name: x[:, :-1] if name in per_token else x for name, x in inputs.items()}
    cache = DynamicCache(config=model.config)
    model.model.rope_deltas = None
    model(**short, cache=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(n)
    model.model.rope_deltas = model.model.rope_deltas.repeat_interleave(n, 0)
    kept = ("input_ids", "attention_mask")
    return {name: inputs[name].repeat_interleave(n, 0) for name in kept} | {"cache": cache}


def sample(
    model: Any,
    inputs: dict[str, torch.Tensor],
    n: int,
    new: int,
    *,
    shared: bool,
    greedy: bool = False,
) -> torch.Tensor:
    """i64[P * n, new]: n responses a prompt, by `generate`.

    Args:
        model: the model.
        inputs: P prompts.
        n: responses a prompt.
        new: tokens of each.
        shared: prefill every prompt once; `generate` by itself repeats it n times.
        greedy: take the most likely token.
    """
    # top_k is 50 unless it is told otherwise.
    rules = {} if greedy else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    made = model.generate(
        **(read_once(model, inputs, n) if shared else inputs),
        max_new_tokens=new,
        do_sample=not greedy,
        num_return_sequences=1 if shared else n,
        suppress_tokens=BANNED,
        pad_token_id=work.PAD,
        **rules,
    )
    return made[:, inputs["input_ids"].shape[1] :]


def fork(
    inputs: dict[str, torch.Tensor], tokens: torch.Tensor, deviation: float
) -> dict[str, torch.Tensor]:
    """Prompts with the kept part i64[B, A] of a response behind them, and noise in their images."""
    ids = torch.cat([inputs["input_ids"], tokens], 1)
    types = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], 1)
    mean, std = (torch.tensor(x)[:, None, None] for x in (work.MEAN, work.STD))
    # Patches are (channel, time, row, column), and a still image repeats its frame over time.
    pixels = inputs["pixel_values"].reshape(-1, 3, 2, 14 * 14)
    noise = deviation * torch.randn(len(pixels), 3, 1, 14 * 14)
    pixels = (torch.clamp(pixels * std + mean + noise, 0.0, 1.0) - mean) / std
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels.reshape(inputs["pixel_values"].shape),
        "image_grid_thw": inputs["image_grid_thw"],
        "mm_token_type_ids": types,
    }


class Rollout:
    """Maternal responses."""

    def __init__(
        self,
        folder: str,
        size: str,
        image: bool,
        n: int,
        new: int,
        shared: bool,
        prompts: int = work.PROMPTS,
        tokens: int = work.PROMPT,
        dtype: str = "float32",
    ) -> None:
        self.model = load(folder, dtype=dtype)
        questions = work.questions(prompts, work.SIZES[size].vocabulary, image, tokens)
        self.inputs = inputs(folder, questions)
        assert self.inputs["input_ids"].shape[1] == tokens
        self.n, self.new, self.shared = n, new, shared

    @torch.no_grad()
    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        torch.manual_seed(seed)
        tokens = sample(self.model, self.inputs, self.n, self.new, shared=self.shared)
        assert tokens.shape == (len(self.inputs["input_ids"]) * self.n, self.new)
        return {"tokens": tokens.numel()}

    @torch.no_grad()
    def gate(self, given: str) -> dict[str, Any]:
        """How far the other side's tokens and log-probabilities are from these."""
        other = np.load(given)
        new = other["greedy"].shape[-1]
        greedy = sample(self.model, self.inputs, 1, new, shared=self.shared, greedy=True)
        tokens = torch.tensor(other["tokens"].reshape(-1, other["tokens"].shape[-1])).long()
        scored = logprobs(self.model, repeat(self.inputs, self.n), tokens).cpu().numpy()
        apart = lambda name: np.abs(scored - other[name].reshape(scored.shape))
        return {
            "greedy_differ": int((greedy.cpu().numpy() != other["greedy"][:, 0]).sum()),
            "logprob_gap": float(apart("scored").max()),
            "mean_logprob_gap": float(apart("scored").mean()),
            "sampled_logprob_gap": float(apart("sampled").max()),
        }


class Reinference:
    """Re-inferences: one prefill an anchor, its cache repeated for the samples that follow."""

    def __init__(self, folder: str, size: str, prompts: int) -> None:
        self.model = load(folder)
        vocabulary = work.SIZES[size].vocabulary
        self.inputs = repeat(inputs(folder, work.questions(prompts, vocabulary, True)), work.GROUP)
        tokens = work.responses(prompts, vocabulary, False)["tokens"]
        self.kept = torch.tensor(tokens).flatten(0, 1)[:, : work.KEPT].long()

    @torch.no_grad()
    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        torch.manual_seed(seed)
        forked = fork(self.inputs, self.kept, work.NOISE)
        made = sample(self.model, forked, work.SAMPLES, work.NEW - work.KEPT, shared=True)
        assert made.shape == (len(self.kept) * work.SAMPLES, work.NEW - work.KEPT)
        return {"tokens": made.numel()}

    @torch.no_grad()
    def gate(self, given: str) -> dict[str, Any]:
        """The same without noise against the other side's tokens and log-probabilities."""
        other = np.load(given)
        forked = fork(self.inputs, self.kept, 0.0)
        new = work.NEW - work.KEPT
        greedy = sample(self.model, forked, 1, new, shared=True, greedy=True).numpy()
        tokens = torch.tensor(other["tokens"].reshape(-1, new)).long()
        scored = logprobs(self.model, repeat(forked, work.SAMPLES), tokens).numpy()
        return {
            "greedy_differ": int((greedy != other["greedy"].reshape(greedy.shape)).sum()),
            "logprob_gap": float(np.abs(scored - other["sampled"].reshape(scored.shape)).max()),
        }


def logprobs(model: Any, inputs: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities f32[B, L] of given responses i64[B, L], a few rows at a time."""
    model.model.rope_deltas = None
    found, piece, patches = [], 8, (work.SIDE // 14) ** 2
    for first in range(0, len(tokens), piece):
        own = tokens[first : first + piece]
        part = {}
        for name, value in inputs.items():
            width = piece * patches if name == "pixel_values" else piece
            start = first * patches if name == "pixel_values" else first
            part[name] = value[start : start + width]
        part["input_ids"] = torch.cat([part["input_ids"], own], 1)
        part["attention_mask"] = torch.ones_like(part["input_ids"])
        if "mm_token_type_ids" in part:
            part["mm_token_type_ids"] = torch.cat(
                [part["mm_token_type_ids"], torch.zeros_like(own)], 1
            )
        logits = model(**part, use_cache=False, logits_to_keep=own.shape[1] + 1).logits[:, :-1]
        logits = torch.log_softmax(logits.float(), -1)
        found.append(logits.gather(-1, own[..., None])[..., 0])
    return torch.cat(found)
