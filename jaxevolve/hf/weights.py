"""How do weights get from safetensors files onto their shards, and back?

Both ways go one tensor at a time: host memory holds this host's share of one leaf (a tensor of all
layers) when loading, and one tensor when saving, never the model. Every tensor is accounted for.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils
from safetensors import SafetensorError, safe_open

from jaxevolve.hf import names
from jaxevolve.hf.config import read_json
from jaxevolve.models.config import Config
from jaxevolve.runtime.errors import UserError

INDEX = "model.safetensors.index.json"
_ON_DISK = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
# Buffers that some releases stored; they follow from the config.
_BUFFER = re.compile(r"rotary(_pos)?_emb\.inv_freq$")

Params = dict[str, Any]
Shape = tuple[int, ...]
Place = Callable[[str, Shape], jax.sharding.Sharding | None]


class Stored(NamedTuple):
    """A tensor in a file."""

    file: Path
    name: str
    shape: Shape
    kind: str


class Planned(NamedTuple):
    """A tensor to write: its name, the leaf and the layer it is taken from, and what it becomes."""

    name: str
    path: names.Path
    layer: int | None
    shape: Shape
    dtype: np.dtype
    size: int


def load_params(
    folder: str | Path, config: Config, dtype: str = "float32", sharding: Place | None = None
) -> Params:
    """Loads a checkpoint strictly, each tensor straight onto its shards.

    Args:
        folder: holds model.safetensors, or shards with an index, in any published naming.
        config: the model's shape.
        dtype: of the parameters, as "bfloat16"; what is on disk is cast.
        sharding: (path as "model/layers/mlp/up_proj/weight", shape) -> where the leaf goes; None,
            as the argument or as a result, means the default device.

    Returns:
        The parameter tree of `models.qwen2_5_vl`.

    Raises:
        UserError: no weights, a file that cannot be read, or tensors that are missing, left over
            or of the wrong shape: all of them are named.
    """
    found = _scan(Path(folder))
    _check(Path(folder), found, config)
    leaves = {}
    for path, shape in names.param_shapes(config).items():
        tensors = [found[name] for name in names.disk_names(path, shape)]
        read = _reader(tensors, shape, names.stacked(path), np.dtype(jnp.dtype(dtype)))
        place = sharding("/".join(path), shape) if sharding else None
        if place is None:
            leaf = jax.device_put(read((slice(None),) * len(shape)))
        else:
            leaf = jax.make_array_from_callback(shape, place, read)
        # Waiting frees this leaf's copy on the host before the next one is read.
        leaves[path] = jax.block_until_ready(leaf)
    return unflatten_dict(leaves)


def save_params(
    params: Params,
    config: Config,
    folder: str | Path,
    max_shard_bytes: int = 5_000_000_000,
    dtype: str | None = None,
) -> None:
    """Writes numbered safetensors shards and their index, named as in the released models.

    Every process calls it, since sharded tensors are gathered; the first one writes. Files appear
    under their names only when they are complete, the index last.

    Args:
        params: the parameter tree.
        config: the model's shape; a tied model's head is not written.
        folder: where to; made if missing, and it holds no weights yet.
        max_shard_bytes: size limit of a shard, unless a single tensor exceeds it.
        dtype: to cast to, as "bfloat16"; None keeps each parameter's own.

    Raises:
        UserError: the folder holds weights, or the tree is not the config's.
    """
    folder = Path(folder)
    leaves = flatten_dict(params)
    shapes = names.param_shapes(config)
    given = {path: tuple(leaf.shape) for path, leaf in leaves.items()}
    if given != shapes:
        wrong = sorted(".".join(p) for p, _ in given.items() ^ shapes.items())
        raise UserError(
            f"the parameters and the config differ in {', '.join(dict.fromkeys(wrong))}"
        )
    # Complete files only: no process gets that far before all of them have looked.
    if any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} already holds weights; give another folder")
    writer = jax.process_index() == 0
    if writer:
        folder.mkdir(parents=True, exist_ok=True)
    shards = _plan(leaves, max_shard_bytes, dtype)
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = (_gather(leaves[entry.path], entry.layer, entry.dtype) for entry in shard)
        if writer:
            _write_shard(folder / file, shard, tensors)
        else:
            for _ in tensors:  # Gathering is collective: every process takes part.
                pass
        weight_map |= {entry.name: file for entry in shard}
        total += sum(entry.size for entry in shard)
    if writer:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        partial = folder / (INDEX + ".partial")
        partial.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, folder / INDEX)


def _scan(folder: Path) -> dict[str, Stored]:
    """Reads the headers; tensors by their name in the released models."""
    if (folder / INDEX).exists():
        listed = read_json(folder / INDEX).get("weight_map", {})
        files = [folder / file for file in sorted(set(listed.values()))]
    else:
        listed, files = {}, [folder / "model.safetensors"]
    found: dict[str, Stored] = {}
    for file in files:
        if not file.exists():
            raise UserError(f"{file} does not exist; give a folder with all its safetensors files")
        try:
            with safe_open(file, framework="np") as handle:
                for name in handle.keys():  # noqa: SIM118 (the handle is not a mapping)
                    tensor = handle.get_slice(name)
                    released = names.released_name(name)
                    if released in found:
                        raise UserError(f"{folder} holds {released} twice; remove one copy")
                    shape = tuple(tensor.get_shape())
                    found[released] = Stored(file, name, shape, tensor.get_dtype())
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read ({error}); download it again") from None
    lost = sorted(name for name in listed if names.released_name(name) not in found)
    if lost:
        raise UserError(f"{folder / INDEX} lists tensors that no file holds: {', '.join(lost)}")
    return found


def _check(folder: Path, found: dict[str, Stored], config: Config) -> None:
    """Accounts for every tensor; the message names all that are wrong."""
    wanted = names.tensor_shapes(config)
    known = [(name, found[name], shape) for name, shape in wanted.items() if name in found]
    extra = {
        name: stored.name
        for name, stored in found.items()
        if name not in wanted and not _BUFFER.search(name)
    }
    if config.tie_word_embeddings and "lm_head.weight" in extra:
        # Some writers store the tied head as well. It is redundant only if it is the same.
        embedding = found.get("model.embed_tokens.weight")
        if embedding and _equal(found["lm_head.weight"], embedding):
            del extra["lm_head.weight"]
        else:
            extra["lm_head.weight"] += (
                " (config.json ties it to the embedding, but their values differ)"
            )
    problems = {
        "missing": [name for name in wanted if name not in found],
        "left over": list(extra.values()),
        "of the wrong shape": [
            f"{name} ({list(stored.shape)} instead of {list(shape)})"
            for name, stored, shape in known
            if stored.shape != shape
        ],
        "of an unsupported type": [
            f"{name} ({stored.kind})"
            for name, stored, _ in known
            if stored.kind not in _ON_DISK.values()
        ],
    }
    text = "; ".join(f"{kind}: {', '.join(hits)}" for kind, hits in problems.items() if hits)
    if text:
        raise UserError(f"the tensors in {folder} are not those of its config.json; {text}")


def _equal(first: Stored, second: Stored) -> bool:
    """Whether two matrices hold the same bytes, compared by blocks of rows."""
    if (first.shape, first.kind) != (second.shape, second.kind):
        return False
    step = max(1, 2**24 // first.shape[1])
    for start in range(0, first.shape[0], step):
        index = (slice(start, min(start + step, first.shape[0])),)
        if _read(first, index).tobytes() != _read(second, index).tobytes():
            return False
    return True


def _read(stored: Stored, index: tuple[slice, ...]) -> np.ndarray:
    # Opened for one tensor only: pages of the mapped file count as memory until it is closed.
    with safe_open(stored.file, framework="np") as handle:
        return handle.get_slice(stored.name)[index]


def _reader(
    tensors: list[Stored], shape: Shape, stacked: bool, dtype: np.dtype
) -> Callable[[tuple[slice, ...]], np.ndarray]:
    """Reads any block of a leaf; devices that hold the same block share one reading."""
    cache: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def read(index: tuple[slice, ...]) -> np.ndarray:
        spans = tuple(part.indices(size)[:2] for part, size in zip(index, shape))
        if spans not in cache:
            block = np.empty([stop - start for start, stop in spans], dtype)
            inner = tuple(slice(*span) for span in (spans[1:] if stacked else spans))
            if stacked:
                for row, layer in enumerate(range(*spans[0])):
                    block[row] = _read(tensors[layer], inner)
            else:
                block[...] = _read(tensors[0], inner)
            cache[spans] = block
        return cache[spans]

    return read


def _plan(leaves: dict[names.Path, Any], limit: int, dtype: str | None) -> list[list[Planned]]:
    """Fills shards with tensors, leaf by leaf and layer by layer."""
    shards: list[list[Planned]] = []
    used = 0
    for path, leaf in leaves.items():
        kind = np.dtype(jnp.dtype(dtype)) if dtype else np.dtype(leaf.dtype)
        if kind.name not in _ON_DISK:
            raise UserError(
                f"dtype {kind.name} cannot be written; use one of {', '.join(_ON_DISK)}"
            )
        layered = names.stacked(path)
        shape = tuple(leaf.shape[1:] if layered else leaf.shape)
        size = int(np.prod(shape)) * kind.itemsize
        for number, name in enumerate(names.disk_names(path, tuple(leaf.shape))):
            if not shards or used + size > limit:
                shards.append([])
                used = 0
            layer = number if layered else None
            shards[-1].append(Planned(name, path, layer, shape, kind, size))
            used += size
    return shards


def _gather(leaf: Any, layer: int | None, dtype: np.dtype) -> np.ndarray:
    """One tensor on the host."""
    if isinstance(leaf, jax.Array):
        if layer is not None:
            leaf = jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False)
        if not leaf.is_fully_addressable:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
    elif layer is not None:
        leaf = leaf[layer]
    return np.ascontiguousarray(np.asarray(leaf).astype(dtype, copy=False))


def _write_shard(file: Path, shard: list[Planned], tensors: Iterator[np.ndarray]) -> None:
    """Streams one file: the length of the header, the header, the tensors' bytes one by one.

    The format is that of safetensors; the library itself would need the whole shard in memory.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in shard:
        span = [offset, offset + entry.size]
        kind = _ON_DISK[entry.dtype.name]
        header[entry.name] = {"dtype": kind, "shape": entry.shape, "data_offsets": span}
        offset += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # Aligned, as the format asks.
    partial = file.with_name(file.name + ".partial")
    with open(partial, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            # A view of bytes: bfloat16 has no buffer protocol.
            out.write(tensor.reshape(-1).view(np.uint8))
    os.replace(partial, file)
