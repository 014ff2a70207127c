"""What does a row say, and which row is it? Plain Python; see `Processor` for a row's keys."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from jaxevolve.runtime.errors import UserError

IMAGE = "<image>"  # Marks an image's place in a question.

Row = Mapping[str, Any]


def label(row: Row, number: int | None = None) -> str:
    """A row's name in messages.

    Args:
        row: the row.
        number: its place in the batch, for rows without an id.

    Returns:
        "row ID", "row NUMBER of the batch" or "the row".
    """
    if row.get("id") is not None:
        return f"row {row['id']}"
    return "the row" if number is None else f"row {number} of the batch"


def images_of(row: Row) -> Sequence[Any]:
    """The row's images, none for a row of text.

    Args:
        row: the row.

    Returns:
        What stands under "images".
    """
    return row.get("images") or ()


def chat_content(row: Row, name: str, instruction: str = "") -> str | list[dict[str, str]]:
    """The content of the user's turn: text, and images where the question marks them.

    Args:
        row: the row. A question that has images and marks none gets them in front, with a warning.
        name: of the row, for messages.
        instruction: added to the question after a space.

    Returns:
        A string without images, else the list of parts that chat templates take.

    Raises:
        UserError: marks and images differ in number.
    """
    question, images = row["question"], len(images_of(row))
    if instruction:
        question = f"{question.rstrip()} {instruction}"
    marks = question.count(IMAGE)
    if images and not marks:
        warnings.warn(f"questions without {IMAGE} get their images in front", stacklevel=2)
        question, marks = IMAGE * images + question, images
    if marks != images:
        raise UserError(
            f"{name}: the question has {marks} {IMAGE} marks and the row has {images} images; "
            "make them equal"
        )
    if not images:
        return question
    parts: list[dict[str, str]] = []
    for number, text in enumerate(question.split(IMAGE)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def content_key(row: Row, images: Sequence[Image.Image]) -> bytes:
    """What makes a row itself.

    Args:
        row: the row.
        images: its images, opened.

    Returns:
        A hash of its id where it has one, else of its question and pixels.
    """
    digest = hashlib.blake2b(digest_size=16)
    if row.get("id") is not None:
        digest.update(f"id:{row['id']}".encode())
        return digest.digest()
    question = row["question"].encode()
    digest.update(f"question:{len(question)}:".encode() + question)
    for image in images:
        digest.update(f"image:{image.width}x{image.height}:".encode() + image.tobytes())
    return digest.digest()


def sample_ids(keys: Iterable[bytes]) -> np.ndarray:
    """Stable ids that randomness is derived from.

    Args:
        keys: `content_key` of each of P rows.

    Returns:
        u32[P]: a hash of each key and of how many equal ones came before it in the batch.
    """
    seen: Counter[bytes] = Counter()
    ids = []
    for key in keys:
        ids.append(hashlib.blake2b(key + seen[key].to_bytes(4, "little"), digest_size=4).digest())
        seen[key] += 1
    return np.frombuffer(b"".join(ids), "<u4").astype(np.uint32)
