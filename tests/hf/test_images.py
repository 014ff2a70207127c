"""Opening and resizing images (cases B02, B06 to B12)."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jaxevolve.hf.images import BadImage, image_size, open_image, resized

FEW, MANY = 56 * 56, 1280 * 28 * 28


def encoded(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        ((4000, 3000), 1280 * 784, (1148, 840)),
        ((4000, 3000), 12_845_056, (4004, 2996)),
        ((35, 812), 16 * 784, (28, 532)),
        ((20, 30), MANY, (56, 84)),
        ((1, 1), MANY, (56, 56)),
        ((40, 8000), MANY, (28, 8008)),
        ((70, 70), MANY, (56, 56)),
        ((42, 42), MANY, (56, 56)),
        ((98, 98), MANY, (112, 112)),
    ],
)
def test_published_sizes(size, limit, expected):
    assert resized(*size, 28, FEW, limit) == expected


sides = st.integers(1, 3000)


@given(sides, sides, st.sampled_from([FEW, 4 * FEW]), st.sampled_from([16 * 784, MANY]))
def test_sizes_equal_the_reference(height, width, least, most):
    module = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    reference = pytest.importorskip(module).smart_resize
    try:
        expected = reference(height, width, 28, least, most)
    except ValueError:
        with pytest.raises(BadImage, match=f"{width} x {height}"):
            resized(height, width, 28, least, most)
    else:
        assert resized(height, width, 28, least, most) == expected


def test_an_extreme_ratio_is_refused_by_its_size():
    with pytest.raises(BadImage, match="8001 x 40 pixels"):
        resized(40, 8001, 28, FEW, MANY)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white_and_black_lines_stay(mode):
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.putpixel((3, 2), (0, 0, 0, 255))
    if mode == "LA":
        image = image.convert("LA")
    if mode == "P":
        image = Image.new("P", (8, 8), 1)
        image.putpalette([0, 0, 0, 9, 9, 9])
        image.putpixel((3, 2), 0)
    options = {"transparency": 1} if mode == "P" else {}
    made = np.asarray(open_image(encoded(image, **options)))
    assert made[2, 3].tolist() == [0, 0, 0]
    made = made.copy()
    made[2, 3] = 255
    assert (made == 255).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "F", "I", "I;16"])
def test_every_mode_becomes_rgb(mode):
    image = Image.new(mode, (5, 4))
    assert open_image(image).mode == "RGB"
    assert open_image(image).size == (5, 4)


def test_opaque_colors_are_kept_exactly():
    values = np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)
    rgba = Image.fromarray(values).convert("RGBA")
    assert (np.asarray(open_image(rgba)) == values).all()


def test_sixteen_bits_keep_their_upper_half():
    values = np.array([[0, 0x1234], [0x80FF, 0xFFFF]], np.uint16)
    made = np.asarray(open_image(encoded(Image.fromarray(values))))
    assert made[..., 0].tolist() == [[0, 0x12], [0x80, 0xFF]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    image = Image.new("RGB", (60, 30))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, "JPEG", exif=exif)
    upright = (30, 60) if orientation >= 5 else (60, 30)
    assert open_image(data).size == upright
    assert image_size(data) == (30, 60)


def test_paths_bytes_and_images_are_alike(tmp_path):
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 5, 3), np.uint8))
    (tmp_path / "a.png").write_bytes(encoded(image))
    for source in (image, encoded(image), tmp_path / "a.png", str(tmp_path / "a.png")):
        assert (np.asarray(open_image(source)) == np.asarray(image)).all()
        assert image_size(source) == (9, 5)


NOISE = Image.fromarray(np.random.default_rng(2).integers(0, 256, (64, 64, 3), np.uint8))


@pytest.mark.parametrize(
    "data",
    [encoded(NOISE)[: len(encoded(NOISE)) // 2], b"", b"some text", encoded(NOISE, "JPEG")[:400]],
    ids=["half a PNG", "empty", "text", "start of a JPEG"],
)
def test_a_broken_image_says_why(data, tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(data)
    with pytest.raises(BadImage, match=r"broken\.png cannot be opened \(.+\)"):
        open_image(path)
    with pytest.raises(BadImage, match="the image cannot be opened"):
        open_image(data)


def test_a_missing_image_is_named():
    with pytest.raises(BadImage, match=r"nowhere\.png does not exist"):
        open_image("nowhere.png")
    with pytest.raises(BadImage, match=r"nowhere\.png does not exist"):
        image_size("nowhere.png")
