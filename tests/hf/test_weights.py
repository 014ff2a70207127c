"""Weights from files and back: strict, exact, one tensor at a time (cases B18, B19)."""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxevolve.hf import weights
from jaxevolve.hf.config import read_config
from jaxevolve.hf.names import tensor_shapes
from jaxevolve.hf.weights import load_params, save_params
from jaxevolve.runtime.errors import UserError


def tensors(folder):
    return {k: v for f in sorted(folder.glob("*.safetensors")) for k, v in load_file(f).items()}


def copy_with(folder, path, change):
    """A copy of a folder whose tensors went through `change`."""
    path.mkdir()
    shutil.copy(folder / "config.json", path)
    save_file(change(dict(tensors(folder))), path / "model.safetensors")
    return path


def assert_equal(one, two):
    one, two = flatten_dict(one), flatten_dict(two)
    assert one.keys() == two.keys()
    for path in one:
        assert one[path].dtype == two[path].dtype
        assert np.asarray(one[path]).tobytes() == np.asarray(two[path]).tobytes(), path


def test_leaves_are_the_tensors_of_all_layers(folder):
    params = load_params(folder, read_config(folder))
    stored = tensors(folder)
    up = params["model"]["layers"]["mlp"]["up_proj"]["weight"]
    for layer in range(2):
        assert (up[layer] == stored[f"model.layers.{layer}.mlp.up_proj.weight"]).all()
    bias = params["visual"]["merger"]["mlp"]["2"]["bias"]
    assert (bias == stored["visual.merger.mlp.2.bias"]).all()
    assert (params["lm_head"]["weight"] == stored["lm_head.weight"]).all()


def test_the_three_layouts_of_names_load_alike(folder, tmp_path):
    def rename(rules):
        def change(found):
            renamed = {}
            for name, value in found.items():
                for old, new in rules:
                    if name.startswith(old):
                        name = new + name[len(old) :]
                        break
                renamed[name] = value
            return renamed

        return change

    config = read_config(folder)
    expected = load_params(folder, config)
    for number, rules in enumerate(
        [
            [("visual.", "model.visual."), ("model.", "model.language_model.")],
            [
                ("visual.", "model.visual."),
                ("model.", "language_model.model."),
                ("lm_head.", "language_model.lm_head."),
            ],
        ]
    ):
        other = copy_with(folder, tmp_path / str(number), rename(rules))
        assert "model.visual.merger.ln_q.weight" in tensors(other)
        assert_equal(load_params(other, config), expected)


def test_a_tied_model_in_several_files_has_no_head(tied_folder):
    assert len(list(tied_folder.glob("*.safetensors"))) > 1
    params = load_params(tied_folder, read_config(tied_folder))
    assert "lm_head" not in params
    stored = tensors(tied_folder)["model.embed_tokens.weight"]
    assert (params["model"]["embed_tokens"]["weight"] == stored).all()


def test_a_text_only_model_loads(text_folder):
    assert load_params(text_folder, read_config(text_folder)).keys() == {"model", "lm_head"}


def test_a_copy_of_a_tied_head_and_old_buffers_are_harmless(tied_folder, tmp_path):
    def change(found):
        found["lm_head.weight"] = found["model.embed_tokens.weight"].copy()
        found["visual.rotary_pos_emb.inv_freq"] = np.ones(4, np.float32)
        found["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        return found

    config = read_config(tied_folder)
    other = copy_with(tied_folder, tmp_path / "copy", change)
    assert_equal(load_params(other, config), load_params(tied_folder, config))


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(tied_folder, tmp_path):
    def change(found):
        return found | {"lm_head.weight": found["model.embed_tokens.weight"] + 1}

    other = copy_with(tied_folder, tmp_path / "copy", change)
    with pytest.raises(UserError, match=r"lm_head\.weight \(config\.json ties it"):
        load_params(other, read_config(other))


def test_an_untied_model_without_a_head_is_refused(folder, tmp_path):
    def change(found):
        found.pop("lm_head.weight")
        return found

    other = copy_with(folder, tmp_path / "copy", change)
    with pytest.raises(UserError, match=r"missing: lm_head\.weight$"):
        load_params(other, read_config(other))


def test_all_wrong_tensors_are_named(folder, tmp_path):
    gone = [f"visual.blocks.{block}.norm1.weight" for block in range(3)]
    new = ["model.layers.2.mlp.up_proj.weight", "score.weight"]

    def change(found):
        for name in gone:
            found.pop(name)
        found |= {name: np.zeros((2, 2), np.float32) for name in new}
        found["model.norm.weight"] = np.zeros(63, np.float32)
        found["visual.merger.ln_q.weight"] = np.zeros(32, np.int8)
        return found

    other = copy_with(folder, tmp_path / "copy", change)
    with pytest.raises(UserError) as error:
        load_params(other, read_config(other))
    for text in (*gone, *new, "model.norm.weight ([63] instead of [64])", "ln_q.weight (I8)"):
        assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_of_another_size_is_refused_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr(weights, "_read", None)
    with pytest.raises(UserError, match="of the wrong shape"):
        load_params(folder, replace(read_config(folder), intermediate_size=97))


def test_files_that_are_not_there_are_named(folder, tied_folder, tmp_path):
    config = read_config(tied_folder)
    with pytest.raises(UserError, match=r"model\.safetensors does not exist"):
        load_params(tmp_path, config)
    shutil.copytree(tied_folder, tmp_path / "copy")
    lost = sorted((tmp_path / "copy").glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(UserError, match=lost.name):
        load_params(tmp_path / "copy", config)
    lost.write_bytes(b"\x20")
    with pytest.raises(UserError, match=f"{lost.name} cannot be read"):
        load_params(tmp_path / "copy", config)


def test_an_index_that_promises_more_than_the_files_hold_is_refused(tied_folder, tmp_path):
    shutil.copytree(tied_folder, tmp_path / "copy")
    path = tmp_path / "copy" / weights.INDEX
    index = json.loads(path.read_text())
    index["weight_map"]["visual.more"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"no file holds: visual\.more"):
        load_params(tmp_path / "copy", read_config(tied_folder))


def test_bfloat16_is_read_exactly(tmp_path):
    torch = pytest.importorskip("torch")
    import tiny

    path = tiny.make_folder(tmp_path / "half", dtype="bfloat16")
    config = read_config(path)
    narrow = load_params(path, config, "bfloat16")
    wide = load_params(path, config, "float32")
    model = tiny.reference_model(path)
    expected = model.model.language_model.layers[1].mlp.up_proj.weight.detach()
    assert (wide["model"]["layers"]["mlp"]["up_proj"]["weight"][1] == expected.numpy()).all()
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(narrow))
    assert_equal(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), narrow), wide)
    # Rounding on the way down is torch's.
    odd = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    rounded = torch.tensor(odd).bfloat16().float().numpy()
    assert (odd.astype(ml_dtypes.bfloat16).astype(np.float32) == rounded).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("limit", [100_000, 10**9])
def test_saving_and_loading_is_bitwise_equal(folder, tmp_path, dtype, limit):
    config = read_config(folder)
    params = load_params(folder, config, dtype)
    save_params(params, config, tmp_path / "out", limit)
    assert_equal(load_params(tmp_path / "out", config, dtype), params)


def test_the_index_covers_every_tensor(tied_folder, tmp_path):
    config = read_config(tied_folder)
    params = load_params(tied_folder, config)
    save_params(params, config, tmp_path, 100_000, "bfloat16")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensor_shapes(config).keys()
    files = sorted(tmp_path.glob("*.safetensors"))
    assert {file.name for file in files} == set(index["weight_map"].values())
    assert len(files) > 1
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    size = 0
    for file in files:
        assert file.stat().st_size <= 100_000 + 10_000
        with safe_open(file, framework="np") as handle:
            assert handle.metadata() == {"format": "pt"}
            for name in handle.keys():  # noqa: SIM118
                assert index["weight_map"][name] == file.name
                assert handle.get_slice(name).get_dtype() == "BF16"
                size += handle.get_tensor(name).nbytes
    assert index["metadata"]["total_size"] == size
    assert not list(tmp_path.glob("*.partial"))


def test_other_trees_and_used_folders_are_refused(folder, tied_folder, tmp_path):
    config = read_config(folder)
    params = load_params(folder, config)
    with pytest.raises(UserError, match=r"differ in lm_head\.weight$"):
        save_params(params, read_config(tied_folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="already holds weights"):
        save_params(params, config, folder)
    with pytest.raises(UserError, match="float64"):
        save_params(params, config, tmp_path / "out", dtype="float64")


def test_memory_holds_one_leaf_when_loading_and_one_tensor_when_saving(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    import tiny

    path = tiny.make_folder(tmp_path / "wide", vocab=8192)
    config = read_config(path)
    params = load_params(path, config)
    leaf = 8192 * 64 * 4  # The embedding, as large as the head: two of them are the model.
    monkeypatch.setattr(weights.jax, "device_put", lambda value: jnp.zeros(()))
    tracemalloc.start()
    load_params(path, config)
    # A leaf and the tensor that is being copied into it.
    assert tracemalloc.get_traced_memory()[1] < 2.3 * leaf
    tracemalloc.reset_peak()
    save_params(params, config, tmp_path / "out")
    assert tracemalloc.get_traced_memory()[1] < 1.3 * leaf
    tracemalloc.stop()


def test_shards_are_read_and_gathered_where_they_lie(folder):
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    script = Path(__file__).parent / "load_on_shards.py"
    done = subprocess.run(
        [sys.executable, script, folder], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "equal on 4 devices" in done.stdout
