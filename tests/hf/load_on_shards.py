"""Run by test_weights.py with four devices: loads sharded, saves, and compares with unsharded."""

import sys
import tempfile

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxevolve.hf import weights
from jaxevolve.hf.config import read_config

folder = sys.argv[1]
config = read_config(folder)
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
placed = {}


def place(path, shape):
    """Shards every axis that two or four devices divide, and asks for the default for norms."""
    if "norm" in path:
        return None
    spec = [None] * len(shape)
    for axis, name in ((-1, "a"), (0, "b")):
        if shape[axis] % 2 == 0 and spec[axis] is None:
            spec[axis] = name
    placed[path] = NamedSharding(mesh, PartitionSpec(*spec))
    return placed[path]


largest, read = [0], weights._read


def watched(stored, index):
    block = read(stored, index)
    largest[0] = max(largest[0], block.nbytes)
    return block


weights._read = watched
sharded = weights.load_params(folder, config, "float32", place)
# The patch kernel, the largest leaf, lies on four devices: no read takes more than a quarter.
assert largest[0] == 32 * 3 * 2 * 14 * 14 * 4 // 4, largest
plain = weights.load_params(folder, config, "float32")
for (path, a), b in zip(jax.tree.leaves_with_path(sharded), jax.tree.leaves(plain)):
    name = "/".join(key.key for key in path)
    assert (np.asarray(a) == np.asarray(b)).all(), name
    assert name not in placed or a.sharding == placed[name], name
with tempfile.TemporaryDirectory() as out:
    weights.save_params(sharded, config, out + "/saved")
    again = weights.load_params(out + "/saved", config, "float32")
jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), again, plain)
print("equal on", len(jax.devices()), "devices")
