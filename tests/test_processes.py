"""Two processes of two devices each train as one process does, on a tiny model that answers."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import answerer
import numpy as np
import processes
import pytest

from jaxevolve import load_policy
from jaxevolve.runtime import checkpoint, metrics

ROOT = Path(__file__).resolve().parents[1]
OF_THE_MACHINE = ("time/", "throughput/", "system/")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(answering, tmp_path_factory):
    """The command of a small run; programs are compiled once for all of them."""
    folder = tmp_path_factory.mktemp("shared")
    answerer.write_rows(folder / "train.jsonl", answerer.rows(11, varied=False))
    answerer.write_rows(folder / "test.jsonl", answerer.rows(3, seed=1, varied=False))
    settings = {
        "model.path": answering,
        "data.path": folder / "train.jsonl",
        "eval.path": folder / "test.jsonl",
        "steps": 3,
        "batch": 8,
        "rollout.n": 3,
        "rollout.max_tokens": 8,
        "rollout.chunk": 8,
        "retrace.m": 2,
        "grpo.minibatches": 2,
        "checkpoint.every": 0,
        "eval.questions": 0,
        "eval.n": 2,
        "eval.every": 0,
    }
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    start = [sys.executable, "-m", "jaxevolve.train", f"--config={ROOT}/configs/csrs.py:smoke"]

    def make(workdir, *more):
        return [*start, f"--workdir={workdir}", *flags, *more], cache

    return make


@pytest.fixture(scope="module")
def alone(command, tmp_path_factory):
    """The run of one process with one device."""
    workdir = tmp_path_factory.mktemp("alone")
    words, cache = command(workdir)
    done = subprocess.run(
        list(map(str, words)), cwd=ROOT, env=processes.environment(1, cache), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return workdir


@pytest.fixture(scope="module")
def shared(command, tmp_path_factory):
    """The run of two, of which one is asked to stop: folder, and what each sitting printed."""
    workdir = tmp_path_factory.mktemp("two")
    words, cache = command(workdir, "--config.mesh=-1,2,1")
    group = processes.start(words, 2, 2, **cache)
    while not metrics.read_jsonl(workdir / "metrics.jsonl"):
        assert all(process.poll() is None for process in group), processes.finish(group)
        time.sleep(0.01)
    group[1].send_signal(signal.SIGTERM)
    told = [processes.finish(group)]
    saved = checkpoint.latest(workdir)
    told.append(processes.finish(processes.start(words, 2, 2, **cache)))
    return workdir, told, saved


def test_both_stop_after_the_same_step_and_go_on(shared):
    _, (stopped, finished), saved = shared
    for code, printed in (*stopped, *finished):
        assert code == 0, printed
    assert saved in (1, 2)
    assert f"Stopped after step {saved} of 3; everything is saved." in stopped[0][1]
    assert f"resumed at step {saved} of 3" in finished[0][1]
    # Process 0 speaks for both.
    for _, printed in (stopped[1], finished[1]):
        assert "everything is saved" not in printed
        assert "held-out" not in printed


def test_metrics_and_evaluations_are_those_of_one_process(alone, shared):
    config = json.loads((shared[0] / "config.json").read_text())
    assert config["processes"] == 2
    assert config["devices"].startswith("4 x")
    for name in ("metrics.jsonl", "eval.jsonl"):
        one, two = (metrics.read_jsonl(folder / name) for folder in (alone, shared[0]))
        assert [line["step"] for line in one] == [line["step"] for line in two]
        for line, other in zip(map(metrics.flatten, one), map(metrics.flatten, two)):
            assert line.keys() == other.keys()
            for key, value in line.items():
                if value is None or isinstance(value, str):
                    assert other[key] == value
                elif not key.startswith(OF_THE_MACHINE):
                    assert other[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def test_a_prompt_has_the_same_responses_whoever_samples_it(alone, shared):
    for step in range(1, 4):
        one, two = (
            {p["id"]: [r["text"] for r in p["responses"]] for p in metrics.read_jsonl(file)}
            for file in (folder / f"samples/{step}.jsonl" for folder in (alone, shared[0]))
        )
        common = one.keys() & two.keys()
        assert common
        assert [one[name] for name in common] == [two[name] for name in common]


def test_checkpoint_and_export_are_whole(alone, shared):
    workdir = shared[0]
    exported, saved = (load_policy(f) for f in (workdir / "export", workdir))
    other = load_policy(alone / "export")
    flat = metrics.flatten
    for name, array in flat(exported.params).items():
        np.testing.assert_array_equal(array, flat(saved.params)[name], name)
        # Adam's first steps have the size of the learning rate, whatever the gradient's.
        assert np.abs(array - flat(other.params)[name]).mean() < 1e-5, name
