"""Exported folders, as other programs read them (cases B18, B21, B22)."""

import shutil

import jax
import numpy as np
import pytest
import tiny

from jaxevolve.hf.config import read_config
from jaxevolve.hf.export import copy_texts, export_folder
from jaxevolve.hf.processor import load_processor
from jaxevolve.hf.weights import load_params
from jaxevolve.runtime.errors import UserError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def exported(folder, tmp_path_factory):
    config = read_config(folder)
    out = tmp_path_factory.mktemp("exports") / "new"
    export_folder(load_params(folder, config), config, folder, out, max_shard_bytes=150_000)
    return out


def logits(folder, seed=0):
    """Logits of transformers for an image and text."""
    processor, model = tiny.reference_processor(folder), tiny.reference_model(folder)
    values = np.random.default_rng(seed).integers(0, 256, (120, 200, 3), np.uint8)
    text = "<|vision_start|><|image_pad|><|vision_end|> Find the angle at B."
    inputs = processor(text=[text], images=[values], return_tensors="pt")
    with torch.no_grad():
        generated = model.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0)
        return model(**inputs).logits, generated, model


def test_transformers_loads_it_and_computes_the_same(folder, exported):
    expected, greedy, _ = logits(folder)
    made, greedy_now, model = logits(exported)
    assert torch.equal(made, expected)
    assert torch.equal(greedy_now, greedy)
    assert model.generation_config.eos_token_id == [302, 300]
    assert made.std() > 0.5


def test_it_is_complete_and_its_texts_are_unchanged(folder, exported):
    for name in (
        "generation_config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        assert (exported / name).read_bytes() == (folder / name).read_bytes()
    assert len(list(exported.glob("model-*.safetensors"))) > 1
    assert (exported / "model.safetensors.index.json").exists()
    written, source = (
        tiny.read_json(exported / "config.json"),
        tiny.read_json(folder / "config.json"),
    )
    assert written.pop("text_config") == source.pop("text_config") | {"tie_word_embeddings": False}
    assert written == source
    assert sorted(path.name for path in exported.parent.iterdir()) == ["new"]


def test_it_comes_back_bitwise_equal(folder, exported):
    config = read_config(folder)
    assert read_config(exported) == config
    params = load_params(folder, config)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, load_params(exported, config)))
    assert load_processor(exported, config).stop_ids == (302, 300)


def test_a_tied_model_keeps_its_flag_and_has_no_second_head(tied_folder, tmp_path):
    config = read_config(tied_folder)
    params = load_params(tied_folder, config)
    export_folder(params, config, tied_folder, tmp_path / "new", dtype="bfloat16")
    written = tiny.read_json(tmp_path / "new" / "config.json")
    assert written["tie_word_embeddings"] is True
    assert written["text_config"]["tie_word_embeddings"] is True
    assert written["dtype"] == "bfloat16"
    index = tiny.read_json(tmp_path / "new" / "model.safetensors.index.json")
    assert "lm_head.weight" not in index["weight_map"]
    model = tiny.reference_model(tmp_path / "new")
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    expected = tiny.reference_model(tied_folder).lm_head.weight
    assert torch.equal(model.lm_head.weight, expected.bfloat16().float())


def test_a_text_only_model_is_exported(text_folder, tmp_path):
    config = read_config(text_folder)
    export_folder(load_params(text_folder, config), config, text_folder, tmp_path / "new")
    ids = torch.tensor([[5, 6, 7, 8]])
    one = tiny.reference_model(text_folder, vision=False)(ids).logits
    two = tiny.reference_model(tmp_path / "new", vision=False)(ids).logits
    assert torch.equal(one, two)


def test_what_the_source_lacks_but_readers_need_is_added(folder, tmp_path):
    """Some sources have the image settings inside processor_config.json, and no stop list."""
    config = read_config(folder)
    source = tmp_path / "source"
    copy_texts(folder, source)
    (source / "generation_config.json").unlink()
    images = tiny.read_json(source / "preprocessor_config.json")
    (source / "preprocessor_config.json").unlink()
    images.pop("image_processor_type")
    tiny.write_json(source / "processor_config.json", {"image_processor": images})
    assert read_config(source) == config
    export_folder(load_params(folder, config), config, source, tmp_path / "new")
    written = tiny.read_json(tmp_path / "new" / "preprocessor_config.json")
    assert written == {"image_processor_type": "Qwen2VLImageProcessor", **images}
    stops = tiny.read_json(tmp_path / "new" / "generation_config.json")
    assert stops == {"eos_token_id": [302]}
    assert torch.equal(logits(tmp_path / "new")[0], logits(folder)[0])
    rows = [{"question": "x"}]
    made = load_processor(source, config).prompts(rows)
    assert (made.tokens == load_processor(folder, config).prompts(rows).tokens).all()


def test_a_used_folder_is_left_alone(folder, tmp_path):
    config = read_config(folder)
    params = load_params(folder, config)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        export_folder(params, config, folder, tmp_path)
    with pytest.raises(UserError, match="not empty"):
        export_folder(params, config, folder, tmp_path / "note.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    (tmp_path / "empty").mkdir()
    export_folder(params, config, folder, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def test_an_interrupted_export_leaves_nothing_in_the_way(folder, tmp_path, monkeypatch):
    config = read_config(folder)
    params = load_params(folder, config)

    def stop(source, out):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jaxevolve.hf.export.copy_texts", stop)
        with pytest.raises(KeyboardInterrupt):
            export_folder(params, config, folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    export_folder(params, config, folder, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokenizer.json", "no tokenizer"),
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("chat_template.jinja", "no chat template"),
        ("preprocessor_config.json", "no preprocessor_config"),
        ("config.json", r"config\.json does not exist"),
    ],
)
def test_a_source_without_what_readers_need_is_refused(folder, tmp_path, name, words):
    config = read_config(folder)
    copy_texts(folder, tmp_path / "source")
    (tmp_path / "source" / name).unlink()
    with pytest.raises(UserError, match=words):
        export_folder(load_params(folder, config), config, tmp_path / "source", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_parameters_of_several_dtypes_need_a_name(folder, tmp_path):
    config = read_config(folder)
    params = load_params(folder, config)
    params["lm_head"]["weight"] = params["lm_head"]["weight"].astype("bfloat16")
    with pytest.raises(UserError, match="bfloat16, float32"):
        export_folder(params, config, folder, tmp_path / "new")


def test_a_partial_copy_is_not_mistaken_for_a_model(folder, tmp_path):
    config = read_config(folder)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").rename(tmp_path / "copy" / "model.partial")
    with pytest.raises(UserError, match=r"model\.safetensors does not exist"):
        load_params(tmp_path / "copy", config)
