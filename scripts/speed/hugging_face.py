"""The Hugging Face side: `generate` of transformers, and an update in torch."""

from typing import Any

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    DynamicCache,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from speed import work

torch.set_num_threads(1)
BANNED = list(range(len(work.SPECIAL)))


def load(folder: str, attention: str) -> Any:
    """The folder's model, float32."""
    kind = Qwen2_5_VLForConditionalGeneration
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    model.generation_config.eos_token_id = None
    return model.eval()


def inputs(folder: str, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What the model reads; all prompts have one length."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
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
        found |= {name: pixels[name] for name in ("pixel_values", "image_grid_thw")}
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


def read_once(model: Any, inputs: dict[str, torch.Tensor], n: int) -> dict[str, Any]:
    """Prefills every prompt once and repeats its cache for n responses."""
    length = inputs["input_ids"].shape[1] - 1  # generate reads the last token itself
    short = {
        name: value[:, :length] if value.shape[0] == len(inputs["input_ids"]) and name != "image_grid_thw" else value
        for name, value in inputs.items()
    }
    model.model.rope_deltas = None
    cache = DynamicCache(config=model.config)
    model(**short, cache=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(n)
    model.model.rope_deltas = model.model.rope_deltas.repeat_interleave(n, 0)
    kept = ("input_ids", "attention_mask")
    return {name: inputs[name].repeat_interleave(n, 0) for name in kept} | {"cache": cache}


class Rollout:
    """Maternal responses by `generate`."""

    def __init__(
        self,
        folder: str,
        size: str,
        image: bool,
        n: int,
        new: int,
        shared: bool,
        attention: str = "sdpa",
        **settings: Any,
    ) -> None:
        self.model = load(folder, attention)
        questions = work.questions(work.PROMPTS, work.SIZES[size].vocabulary, image)
        self.inputs = inputs(folder, questions)
        assert self.inputs["input_ids"].shape[1] == work.PROMPT
        self.n, self.new, self.shared, self.settings = n, new, shared, settings

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed."""
        torch.manual_seed(seed)
        tokens = self._generate(self.n, self.new, do_sample=True)
        assert tokens.shape == (work.PROMPTS * self.n, self.new)
        return {"tokens": tokens.numel()}

    @torch.no_grad()
    def gate(self, given: str) -> dict[str, float]:
        """How far the other side's tokens and log-probabilities are from ours."""
        other = np.load(given)
        greedy = self._generate(1, other["greedy"].shape[-1], do_sample=False).numpy()
        tokens = torch.tensor(other["tokens"].reshape(-1, other["tokens"].shape[-1])).long()
        scored = logprobs(self.model, repeat(self.inputs, self.n), tokens).numpy()
        gap = lambda name: float(np.abs(scored - other[name].reshape(scored.shape)).max())
        return {
            "greedy_differ": int((greedy != other["greedy"][:, 0]).sum()),
            "logprob_gap": gap("scored"),
            "sampled_logprob_gap": gap("sampled"),
        }

    @torch.no_grad()
    def _generate(self, n: int, new: int, do_sample: bool) -> torch.Tensor:
        rules = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if do_sample else {}
        given = read_once(self.model, self.inputs, n) if self.shared else self.inputs
        made = self.model.generate(
            **given,
            max_new_tokens=new,
            do_sample=do_sample,
            num_return_sequences=1 if self.shared else n,
            suppress_tokens=BANNED,
            pad_token_id=work.PAD,
            **rules,
            **self.settings,
        )
        return made[:, self.inputs["input_ids"].shape[1] :]


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
        logits = torch.log_softmax(logits, -1)
        found.append(logits.gather(-1, own[..., None])[..., 0])
    return torch.cat(found)
