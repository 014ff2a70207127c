"""How does a trained model become a folder that `transformers` and vLLM load?"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from jaxevolve.hf.config import read_image_config, read_json, read_stop_ids, write_config
from jaxevolve.hf.weights import Params, save_params
from jaxevolve.models.config import Config
from jaxevolve.runtime.errors import UserError

# Everything a reader may want beside weights and config.json; what the source has is copied.
COPIED = (
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "LICENSE",
    "NOTICE",
)


def export_folder(
    params: Params,
    config: Config,
    source_folder: str | Path,
    out: str | Path,
    dtype: str | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a complete Hugging Face folder.

    It is made beside `out` and renamed when it is complete, so `out` never exists in part. Every
    process calls it; the first one writes.

    Args:
        params: the parameter tree.
        config: the model's shape.
        source_folder: the folder that the model came with; its config.json's layout, stop ids,
            tokenizer, chat template and image processor go along unchanged.
        out: the folder to make; it does not exist or is empty.
        dtype: of the weights on disk, as "bfloat16"; None keeps that of the parameters.
        max_shard_bytes: size limit of one weight file.

    Raises:
        UserError: `out` is not empty, or the source lacks a part that readers need.
    """
    source, out = Path(source_folder), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; give another folder or remove it")
    made = _made(source, config, dtype or _dtype(params))
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    if jax.process_index() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # What an interrupted export left.
    save_params(params, config, partial, max_shard_bytes, dtype)
    if jax.process_index() == 0:
        copy_texts(source, partial)
        for name, content in made.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (partial / name).write_text(text, encoding="utf-8")
        if out.exists():
            out.rmdir()
        os.replace(partial, out)


def copy_texts(source_folder: str | Path, out: str | Path) -> None:
    """Copies all that belongs to a model except its weights.

    Args:
        source_folder: a Hugging Face folder.
        out: the folder to copy to; made if missing. With it beside the parameters, a checkpoint
            can be exported without the source.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *COPIED):
        if (Path(source_folder) / name).exists():
            shutil.copyfile(Path(source_folder) / name, out / name)


def _made(source: Path, config: Config, dtype: str) -> dict[str, dict[str, Any]]:
    """The files that are not plain copies, after a check that the rest is there."""
    made = {"config.json": write_config(config, source, dtype)}
    if not (source / "generation_config.json").exists():
        made["generation_config.json"] = {"eos_token_id": list(read_stop_ids(source))}
    if config.vision is not None:
        images = read_image_config(source)
        if not images:
            raise UserError(f"{source} has no preprocessor_config.json; copy it from the model")
        complete = {"image_processor_type": "Qwen2VLImageProcessor", **images}
        if complete != images or not (source / "preprocessor_config.json").exists():
            made["preprocessor_config.json"] = complete
    settings = read_json(source / "tokenizer_config.json")
    if not (source / "tokenizer.json").exists() and not (source / "vocab.json").exists():
        raise UserError(f"{source} has no tokenizer.json; copy it from the model")
    templates = (source / "chat_template.jinja", source / "chat_template.json")
    if "chat_template" not in settings and not any(path.exists() for path in templates):
        raise UserError(f"{source} has no chat template; add chat_template.jinja")
    return made


def _dtype(params: Params) -> str:
    kinds = {np.dtype(leaf.dtype).name for leaf in flatten_dict(params).values()}
    if len(kinds) > 1:
        raise UserError(f"the parameters have several dtypes, {', '.join(sorted(kinds))}; name one")
    return kinds.pop()
