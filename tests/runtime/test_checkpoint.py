import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxevolve.runtime import checkpoint
from jaxevolve.runtime.errors import UserError

HERE = Path(__file__).parent


@struct.dataclass
class State:
    params: Any
    opt_state: Any
    updates: jax.Array


def make_state(seed=0):
    params = {"a": {"w": jax.random.normal(jax.random.key(seed), (300, 7))}, "b": jnp.ones(3)}
    return State(params, optax.adam(1e-3).init(params), jnp.int32(seed))


ABSTRACT = jax.eval_shape(make_state)


def save(workdir, step, **options):
    return checkpoint.save(workdir, step, make_state(step), {"seed": 1}, **options)


def assert_is_step(restored, step):
    assert restored.step == step
    jax.tree.map(
        lambda found, saved: np.testing.assert_array_equal(np.asarray(found), np.asarray(saved)),
        restored.state,
        make_state(step),
    )


def folders(workdir):
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


def damage(workdir, step):
    """Flips one bit in the largest file, which the array store does not notice."""
    files = (workdir / "checkpoints" / str(step) / "state").rglob("*")
    largest = max((file for file in files if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_what_was_saved_comes_back_bit_for_bit(tmp_path):
    meta = {"data": {"next_index": 7}, "score": 0.5}
    checkpoint.save(tmp_path, 3, make_state(3), meta)
    restored = checkpoint.restore(tmp_path, ABSTRACT)
    assert_is_step(restored, 3)
    assert isinstance(restored.state, State)
    assert restored.meta == {**meta, "step": 3}
    assert checkpoint.latest(tmp_path) == 3


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert checkpoint.restore(tmp_path, ABSTRACT) is None
    assert checkpoint.latest(tmp_path) is None


def test_parameters_alone_can_be_read(tmp_path):
    folder = save(tmp_path, 5)
    found, meta = checkpoint.load(folder, {"params": ABSTRACT.params})
    np.testing.assert_array_equal(found["params"]["a"]["w"], make_state(5).params["a"]["w"])
    assert meta["seed"] == 1


def test_files_are_put_beside(tmp_path):
    folder = save(tmp_path, 1, write_files=lambda into: (into / "config.json").write_text("{}"))
    assert (folder / "config.json").read_text() == "{}"


def test_the_newest_and_the_best_stay(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=2, stay=(10, None))
    assert folders(tmp_path) == ["10", "30", "40"]
    save(tmp_path, 50, keep=1, stay=(30,))
    assert folders(tmp_path) == ["30", "50"]


def test_an_older_one_goes_only_after_the_newer_is_complete(tmp_path):
    save(tmp_path, 1, keep=1)

    def look(partial):
        assert folders(tmp_path) == ["1", partial.name]

    save(tmp_path, 2, keep=1, write_files=look)
    assert folders(tmp_path) == ["2"]


def test_a_step_can_be_saved_again(tmp_path):
    save(tmp_path, 1)
    checkpoint.save(tmp_path, 1, make_state(1), {"seed": 2})
    assert checkpoint.restore(tmp_path, ABSTRACT).meta["seed"] == 2
    assert folders(tmp_path) == ["1"]


def test_a_kill_while_saving_leaves_the_step_before(tmp_path, caplog):
    save(tmp_path, 10)
    script = (
        "import os, signal, sys, jax.numpy as jnp\n"
        "from jaxevolve.runtime import checkpoint\n"
        "die = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save(sys.argv[1], 20, {'w': jnp.ones(9)}, {}, write_files=die)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert folders(tmp_path) == ["10", "20.partial"]
    assert_is_step(checkpoint.restore(tmp_path, ABSTRACT), 10)
    assert "20.partial was never finished" in caplog.text
    save(tmp_path, 15)
    save(tmp_path, 20)
    assert folders(tmp_path) == ["15", "20"]
    assert_is_step(checkpoint.restore(tmp_path, ABSTRACT), 20)


@pytest.mark.parametrize("kind", ["bit", "cut", "gone", "meta"])
def test_a_damaged_newest_one_is_reported_and_the_one_before_is_used(tmp_path, caplog, kind):
    for step in (10, 20):
        save(tmp_path, step)
    newest = tmp_path / "checkpoints" / "20"
    if kind == "bit":
        damage(tmp_path, 20)
    elif kind == "cut":
        os.truncate(newest / "state" / "_METADATA", 100)
    elif kind == "gone":
        shutil.rmtree(newest / "state" / "d")
    else:
        (newest / "meta.json").write_text('{"step": 20, ')
    with caplog.at_level(logging.WARNING):
        assert_is_step(checkpoint.restore(tmp_path, ABSTRACT), 10)
    assert f"{newest} is damaged" in caplog.text
    assert "step 10 is used" in caplog.text
    assert folders(tmp_path) == ["10", "20.corrupt"]
    # A later save is neither suppressed by it nor pruned in its favor.
    save(tmp_path, 15, keep=1)
    assert folders(tmp_path) == ["15", "20.corrupt"]


def test_all_damaged_is_an_error_and_never_a_silent_new_start(tmp_path):
    save(tmp_path, 10)
    damage(tmp_path, 10)
    with pytest.raises(UserError, match="no other checkpoint"):
        checkpoint.restore(tmp_path, ABSTRACT)
    assert folders(tmp_path) == ["10"]


def test_another_model_is_refused_by_name(tmp_path):
    save(tmp_path, 10)
    other = jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16) if leaf.shape == (300, 7) else leaf
        ),
        ABSTRACT,
    )
    with pytest.raises(UserError, match=r"params/a/w is float32\[300,7\] and bfloat16\[300,7\]"):
        checkpoint.restore(tmp_path, other)
    more = ABSTRACT.replace(params={**ABSTRACT.params, "c": ABSTRACT.params["b"]})
    with pytest.raises(UserError, match="params/c is missing"):
        checkpoint.restore(tmp_path, more)


def test_a_full_disk_is_told_and_the_older_stay(tmp_path, monkeypatch):
    save(tmp_path, 10, keep=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(checkpoint.NotSaved, match=r"checkpoint 20 was not saved.*0 MB free"):
        save(tmp_path, 20, keep=1)
    monkeypatch.undo()

    def fill_disk(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(checkpoint.NotSaved, match="no space left"):
        save(tmp_path, 20, keep=1, write_files=fill_disk)
    assert folders(tmp_path) == ["10"]
    assert_is_step(checkpoint.restore(tmp_path, ABSTRACT), 10)
    save(tmp_path, 20, keep=1)
    assert folders(tmp_path) == ["20"]


def test_a_mistake_of_the_caller_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(ZeroDivisionError):
        save(tmp_path, 1, write_files=lambda folder: 1 / 0)
    assert folders(tmp_path) == []


def test_a_person_may_name_the_run_its_checkpoints_or_a_step(tmp_path):
    for step in (9, 10):
        save(tmp_path, step)
    root = tmp_path / "checkpoints"
    assert checkpoint.find(tmp_path) == checkpoint.find(root) == root / "10"
    assert checkpoint.find(root / "9") == root / "9"
    assert all(checkpoint.is_run(path) for path in (tmp_path, root, root / "9"))
    assert not checkpoint.is_run(root / "9" / "state")
    with pytest.raises(UserError, match="is no checkpoint"):
        checkpoint.find(tmp_path / "elsewhere")


def test_a_checkpoint_moves_between_meshes_inside_and_outside_of_them(tmp_path):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    environment["JAX_PLATFORMS"] = "cpu"
    script = HERE / "save_and_restore_on_meshes.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "same\n", done.stderr
    # And in this process, on however many devices it has, without any mesh.
    arrays = json.loads((tmp_path / "checkpoints" / "6" / "meta.json").read_text())["arrays"]
    assert arrays["params/half"] == "bfloat16[8,4]"
    wanted = {"params": {"w": jax.ShapeDtypeStruct((16, 24), jnp.float32)}}
    found, _ = checkpoint.load(tmp_path / "checkpoints" / "6", wanted)
    np.testing.assert_array_equal(found["params"]["w"], np.arange(384.0).reshape(16, 24) / 8)
