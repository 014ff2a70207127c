"""What the launchers in scripts/ run, with stand-ins for the programs of the clusters."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from jaxevolve import train
from jaxevolve.runtime import cli

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
RUN = ["--config=configs/csrs.py:qwen2_5_vl_7b", "--workdir=/shared/a run"]
ODD = '--config.data.instruction=Think; "box" it, $HOME\'s way'
SETTINGS = {"CLUSTER": "mine", "TPU": "v5p-32", "IMAGE": "image"}


@pytest.fixture
def called(tmp_path):
    """Runs a launcher; returns the words that the cluster's program is called with."""
    for name in ("gcloud", "xpk", "srun"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "%s\\0" "$(basename "$0")" "$@"\n')
        program.chmod(0o755)

    def call(script, *arguments):
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", SCRIPTS / script, *arguments],
            env=os.environ | SETTINGS | {"PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\0")[:-1]

    return call


def inner(words):
    """The words of the --command that a shell on the cluster gets."""
    (command,) = (word for word in words if word.startswith("--command="))
    return shlex.split(command.removeprefix("--command="))


def parsed(words, monkeypatch):
    """The flags of a training command among words."""
    monkeypatch.chdir(SCRIPTS.parent)
    start = words.index("jaxevolve.train")
    assert words[start - 2 : start] == ["python", "-m"]
    return cli.parse(words[start:], train.define, config=True)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound_shell_and_can_be_run(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(
    ("script", "before", "program"),
    [
        ("launch_tpu_pod.sh", ["slice", "zone"], ["gcloud", "compute", "tpus", "tpu-vm", "ssh"]),
        ("launch_xpk.sh", ["name"], ["xpk", "workload", "create"]),
        ("launch_slurm.sh", [], ["srun"]),
    ],
)
def test_every_process_gets_the_flags_as_they_were_given(
    called, monkeypatch, script, before, program
):
    words = called(script, *before, *RUN, ODD)
    assert words[: len(program)] == program
    values = parsed(words if program == ["srun"] else inner(words), monkeypatch)
    assert values.distributed
    assert values.workdir == "/shared/a run"
    assert f"--config.data.instruction={values.config.data.instruction}" == ODD


def test_the_pod_runs_on_all_its_hosts_in_the_repository(called):
    words = called("launch_tpu_pod.sh", "slice", "zone", *RUN)
    assert {"slice", "--zone=zone", "--worker=all"} <= set(words)
    assert inner(words)[:3] == ["cd", "jaxevolve", "&&"]


def test_slurm_starts_one_process_a_node():
    options = re.findall(r"^#SBATCH --([\w-]+)", (SCRIPTS / "launch_slurm.sh").read_text(), re.M)
    assert {"ntasks-per-node", "gpus-per-node", "signal"} <= set(options)


@pytest.mark.parametrize("script", ["launch_tpu_pod.sh", "launch_xpk.sh"])
def test_too_few_words_are_answered_with_the_usage(script):
    done = subprocess.run(["bash", SCRIPTS / script, "name"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_the_jobset_starts_as_many_processes_as_it_says(monkeypatch):
    text = (SCRIPTS / "launch_jobset.yaml").read_text()
    arguments = re.findall(r"^ +- (--\S+)$", text, re.M)
    number = arguments.index("--process_id=$(PROCESS_ID)")
    arguments[number] = "--process_id=1"
    assert "command: [python, -m, jaxevolve.train]" in text
    values = parsed(["python", "-m", "jaxevolve.train", *arguments], monkeypatch)
    assert (values.processes, values.process_id) == (2, 1)
    for field in ("parallelism", "completions"):
        assert re.search(rf"^ +{field}: 2$", text, re.M)
    host, port = values.coordinator.split(":")
    # JobSet names a pod SET-JOBS-INDEX-NUMBER.SET.
    assert host == "jaxevolve-hosts-0-0.jaxevolve"
    assert f"containerPort: {port}" in text
