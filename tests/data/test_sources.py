import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jaxevolve.data.sources import Subset, is_generated, load_rows
from jaxevolve.hf.images import open_image
from jaxevolve.runtime.errors import UserError


def png(color="red", size=(30, 20)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def write_jsonl(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_geometry3k_layout(tmp_path):
    file = write_parquet(
        tmp_path / "train-00000-of-00001.parquet",
        images=[[{"bytes": png(), "path": "1.png"}], [{"bytes": png("blue"), "path": None}]],
        problem=["<image>Find x.", "<image>Find y."],
        answer=["2 \\sqrt { 221 }", None],
    )
    rows = load_rows(str(file))
    assert len(rows) == 2
    assert rows[0] == {
        "id": "train-00000-of-00001.parquet:0",
        "question": "<image>Find x.",
        "images": [png()],
        "answer": "2 \\sqrt { 221 }",
        "family": None,
        "solution": None,
    }
    assert rows[1]["answer"] is None
    with pytest.raises(IndexError):
        rows[2]


def test_geoqa_r1v_layout(tmp_path):
    file = write_parquet(
        tmp_path / "train.parquet",
        image=[{"bytes": png(), "path": None}],
        problem=["As shown, find the angle."],
        solution=["<answer> 145° </answer>"],
    )
    (row,) = load_rows(str(file))
    assert (row["images"], row["answer"]) == ([png()], "145°")


def test_mmr1_layout_with_several_images_and_images_that_are_only_a_path(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(png())
    images = [
        [{"bytes": None, "path": "pictures/a.png"}, {"bytes": png("blue"), "path": "b.png"}],
        [],
    ]
    file = write_parquet(
        tmp_path / "train.parquet", images=images, problem=["?", "2+2?"], answer=["1", "4"]
    )
    first, second = load_rows(str(file))
    assert first["images"] == [tmp_path / "pictures" / "a.png", png("blue")]
    assert second["images"] == []


def test_jsonl_with_image_paths_relative_to_its_folder(tmp_path):
    file = write_jsonl(
        tmp_path / "set" / "train.jsonl",
        {"id": 7, "question": "Find x.", "image": "images/7.png", "answer": 41, "family": "tri"},
        {"question": "No image.", "image": None, "solution": "It is 3."},
    )
    first, second = load_rows(str(file))
    assert first["id"] == "7"
    assert first["images"] == [tmp_path / "set" / "images" / "7.png"]
    assert (first["answer"], first["family"]) == ("41", "tri")
    assert (second["id"], second["images"], second["answer"]) == ("train.jsonl:1", [], None)
    assert second["solution"] == "It is 3."


def test_columns_may_have_any_name(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", {"q": "Find x.", "label": "3", "picture": "p.png"})
    (row,) = load_rows(str(file), problem_key="q", answer_key="label", image_key="picture")
    assert (row["question"], row["answer"]) == ("Find x.", "3")
    assert row["images"] == [tmp_path / "p.png"]


def test_a_letter_stands_for_its_choice(tmp_path):
    file = write_jsonl(
        tmp_path / "a.jsonl",
        {"question": "?", "choices": ["30", "40", "60", "80"], "answer": "D"},
        {"question": "?", "choices": None, "answer": "D"},
        {"question": "?", "choices": ["30"], "answer": "D"},
    )
    assert [row["answer"] for row in load_rows(str(file))] == ["80", "D", "D"]


def test_folder_glob_and_split(tmp_path):
    for split in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        write_parquet(tmp_path / "data" / f"{split}.parquet", problem=[split])
    train = ["train-00000-of-00002", "train-00001-of-00002"]
    for path in (f"{tmp_path}@train", f"{tmp_path}/data/train-*.parquet", f"{tmp_path}/**/train-*"):
        assert [row["question"] for row in load_rows(path)] == train
    (tmp_path / "data" / "test-00000-of-00001.parquet").unlink()
    assert [row["question"] for row in load_rows(str(tmp_path))] == train


def test_a_folder_of_several_splits_is_not_mixed(tmp_path):
    for split in ("train", "val"):
        write_jsonl(tmp_path / f"{split}.jsonl", {"question": split})
    with pytest.raises(UserError, match=r"several splits \(train, val\).*@train"):
        load_rows(str(tmp_path))
    with pytest.raises(UserError, match="no split 'test'; it has train, val"):
        load_rows(f"{tmp_path}@test")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.parquet", "does not exist"),
        ("tran.jsonl", "did you mean"),
        ("empty", "no .parquet and no .jsonl file"),
        ("notes.txt", "neither parquet nor JSONL"),
        ("empty.jsonl", "holds no rows"),
        ("broken.jsonl", "line 2"),
        ("list.jsonl", "not a JSON object"),
        ("broken.parquet", "no parquet file"),
        ("other.jsonl", "no column named problem or question"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_sentence(tmp_path, name, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"question": "a"}\n{"question": \n')
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    write_jsonl(tmp_path / "train.jsonl", {"question": "a"})
    write_jsonl(tmp_path / "other.jsonl", {"text": "a"})
    with pytest.raises(UserError) as caught:
        load_rows(str(tmp_path / name))
    assert words in str(caught.value)


def test_a_missing_column_is_named_with_the_nearest(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", {"problem": "a", "images": []})
    with pytest.raises(UserError, match=r"'problm' \(data.problem_key\); did you mean problem"):
        load_rows(str(file), problem_key="problm")


def test_files_of_different_columns_are_not_mixed(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", {"problem": "a"})
    write_jsonl(tmp_path / "b.jsonl", {"question": "b"})
    with pytest.raises(UserError, match="other columns"):
        load_rows(str(tmp_path))


def test_the_built_in_renderer_is_a_path():
    rows = load_rows("geometry:tri=0.5,rect=0.5,seed=3,length=40")
    assert len(rows) == 40
    assert {row["family"] for row in rows} == {"tri", "rect"}
    assert rows[0]["id"] == "geometry-3-0"
    assert load_rows("geometry")[5]["question"].startswith("<image>")
    assert is_generated("geometry:tri=1")
    assert not is_generated("geometry.jsonl")


@pytest.mark.parametrize("path", ["geometry:tru=1", "geometry:seed=x", "geometry:difficulty=9"])
def test_a_wrong_description_of_the_renderer_is_refused(path):
    with pytest.raises(UserError):
        load_rows(path)


def test_a_subset_keeps_order_and_rows(tmp_path):
    rows = load_rows("geometry:length=9")
    some = Subset(rows, [4, 2])
    assert [row["id"] for row in some] == [rows[4]["id"], rows[2]["id"]]


@pytest.mark.parametrize(
    ("path", "count", "labeled"),
    [
        ("geometry3k_redrawn@train", 600, False),
        ("geometry3k_redrawn@test", 324, True),
        ("geometry3k_original_samples", 10, True),
        ("parquet_layout@train", 24, False),
        ("parquet_layout/data/test-*.parquet", 24, True),
    ],
)
def test_the_real_rows(real_rows, path, count, labeled):
    rows = load_rows(str(real_rows / path))
    assert len(rows) == count
    assert len({row["id"] for row in rows}) == count
    assert all(row["question"] and len(row["images"]) == 1 for row in rows)
    assert all((row["answer"] is not None) == labeled for row in rows)
    image = open_image(rows[count - 1]["images"][0])
    assert image.mode == "RGB"
    assert min(image.size) > 50


def test_parquet_and_jsonl_hold_the_same_problems(real_rows):
    packed = load_rows(str(real_rows / "parquet_layout@test"))
    loose = {row["question"] for row in load_rows(str(real_rows / "geometry3k_redrawn@test"))}
    assert all(row["question"].removeprefix("<image>") in loose for row in packed)
