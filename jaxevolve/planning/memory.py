"""How much memory would a run need? By arithmetic, before anything is compiled.

The compiler has the last word. This is what meshes are compared by, and what tells how much a
setting would save; the parts that are no arrays of the program's own are measured on the compiled
7B update and rounded up.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxevolve.planning.chips import Topology
from jaxevolve.planning.shapes import sizes
from jaxevolve.planning.work import FULL, HALF, MOMENTS, Counts
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.mesh import prompts_per_device

Mesh = tuple[int, int, int]  # devices on data, fsdp and tensor


def estimate(
    config: ConfigDict, counts: Counts, topology: Topology, mesh: Mesh
) -> dict[str, float]:
    """Bytes on one device at the peak of sampling, of scoring and of the update.

    Args:
        config: the run's config.
        counts: of its model.
        topology: what it runs on.
        mesh: devices on data, fsdp and tensor.
    """
    data, fsdp, tensor = mesh
    shape, sampled = counts.shape, config.rollout.tensor
    shards = max(topology.size // topology.processes // sampled, 1)
    s = sizes(config, shape.vision, shards)
    layers, width = shape.num_hidden_layers, shape.hidden_size
    tuned = bool(config.lora.rank)
    own = counts.all / (fsdp * tensor)
    state = 0 if tuned else (FULL + MOMENTS[config.optimizer.moments]) * own
    whole = HALF * counts.all / sampled
    reference = HALF * own if config.grpo.kl or tuned else 0
    # With adapters the reference is what is computed with.
    copy = 0 if tuned else HALF * own
    layer = HALF * counts.layers / layers
    plain = config.model.attention == "plain" or topology.chip.platform == "cpu"

    def scores(rows: float, queries: float, keys: float, parts: int) -> float:
        if not plain:
            return HALF * rows * queries * keys  # the mask
        return 3 * FULL * rows * shape.num_attention_heads / parts * queries * keys

    def image(prompts: float) -> float:
        vision = shape.vision
        if vision is None:
            return 0
        patches = prompts * s.windows * vision.window_patches
        in_windows = 3 * FULL * vision.num_heads * vision.window_patches
        wide = 8 * vision.hidden_size + 3 * vision.intermediate_size
        return patches * (HALF * wide + in_windows)

    units = 3 * HALF * shape.intermediate_size
    kept = counts.cache / shards * (s.seats * s.pool + s.rows * s.response)
    read = s.read / shards
    reading = scores(read, s.anchor, s.anchor, sampled) + read * s.anchor * units / sampled
    reading += counts.cache * read * s.anchor + image(read)
    decoding = counts.cache / shards * s.rows * s.response

    micro = prompts_per_device(
        _Sizes(data, fsdp), config.batch, config.grpo.minibatches, config.grpo.micro_batch
    )
    tokens = micro * (s.prompt + s.group * s.response)
    stream = HALF * tokens * width
    forward = scores(micro * s.group, s.response, s.response + s.prompt, tensor)
    forward += tokens * units / tensor + 6 * stream + 2 * layer / tensor + image(micro)
    saved = {"layer": stream, "dots": counts.activations(tokens) / layers / 2 / tensor}
    backward = layers * saved.get(config.grpo.remat, forward)
    if shape.vision is not None:
        patches = micro * s.windows * shape.vision.window_patches
        backward += shape.vision.depth * HALF * patches * shape.vision.hidden_size
    gradients = 0 if tuned else (FULL + HALF) * own
    away = config.grpo.offload_reference and not tuned
    return {
        "sampling": state + copy + reference + whole + kept + max(reading, decoding),
        "score": state + copy + reference + whole + forward,
        "update": state + (0 if away else reference) + copy + gradients + backward + 2 * forward,
    }


class _Sizes:
    """As much of a mesh as `prompts_per_device` looks at."""

    def __init__(self, data: int, fsdp: int) -> None:
        self.shape = {"data": data, "fsdp": fsdp}


def candidates(config: ConfigDict, counts: Counts, topology: Topology) -> list[Mesh]:
    """Meshes that the batch and the heads can be split over.

    Raises:
        UserError: there is none; the reason is that of the last.
    """
    size, groups = topology.size, topology.groups
    found, reason = [], None
    for tensor in _divisors(size // topology.processes):
        if counts.shape.num_key_value_heads % tensor:
            continue
        for data in _divisors(size // tensor):
            if topology.chip.axes and data % groups:
                continue
            mesh = (data, size // tensor // data, tensor)
            try:
                prompts_per_device(
                    _Sizes(*mesh[:2]),
                    config.batch,
                    config.grpo.minibatches,
                    config.grpo.micro_batch,
                )
            except UserError as error:
                reason = error
                continue
            found.append(mesh)
    if not found:
        raise reason
    return found


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)


def advice(
    config: ConfigDict,
    counts: Counts,
    topology: Topology,
    mesh: Mesh,
    over: Mapping[str, float],
) -> list[tuple[str, float, bool]]:
    """Which flags make a step smaller.

    Args:
        config: the run's config.
        counts: of its model.
        topology: what it runs on.
        mesh: devices on data, fsdp and tensor.
        over: bytes that each part of `estimate` needs beyond what there is.

    Returns:
        A flag, the bytes that it saves where the need is greatest, and whether it is enough for
        all parts by itself; the most saving first.
    """
    before = estimate(config, counts, topology, mesh)
    worst = max(over, key=over.get)
    found = []
    for key, value in _changes(config, counts, topology):
        after = estimate(_changed(config, key, value), counts, topology, mesh)
        saved = {part: before[part] - after[part] for part in over}
        if saved[worst] > 0.01 * over[worst]:
            enough = all(saved[part] >= need for part, need in over.items())
            found.append((_flag(key, value), saved[worst], enough))
    return sorted(found, key=lambda each: -each[1])


def together(
    config: ConfigDict,
    counts: Counts,
    topology: Topology,
    mesh: Mesh,
    over: Mapping[str, float],
) -> list[str]:
    """Flags that are enough together, chosen one by one for what is largest; [] if none are.

    Arguments are those of `advice`.
    """
    before = estimate(config, counts, topology, mesh)
    chosen: dict[str, Any] = {}
    while True:
        now = estimate(config, counts, topology, mesh)
        missing = {part: need - (before[part] - now[part]) for part, need in over.items()}
        worst = max(missing, key=missing.get)
        if missing[worst] <= 0:
            return [_flag(key, value) for key, value in chosen.items()]
        options = {}
        for key, value in _changes(config, counts, topology):
            changed = _changed(config, key, value)
            saved = now[worst] - estimate(changed, counts, topology, mesh)[worst]
            options[key, value] = min(saved, missing[worst])  # no more than is needed counts
        if not options or max(options.values()) <= 0:
            return []
        key, value = max(options, key=options.get)
        config, chosen[key] = _changed(config, key, value), value


def _changed(config: ConfigDict, key: str, value: Any) -> ConfigDict:
    changed = config.copy_and_resolve_references()
    with changed.unlocked():
        changed.update_from_flattened_dict({key: value})
    return changed


def _flag(key: str, value: Any) -> str:
    return f"--config.{key}={str(value).lower()}"


def _changes(config: ConfigDict, counts: Counts, topology: Topology) -> Iterator[tuple[str, Any]]:
    """Settings that need less memory, the least costly first."""
    if not config.grpo.offload_reference and config.grpo.kl and not config.lora.rank:
        yield "grpo.offload_reference", True
    if config.grpo.micro_batch != 1:
        yield "grpo.micro_batch", 1
    if config.grpo.remat != "layer":
        yield "grpo.remat", "layer"
    if not config.lora.rank:
        for moments in MOMENTS:
            if MOMENTS[moments] < MOMENTS[config.optimizer.moments]:
                yield "optimizer.moments", moments
    for tensor in _divisors(topology.size // topology.processes):
        if tensor > config.rollout.tensor and counts.shape.num_key_value_heads % tensor == 0:
            yield "rollout.tensor", tensor
    for part in (2, 4):
        if config.rollout.rows >= 16 * part:
            yield "rollout.rows", config.rollout.rows // part
    if not config.lora.rank:
        yield "lora.rank", 16
