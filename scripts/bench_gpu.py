"""Compares jaxevolve with transformers on one GPU: a random model in the shape of Qwen2.5-VL-3B.

    python scripts/bench_gpu.py [--chip=h200] [--runs=N] [--out=FILE]

Prefill, decoding at 48 and at 256 rows, and an update, each side alone on the device, in wall time
after a warm-up, with the share of the chip's limits that is reached. --size=tiny --chip=cpu only
shows that it runs. The extra `bench`, with a torch and a JAX for CUDA.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import flags

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from jaxevolve.planning.chips import parse_topology  # noqa: E402
from jaxevolve.runtime import cli  # noqa: E402
from jaxevolve.runtime.errors import UserError  # noqa: E402
from speed import harness, work  # noqa: E402

HALF = 0.1  # nats that log-probabilities of two bfloat16 programs may differ by at most, on average
EXACT = 1e-4


def define(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string("chip", "h200", "a100, h100, h200 or cpu", flag_values=values)
    flags.DEFINE_enum("size", "3B", ["3B", "tiny"], "the model", flag_values=values)
    flags.DEFINE_integer("runs", 5, "timed runs", lower_bound=1, flag_values=values)
    flags.DEFINE_string("out", None, "JSON file", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Runs all cases and prints a line for each."""
    chip = parse_topology(f"{values.chip}:1").chip
    size = values.size
    device, dtype = ("cpu", "float32") if chip.platform == "cpu" else ("cuda", "bfloat16")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/model"
        maker = harness.Child("speed.ours:Models", None)
        maker.call("make", out=folder, size=size, image=True, dtype="float32")
        maker.close()
        for name, case in cases(folder, size, device, dtype).items():
            sides = {side: alone(*case[side], values.runs, scratch) for side in ("ours", "peer")}
            limit = EXACT if dtype == "float32" else HALF
            if not (gap := sides["peer"].pop("gap")) <= limit:
                raise UserError(f"{name}: the sides differ by {gap}, more than {limit}; see above")
            median = {side: statistics.median(taken["wall"]) for side, taken in sides.items()}
            row = {
                "name": name,
                "ratio": median["peer"] / median["ours"],
                "wall": {side: taken["wall"] for side, taken in sides.items()},
                "tokens_per_second": {side: case["tokens"] / s for side, s in median.items()},
                "share_of_flops": {s: case["flops"] / t / chip.flops for s, t in median.items()},
                "share_of_bandwidth": {
                    s: case["bytes"] / t / chip.bandwidth for s, t in median.items()
                },
                "gap": gap,
                "versions": harness.versions(),
            }
            rows.append(row)
            print(
                f"{name}: {row['ratio']:.2f} times as fast as transformers; "
                f"{row['tokens_per_second']['ours']:.0f} tokens a second, "
                f"{row['share_of_flops']['ours']:.1%} of the FLOP/s and "
                f"{row['share_of_bandwidth']['ours']:.1%} of the bandwidth of {chip.name}; peer "
                f"{row['tokens_per_second']['peer']:.0f}",
                flush=True,
            )
    if values.out:
        Path(values.out).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def cases(folder: str, size: str, device: str, dtype: str) -> dict[str, dict[str, Any]]:
    """What is timed: both sides, and the tokens, FLOPs and bytes that it needs at least."""
    weights = parameters(work.SIZES[size])
    prompt, new = (512, 256) if size == "3B" else (64, 8)
    found = {}
    for name, prompts, n, tokens, more in (
        ("prefill", 48, 1, 2 * prompt, 1),
        ("decode, 48 rows", 6, work.GROUP, prompt, new),
        ("decode, 256 rows", 32, work.GROUP, prompt, new),
    ):
        common = {
            "folder": folder,
            "size": size,
            "image": True,
            "n": n,
            "new": more,
            "prompts": prompts,
            "tokens": tokens,
            "dtype": dtype,
        }
        sampled, read = prompts * n * more, prompts * tokens
        found[name] = {
            "ours": ("speed.ours:Rollout", common | {"rows": prompts * n}),
            "peer": ("speed.gpu:Rollout", common | {"shared": False, "device": device}),
            "tokens": read if more == 1 else sampled,
            "flops": 2 * weights * (read + sampled),
            # Every step reads all weights and, per row, the keys so far; prompts' keys once.
            "bytes": more * (2 * weights + key_bytes(size) * (read + prompts * n * more / 2)),
        }
    prompts = 8
    common = {"folder": folder, "size": size, "prompts": prompts}
    own = {"ragged": False, "shared": True, "micro": 1, "dtype": dtype}
    tokens = prompts * work.GROUP * (work.PROMPT + work.NEW)
    found["update"] = {
        "ours": ("speed.ours:Update", common | own),
        "peer": ("speed.gpu:Update", common | {"micro": work.GROUP, "device": device}),
        "tokens": tokens,
        # Forward of the reference, forward and backward of the policy, of every padded token.
        "flops": 8 * weights * tokens,
        "bytes": 0.0,
    }
    return found


def parameters(size: work.Size) -> int:
    """Weights of the decoder that a token is multiplied with, the head included."""
    width = size.hidden // size.heads
    attention = size.hidden * width * (2 * size.heads + 2 * size.kv_heads)
    layer = attention + 3 * size.hidden * size.feed_forward
    return size.layers * layer + size.vocabulary * size.hidden


def key_bytes(name: str) -> int:
    """Bytes of a token's keys and values in bfloat16."""
    size = work.SIZES[name]
    return 4 * size.layers * size.kv_heads * (size.hidden // size.heads)


def alone(kind: str, arguments: dict[str, Any], runs: int, scratch: str) -> dict[str, Any]:
    """One side, with the device for itself: seconds of its runs, and how far it is from ours."""
    child = harness.Child(kind, None, **arguments)
    file, ours = f"{scratch}/case.npz", kind.startswith("speed.ours")
    try:
        gap = None
        if kind.endswith("Update"):
            if ours:
                child.call("make", out=file)
            child.call("take", given=file)
        elif ours:
            child.call("gate", out=file)
        else:
            gap = child.call("gate", given=file)["result"]["mean_logprob_gap"]
        first = child.call("run", seed=999)["result"]
        if kind.endswith("Update"):
            own = Path(f"{scratch}/loss")
            if ours:
                own.write_text(str(first["loss"]), encoding="utf-8")
            else:
                gap = abs(first["loss"] - float(own.read_text(encoding="utf-8")))
        wall = [child.call("run", seed=seed)["wall"] for seed in range(runs)]
    finally:
        child.close()
    return {"wall": wall, "gap": gap}


if __name__ == "__main__":
    cli.run(main, define, __doc__)
