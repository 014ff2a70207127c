"""A tiny random Qwen2.5-VL that answers: some of its tokens are whole boxed answers. No torch.

    folder = answerer.make_folder(tmp_path / "model")
    policy = load_policy(folder)
    rows = answerer.rows(5)         # one without an image, one with two, all of different sizes

The model is that of tiny.py. Feature 0 of every token's embedding is large and constant, so column
0 of the head is a bias: it makes answers and stop ids likely, and tests use it to make a model want
what it must not have (see `prefer`). Random weights do the rest: what is sampled depends on the
prompt, its images and every token before.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tiny
from PIL import Image

BOXES = tuple(f"\\boxed{{{answer}}}" for answer in ("1", "2", "3", "0.5", "1/2"))
FIRST_BOX = tiny.TEXT_VOCAB + len(tiny.SPECIALS)
BOX_IDS = tuple(range(FIRST_BOX, FIRST_BOX + len(BOXES)))
FINAL_BIAS = {**dict.fromkeys(BOX_IDS, 1.6), tiny.EOS: 2.7, tiny.PAD: 2.4}


def make_folder(path: str | Path, *, seed: int = 0, max_pixels: int = 28 * 28 * 16) -> Path:
    """Writes the model with tokenizer, chat template and image processor.

    Args:
        path: the folder to make.
        seed: of the weights.
        max_pixels: the image processor's limit.

    Returns:
        The folder.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    from jaxevolve.hf.config import read_config
    from jaxevolve.hf.weights import save_params

    path = Path(path)
    tiny.torch_config().save_pretrained(path)
    tiny.make_tokenizer(path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    tokenizer.add_tokens([AddedToken(box, normalized=False) for box in BOXES])
    tokenizer.save_pretrained(path)
    tiny.write_json(path / "preprocessor_config.json", tiny.preprocessor_config(max_pixels))
    tiny.write_json(path / "generation_config.json", {"eos_token_id": [tiny.EOS, tiny.PAD]})
    save_params(random_params(read_config(path), seed), read_config(path), path)
    return path


def random_params(config: Any, seed: int) -> Any:
    """Weights wide enough that every part of the model shows in what is sampled."""
    from jaxevolve.models.qwen2_5_vl import init_params

    generator = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        noise = generator.standard_normal(leaf.shape).astype(np.float32)
        if "norm" in name or "ln_q" in name:
            return 1 + 0.2 * noise
        return (0.5 if "embed_tokens" in name else 0.15) * noise

    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    params = jax.tree_util.tree_map_with_path(draw, shapes)
    params["model"]["embed_tokens"]["weight"][:, 0] = 4.0
    return prefer(params, FINAL_BIAS)


def prefer(params: Any, bias: dict[int, float]) -> Any:
    """The same parameters with tokens made more likely, whatever stands before."""
    head = np.array(params["lm_head"]["weight"])
    for token, value in bias.items():
        head[token, 0] = value
    return {**params, "lm_head": {"weight": jnp.asarray(head)}}


def rows(count: int, seed: int = 0, *, varied: bool = True) -> list[dict[str, Any]]:
    """Questions with random images.

    Args:
        count: how many.
        seed: of the images and ids.
        varied: images and questions of several sizes, every fifth row without an image and every
            fifth with two; otherwise all of one size, so that programs are compiled once.

    Returns:
        Rows as the processor takes them, with "answer" and "family".
    """
    generator = np.random.default_rng(seed)

    def image() -> Image.Image:
        size = generator.integers(40, 140, 2) if varied else (56, 84)
        return Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8))

    made = []
    for i in range(count):
        images = [image() for _ in range({3: 0, 4: 2}.get(i % 5, 1) if varied else 1)]
        text = "find x " + "of the triangle " * (i % 3 if varied else 0)
        row = {"id": f"r{seed}-{i}", "question": "<image>" * len(images) + text, "images": images}
        made.append({**row, "answer": ("1", "2", "0.5")[i % 3], "family": "ab"[i % 2]})
    return made


def write_rows(path: str | Path, made: list[dict[str, Any]], labels: bool = True) -> Path:
    """Writes rows as JSONL with their images beside; the images are PNG files."""
    path = Path(path)
    lines = []
    for row in made:
        names = []
        for i, image in enumerate(row["images"]):
            names.append(f"{row['id']}-{i}.png")
            image.save(path.parent / names[-1])
        kept = {"id": row["id"], "problem": row["question"], "images": names}
        if labels:
            kept |= {"answer": row["answer"], "family": row["family"]}
        lines.append(json.dumps(kept) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path
