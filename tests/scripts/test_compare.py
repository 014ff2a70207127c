"""The comparison of recipes: arms, what is run, the table's numbers and the page. No training."""

import json
import re
import sys
from pathlib import Path

import pytest
from absl import flags

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import ablate  # noqa: E402
import compare  # noqa: E402
from comparison import command, page, results, runner, table  # noqa: E402
from comparison.arms import TABLES, Arm, parse  # noqa: E402
from comparison.runner import Run  # noqa: E402
from jaxevolve.runtime import cli  # noqa: E402
from jaxevolve.runtime.errors import UserError  # noqa: E402

STEPS = "--config.steps=4"
# What stands for training: it writes what a run leaves behind, or fails where it is told to.
STUB = """
import json, pathlib, sys
words = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(words["workdir"])
folder.mkdir(parents=True, exist_ok=True)
with (folder.parent / "started").open("a") as file:
    file.write(folder.name + "\\n")
if words.get("config.optimizer.lr") == "0.5":
    print("error: the rate is too high")
    sys.exit(2)
(folder / "config.json").write_text(json.dumps({"config": {"steps": 4}}))
metrics = [{"step": i, "rollout/tokens": 10.0, "time/step": 1.0} for i in (1, 2, 3, 4)]
(folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in metrics))
shares = {"greedy": 0.5, "average@8": 0.25}
evaluations = [{"step": step, "questions": 4, **shares} for step in (0, 4)]
(folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in evaluations))
(folder / "report.html").write_text("the page")
"""


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runner, "LOOK", 0.01)


@pytest.fixture
def stub(tmp_path):
    file = tmp_path / "stub.py"
    file.write_text(STUB)
    return sys.executable, str(file)


def nested(flat):
    config = {}
    for key, value in flat.items():
        *groups, name = key.split(".")
        inner = config
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return config


def made(out, arm, seed, average, **changes):
    """A finished run: average@8 as given at its end, a half before."""
    run = Run(arm, seed, out, "tiny", (STEPS,))
    run.workdir.mkdir(parents=True)
    run.log.parent.mkdir(exist_ok=True)
    (run.workdir / "config.json").write_text(
        json.dumps({"config": nested(run.config | changes), "git_commit": "0123456789abcdef"})
    )
    rows = [
        {
            "step": step,
            "rollout/tokens": 100.0,
            "retrace/tokens": 50.0,
            "time/step": 9.0 if step == 1 else 2.0,
            "policy/entropy": 0.1,
            "label/vote_accuracy": 0.5,
        }
        for step in (1, 2, 3, 4)
    ]
    write_lines(run.workdir / "metrics.jsonl", rows)
    evaluations = [
        {
            "step": step,
            "benchmark": "geometry:tri=1",
            "questions": 100,
            "greedy": 0.8,
            "average@8": value,
            "high_confidence_wrong": 0.01,
            "entropy": 0.25,
            "family": {"tri": {"questions": 100, "greedy": 0.8, "average@8": value}},
        }
        for step, value in ((0, 0.5), (4, average))
    ]
    write_lines(run.workdir / "eval.jsonl", evaluations)
    (run.workdir / "report.html").write_text("the page")
    run.log.with_suffix(".json").write_text(json.dumps({"cpu_seconds": 60.0 + seed}))
    return run


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def three_seeds(out):
    a, b = parse(["majority_vote", "csrs"])
    runs = [made(out, a, s, v) for s, v in ((0, 0.60), (1, 0.70), (2, 0.65))]
    runs += [made(out, b, s, v) for s, v in ((0, 0.70), (1, 0.78), (2, 0.77))]
    return [a, b], runs


# Arms


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("scale", ["tiny", "qwen2_5_vl_7b"])
def test_every_arm_of_every_table_is_a_valid_config(name, scale, tmp_path):
    chosen = TABLES[name]
    default = Run(Arm("csrs", "csrs"), 0, tmp_path, scale).config
    labels = [arm.label for arm in chosen.arms]
    assert chosen.baseline in labels
    assert len(set(labels)) == len(labels)
    for arm in chosen.arms:
        config = Run(arm, 0, tmp_path, scale).config
        keys = {override.partition("=")[0] for override in arm.overrides}
        # Every override changes something, and nothing else changes.
        assert {key for key in config if config[key] != default[key]} == keys


def rows(name):
    return {arm.label: arm for arm in TABLES[name].arms}


def test_the_parts_of_csrs_are_those_of_table_5(tmp_path):
    keys = ("reward.kind", "retrace.m", "retrace.rate", "retrace.image_noise")
    found = {
        label: tuple(Run(arm, 0, tmp_path, "tiny").config[key] for key in keys)
        for label, arm in rows("5").items()
    }
    assert found == {
        "+SFR": ("self_consistency", 0, 0.7, 0.1),
        "+RRM": ("majority", 5, 0.7, 0.0),
        "+VSP": ("majority", 5, 0.0, 0.1),
        "+SFR+RRM": ("softened", 5, 0.7, 0.0),
        "+SFR+VSP": ("softened", 5, 0.0, 0.1),
        "+RRM+VSP": ("majority", 5, 0.7, 0.1),
        "CSRS": ("softened", 5, 0.7, 0.1),
    }
    assert rows("5")["+SFR+RRM"].paper["WeMath"] == 71.30
    assert TABLES["5"].start["MathVision"] == 25.40


def test_the_sweeps_have_the_values_of_the_paper(tmp_path):
    def sweep(name, key):
        return sorted({Run(a, 0, tmp_path, "tiny").config[key] for a in TABLES[name].arms})

    assert sweep("2", "reward.gamma") == [0.05, 0.1, 0.2, 0.35]
    assert sweep("2", "reward.beta") == [3.5, 5.0, 6.5, 8.0]
    assert sweep("3", "retrace.m") == [4, 5, 6, 7, 8]
    assert sweep("4", "retrace.rate") == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert sweep("anchors", "retrace.anchor") == ["fraction", "random", "token"]
    assert rows("10")["random anchors"].paper == {"relative time": 1.13, "Acc": 27.63}


def test_self_consistency_differs_from_csrs_in_its_signal_alone(tmp_path):
    for scale in ("tiny", "smoke", "qwen2_5_vl_7b"):
        ours, csrs = (
            Run(a, 0, tmp_path, scale).config for a in parse(["self_consistency", "csrs"])
        )
        assert {key for key in csrs if ours[key] != csrs[key]} == {"reward.kind", "retrace.m"}


def test_a_recipe_may_have_settings_of_its_own():
    (arm,) = parse(["csrs+retrace.anchor=token+retrace.token=12"])
    assert (arm.recipe, arm.overrides) == ("csrs", ("retrace.anchor=token", "retrace.token=12"))
    assert arm.folder == "csrs+retrace.anchor=token+retrace.token=12"


def test_tables_share_the_runs_that_they_have_in_common(tmp_path):
    names = [{Run(a, 0, tmp_path, "tiny").name for a in TABLES[t].arms} for t in TABLES]
    assert set.intersection(*names) == {"csrs-0"}


# What is run


def test_only_what_is_missing_is_run(tmp_path, stub):
    arm = Arm("csrs", "csrs")
    runs = [Run(arm, seed, tmp_path, "tiny", (STEPS,)) for seed in (0, 1, 2)]
    finished = []
    with runner.alone(tmp_path):
        made(tmp_path, arm, 1, 0.5)
        assert runner.run_missing(runs, 2, lambda: finished.append(1), stub) == []
        assert runner.run_missing(runs, 2, lambda: finished.append(1), stub) == []
    started = (tmp_path / "runs" / "started").read_text().split()
    assert sorted(started) == ["csrs-0", "csrs-2"]
    assert len(finished) == 2
    assert all(run.finished and run.cpu_seconds > 0 for run in runs)


def test_a_run_that_stopped_early_is_run_again(tmp_path):
    run = made(tmp_path, Arm("csrs", "csrs"), 0, 0.5)
    assert run.finished
    lines = (run.workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.workdir / "metrics.jsonl").write_text("".join(lines[:3]))
    assert not run.finished
    (run.workdir / "metrics.jsonl").write_text("".join(lines))
    (run.workdir / "report.html").unlink()
    assert not run.finished


def test_a_run_that_fails_is_told_in_one_sentence_and_stops_no_other(tmp_path, stub):
    arms = parse(["csrs+optimizer.lr=0.5", "csrs"])
    runs = [Run(arm, 0, tmp_path, "tiny", (STEPS,)) for arm in arms]
    with runner.alone(tmp_path):
        (sentence,) = runner.run_missing(runs, 1, lambda: None, stub)
    assert sentence == f"csrs+optimizer.lr=0.5-0 failed: the rate is too high (see {runs[0].log})"
    assert runs[1].finished


def test_a_run_is_the_command_that_anyone_could_give(tmp_path):
    (arm,) = parse(["csrs+retrace.anchor=token"])
    assert Run(arm, 3, tmp_path, "smoke", (STEPS,)).words == [
        "--config=configs/csrs.py:smoke",
        "--config.retrace.anchor=token",
        STEPS,
        "--config.seed=3",
        f"--workdir={tmp_path}/runs/csrs+retrace.anchor=token-3",
    ]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, None),
        ({"checkpoint.every": 1, "rollout.rows": 4, "steps": 2}, None),
        ({"model.path": "/elsewhere/jaxevolve/assets/geo_tiny"}, None),
        ({"optimizer.lr": 1e-3}, r"optimizer.lr=0.001 and not 0.0001"),
        ({"steps": 8}, r"steps=8 and not 4"),
        ({"model.path": "/elsewhere/another"}, r"model.path=/elsewhere/another"),
    ],
)
def test_a_run_of_other_settings_is_refused(tmp_path, changes, refused):
    run = made(tmp_path, Arm("csrs", "csrs"), 0, 0.5, **changes)
    if refused is None:
        run.check()
    else:
        with pytest.raises(UserError, match=refused):
            run.check()


def test_a_setting_that_an_older_run_does_not_know_counts_as_its_default(tmp_path):
    arm = Arm("csrs", "csrs", ("lora.rank=4",))
    plain, changed = made(tmp_path, Arm("csrs", "csrs"), 0, 0.5), made(tmp_path, arm, 0, 0.5)
    for run in (plain, changed):
        record = json.loads((run.workdir / "config.json").read_text())
        del record["config"]["lora"]["rank"]
        (run.workdir / "config.json").write_text(json.dumps(record))
    plain.check()
    with pytest.raises(UserError, match=r"lora.rank=0 and not 4"):
        changed.check()


def test_two_commands_do_not_work_in_one_folder(tmp_path):
    with runner.alone(tmp_path), pytest.raises(UserError, match="another command"):
        runner.alone(tmp_path).__enter__()


# Numbers


def test_mean_and_interval_are_those_of_student():
    # By hand: mean 2, variance 1, standard error 1/sqrt(3), t(0.975, 2) = 4.3027.
    found = results.estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert not found.significant
    # t(0.975, 1) = 12.7062, the standard error of 5 and 7 is 1.
    assert results.estimate([5.0, 7.0]).half == pytest.approx(12.7062, rel=1e-5)
    assert results.estimate([4.0]) == results.Estimate(4.0, None, 1)
    assert results.Estimate(-3.0, 2.9, 3).significant
    assert not results.Estimate(5.0, None, 1).significant


def test_differences_are_paired_by_seed(tmp_path):
    arms, runs = three_seeds(tmp_path)
    summary = results.summarize(results.read(runs), arms, "majority_vote")
    csrs = summary["arms"]["csrs"]
    assert csrs["figures"]["average@8"]["mean"] == pytest.approx(0.75)
    # 0.10, 0.08, 0.12: mean 0.10, standard deviation 0.02, half 4.3027 * 0.02 / sqrt(3).
    found = csrs["differences"]["average@8"]
    assert found["mean"] == pytest.approx(0.1)
    assert found["half"] == pytest.approx(0.049683, abs=1e-6)
    assert found["significant"]
    assert found["seeds"] == 3
    # Unpaired, the interval of 0.65 alone is wider than that.
    assert summary["arms"]["majority_vote"]["figures"]["average@8"]["half"] > 0.12
    assert not csrs["differences"]["greedy"]["significant"]
    assert summary["start"]["average@8"] == 0.5
    assert csrs["figures"]["tokens a step"]["mean"] == 150.0
    assert csrs["figures"]["seconds a step"]["mean"] == 2.0
    assert csrs["figures"]["CPU-seconds"]["mean"] == 61.0
    assert csrs["figures"]["tri/average@8"]["mean"] == pytest.approx(0.75)


def test_a_seed_that_is_missing_leaves_the_others_paired(tmp_path):
    arms, runs = three_seeds(tmp_path)
    summary = results.summarize(results.read(runs[1:]), arms, "majority_vote")
    assert summary["arms"]["csrs"]["differences"]["average@8"]["seeds"] == 2
    assert summary["arms"]["csrs"]["figures"]["average@8"]["seeds"] == 3


def test_the_table_says_what_is_significant_and_over_how_many_seeds(tmp_path):
    arms, runs = three_seeds(tmp_path)
    summary = results.summarize(results.read(runs), arms, "majority_vote")
    text = table.markdown("Compared", summary)
    assert "Average@8, significantly different from majority_vote: csrs (+10.0 ± 5.0)." in text
    assert "Greedy, not significantly different from majority_vote: csrs (0.0 ± 0.0)." in text
    assert "**+10.0 ± 5.0**" in text
    assert "| before |  | 80.0 | 50.0 | 1.0 | 0.250 |" in text
    assert "| csrs | 3 | 80.0 ± 0.0 | 75.0 ± 10.8 |" in text
    assert "3 seeds" in text
    # Four measures and two of the one family, for one arm; 9.8 points for 100 questions.
    assert "6 differences are shown" in text
    assert "9.8 points" in text


def test_one_seed_makes_nothing_significant(tmp_path):
    arms, runs = three_seeds(tmp_path)
    read = [run for run in results.read(runs) if run.seed == 0]
    text = table.markdown("Compared", results.summarize(read, arms, "majority_vote"))
    assert "Average@8, with one seed, against majority_vote: csrs (+10.0)." in text
    assert "With one seed nothing can be called significant." in text
    assert "**" not in text


def test_the_papers_figures_stand_beside_ours(tmp_path):
    chosen = TABLES["10"]
    runs = [made(tmp_path, arm, s, 0.6 + s / 10) for arm in chosen.arms for s in (0, 1)]
    rows_of = [json.loads(line) for line in (runs[2].workdir / "metrics.jsonl").open()]
    for run in runs[2:]:
        slower = [row | {"time/step": 2.5, "retrace/tokens": 80.0} for row in rows_of]
        write_lines(run.workdir / "metrics.jsonl", slower)
    summary = results.summarize(results.read(runs), chosen.arms, "CSRS")
    header, cells = table.paper_table(summary, chosen.start)
    shown = [dict(zip(header, row)) for row in cells]
    assert [row["time"] for row in shown] == ["1.00", "1.25"]
    assert [row["CPU"] for row in shown] == ["1.00", "1.00"]
    assert [row["tokens"] for row in shown] == ["1.00", "1.20"]
    assert [row["paper: relative time"] for row in shown] == ["1.00", "1.13"]


# The page and the commands


def test_the_page_shows_every_arm_and_needs_nothing_else(tmp_path):
    arms, runs = three_seeds(tmp_path)
    read = results.read(runs)
    summary = results.summarize(read, arms, "majority_vote")
    html = page.render(
        "Compared", summary, read, facts={"Seeds": "0, 1, 2"}, command=["python", "x<y"]
    )
    charts = re.findall(r'<figure class="chart">.*?</figure>', html, re.DOTALL)
    held_out = [chart for chart in charts if "Average of the samples" in chart]
    assert all(f"<span>{arm.label}</span>" in held_out[0] for arm in arms)
    # Seeds differ after the start: every line has its band.
    assert held_out[0].count('class="band') == 2
    assert "<b>+10.0 ± 5.0</b>" in html
    assert "x&lt;y" in html
    assert not re.search(r'(src|href)="(?!#)', html)


def test_the_lines_of_a_chart_differ_without_color(tmp_path):
    arms = [Arm(f"arm {i}", "csrs", (f"retrace.m={i}",)) for i in range(8)]
    read = results.read([made(tmp_path, arm, 0, 0.5 + i / 20) for i, arm in enumerate(arms)])
    (first, *_), *_ = (section["charts"] for section in page.sections(read))
    lines = re.findall(r'<polyline class="line (s\d)"', first)
    assert len(set(lines)) == 8
    style = (ROOT / "jaxevolve" / "assets" / "report" / "page.css").read_text()
    dashes = [re.search(rf"\.{s} {{[^}}]*dasharray: ([^;}}]*)", style) for s in lines]
    assert len({found and found[1] for found in dashes}) == 8
    drawing = first[first.index("role=") :]
    markers = re.findall(r'<(circle|path) class="dot (s\d)( hollow)?"[^>]*?(m[^"]*|r="3)"', drawing)
    assert len({(shape, hollow, path) for shape, _, hollow, path in markers}) == 8


def parsed(module, *words):
    argv, overrides = command.take_overrides(["compare.py", *words])
    return cli.parse(argv, module.define), overrides


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        (compare, [], "--recipes is missing"),
        (compare, ["--recipes=csrs"], "--out is missing"),
        (compare, ["--recipes=csrs,csrs", "--out=x"], "names one twice"),
        (compare, ["--recipes=crsr", "--out=x"], "did you mean .*csrs.py"),
        (compare, ["--recipes=csrs", "--baseline=majority", "--out=x"], "none of --recipes"),
        (compare, ["--recipes=csrs", "--seeds=0,0", "--out=x"], "different whole numbers"),
        (compare, ["--recipes=csrs", "--out=x", "--config.seed=1"], "use --seeds"),
        (compare, ["--recipes=csrs", "--out=x", "--config.lr=1"], "optimizer.lr"),
        (compare, ["--recipes=csrs", "--out=x", "--config.eval.n=0"], "at least 1"),
        (ablate, ["--out=x"], "--table is missing"),
        (ablate, ["--table=3", "--out=x", "--config.retrace.m=2"], "would undo"),
    ],
)
def test_a_mistake_is_told_before_anything_is_run(module, words, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_missing", lambda *_: pytest.fail("something was run"))
    words = [word.replace("--out=x", f"--out={tmp_path}/x") for word in words]
    with pytest.raises(UserError, match=sentence):
        module.main(*parsed(module, *words))
    assert not (tmp_path / "x").exists()


def test_an_unknown_table_is_refused():
    with pytest.raises(UserError, match="--table=7"):
        cli.parse(["ablate.py", "--table=7"], ablate.define)


def test_the_command_writes_all_three_files_and_fails_with_what_failed(
    tmp_path, stub, monkeypatch, capsys
):
    real = runner.run_missing
    monkeypatch.setattr(runner, "run_missing", lambda *given: real(*given, stub))
    values, overrides = parsed(
        compare, "--recipes=csrs,csrs+optimizer.lr=0.5", "--seeds=0,1", f"--out={tmp_path}", STEPS
    )
    assert isinstance(values, flags.FlagValues)
    with pytest.raises(SystemExit) as ended:
        compare.main(values, overrides)
    assert ended.value.code == 1
    assert capsys.readouterr().err.count("csrs+optimizer.lr=0.5-1 failed") >= 1
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert list(found["arms"]) == ["csrs"]
    assert found["arms"]["csrs"]["seeds"] == [0, 1]
    assert (tmp_path / "comparison.md").read_text().startswith("# Signals compared")
    assert "</html>" in (tmp_path / "comparison.html").read_text()


@pytest.mark.parametrize(("name", "module"), [("compare", compare), ("ablate", ablate)])
def test_the_commands_of_the_readme_are_understood(name, module):
    (line,) = re.findall(
        rf"^python (scripts/{name}.py .*)$", (ROOT / "README.md").read_text(), re.M
    )
    argv, _ = command.take_overrides(line.split())
    assert cli.parse(argv, module.define).out
