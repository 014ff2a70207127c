"""How do the commands speak with people? Flags, and errors that are one sentence.

A command is a function of its flags:

    def define(flag_values):
        flags.DEFINE_string("workdir", None, "where the run goes", flag_values=flag_values)

    def main(flag_values):
        train(flag_values.config, flag_values.workdir)

    if __name__ == "__main__":
        cli.run(main, define, __doc__, config=True)

Every command has flags of its own, apart from absl's global ones, so that two commands can be
imported into one process. Nothing here starts a JAX backend.
"""

import difflib
import importlib.util
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxevolve.runtime.errors import UserError, nearest
from jaxevolve.runtime.limits import check_limits


def run(
    main: Callable[[flags.FlagValues], None],
    define: Callable[[flags.FlagValues], None],
    description: str,
    *,
    config: bool = False,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> NoReturn:
    """Parses the command line, calls `main` and exits.

    The exit code is 0, 2 after a `UserError`, 130 after Ctrl-C, 1 after any other error.

    Args:
        main: the command, given its flags.
        define: adds the command's own flags.
        description: what --help says above the flags.
        config: whether the command takes --config=FILE[:SCALE] and --config.KEY=VALUE.
        leave: ends the process with an exit code after an error.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("jaxevolve").setLevel(logging.INFO)
    try:
        main(parse(sys.argv, define, description, config=config))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        leave(130)
    except Exception:
        traceback.print_exc()
        leave(1)
    sys.exit(0)


def parse(
    argv: Sequence[str],
    define: Callable[[flags.FlagValues], None],
    description: str = "",
    *,
    config: bool = False,
) -> flags.FlagValues:
    """Reads a command line.

    Args:
        argv: the program's name and its arguments.
        define: adds the command's own flags.
        description: what --help says above the flags.
        config: whether the command takes a config. The result then has `config`, the ConfigDict
            with all overrides, and `config_name`, such as "csrs-tiny".

    Returns:
        The flags, as attributes.

    Raises:
        UserError: an unknown flag or config key (with the nearest known one), a value of the wrong
            type or outside its limits, a missing or broken config file.
        SystemExit: --help was asked for and printed.
    """
    values = flags.FlagValues()
    define(values)
    wants_help = any(word in ("--help", "-help", "-h", "--helpfull") for word in argv[1:])
    rest = list(argv)
    settings = None
    if config:
        argument, rest = _take_config_argument(argv)
        if argument is not None:
            settings, scale = _load(argument)
            _refuse_unknown_keys(settings, rest)
            name = "-".join(filter(None, (_split(argument)[0].stem, scale)))
            flags.DEFINE_string("config_name", name, "", flag_values=values)
        elif not wants_help:
            raise UserError(
                "--config is missing: give a config file, such as --config=configs/csrs.py"
            )
    if wants_help:
        print(_help(argv[0], values, description, config, settings))
        raise SystemExit(0)
    try:
        if settings is not None:
            config_flags.DEFINE_config_dict("config", settings, flag_values=values, sys_argv=rest)
        positional = values(rest)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown(f"--{error.flagname}", [f"--{name}" for name in values])) from None
    except (flags.Error, ValueError, TypeError) as error:
        raise UserError(_wrong_value(str(error), values, settings)) from None
    if positional:
        raise UserError(
            f"{positional[0]!r} is not understood: every argument has the form --name=value"
        )
    if settings is not None:
        check_limits(values.config)
    return values


def load_config(argument: str) -> ConfigDict:
    """Calls get_config of a config file.

    Args:
        argument: FILE or FILE:SCALE; SCALE is passed to get_config.

    Raises:
        UserError: the file is missing, or does not define get_config, or refuses SCALE.
    """
    return _load(argument)[0]


def _split(argument: str) -> tuple[Path, tuple[str, ...]]:
    """FILE and (SCALE,) or ()."""
    path, colon, scale = argument.partition(".py:")
    return (Path(f"{path}.py"), (scale,)) if colon else (Path(argument), ())


def _load(argument: str) -> tuple[ConfigDict, str]:
    """The config of FILE[:SCALE] and the scale, given or by default ("" where there is none)."""
    path, scale = _split(argument)
    if not path.is_file():
        beside = sorted(str(other) for other in path.parent.glob("*.py"))
        raise UserError(_unknown(f"config file {path}", beside, "does not exist"))
    # Config files share defaults by `from configs import common`, wherever the command is called.
    root = str(path.resolve().parent.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        settings = module.get_config(*scale)
        default = next(iter(inspect.signature(module.get_config).parameters.values()), None)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"config file {argument} failed with {type(error).__name__}: {error}; "
            "it must define get_config(scale) that returns a ConfigDict"
        ) from error
    if not isinstance(settings, ConfigDict):
        raise UserError(f"get_config of {path} returns no ConfigDict but {settings!r}")
    return settings.lock(), (scale or (default.default if default else "",))[0]


def _take_config_argument(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of --config, in either spelling, and the command line without it."""
    argument, rest = None, []
    words = iter(argv)
    for word in words:
        if word in ("--config", "-config"):
            argument = next(words, "")
        elif match := re.match(r"--?config=(.*)", word):
            argument = match[1]
        else:
            rest.append(word)
    return argument, rest


def _keys(settings: ConfigDict, prefix: str = "") -> dict[str, type]:
    """{"optimizer.lr": float} of every setting, also of those that are None."""
    found: dict[str, type] = {}
    for key in settings:
        value = settings[key]
        if isinstance(value, ConfigDict):
            found.update(_keys(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = settings.get_type(key)
    return found


def _refuse_unknown_keys(settings: ConfigDict, argv: Sequence[str]) -> None:
    known = _keys(settings)
    for word in argv[1:]:
        if not (match := re.match(r"--?(no)?config\.([^=]*)", word)):
            continue
        negated, key = match.groups()
        if key in known and not (negated and known[key] is not bool):
            continue
        if any(name.startswith(f"{key}.") for name in known):
            inside = ", ".join(name for name in known if name.startswith(f"{key}."))
            raise UserError(f"--config.{key} is a group, not a setting: it holds {inside}")
        # A bare last name finds its group, and a name from elsewhere its own here.
        names = {name.rsplit(".", 1)[-1]: name for name in known} | _ELSEWHERE
        names = {name: full for name, full in names.items() if full in known} | dict(
            zip(known, known)
        )
        (near,) = difflib.get_close_matches(key, names, n=1, cutoff=0) or (None,)
        advice = f"did you mean --config.{names[near]}?" if near else "this config has no settings"
        raise UserError(f"--config.{key} is unknown; {advice}")


# What other trainers call our settings.
_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "kl_coef": "grpo.kl",
    "beta1": "optimizer.b1",
    "beta2": "optimizer.b2",
    "max_grad_norm": "optimizer.clip_norm",
    "batch_size": "batch",
    "num_steps": "steps",
    "max_new_tokens": "rollout.max_tokens",
    "num_generations": "rollout.n",
    "group_size": "rollout.n",
    "sigma": "retrace.image_noise",
    "omega": "retrace.rate",
}


def _unknown(what: str, known: Sequence[str], verdict: str = "is unknown") -> str:
    near = nearest(what.removeprefix("config file "), known)
    if near:
        return f"{what} {verdict}; did you mean {near}?"
    return f"{what} {verdict}" + (f"; there is {', '.join(known)}" if known else "")


def _wrong_value(message: str, values: flags.FlagValues, settings: ConfigDict | None) -> str:
    """absl's complaint about a value, with the type that is wanted."""
    if match := re.match(r"flag --([\w.]+)=(.*?): ", message, re.DOTALL):
        flag, value = match.groups()
        if flag.startswith("config."):
            kind = _keys(settings)[flag.removeprefix("config.")].__name__
        else:
            kind = values[flag].flag_type()
        if kind in _WANTED:
            return f"--{flag}={value} is of the wrong type; it must be {_WANTED[kind]}"
    return message.split("\n")[0]


_WANTED = {
    "int": "a whole number",
    "float": "a number, such as 0.1 or 1e-6",
    "bool": "true or false",
    "tuple": "numbers with commas between, such as 1,8,1",
}


def _help(
    program: str,
    values: flags.FlagValues,
    description: str,
    config: bool,
    settings: ConfigDict | None,
) -> str:
    usage = f"usage: python -m jaxevolve.{Path(program).stem} [flags]"
    lines = [description.strip(), "", usage, "", "flags:"]
    if config:
        lines.append(
            "  --config=FILE[:SCALE]: the recipe and its size, such as configs/csrs.py:tiny"
        )
        lines.append("  --config.KEY=VALUE: changes one setting")
    for name in values:
        if name != "config_name":
            default = "" if values[name].default is None else f" (default {values[name].default})"
            lines.append(f"  --{name}: {values[name].help}{default}")
    if settings is not None:
        lines += ["", "settings:"]
        lines += [
            f"  --config.{key}={_value(settings, key)}  ({kind.__name__})"
            for key, kind in _keys(settings).items()
        ]
    return "\n".join(lines)


def _value(settings: ConfigDict, key: str) -> object:
    for part in key.split("."):
        settings = settings[part]
    return settings
