"""Window layout and M-RoPE positions against the reference (cases B05, B13, B15)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxevolve.hf.layout import arrange, image_layout, mrope_positions
from jaxevolve.models.config import VisionConfig

VISION = VisionConfig(
    depth=1,
    hidden_size=32,
    intermediate_size=40,
    num_heads=2,
    patch_size=14,
    temporal_patch_size=2,
    spatial_merge_size=2,
    window_size=112,
    fullatt_block_indexes=(0,),
    out_hidden_size=64,
)
IMAGE = 306


def test_a_grid_that_is_no_multiple_of_the_window():
    layout = image_layout(6, 10, VISION)
    order = np.argsort(layout.unit_slot)
    assert order.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 4, 9, 14]
    assert np.argsort(order).tolist() != order.tolist()
    patches = np.bincount(layout.patch_slot // VISION.window_patches)
    assert np.cumsum(patches).tolist() == [48, 60]
    assert layout.windows == 2


def test_a_grid_of_one_window():
    layout = image_layout(8, 8, VISION)
    assert layout.unit_slot.tolist() == list(range(16))
    assert layout.windows == 1


units = st.integers(1, 13)


@settings(max_examples=50)
@given(st.lists(st.tuples(units, units), min_size=1, max_size=3))
def test_windows_equal_the_reference(grids):
    torch = pytest.importorskip("torch")
    from transformers.vision_utils import get_vision_window_index

    grid_thw = torch.tensor([[1, 2 * height, 2 * width] for height, width in grids])
    expected, lengths = get_vision_window_index(grid_thw, 2, 112, 14)
    order, filled, before = [], [], 0
    for _, height, width in grid_thw.tolist():
        layout = image_layout(height, width, VISION)
        order += (np.argsort(layout.unit_slot) + before).tolist()
        filled += np.bincount(layout.patch_slot // VISION.window_patches).tolist()
        assert layout.windows == layout.patch_slot.max() // VISION.window_patches + 1
        before += len(layout.unit_slot)
    assert order == expected.tolist()
    assert [0, *np.cumsum(filled)] == lengths.tolist()


@settings(max_examples=30)
@given(units, units)
def test_patches_know_their_row_and_column(height, width):
    torch = pytest.importorskip("torch")
    from transformers.vision_utils import get_vision_position_ids

    expected = get_vision_position_ids(torch.tensor([[1, 2 * height, 2 * width]]), 2)
    layout = image_layout(2 * height, 2 * width, VISION)
    assert (layout.patch_hw == expected.numpy()).all()


def test_images_of_a_row_lie_behind_each_other():
    grids = [(4, 6), (6, 10)]
    layouts = [image_layout(*grid, VISION) for grid in grids]
    patches = [np.full((24, 588), 5, np.uint8), np.full((60, 588), 7, np.uint8)]
    row = arrange(patches, layouts, VISION)
    assert row.pixels.shape == (3, 64, 588)
    assert (row.pixels == np.array([0, 5, 7])[row.segment][..., None]).all()
    assert np.bincount(row.segment.reshape(-1)).tolist() == [3 * 64 - 84, 24, 60]
    assert row.merged[:6].tolist() == [0, 1, 2, 4, 5, 6]
    assert (row.merged[6:] >= 16).all()
    assert len(set(row.merged.tolist())) == 6 + 15
    assert arrange([], [], VISION).pixels.shape == (0, 64, 588)


def test_published_positions():
    tokens = np.array([1, 2, 3, *[IMAGE] * 6, 4, 5])
    positions, following = mrope_positions(tokens, [(4, 6)], IMAGE, 2)
    expected = "000 111 222 333 334 335 343 344 345 666 777"
    assert " ".join("".join(map(str, row)) for row in positions) == expected
    assert following - len(tokens) == -3


def test_text_counts_on_all_axes():
    positions, following = mrope_positions(np.array([5, 6, 7]), [], IMAGE, 2)
    assert positions.tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    assert following == 3
    assert mrope_positions(np.array([5]), [], None, 1)[1] == 1


pieces = st.lists(st.tuples(st.integers(1, 5), units, units), min_size=1, max_size=3)


@settings(max_examples=40)
@given(pieces, st.integers(0, 4))
def test_positions_equal_the_reference(rows, tail):
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    tokens, grids = [], []
    for text, height, width in rows:
        tokens += [1] * text + [IMAGE] * (height * width)
        grids.append((2 * height, 2 * width))
    tokens = np.array(tokens + [2] * tail)
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = lambda *args, **kwargs: Qwen2_5_VLModel.get_vision_position_ids(
        model, *args, **kwargs
    )
    expected, delta = Qwen2_5_VLModel.get_rope_index(
        model,
        torch.tensor(tokens)[None],
        torch.tensor(tokens == IMAGE).int()[None],
        torch.tensor([[1, *grid] for grid in grids]),
    )
    positions, following = mrope_positions(tokens, grids, IMAGE, 2)
    assert (positions == expected[:, 0].numpy().T).all()
    assert following == len(tokens) + int(delta)


@pytest.mark.parametrize(
    ("tokens", "grids"),
    [([1, IMAGE], [(4, 4)]), ([1, IMAGE, 1, IMAGE], [(2, 4)]), ([IMAGE] * 3, [(2, 4)])],
)
def test_tokens_that_do_not_fit_the_grids_are_an_error(tokens, grids):
    with pytest.raises(ValueError, match="image tokens"):
        mrope_positions(np.array(tokens), grids, IMAGE, 2)
