"""How large is everything? Shapes of released models, and the largest shapes that a config allows.

Prompts are of `data.max_prompt_tokens` and filled by an image, responses of `rollout.max_tokens`,
anchors as late as they can be.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from jaxevolve.hf.config import read_config
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.policy import WIDTH
from jaxevolve.rollout import engine
from jaxevolve.rollout.device import READ_AT_ONCE
from jaxevolve.rollout.retrace import anchors, forked_size
from jaxevolve.runtime import checkpoint
from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.errors import UserError

LONGEST_SIDE = 2  # of the image that fills a prompt, in its shorter sides

_VISION = VisionConfig(
    depth=32,
    hidden_size=1280,
    intermediate_size=3420,
    num_heads=16,
    patch_size=14,
    temporal_patch_size=2,
    spatial_merge_size=2,
    window_size=112,
    fullatt_block_indexes=(7, 15, 23, 31),
    out_hidden_size=0,
)


def _released(
    hidden: int, units: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> Config:
    return Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=units,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        mrope_section=(16, 24, 24),
        tie_word_embeddings=tied,
        image_token_id=151655,
        video_token_id=151656,
        vision_start_token_id=151652,
        vision_end_token_id=151653,
        vision=VisionConfig(**{**vars(_VISION), "out_hidden_size": hidden}),
    )


# config.json of the released models, so that nothing need be downloaded to plan for them.
RELEASED = {
    "Qwen2.5-VL-3B-Instruct": _released(2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-VL-7B-Instruct": _released(3584, 18944, 28, 28, 4, 152064, False),
}


def model_config(path: str) -> Config:
    """The shape of a model: from its folder, or by the name of a released one.

    Raises:
        UserError: there is neither.
    """
    folder = Path(path)
    if not folder.exists() and folder.name in RELEASED:
        return RELEASED[folder.name]
    if not folder.exists():
        raise UserError(
            f"model.path={path} does not exist and is none of {', '.join(RELEASED)}; give a folder "
            "with a config.json"
        )
    return read_config(checkpoint.find(folder) if checkpoint.is_run(folder) else folder)


@dataclass(frozen=True)
class Sizes:
    """The largest shapes of a run.

    Attributes:
        prompt: T, tokens of a prompt.
        anchor: T of a prompt with the kept part of a response.
        pool: T that the pool has room for.
        windows: W.
        response: L, tokens of a response.
        group: G, responses of a prompt that are trained on.
        rows: B, responses that a process decodes together.
        seats: N, prompts that have been read.
        read: J, prompts that are read at once.
        width: most rows of one prompt.
    """

    prompt: int
    anchor: int
    pool: int
    windows: int
    response: int
    group: int
    rows: int
    seats: int
    read: int
    width: int


def sizes(config: ConfigDict, vision: VisionConfig | None, shards: int) -> Sizes:
    """The largest shapes of a config.

    Args:
        config: the run's config.
        vision: the model's tower, if it has one.
        shards: parts that a process splits its rows into.
    """
    response, prompt = config.rollout.max_tokens, bucket(config.data.max_prompt_tokens)
    anchor, settings = prompt, config.retrace
    if settings.m:
        kept, _ = anchors(
            np.array([response]),
            np.array([False]),
            rule="token" if settings.anchor == "token" else "fraction",
            rate=settings.rate if settings.anchor == "fraction" else 1.0,
            token=settings.token,
            max_tokens=response,
        )
        whole = config.data.max_prompt_tokens + int(kept[0])
        anchor = forked_size(prompt, whole, response)
    group = config.rollout.n
    fewest = 1 if settings.noise_per == "sample" else min(group, settings.m or group)
    table = engine.sizes(config.rollout.rows, max(group, settings.m, WIDTH), fewest, shards, None)
    return Sizes(
        prompt=prompt,
        anchor=anchor,
        pool=forked_size(prompt, prompt + response, response) if settings.m else prompt,
        windows=0 if vision is None else bucket(image_windows(prompt, vision)),
        response=response,
        group=group * (1 + settings.m * settings.train),
        rows=table.rows[0],
        seats=table.seats,
        read=READ_AT_ONCE * shards,
        width=max(group, settings.m, WIDTH),
    )


def image_windows(tokens: int, vision: VisionConfig) -> int:
    """Most windows of an image of so many tokens and no more than LONGEST_SIDE times as long."""
    side = vision.window_units
    most = 0
    for short in range(1, int(tokens**0.5) + 1):
        long = min(tokens // short, LONGEST_SIDE * short)
        most = max(most, -(-short // side) * -(-long // side))
    return most
