"""What is compared with what, and what is wanted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from speed import work
from speed.harness import Child, Comparison, Row

LOGPROBS = 1e-4  # largest difference of a log-probability, in nats
LOSS, GRADIENTS = 1e-5, 1e-3  # largest differences, relative; of gradients to a tensor's largest

Sides = dict[str, Child]
GENERATE = "transformers generate (sdpa, dynamic cache)"
ONCE = "transformers generate after one prefill a prompt, its cache repeated"


def same(figures: dict[str, Any]) -> dict[str, Any]:
    """Passes figures of agreement on, or says that there is none."""
    limits = {
        "greedy_differ": 0,
        "logprob_gap": LOGPROBS,
        "mean_logprob_gap": LOGPROBS,
        "sampled_logprob_gap": LOGPROBS,
        "loss_gap": LOSS,
        "norm_gap": LOSS * 10,
        "gradient_gap": GRADIENTS,
    }
    for name, value in figures.items():
        if not value <= limits[name]:
            raise RuntimeError(f"the sides do not agree: {name} {value} is above {limits[name]}")
    return figures


def against(file: str, *peers: str) -> Callable[[Sides], dict[str, Any]]:
    """A gate: our samples in a file, and what each of the peers finds there."""

    def gate(sides: Sides) -> dict[str, Any]:
        sides["ours"].call("gate", out=file)
        return {peer: same(sides[peer].call("gate", given=file)["result"]) for peer in peers}

    return gate


@dataclass(frozen=True)
class Models:
    """Folders of the models by (size, whether it has vision), and a place for what gates write."""

    folders: dict[tuple[str, bool], str]
    scratch: str

    def common(self, size: str, image: bool = True) -> dict[str, Any]:
        """Arguments of every side."""
        return {"folder": self.folders[size, image], "size": size}


def maternal(models: Models, size: str) -> Comparison:
    """Maternal responses: 6 prompts x 8."""
    new = work.NEW // 2 if size == "M" else work.NEW
    common = models.common(size) | {"image": True, "n": work.GROUP, "new": new}
    done = f"{size}, image, {work.PROMPTS} x {work.GROUP} responses, {work.PROMPT} + {new} tokens"
    variant = "/M" if size == "M" else ""
    return Comparison(
        sides={
            "ours": ("speed.ours:Rollout", common | {"rows": work.ROWS}),
            "stock": ("speed.hugging_face:Rollout", common | {"shared": False}),
            "once": ("speed.hugging_face:Rollout", common | {"shared": True}),
        },
        rows=(
            Row(f"maternal_rollout{variant}", 3.0, "stock.cpu", "ours.cpu", GENERATE, done),
            Row(f"maternal_rollout_shared_peer{variant}", 2.0, "once.cpu", "ours.cpu", ONCE, done),
        ),
        gate=against(f"{models.scratch}/maternal.npz", "stock", "once"),
    )


def reinference(models: Models, size: str) -> Comparison:
    """Re-inferences of 3 prompts: 24 anchors, 120 rows."""
    prompts = 3
    common = models.common(size) | {"prompts": prompts}
    rows = prompts * work.GROUP * work.SAMPLES
    done = (
        f"{size}, image, {prompts} prompts x 40 rows, {work.PROMPT} + {work.KEPT} kept + "
        f"{work.NEW - work.KEPT} tokens, noise an anchor"
    )
    return Comparison(
        sides={
            "ours": ("speed.ours:Reinference", common | {"rows": rows, "chunk": work.NEW}),
            "peer": ("speed.hugging_face:Reinference", common),
        },
        rows=(
            Row(
                "reinference",
                2.5,
                "peer.cpu",
                "ours.cpu",
                "transformers generate after one prefill an anchor, its cache repeated",
                done,
            ),
        ),
        gate=against(f"{models.scratch}/reinference.npz", "peer"),
    )


def ragged(models: Models, size: str) -> Comparison:
    """Responses of random length, in fixed batches and through the engine."""
    prompts = 36
    common = models.common(size) | {"prompts": prompts, "rows": work.ROWS}
    done = (
        f"{size}, image, {prompts} x {work.GROUP} responses of at most {work.NEW} tokens on "
        f"{work.ROWS} rows, 0.4 of the slots of fixed batches used"
    )
    return Comparison(
        sides={
            "engine": ("speed.ourselves:Ragged", common | {"at_once": prompts}),
            "fixed": ("speed.ourselves:Ragged", common | {"at_once": work.PROMPTS}),
        },
        rows=(
            Row("ragged", 2.0, "fixed.cpu", "engine.cpu", "our own fixed batches", done),
            Row(
                "ragged/slot_steps",
                1.2,
                "engine.row_steps",
                "engine.tokens",
                "the ideal: a slot-step a token",
                done,
                most=True,
            ),
        ),
    )


def grpo_update(models: Models, size: str, lengths: str) -> Comparison:
    """One update with its reference pass: 2 prompts x 8."""
    prompts = 2
    common = models.common(size) | {"prompts": prompts}
    file, gradients = (f"{models.scratch}/{size}.{lengths}{end}" for end in (".npz", ".gradients"))

    def prepare(sides: Sides) -> None:
        sides["ours"].call("make", out=file)
        for side in sides.values():
            side.call("take", given=file)

    def gate(sides: Sides) -> dict[str, Any]:
        peer, found = None, {}
        for name in [name for name in sides if name != "peer"]:
            own = sides[name].call("gate", out=f"{gradients}.{name}")["result"]
            peer = sides["peer"].call("gate", given=f"{gradients}.{name}")["result"]
            gap = lambda key: abs(own[key] / peer[key] - 1)  # noqa: B023
            found[name] = same(
                {
                    "loss_gap": gap("loss"),
                    "norm_gap": gap("grad_norm"),
                    "gradient_gap": peer["gradient_gap"],
                }
            )
        return found

    own = common | {"ragged": lengths == "ragged"}
    sides = {"ours": ("speed.ours:Update", own | {"shared": True, "micro": 1})}
    told = "ragged responses (mean 72)" if lengths == "ragged" else f"{work.NEW} tokens"
    done = f"{size}, image, {prompts} x {work.GROUP} responses, {work.PROMPT} + {told}"
    torch = "transformers + torch (sdpa, 4 rows at a time, sorted by length, fused AdamW)"
    if lengths == "ragged":
        rows = [Row("grpo_update", 1.8, "peer.cpu", "ours.cpu", torch, done)]
    else:
        variant = "M" if size == "M" else "full"
        rows = [Row(f"grpo_update/{variant}", 1.8, "peer.cpu", "ours.cpu", torch, done)]
        if size != "M":
            sides["padded"] = ("speed.ours:Update", own | {"shared": False, "micro": 4})
            rows += [Row("grpo_update_padded", 1.2, "peer.cpu", "padded.cpu", torch, done)]
    sides["peer"] = ("speed.torch_update:Update", common | {"micro": 4})
    return Comparison(sides, rows, gate, prepare)


def logprob_memory() -> Comparison:
    """Log-probabilities with gradients, V = 151,936."""
    done = "1,024 tokens, D 512, V 151,936, float32, value and gradients"

    def gate(sides: Sides) -> dict[str, Any]:
        ours, naive = (np.array(sides[s].call("gate")["result"]) for s in ("ours", "naive"))
        return same({"loss_gap": float(np.abs(ours / naive - 1).max())})

    return Comparison(
        sides={
            "ours": ("speed.ourselves:Logprobs", {"naive": False}),
            "naive": ("speed.ourselves:Logprobs", {"naive": True}),
        },
        rows=(
            Row(
                "logprob_memory",
                8.0,
                "naive.temp_bytes",
                "ours.temp_bytes",
                "log_softmax of all logits in JAX, temporary memory of the program",
                done,
            ),
            Row(
                "logprob_memory/time",
                1.05,
                "ours.cpu",
                "naive.cpu",
                "log_softmax of all logits in JAX",
                done,
                most=True,
            ),
        ),
        gate=gate,
    )


def sampling() -> Comparison:
    """Drawing of tokens beside the product that makes their logits, V = 151,936."""
    return Comparison(
        sides={
            "draw": ("speed.ourselves:Vocabulary", {"draws": True}),
            "head": ("speed.ourselves:Vocabulary", {"draws": False}),
        },
        rows=(
            Row(
                "sampling",
                0.1,
                "draw.cpu",
                "head.cpu",
                "the head's product",
                f"{work.ROWS} rows, D 2,048, V 151,936, float32, temperature 1",
                most=True,
            ),
        ),
    )


def grpo_step_trl(models: Models, size: str) -> Comparison:
    """A whole step of majority voting, one image a prompt."""
    common = models.common(size)
    own = {"image": True, "recipe": "majority", "rows": work.ROWS, "chunk": work.NEW}
    peer = lambda compact: (
        "speed.trl_step:Step",
        common | {"compact": compact, "out": f"{models.scratch}/trl"},
    )
    done = f"{size}, image, {work.PROMPTS} x {work.GROUP} responses, {work.PROMPT} + {work.NEW}"
    return Comparison(
        sides={
            "ours": ("speed.ours:Step", common | own),
            "stock": peer(False),
            "compact": peer(True),
        },
        rows=(
            Row("grpo_step_trl", 2.5, "stock.cpu", "ours.cpu", "TRL GRPOTrainer", done),
            Row(
                "grpo_step_trl_compact",
                2.0,
                "compact.cpu",
                "ours.cpu",
                "TRL GRPOTrainer that scores completions only, as it does on a GPU",
                done,
            ),
        ),
        gate=against(f"{models.scratch}/trl.npz", "stock", "compact"),
        gate_first=True,
    )


def grpo_step_tunix(models: Models, size: str) -> Comparison:
    """A whole step of majority voting on text."""
    common = models.common(size, image=False)
    own = {"image": False, "recipe": "majority", "rows": work.ROWS, "chunk": work.NEW}
    done = f"{size}, text, {work.PROMPTS} x {work.GROUP} responses, {work.PROMPT} + {work.NEW}"
    return Comparison(
        sides={
            "ours": ("speed.ours:Step", common | own),
            "peer": ("speed.tunix_step:Step", common),
        },
        rows=(
            Row("grpo_step_tunix", 2.5, "peer.cpu", "ours.cpu", "google-tunix GRPOLearner", done),
        ),
        gate=against(f"{models.scratch}/tunix.npz", "peer"),
        gate_first=True,
    )


def csrs_step(models: Models, size: str) -> Comparison:
    """A whole CSRS step, and what it adds to one of majority voting."""
    common = models.common(size)
    own = common | {"image": True, "rows": work.ROWS, "chunk": work.NEW}
    done = (
        f"{size}, image, {work.PROMPTS} prompts x (8 responses + 40 re-inferences), "
        f"{work.PROMPT} + {work.NEW}, update on 8"
    )
    return Comparison(
        sides={
            "ours": ("speed.ours:Step", own | {"recipe": "csrs"}),
            "majority": ("speed.ours:Step", own | {"recipe": "majority"}),
            "peer": ("speed.torch_update:Step", common | {"micro": 4}),
        },
        rows=(
            Row(
                "csrs_step",
                3.0,
                "peer.cpu",
                "ours.cpu",
                "the same step on transformers generate and torch, one prefill a prompt and anchor",
                done,
            ),
            Row(
                "csrs_over_majority",
                1.6,
                "ours.cpu",
                "majority.cpu",
                "our own step of majority voting, 8 responses",
                done,
                most=True,
            ),
        ),
        gate=against(f"{models.scratch}/csrs.npz", "peer"),
        gate_first=True,
    )


def programs(models: Models, size: str) -> Comparison:
    """Compilation in an epoch of random lengths and image sizes, and again from the cache."""
    arguments = models.common(size) | {"cache": f"{models.scratch}/programs"}
    side = lambda cold: ("speed.ourselves:Programs", arguments | {"cold": cold})
    done = (
        f"{size}, image, four CSRS steps of 6 prompts x (8 responses + 40 re-inferences), prompts "
        "of 70 to 128 tokens, images of 56 to 112 pixels, responses of at most 32 tokens"
    )
    itself = "none: CPU-seconds and counts of our own"
    return Comparison(
        sides={"cold": side(True), "again": side(False)},
        rows=(
            Row(
                "compile", 10.0, "cold.largest", None, f"{itself}; the largest program", done, True
            ),
            Row(
                "compile/shapes",
                6.0,
                "cold.shapes",
                None,
                f"{itself}; the function that has most",
                done,
                True,
            ),
            Row(
                "compile/second_start",
                5.0,
                "again.extra",
                None,
                f"{itself}; a second process with the persistent cache",
                done,
                True,
            ),
        ),
        once=True,
    )


def choose(models: Models, size: str) -> dict[str, Comparison]:
    """All comparisons in the order of the table; the larger model where the first is S."""
    larger = {"maternal, M": maternal(models, "M"), "update, M": grpo_update(models, "M", "full")}
    return {
        "maternal": maternal(models, size),
        "reinference": reinference(models, size),
        "ragged": ragged(models, size),
        "update, ragged": grpo_update(models, size, "ragged"),
        "update, full": grpo_update(models, size, "full"),
        "log-probabilities": logprob_memory(),
        "sampling": sampling(),
        "step, TRL": grpo_step_trl(models, size),
        "step, tunix": grpo_step_tunix(models, size),
        "step, CSRS": csrs_step(models, size),
        "compile": programs(models, size),
    } | (larger if size == "S" else {})
