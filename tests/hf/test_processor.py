"""The processor against transformers' own (cases B01 to B05, B09 to B13)."""

import io
import json
import shutil
import threading

import numpy as np
import pytest
import tiny
from PIL import Image

from jaxevolve.hf.config import read_config
from jaxevolve.hf.images import BadImage
from jaxevolve.hf.processor import load_processor
from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.errors import UserError

pytest.importorskip("torch")
INSTRUCTION = "Answer in \\boxed{}."


def image(height, width, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


@pytest.fixture(scope="module")
def processor(folder):
    return load_processor(folder, read_config(folder))


@pytest.fixture(scope="module")
def reference(folder):
    return tiny.reference_processor(folder)


def by_reference(reference, question, images):
    """What transformers makes of one row."""
    content = []
    for number, text in enumerate(question.split("<image>")):
        content += [{"type": "image"}] if number else []
        content += [{"type": "text", "text": text}] if text else []
    messages = [{"role": "user", "content": content}]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return reference(text=[text], images=images or None, return_tensors="pt")


ROWS = [
    ("Find x.", []),
    ("<image>Find the angle at B, 41°.", [(56, 56)]),
    ("What is <image> ?", [(120, 200)]),
    ("<image> or <image>", [(70, 70), (90, 260)]),
    ("a<image>b<image>c<image>", [(1, 1), (20, 30), (98, 98)]),
    ("<image>", [(300, 500)]),
    ("<image> thin", [(28, 2000)]),
]


@pytest.mark.parametrize(("question", "sizes"), ROWS)
def test_a_row_equals_the_reference(processor, reference, question, sizes):
    images = [image(*size, seed) for seed, size in enumerate(sizes)]
    expected = by_reference(reference, question, images)
    prompts = processor.prompts([{"question": question, "images": images}])
    length = prompts.length[0]
    assert (prompts.tokens[0, :length] == expected["input_ids"][0].numpy()).all()
    assert prompts.tokens.shape[1] == bucket(int(length))
    if not images:
        assert prompts.pixels.shape == (1, 0, 64, 588)
        assert (prompts.positions[0, :length] == np.arange(length)[:, None]).all()
        assert prompts.next_position[0] == length
        return
    # Merged tokens in the order of the prompt, each with its m * m patches: the reference's order.
    places = prompts.image_token[0, :length]
    assert ((places >= 0) == (prompts.tokens[0, :length] == 306)).all()
    patches = prompts.pixels.reshape(-1, 4, 588)[places[places >= 0]].reshape(-1, 588)
    values = patches.reshape(-1, 3, 1, 196) / 255
    values = (values - processor.image_mean[:, None, None]) / processor.image_std[:, None, None]
    values = np.repeat(values, 2, axis=2).reshape(-1, 1176)
    np.testing.assert_allclose(values, expected["pixel_values"].numpy(), atol=2e-6)
    segment = prompts.segment.reshape(-1, 4)[places[places >= 0]].reshape(-1)
    patches_of = expected["image_grid_thw"].prod(1).tolist()
    assert segment.tolist() == np.repeat(np.arange(len(images)) + 1, patches_of).tolist()
    assert (prompts.segment > 0).sum() == sum(patches_of)


@pytest.mark.parametrize(("question", "sizes"), ROWS)
def test_positions_equal_the_reference(processor, reference, folder, question, sizes):
    images = [image(*size) for size in sizes]
    expected = by_reference(reference, question, images)
    if not images:
        return
    model = MODELS.setdefault(folder, tiny.reference_model(folder))
    positions, delta = model.model.get_rope_index(
        expected["input_ids"], expected["mm_token_type_ids"], expected["image_grid_thw"]
    )
    prompts = processor.prompts([{"question": question, "images": images}])
    length = prompts.length[0]
    assert (prompts.positions[0, :length] == positions[:, 0].numpy().T).all()
    assert prompts.next_position[0] == length + int(delta)


MODELS = {}


def test_pixels_are_whole_numbers_before_they_are_stored(processor):
    made = processor.image_processor(
        images=[image(75, 130)], do_rescale=False, do_normalize=False, return_tensors="np"
    )["pixel_values"]
    assert (made == made.round()).all()
    assert made.min() >= 0
    assert made.max() <= 255


def test_a_row_is_the_same_alone_and_in_any_batch(processor):
    rows = [{"question": q, "images": [image(*size, 3) for size in sizes]} for q, sizes in ROWS[:4]]
    batch = processor.prompts(rows, INSTRUCTION)
    for i, row in enumerate(rows):
        alone = processor.prompts([row], INSTRUCTION)
        length, windows = alone.length[0], alone.pixels.shape[1]
        assert batch.length[i] == length
        for key in ("tokens", "positions", "image_token"):
            assert (getattr(batch, key)[i, :length] == getattr(alone, key)[0, :length]).all()
        for key in ("pixels", "patch_hw", "segment"):
            assert (getattr(batch, key)[i, :windows] == getattr(alone, key)[0]).all()
        assert (batch.segment[i, windows:] == 0).all()
        assert (batch.tokens[i, length:] == 0).all()
        assert (batch.image_token[i, length:] == -1).all()
        for key in ("next_position", "ids"):
            assert getattr(batch, key)[i] == getattr(alone, key)[0]
        assert processor.row_size(row, INSTRUCTION) == (length, alone_windows(alone))


def alone_windows(prompts):
    return int((prompts.segment[0] > 0).any(-1).sum())


def test_the_size_of_a_row_needs_no_pixels(processor, tmp_path):
    path = tmp_path / "large.png"
    image(400, 600).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])  # The header is whole, the pixels are not.
    row = {"id": "g7", "question": "<image>", "images": [path]}
    tokens, windows = processor.row_size(row)
    assert windows == 4 * 6
    assert tokens == processor.row_size({"question": ""})[0] + 2 + 14 * 21
    with pytest.raises(BadImage, match=r"row g7, image 1: .*truncated"):
        processor.prompts([row])


def test_rows_that_cannot_be_used_are_named(processor):
    tall = Image.new("RGB", (40, 8001))
    with pytest.raises(BadImage, match="row 1 of the batch, image 2: it is 40 x 8001 pixels"):
        processor.prompts(
            [{"question": "x"}, {"question": "<image><image>", "images": [image(9, 9), tall]}]
        )
    with pytest.raises(BadImage, match="row a, image 1"):
        processor.row_size({"id": "a", "question": "<image>", "images": [b"nothing"]})
    with pytest.raises(UserError, match=r"row a: .*1 <image> marks .* 0 images"):
        processor.prompts([{"id": "a", "question": "<image>"}])
    with pytest.raises(UserError, match="row a: the chat prompt has 1 image tokens for 0 images"):
        processor.prompts([{"id": "a", "question": "x <|image_pad|>"}])


def test_exif_and_transparency_are_handled_before_resizing(processor):
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (112, 56), "white").save(out, "JPEG", exif=exif)
    row = {"question": "<image>", "images": [out.getvalue()]}
    prompts = processor.prompts([row])
    assert prompts.patch_hw.reshape(-1, 2).max(0).tolist() == [7, 3]
    assert processor.row_size(row) == (prompts.length[0], alone_windows(prompts))
    clear = Image.new("RGBA", (56, 56), (0, 0, 0, 0))
    prompts = processor.prompts([{"question": "<image>", "images": [clear]}])
    assert (prompts.pixels[prompts.segment > 0] == 255).all()


def test_threads_do_not_disturb_each_other(processor):
    rows = [{"question": f"{number} <image>", "images": [image(60, 60)]} for number in range(8)]
    expected = [processor.prompts([row]).tokens for row in rows]
    made = [None] * 8

    def work(i):
        for _ in range(5):
            made[i] = processor.prompts([rows[i]]).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((a == b).all() for a, b in zip(made, expected))


def test_vision_and_unused_ids_are_banned_and_stop_ids_are_not(processor):
    banned = set(processor.banned_ids.tolist())
    assert {303, 304, 305, 306, 307} <= banned
    assert set(range(308, 384)) <= banned
    assert processor.stop_ids == (302, 300)
    assert processor.pad_id == 300
    assert not banned & {0, 1, 299, 300, 301, 302}
    assert processor.banned_ids.dtype == np.int32


def test_text_ends_at_the_first_stop_id(processor):
    ids = processor.tokenizer("The angle", add_special_tokens=False)["input_ids"]
    for end in ([], [302], [300], [302, 0, 0], [302, *ids]):
        assert processor.decode(np.array(ids + end, np.int32)) == "The angle"
    assert processor.decode([301, *ids]) == "The angle"


def test_a_text_only_model_reads_text(text_folder):
    processor = load_processor(text_folder, read_config(text_folder))
    reference = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Find x."}], add_generation_prompt=True
    )["input_ids"]
    prompts = processor.prompts([{"question": "Find x."}])
    assert prompts.tokens[0, : prompts.length[0]].tolist() == reference
    assert prompts.pixels.shape[:2] == (1, 0)
    assert prompts.next_position[0] == len(reference)
    with pytest.raises(UserError, match="reads text only"):
        processor.prompts([{"question": "<image>", "images": [image(9, 9)]}])


def test_the_processors_template_wins_over_the_tokenizers(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "chat_template.jinja").unlink()
    template = "{% for m in messages %}Q: {{ m.content }}{% endfor %} A:"
    (tmp_path / "copy" / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    processor = load_processor(tmp_path / "copy", read_config(folder))
    prompts = processor.prompts([{"question": "x?"}])
    ids = prompts.tokens[0, : prompts.length[0]].tolist()
    assert processor.tokenizer.decode(ids) == "Q: x? A:"


def test_saved_truncation_does_not_cut_prompts(folder, tmp_path):
    from tokenizers import Tokenizer

    shutil.copytree(folder, tmp_path / "copy")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=500)
    tokenizer.save(str(tmp_path / "copy" / "tokenizer.json"))
    processor = load_processor(tmp_path / "copy", read_config(folder))
    whole = load_processor(folder, read_config(folder))
    row = {"question": "Find the length of the side."}
    assert processor.prompts([row]).length == whole.prompts([row]).length


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("preprocessor_config.json", None, "no preprocessor_config"),
        ("preprocessor_config.json", {"patch_size": 16}, "patch_size is 16"),
        ("preprocessor_config.json", {"merge_size": 1}, "merge_size is 1"),
        ("preprocessor_config.json", {"do_normalize": False}, "do_normalize is False"),
        ("preprocessor_config.json", {"rescale_factor": 1.0}, "rescale_factor"),
        ("chat_template.jinja", None, "no chat template"),
        ("tokenizer.json", None, "no usable tokenizer"),
    ],
)
def test_folders_that_do_not_go_together_are_refused(folder, tmp_path, file, change, words):
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / file
    if change is None:
        path.unlink()
    else:
        tiny.write_json(path, tiny.read_json(path) | change)
    with pytest.raises(UserError, match=words):
        load_processor(tmp_path / "copy", read_config(folder))


def test_a_missing_folder_is_no_name_on_a_hub(folder):
    with pytest.raises(UserError, match="nowhere is no folder"):
        load_processor("nowhere", read_config(folder))
