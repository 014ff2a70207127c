"""Every tensor of the released models by name and shape, without weights."""

import json
from pathlib import Path

import jax
import pytest
from flax.traverse_util import flatten_dict

from jaxevolve.hf.config import parse_config, read_config
from jaxevolve.hf.names import disk_names, param_shapes, released_name, tensor_shapes
from jaxevolve.models.qwen2_5_vl import init_params

PUBLISHED = Path(__file__).parent / "published"
# Bytes of bfloat16 that the index files of the released models state.
TOTAL_SIZE = {"3b": 7_509_245_952, "7b": 16_584_333_312}


def published(size):
    return json.loads((PUBLISHED / f"qwen2_5_vl_{size}.json").read_text())


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_released_models_have_their_tensors(size):
    torch = pytest.importorskip("torch")
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**published(size)))
    expected = {released_name(name): tuple(value.shape) for name, value in model.named_parameters()}
    if size == "3b":
        expected.pop("lm_head.weight", None)
    shapes = tensor_shapes(parse_config(published(size)))
    assert shapes == expected
    assert ("lm_head.weight" in shapes) is (size == "7b")


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_released_models_have_their_size(size):
    shapes = tensor_shapes(parse_config(published(size)))
    count = 0
    for shape in shapes.values():
        product = 1
        for side in shape:
            product *= side
        count += product
    assert 2 * count == TOTAL_SIZE[size]


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_the_model_makes_the_tree_that_the_config_implies(size):
    config = parse_config(published(size))
    tree = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    assert {path: leaf.shape for path, leaf in flatten_dict(tree).items()} == param_shapes(config)


def test_a_text_only_model_has_no_vision(text_folder):
    config = read_config(text_folder)
    tree = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
    assert {path: leaf.shape for path, leaf in flatten_dict(tree).items()} == param_shapes(config)
    assert not any(name.startswith("visual") for name in tensor_shapes(config))


def test_names_of_all_layouts_translate_to_the_released_ones():
    for name in (
        "visual.blocks.0.attn.qkv.weight",
        "model.visual.blocks.0.attn.qkv.weight",
    ):
        assert released_name(name) == "visual.blocks.0.attn.qkv.weight"
    for prefix in ("model.", "model.language_model.", "language_model.model."):
        assert released_name(prefix + "layers.1.mlp.up_proj.weight") == (
            "model.layers.1.mlp.up_proj.weight"
        )
    for name in ("lm_head.weight", "language_model.lm_head.weight"):
        assert released_name(name) == "lm_head.weight"


def test_layers_are_named_in_order():
    path = ("model", "layers", "mlp", "up_proj", "weight")
    assert disk_names(path, (3, 8, 4)) == [
        f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(3)
    ]
    assert disk_names(("visual", "merger", "mlp", "0", "bias"), (8,)) == [
        "visual.merger.mlp.0.bias"
    ]
