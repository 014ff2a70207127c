"""Exports a checkpoint as a Hugging Face folder that transformers and vLLM load.

python -m jaxevolve.export --checkpoint=DIR/checkpoints[/STEP] --out=FOLDER
"""

from pathlib import Path

from absl import flags

from jaxevolve.hf.export import export_folder
from jaxevolve.policy import load_policy
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "checkpoint", None, "a run's folder, its checkpoints/ or one step", flag_values=values
    )
    flags.DEFINE_string("out", None, "the folder to make", flag_values=values)
    flags.DEFINE_enum(
        "dtype", "float32", ["float32", "bfloat16"], "of the weights", flag_values=values
    )


def main(values: flags.FlagValues) -> None:
    """Loads the parameters and writes the folder."""
    for name in ("checkpoint", "out"):
        if not values[name].value:
            raise UserError(f"--{name} is missing: give {values[name].help}")
    policy = load_policy(values.checkpoint)
    folder = policy.processor.folder
    export_folder(policy.params, policy.model.config, folder, values.out, values.dtype)
    print(f"{folder} is exported to {Path(values.out)}")


if __name__ == "__main__":
    cli.run(main, define, __doc__)
