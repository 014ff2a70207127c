"""Every setting and its default. A recipe's file changes some of them, a flag any of them.

Where a number comes from: [csrs] Table 6 or the text of arXiv 2604.03647, [self_judge] the text or
released script of arXiv 2603.21289, [verl] the default of the framework that they were trained
with, [ours] our choice where the paper is silent.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from jaxevolve.benchmarks.prompts import THINK_THEN_BOX
from jaxevolve.runtime.errors import UserError, nearest

EMBEDDED_MODEL = str(Path(__file__).resolve().parents[1] / "jaxevolve" / "assets" / "geo_tiny")
# Families that the embedded model solves greedily without error, and one, parI, in which it was
# taught a wrong rule half of the time. From a weaker start no label-free signal helps.
EMBEDDED_DATA = "geometry:tri=0.35,ext=0.25,iso=0.25,parI=0.15"


def defaults() -> ConfigDict:
    """All settings. None means: not set."""
    return ConfigDict(
        {
            # Finished steps at which the run ends; 0 or None: data.epochs tells.
            "steps": placeholder(int),
            # Everything random follows from it: order of the data, sampling, anchors, noise.
            "seed": 0,
            # Prompts a step.
            "batch": 16,
            # Devices on (data, fsdp, tensor), -1 for the rest; None: all on fsdp.
            "mesh": placeholder(tuple),
            "model": {
                # A Hugging Face folder, or a checkpoint of ours.
                "path": EMBEDDED_MODEL,
                # What is computed in, float32 or bfloat16. Master weights are float32 always.
                "dtype": "float32",
                # What computes attention: "splash" on TPU, "cudnn" on CUDA in bfloat16, "plain"
                # anywhere; "auto" takes the first of them that there is. [ours]
                "attention": "auto",
            },
            "data": {
                # parquet, JSONL, a folder or glob of them, FOLDER@SPLIT, or drawn problems,
                # "geometry:FAMILY=WEIGHT,...,seed=S".
                "path": EMBEDDED_DATA,
                # Column names; None: the first of the usual names that is there.
                "problem_key": placeholder(str),
                "answer_key": placeholder(str),
                "image_key": placeholder(str),
                # Passes over the data, each in another order, used where steps is not set.
                "epochs": placeholder(int),
                # Prompts longer than max_prompt_tokens: "drop" and list them, or "refuse" to start.
                # Never cut: a cut prompt loses image tokens.
                "overlong": "drop",
                "max_prompt_tokens": 1024,  # [csrs] counted with every image token
                # True: one broken image ends the run before it begins. False: its row is left out.
                "strict": False,
                # Text after every question, a space between.
                "instruction": "",
            },
            "rollout": {
                "n": 8,  # [csrs] maternal responses a prompt
                "temperature": 1.0,  # [verl]
                "top_p": 1.0,  # [verl]
                "top_k": 0,  # [verl] 0: all
                "max_tokens": 1536,  # [csrs] of a response, anchor and continuation together
                # Responses that a process decodes together; each one's place goes to the next that
                # waits.
                "rows": 128,  # [ours]
                # Devices that hold one copy of the parameters while sampling, within a process. 1:
                # each has its own, and no device waits for another at every token. [ours]
                "tensor": 1,
                # Most tokens between two looks at which responses have ended. [ours]
                "chunk": 16,
            },
            "retrace": {
                "m": 5,  # [csrs] re-inferences an anchor; 0: no retrace
                "rate": 0.7,  # [csrs] part of a response that is kept
                # Where a response is cut: "fraction" of its length [csrs Eq. 6], "random" fraction
                # [csrs A.5], at "token", the same position in all, or at rate times the mean length
                # of the others of its "group" [ours].
                "anchor": "fraction",
                "token": 26,
                # Standard deviation in pixel values of [0, 1]; the paper states none. [ours]
                "image_noise": 0.1,
                # Who shares a draw of noise: all samples of a "maternal" response [csrs Algorithm
                # 1] or of a "prompt", or each "sample" has its own.
                "noise_per": "maternal",
                # Whether re-inferences are rewarded and trained on too, from their anchor on and
                # with the image as it is. [csrs Algorithm 1] rewards maternal responses only.
                "train": False,
            },
            "reward": {
                # or "majority", "self_consistency", "label", "judged", or a function of your own as
                # "path/to/file.py:function"
                "kind": "softened",
                "gamma": 0.2,  # [csrs]
                "beta": 5.0,  # [csrs]
                "eps": 1e-6,  # [ours]
                "pool": "prompt",  # [csrs Eq. 8] re-inferences of the prompt; or of the "anchor"
                "include_self": True,  # [csrs Eq. 7] a response's own answer counts
                # Which answers are one vote: equal in value ("math"), or in spelling ("string").
                "equality": "math",
                # No answer earns nothing ("zero"), or is one more answer ("string", as the released
                # code of this family of methods has it).
                "no_answer": "zero",
                "format_weight": 0.0,  # [csrs] none
            },
            "judge": {
                # Judgements a response, averaged; 0: no judge. They are made for any reward.kind,
                # and count in "judged".
                "repeats": 0,
                # A Hugging Face folder or a checkpoint of ours; None: the model as it was before
                # training, which is the reference of the KL term. [self_judge]
                "path": placeholder(str),
                # Steps after which the policy becomes the judge, again and again; 0: never.
                "refresh": 0,
                # What the judge is told: the whole "rubric", or a "short" prompt for a judge that
                # was trained on it.
                "prompt": "rubric",
                "temperature": 1.0,  # [self_judge]
                "top_p": 0.9,  # [self_judge]
                "max_tokens": 1024,  # [self_judge] of a judgement
                # A judgement without a score is a 0 ("zero" [self_judge]), or is left out
                # ("exclude"), and with all of its judgements its response.
                "unread": "zero",
                # What scores modulate: self-"consistency" [self_judge], or "none": they decide
                # alone.
                "base": "consistency",
                # Share of the first answer above which its group is voted on; 1: never, as in the
                # paper. [self_judge] its code
                "hard_above": 0.85,
                "format_penalty": 0.5,  # [self_judge] for a response that is not laid out as asked
            },
            "grpo": {
                # Rewards against their group: less the "mean" [csrs Eq. 2], over "std" as well, or
                # "log_group", log q of [self_judge] taken literally, of which "mean" is the
                # centered form.
                "advantage": "mean",
                "alpha": 1.0,  # [ours] what rewards are multiplied by before; "std" undoes it
                "clip_low": 0.2,  # [verl]
                "clip_high": 0.2,  # [verl]
                "dual_clip": 3.0,  # [verl]
                "kl": 0.01,  # [csrs] low-variance estimator, in the loss
                "entropy": 0.0,  # [csrs]
                "aggregation": "token",  # [verl] or "sequence", "constant"
                "minibatches": 4,  # updates a step
                # Prompts, with all their responses, that a device takes at a time; None: its share.
                "micro_batch": placeholder(int),
                # What the backward pass computes again instead of keeping: "none", all of each
                # "layer", or all but the products with weights ("dots"). [ours]
                "remat": "none",
                # Keep the frozen reference in the host's memory between its uses.
                "offload_reference": False,
            },
            "lora": {
                # Rank of low-rank adapters, which alone are trained; 0: all parameters are. [ours]
                "rank": 0,
                "alpha": 16.0,  # adapters are multiplied by alpha / rank
                # Regular expression for the paths of adapted weights: here all of the decoder's;
                # "visual/blocks|model/layers" has the vision tower's as well.
                "targets": "model/layers",
            },
            "optimizer": {  # AdamW
                "lr": 1e-6,  # [csrs]
                "weight_decay": 0.01,  # [verl]
                "b1": 0.9,  # [verl]
                "b2": 0.999,  # [verl]
                # How both moments are stored: in 8 bytes a parameter ("float32"), 4 ("bfloat16") or
                # a little over 2 ("int8"). [ours]
                "moments": "float32",
                "clip_norm": 1.0,  # [verl]
                "warmup": 0,  # [verl] updates; constant afterwards
                # The run ends after this many updates in a row that were not finite. [ours]
                "max_skipped": 5,
            },
            # When a run counts as collapsed: one of the signs in every one of `patience` steps in a
            # row. Runs of the embedded model that go well show none of them. [ours]
            "collapse": {
                # "warn", "stop", or "rollback": end with the newest checkpoint from before.
                "action": "warn",
                "patience": 5,  # steps
                "entropy": 0.005,  # below: nats a token of the policy
                "unanimous": 0.9,  # above: share of questions whose responses all agree
                # Both are also what mastery looks like, and do not count where labels tell that
                # more than this share of the votes is right.
                "vote_accuracy": 0.8,
                # Votes are wrong, where labels tell, so far below those of the run's best steps.
                "vote_drop": 0.3,
                "looping": 0.3,  # above: share of responses that end in a loop of tokens
                "no_answer": 0.5,  # above: share of responses without an answer
            },
            "checkpoint": {
                "every": 20,  # [csrs] steps; 0: only at the end
                "keep": 2,  # newest ones; the best by evaluation stays as well
            },
            "eval": {
                # "rows", or a benchmark that jaxevolve.evaluate knows, such as "mathvision". Its
                # questions are put as in training, with data.instruction.
                "benchmark": "rows",
                # Held-out questions, as data.path, or the benchmark's file.
                "path": f"{EMBEDDED_DATA},seed=1",
                "every": 20,  # steps; 0: only before and after
                "every_epochs": placeholder(int),  # the same in epochs, used where it is set
                "questions": 256,  # the first of them; 0: all
                "n": 8,  # responses a question, beside the greedy one
            },
        }
    )


def embedded(config: ConfigDict) -> None:
    """The embedded model on drawn geometry: two CPU cores, minutes, and a real learning curve.

    It ends at 20 steps: by step 40 samples are a little better still, but in some families the
    greedy answer has become worse than it was.
    """
    config.update(steps=20, batch=16)
    config.data.max_prompt_tokens = 256
    config.rollout.max_tokens = 64
    config.grpo.minibatches = 2
    config.optimizer.lr = 1e-4
    config.checkpoint.every = 10
    config.eval.every = 10


def smoke(config: ConfigDict) -> None:
    """The shortest run that goes through everything."""
    embedded(config)
    config.update(steps=5, batch=8)
    config.grpo.minibatches = 1
    config.checkpoint.every = 5
    config.eval.every = 5
    config.eval.questions = 64


def released(config: ConfigDict, size: str) -> None:
    """Qwen2.5-VL at full size on Geometry3K; paths are those of folders you have downloaded."""
    config.model.path = f"Qwen2.5-VL-{size}-Instruct"
    config.model.dtype = "bfloat16"
    config.data.path = "geometry3k/data/train-*.parquet"
    config.data.instruction = THINK_THEN_BOX
    config.eval.path = "geometry3k/data/test-*.parquet"
    config.eval.questions = 0
    config.rollout.update(rows=512, chunk=64)
    config.grpo.micro_batch = 1
    config.grpo.remat = "layer"


def pick(scale: str, scales: Mapping[str, Callable[[ConfigDict], None]]) -> ConfigDict:
    """The defaults changed by one of a recipe's scales.

    Raises:
        UserError: there is no such scale.
    """
    if scale not in scales:
        near = nearest(scale, scales)
        advice = f"did you mean {near}?" if near else f"there is {', '.join(scales)}"
        raise UserError(f"config scale {scale!r} is unknown; {advice}")
    config = defaults()
    scales[scale](config)
    return config
