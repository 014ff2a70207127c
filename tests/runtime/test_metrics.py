import json
import math
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from jaxevolve.runtime import metrics


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_object_a_step_readable_at_once(tmp_path):
    writer = metrics.MetricsWriter(tmp_path)
    writer.write(1, {"reward/mean": np.float32(0.5), "system/compiles": 7})
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "reward/mean": 0.5, "system/compiles": 7}
    ]
    writer.write(2, {"policy/loss": jnp.nan, "policy/kl": math.inf})
    assert lines(tmp_path / "metrics.jsonl")[1] == {
        "step": 2,
        "policy/loss": None,
        "policy/kl": None,
    }
    writer.close()


def test_a_resumed_run_drops_what_it_will_write_again(tmp_path):
    first = metrics.MetricsWriter(tmp_path)
    for step in range(1, 8):
        first.write(step, {"loss": step / 10})
    for step in (0, 5, 7):
        metrics.append_evaluation(tmp_path, {"step": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')  # the kill
    second = metrics.MetricsWriter(tmp_path, resumed_step=5)
    second.write(6, {"loss": 0.6})
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines(tmp_path / "eval.jsonl")] == [0, 5]
    assert not list(tmp_path.glob("*.rewritten"))
    first.close()
    second.close()


def test_events_are_written(tmp_path):
    writer = metrics.MetricsWriter(tmp_path)
    writer.write(1, {"reward/mean": 0.25})
    writer.close()
    (events,) = (tmp_path / "events").iterdir()
    assert b"reward/mean" in events.read_bytes()


def test_samples_are_one_object_a_prompt(tmp_path):
    samples = [{"question": "Find x.", "responses": ["41°"]}, {"question": "?", "responses": []}]
    metrics.write_samples(tmp_path, 20, samples)
    assert lines(tmp_path / "samples" / "20.jsonl") == samples


def test_lines_end_where_json_ends_them_and_not_within_a_text(tmp_path):
    told = [{"text": "one\u2028two\x85three"}, {"text": "four"}]
    with (tmp_path / "a.jsonl").open("w", encoding="utf-8") as file:
        for value in told:
            metrics.append_jsonl(file, value)
    assert metrics.read_jsonl(tmp_path / "a.jsonl") == told


def test_config_json_tells_config_versions_seed_and_commit(tmp_path):
    config = ConfigDict({"seed": 3, "mesh": (1, 2, 1), "optimizer": {"lr": 0.1}})
    assert metrics.write_config(tmp_path, config) == {}
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["config"] == {"seed": 3, "mesh": [1, 2, 1], "optimizer": {"lr": 0.1}}
    assert record["seed"] == 3
    assert {"jax", "flax", "transformers", "python"} <= record["versions"].keys()
    here = Path(__file__).parent
    git = ["git", "-C", str(here), "ls-files", "--error-unmatch", metrics.__file__]
    if subprocess.run(git, capture_output=True).returncode == 0:
        assert len(record["git_commit"].removesuffix("-dirty")) == 40
    else:
        assert record["git_commit"] is None


def test_a_changed_config_is_told(tmp_path):
    config = ConfigDict({"seed": 0, "mesh": (1, 1, 1), "optimizer": {"lr": 0.1, "warmup": 0}})
    metrics.write_config(tmp_path, config)
    assert metrics.write_config(tmp_path, config) == {}
    config.optimizer.lr = 0.2
    assert metrics.write_config(tmp_path, config) == {"optimizer.lr": (0.1, 0.2)}


def test_compiles_are_counted():
    counter = metrics.CompileCounter()
    function = jax.jit(lambda x: x * 3 + 1)
    three, four = jnp.ones(3), jnp.ones(4)
    before = counter.count
    function(three)
    function(three)
    assert counter.count == before + 1
    function(four)
    assert counter.count == before + 2


def test_phases_add_up_and_start_anew():
    timer = metrics.PhaseTimer()
    for _ in range(2):
        with timer("rollout"):
            time.sleep(0.01)
    with pytest.raises(ValueError, match="inside"), timer("update"):
        raise ValueError("inside")
    taken = timer.take()
    assert taken.keys() == {"time/rollout", "time/update"}
    assert taken["time/rollout"] >= 0.02
    assert timer.take() == {}


def test_progress_goes_on_where_the_run_does():
    with metrics.progress_line(220, resumed_step=200) as bar:
        bar.update(1)
        assert (bar.n, bar.total) == (201, 220)


def test_memory_is_that_of_this_process():
    assert 10 < metrics.host_rss_mb() < 100_000
