"""What is compared with what."""

from pathlib import Path
from typing import Any

from speed import work
from speed.harness import Comparison, Row


def agree(figures: dict[str, Any]) -> dict[str, Any]:
    """Passes figures of agreement on, or says that there is none."""
    limits = {"greedy_differ": 0, "logprob_gap": 1e-4, "sampled_logprob_gap": 1e-4}
    for name, limit in limits.items():
        if figures.get(name, 0) > limit:
            raise RuntimeError(f"the sides do not agree: {figures}")
    return figures


def maternal(folders: dict[str, str], size: str, new: int) -> Comparison:
    """Maternal responses: 6 prompts x 8."""
    common = {"folder": folders[size], "size": size, "image": True, "n": work.GROUP, "new": new}
    done = f"{size}: {work.PROMPTS} x {work.GROUP} responses, {work.PROMPT} + {new} tokens, image"
    suffix = "" if size == "S" else f"/{size}"

    def gate(sides: dict[str, Any]) -> dict[str, Any]:
        file = folders[size] + ".gate.npz"
        sides["ours"].call("gate", out=file)
        found = {}
        for side in ("stock", "shared"):
            figures = agree(sides[side].call("gate", given=file)["result"])
            found |= {f"{side}_{name}": value for name, value in figures.items()}
        return found

    return Comparison(
        sides={
            "ours": ("speed.ours:Rollout", common | {"rows": work.PROMPTS * work.GROUP}),
            "stock": ("speed.hugging_face:Rollout", common | {"shared": False}),
            "shared": ("speed.hugging_face:Rollout", common | {"shared": True}),
        },
        rows=(
            Row(f"maternal_rollout{suffix}", 3.0, "stock", "ours", "transformers generate", done),
            Row(
                f"maternal_rollout_shared_peer{suffix}",
                2.0,
                "shared",
                "ours",
                "transformers generate after one prefill a prompt, its cache repeated",
                done,
            ),
        ),
        gate=gate,
    )


def build(folder: Path, make: Any) -> list[Comparison]:
    """All comparisons; `make` (folder, size, image) writes a model."""
    folders = {}
    for size in ("S", "tiny"):
        folders[size] = str(folder / size)
        make(folders[size], size, True)
    return [maternal(folders, "S", work.NEW)]
