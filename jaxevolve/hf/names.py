"""Which tensors does a model have, and what are they called on disk?

A parameter's path in the tree is its Hugging Face name with the layer number taken out; layers are
stacked on axis 0. So one table of paths and shapes, made from the config, names every tensor.
"""

from jaxevolve.models.config import Config, VisionConfig

Path = tuple[str, ...]
Shape = tuple[int, ...]

# What other releases of `transformers` write before the names of the released models.
_PREFIXES = {
    "model.visual.": "visual.",
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_STACKED = {("visual", "blocks"), ("model", "layers")}


def param_shapes(config: Config) -> dict[Path, Shape]:
    """The parameter tree that a config implies.

    Args:
        config: the model's shape.

    Returns:
        For every path, as ("model", "layers", "mlp", "up_proj", "weight"), the shape of the leaf;
        weights are [out, in], and leaves of layers have the layer as axis 0.
    """
    width, inner = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layer = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (query, width),
        "self_attn.q_proj.bias": (query,),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (width, query),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    shapes = {} if config.vision is None else _vision_shapes(config.vision)
    shapes["model.embed_tokens.weight"] = (config.vocab_size, width)
    for name, shape in layer.items():
        shapes[f"model.layers.{name}"] = (config.num_hidden_layers, *shape)
    shapes["model.norm.weight"] = (width,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    return {tuple(name.split(".")): shape for name, shape in shapes.items()}


def _vision_shapes(vision: VisionConfig) -> dict[str, Shape]:
    width, inner, patch = vision.hidden_size, vision.intermediate_size, vision.patch_size
    unit = width * vision.spatial_merge_size**2
    block = {
        "norm1.weight": (width,),
        "norm2.weight": (width,),
        "attn.qkv.weight": (3 * width, width),
        "attn.qkv.bias": (3 * width,),
        "attn.proj.weight": (width, width),
        "attn.proj.bias": (width,),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.gate_proj.bias": (inner,),
        "mlp.up_proj.weight": (inner, width),
        "mlp.up_proj.bias": (inner,),
        "mlp.down_proj.weight": (width, inner),
        "mlp.down_proj.bias": (width,),
    }
    kernel = (width, vision.in_channels, vision.temporal_patch_size, patch, patch)
    return {
        "visual.patch_embed.proj.weight": kernel,
        **{f"visual.blocks.{name}": (vision.depth, *shape) for name, shape in block.items()},
        "visual.merger.ln_q.weight": (width,),
        "visual.merger.mlp.0.weight": (unit, unit),
        "visual.merger.mlp.0.bias": (unit,),
        "visual.merger.mlp.2.weight": (vision.out_hidden_size, unit),
        "visual.merger.mlp.2.bias": (vision.out_hidden_size,),
    }


def stacked(path: Path) -> bool:
    """Whether a leaf holds the same tensor of every layer, on axis 0.

    Args:
        path: of the leaf.

    Returns:
        True for leaves of decoder layers and vision blocks.
    """
    return path[:2] in _STACKED


def disk_names(path: Path, shape: Shape) -> list[str]:
    """Names on disk of the tensors that make up one leaf.

    Args:
        path: of the leaf.
        shape: of the leaf, as `param_shapes` gives it.

    Returns:
        One name, or one for each layer in order; as in the released models, `visual.*`, `model.*`
        and `lm_head.weight`.
    """
    if not stacked(path):
        return [".".join(path)]
    return [".".join((*path[:2], str(layer), *path[2:])) for layer in range(shape[0])]


def tensor_shapes(config: Config) -> dict[str, Shape]:
    """Every tensor of a checkpoint that a config implies.

    Args:
        config: the model's shape.

    Returns:
        The shape on disk by name on disk; a tied model has no `lm_head.weight`.
    """
    return {
        name: shape[1:] if stacked(path) else shape
        for path, shape in param_shapes(config).items()
        for name in disk_names(path, shape)
    }


def released_name(name: str) -> str:
    """Translates a name on disk of any layout to the released models' layout.

    Args:
        name: as `model.language_model.norm.weight` or `language_model.model.norm.weight`.

    Returns:
        The name as `tensor_shapes` spells it, here `model.norm.weight`; an unknown name unchanged.
    """
    for prefix, released in _PREFIXES.items():
        if name.startswith(prefix):
            return released + name[len(prefix) :]
    return name
