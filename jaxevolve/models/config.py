"""The shape of a model; field names follow the Hugging Face config."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower's shape; names follow the Hugging Face config.

    `image_mean` and `image_std` come from the image processor's config: pixels enter the model as
    they are and are normalized here, after any noise.
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    window_size: int
    fullatt_block_indexes: tuple[int, ...]
    out_hidden_size: int
    in_channels: int = 3
    image_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)

    @property
    def window_units(self) -> int:
        """Merged units along a window's side."""
        return self.window_size // self.spatial_merge_size // self.patch_size

    @property
    def window_patches(self) -> int:
        """Q, the patches of one window."""
        return (self.window_units * self.spatial_merge_size) ** 2


@dataclass(frozen=True)
class Config:
    """The model's shape; names follow the Hugging Face config.

    `vision` is None for a text-only Qwen2.5, whose `mrope_section` is all one axis.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, ...]
    tie_word_embeddings: bool
    image_token_id: int | None = None
    video_token_id: int | None = None
    vision_start_token_id: int | None = None
    vision_end_token_id: int | None = None
    vision: VisionConfig | None = None

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads
