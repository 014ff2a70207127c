"""The harness that compares speeds: what it keeps, rejects and writes. Nothing is timed."""

import json
import sys
from pathlib import Path

import pytest
from absl import flags

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import bench  # noqa: E402
from jaxevolve.runtime import cli  # noqa: E402
from jaxevolve.runtime.errors import UserError  # noqa: E402
from speed import comparisons, harness, table, work  # noqa: E402
from speed.turnstile import Turnstile  # noqa: E402


class Side:
    """Answers from a list of (CPU-seconds, wall-clock seconds), and notes in which order."""

    def __init__(self, name, answers, order):
        self.name, self.answers, self.order = name, list(answers), order

    def call(self, method, seed):
        assert method == "run"
        self.order.append(self.name)
        cpu, wall = self.answers.pop(0)
        return {"cpu": cpu, "wall": wall, "peak_mb": 1.0, "result": {"bytes": 10 * cpu}}


def sides(ours, peer):
    order = []
    return {"ours": Side("ours", ours, order), "peer": Side("peer", peer, order)}, order


def measured(ours, peer, pairs):
    children, _ = sides(ours, peer)
    found = harness.measure(children, pairs)
    found.loading, found.first, found.load = {"ours": 1, "peer": 2}, {"ours": 9, "peer": 4}, [1, 2]
    return found


def row(**changes):
    given = {
        "name": "thing",
        "goal": 2.0,
        "over": "peer.cpu",
        "under": "ours.cpu",
        "peer": "a peer",
        "work": "some work",
    }
    return harness.Row(**given | changes)


def test_the_sides_take_turns_in_going_first():
    children, order = sides([(1, 1)] * 3, [(2, 2)] * 3)
    harness.measure(children, 3)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]


def test_a_pair_with_a_disturbed_side_is_made_again():
    found = measured([(1, 1), (1, 1), (1, 1)], [(2, 2), (9, 18), (3, 3)], 2)
    assert [r["peer"]["cpu"] for r in found.rounds] == [2, 3]
    assert (found.rejected, found.disturbed) == (1, 0)


def test_on_a_machine_that_never_rests_the_calmest_pairs_stay_and_are_counted():
    walls = [(1, 2), (1, 1.5), (1, 3), (1, 1.2)]
    found = measured([(1, 1)] * 4, walls, 2)
    assert sorted(r["peer"]["wall"] for r in found.rounds) == [1.2, 1.5]
    assert (found.rejected, found.disturbed) == (2, 2)


def test_a_row_is_the_quotient_within_each_pair():
    made = harness.result(row(), measured([(1, 1), (2, 2), (1, 1)], [(2, 2), (2, 2), (5, 5)], 3))
    assert (made["median"], made["min"], made["max"]) == (2.0, 1.0, 5.0)
    assert made["reached"]
    assert made["cpu"]["ours"] == {"median": 1, "min": 1, "max": 2}
    assert made["wall"]["quotient"]["median"] == 2.0
    assert made["compile_cpu"] == {"peer": 2, "ours": 8}
    assert {"name", "goal", "median", "min", "max", "peer", "cpu", "wall"} <= made.keys()
    assert made["pairs"] == 3
    assert made["versions"]["jax"]
    json.dumps(made)


@pytest.mark.parametrize(
    ("changes", "median", "reached"),
    [
        ({"goal": 2.1}, 2.0, False),
        ({"goal": 2.0, "most": True}, 2.0, True),
        ({"goal": 1.9, "most": True}, 2.0, False),
        ({"over": "peer.bytes", "under": "ours.bytes"}, 2.0, True),
        ({"over": "peer.bytes", "under": None, "goal": 30, "most": True}, 20.0, True),
    ],
)
def test_goals_from_below_from_above_and_of_what_a_side_returns(changes, median, reached):
    made = harness.result(row(**changes), measured([(1, 1)], [(2, 2)], 1))
    assert (made["median"], made["reached"]) == (median, reached)


def test_figures_that_do_not_agree_stop_a_comparison():
    comparisons.same({"greedy_differ": 0, "logprob_gap": 1e-4})
    for wrong in ({"greedy_differ": 1}, {"logprob_gap": 2e-4}, {"gradient_gap": float("nan")}):
        with pytest.raises(RuntimeError, match="do not agree"):
            comparisons.same(wrong)


def test_rows_of_other_names_stay_in_the_file(tmp_path):
    file = tmp_path / "rows.json"
    table.keep(file, [{"name": "a", "median": 1}, {"name": "b", "median": 2}])
    table.keep(file, [{"name": "c", "median": 3}, {"name": "a", "median": 4}])
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert [(r["name"], r["median"]) for r in kept] == [("a", 4), ("b", 2), ("c", 3)]


def test_the_table_goes_between_the_marks_of_a_document(tmp_path):
    rows = [harness.result(row(), measured([(1, 1)], [(3, 3)], 1))]
    document = tmp_path / "document.md"
    document.write_text(f"before\n{table.BEGIN}\nstale\n{table.END}\nafter\n", encoding="utf-8")
    table.insert(document, rows)
    text = document.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| thing | ≥ 2 | **3.00** |" in text
    assert "stale" not in text
    document.write_text("no marks", encoding="utf-8")
    with pytest.raises(UserError, match="BENCH BEGIN"):
        table.insert(document, rows)


def test_the_document_has_the_marks():
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert text.index(table.BEGIN) < text.index(table.END)


def test_every_promised_name_has_a_row_with_a_goal():
    folders = {(size, image): "folder" for size in ("S", "M") for image in (True, False)}
    chosen = comparisons.choose(comparisons.Models(folders, "scratch"), "S").values()
    rows = [row for comparison in chosen for row in comparison.rows]
    promised = [
        "maternal_rollout",
        "maternal_rollout_shared_peer",
        "reinference",
        "ragged",
        "grpo_update",
        "grpo_update_padded",
        "logprob_memory",
        "sampling",
        "grpo_step_trl",
        "grpo_step_tunix",
        "csrs_step",
        "csrs_over_majority",
        "compile",
    ]
    assert set(promised) <= {row.name for row in rows}
    assert len({row.name for row in rows}) == len(rows)
    for comparison in chosen:
        for row in comparison.rows:
            named = {figure.split(".")[0] for figure in (row.over, row.under) if figure}
            assert named <= comparison.sides.keys()


def test_a_name_that_does_not_exist_is_refused_before_anything_starts():
    values = cli.parse(["bench.py", "--only=maternal_rolout"], bench.define)
    assert isinstance(values, flags.FlagValues)
    with pytest.raises(UserError, match="maternal_rolout"):
        bench.main(values)


def test_a_child_answers_with_result_and_cost_and_tells_of_errors():
    child = harness.Child("collections:Counter", harness.cores()[-1])
    try:
        answer = child.call("total")
        assert answer["result"] == 0
        assert min(answer["cpu"], answer["wall"]) >= 0
        assert answer["since_start"] > 0
        with pytest.raises(RuntimeError, match="TypeError"):
            child.call("total", wrong=1)
        assert child.call("total")["result"] == 0
    finally:
        child.close()


def test_a_turnstile_lets_one_step_through_at_a_time():
    steps = []

    def train():
        for number in range(2):
            steps.append(number)
            gate.wait()

    gate = Turnstile(train)
    for number in range(2):
        gate.step()
        assert steps == list(range(number + 1))
    with pytest.raises(RuntimeError, match="ended by itself"):
        gate.step()


def test_majority_rewards_the_most_frequent_box_of_each_group():
    texts = [f"\\boxed{{{1 if i < 5 else 2}}}" for i in range(work.GROUP)]
    nothing = ["no box"] * work.GROUP
    assert work.majority(texts + nothing) == [1.0] * 5 + [0.0] * (3 + work.GROUP)
