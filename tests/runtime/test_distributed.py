import subprocess
import sys
from pathlib import Path

import processes
import pytest
from absl import flags

from jaxevolve.runtime import distributed
from jaxevolve.runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def parsed(*words):
    values = flags.FlagValues()
    distributed.define(values)
    values(["command", *words])
    return values


def test_one_process_asks_nobody():
    distributed.start(parsed())
    assert distributed.gather("value") == ["value"]
    assert distributed.from_first("value") == "value"
    assert distributed.is_first()
    assert distributed.agree(True)
    assert not distributed.agree(False)
    with pytest.raises(UserError, match="own words"), distributed.together():
        raise UserError("own words")


@pytest.mark.parametrize(
    "words",
    [
        ["--coordinator=here:1"],
        ["--processes=2", "--process_id=0"],
        ["--coordinator=here:1", "--processes=2", "--process_id=2"],
        ["--coordinator=here:1", "--processes=2", "--process_id=-1"],
    ],
)
def test_half_of_the_flags_is_refused(words):
    with pytest.raises(UserError, match="give all three"):
        distributed.start(parsed(*words))


def test_no_cluster_is_told():
    with pytest.raises(UserError, match="--distributed finds no TPU pod, SLURM step or GKE job"):
        distributed.start(parsed("--distributed"))


def test_a_slurm_step_tells_who_takes_part(monkeypatch):
    step = {"JOB_ID": "4097", "STEP_NODELIST": "node[07-09]", "NTASKS": "3", "PROCID": "2"}
    for name, value in {**step, "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    called = []

    def roll_call(*arguments):
        called.append(arguments)
        raise UserError("enough")

    monkeypatch.setattr(distributed, "roll_call", roll_call)
    with pytest.raises(UserError, match="enough"):
        distributed.start(parsed("--distributed", "--initialization_timeout=7"))
    assert called == [("node07:61441", 3, 2, 7)]


def test_a_missing_process_ends_the_command_with_one_sentence_within_the_timeout(tmp_path):
    command = [sys.executable, "-m", "jaxevolve.train", f"--config={ROOT}/configs/csrs.py:smoke"]
    done = subprocess.run(
        [
            *command,
            f"--workdir={tmp_path / 'run'}",
            f"--coordinator=127.0.0.1:{processes.free_port()}",
            *("--processes=2", "--process_id=0", "--initialization_timeout=1"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    told = "error: process 1 of 2 did not come within 1 seconds; start all of them, or raise "
    assert done.stderr == told + "--initialization_timeout\n"
    assert not (tmp_path / "run").exists()


def test_two_processes_exchange_values_batches_and_parameters(tmp_path):
    script = Path(__file__).parent / "exchange.py"
    group = processes.start([sys.executable, script, f"--folder={tmp_path}"], 2, 2)
    for code, printed in processes.finish(group, 600):
        assert code == 0, printed
        assert printed.endswith("same\n")
