"""Questions as chat content, and sample ids."""

import numpy as np
import pytest
from PIL import Image

from jaxevolve.hf.rows import chat_content, content_key, sample_ids
from jaxevolve.runtime.errors import UserError

RED, BLUE = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
IMAGE = {"type": "image"}


def text(value):
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("question", "images", "expected"),
    [
        ("Find x.", 0, "Find x. Think."),
        ("<image>Find x.", 1, [IMAGE, text("Find x. Think.")]),
        ("In <image> and <image>", 2, [text("In "), IMAGE, text(" and "), IMAGE, text(" Think.")]),
        ("<image><image>x\n", 2, [IMAGE, IMAGE, text("x Think.")]),
    ],
)
def test_images_stand_where_they_are_marked(question, images, expected):
    row = {"question": question, "images": [RED] * images}
    assert chat_content(row, "row", "Think.") == expected


def test_images_come_first_where_none_is_marked():
    with pytest.warns(UserWarning, match="in front"):
        content = chat_content({"question": "x?", "images": [RED, BLUE]}, "row")
    assert content == [IMAGE, IMAGE, text("x?")]


def test_without_an_instruction_the_question_is_untouched():
    assert chat_content({"question": " x? \n"}, "row") == " x? \n"


@pytest.mark.parametrize(("marks", "images"), [(1, 2), (1, 0), (3, 2)])
def test_marks_and_images_have_to_agree(marks, images):
    row = {"question": "<image>" * marks, "images": [RED] * images}
    with pytest.raises(UserError, match=f"row 17: .* {marks} <image> marks .* {images} images"):
        chat_content(row, "row 17")


def ids(*rows):
    return sample_ids(content_key(row, row.get("images", [])) for row in rows).tolist()


def test_ids_follow_content_and_occurrence():
    one = {"question": "x?", "images": [RED]}
    other = {"question": "x?", "images": [BLUE]}
    first, second, third = ids(one, other, one)
    assert len({first, second, third}) == 3
    assert ids(other, one, one) == [second, first, third]
    assert ids({"question": "x?"}) not in ([first], [second])


def test_ids_follow_the_rows_own_id_where_it_has_one():
    assert ids({"id": 7, "question": "a"}) == ids({"id": "7", "question": "b"})
    assert ids({"id": "7", "question": "a"}) != ids({"id": "8", "question": "a"})
    assert ids({"id": None, "question": "a"}) == ids({"question": "a"})


def test_ids_are_the_same_on_every_machine():
    made = sample_ids([b"a", b"b", b"a"])
    assert made.dtype == np.uint32
    assert made.tolist() == [491336945, 972611309, 335458793]
