"""Run by test_checkpoint.py in a process of 8 simulated devices; prints "same" when all is well."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jaxevolve.runtime import checkpoint
from jaxevolve.runtime.mesh import make_mesh


def sharding(mesh, leaf):
    spec = PartitionSpec("fsdp", "tensor") if leaf.ndim == 2 else PartitionSpec()
    return NamedSharding(mesh, spec)


def main(workdir: Path) -> None:
    params = {
        "w": jnp.arange(384.0).reshape(16, 24) / 8,
        "half": jax.random.normal(jax.random.key(1), (8, 4)).astype(jnp.bfloat16),
        "scale": jnp.float32(0.1),
    }
    state = {"params": params, "optimizer": optax.adamw(1e-3).init(params)}
    expected = jax.tree.map(np.asarray, state)

    def placed(mesh):
        return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding(mesh, leaf)), state)

    def abstract(mesh):
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding(mesh, leaf)
            ),
            state,
        )

    def check(wanted, step):
        found = checkpoint.restore(workdir, wanted)
        assert found.step == step
        assert found.meta == {"data": {"next_index": step}, "step": step}
        jax.tree.map(
            lambda leaf, want: np.testing.assert_array_equal(np.asarray(leaf), want),
            found.state,
            expected,
        )
        for leaf, want in zip(jax.tree.leaves(found.state), jax.tree.leaves(wanted)):
            assert leaf.sharding == want.sharding
            assert leaf.dtype == want.dtype

    mesh = make_mesh((1, 4, 2))
    checkpoint.save(workdir, 5, placed(mesh), {"data": {"next_index": 5}})
    meshes = [make_mesh((1, 2, 4)), make_mesh((2, 2, 2)), make_mesh((1, 1, 1), jax.devices()[:1])]
    for other in [*meshes, make_mesh((1, 1, 2), jax.devices()[:2])]:
        check(abstract(other), 5)
    with jax.set_mesh(mesh):
        checkpoint.save(workdir, 6, placed(mesh), {"data": {"next_index": 6}})
        check(abstract(meshes[0]), 6)
    check(abstract(meshes[1]), 6)
    print("same")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
