"""What every side works on: two random models, their prompts and their sizes.

S and M have a two-layer vision tower and read one image of 112 x 112, 16 merged tokens of the 128
of a prompt. Their vocabulary is words that carry no meaning; one word in eight holds a boxed
number, so that majorities and advantages are not all zero. Weights are normal with deviation 0.02,
so samples are nearly uniform over the vocabulary, and no stop id is ever allowed: every response
has exactly as many tokens as it may have.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<unk>",
)
PAD, IM_START, IM_END, VISION_START, VISION_END, IMAGE, VIDEO, UNKNOWN = range(len(SPECIAL))
SIDE, IMAGE_TOKENS = 112, 16
PROMPT, NEW = 128, 128  # tokens
PROMPTS, GROUP, SAMPLES = 6, 8, 5  # P, G, M
RATE = 0.7  # part of a response that a re-inference keeps
TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>{%- endif -%}"
)


@dataclass(frozen=True)
class Size:
    """The shape of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int


SIZES = {
    "S": Size(512, 6, 8, 2, 1408, 16384),
    "M": Size(1024, 8, 16, 4, 2816, 32768),
    # Both sides and every gate in seconds: for tests of the benchmark itself.
    "tiny": Size(64, 2, 4, 2, 96, 512),
}


def words(vocabulary: int) -> list[str]:
    """The vocabulary behind the special tokens."""
    return [
        f"\\boxed{{{i // 8 % 4}}}w{i}" if i % 8 == 0 else f"w{i}"
        for i in range(len(SPECIAL), vocabulary)
    ]


def questions(
    count: int, vocabulary: int, image: bool, tokens: int = PROMPT, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows whose prompts have exactly so many tokens, each with its own words and image."""
    rng = np.random.default_rng(seed)
    vocabulary_words = words(vocabulary)
    rows = []
    for number in range(count):
        frame = 3 + (2 + IMAGE_TOKENS) * image  # <|im_start|> ... <|im_end|><|im_start|>
        chosen = rng.integers(0, len(vocabulary_words), tokens - frame)
        text = " ".join(vocabulary_words[i] for i in chosen)
        pixels = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        row = {"id": f"{seed}-{number}", "question": text}
        if image:
            row |= {"question": "<image>" + text, "images": [Image.fromarray(pixels)]}
        rows.append(row)
    return rows


def write_texts(folder: Path, size: Size, config: dict[str, Any]) -> None:
    """Everything of a Hugging Face folder but its weights."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    vocabulary = [*SPECIAL, *words(size.vocabulary)]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    contents = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [IM_END], "pad_token_id": PAD},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 32768,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 28 * 28,
            "max_pixels": SIDE * SIDE,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
        },
    }
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
