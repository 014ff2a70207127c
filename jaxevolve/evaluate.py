"""Measures a model on labeled questions: greedy, average, majority and any of n samples.

    python -m jaxevolve.evaluate --model=DIR --benchmark=NAME --data=PATH --n=8 --out=FILE

Benchmarks: "geometry", the built-in drawn problems (--data is optional, such as
"geometry:tri=0.5,parI=0.5,seed=7"); "rows", any labeled parquet or JSONL in a layout that training
reads. FILE gets the figures as JSON; every response goes to a JSONL file beside it.
"""

import json
import os
import time
from pathlib import Path

from absl import flags

from jaxevolve.benchmarks import accuracy
from jaxevolve.data.sources import load_rows
from jaxevolve.policy import load_policy
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import append_jsonl

BUILT_IN = "geometry:tri=0.35,ext=0.25,iso=0.25,parI=0.15,seed=1,length=320"


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    text = {
        "model": "a Hugging Face folder, a run's folder or one of its checkpoints",
        "data": "questions with answers: a file, folder, glob or geometry:...",
        "out": "the JSON file to write",
        "instruction": "text after every question",
    }
    for name, meaning in text.items():
        empty = "" if name == "instruction" else None
        flags.DEFINE_string(name, empty, meaning, flag_values=values)
    flags.DEFINE_enum(
        "benchmark", "rows", ["geometry", "rows"], "what --data holds", flag_values=values
    )
    number = {
        "n": (8, "samples a question, beside the greedy one"),
        "questions": (0, "the first so many; 0 for all"),
        "max_tokens": (64, "limit of a response"),
        "seed": (0, "of the samples"),
    }
    for name, (default, meaning) in number.items():
        least = 1 if name in ("n", "max_tokens") else 0
        flags.DEFINE_integer(name, default, meaning, lower_bound=least, flag_values=values)
    flags.DEFINE_float("temperature", 1.0, "of the samples", lower_bound=0.0, flag_values=values)
    flags.DEFINE_enum(
        "dtype", "float32", ["float32", "bfloat16"], "what is computed in", flag_values=values
    )


def main(values: flags.FlagValues) -> None:
    """Loads, asks, writes, prints."""
    data = values.data or (BUILT_IN if values.benchmark == "geometry" else None)
    for name, value in (("model", values.model), ("data", data), ("out", values.out)):
        if not value:
            raise UserError(f"--{name} is missing: give {values[name].help}")
    rows = load_rows(data)
    asked = range(min(values.questions or len(rows), len(rows)))
    unlabeled = [rows[i]["id"] for i in asked if rows[i]["answer"] is None]
    if unlabeled:
        raise UserError(
            f"{len(unlabeled)} of {len(asked)} rows of {data} have no answer, the first is "
            f"{unlabeled[0]}; an evaluation needs labels"
        )
    policy = load_policy(values.model, values.dtype)
    begun = time.perf_counter()
    outcome, records = accuracy.evaluate(
        policy,
        rows,
        questions=values.questions,
        n=values.n,
        max_tokens=values.max_tokens,
        instruction=values.instruction,
        temperature=values.temperature,
        seed=values.seed,
        progress=True,
    )
    seconds = time.perf_counter() - begun
    decoding = {k: values[k].value for k in ("n", "temperature", "max_tokens", "seed", "dtype")}
    result = {
        "benchmark": values.benchmark,
        "data": data,
        "model": values.model,
        "grader": "jaxevolve.answers",
        "decoding": {**decoding, "greedy": "temperature 0"},
        "tokens_per_second": outcome.tokens / seconds,
        **accuracy.summary(outcome, [record["family"] for record in records]),
    }
    out = Path(values.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_suffix(".responses.jsonl").open("w", encoding="utf-8") as file:
        for record in records:
            append_jsonl(file, record)
    beside = out.with_suffix(".partial")
    beside.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, out)
    for name, value in result.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' '):<24}{value:>10.4f}")
    print(f"{result['questions']} questions; figures in {out}, responses beside it")


if __name__ == "__main__":
    cli.run(main, define, __doc__)
