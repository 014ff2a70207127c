"""What every side works on: two random models, their prompts and their sizes.

S and M have a two-layer vision tower and read one image of 112 x 112, 16 merged tokens of the 128
of a prompt. Their vocabulary is words that carry no meaning; one word in eight holds a boxed
number, so that majorities and advantages are not all zero. Weights are normal with deviation 0.02,
so samples are nearly uniform over the vocabulary, and no stop id is ever allowed: every response
has exactly as many tokens as it may have.
"""

import json
import re
from collections import Counter
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
ROWS = PROMPTS * GROUP  # that are decoded together
KEPT = 89  # tokens of a response that a re-inference keeps: 0.7 of 128
NOISE = 0.1  # standard deviation in the image of an anchor, of pixels in [0, 1]
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CHUNK = 16  # tokens between two looks at which responses have ended, where lengths differ
STOP_SHARE = 0.016  # of the vocabulary that ends a response, where lengths are to differ
# Of the GRPO update on all sides; the defaults of configs/common.py.
CLIP, DUAL_CLIP, KL = 0.2, 3.0, 0.01
LR, WEIGHT_DECAY, BETAS, CLIP_NORM = 1e-4, 0.01, (0.9, 0.999), 1.0
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
class Vision:
    """The shape of a vision tower: windows in pixels, and the layers that see whole images."""

    layers: int = 2
    hidden: int = 128
    feed_forward: int = 256
    heads: int = 2
    window: int = 56
    whole: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Size:
    """The shape of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    vision: Vision = Vision()


SIZES = {
    "S": Size(512, 6, 8, 2, 1408, 16384),
    "M": Size(1024, 8, 16, 4, 2816, 32768),
    # Qwen2.5-VL-3B, for accelerators.
    "3B": Size(2048, 36, 16, 2, 11008, 151936, Vision(32, 1280, 3420, 16, 112, (7, 15, 23, 31))),
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
    count: int,
    vocabulary: int,
    image: bool,
    tokens: int = PROMPT,
    side: int = SIDE,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows whose prompts have exactly so many tokens, each with its own words and image.

    Args:
        count: P.
        vocabulary: of the model.
        image: whether each has one.
        tokens: of each prompt, the image's and the chat's frame counted.
        side: of the square images, in pixels, a multiple of 28.
        seed: of words and pixels.
    """
    rng = np.random.default_rng(seed)
    known = words(vocabulary)
    frame = 3  # <|im_start|> ... <|im_end|><|im_start|>
    if image:
        frame += 2 + (side // 28) ** 2
    rows = []
    for number in range(count):
        text = " ".join(known[i] for i in rng.integers(0, len(known), tokens - frame))
        row = {"id": f"{seed}-{number}", "question": text}
        if image:
            pixels = rng.integers(0, 256, (side, side, 3), np.uint8)
            row |= {"question": "<image>" + text, "images": [Image.fromarray(pixels)]}
        rows.append(row)
    return rows


def mixed(count: int, vocabulary: int, seed: int) -> list[dict[str, Any]]:
    """Rows of prompts of 70 to 128 tokens with images of 56 to 112 pixels."""
    rng = np.random.default_rng(seed)
    sizes = zip(rng.integers(70, PROMPT + 1, count), rng.choice([56, 84, 112], count))
    return [
        questions(1, vocabulary, True, int(tokens), int(side), 100 * seed + i)[0]
        for i, (tokens, side) in enumerate(sizes)
    ]


def responses(prompts: int, vocabulary: int, ragged: bool) -> dict[str, np.ndarray]:
    """Drawn responses [P, G, L], their lengths and their advantages.

    Ragged lengths are uniform in [16, 128], and one is 128: 0.56 of the padded batch is tokens.
    """
    rng = np.random.default_rng(1)
    shape = (prompts, GROUP)
    lengths = np.full(shape, NEW, np.int32)
    if ragged:
        lengths = rng.integers(16, NEW + 1, shape).astype(np.int32)
        lengths[0, 0] = NEW
    tokens = rng.integers(len(SPECIAL), vocabulary, (*shape, NEW)).astype(np.int32)
    tokens[np.arange(NEW) >= lengths[..., None]] = 0
    return {
        "tokens": tokens,
        "lengths": lengths,
        "advantages": rng.normal(size=shape).astype(np.float32),
    }


def majority(texts: list[str]) -> list[float]:
    """1 for the most frequent boxed answer of a group, whose responses follow each other."""
    found = [re.findall(r"\\boxed\{([^}]*)\}", text) for text in texts]
    answers = [boxes[-1] if boxes else None for boxes in found]
    rewards = []
    for first in range(0, len(answers), GROUP):
        group = answers[first : first + GROUP]
        votes = Counter(answer for answer in group if answer is not None).most_common(1)
        rewards += [float(bool(votes) and answer == votes[0][0]) for answer in group]
    return rewards


def stop_ids(vocabulary: int) -> tuple[int, ...]:
    """Words that end a response, so many that a response of at most 128 has 0.4 of that."""
    return tuple(range(len(SPECIAL), len(SPECIAL) + round(STOP_SHARE * vocabulary)))


def tokenizer(folder: str) -> Any:
    """The folder's tokenizer as it is, with padding on the left."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")


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
            "image_mean": MEAN,
            "image_std": STD,
        },
    }
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
