"""How does a row of questions and images become the arrays that the model reads, and text again?

The tokenizer, the chat template and the image processor are those of the model's folder; the
expansion of image placeholders, the window layout and the positions are ours.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from jaxevolve.hf.config import read_image_config, read_json, read_stop_ids
from jaxevolve.hf.images import BadImage, image_size, open_image, resized
from jaxevolve.hf.layout import ImageLayout, RowImages, arrange, image_layout, mrope_positions
from jaxevolve.hf.rows import Row, chat_content, content_key, images_of, label, sample_ids
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.models.inputs import Prompts
from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.errors import UserError

_VISION_TOKENS = tuple(
    f"<|{name}|>" for name in ("vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")
)


@dataclass(frozen=True, eq=False)
class Processor:
    """Rows to prompts and tokens to text, for one model's folder.

    A row is a mapping with "question", and optionally "images" (a list of images, paths or encoded
    bytes) and "id". `<image>` in the question marks where an image stands; where it has none, the
    images come first.

    Attributes:
        tokenizer: of the folder, with its chat template.
        image_processor: of the folder; None for a text-only model.
        config: the model's shape.
        stop_ids: the ids that end a response.
        pad_id: the tokenizer's padding id; the first stop id where it has none.
        banned_ids: i32[...], ids that are never sampled: those of vision, padding unless it is a
            stop id, and rows of the embedding that no token has.
        folder: where it all came from.
    """

    tokenizer: Any
    image_processor: Any
    config: Config
    stop_ids: tuple[int, ...]
    pad_id: int
    banned_ids: np.ndarray
    folder: Path

    @property
    def image_mean(self) -> np.ndarray:
        """f32[3], by channel, of pixels in [0, 1]."""
        return np.array(self._vision.image_mean, np.float32)

    @property
    def image_std(self) -> np.ndarray:
        """f32[3], by channel, of pixels in [0, 1]."""
        return np.array(self._vision.image_std, np.float32)

    def prompts(self, rows: Sequence[Row], instruction: str = "") -> Prompts:
        """Makes a batch, its sizes rounded up to buckets.

        Args:
            rows: P rows.
            instruction: added to every question after a space.

        Returns:
            Prompts in numpy, T and W from `runtime.buckets`; W = 0 when no row has an image.

        Raises:
            BadImage: an image cannot be used; names the row.
            UserError: `<image>` marks and images of a row differ in number; names the row.
        """
        encoded = [self._encode(row, label(row, i), instruction) for i, row in enumerate(rows)]
        length = np.array([len(row.tokens) for row in encoded], np.int32)
        count, longest = len(rows), bucket(int(length.max(initial=0)))
        shape = (0, 1, 1)  # Of a text-only model, whose pixels nobody reads.
        if self.config.vision is not None:
            vision = self.config.vision
            windows = bucket(max((len(row.images.pixels) for row in encoded), default=0))
            shape = (windows, vision.window_patches, vision.in_channels * vision.patch_size**2)
        prompts = Prompts(
            tokens=np.zeros((count, longest), np.int32),
            length=length,
            positions=np.zeros((count, longest, 3), np.int32),
            next_position=np.array([row.next_position for row in encoded], np.int32),
            ids=sample_ids(row.key for row in encoded),
            image_token=np.full((count, longest), -1, np.int32),
            pixels=np.zeros((count, *shape), np.uint8),
            patch_hw=np.zeros((count, *shape[:2], 2), np.int32),
            segment=np.zeros((count, *shape[:2]), np.int32),
        )
        for i, row in enumerate(encoded):
            used = slice(len(row.tokens))
            prompts.tokens[i, used] = row.tokens
            prompts.positions[i, used] = row.positions
            if row.images is not None:
                windows = slice(len(row.images.pixels))
                places = np.flatnonzero(row.tokens == self.config.image_token_id)
                prompts.image_token[i, places] = row.images.merged
                prompts.pixels[i, windows] = row.images.pixels
                prompts.patch_hw[i, windows] = row.images.patch_hw
                prompts.segment[i, windows] = row.images.segment
        return prompts

    def row_size(self, row: Row, instruction: str = "") -> tuple[int, int]:
        """How large a row is, from the sizes of its images only: no pixel is decoded.

        Args:
            row: the row.
            instruction: as for `prompts`.

        Returns:
            Prompt tokens with placeholders expanded, and windows of its images.

        Raises:
            BadImage: an image's header cannot be read, or its shape is refused; names the row.
            UserError: as `prompts`.
        """
        name = label(row)
        sizes = self._each(image_size, images_of(row), name)
        layouts = [image_layout(*grid, self._vision) for grid in self._grids(sizes, name)]
        tokens = self._tokens(row, layouts, name, instruction)
        return len(tokens), sum(layout.windows for layout in layouts)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Turns a response into text.

        Args:
            token_ids: of one response, with or without its stop id and what follows it.

        Returns:
            The text before the first stop id; special tokens are left out.
        """
        kept = []
        for token in map(int, token_ids):
            if token in self.stop_ids:
                break
            kept.append(token)
        return self.tokenizer.backend_tokenizer.decode(kept, skip_special_tokens=True)

    @property
    def _vision(self) -> VisionConfig:
        if self.config.vision is None:
            raise UserError(
                f"the model in {self.folder} reads text only; use one that reads images"
            )
        return self.config.vision

    def _encode(self, row: Row, name: str, instruction: str) -> "_Encoded":
        """One row with its pixels."""
        images = self._each(open_image, images_of(row), name)
        grids = self._grids([(image.height, image.width) for image in images], name)
        layouts = [image_layout(*grid, self._vision) for grid in grids]
        tokens = self._tokens(row, layouts, name, instruction)
        arranged, merge = None, 1
        if self.config.vision is not None:
            arranged = arrange([self._patches(image) for image in images], layouts, self._vision)
            merge = self._vision.spatial_merge_size
        positions, following = mrope_positions(tokens, grids, self.config.image_token_id, merge)
        return _Encoded(tokens, positions, following, arranged, content_key(row, images))

    def _patches(self, image: Image.Image) -> np.ndarray:
        """u8[h*w, C], resized but neither rescaled nor normalized, in the reference's order."""
        made = self.image_processor(
            images=[image], do_rescale=False, do_normalize=False, return_tensors="np"
        )["pixel_values"]
        vision = self._vision
        shape = (len(made), vision.in_channels, vision.temporal_patch_size, -1)
        # A still image repeats its frame over time.
        return made.reshape(shape)[:, :, 0].reshape(len(made), -1).astype(np.uint8)

    def _grids(self, sizes: Sequence[tuple[int, int]], name: str) -> list[tuple[int, int]]:
        """Heights and widths in pixels -> in patches, after resizing."""
        if not sizes:
            return []
        patch, limits = self._vision.patch_size, self.image_processor.size
        factor = patch * self._vision.spatial_merge_size

        def grid(size: tuple[int, int]) -> tuple[int, int]:
            height, width = resized(*size, factor, limits.shortest_edge, limits.longest_edge)
            return height // patch, width // patch

        return self._each(grid, sizes, name)

    def _each(self, action: Callable[[Any], Any], images: Sequence[Any], name: str) -> list[Any]:
        """Does the same to every image of a row; an error says which image it was."""
        done = []
        for number, image in enumerate(images, 1):
            try:
                done.append(action(image))
            except BadImage as error:
                raise BadImage(f"{name}, image {number}: {error}") from error
        return done

    def _tokens(
        self, row: Row, layouts: Sequence[ImageLayout], name: str, instruction: str
    ) -> np.ndarray:
        """i32[T]: the chat prompt with each image's placeholder repeated."""
        message = {"role": "user", "content": chat_content(row, name, instruction)}
        text = self.tokenizer.apply_chat_template(
            [message], tokenize=False, add_generation_prompt=True
        )
        # The backend itself: the wrapper changes its settings on each call, which threads disturb.
        encoded = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        tokens = np.array(encoded.ids, np.int32)
        places = np.flatnonzero(tokens == self.config.image_token_id)
        if len(places) != len(layouts):
            raise UserError(
                f"{name}: the chat prompt has {len(places)} image tokens for {len(layouts)} "
                "images; take special tokens out of the question, or give the model's folder the "
                "chat template of a vision model"
            )
        repeats = np.ones(len(tokens), np.int64)
        repeats[places] = [len(layout.unit_slot) for layout in layouts]
        return np.repeat(tokens, repeats)


class _Encoded(NamedTuple):
    """A row of `Prompts` without padding, and what identifies it."""

    tokens: np.ndarray
    positions: np.ndarray
    next_position: int
    images: RowImages | None
    key: bytes


def load_processor(folder: str | Path, config: Config) -> Processor:
    """Loads tokenizer, chat template and image processor of a Hugging Face folder.

    Args:
        folder: the folder.
        config: the model's shape, from the same folder.

    Returns:
        The processor.

    Raises:
        UserError: a part is missing, or does not go with the config.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would miss PyTorch, aloud
    from transformers import AutoTokenizer, Qwen2VLImageProcessorPil

    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give a model folder in Hugging Face layout")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} has no usable tokenizer ({error}); add its files") from error
    # Saved settings for batches of text must not cut or pad a prompt.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if (folder / "chat_template.json").exists() and not (folder / "chat_template.jinja").exists():
        # Where some releases put the template that wins over the tokenizer's.
        tokenizer.chat_template = read_json(folder / "chat_template.json")["chat_template"]
    if not tokenizer.chat_template:
        raise UserError(f"{folder} has no chat template; add chat_template.jinja")
    ids = set(tokenizer.get_vocab().values())
    if max(ids) >= config.vocab_size:
        raise UserError(
            f"the tokenizer in {folder} has id {max(ids)}, beyond the model's vocab_size "
            f"{config.vocab_size}; use the tokenizer that belongs to the model"
        )
    image_processor = None
    if config.vision is not None:
        _check_images(folder, config.vision)
        image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
    stop_ids = read_stop_ids(folder)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stop_ids[0]
    banned = {id for token, id in tokenizer.get_vocab().items() if token in _VISION_TOKENS}
    banned |= {id for name, id in vars(config).items() if name.endswith("token_id") and id}
    banned |= ({pad_id} | set(range(config.vocab_size)) - ids) - set(stop_ids)
    return Processor(
        tokenizer=tokenizer,
        image_processor=image_processor,
        config=config,
        stop_ids=stop_ids,
        pad_id=pad_id,
        banned_ids=np.array(sorted(banned), np.int32),
        folder=folder,
    )


def _check_images(folder: Path, vision: VisionConfig) -> None:
    """The image processor has to make what the model reads."""
    settings = read_image_config(folder)
    if not settings:
        raise UserError(f"{folder} has no preprocessor_config.json; copy it from the model")
    wanted = {
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
    }
    for key, value in wanted.items():
        if settings.get(key, value) != value:
            raise UserError(
                f"{folder}/preprocessor_config.json: {key} is {settings[key]}, but the model needs "
                f"{value}; use the file that belongs to the model"
            )
    if abs(settings.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise UserError(
            f"{folder}/preprocessor_config.json: rescale_factor {settings['rescale_factor']} is "
            "not supported; only 1/255 is"
        )
