"""The training command, from flags to the folders that it leaves, on a tiny model that answers."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import answerer
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from jaxevolve import train, training
from jaxevolve.benchmarks import accuracy
from jaxevolve.hf.config import read_config
from jaxevolve.learner import Experience
from jaxevolve.models.qwen2_5_vl import init_params
from jaxevolve.recipes import csrs
from jaxevolve.runtime import checkpoint, cli, metrics
from jaxevolve.runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
STEPS = 30
# What design.md promises in every line of metrics.jsonl.
KEYS = {
    "step",
    *("reward/mean", "reward/std", "reward/excluded", "advantage/zero_groups"),
    *("policy/loss", "policy/kl", "policy/entropy", "policy/clip_fraction", "policy/grad_norm"),
    *("policy/lr", "policy/skipped_updates"),
    *("rollout/length", "rollout/truncated", "rollout/no_answer", "rollout/unanimous"),
    *("rollout/distinct_answers", "rollout/logprob_gap", "rollout/tokens"),
    *("retrace/agreement", "retrace/tokens"),
    *("label/accuracy", "label/vote_accuracy", "label/pass_at_n"),
    *("time/rollout", "time/retrace", "time/answers", "time/score", "time/update", "time/step"),
    *("throughput/tokens_per_second", "throughput/sampled_tokens_per_second"),
    *("throughput/forced_tokens_per_second", "throughput/slot_utilization"),
    *("rollout/confident", "rollout/looping", "collapse/alarm"),
    *("system/compiles", "system/host_rss_mb"),
}
OF_THE_MACHINE = ("time/", "throughput/", "system/")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Eleven questions of one size: an epoch has two batches of four and leaves three rows."""
    folder = tmp_path_factory.mktemp("data")
    answerer.write_rows(folder / "train.jsonl", answerer.rows(11, varied=False))
    answerer.write_rows(folder / "test.jsonl", answerer.rows(3, seed=1, varied=False))
    unlabeled = answerer.rows(4, seed=2, varied=False)
    answerer.write_rows(folder / "unlabeled.jsonl", unlabeled, labels=False)
    return folder


@pytest.fixture(scope="module")
def flags(answering, data):
    """Flags of a small run; later ones win."""

    def make(workdir, *more):
        settings = {
            "model.path": answering,
            "data.path": data / "train.jsonl",
            "eval.path": data / "test.jsonl",
            "steps": STEPS,
            "batch": 4,
            "rollout.n": 3,
            "rollout.max_tokens": 8,
            "rollout.chunk": 8,
            "retrace.m": 2,
            "optimizer.warmup": 20,
            "checkpoint.every": 5,
            "eval.questions": 0,
            "eval.n": 2,
            "eval.every": 10,
        }
        given = [f"--config.{key}={value}" for key, value in settings.items()]
        return [f"--config={ROOT}/configs/csrs.py:smoke", f"--workdir={workdir}", *given, *more]

    return make


@pytest.fixture(scope="module")
def start(flags, tmp_path_factory):
    """Starts the command in a process of its own; programs are compiled once for all of them."""
    cache = tmp_path_factory.mktemp("programs")
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def go(workdir, *more, **variables):
        return subprocess.Popen(
            [sys.executable, "-m", "jaxevolve.train", *flags(workdir, *more)],
            cwd=ROOT,
            env=os.environ | environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return go


def finish(process):
    """What a process printed, after it has ended well."""
    printed = process.communicate(timeout=600)[0]
    assert process.returncode == 0, printed
    return printed


def interrupt(process, workdir, step, number):
    """Sends a signal as soon as a step is in metrics.jsonl; returns what was printed."""
    while not any(line["step"] >= step for line in metrics.read_jsonl(workdir / "metrics.jsonl")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(number)
    return process.communicate(timeout=600)[0]


@pytest.fixture(scope="module")
def straight(start, tmp_path_factory):
    """A run without interruption: its folder and what it printed."""
    workdir = tmp_path_factory.mktemp("straight")
    return workdir, finish(start(workdir))


@pytest.fixture(scope="module")
def sittings(straight, start, tmp_path_factory):
    """The same run killed, stopped twice and finished: its folder, and what each sitting left."""
    workdir = tmp_path_factory.mktemp("sittings")
    told = []
    for step, number in ((7, signal.SIGKILL), (12, signal.SIGTERM), (18, signal.SIGINT)):
        process = start(workdir)
        printed = interrupt(process, workdir, step, number)
        told.append((process.returncode, printed, checkpoint.latest(workdir)))
    printed = finish(start(workdir))
    return workdir, [*told, (0, printed, checkpoint.latest(workdir))]


def of_the_run(line):
    """A line of metrics.jsonl without what depends on the machine."""
    return {key: value for key, value in line.items() if not key.startswith(OF_THE_MACHINE)}


def arrays(workdir, step):
    """{path: array} of everything in a checkpoint, and what is written beside it."""
    config = ConfigDict(json.loads((workdir / "config.json").read_text())["config"])
    model = read_config(config.model.path)
    optimizer, _ = training.make_optimizer(config.optimizer)

    def fresh():
        params = init_params(model, jax.random.key(0))
        return {
            "params": params,
            "opt_state": optimizer.init(params),
            "updates": jnp.zeros((), jnp.int32),
        }

    state, meta = checkpoint.load(workdir / "checkpoints" / str(step), jax.eval_shape(fresh))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}, meta


def assert_same_run(workdir, other, step):
    """Bit by bit: parameters, optimizer, place in the data, metrics, samples, evaluations."""
    (mine, meta), (theirs, of_theirs) = arrays(workdir, step), arrays(other, step)
    assert meta == of_theirs
    assert mine.keys() == theirs.keys()
    assert any("opt_state" in name for name in mine)
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], name)
    lines, others = (metrics.read_jsonl(w / "metrics.jsonl") for w in (workdir, other))
    assert [of_the_run(line) for line in lines] == [of_the_run(line) for line in others]
    assert metrics.read_jsonl(workdir / "eval.jsonl") == metrics.read_jsonl(other / "eval.jsonl")
    for number in range(1, step + 1):
        name = f"samples/{number}.jsonl"
        assert (workdir / name).read_bytes() == (other / name).read_bytes()


def test_a_run_leaves_what_the_design_promises(straight):
    workdir, printed = straight
    lines = metrics.read_jsonl(workdir / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line.keys() >= KEYS for line in lines)
    assert all(np.isfinite([line[key] for key in KEYS]).all() for line in lines)
    assert max(line["rollout/logprob_gap"] for line in lines) < 1e-4
    assert any(line["policy/grad_norm"] > 0 for line in lines)
    evaluations = metrics.read_jsonl(workdir / "eval.jsonl")
    assert [e["step"] for e in evaluations] == [0, 10, 20, 30]
    assert all(e["questions"] == 3 for e in evaluations)
    assert {"greedy", "average@2", "majority@2", "pass@2", "family"} <= evaluations[0].keys()
    settings = json.loads((workdir / "config.json").read_text())
    assert settings["config"]["rollout"]["n"] == 3
    assert settings["versions"]["jax"] == jax.__version__
    assert (workdir / "report.html").stat().st_size > 1000
    assert str(workdir / "export") in printed
    assert "average@2" in printed


def test_learning_rate_warms_up_by_update(straight):
    lines = metrics.read_jsonl(straight[0] / "metrics.jsonl")
    rates = [line["policy/lr"] for line in lines]
    np.testing.assert_allclose(rates[:20], 1e-4 * np.arange(20) / 20, rtol=1e-5)
    assert rates[-1] == pytest.approx(1e-4)


def test_the_newest_checkpoints_and_the_best_stay(straight):
    workdir, _ = straight
    kept = {int(folder.name) for folder in (workdir / "checkpoints").iterdir()}
    evaluations = [e for e in metrics.read_jsonl(workdir / "eval.jsonl") if e["step"]]
    best = max(evaluations, key=lambda e: e["average@2"])["step"]
    assert kept == {25, 30, best}


def test_the_exported_folder_is_the_model_of_the_last_checkpoint(straight, policy):
    from jaxevolve import load_policy

    workdir, _ = straight
    exported, saved = load_policy(workdir / "export"), load_policy(workdir)
    jax.tree.map(np.testing.assert_array_equal, exported.params, saved.params)
    assert exported.processor.stop_ids == policy.processor.stop_ids
    before, after = (jax.tree.leaves(p.params) for p in (policy, exported))
    assert all((np.asarray(a) != np.asarray(b)).any() for a, b in zip(before, after))


def test_a_run_in_four_sittings_is_the_run_in_one(straight, sittings):
    assert_same_run(sittings[0], straight[0], STEPS)
    mine, theirs = (w / "export" for w in (sittings[0], straight[0]))
    for file in theirs.iterdir():
        assert (mine / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_kill_costs_the_steps_since_the_last_checkpoint(sittings):
    (code, _, saved), (_, printed, _), *_ = sittings[1]
    assert code == -signal.SIGKILL
    assert saved % 5 == 0
    assert f"resumed at step {saved} of {STEPS}" in printed


@pytest.mark.parametrize("sitting", [1, 2], ids=["SIGTERM", "Ctrl-C"])
def test_a_stopped_run_saves_at_the_steps_end_and_says_how_to_go_on(sittings, sitting):
    workdir, told = sittings
    code, printed, saved = told[sitting]
    assert code == 0
    assert saved >= (12, 18)[sitting - 1]
    assert f"Stopped after step {saved} of {STEPS}; everything is saved." in printed
    assert f"--workdir={workdir}" in printed
    assert f"resumed at step {saved} of {STEPS}" in told[sitting + 1][1]
    assert "Traceback" not in printed


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(
    straight, start, tmp_path
):
    workdir = shutil.copytree(straight[0], tmp_path / "run")
    largest = max(
        (workdir / "checkpoints" / "30" / "state").rglob("*"), key=lambda f: f.stat().st_size
    )
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(damaged)
    printed = finish(start(workdir))
    assert "checkpoints/30 is damaged" in printed
    assert f"resumed at step 25 of {STEPS}" in printed
    assert_same_run(workdir, straight[0], STEPS)


def test_eight_devices_make_the_same_steps_as_one(start, tmp_path):
    one, eight = tmp_path / "one", tmp_path / "eight"
    finish(start(one, "--config.steps=2"))
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    printed = finish(
        start(
            eight, "--config.steps=2", "--config.mesh=2,2,2", XLA_FLAGS=flags, JAX_LOG_COMPILES="1"
        )
    )
    # An update leaves every array where it was: nothing is compiled for a second sharding.
    for program in ("gradients", "apply", "score"):
        assert printed.count(f"Finished XLA compilation of jit({program})") == 1
    assert json.loads((eight / "config.json").read_text())["devices"].startswith("8 x")
    lines, others = (metrics.read_jsonl(w / "metrics.jsonl") for w in (eight, one))
    for line, other in zip(lines, others, strict=True):
        for key, value in of_the_run(other).items():
            wanted = value if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)
            assert line[key] == wanted, key
    for number in (1, 2):
        mine, theirs = (
            [response["text"] for p in metrics.read_jsonl(w / f"samples/{number}.jsonl")
             for response in p["responses"]]
            for w in (eight, one)
        )  # fmt: skip
        assert mine == theirs
    mine, theirs = arrays(eight, 2)[0], arrays(one, 2)[0]
    for name, array in mine.items():
        # Adam's first steps have the size of the learning rate, whatever the gradient's: where that
        # is nothing but rounding, so is the step's sign.
        assert np.abs(array - theirs[name]).max() < 3e-5, name
        assert np.abs(array - theirs[name]).mean() < 1e-6, name


def refusal(monkeypatch, capsys, arguments):
    """What is printed when bad input ends a run: one sentence, before anything is compiled."""
    monkeypatch.setattr(sys, "argv", ["jaxevolve.train", *arguments])
    compiles = metrics.CompileCounter()
    with pytest.raises(SystemExit) as ended:
        cli.run(train.main, train.define, train.__doc__, config=True)
    assert ended.value.code == 2
    assert compiles.count == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("model.path=nowhere/model", ["nowhere/model"]),
        ("data.path=nowhere/rows.parquet", ["nowhere/rows.parquet", "does not exist"]),
        ("eval.path=nowhere.jsonl", ["nowhere.jsonl", "does not exist"]),
        ("lerning_rate=1", ["lerning_rate", "optimizer.lr"]),
        ("rollout.n=1", ["rollout.n=1", "at least 2"]),
        ("mesh=2,2,2", ["mesh=2,2,2", "1 device"]),
        ("grpo.minibatches=3", ["batch=4", "minibatches=3"]),
        ("batch=12", ["batch=12", "11 usable rows"]),
        ("data.max_prompt_tokens=10", ["no row", "overlong"]),
        ("data.problem_key=quest", ["quest", "problem"]),
        ("reward.kind=majorty", ["reward.kind=majorty", "majority", "FILE.py:FUNCTION"]),
        ("reward.kind=nowhere/mine.py:reward", ["nowhere/mine.py", "does not exist"]),
    ],
)
def test_bad_settings_end_with_one_sentence(flags, monkeypatch, capsys, tmp_path, flag, words):
    told = refusal(monkeypatch, capsys, flags(tmp_path / "run", f"--config.{flag}"))
    assert all(word in told for word in words), told


@pytest.mark.parametrize("place", ["data", "eval"])
def test_rows_without_labels_cannot_be_scored_by_label(
    flags, data, monkeypatch, capsys, tmp_path, place
):
    path = f"--config.{place}.path={data}/unlabeled.jsonl"
    told = refusal(monkeypatch, capsys, flags(tmp_path, path, "--config.reward.kind=label"))
    assert "unlabeled.jsonl" in told
    assert "label" in told


def test_a_model_that_lacks_a_tensor_is_refused_with_its_name(
    answering, flags, monkeypatch, capsys, tmp_path
):
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(answering, tmp_path / "model")
    (shard,) = folder.glob("*.safetensors")
    tensors = load_file(shard)
    name = next(name for name in tensors if "layers.1.mlp.up_proj" in name)
    del tensors[name]
    save_file(tensors, shard)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"][name]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    arguments = flags(tmp_path / "run", f"--config.model.path={folder}")
    assert name in refusal(monkeypatch, capsys, arguments)


@pytest.mark.parametrize("what", ["a file", "a model", "below a file"])
def test_a_work_directory_that_cannot_be_one_is_refused(
    answering, flags, monkeypatch, capsys, tmp_path, what
):
    file = tmp_path / "file"
    file.write_text("")
    model = shutil.copytree(answering, tmp_path / "model")
    before = (model / "config.json").read_bytes()
    workdir = {"a file": file, "a model": model, "below a file": file / "run"}[what]
    assert str(workdir) in refusal(monkeypatch, capsys, flags(workdir))
    assert (model / "config.json").read_bytes() == before


@pytest.fixture
def made_up(answering, tmp_path, monkeypatch):
    """Trains on made-up responses to questions of text; their advantages are the test's."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    rows = answerer.rows(8, varied=False)
    texts = [{**row, "question": "find x", "images": []} for row in rows]
    path = answerer.write_rows(tmp_path / "rows.jsonl", texts)
    config = cli.load_config(f"{ROOT}/configs/csrs.py:smoke")
    settings = {"steps": 6, "batch": 4, "rollout.n": 3, "rollout.max_tokens": 8, "eval.every": 0}
    folders = {"model.path": str(answering), "data.path": str(path), "eval.path": str(path)}
    config.update_from_flattened_dict(
        settings | folders | {"grpo.kl": 0.0, "grpo.minibatches": 2, "checkpoint.every": 0}
    )
    seen = []  # the parameters that each step begins with

    def collect(policy, params, reference, rows, prompts, key, **_):
        assert reference is None
        seen.append(jax.tree.map(np.array, policy.params))
        rng = np.random.default_rng(len(seen))
        tokens = rng.integers(0, 300, (4, 3, 8)).astype(np.int32)
        experience = Experience(
            prompts=prompts,
            tokens=tokens,
            lengths=np.full((4, 3), 8, np.int32),
            advantages=collect.advantages(len(seen)).astype(np.float32),
            old_logprobs=np.full((4, 3, 8), -6, np.float32),
            ref_logprobs=None,
        )
        told = dict.fromkeys(("reward/mean", "policy/entropy", "rollout/tokens"), 1.0)
        told["rollout/looping"] = collect.looping(len(seen))
        return csrs.Collected(experience, {**told, "retrace/tokens": 0.0}, [], [["1"] * 3] * 4)

    def evaluate(policy, rows, **_):
        return None, []

    monkeypatch.setattr(csrs, "collect", collect)
    monkeypatch.setattr(accuracy, "evaluate", evaluate)
    monkeypatch.setattr(accuracy, "summary", lambda *_: {"questions": 8, "average@8": 0.5})

    def run(advantages, looping=lambda step: 0.0, **changes):
        config.update_from_flattened_dict(changes)
        collect.advantages, collect.looping = advantages, looping
        train.train(config, tmp_path / "run")
        return metrics.read_jsonl(tmp_path / "run" / "metrics.jsonl"), seen

    return run


def broken_at(*steps):
    """Advantages of which one, of the batch's last prompt, is no number at some steps."""

    def advantages(step):
        made = np.tile([1.0, -1.0, 0.0], (4, 1))
        made[3, 1] = np.nan if step in steps else -1.0
        return made

    return advantages


def test_updates_that_are_not_finite_are_skipped_counted_and_told(made_up, caplog):
    lines, params = made_up(broken_at(3))
    assert [line["policy/skipped_updates"] for line in lines] == [0, 0, 1, 0, 0, 0]
    assert lines[2]["policy/loss"] is None
    assert np.isfinite([line["policy/loss"] for line in lines[:2] + lines[3:]]).all()
    # The other minibatch of that step was sound.
    moved = [
        any((a != b).any() for a, b in zip(*map(jax.tree.leaves, pair)))
        for pair in itertools.pairwise(params)
    ]
    assert moved == [True] * 5
    (warning,) = [r.message for r in caplog.records if "not finite" in r.message]
    assert "step 3: 1 of 2 updates" in warning
    assert warning.count("r0-") == 4  # the batch's rows


def test_a_step_without_a_finite_update_leaves_the_parameters_as_they_were(made_up):
    lines, params = made_up(broken_at(3), **{"grpo.minibatches": 1})
    assert lines[2]["policy/skipped_updates"] == 1
    jax.tree.map(np.testing.assert_array_equal, params[2], params[3])


def test_a_run_ends_after_too_many_updates_in_a_row_that_were_not_finite(made_up, tmp_path):
    with pytest.raises(UserError) as caught:
        made_up(broken_at(2, 4, 5, 6), **{"grpo.minibatches": 1, "optimizer.max_skipped": 2})
    assert "2 updates in a row" in str(caught.value)
    assert "step 5" in str(caught.value)
    assert "optimizer.lr" in str(caught.value)
    assert len(metrics.read_jsonl(tmp_path / "run" / "metrics.jsonl")) == 5


COLLAPSE = {"collapse.patience": 2, "checkpoint.every": 1, "checkpoint.keep": 1}


def loops_from(first):
    """The share of looping responses of a run that turns to gibberish at a step."""
    return lambda step: 0.9 * (step >= first)


def test_a_warning_of_collapse_lets_the_run_go_on(made_up, caplog):
    lines, _ = made_up(broken_at(), loops_from(4), **COLLAPSE)
    assert [line["collapse/alarm"] for line in lines] == [0, 0, 0, 0, 1, 1]
    (warning,) = [r.message for r in caplog.records if "collapsed" in r.message]
    assert warning.startswith("step 5: the run has collapsed: 90% of the responses end in a loop")


def test_a_collapsed_run_goes_back_to_the_checkpoint_from_before(made_up, tmp_path, capsys):
    from jaxevolve import load_policy

    action = {"collapse.action": "rollback"}
    lines, params = made_up(broken_at(), loops_from(4), **COLLAPSE, **action)
    assert [line["collapse/alarm"] for line in lines] == [0, 0, 0, 0, 1]
    run = tmp_path / "run"
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"3", "4.collapsed"}
    # What step 4 began with is exported.
    exported = load_policy(run / "export").params
    jax.tree.map(np.testing.assert_array_equal, exported, params[3])
    printed = capsys.readouterr().out
    assert "Collapsed, and back at step 3: 90% of the responses end in a loop" in printed
    assert "Collapse alarm at step 5" in (run / "report.html").read_text()
    # The same command goes on from there.
    lines, params = made_up(broken_at())
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert not any(line["collapse/alarm"] for line in lines)
    jax.tree.map(np.testing.assert_array_equal, exported, params[5])


def test_a_collapsed_run_stops_saved_and_told(made_up, tmp_path):
    with pytest.raises(UserError, match=r"collapsed at step 5.*--config\.collapse\.action=warn"):
        made_up(broken_at(), loops_from(4), **COLLAPSE, **{"collapse.action": "stop"})
    run = tmp_path / "run"
    assert checkpoint.latest(run) == 5
    assert "Collapse alarm at step 5" in (run / "report.html").read_text()
    assert not (run / "export").exists()
    # An alarm that was on when the run ended is on when it goes on.
    with pytest.raises(UserError, match="collapsed at step 6"):
        made_up(broken_at(), loops_from(1))


def test_without_a_checkpoint_from_before_there_is_no_way_back(made_up, tmp_path):
    action = {"collapse.action": "rollback", "checkpoint.every": 0}
    with pytest.raises(UserError, match="by step 5 and no checkpoint is from before"):
        made_up(broken_at(), loops_from(4), **(COLLAPSE | action))
    assert not (tmp_path / "run" / "export").exists()


@pytest.mark.slow
def test_the_embedded_model_is_no_worse_after_a_smoke_run(tmp_path):
    command = [sys.executable, "-m", "jaxevolve.train", f"--config={ROOT}/configs/csrs.py:smoke"]
    subprocess.run(
        [*command, f"--workdir={tmp_path}"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},
        check=True,
        timeout=900,
    )
    lines = metrics.read_jsonl(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(np.isfinite([line[key] for key in KEYS]).all() for line in lines)
    before, after = metrics.read_jsonl(tmp_path / "eval.jsonl")
    assert 0.3 < before["average@8"] < before["majority@8"] < 1
    assert after["average@8"] > before["average@8"] - 0.05
