import io
import json
import logging

import pytest
from ml_collections import ConfigDict
from PIL import Image

from jaxevolve.data.validate import find_problems, open_data
from jaxevolve.runtime.errors import UserError


def encoded(size=(30, 20)):
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).save(buffer, "PNG")
    return buffer.getvalue()


def settings(**changes):
    values = {
        "problem_key": None,
        "answer_key": None,
        "image_key": None,
        "overlong": "drop",
        "strict": False,
        "max_prompt_tokens": 200,
        "instruction": "",
    }
    return ConfigDict({**values, **changes})


@pytest.fixture
def folder(tmp_path):
    """Writes rows to a JSONL file with a few images beside."""
    (tmp_path / "good.png").write_bytes(encoded())
    (tmp_path / "half.png").write_bytes(encoded((200, 200))[:2000])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "thin.png").write_bytes(encoded((1, 201)))
    (tmp_path / "large.png").write_bytes(encoded((900, 900)))

    def write(*records):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps({"id": i, **r}) + "\n" for i, r in enumerate(records)))
        return str(file)

    return write


GOOD = {"question": "<image>Find x.", "image": "good.png", "answer": "3"}


def test_sound_rows_are_all_kept_and_nothing_is_listed(folder, processor, tmp_path):
    path = folder(GOOD, {"question": "2+2?", "image": None}, {**GOOD, "question": "Find y."})
    rows = open_data(path, settings(), processor, listing=tmp_path / "dropped.jsonl")
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    assert not (tmp_path / "dropped.jsonl").exists()


def test_broken_images_are_left_out_counted_and_listed(folder, processor, tmp_path, caplog):
    names = ("half.png", "empty.png", "text.png", "thin.png", "missing.png")
    path = folder(GOOD, *({**GOOD, "image": name} for name in names), GOOD)
    listing = tmp_path / "dropped.jsonl"
    with caplog.at_level(logging.WARNING):
        rows = open_data(path, settings(), processor, listing=listing)
    assert [row["id"] for row in rows] == ["0", "6"]
    assert "5 of 7 rows" in caplog.text
    assert "5 image" in caplog.text
    dropped = [json.loads(line) for line in listing.read_text().splitlines()]
    assert [(line["id"], line["index"], line["kind"]) for line in dropped] == [
        (str(i), i, "image") for i in range(1, 6)
    ]
    assert "row 4" in dropped[3]["reason"]
    assert "1 x 201 pixels" in dropped[3]["reason"]


def test_strict_refuses_them_at_the_start(folder, processor):
    path = folder(GOOD, {**GOOD, "image": "half.png"})
    with pytest.raises(UserError, match=r"row 1, image 1.*strict=false"):
        open_data(path, settings(strict=True), processor)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "<image>Compare.", "image": ["good.png", "good.png"]},
        {"question": "<image>Find x.", "image": []},
    ],
)
def test_marks_and_images_that_differ_are_always_refused_by_row(folder, processor, row):
    path = folder(GOOD, row)
    with pytest.raises(UserError, match="row 1: the question has 1 <image> marks"):
        open_data(path, settings(), processor)


def test_a_prompt_is_counted_with_its_image_tokens(folder, processor):
    path = folder(GOOD, {**GOOD, "image": "large.png"})
    (problem,) = find_problems(
        open_data(path, settings(max_prompt_tokens=5000), processor),
        range(2),
        processor,
        max_prompt_tokens=200,
    )
    tokens, _ = processor.row_size({**GOOD, "images": [encoded((900, 900))]})
    assert tokens > (900 // 28) ** 2
    assert problem.kind == "overlong"
    assert f"a prompt of {tokens} tokens" in problem.reason
    assert processor.prompts([{**GOOD, "images": [encoded((900, 900))]}]).length[0] == tokens


def test_overlong_prompts_are_dropped_or_refused_by_flag(folder, processor, tmp_path):
    path = folder(GOOD, {**GOOD, "image": "large.png"}, GOOD)
    rows = open_data(path, settings(), processor)
    assert [row["id"] for row in rows] == ["0", "2"]
    with pytest.raises(UserError, match=r"row 1 has a prompt of \d+ tokens.*overlong=drop"):
        open_data(path, settings(overlong="refuse"), processor)


def test_the_instruction_counts(folder, processor):
    path = folder(GOOD, {**GOOD, "question": "Find."})
    words = "think " * 200
    with pytest.raises(UserError, match=r"no row of .* can be used"):
        open_data(path, settings(instruction=words), processor)


def test_rows_without_a_label_are_of_no_use_where_labels_are_the_signal(folder, processor):
    path = folder(GOOD, {**GOOD, "answer": None})
    assert len(open_data(path, settings(), processor)) == 2
    assert len(open_data(path, settings(), processor, labels=True)) == 1


def test_a_broken_label_is_left_out_where_labels_are_the_signal(folder, processor, tmp_path):
    path = folder(GOOD, {**GOOD, "answer": "see figure"})
    assert len(open_data(path, settings(), processor)) == 2
    listing = tmp_path / "left_out.jsonl"
    kept = open_data(path, settings(strict=True), processor, labels=True, listing=listing)
    assert [row["id"] for row in kept] == ["0"]
    assert "row 1: the label points elsewhere ('see figure')" in listing.read_text()


def test_an_empty_question_is_left_out(folder, processor):
    path = folder(GOOD, {**GOOD, "question": " "})
    assert len(open_data(path, settings(), processor)) == 1


def test_of_the_built_in_renderer_a_few_rows_are_looked_at(processor):
    rows = open_data("geometry:tri=1", settings(), processor)
    assert len(rows) == 1 << 20
    with pytest.raises(UserError, match="no row of geometry:tri=1 can be used"):
        open_data("geometry:tri=1", settings(max_prompt_tokens=10), processor)


def test_the_real_rows_are_sound(real_rows, processor):
    for name in ("geometry3k_original_samples", "parquet_layout@train", "parquet_layout@test"):
        path = str(real_rows / name)
        assert len(open_data(path, settings(max_prompt_tokens=1024), processor)) in (10, 24)
