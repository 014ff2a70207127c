"""Run by test_distributed.py as two processes of two simulated devices; prints "same"."""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags

from jaxevolve.runtime import distributed, mesh
from jaxevolve.runtime.errors import UserError


def values_travel():
    me = jax.process_index()
    assert distributed.gather({"me": me, "text": "x" * 100 * me}) == [
        {"me": 0, "text": ""},
        {"me": 1, "text": "x" * 100},
    ]
    assert distributed.from_first(me) == 0
    assert distributed.agree(True)
    assert not distributed.agree(me == 0)
    assert distributed.is_first() == (me == 0)


def an_error_of_one_is_an_error_of_all():
    with distributed.together():
        pass

    def one_fails():
        with distributed.together():
            if jax.process_index() == 1:
                raise UserError("no such file")

    told = "no such file" + " (on process 1 of 2)" * distributed.is_first()
    with pytest.raises(UserError, match=re.escape(told)):
        one_fails()


def a_folder_that_is_not_shared_is_refused(folder):
    shared = folder / "shared.json"
    if distributed.is_first():
        shared.write_text("{}")
    distributed.check_shared(shared)
    distributed.VISIBLE = 0.1
    own = folder / f"{jax.process_index()}" / "config.json"
    own.parent.mkdir()
    own.write_text(f"of process {jax.process_index()}")
    with pytest.raises(UserError, match="not the same folder on process 1 as on process 0"):
        distributed.check_shared(own)


def a_batch_goes_to_all_devices_and_comes_back(shape):
    devices = mesh.make_mesh(shape)
    mesh.check_processes(devices)
    mesh.connect(devices)
    params = {"w": jax.device_put(jnp.zeros(4), mesh.replicated(devices))}
    shards, place = mesh.placement(params)
    assert shards == shape[0] * shape[1]
    mine = {"a": np.arange(12.0).reshape(4, 3) + 100 * jax.process_index(), "none": None}
    placed = place(mine)
    assert placed["a"].shape == (8, 3)
    squares = jax.jit(lambda tree: jax.tree.map(jnp.square, tree))(placed)
    np.testing.assert_array_equal(mesh.own_rows(squares)["a"], mine["a"] ** 2)
    assert float(jax.jit(jnp.sum)(placed["a"])) == 2 * 66 + 1200


def parameters_come_whole_to_every_process(shape, tensor):
    devices = mesh.make_mesh(shape)
    own = mesh.sampling_mesh(devices, tensor)
    wanted = {
        "model": {
            "layers": {"mlp": {"up_proj": {"weight": np.arange(64.0).reshape(2, 8, 4)}}},
            "norm": {"weight": np.arange(8.0)},
        }
    }
    params = jax.tree.map(
        lambda leaf, where: jax.make_array_from_callback(leaf.shape, where, lambda i: leaf[i]),
        wanted,
        mesh.shardings(devices, wanted),
    )
    there = mesh.spread(own, params)
    jax.tree.map(lambda leaf, want: np.testing.assert_array_equal(np.asarray(leaf), want),
                 there, wanted)  # fmt: skip
    matrix = there["model"]["layers"]["mlp"]["up_proj"]["weight"]
    assert set(matrix.sharding.device_set) == set(jax.local_devices())
    assert matrix.addressable_shards[0].data.shape == (2, 8 // tensor, 4)
    # A computation of one process alone: nobody waits for another.
    if distributed.is_first():
        assert (
            float(jax.jit(jnp.sum)(matrix))
            == wanted["model"]["layers"]["mlp"]["up_proj"]["weight"].sum()
        )


def meshes_that_do_not_fit_the_processes_are_refused():
    with pytest.raises(UserError, match=r"mesh=1,1,4 .* within the 2 devices"):
        mesh.check_processes(mesh.make_mesh((1, 1, 4)))
    with pytest.raises(UserError, match=r"rollout\.tensor=3 does not divide the 2 devices"):
        mesh.sampling_mesh(mesh.make_mesh(None), 3)


def main():
    values = flags.FlagValues()
    distributed.define(values)
    flags.DEFINE_string("folder", None, "scratch", flag_values=values)
    values(sys.argv)
    distributed.start(values)
    assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)
    values_travel()
    an_error_of_one_is_an_error_of_all()
    a_folder_that_is_not_shared_is_refused(Path(values.folder))
    for shape in ((1, 4, 1), (2, 2, 1), (1, 2, 2), (4, 1, 1)):
        a_batch_goes_to_all_devices_and_comes_back(shape)
    for shape, tensor in (((1, 4, 1), 1), ((1, 4, 1), 2), ((2, 1, 2), 1), ((1, 2, 2), 2)):
        parameters_come_whole_to_every_process(shape, tensor)
    meshes_that_do_not_fit_the_processes_are_refused()
    print("same")


if __name__ == "__main__":
    main()
