"""Whole steps of TRL's GRPOTrainer, on images or on text."""

from typing import Any

import numpy as np
import torch
import trl.trainer.utils
from datasets import Dataset
from transformers import (
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from speed import hugging_face, work
from speed.turnstile import Turnstile

torch.set_num_threads(1)


class StillProcessor(Qwen2_5_VLProcessor):
    """The processor without its video half, which needs torchvision."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None
    ) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def check_argument_for_proper_class(self, name: str, argument: Any) -> type:
        return type(argument)


def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """Majority voting on what the trainer hands out: the assistant's turns."""
    return work.majority([turns[0]["content"] for turns in completions])


class Step:
    """GRPO by majority voting, one image a prompt."""

    def __init__(self, folder: str, size: str, compact: bool, out: str) -> None:
        # As on a GPU: only the positions of responses go through the head.
        trl.trainer.utils._use_triton = lambda device: compact
        tokenizer = work.tokenizer(folder)
        processor = StillProcessor(
            Qwen2VLImageProcessorPil.from_pretrained(folder),
            tokenizer,
            tokenizer.chat_template,
        )
        rows = work.questions(work.PROMPTS, work.SIZES[size].vocabulary, True)
        prompts = [
            {
                "prompt": [{"role": "user", "content": row["question"].removeprefix("<image>")}],
                "image": row["images"][0],
            }
            for row in rows
        ]
        config = GRPOConfig(
            output_dir=out,
            model_init_kwargs={"dtype": torch.float32},
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            learning_rate=work.LR,
            lr_scheduler_type="constant",
            weight_decay=work.WEIGHT_DECAY,
            max_grad_norm=work.CLIP_NORM,
            beta=work.KL,
            epsilon=work.CLIP,
            num_generations=work.GROUP,
            per_device_train_batch_size=work.GROUP,
            gradient_accumulation_steps=work.PROMPTS,
            max_completion_length=work.NEW,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            generation_kwargs={"suppress_tokens": hugging_face.BANNED},
            max_steps=1_000_000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1_000_000,
            shuffle_dataset=False,
        )
        self.trainer = GRPOTrainer(
            model=folder,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(prompts),
            processing_class=processor,
            callbacks=[_AfterStep(self)],
        )
        self.turnstile = Turnstile(self.trainer.train)
        self.inputs = hugging_face.inputs(folder, rows)

    def run(self, seed: int) -> dict[str, Any]:
        """What is timed: one step."""
        self.turnstile.step()
        told = self.trainer._metrics["train"]
        length, cut = (told[f"completions/{name}"][-1] for name in ("mean_length", "clipped_ratio"))
        assert length == work.NEW, length
        assert cut == 1.0, cut
        return {}

    @torch.no_grad()
    def gate(self, given: str) -> dict[str, Any]:
        """Log-probabilities of the trainer's own scoring at the first parameters."""
        other = np.load(given)
        tokens = torch.tensor(other["tokens"].reshape(-1, other["tokens"].shape[-1])).long()
        inputs = hugging_face.repeat(self.inputs, work.GROUP)
        ids = torch.cat([inputs["input_ids"], tokens], 1)
        types = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], 1)
        model = self.trainer.model
        scored = self.trainer._get_per_token_logps_and_entropies(
            model,
            ids,
            torch.ones_like(ids),
            tokens.shape[1],
            batch_size=work.GROUP,
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            num_images=[1] * len(ids),
            mm_token_type_ids=types,
        )[0]
        theirs = other["scored"].reshape(scored.shape)
        return {"logprob_gap": float(np.abs(scored.numpy() - theirs).max())}


class _AfterStep(TrainerCallback):
    def __init__(self, step: Step) -> None:
        self.step = step

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.step.turnstile.wait()
