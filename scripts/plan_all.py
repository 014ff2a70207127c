"""Plans the paper's setting on every topology of docs/plans, and writes the tables there.

    python scripts/plan_all.py [PART ...]

Needs the extra `plan`. A PART, such as 7b or h100, chooses the plans whose name holds it; the
summary takes in whatever plans have been made. What compilers have found is kept beside the tables
(docs/plans/compiled.json), so that only what has changed is compiled again: half a minute a setting
for a GPU, two to five minutes of a core for a TPU.
"""

import json
import sys
from pathlib import Path

import jax

from jaxevolve.planning import table, work
from jaxevolve.planning.chips import GIB, parse_topology
from jaxevolve.planning.planner import Plan, assumed_lengths
from jaxevolve.runtime import cli

ROOT = Path(__file__).resolve().parents[1]
PLANS = ROOT / "docs" / "plans"
SHARE = 0.4

# What makes it fit where the setting as it is does not.
FITTED = {
    ("7b", "v6e:4x4"): {"rollout.tensor": 4, "rollout.rows": 64},
    ("7b", "v5e:4x4"): {"lora.rank": 16, "rollout.tensor": 4, "rollout.rows": 32},
    ("7b", "2xv5e:4x4"): {"lora.rank": 16, "rollout.tensor": 4, "rollout.rows": 32},
    ("3b", "v5e:4x4"): {"rollout.tensor": 2, "rollout.rows": 64},
    ("3b", "2xv5e:4x4"): {"rollout.tensor": 2, "rollout.rows": 64},
}
TOPOLOGIES = ("a100:8", "h100:8", "v5p:2x2x1", "v6e:4x4", "v5e:4x4", "2xv5e:4x4")


def main(parts: list[str]) -> None:
    """Makes the plans that are asked for, then the summary."""
    jax.config.update("jax_platforms", "cpu")
    for topology in TOPOLOGIES:
        for size in ("7b", "3b"):
            for flags in ({}, FITTED.get((size, topology))):
                name = f"{size}-{topology.replace(':', '-')}" + ("-fitted" if flags else "")
                if flags is not None and (not parts or any(part in name for part in parts)):
                    make(name, size, topology, flags)
    summarize()


def make(name: str, size: str, topology: str, flags: dict) -> None:
    """Writes one plan as NAME.md, and its numbers for the summary as NAME.json."""
    config = cli.load_config(str(ROOT / "configs" / "csrs.py") + f":qwen2_5_vl_{size}")
    with config.unlocked():
        config.update_from_flattened_dict(flags)
    plan = Plan(
        f"csrs-qwen2_5_vl_{size}",
        config,
        parse_topology(topology),
        assumed_lengths(config),
        SHARE,
        PLANS / "compiled.json",
    )
    changed = [f"--config.{key}={value}" for key, value in flags.items()]
    command = (
        "python -m jaxevolve.plan --cache=docs/plans/compiled.json "
        f"--config=configs/csrs.py:qwen2_5_vl_{size} --topology={topology} {' '.join(changed)}"
    )
    PLANS.mkdir(parents=True, exist_ok=True)
    (PLANS / f"{name}.md").write_text(
        f"    {command.strip()}\n\n{table.text(plan)}\n", encoding="utf-8"
    )
    seconds = plan.step_seconds / SHARE
    numbers = {
        "setting": f"{size.upper()} on {topology}",
        "flags": [flag.removeprefix("--config.") for flag in changed],
        "mesh": list(plan.mesh),
        "needs": plan.needs,
        "room": plan.topology.chip.memory,
        "seconds": seconds,
        "tokens_per_second": work.sampled_tokens(config, plan.lengths) / seconds,
    }
    (PLANS / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {max(plan.needs.values()) / GIB:.1f} GiB", flush=True)


def summarize() -> None:
    """Writes README.md: a line a plan."""
    rows = []
    made = [path for path in PLANS.glob("*.json") if path.name != "compiled.json"]
    order = {name.replace(":", "-"): i for i, name in enumerate(TOPOLOGIES)}
    key = lambda path: (path.stem[:2] != "7b", order[path.stem[3:].removesuffix("-fitted")], path)
    for path in sorted(made, key=key):
        plan = json.loads(path.read_text(encoding="utf-8"))
        most = max(plan["needs"], key=plan["needs"].get)
        rows.append(
            [
                f"[{plan['setting']}]({path.stem}.md)",
                " ".join(f"`{flag}`" for flag in plan["flags"]),
                table.shape(plan["mesh"]),
                table.gib(plan["needs"][most]),
                table.gib(plan["room"]),
                most,
                "yes" if plan["needs"][most] <= plan["room"] else "no",
                f"{plan['seconds']:.0f}",
                f"{plan['tokens_per_second']:.0f}",
            ]
        )
    header = ["setting", "flags", "mesh", "GiB", "of", "most in", "fits", "s a step", "tokens/s"]
    text = (
        "# The paper's setting on machines that are not there\n\n"
        "By `python scripts/plan_all.py`: Table 6's setting, compiled. GiB on a device at the "
        f"fullest moment of a step; time at {SHARE:.0%} of the chips' limits, with the lengths "
        "that each plan states. What the columns mean: [plan.md](../plan.md).\n\n"
    )
    (PLANS / "README.md").write_text(text + table.markdown(header, rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
