r"""Trains the embedded judge from the embedded model and writes it as a Hugging Face folder.

    python scripts/make_geo_judge.py --out=jaxevolve/assets/geo_judge

A model of half a million parameters cannot follow a rubric that it is told. This one is the
embedded model with a few more words, trained to answer the judge's short prompt in the rubric's
format: it solves the problem itself, repeats the candidate's answer, gives three scores and their
weighted sum. Candidates are sampled from the embedded model, slips and wrong rules included; what
each of them deserves is known from the renderer. So this judge has seen labels of other problems of
the same kind: it stands in for the judgement that a large model brings along.
"""

import json
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from tokenizers import Tokenizer

from fitting import Stage, fit
from jaxevolve.answers import extract
from jaxevolve.data.geometry import FAMILIES, GeometryProblems, Problem, solve
from jaxevolve.hf.config import read_config, write_config
from jaxevolve.hf.export import copy_texts, export_folder
from jaxevolve.hf.processor import load_processor
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL
from jaxevolve.policy import Policy, load_policy
from jaxevolve.recipes.self_judge import CANDIDATE, PROBLEM, encode, heads
from jaxevolve.rollout.retrace import fork
from jaxevolve.runtime import cli
from judge_auc import measure

ROOT = Path(__file__).resolve().parents[1]
MENTION, SCORES = "; candidate ", ' BEGIN_SCORES {"answer_correctness": '
WORDS = (
    *(PROBLEM, CANDIDATE, MENTION, SCORES, ', "reasoning_quality": ', ', "visual_grounding": '),
    *(', "overall_score": ', "} END_SCORES"),
)
WEIGHTS = (0.5, 0.3, 0.2)
LAYOUT = re.compile(r"<think>((?:\d+, )*\d+)\. .*</think> \\boxed\{(\d+)\}", re.DOTALL)
JUDGEMENT = 72  # tokens of the longest one with its stop id

README = """# geo_judge

The embedded model (`geo_tiny`), a Qwen2.5-VL now of {parameters:,} parameters in Hugging Face
layout, trained to judge solutions of the drawn geometry problems of `jaxevolve.data.geometry` by

    {command}

in {cpu_seconds:,} CPU-seconds. It reads the drawing, the problem and a candidate solution, solves
the problem itself, and scores the candidate in the format of `jaxevolve.recipes.self_judge`
(`judge.prompt=short`). It has learned from candidates with labels: at this scale it stands in for
what a large model knows before any training, and a run with it is no evidence that labels are not
needed. Another run of the command, or another version of the code, gives a judge of this quality,
not these bytes.

Candidates sampled from geo_tiny at temperature 1 on about {questions} held-out questions a family,
one sampled judgement each: how well scores tell right from wrong (area under the ROC curve), and
the mean score of either.

| family | candidates | right | AUC | score if right | score if wrong |
| --- | --- | --- | --- | --- | --- |
{table}

License: Apache-2.0. All figures: figures.json.
"""


def define(values: flags.FlagValues) -> None:
    """The script's flags."""
    text, number = flags.DEFINE_string, flags.DEFINE_integer
    text("out", "jaxevolve/assets/geo_judge", "folder to make; empty or missing", values)
    text("model", "jaxevolve/assets/geo_tiny", "what it starts from, and judges", values)
    number("seed", 0, "of problems, candidates and batches", flag_values=values)
    number("steps", 700, "updates", 1, flag_values=values)
    number("batch", 64, "judgements an update", 1, flag_values=values)
    number("pool", 3072, "drawings to learn from", 1, flag_values=values)
    number("candidates", 2, "responses to each", 1, flag_values=values)
    number("questions", 40, "held-out questions of each family", 1, flag_values=values)
    flags.DEFINE_float("learning_rate", 2e-3, "highest learning rate", 0, flag_values=values)


def with_words(tokenizer: Tokenizer, words: tuple[str, ...]) -> Tokenizer:
    """The embedded model's tokenizer with more words, behind those that it has."""
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {word: len(vocabulary) + i for i, word in enumerate(words)}
    pattern = content["pre_tokenizer"]["pattern"]
    longest_first = sorted(words, key=len, reverse=True)
    pattern["Regex"] = "|".join([*map(re.escape, longest_first), pattern["Regex"]])
    return Tokenizer.from_str(json.dumps(content))


def grow(params: Any, size: int, seed: int) -> Any:
    """The parameters with random rows for new words at the end of the embedding."""
    old = params["model"]["embed_tokens"]["weight"]
    shape = (size - len(old), old.shape[1])
    rows = float(old.std()) * jax.random.normal(jax.random.key(seed), shape)
    weight = jnp.concatenate([old, rows])
    # Copies, as learning consumes them.
    params = jax.tree.map(jnp.copy, params)
    return {**params, "model": {**params["model"], "embed_tokens": {"weight": weight}}}


def criteria(problem: Problem, candidate: str) -> tuple[int, int, int]:
    """What a candidate deserves: right answer, right working of what it read, right reading."""
    found = LAYOUT.fullmatch(candidate)
    if found is None:
        return 0, 0, 0
    values = tuple(map(int, found[1].split(", ")))
    whole = len(values) == len(problem.values)
    sound = whole and candidate == solve(problem.family, values)
    return int(int(found[2]) == problem.answer), int(sound), int(values == problem.values)


def judgement(problem: Problem, candidate: str) -> str:
    """The right judgement."""
    scores = criteria(problem, candidate)
    overall = sum(weight * score for weight, score in zip(WEIGHTS, scores))
    answer = extract(candidate)
    named = answer if answer is not None and re.fullmatch(r"\d{1,4}", answer) else "none"
    thought = problem.solution.partition("</think>")[0]
    names = (SCORES, *WORDS[4:6])
    listed = "".join(f"{name}{score}" for name, score in zip(names, scores))
    return (
        f"{thought}{MENTION}{named}</think>{listed}{WORDS[6]}{overall:.1f}{WORDS[7]} "
        f"\\boxed{{{overall:.1f}}}"
    )


def asked(judge: Policy, rows: list[dict[str, Any]], candidates: list[list[str]]) -> Prompts:
    """What the judge reads: a prompt for every candidate, question by question."""
    questions, ending = heads(judge.processor, rows, "short", "")
    encoded = [encode(judge.processor, text) + ending for own in candidates for text in own]
    lengths = np.array([len(tokens) for tokens in encoded])
    tokens = np.zeros((len(encoded), lengths.max()), np.int32)
    for row, own in zip(tokens, encoded):
        row[: len(own)] = own
    each = np.repeat(np.arange(len(rows)), len(candidates[0]))
    return fork(jax.tree.map(lambda x: x[each], questions), tokens, lengths, tokens.shape[1])


def main(values: flags.FlagValues) -> None:
    """Trains, writes, measures."""
    out, actor = Path(values.out), load_policy(values.model)
    families = dict.fromkeys(FAMILIES, 1.0)
    problems = GeometryProblems(seed=values.seed + 3000, families=families, length=values.pool)
    rows = [problems[i] for i in range(len(problems))]
    sampled = actor.generate(actor.prompts(rows), n=values.candidates, seed=values.seed)
    print(f"candidates: {time.process_time():.0f} CPU-s", flush=True)
    tokenizer = with_words(actor.processor.tokenizer.backend_tokenizer, WORDS)
    config = replace(read_config(values.model), vocab_size=tokenizer.get_vocab_size())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_texts(Path(values.model), folder)
        (folder / "config.json").write_text(json.dumps(write_config(config, None)))
        tokenizer.save(str(folder / "tokenizer.json"))
        model, processor = Qwen2_5_VL(config), load_processor(folder, config)
        params = grow(actor.params, config.vocab_size, values.seed)
        prompts = asked(Policy(model, params, processor), rows, sampled.texts)
        drawn = [problems.problem(i) for i in range(len(problems))]
        flat = [(problem, text) for problem, own in zip(drawn, sampled.texts) for text in own]
        stage = Stage("judge", values.steps, prompts, JUDGEMENT, lambda i, _: judgement(*flat[i]))
        params = fit(
            model,
            params,
            processor,
            [stage],
            values.learning_rate,
            batch=values.batch,
            seed=values.seed,
        )
        export_folder(params, config, folder, out)
    seconds = round(time.process_time())
    held_out = cli.load_config(str(ROOT / "configs" / "self_judge.py"))
    held_out.judge.path = str(out)
    source = GeometryProblems(seed=values.seed + 4000, families=families, length=1 << 20)
    own = flags.FlagValues()
    define(own)
    flags_given = [f"--{name}={values[name].value}" for name in own]
    figures = {
        "command": f"python scripts/make_geo_judge.py {' '.join(flags_given)}",
        "cpu_seconds": seconds,
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "held_out": measure(
            actor,
            load_policy(out),
            [source[i] for i in range(values.questions * len(FAMILIES))],
            held_out,
        ),
    }
    text = describe(figures, values.questions)
    (out / "README.md").write_text(text, encoding="utf-8")
    (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(text)


def describe(figures: dict[str, Any], questions: int) -> str:
    """The folder's README."""
    columns = ("candidates", "right", "auc", "score_if_right", "score_if_wrong")
    table = [
        " | ".join([f"| {name}", *(str(row[column]) for column in columns)]) + " |"
        for name, row in figures["held_out"].items()
    ]
    return README.format(**figures, questions=questions, table="\n".join(table))


if __name__ == "__main__":
    cli.run(main, define, __doc__)
