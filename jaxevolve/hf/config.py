"""How does a folder describe its model? Every published spelling of config.json, read strictly.

Three generations of `transformers` wrote Qwen2.5-VL configs: text fields at the top level with
`rope_theta` and `rope_scaling` (the released models), a mix with a nested `text_config`, and
`text_config` alone with everything about rotation inside `rope_parameters`. A value may stand on
both levels; then both must agree.
"""

import json
from pathlib import Path
from typing import Any

from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.runtime.errors import UserError

SUPPORTED = {"qwen2_5_vl": "Qwen2.5-VL", "qwen2": "Qwen2 and Qwen2.5, text only"}

# A nested section holds only what differs from the class's defaults when some releases wrote it.
# These are the defaults of all releases of `transformers` that know the class.
_NESTED_TEXT_DEFAULTS = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_VISION_DEFAULTS = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "out_hidden_size": 3584,
    "in_channels": 3,
}
_TEXT_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


def read_json(path: str | Path) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        path: the file.

    Returns:
        The object.

    Raises:
        UserError: the file is missing or is not a JSON object.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a folder that holds {path.name}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); restore the file") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}; it has to hold a JSON object")
    return value


def read_config(folder: str | Path) -> Config:
    """Reads the model's shape from a Hugging Face folder.

    Args:
        folder: holds config.json in any published spelling, of Qwen2.5-VL or of a text-only Qwen2.

    Returns:
        The same `Config` for every spelling of the same model.

    Raises:
        UserError: an unsupported model or option, a missing value, or two levels that disagree.
    """
    path = Path(folder) / "config.json"
    return parse_config(read_json(path), str(path), read_image_config(folder))


def read_image_config(folder: str | Path) -> dict[str, Any]:
    """Reads the image processor's settings.

    Args:
        folder: a Hugging Face folder.

    Returns:
        The content of preprocessor_config.json, or the image part of processor_config.json, where
        recent releases put it; empty when the folder has neither.

    Raises:
        UserError: a file cannot be read.
    """
    folder = Path(folder)
    if (folder / "preprocessor_config.json").exists():
        return read_json(folder / "preprocessor_config.json")
    if (folder / "processor_config.json").exists():
        return read_json(folder / "processor_config.json").get("image_processor") or {}
    return {}


def parse_config(
    raw: dict[str, Any], where: str = "config.json", images: dict[str, Any] | None = None
) -> Config:
    """Reads the model's shape from the content of config.json.

    Args:
        raw: the JSON object.
        where: the file's name, for messages.
        images: the image processor's settings; its mean and standard deviation go into the vision
            config. Where they are missing, those of CLIP hold, as for the reference's processor.

    Returns:
        The shape.

    Raises:
        UserError: as `read_config`.
    """
    kind = raw.get("model_type")
    if kind not in SUPPORTED:
        supported = ", ".join(f"{key} ({name})" for key, name in SUPPORTED.items())
        raise UserError(f"{where}: model_type {kind!r} is not supported; use one of {supported}")
    nested = raw.get("text_config") or {}
    levels = {"the top level": raw, "text_config": nested}
    found = {key: _agreed(where, key, levels) for key in (*_TEXT_SIZES, "rms_norm_eps")}
    found["rope_theta"], section = _rotation(where, levels)
    for key, value in found.items():
        if value is None and nested:
            found[key] = _NESTED_TEXT_DEFAULTS[key]
        elif value is None:
            raise UserError(f"{where} has no {key}; restore the config.json the weights came with")
    for key in _TEXT_SIZES:
        _check_count(where, key, found[key])
    _check_options(where, levels, found)
    half = found["hidden_size"] // found["num_attention_heads"] // 2
    if kind == "qwen2":
        section = (half,)
    elif section is None or sum(section) != half:
        raise UserError(
            f"{where}: mrope_section {list(section) if section else None} does not sum to half a "
            f"head, {half}; restore the config.json the weights came with"
        )
    tokens, vision = {}, None
    if kind == "qwen2_5_vl":
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        tokens = {name: _agreed(where, name, levels) for name in names}
        if tokens["image_token_id"] is None:
            raise UserError(f"{where} has no image_token_id; add the id of <|image_pad|>")
        vision = _vision(where, raw.get("vision_config"), images or {})
        if vision.out_hidden_size != found["hidden_size"]:
            raise UserError(
                f"{where}: vision_config.out_hidden_size is {vision.out_hidden_size} and "
                f"hidden_size is {found['hidden_size']}; they have to be equal"
            )
    return Config(
        **{key: found[key] for key in _TEXT_SIZES},
        rms_norm_eps=float(found["rms_norm_eps"]),
        rope_theta=float(found["rope_theta"]),
        mrope_section=tuple(section),
        tie_word_embeddings=bool(_agreed(where, "tie_word_embeddings", levels)),
        vision=vision,
        **tokens,
    )


def read_stop_ids(folder: str | Path) -> tuple[int, ...]:
    """Reads the token ids that end a response.

    Args:
        folder: a Hugging Face folder.

    Returns:
        All ids of generation_config.json in its order; where it names none, those of config.json;
        where that names none, the tokenizer's end of text.

    Raises:
        UserError: no file names a stop id.
    """
    folder = Path(folder)
    sources = []
    if (folder / "generation_config.json").exists():
        sources.append(read_json(folder / "generation_config.json"))
    if (folder / "config.json").exists():
        raw = read_json(folder / "config.json")
        sources += [raw, raw.get("text_config") or {}]
    for source in sources:
        ids = source.get("eos_token_id")
        if ids is not None and ids != []:
            return tuple(ids) if isinstance(ids, list) else (ids,)
    if (folder / "tokenizer_config.json").exists():
        from transformers import AutoTokenizer

        eos = AutoTokenizer.from_pretrained(folder, local_files_only=True).eos_token_id
        if eos is not None:
            return (eos,)
    raise UserError(f"{folder} names no stop id; add eos_token_id to generation_config.json")


def write_config(
    config: Config, source: str | Path | dict[str, Any] | None, dtype: str = "float32"
) -> dict[str, Any]:
    """Makes the config.json of an exported model.

    Args:
        config: the model's shape.
        source: the folder (or content) of the config.json that the model came with, whose layout
            and values are kept; None writes the layout of the released models.
        dtype: of the exported weights, as "bfloat16".

    Returns:
        The content of config.json: what `transformers` and vLLM read, with the tie flag on each
        level that a reader looks at and the dtype in the source's spelling.

    Raises:
        UserError: the source describes another model.
    """
    if source is None:
        return _released_layout(config, dtype)
    if isinstance(source, dict):
        raw, where = json.loads(json.dumps(source)), "the source's config.json"
    else:
        where = str(Path(source) / "config.json")
        raw = read_json(where)
    images = vars(config.vision) if config.vision else {}
    if (described := parse_config(raw, where, images)) != config:
        raise UserError(f"{where} describes {described}, but the model to write is {config}")
    raw["tie_word_embeddings"] = config.tie_word_embeddings
    if raw.get("text_config"):
        raw["text_config"]["tie_word_embeddings"] = config.tie_word_embeddings
    sections = [raw, raw.get("text_config") or {}, raw.get("vision_config") or {}]
    for section in sections:
        for key in ("dtype", "torch_dtype"):
            if section.get(key) is not None:
                section[key] = dtype
    if not {"dtype", "torch_dtype"} & raw.keys():
        raw["torch_dtype"] = dtype
    return raw


def _released_layout(config: Config, dtype: str) -> dict[str, Any]:
    text = {key: getattr(config, key) for key in (*_TEXT_SIZES, "rms_norm_eps", "rope_theta")}
    raw = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **text,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
    }
    if (vision := config.vision) is None:
        return raw
    raw["architectures"] = ["Qwen2_5_VLForConditionalGeneration"]
    raw["model_type"] = "qwen2_5_vl"
    raw["rope_scaling"] = {"type": "mrope", "mrope_section": list(config.mrope_section)}
    for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        if getattr(config, key) is not None:
            raw[key] = getattr(config, key)
    raw["vision_config"] = {
        **{key: getattr(vision, key) for key in _VISION_DEFAULTS},
        "fullatt_block_indexes": list(vision.fullatt_block_indexes),
        "in_chans": vision.in_channels,
        "spatial_patch_size": vision.patch_size,
        "hidden_act": "silu",
    }
    return raw


def _agreed(where: str, key: str, levels: dict[str, dict[str, Any]]) -> Any:
    """The value of a key that may stand on several levels; None when it stands on none."""
    found = [(f"{key} of {name}", level.get(key)) for name, level in levels.items()]
    return _same(where, found)


def _same(where: str, found: list[tuple[str, Any]]) -> Any:
    """The one value among (name, value) pairs, leaving out None; an error names two that differ."""
    found = [(name, value) for name, value in found if value is not None]
    for name, value in found[1:]:
        if value != found[0][1]:
            raise UserError(
                f"{where}: {found[0][0]} is {found[0][1]} and {name} is {value}; "
                "make them equal or remove one"
            )
    return found[0][1] if found else None


def _rotation(where: str, levels: dict[str, dict[str, Any]]) -> tuple[Any, tuple[int, ...] | None]:
    """Base and M-RoPE sections of the rotary embedding, wherever they are spelled."""
    thetas, sections = [], []
    for name, level in levels.items():
        thetas.append((f"rope_theta of {name}", level.get("rope_theta")))
        for group in ("rope_scaling", "rope_parameters"):
            values = level.get(group) or {}
            spot = f"{group} of {name}"
            thetas.append((f"rope_theta in {spot}", values.get("rope_theta")))
            sections.append((f"mrope_section in {spot}", values.get("mrope_section")))
            for key in ("type", "rope_type"):
                if values.get(key, "default") not in ("default", "mrope"):
                    raise UserError(
                        f"{where}: {key} {values[key]!r} in {spot} is not supported; "
                        "use a model with plain rotary embeddings (default or mrope)"
                    )
    section = _same(where, sections)
    return _same(where, thetas), None if section is None else tuple(section)


def _check_options(where: str, levels: dict[str, dict[str, Any]], found: dict[str, Any]) -> None:
    activation = _agreed(where, "hidden_act", levels)
    if activation not in (None, "silu"):
        raise UserError(f"{where}: hidden_act {activation!r} is not supported; only silu is")
    if any(level.get("use_sliding_window") for level in levels.values()):
        raise UserError(f"{where}: use_sliding_window is not supported; set it to false")
    width, heads = found["hidden_size"], found["num_attention_heads"]
    if width % (2 * heads) or _agreed(where, "head_dim", levels) not in (None, width // heads):
        raise UserError(
            f"{where}: {heads} attention heads do not divide hidden_size {width} evenly"
        )
    if heads % found["num_key_value_heads"]:
        raise UserError(
            f"{where}: num_key_value_heads {found['num_key_value_heads']} does not divide "
            f"num_attention_heads {heads}"
        )


def _check_count(where: str, key: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{where}: {key} is {value!r}; it has to be a positive integer")


def _vision(where: str, raw: dict[str, Any] | None, images: dict[str, Any]) -> VisionConfig:
    if not raw:
        raise UserError(f"{where} has no vision_config; restore the config.json of the model")
    where = f"{where}, vision_config"
    synonyms = {"in_channels": ("in_channels", "in_chans")}
    synonyms["patch_size"] = ("patch_size", "spatial_patch_size")
    found = {}
    for key, default in _VISION_DEFAULTS.items():
        value = _same(where, [(name, raw.get(name)) for name in synonyms.get(key, (key,))])
        found[key] = default if value is None else value
    full = found.pop("fullatt_block_indexes")
    for key, value in found.items():
        _check_count(where, key, value)
    if raw.get("hidden_act", "silu") != "silu":
        raise UserError(f"{where}: hidden_act {raw['hidden_act']!r} is not supported; only silu is")
    if not all(isinstance(block, int) and 0 <= block < found["depth"] for block in full):
        raise UserError(
            f"{where}: fullatt_block_indexes {full} has to list blocks below depth {found['depth']}"
        )
    statistics = {
        key: tuple(float(value) for value in images[key])
        for key in ("image_mean", "image_std")
        if images.get(key) is not None
    }
    vision = VisionConfig(**found, **statistics, fullatt_block_indexes=tuple(full))
    if vision.hidden_size % (4 * vision.num_heads) or vision.window_units < 1:
        raise UserError(
            f"{where}: hidden_size {vision.hidden_size} has to be a multiple of four times "
            f"num_heads {vision.num_heads}, and window_size {vision.window_size} has to cover "
            "one merged unit"
        )
    return vision
