"""Qwen2.5-VL (and, without a vision tower, Qwen2.5) in Flax Linen without state.

One attention serves four uses. A prompt [P, T] is shared by its responses [P, R, L]: prefill is
the prompt stream alone, decode is the response stream with L = 1 and a cache, scoring and training
are both streams at once. The prompt and its images are computed once for all its responses, of
which a row of the response stream may hold several, one behind the other.

Architecture: Bai et al., Qwen2.5-VL Technical Report (arXiv 2502.13923), section 2.1, and the
Hugging Face implementation, whose parameter names are the paths of the tree here.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxevolve.models.attention import (
    PLAIN,
    Kernel,
    attend,
    segment_firsts,
    segment_starts,
)
from jaxevolve.models.config import Config
from jaxevolve.models.inputs import Prompts, Rows
from jaxevolve.models.layers import (
    GatedMLP,
    Linear,
    RMSNorm,
    rotate,
    run_layers,
    split_by_row,
    stacked,
    unstack,
)
from jaxevolve.models.rows import read_rows
from jaxevolve.models.vision import VisionTower

KeyValues = tuple[jax.Array, jax.Array]


class Attention(nn.Module):
    """Grouped-query attention of both streams."""

    config: Config

    def setup(self) -> None:
        """Declares the four projections, used by both streams."""
        c = self.config
        self.q_proj = Linear(c.num_attention_heads * c.head_dim, use_bias=True)
        self.k_proj = Linear(c.num_key_value_heads * c.head_dim, use_bias=True)
        self.v_proj = Linear(c.num_key_value_heads * c.head_dim, use_bias=True)
        self.o_proj = Linear(c.hidden_size)

    def project(self, x: jax.Array, angles: jax.Array) -> tuple[jax.Array, KeyValues]:
        """x [P, N, D] -> query [P, N, K, R, h], keys and values [P, N, K, h], rotated."""
        kv_heads, width = self.config.num_key_value_heads, self.config.head_dim
        query = self.q_proj(x).reshape(*x.shape[:2], kv_heads, -1, width)
        key = self.k_proj(x).reshape(*x.shape[:2], kv_heads, width)
        value = self.v_proj(x).reshape(*x.shape[:2], kv_heads, width)
        query = rotate(query, angles[..., None, None, :])
        return query, (rotate(key, angles[..., None, :]), value)

    def out(self, mixed: Sequence[jax.Array]) -> jax.Array:
        """Streams [P, K, G, R, L, h], one behind the other -> [P, N, D]."""
        flat = [x.transpose(0, 2, 4, 1, 3, 5).reshape(len(x), -1, self.width) for x in mixed]
        return self.o_proj(jnp.concatenate(flat, axis=1))

    @property
    def width(self) -> int:
        """H * h."""
        return self.config.num_attention_heads * self.config.head_dim


class DecoderBlock(nn.Module):
    """One decoder layer over the prompt stream, the response stream, or both."""

    config: Config
    kernel: Kernel = PLAIN

    def setup(self) -> None:
        """Declares the layer's parts under their names on disk."""
        self.input_layernorm = RMSNorm(self.config.rms_norm_eps)
        self.self_attn = Attention(self.config)
        self.post_attention_layernorm = RMSNorm(self.config.rms_norm_eps)
        self.mlp = GatedMLP(self.config.intermediate_size)

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array,
        length: int,
        segments: jax.Array | None = None,
        there: jax.Array | None = None,
    ) -> tuple[jax.Array, KeyValues]:
        """The prompt stream and, behind it, the rows of the response stream: one matrix product.

        Args:
            x: [P, N, D], N = T alone or T + R * L.
            angles: f32[P, N, h/2].
            length: T.
            segments: i32[P, R, L], see `attend`.
            there: bool[P, T], the prompts' tokens, where rows follow.

        Returns:
            Both after the layer, and the prompt's keys and values [P, K, T, h].
        """
        query, own = self.self_attn.project(self.input_layernorm(x), angles)
        # Split rather than sliced: the gradient of a slice adds zeros.
        parts = lambda a: jnp.split(a, [length], axis=1)
        (query, later), (key, value) = parts(query), map(parts, own)
        query, prefix = to_rows(query, (key[0], value[0]), 1)
        mixed = [attend(query, prefix, kernel=self.kernel)]
        prefix = tuple(a[:, :, 0] for a in prefix)
        if segments is not None:
            query, own = to_rows(later, (key[1], value[1]), segments.shape[1])
            mixed.append(attend(query, own, segments, prefix, there, self.kernel))
        x = x + self.self_attn.out(mixed)
        return x + self.mlp(self.post_attention_layernorm(x)), prefix

    def follow(
        self, x: jax.Array, angles: jax.Array, prefix: KeyValues, there: jax.Array
    ) -> tuple[jax.Array, KeyValues]:
        """Tokens that follow a prefix, of which there is one for each row of them.

        Args:
            x: [P, L, D].
            angles: f32[P, L, h/2].
            prefix: its keys and values [P, K, T, h].
            there: bool[P, T], its tokens.

        Returns:
            The tokens after the layer, and their own keys and values [P, K, L, h].
        """
        query, own = self.self_attn.project(self.input_layernorm(x), angles)
        query, own = to_rows(query, own, 1)
        mixed = attend(query, own, None, prefix, there, self.kernel)
        x = x + self.self_attn.out([mixed])
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x, tuple(a[:, :, 0] for a in own)


class Embedding(nn.Module):
    """The token embeddings, which a tied model also uses as its head."""

    config: Config

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """tokens i32[...] -> [..., D]."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        return self.param("weight", nn.initializers.normal(0.02), shape)[tokens]


class Decoder(nn.Module):
    """The language model; the parameters of its layers are stacked on axis 0."""

    config: Config
    kernel: Kernel = PLAIN

    def setup(self) -> None:
        """Declares the parts under their names on disk."""
        c = self.config
        self.embed_tokens = Embedding(c)
        self.norm = RMSNorm(c.rms_norm_eps)
        self.block = DecoderBlock(c, self.kernel, parent=None)
        x, angles = jnp.zeros((1, 1, c.hidden_size)), jnp.zeros((1, 1, c.head_dim // 2))
        self.layers = stacked(self, "layers", self.block, c.num_hidden_layers, x, angles, 1)

    def angles(self, positions: jax.Array) -> jax.Array:
        """M-RoPE: every frequency turns with one of the three axes.

        Args:
            positions: i32[..., 3].

        Returns:
            f32[..., h/2]; `mrope_section` says how many frequencies each axis takes, in order.
        """
        section = self.config.mrope_section
        axis = jnp.array([i for i, count in enumerate(section) for _ in range(count)])
        half = self.config.head_dim // 2
        frequencies = self.config.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
        return positions.astype(jnp.float32)[..., axis] * frequencies

    def prompt(
        self, prompts: Prompts, features: jax.Array | None, remat: str
    ) -> tuple[jax.Array, KeyValues]:
        """The prompt stream -> hidden [P, T, D], keys and values of each layer [P, K, T, h]."""
        x = self._embed_prompt(prompts, features)
        angles = self.angles(prompts.positions)

        def layer(params: Any, x: jax.Array, _: None) -> tuple[jax.Array, KeyValues]:
            return self.block.apply({"params": params}, x, angles, x.shape[1])

        x, prefix = run_layers(layer, self.layers, x, None, remat)
        return self.norm(x), prefix

    def both(
        self,
        prompts: Prompts,
        features: jax.Array | None,
        responses: jax.Array,
        segments: jax.Array,
        remat: str,
    ) -> tuple[jax.Array, jax.Array]:
        """Both streams -> hidden of the prompt [P, T, D] and of the responses [P, R, L, D]."""
        (count, length), there = prompts.tokens.shape, prompt_mask(prompts)
        x = self._embed_prompt(prompts, features)
        y = self.embed_tokens(responses.reshape(count, -1))
        x = split_by_row(jnp.concatenate([x, y], axis=1), self.kernel.mesh)
        follow = response_positions(prompts, segments).reshape(count, -1, 3)
        angles = self.angles(jnp.concatenate([prompts.positions, follow], axis=1))

        def layer(params: Any, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            x, _ = self.block.apply({"params": params}, x, angles, length, segments, there)
            return x, None

        x, _ = run_layers(layer, self.layers, x, None, remat)
        x, y = jnp.split(self.norm(x), [length], axis=1)
        return x, y.reshape(*responses.shape, -1)

    def follow(
        self, tokens: jax.Array, first: jax.Array, prefix: KeyValues, there: jax.Array
    ) -> KeyValues:
        """Text behind a prefix -> its keys and values of each layer [P, K, L, h]; see `extend`."""
        places = first[:, None] + jnp.arange(tokens.shape[1])
        angles = self.angles(jnp.broadcast_to(places[..., None], (*places.shape, 3)))

        def layer(params: Any, x: jax.Array, prefix: KeyValues) -> tuple[jax.Array, KeyValues]:
            method = DecoderBlock.follow
            return self.block.apply({"params": params}, x, angles, prefix, there, method=method)

        return run_layers(layer, self.layers, self.embed_tokens(tokens), prefix)[1]

    def rows(self, rows: Rows, prefix: Any, cache: Any) -> tuple[jax.Array, Any]:
        """One token of each of B rows; see `read_rows`."""
        return read_rows(self.config, self.variables["params"], rows, prefix, cache)

    def _embed_prompt(self, prompts: Prompts, features: jax.Array | None) -> jax.Array:
        x = self.embed_tokens(prompts.tokens)
        if features is None:
            return split_by_row(x, self.kernel.mesh)
        place = prompts.image_token[..., None]
        image = jnp.take_along_axis(features, jnp.maximum(place, 0), axis=1)
        return split_by_row(jnp.where(place >= 0, image, x), self.kernel.mesh)


class Qwen2_5_VL(nn.Module):
    """The whole model, `Qwen2_5_VL(config).apply({"params": params}, ...)`.

    It returns hidden states, not logits: [.., V] never exists for a whole batch. `head` is the
    matrix that turns one into the other. With `unstacked` parameters the layers run unrolled.
    """

    config: Config
    kernel: Kernel = PLAIN

    def setup(self) -> None:
        """Declares the towers and, when it is not tied, the head."""
        if self.config.vision is not None:
            self.visual = VisionTower(self.config.vision, self.kernel)
        self.model = Decoder(self.config, self.kernel)
        if not self.config.tie_word_embeddings:
            self.lm_head = Embedding(self.config)

    def __call__(
        self,
        prompts: Prompts,
        responses: jax.Array,
        segments: jax.Array | None = None,
        remat: str = "none",
    ) -> jax.Array:
        """Scores responses: both streams at once.

        Args:
            prompts: P prompts.
            responses: i32[P, R, L] tokens.
            segments: i32[P, R, L], which response of its row a token belongs to, 0 for padding:
                tokens of one response stand together and have one number. None: a row is one
                response.
            remat: what the backward pass recomputes, see `run_layers`.

        Returns:
            f[P, R, L, D]: the final hidden state that predicts each response token.
        """
        if self.is_initializing() and not self.config.tie_word_embeddings:
            self.lm_head(responses)
        if segments is None:
            segments = jnp.ones_like(responses)
        features = self.encode(prompts, remat)
        x, y = self.model.both(prompts, features, responses, segments, remat)
        first = last_hidden(x, prompts)[:, None, None]
        before = jnp.pad(y[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
        return jnp.where(segment_starts(segments)[..., None], first, before)

    def encode(self, prompts: Prompts, remat: str = "none") -> jax.Array | None:
        """Images of every prompt -> merged tokens [P, W*Q/(m*m), D], or None without images."""
        if prompts.pixels.shape[1] == 0:
            return None
        return self.visual(prompts.pixels, prompts.patch_hw, prompts.segment, remat)

    def prefill(self, prompts: Prompts) -> tuple[jax.Array, Any]:
        """Reads the prompts once for all their responses.

        Returns:
            The hidden state [P, D] that predicts the first response token, and each layer's keys
            and values [P, K, T, h].
        """
        hidden, prefix = self.model.prompt(prompts, self.encode(prompts), remat="none")
        return last_hidden(hidden, prompts), prefix

    def extend(
        self, tokens: jax.Array, first: jax.Array, prefix: KeyValues, there: jax.Array
    ) -> KeyValues:
        """Reads text that goes on behind what has been read: a prompt in pieces.

        Args:
            tokens: i32[P, L]; what stands behind the end of a row changes nothing before it.
            first: i32[P], the position of each row's first token.
            prefix: keys and values of each layer [P, K, T, h], stacked.
            there: bool[P, T], the tokens of the prefix.

        Returns:
            Keys and values of each layer [P, K, L, h].
        """
        return self.model.follow(tokens, first, prefix, there)

    def decode(self, rows: Rows, prefix: Any, cache: Any) -> tuple[jax.Array, Any]:
        """Reads one token of each of B rows, which follow N prefixes; see `read_rows`."""
        return self.model.rows(rows, prefix, cache)


def head(params: Any) -> jax.Array:
    """The [V, D] matrix from hidden states to logits: its own, or the tied embeddings."""
    own = params.get("lm_head")
    return (own or params["model"]["embed_tokens"])["weight"]


def unstacked(params: Any) -> Any:
    """The same parameters with one tree a layer: what makes the layers run unrolled."""
    params = dict(params, model=dict(params["model"], layers=unstack(params["model"]["layers"])))
    if "visual" in params:
        blocks = unstack(params["visual"]["blocks"])
        params["visual"] = dict(params["visual"], blocks=blocks)
    return params


def init_params(config: Config, key: jax.Array) -> Any:
    """Random parameters; under `jax.eval_shape`, the tree of their shapes."""
    windows = 0 if config.vision is None else 1
    patches = 1 if config.vision is None else config.vision.window_patches
    values = 1 if config.vision is None else config.vision.in_channels * config.vision.patch_size**2
    zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
    prompts = Prompts(
        tokens=zeros(1, 1),
        length=zeros(1) + 1,
        positions=zeros(1, 1, 3),
        next_position=zeros(1) + 1,
        ids=zeros(1),
        image_token=zeros(1, 1) - 1,
        pixels=zeros(1, windows, patches, values),
        patch_hw=zeros(1, windows, patches, 2),
        segment=zeros(1, windows, patches),
    )
    return Qwen2_5_VL(config).init(key, prompts, zeros(1, 1, 2))["params"]


def prompt_mask(prompts: Prompts) -> jax.Array:
    """bool[P, T]: the tokens that are there."""
    return jnp.arange(prompts.tokens.shape[1]) < prompts.length[:, None]


def to_rows(query: jax.Array, own: Sequence[jax.Array], count: int) -> tuple[jax.Array, Any]:
    """Splits a stream into G rows as `attend` takes them.

    query [P, G * L, K, R, h] -> [P, K, G, R, L, h]; keys and values [P, G * L, K, h] ->
    [P, K, G, L, h].
    """
    split = lambda x: x.reshape(len(x), count, -1, *x.shape[2:])
    return (
        split(query).transpose(0, 3, 1, 4, 2, 5),
        tuple(split(x).transpose(0, 3, 1, 2, 4) for x in own),
    )


def response_positions(prompts: Prompts, segments: jax.Array) -> jax.Array:
    """i32[P, R, L, 3]: text goes on from the prompt on all three axes, in every segment."""
    place = jnp.arange(segments.shape[-1]) - segment_firsts(segments)
    positions = prompts.next_position[:, None, None] + place
    return jnp.broadcast_to(positions[..., None], (*positions.shape, 3))


def last_hidden(hidden: jax.Array, prompts: Prompts) -> jax.Array:
    """[P, T, D] -> [P, D] at each prompt's last token."""
    return jnp.take_along_axis(hidden, prompts.length[:, None, None] - 1, axis=1)[:, 0]
