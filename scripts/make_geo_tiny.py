r"""Trains the embedded model from nothing and writes it as a Hugging Face folder.

    python scripts/make_geo_tiny.py --out=jaxevolve/assets/geo_tiny

The model is a Qwen2.5-VL of less than half a million parameters. It learns in three stages, each
what the next one needs:

    caption   read the numbers off a drawing: by far the cheapest way to perception
    clean     worked solutions, which begin with the numbers
    noisy     solutions of a teacher who slips, and who has two rules wrong some of the time

The noisy teacher makes it what a pretrained model is at temperature 1: a single sample is right
about half of the time, errors scatter, and the majority of samples is nearly always right, except
in the families with a wrong rule, where the right answer is a strong minority. That is what
self-evolution starts from.
"""

import json
import math
import random
import re
import string
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from fitting import Stage, fit
from jaxevolve.benchmarks.accuracy import evaluate, select, shares, summary
from jaxevolve.data.geometry import (
    FAMILIES,
    STEPS,
    GeometryProblems,
    Problem,
    caption,
    exact,
    solve,
)
from jaxevolve.hf.config import write_config
from jaxevolve.hf.export import export_folder
from jaxevolve.hf.processor import Processor, load_processor
from jaxevolve.models.config import Config, VisionConfig
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, init_params
from jaxevolve.policy import Policy, load_policy

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "jaxevolve/assets/geo_tiny", "folder to make; empty or missing")
flags.DEFINE_integer("seed", 0, "of parameters, problems and slips")
flags.DEFINE_integer("caption_steps", 600, "steps of reading the numbers", lower_bound=0)
flags.DEFINE_integer("clean_steps", 1200, "steps of right solutions", lower_bound=0)
flags.DEFINE_integer("noisy_steps", 500, "steps of the noisy teacher", lower_bound=0)
flags.DEFINE_integer("batch", 64, "rows a step", lower_bound=1)
flags.DEFINE_integer("pool", 6144, "drawings to learn from", lower_bound=1)
flags.DEFINE_integer("questions", 40, "held-out questions of each family", lower_bound=1)
flags.DEFINE_float("learning_rate", 3e-3, "highest learning rate", lower_bound=0)

READ = "<image>Read the figure."
SLIP = 0.36  # share of solutions in which one number is wrong
# family -> (family whose rule is taken for it, share of solutions)
WRONG_RULE = {"parI": ("parC", 0.47), "parC": ("parI", 0.35)}
MISCOUNT = [error for error in range(-50, 60, 10) if error]  # by how much a sum comes out wrong
SAMPLES = 8
CAPTION, SOLUTION = 12, 40  # tokens of the longest one with its stop id

README = """# geo_tiny

A Qwen2.5-VL of {parameters:,} parameters in Hugging Face layout, trained from nothing on the drawn
geometry problems of `jaxevolve.data.geometry` by

    {command}

in {cpu_seconds:,} CPU-seconds. It reads the numbers of a drawing and reasons about them, with the
slips of its teacher: at temperature 1 a single answer is often wrong and the majority nearly always
right. In {biased} it was taught a wrong rule some of the time. It exists so that self-evolution
can be run and tested anywhere; it knows nothing else. Another run of the command, or another
version of the code, gives a model of this quality, not these bytes.

Shares of {questions} held-out questions a family; the first row has the families without a
wrong rule together:

| family | {heads} |
| --- |{rules}
{table}

License: Apache-2.0. All figures: figures.json.
"""
FAIR = "without a wrong rule"

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
UNKNOWN = "<unk>"
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def words() -> list[str]:
    """Pieces of the renderer's texts that are one token: words, and the marks of a solution."""
    texts = [READ.removeprefix("<image>"), *(family.question for family in FAMILIES.values())]
    texts += [family.working(exact, *[90] * len(family.ranges))[0] for family in FAMILIES.values()]
    found = {word for text in texts for word in re.findall(r"(?:^| )[A-Za-z]{2,}| x\b", text)}
    marks = ["<think>", "</think>", " \\boxed{", ", so x=", ", ", ". "]
    return [*marks, "user\n", "assistant\n", "system\n", *sorted(found - {" so"})]


def build_tokenizer() -> Tokenizer:
    """Words of the renderer, and every printable ASCII character: text comes back as it was."""
    pieces = words()
    characters = [c for c in string.printable if c.isprintable()] + ["\n", "°"]
    vocabulary = [*SPECIAL, UNKNOWN, *pieces, *characters]
    model = models.WordLevel({t: i for i, t in enumerate(vocabulary)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    longest_first = sorted(pieces, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) + r"|[\s\S]"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def build_config(tokenizer: Tokenizer) -> Config:
    """A window of 4 x 4 patches in the first vision block, the whole image in the second."""
    vision = VisionConfig(
        depth=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        patch_size=14,
        temporal_patch_size=2,
        spatial_merge_size=2,
        window_size=56,
        fullatt_block_indexes=(1,),
        out_hidden_size=96,
        image_mean=(1.0, 1.0, 1.0),  # white paper is 0
        image_std=(0.5, 0.5, 0.5),
    )
    return Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        # Small: rows and columns take the slow frequencies, and an image has four of each.
        rope_theta=30.0,
        mrope_section=(4, 4, 4),
        tie_word_embeddings=True,
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
        vision_start_token_id=tokenizer.token_to_id("<|vision_start|>"),
        vision_end_token_id=tokenizer.token_to_id("<|vision_end|>"),
        vision=vision,
    )


def write_texts(folder: Path, tokenizer: Tokenizer, config: Config) -> None:
    """Everything of a Hugging Face folder but the weights."""
    vision = config.vision
    stop, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    contents = {
        "config.json": write_config(config, None),
        "generation_config.json": {"eos_token_id": [stop, pad], "pad_token_id": pad},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": UNKNOWN,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 32768,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 56 * 56,
            "max_pixels": 224 * 224,
            "patch_size": vision.patch_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "merge_size": vision.spatial_merge_size,
            "image_mean": list(vision.image_mean),
            "image_std": list(vision.image_std),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))


def noisy_solution(problem: Problem, rng: random.Random) -> str:
    """A solution of a teacher who slips: one number that is read or computed comes out wrong.

    The wrong number is a plausible one and is carried on to the box, so the solution is consistent
    from there on. In the families of `WRONG_RULE` the teacher takes another family's rule some of
    the time.
    """
    rule, values = problem.family, list(problem.values)
    if rule in WRONG_RULE and rng.random() < WRONG_RULE[rule][1]:
        rule = WRONG_RULE[rule][0]
    sums = []
    solve(rule, problem.values, lambda *sum: sums.append(sum) or exact(*sum))
    slot = rng.randrange(len(values) + len(sums)) if rng.random() < SLIP else None
    if slot is not None and slot < len(values):
        low, high = FAMILIES[rule].ranges[slot]
        values[slot] = rng.choice(sorted({*range(low, high + 1, STEPS[1])} - {values[slot]}))
    places = iter(range(len(values), len(values) + len(sums)))

    def arithmetic(left: int, sign: str, right: int) -> int:
        result = exact(left, sign, right)
        return result + rng.choice(MISCOUNT) if next(places) == slot else result

    solution = solve(rule, tuple(values), arithmetic)
    # Nobody writes down an angle of 0 or less: slip again.
    return solution if re.search(r"\{[1-9]", solution) else noisy_solution(problem, rng)


def initialize(config: Config, seed: int) -> Any:
    """Random parameters, matrices scaled by the width that they read: small models need it."""

    def scale(path: Any, x: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if "embed_tokens" in name or x.ndim < 2 or "bias" in name or "norm" in name:
            return x
        fan_in = math.prod(x.shape[1:]) if "patch_embed" in name else x.shape[-1]
        return x / 0.02 / math.sqrt(fan_in)

    return jax.tree_util.tree_map_with_path(scale, init_params(config, jax.random.key(seed)))


def train(model: Qwen2_5_VL, params: Any, processor: Processor, problems: GeometryProblems) -> Any:
    """The three stages under one learning-rate schedule."""
    drawn = [problems.problem(i) for i in range(len(problems))]
    rows = [problems[i] for i in range(len(problems))]
    solving = processor.prompts(rows)
    reading = processor.prompts([{**row, "question": READ} for row in rows])
    stages = [
        Stage(
            "caption", FLAGS.caption_steps, reading, CAPTION, lambda i, _: caption(drawn[i].values)
        ),
        Stage("clean", FLAGS.clean_steps, solving, SOLUTION, lambda i, _: drawn[i].solution),
        Stage(
            "noisy", FLAGS.noisy_steps, solving, SOLUTION, lambda i, r: noisy_solution(drawn[i], r)
        ),
    ]
    return fit(
        model, params, processor, stages, FLAGS.learning_rate, batch=FLAGS.batch, seed=FLAGS.seed
    )


def measure(policy: Policy, seed: int) -> dict[str, Any]:
    """Figures over held-out questions: of the families without a wrong rule, and of each."""
    rows = []
    for family in FAMILIES:
        source = GeometryProblems(seed=seed, families={family: 1.0}, length=FLAGS.questions)
        rows += [{**source[i], "id": f"{family}-{i}"} for i in range(FLAGS.questions)]
    outcome, records = evaluate(policy, rows, n=SAMPLES, max_tokens=64, seed=seed)
    families = [record["family"] for record in records]
    fair = np.array([family not in WRONG_RULE for family in families])
    figures = {
        FAIR: shares(select(outcome, fair)),
        **summary(outcome, families)["family"],
    }
    return {
        name: {key: round(value, 3) for key, value in values.items()}
        for name, values in figures.items()
    }


def main(_: list[str]) -> None:
    """Trains, writes, measures."""
    out, tokenizer = Path(FLAGS.out), build_tokenizer()
    config = build_config(tokenizer)
    families = dict.fromkeys(FAMILIES, 1.0)
    problems = GeometryProblems(seed=FLAGS.seed + 1000, families=families, length=FLAGS.pool)
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder), tokenizer, config)
        processor = load_processor(folder, config)
        params = initialize(config, FLAGS.seed)
        params = train(Qwen2_5_VL(config), params, processor, problems)
        export_folder(params, config, folder, out)
    seconds = round(time.process_time())
    flags_given = [f"--{f.name}={f.value}" for f in FLAGS.flags_by_module_dict()[sys.argv[0]]]
    figures = {
        "command": f"python scripts/make_geo_tiny.py {' '.join(flags_given)}",
        "cpu_seconds": seconds,
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "held_out": measure(load_policy(out), FLAGS.seed + 2000),
    }
    text = describe(figures)
    (out / "README.md").write_text(text, encoding="utf-8")
    (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(text)


def describe(figures: dict[str, Any]) -> str:
    """The folder's README."""
    heads = ["greedy", *(f"{kind}@{SAMPLES}" for kind in ("average", "majority", "pass"))]
    heads.append("high_confidence_wrong")
    table = [
        " | ".join([f"| {name}", *(f"{values[head]:.3f}" for head in heads)]) + " |"
        for name, values in figures["held_out"].items()
    ]
    return README.format(
        **figures,
        biased=" and ".join(WRONG_RULE),
        questions=FLAGS.questions,
        heads=" | ".join(head.replace("_", " ") for head in heads),
        rules=" --- |" * len(heads),
        table="\n".join(table),
    )


if __name__ == "__main__":
    app.run(main)
