"""Where does an array live? A mesh of three axes and one table of parameter names."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxevolve.runtime.errors import UserError

AXES = ("data", "fsdp", "tensor")

# Where a parameter's path ends as the pattern says, its last dimensions are split as the axes say
# (weights are [out, in]; stacked layers come first and are never split). Projections into heads and
# feed-forward units are split by output, those back into the width by input, so that a layer needs
# one sum over `tensor` after each. Vision queries, keys and values are one fused matrix, which a
# split by output would tear apart: it is split over `fsdp` alone. Anything else is replicated:
# norms, scalars, biases of the width. Optimizer moments end in the same paths, so follow along.
SHARDING_TABLE: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(embed_tokens|lm_head)/weight", ("tensor", "fsdp")),
    (r"self_attn/[qkv]_proj/weight", ("tensor", "fsdp")),
    (r"self_attn/[qkv]_proj/bias", ("tensor",)),
    (r"self_attn/o_proj/weight", ("fsdp", "tensor")),
    (r"mlp/(gate|up)_proj/weight", ("tensor", "fsdp")),
    (r"mlp/(gate|up)_proj/bias", ("tensor",)),
    (r"mlp/down_proj/weight", ("fsdp", "tensor")),
    (r"attn/(qkv|proj)/weight", (None, "fsdp")),
    (r"merger/mlp/0/weight", ("tensor", "fsdp")),
    (r"merger/mlp/0/bias", ("tensor",)),
    (r"merger/mlp/2/weight", ("fsdp", "tensor")),
    (r"patch_embed/proj/weight", ("fsdp", None, None, None, None)),
)


def make_mesh(
    shape: Sequence[int] | None = None, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Builds the mesh ("data", "fsdp", "tensor").

    Args:
        shape: devices along each axis; -1 for one of them means the rest. None puts all on fsdp,
            and TPU slices, if there are several, on data.
        devices: what to use; all devices of all processes where None.

    Raises:
        UserError: the shape is not three numbers whose product is the number of devices, or puts
            several slices on an axis other than data.
    """
    devices = jax.devices() if devices is None else list(devices)
    # Hosts of GPUs are numbered alike, but theirs is a network that fsdp can live with.
    tpus = [device for device in devices if device.platform == "tpu"]
    slices = max(len({getattr(device, "slice_index", 0) for device in tpus}), 1)
    given = (slices, -1, 1) if shape is None else tuple(shape)
    told = f"mesh={','.join(map(str, given))}"
    whole = all(isinstance(size, int) and (size > 0 or size == -1) for size in given)
    if len(given) != 3 or not whole or given.count(-1) > 1:
        raise UserError(
            f"{told} is no mesh: give three whole numbers for data, fsdp and tensor, one of which "
            f"may be -1 for the rest, such as --config.mesh=1,{len(devices)},1"
        )
    known = math.prod(size for size in given if size != -1)
    sizes = tuple(len(devices) // known if size == -1 else size for size in given)
    if math.prod(sizes) != len(devices):
        product = "x".join(map(str, given)).replace("-1", "?")
        raise UserError(
            f"{told} does not fit {len(devices)} device{'s' * (len(devices) > 1)} ({product}); "
            f"use --config.mesh=1,{len(devices)},1 for instance"
        )
    if slices > 1:
        if sizes[0] % slices:
            raise UserError(
                f"{told} splits parameters over {slices} slices, whose network is too slow for "
                f"that; make data a multiple of {slices}, as with --config.mesh={slices},-1,1"
            )
        inside = (sizes[0] // slices, *sizes[1:])
        grid = mesh_utils.create_hybrid_device_mesh(inside, (slices, 1, 1), devices)
        return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def prompts_per_device(mesh: Mesh, batch: int, minibatches: int, micro_batch: int | None) -> int:
    """Checks that a batch can be cut for a mesh, and tells the prompts of one accumulation step.

    Args:
        mesh: of `make_mesh`; prompts are split over data and fsdp.
        batch: prompts a step.
        minibatches: updates a step.
        micro_batch: prompts a device in one accumulation step; None is its whole share.

    Returns:
        Prompts that each device works on at a time in an update.

    Raises:
        UserError: one of them does not divide the next, with the numbers.
    """
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    where = (
        f"the mesh's {shards} data shards (data {mesh.shape['data']} x fsdp {mesh.shape['fsdp']})"
    )
    if minibatches < 1 or batch % minibatches:
        raise UserError(
            f"batch={batch} prompts cannot be cut into grpo.minibatches={minibatches} equal parts; "
            f"use a batch that {minibatches} divides, or other minibatches"
        )
    minibatch = batch // minibatches
    if minibatch % shards:
        raise UserError(
            f"a minibatch of {minibatch} prompts (batch={batch} / grpo.minibatches={minibatches}) "
            f"cannot be split over {where}; use a batch that {minibatches * shards} divides, fewer "
            "minibatches, or a mesh with more devices on tensor"
        )
    share = minibatch // shards
    micro = share if micro_batch is None else micro_batch
    if micro < 1 or micro > share or share % micro:
        sign = "<" if micro > share else "is not a multiple of"
        raise UserError(
            f"grpo.micro_batch={micro} does not fit: a minibatch of {minibatch} prompts gives each "
            f"of {where} {minibatch} / {shards} = {share} prompts, and {share} {sign} {micro}; "
            f"use --config.grpo.micro_batch={share} or a divisor of it"
        )
    return micro


def check_processes(mesh: Mesh) -> None:
    """Checks that every process can hold a part of a batch that is its own.

    Raises:
        UserError: devices of several processes hold one part.
    """
    processes = jax.process_count()
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    owners: dict[int, set[int]] = {}
    for device, (part,) in batch_sharding(mesh).devices_indices_map((shards,)).items():
        owners.setdefault(part.indices(shards)[0], set()).add(device.process_index)
    if any(len(those) > 1 for those in owners.values()):
        raise UserError(
            f"mesh={','.join(map(str, mesh.shape.values()))} puts tensor on devices of several "
            f"of the {processes} processes; it has to lie within the {jax.local_device_count()} "
            "devices of one, as with --config.mesh=1,-1,1"
        )


def connect(mesh: Mesh) -> None:
    """Makes all groups of devices that exchange anything on a mesh meet once.

    The members of a group must first meet within half a minute or so (gloo on CPU), which they
    miss where one process compiles a large program and another has it already.
    """
    if not mesh.is_multi_process:
        return
    axes = [axis for axis in AXES if mesh.shape[axis] > 1]
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            size = math.prod(mesh.shape[axis] for axis in chosen)
            split = NamedSharding(mesh, PartitionSpec(chosen))
            piece = jax.make_array_from_callback((size,), split, lambda index: np.zeros(1))
            jax.block_until_ready(jax.jit(lambda x: x, out_shardings=replicated(mesh))(piece))


def sampling_mesh(mesh: Mesh, tensor: int) -> Mesh:
    """The same devices, but each process by itself: whole models on `tensor` devices of it each.

    Args:
        mesh: of `make_mesh`.
        tensor: devices that hold one copy of the parameters.

    Returns:
        A mesh ("data", "fsdp", "tensor") with one device on fsdp, of all devices; those of a
        process lie next to each other.

    Raises:
        UserError: `tensor` does not divide the devices of a process.
    """
    local = sum(d.process_index == jax.process_index() for d in mesh.devices.flat)
    if local % tensor:
        raise UserError(
            f"rollout.tensor={tensor} does not divide the {local} devices of a process; "
            "use a divisor of it"
        )
    return _data_by_tensor(sorted(mesh.devices.flat, key=lambda d: d.process_index), tensor)


def _data_by_tensor(devices: Sequence[jax.Device], tensor: int) -> Mesh:
    grid = np.array(devices).reshape(-1, 1, tensor)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def own_part(mesh: Mesh) -> Mesh:
    """This process's devices of a `sampling_mesh`."""
    mine = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    return _data_by_tensor(mine, mesh.shape["tensor"])


def spread(mesh: Mesh, params: Any) -> Any:
    """Brings parameters to where they are sampled from, on every process at once.

    Args:
        mesh: of `sampling_mesh`.
        params: a tree of arrays on a mesh of the same devices.

    Returns:
        The tree on a mesh of this process's devices alone, so that programs which use it concern
        no other process. Arrays that lie there already are not copied.
    """
    moved = jax.device_put(params, shardings(mesh, params))
    if not mesh.is_multi_process:
        return moved
    own = own_part(mesh)

    def here(array: jax.Array) -> jax.Array:
        # The data axis, which alone goes across processes, splits no parameter.
        parts = [shard.data for shard in array.addressable_shards]
        sharding = NamedSharding(own, array.sharding.spec)
        return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)

    return jax.tree.map(here, moved)


def param_sharding(mesh: Mesh, path: str, shape: Sequence[int]) -> NamedSharding:
    """Where one parameter lives, by the table.

    A dimension that its mesh axis does not divide stays whole, and so does everything that the
    table does not name.

    Args:
        mesh: of `make_mesh`.
        path: "model/layers/mlp/up_proj/weight", or a longer one that ends so.
        shape: of the array, layers stacked.
    """
    for pattern, axes in SHARDING_TABLE:
        if re.search(rf"(^|/){pattern}$", path) and len(shape) >= len(axes):
            whole = [None] * (len(shape) - len(axes))
            split = [
                axis if axis and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0 else None
                for size, axis in zip(shape[len(whole) :], axes)
            ]
            return NamedSharding(mesh, PartitionSpec(*whole, *split))
    return replicated(mesh)


def shardings(mesh: Mesh, tree: Any) -> Any:
    """Shardings of parameters, or of any tree that holds them: optimizer state, a train state.

    Args:
        mesh: of `make_mesh`.
        tree: arrays or `jax.ShapeDtypeStruct`.

    Returns:
        The same tree of NamedSharding.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: param_sharding(
            mesh, jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape
        ),
        tree,
    )


def batch_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """One axis (of prompts, or of rows) over data and fsdp, the rest whole."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, ("data", "fsdp")))


def placement(params: Any) -> tuple[int, Callable[..., Any]]:
    """How a batch lies beside parameters.

    Args:
        params: a tree of arrays.

    Returns:
        The parts that their mesh splits a batch into, 1 without a mesh; and (tree, axis=0) -> the
        tree on that mesh, that axis in so many parts. On a mesh of several processes each gives
        its own share of a batch, all of the same shape.
    """
    where = jax.tree.leaves(params)[0].sharding
    if not isinstance(where, NamedSharding):
        return 1, lambda tree, axis=0: jax.device_put(tree)

    def place(tree: Any, axis: int = 0) -> Any:
        sharding = batch_sharding(where.mesh, axis)
        if not where.mesh.is_multi_process:
            return jax.device_put(tree, sharding)
        return jax.tree.map(partial(jax.make_array_from_process_local_data, sharding), tree)

    return where.mesh.shape["data"] * where.mesh.shape["fsdp"], place


def own_rows(tree: Any) -> Any:
    """This process's share of arrays [P, ...] that a batch has become, in numpy."""

    def read(array: jax.Array) -> np.ndarray:
        if array.is_fully_addressable:
            return np.asarray(array)
        array = jax.device_put(array, batch_sharding(array.sharding.mesh))
        parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
        return np.concatenate([parts[start] for start in sorted(parts)])

    return jax.tree.map(read, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def in_host_memory(tree: Any) -> Any:
    """The same shardings with the arrays kept in the host's memory (an offloaded reference)."""
    return jax.tree.map(lambda sharding: sharding.with_memory_kind("pinned_host"), tree)
