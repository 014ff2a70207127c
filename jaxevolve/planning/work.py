"""What does a step compute, read and send? Counted from shapes, and held against a chip's limits.

XLA's own count knows a loop's body once, whatever the number of turns, and no kernel; the formulas
here are held against it on a small model whose loops are unrolled.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from jaxevolve.models.config import Config
from jaxevolve.models.rows import reaches
from jaxevolve.packing import row_counts
from jaxevolve.planning.chips import Topology
from jaxevolve.planning.shapes import image_windows, sizes
from jaxevolve.rollout.device import READ_AT_ONCE
from jaxevolve.runtime.buckets import bucket

HALF, FULL = 2, 4  # bytes of bfloat16 and float32
# Bytes of both of Adam's moments of a weight, as optimizer.moments stores them.
MOMENTS = {"float32": 8.0, "bfloat16": 4.0, "int8": 2.3}


@dataclass(frozen=True)
class Work:
    """Of all devices together.

    Attributes:
        flops: operations.
        bytes: from and to memory.
        sent: bytes that devices send along fsdp and tensor.
        summed: bytes that they send along data: gradients.
    """

    flops: float = 0.0
    bytes: float = 0.0
    sent: float = 0.0
    summed: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        mine, theirs = astuple(self), astuple(other)
        return Work(*(a + b for a, b in zip(mine, theirs)))


@dataclass(frozen=True)
class Lengths:
    """What is expected, in tokens: of a prompt, an image's share of it filling all; of a response.

    Attributes:
        prompt: of every prompt.
        response: of every maternal response.
    """

    prompt: int
    response: int


class Counts:
    """Sizes of a model that the formulas below are made of.

    Attributes:
        layers: weights of the decoder's layers.
        head: weights of the matrix to logits.
        vision: weights of the vision tower's blocks.
        all: weights of all of it.
    """

    def __init__(self, shape: Config, params: Any) -> None:
        sizes = {k: int(np.prod(x.shape)) for k, x in flatten_dict(params, sep="/").items()}
        matrices = {k: n for k, n in sizes.items() if k.endswith("_proj/weight") or "/attn/" in k}
        self.layers = sum(n for k, n in matrices.items() if k.startswith("model/layers/"))
        self.vision = sum(
            n for k, n in matrices.items() if k.startswith("visual/blocks/") and "bias" not in k
        )
        self.head = shape.vocab_size * shape.hidden_size
        self.all = sum(sizes.values())
        self.shape = shape

    def attention(self, queries: float, keys: float) -> float:
        """Operations of queries over keys in all layers; masked ones count."""
        c = self.shape
        return 4.0 * queries * keys * c.num_attention_heads * c.head_dim * c.num_hidden_layers

    def images(self, prompts: float, windows: int) -> float:
        """Operations of the vision tower."""
        v = self.shape.vision
        if v is None or not windows:
            return 0.0
        patches = windows * v.window_patches
        whole = len(v.fullatt_block_indexes)
        keys = whole * patches + (v.depth - whole) * v.window_patches
        unit = v.spatial_merge_size**2
        values = v.in_channels * v.patch_size**2
        merger = (unit * v.hidden_size) * (unit * v.hidden_size + v.out_hidden_size) / unit
        weights = self.vision + values * v.hidden_size + merger
        return prompts * patches * (2.0 * weights + 4.0 * v.hidden_size * keys)

    def forward(
        self, prompts: float, prompt: float, windows: int, group: float = 0, response: float = 0
    ) -> float:
        """Operations up to the last hidden state of prompts and of G responses to each."""
        tokens = prompts * group * response
        return (
            self.images(prompts, windows)
            + 2.0 * self.layers * (prompts * prompt + tokens)
            + self.attention(prompts * prompt, prompt)
            + self.attention(tokens, response + prompt)
        )

    def activations(self, tokens: float) -> float:
        """Bytes of the inputs and outputs of every matrix of the decoder's layers."""
        c = self.shape
        heads = (2 * c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
        width = 5 * c.hidden_size + heads + 4 * c.intermediate_size
        return HALF * tokens * width * c.num_hidden_layers

    @property
    def cache(self) -> int:
        """Bytes of a token's keys and values."""
        c = self.shape
        return 2 * HALF * c.num_key_value_heads * c.head_dim * c.num_hidden_layers


def step(
    config: ConfigDict,
    counts: Counts,
    topology: Topology,
    mesh: tuple[int, int, int],
    lengths: Lengths,
) -> dict[str, Work]:
    """The work of one step by phase.

    Args:
        config: the run's config.
        counts: of its model.
        topology: what it runs on.
        mesh: devices on data, fsdp and tensor.
        lengths: that are expected.
    """
    data, fsdp, tensor = mesh
    devices, shards = data * fsdp * tensor, data * fsdp
    settings, retrace = config.rollout, config.retrace
    vision = counts.shape.vision
    windows = 0 if vision is None else bucket(image_windows(lengths.prompt, vision))
    weights, width = HALF * counts.all, counts.shape.hidden_size

    def sums(tokens: float, parts: int) -> float:
        """Bytes that all devices send for the sums over tensor of a forward pass."""
        return 2 * counts.shape.num_hidden_layers * 2 * (parts - 1) * tokens * width * HALF

    # Sampling: every `settings.tensor` devices have the weights to themselves.
    copies = devices / settings.tensor
    shapes = sizes(config, vision, devices // topology.processes // settings.tensor)
    kept = retrace.rate * lengths.response if retrace.m else 0

    def read(prompts: float, tokens: float) -> Work:
        calls = prompts / (READ_AT_ONCE * copies)
        return Work(
            counts.forward(prompts, tokens, windows),
            calls * copies * weights + counts.activations(prompts * tokens),
            sums(prompts * tokens, settings.tensor),
        )

    def decode(count: float, tokens: float) -> Work:
        """`count` responses of so many tokens.

        Each row and each seat is read as far as any of them goes, maternal or not, and every seat
        for as many rows as a prompt may have.
        """
        made = count * tokens
        rows, seats = (topology.processes * those for those in (shapes.rows, shapes.seats))
        steps = made / rows
        far = lambda cache, most: next(size for size in reaches(cache) if size >= most)
        own = far(bucket(shapes.response), lengths.response)
        shared = far(shapes.pool, lengths.prompt + kept)
        keys = counts.cache * steps * (rows * own + seats * shared)
        logits = 3 * FULL * made * counts.shape.vocab_size
        flops = made * 2.0 * (counts.layers + counts.head)
        flops += counts.attention(made, own)
        flops += counts.attention(steps * seats * shapes.width, shared)
        # What is whole on each device of tensor is read by each.
        return Work(
            flops,
            steps * copies * weights + settings.tensor * keys + logits,
            sums(made, settings.tensor),
        )

    batch, n, m = config.batch, settings.n, retrace.m
    made = {
        "copy weights": Work(sent=weights * copies * (1 - 1 / (fsdp * tensor))),
        "prefill": read(batch, lengths.prompt),
        "decode": decode(batch * n, lengths.response),
    }
    if m:
        anchors = batch * n * (m if retrace.noise_per == "sample" else 1)
        if windows and retrace.image_noise:
            made["anchor prefill"] = read(anchors, lengths.prompt + kept)
        made["re-inference"] = decode(batch * n * m, lengths.response - kept)

    # Scoring and updates: weights are gathered over fsdp for every piece of the batch.
    rows = packed_rows(config, lengths)
    forward = counts.forward(batch, lengths.prompt, windows, rows, settings.max_tokens)
    tokens = batch * (lengths.prompt + rows * settings.max_tokens)
    head = 2.0 * counts.head * batch * rows * settings.max_tokens
    micro = config.grpo.micro_batch or batch // config.grpo.minibatches // shards
    pieces = batch / (micro * shards)
    gather, used = weights * (fsdp - 1) * data, weights * devices / tensor
    turns = 2 if config.grpo.kl else 1
    made["score"] = Work(
        turns * (forward + head),
        turns * (pieces * used + counts.activations(tokens)),
        turns * (pieces * gather + sums(tokens, tensor)),
    )
    again = 1 if config.grpo.remat == "layer" else 0
    # A float32 weight is read with its moments and its gradient, and written with its moments.
    trained = 0 if config.lora.rank else counts.all * data
    each = 3 * FULL + 2 * MOMENTS[config.optimizer.moments]
    optimizer = config.grpo.minibatches * each * trained
    scattered, summed = (0, 0) if config.lora.rank else ((fsdp - 1) * data, 2 * (data - 1))
    made["update"] = Work(
        (3 + again) * forward + 4 * head,
        pieces * 3 * used + (3 + again) * counts.activations(tokens) + optimizer,
        pieces * (2 * gather + scattered * weights) + (2 + again) * sums(tokens, tensor),
        pieces * summed * weights,
    )
    return made


def packed_rows(config: ConfigDict, lengths: Lengths) -> int:
    """Rows that a prompt's responses are packed into, with half a row to spare."""
    group = config.rollout.n * (1 + config.retrace.m * config.retrace.train)
    filled = group * lengths.response / config.rollout.max_tokens + 0.5
    return next((n for n in row_counts(group) if n >= filled), group)


def limits(
    works: Mapping[str, Work], topology: Topology, mesh: tuple[int, int, int]
) -> dict[str, dict[str, float]]:
    """By phase, the seconds that each of the chips' limits asks for, by the limit's name.

    An axis that reaches over several slices or hosts goes at their network's pace.
    """
    chip, inside = topology.chip, topology.size // topology.groups
    _, fsdp, tensor = mesh
    slow = min(topology.egress, chip.network)
    sending = slow if fsdp * tensor > inside else topology.egress
    summing = slow if topology.groups > 1 else topology.egress
    return {
        name: {
            "compute": work.flops / chip.flops / topology.size,
            "memory": work.bytes / chip.bandwidth / topology.size,
            "network": (work.sent / sending + work.summed / summing) / topology.size,
        }
        for name, work in works.items()
    }


def step_seconds(found: Mapping[str, Mapping[str, float]], overlap: bool = True) -> float:
    """Seconds of a step by its `limits`; in each phase they overlap, or follow each other."""
    return sum((max if overlap else sum)(phase.values()) for phase in found.values())


def sampled_tokens(config: ConfigDict, lengths: Lengths) -> float:
    """Tokens that a step samples, which is what a run's throughput counts."""
    again = config.retrace.m * (1 - config.retrace.rate)
    return config.batch * config.rollout.n * lengths.response * (1 + again)
