"""What pixels does an image have? Opening, uprightness, color, and the size it is resized to."""

import io
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from jaxevolve.runtime.errors import UserError

Source = Image.Image | bytes | str | Path

_ORIENTATION = 0x0112  # EXIF tag.
_MAX_RATIO = 200  # Longer over shorter side, as the reference's image processor.


class BadImage(UserError):
    """An image that cannot be used; the message is the reason."""


def open_image(source: Source) -> Image.Image:
    """Opens an image as it is meant to be seen.

    EXIF orientation is applied and transparency is composited on white: a drawing in black on a
    transparent ground stays legible, where the reference's plain conversion turns it all black.
    Grayscale of 16 bits keeps its upper 8. Of an animation, the first frame is taken.

    Args:
        source: encoded bytes, a path, or an image of any mode.

    Returns:
        An upright RGB image.

    Raises:
        BadImage: the file is missing, empty, truncated or no image.
    """
    try:
        image = _lazy(source)
        image.load()
        if image.getexif().get(_ORIENTATION, 1) != 1:
            image = ImageOps.exif_transpose(image)
        return _rgb(image)
    except Exception as error:  # Broken files raise a dozen kinds, down to struct.error.
        raise BadImage(_reason(source, error)) from error


def image_size(source: Source) -> tuple[int, int]:
    """Reads the size from the header, without decoding.

    Args:
        source: as `open_image`.

    Returns:
        Height and width in pixels as stored. They trade places where EXIF lays the image on its
        side, which changes neither the number of patches nor that of windows; to look for EXIF, a
        PNG would have to be read to its end.

    Raises:
        BadImage: the header cannot be read.
    """
    try:
        image = _lazy(source)
    except Exception as error:
        raise BadImage(_reason(source, error)) from error
    return image.height, image.width


def resized(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """The size that an image is resized to before it is cut into patches.

    Both sides become multiples of `factor` (rounded half to even), and the area is brought between
    the limits at nearly the same aspect ratio. A thin image can end above `max_pixels`, since no
    side falls below `factor`.

    Args:
        height: in pixels.
        width: in pixels.
        factor: side of a merged unit, patch_size * spatial_merge_size.
        min_pixels: least area.
        max_pixels: largest area.

    Returns:
        Height and width in pixels.

    Raises:
        BadImage: one side is more than 200 times the other.
    """
    if max(height, width) / min(height, width) > _MAX_RATIO:
        raise BadImage(
            f"it is {width} x {height} pixels, and one side may be at most {_MAX_RATIO} times the "
            "other; crop it"
        )
    size = tuple(round(side / factor) * factor for side in (height, width))
    # The order of operations is the reference's: another rounding would move the floor or ceiling.
    if math.prod(size) > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        size = tuple(
            max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)
        )
    elif math.prod(size) < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        size = tuple(math.ceil(side * grow / factor) * factor for side in (height, width))
    return size


def _lazy(source: Source) -> Image.Image:
    if isinstance(source, Image.Image):
        return source
    # Whole files go through memory, so that no handle stays open.
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    if not data:
        raise ValueError("it is empty")
    return Image.open(io.BytesIO(data))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.max(initial=0) > 255:
            values = values >> 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _reason(source: Source, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{source} does not exist"
    name = "the image" if isinstance(source, bytes | Image.Image) else str(source)
    # Pillow names the buffer object, which tells a person nothing.
    detail = "no image format is recognized" if "<_io.BytesIO" in str(error) else error
    return f"{name} cannot be opened ({detail})"
