import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CSRS = f"--config={ROOT}/configs/csrs.py"


def define(values):
    flags.DEFINE_string("workdir", None, "where the run goes", flag_values=values)
    flags.DEFINE_integer("n", 8, "responses", flag_values=values)


def parse(*arguments):
    return cli.parse(["train.py", *arguments], define, "Trains.", config=True)


def refusal(*arguments):
    with pytest.raises(UserError) as caught:
        parse(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_and_the_commands_own_flags():
    values = parse(CSRS, "--workdir=runs/a")
    assert values.config_name == "csrs-tiny"
    assert values.config.steps == 20
    assert (values.workdir, values.n) == ("runs/a", 8)


def test_every_spelling_of_an_override():
    values = parse(
        "--config.steps=3",
        CSRS + ":smoke",
        "--config.optimizer.lr",
        "1",
        "--config.mesh=2,-1,1",
        "--config.data.strict",
        "--noconfig.grpo.offload_reference",
        "--config.data.path=a,b.parquet",
    ).config
    assert values.steps == 3
    assert values.optimizer.lr == 1.0
    assert values.mesh == (2, -1, 1)
    assert values.data.strict is True
    assert values.grpo.offload_reference is False
    assert values.data.path == "a,b.parquet"


def test_a_setting_that_is_none_by_default_can_be_given():
    values = parse(
        CSRS, "--config.steps=0", "--config.data.epochs=3", "--config.data.image_key=img"
    )
    assert (values.config.steps, values.config.data.epochs) == (0, 3)
    assert values.config.data.image_key == "img"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lerning_rate", "optimizer.lr"),
        ("lr", "optimizer.lr"),
        ("kl_coef", "grpo.kl"),
        ("rollout.temprature", "rollout.temperature"),
        ("batch_size", "batch"),
        ("data.paths", "data.path"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(key, meant):
    assert refusal(CSRS, f"--config.{key}=1") == (
        f"--config.{key} is unknown; did you mean --config.{meant}?"
    )


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.steps=7.5", ("--config.steps=7.5", "whole number")),
        ("--config.optimizer.lr=abc", ("--config.optimizer.lr=abc", "a number")),
        ("--config.data.strict=maybe", ("--config.data.strict=maybe", "true or false")),
        ("--config.optimizer=3", ("--config.optimizer", "optimizer.lr")),
        (
            "--config.retrace.anchor=fractoin",
            ("retrace.anchor=fractoin", "fraction, random, token"),
        ),
        ("--config.retrace.rate=1.5", ("retrace.rate=1.5", "between 0 and 1")),
        ("--config.rollout.n=1", ("rollout.n=1", "at least 2")),
        ("--config.optimizer.lr=nan", ("optimizer.lr=nan", "at least 0")),
        ("--config.steps", ("--config.steps",)),
        ("--wrkdir=x", ("--wrkdir", "--workdir")),
        ("--n=x", ("--n=x", "whole number")),
        ("steps=3", ("steps=3", "--name=value")),
    ],
)
def test_a_wrong_argument_is_one_sentence_with_thing_value_and_fix(argument, words):
    message = refusal(CSRS, argument)
    assert all(word in message for word in words), message


def test_config_files_that_are_missing_unknown_or_broken(tmp_path):
    assert "--config=configs/csrs.py" in refusal()
    assert "csrs.py" in refusal(f"--config={ROOT}/configs/csr.py")
    assert "did you mean tiny" in refusal(CSRS + ":tinny")
    assert "smoke" in refusal(CSRS + ":13b")
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config():\n    return 1 / 0\n")
    assert "ZeroDivisionError" in refusal(f"--config={broken}")
    broken.write_text("def get_config():\n    return {}\n")
    assert "ConfigDict" in refusal(f"--config={broken}")


def test_a_users_own_config_file_needs_no_scale(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from configs import common\n"
        "def get_config():\n"
        "    config = common.defaults()\n"
        "    config.steps = 2\n"
        "    return config\n"
    )
    values = parse(f"--config={own}")
    assert (values.config_name, values.config.steps) == ("own", 2)


def test_help_lists_flags_and_settings(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(CSRS, "--help")
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert "--workdir" in told
    assert "--config.optimizer.lr=0.0001" in told


def test_a_process_ends_with_code_2_and_one_line(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(
        "import sys\n"
        "from absl import flags\n"
        "from jaxevolve.runtime import cli\n"
        "def define(values):\n"
        "    flags.DEFINE_string('workdir', None, 'folder', flag_values=values)\n"
        "def main(values):\n"
        "    raise cli.UserError('no folder here; give --workdir')\n"
        "assert 'jax' not in sys.modules  # so --help and mistakes grab no accelerator\n"
        "cli.run(main, define, 'Does nothing.', config=True)\n"
    )

    def call(*arguments):
        # From elsewhere: the config finds its neighbors wherever the command is called.
        done = subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        return done.returncode, done.stdout, done.stderr

    assert call(CSRS) == (2, "", "error: no folder here; give --workdir\n")
    code, _, told = call(CSRS, "--config.lerning_rate=1")
    assert (code, told.count("\n")) == (2, 1)
    assert "optimizer.lr" in told
    assert call("--help")[0] == 0
