"""Where does each patch and each token stand? Window layout and M-RoPE positions, in numpy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxevolve.models.config import VisionConfig


class ImageLayout(NamedTuple):
    """One image of h x w patches, cut into W windows of Q patch slots; m is the merge size.

    Attributes:
        windows: W.
        unit_slot: i32[h*w/(m*m)], the merged slot among W*Q/(m*m) of each unit, units in raster
            order. Sorting units by it gives the windows' order; it is itself the way back.
        patch_slot: i32[h*w], the slot among W*Q of each patch; patches unit by unit, and row by row
            inside a unit.
        patch_hw: i32[h*w, 2], row and column of each of these patches.
    """

    windows: int
    unit_slot: np.ndarray
    patch_slot: np.ndarray
    patch_hw: np.ndarray


def image_layout(height: int, width: int, vision: VisionConfig) -> ImageLayout:
    """Lays out one image in windows (see `models.inputs.Prompts`).

    Windows start at the upper left corner; those at the right and lower edge may be part empty
    (Qwen2.5-VL Technical Report, section 2.1.1).

    Args:
        height: h in patches, a multiple of the merge size.
        width: w in patches, likewise.
        vision: gives window and merge size.

    Returns:
        The slots of units and patches.
    """
    merge, side = vision.spatial_merge_size, vision.window_units
    rows, columns = (np.arange(size // merge, dtype=np.int32) for size in (height, width))
    across = -(-len(columns) // side)
    window = (rows // side)[:, None] * across + columns // side
    unit_slot = window * side**2 + (rows % side)[:, None] * side + columns % side
    unit_slot = unit_slot.reshape(-1).astype(np.int32)
    inside = np.arange(merge**2, dtype=np.int32)
    patch_hw = np.empty((len(rows), len(columns), merge**2, 2), np.int32)
    patch_hw[..., 0] = rows[:, None, None] * merge + inside // merge
    patch_hw[..., 1] = columns[:, None] * merge + inside % merge
    return ImageLayout(
        windows=across * -(-len(rows) // side),
        unit_slot=unit_slot,
        patch_slot=(unit_slot[:, None] * merge**2 + inside).reshape(-1),
        patch_hw=patch_hw.reshape(-1, 2),
    )


class RowImages(NamedTuple):
    """The images of one row in window layout: W windows of Q slots with C values.

    Attributes:
        pixels: u8[W, Q, C].
        patch_hw: i32[W, Q, 2].
        segment: i32[W, Q], the image's number from 1, 0 for padding.
        merged: i32[N], the merged slot of each of the row's N image tokens, in prompt order.
    """

    pixels: np.ndarray
    patch_hw: np.ndarray
    segment: np.ndarray
    merged: np.ndarray


def arrange(
    patches: Sequence[np.ndarray], layouts: Sequence[ImageLayout], vision: VisionConfig
) -> RowImages:
    """Puts the patches of a row's images into their windows, one image behind the other.

    Args:
        patches: u8[h*w, C] of each image, in the order of `ImageLayout.patch_slot`.
        layouts: of the same images.
        vision: gives sizes.

    Returns:
        The arrays of the row; W = 0 without images.
    """
    slots, unit = vision.window_patches, vision.spatial_merge_size**2
    values = vision.in_channels * vision.patch_size**2
    base = np.cumsum([0] + [layout.windows * slots for layout in layouts])
    pixels = np.zeros((base[-1], values), np.uint8)
    patch_hw = np.zeros((base[-1], 2), np.int32)
    segment = np.zeros(base[-1], np.int32)
    merged = [np.zeros(0, np.int32)]
    for number, (made, layout) in enumerate(zip(patches, layouts, strict=True)):
        place = base[number] + layout.patch_slot
        pixels[place] = made
        patch_hw[place] = layout.patch_hw
        segment[place] = number + 1
        merged.append((base[number] // unit + layout.unit_slot).astype(np.int32))
    return RowImages(
        pixels=pixels.reshape(-1, slots, values),
        patch_hw=patch_hw.reshape(-1, slots, 2),
        segment=segment.reshape(-1, slots),
        merged=np.concatenate(merged),
    )


def mrope_positions(
    tokens: np.ndarray, grids: Sequence[tuple[int, int]], image_token_id: int | None, merge: int
) -> tuple[np.ndarray, int]:
    """M-RoPE positions of one prompt (Qwen2-VL, arXiv 2409.12191, section 2.1).

    Text advances all three axes together. All tokens of an image share the time of its start, and
    count rows and columns of its merged grid from there; what follows continues after the largest.

    Args:
        tokens: i32[T], placeholders expanded.
        grids: height and width in patches of every image, in order.
        image_token_id: the placeholder's id.
        merge: spatial merge size.

    Returns:
        i32[T, 3] (time, height, width) and the position, on all axes, of the token after the
        prompt. The reference's delta is that position less T.

    Raises:
        ValueError: the placeholders are not those of the grids.
    """
    merged = [(height // merge, width // merge) for height, width in grids]
    places = np.flatnonzero(tokens == image_token_id) if grids else np.zeros(0, np.int64)
    if len(places) != sum(height * width for height, width in merged):
        raise ValueError(f"{len(places)} image tokens do not fill the merged grids {merged}")
    positions = np.empty((len(tokens), 3), np.int32)
    start = position = used = 0
    for height, width in merged:
        first = int(places[used])
        if places[used + height * width - 1] != first + height * width - 1:
            raise ValueError(f"the image tokens of merged grid {(height, width)} are interrupted")
        positions[start:first] = np.arange(position, position + first - start)[:, None]
        position += first - start
        start, used = first + height * width, used + height * width
        positions[first:start, 0] = position
        positions[first:start, 1] = position + np.repeat(np.arange(height), width)
        positions[first:start, 2] = position + np.tile(np.arange(width), height)
        position += max(height, width)
    positions[start:] = np.arange(position, position + len(tokens) - start)[:, None]
    return positions, position + len(tokens) - start
