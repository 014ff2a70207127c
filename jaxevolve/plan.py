"""Tells what a run needs on accelerators that are not there.

    python -m jaxevolve.plan --config=configs/csrs.py:SCALE --topology=v5p:2x2x1

Compiles the functions of the config for the topology, without it, and prints memory by function
against the chip's, the work of a step, and how long it takes at the chips' limits. Needs no weights
and no data. The exit code is 0 if the run fits, 1 if not.
"""

from contextlib import suppress
from pathlib import Path

import jax
from absl import flags

from jaxevolve.planning import table, work
from jaxevolve.planning.chips import parse_topology
from jaxevolve.planning.planner import Plan, assumed_lengths
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "topology",
        None,
        "chips and how they are wired: v4, v5e, v5p or v6e:AxB[xC], 2xv5e:4x4 for two slices, "
        "a100, h100 or h200:N, h100:2x8 for two hosts, cpu:N for simulated devices of this machine",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "prompt_tokens",
        None,
        "expected tokens of a prompt; default half of data.max_prompt_tokens",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "response_tokens",
        None,
        "expected tokens of a response; default half of rollout.max_tokens",
        flag_values=values,
    )
    flags.DEFINE_float(
        "share",
        0.4,
        "part of the chips' limits that is reached, for the expected time",
        lower_bound=0.01,
        upper_bound=1.0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "cache",
        str(Path.home() / ".cache" / "jaxevolve" / "plan.json"),
        "keeps what the compilers have found: only what has changed is compiled again",
        flag_values=values,
    )
    flags.DEFINE_string("out", None, "also writes the table to this file", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """One plan, from the flags to the table."""
    if values.topology is None:
        raise UserError("--topology is missing: give one, such as --topology=v5p:2x2x1")
    topology = parse_topology(values.topology)
    # What is planned for is not there, and what is there is not planned for.
    jax.config.update("jax_platforms", "cpu")
    if topology.chip.platform == "cpu":
        with suppress(RuntimeError):  # JAX runs already: the topology tells if that is too few
            jax.config.update("jax_num_cpu_devices", topology.size)
    config = values.config
    half = assumed_lengths(config)
    lengths = work.Lengths(
        values.prompt_tokens or half.prompt, values.response_tokens or half.response
    )
    for flag, tokens, limit, most in (
        ("prompt", lengths.prompt, "data.max_prompt_tokens", config.data.max_prompt_tokens),
        ("response", lengths.response, "rollout.max_tokens", config.rollout.max_tokens),
    ):
        if tokens > most:
            raise UserError(
                f"--{flag}_tokens={tokens} is more than a run allows, {limit}={most}; expect fewer "
                f"or raise --config.{limit}"
            )
    plan = Plan(values.config_name, config, topology, lengths, values.share, Path(values.cache))
    text = table.text(plan)
    print(text)
    if values.out:
        Path(values.out).parent.mkdir(parents=True, exist_ok=True)
        Path(values.out).write_text(text + "\n", encoding="utf-8")
    if not plan.fits:
        raise SystemExit(1)


if __name__ == "__main__":
    cli.run(main, define, __doc__, config=True)
