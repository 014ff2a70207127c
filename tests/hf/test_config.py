"""config.json in every published spelling (cases B18, B20, B22)."""

import copy
import json
from pathlib import Path

import pytest

from jaxevolve.hf.config import parse_config, read_config, read_stop_ids, write_config
from jaxevolve.runtime.errors import UserError

PUBLISHED = Path(__file__).parent / "published"


def published(size):
    return json.loads((PUBLISHED / f"qwen2_5_vl_{size}.json").read_text())


def nested_now(flat):
    """As transformers 5.24 writes what it has read from a flat file."""
    transformers = pytest.importorskip("transformers")
    return json.loads(transformers.Qwen2_5_VLConfig(**copy.deepcopy(flat)).to_json_string())


def both_levels(flat):
    """As 4.52 to 4.57: the flat fields stay, and text_config repeats them in newer words."""
    mixed = copy.deepcopy(flat)
    text_keys = set(flat) - {"architectures", "vision_config", "model_type", "torch_dtype"}
    mixed["text_config"] = {key: copy.deepcopy(flat[key]) for key in text_keys}
    mixed["text_config"]["model_type"] = "qwen2_5_vl_text"
    mixed["text_config"]["image_token_id"] = None
    mixed["text_config"]["rope_scaling"]["rope_type"] = "default"
    mixed["text_config"]["rope_scaling"]["type"] = "default"
    mixed["vision_config"]["in_channels"] = 3
    return mixed


def tie_flag_inside(flat):
    """As 4.52 to 4.57 for a text_config that alone holds the flag."""
    nested = both_levels(flat)
    for key in nested["text_config"]:
        if key not in ("model_type", "image_token_id", "video_token_id"):
            nested.pop(key, None)
    nested |= {"image_token_id": 151655, "video_token_id": 151656}
    nested |= {"vision_start_token_id": 151652, "vision_end_token_id": 151653}
    return nested


@pytest.mark.parametrize("size", ["3b", "7b"])
@pytest.mark.parametrize("spelling", [nested_now, both_levels, tie_flag_inside])
def test_spellings_of_one_model_read_alike(size, spelling):
    flat = published(size)
    config = parse_config(flat)
    assert config.tie_word_embeddings == (size == "3b")
    assert config.rms_norm_eps == 1e-6
    assert config.rope_theta == 1e6
    assert config.mrope_section == (16, 24, 24)
    assert parse_config(spelling(flat)) == config


def test_a_folder_reads_as_transformers_reads_it(folder):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoConfig.from_pretrained(folder)
    config = read_config(folder)
    for key in ("vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps"):
        assert getattr(config, key) == getattr(reference.text_config, key)
    for key in ("depth", "hidden_size", "out_hidden_size", "window_size", "patch_size"):
        assert getattr(config.vision, key) == getattr(reference.vision_config, key)
    assert config.image_token_id == reference.image_token_id
    assert config.vision.image_mean == (0.48145466, 0.4578275, 0.40821073)


def test_values_left_out_of_nested_sections_are_the_class_defaults():
    transformers = pytest.importorskip("transformers")
    raw = {
        "model_type": "qwen2_5_vl",
        "image_token_id": 151655,
        "text_config": {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}
        | {"rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default"}},
        "vision_config": {"hidden_size": 1280, "in_chans": 3, "spatial_patch_size": 14},
    }
    reference = transformers.Qwen2_5_VLConfig(**copy.deepcopy(raw))
    config = parse_config(raw)
    for key in ("vocab_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"):
        assert getattr(config, key) == getattr(reference.text_config, key)
    assert config.rope_theta == reference.text_config.rope_parameters["rope_theta"]
    assert config.vision.depth == reference.vision_config.depth
    assert list(config.vision.fullatt_block_indexes) == list(
        reference.vision_config.fullatt_block_indexes
    )


def test_a_text_only_model_is_read(text_folder):
    config = read_config(text_folder)
    assert config.vision is None
    assert config.image_token_id is None
    assert config.rope_theta == 1e4
    assert sum(config.mrope_section) == config.head_dim // 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text_config": {"hidden_size": 64}}, ["hidden_size", "3584", "64", "text_config"]),
        ({"rope_parameters": {"rope_theta": 5e5}}, ["rope_theta", "500000", "1000000"]),
        ({"rope_parameters": {"mrope_section": [24, 20, 20]}}, ["mrope_section", "[16, 24, 24]"]),
        ({"text_config": {"tie_word_embeddings": True}}, ["tie_word_embeddings", "True", "False"]),
        ({"vision_config": {"in_chans": 3, "in_channels": 1}}, ["in_chans", "in_channels"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["yarn"]),
        ({"use_sliding_window": True}, ["use_sliding_window"]),
        ({"hidden_act": "gelu"}, ["gelu"]),
        ({"head_dim": 64}, ["28", "3584"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "3"]),
        ({"vocab_size": "many"}, ["vocab_size", "many"]),
        ({"rms_norm_eps": None}, ["rms_norm_eps"]),
        ({"vision_config": None}, ["vision_config"]),
        ({"vision_config": {"out_hidden_size": 12}}, ["out_hidden_size", "12", "3584"]),
        ({"model_type": "llava"}, ["llava", "qwen2_5_vl", "qwen2"]),
    ],
)
def test_what_cannot_be_read_is_named(change, words):
    with pytest.raises(UserError) as error:
        parse_config(published("7b") | change, "FOLDER/config.json")
    for word in ["FOLDER/config.json", *words]:
        assert word in str(error.value)


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_config(tmp_path)


@pytest.mark.parametrize("size", ["3b", "7b"])
@pytest.mark.parametrize("spelling", [lambda flat: flat, nested_now, both_levels])
def test_a_written_config_keeps_the_layout_and_is_read_by_transformers(size, spelling):
    transformers = pytest.importorskip("transformers")
    raw = spelling(published(size))
    before = copy.deepcopy(raw)
    config = parse_config(raw)
    written = write_config(config, raw, "float32")
    assert raw == before
    assert parse_config(written) == config
    changed = {key for key in written if written[key] != before.get(key)}
    assert changed <= {"torch_dtype", "dtype", "text_config", "vision_config"}
    assert written["tie_word_embeddings"] is (size == "3b")
    assert written.get("text_config", {}).get("tie_word_embeddings", size == "3b") is (size == "3b")
    reference = transformers.Qwen2_5_VLConfig(**written)
    assert reference.tie_word_embeddings is (size == "3b")
    assert str(reference.dtype).removeprefix("torch.") == "float32"


def test_a_config_without_a_source_is_read_by_transformers(folder, text_folder):
    transformers = pytest.importorskip("transformers")
    config = read_config(folder)
    written = write_config(config, None, "bfloat16")
    assert parse_config(written) == config
    reference = transformers.Qwen2_5_VLConfig(**written)
    assert reference.text_config.rope_parameters["mrope_section"] == [2, 3, 3]
    assert reference.text_config.num_key_value_heads == 2
    assert reference.vision_config.fullatt_block_indexes == [1]
    text = read_config(text_folder)
    assert parse_config(write_config(text, None)) == text


def test_a_source_of_another_model_is_refused():
    with pytest.raises(UserError, match="describes"):
        write_config(parse_config(published("3b")), published("7b"))


def test_stop_ids_come_from_the_first_file_that_names_some(tmp_path):
    def write(name, value):
        (tmp_path / name).write_text(json.dumps(value))

    with pytest.raises(UserError, match="no stop id"):
        read_stop_ids(tmp_path)
    write("config.json", {"text_config": {"eos_token_id": 7}})
    assert read_stop_ids(tmp_path) == (7,)
    write("config.json", {"eos_token_id": 151645})
    write("generation_config.json", {"eos_token_id": [151645, 151643]})
    assert read_stop_ids(tmp_path) == (151645, 151643)
    write("generation_config.json", {"eos_token_id": 5})
    assert read_stop_ids(tmp_path) == (5,)
    write("generation_config.json", {"temperature": 1.0})
    assert read_stop_ids(tmp_path) == (151645,)


def test_the_tokenizer_names_the_stop_id_where_no_config_does(folder, tmp_path):
    import shutil

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    assert read_stop_ids(tmp_path) == (302,)
