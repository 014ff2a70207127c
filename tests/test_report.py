import base64
import io
import json
import random
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis import given
from PIL import Image, ImageDraw

from jaxevolve import report
from jaxevolve.runtime import charts, cli, tables
from jaxevolve.runtime.errors import UserError

HOSTILE = "<script>alert(1)</script><img src=x onerror='alert(2)'> & </textarea></title>\"'"
LIMITS = cli.load_config(str(Path(__file__).resolve().parents[1] / "configs" / "csrs.py")).collapse
FREQUENCIES = (0.0, 0.2, 0.4, 0.6, 0.8)
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and visible text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.words, self.mismatched = [], [], [], []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", "".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.mismatched.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag, kind=None):
        return [a for t, a in self.elements if t == tag and kind in (None, a.get("class"))]


def evaluation(step, total):
    """Accuracy rises over the run, as tiny_model's does."""
    grown = step / max(total, 1)
    shares = {
        "greedy": 0.894 + 0.06 * grown,
        "average@8": 0.587 + 0.259 * grown,
        "majority@8": 0.828 + 0.11 * grown,
        "pass@8": 0.984 - 0.02 * grown,
        "unanimous": 0.05 + 0.4 * grown,
        "high_confidence_wrong": 0.003 + 0.02 * grown,
        "no_answer": 0.01,
        "truncated": 0.0,
        "entropy": 0.41 - 0.2 * grown,
    }
    if step:
        shares |= {"contrast/measured": 2.7, "contrast/majority": 5.3, "contrast/softened": 2.6}
    families = {
        name: {"questions": count, **shares, "average@8": average}
        for name, count, average in (
            ("parI", 51, 0.27 + 0.5 * grown),
            ("per3", 103, 0.6 + 0.2 * grown),
            ("tri", 102, 0.68 + 0.22 * grown),
        )
    }
    return {
        "step": step,
        "benchmark": "geometry:tri=0.4,seed=1",
        "questions": 256,
        **shares,
        "family": families,
    }


def metrics(step, total, rng):
    grown, noise = step / total, lambda scale: rng.uniform(-scale, scale)
    compiling = 20 if step == 1 else 1
    times = {"rollout": 0.17, "retrace": 0.55, "answers": 0.04, "score": 0.2, "update": 0.46}
    times = {f"time/{k}": v * compiling * (1 + noise(0.1)) for k, v in times.items()}
    spent = sum(times.values()) * 1.02
    return {
        "step": step,
        "reward/mean": 0.35 + 0.3 * grown + noise(0.05),
        "reward/std": 0.3 - 0.1 * grown,
        "advantage/zero_groups": 0.05 + 0.3 * grown + noise(0.05),
        "policy/entropy": 0.4 - 0.2 * grown + noise(0.02),
        "rollout/length": 34 + 4 * grown + noise(1),
        "rollout/truncated": 0.0,
        "rollout/looping": 0.0,
        "rollout/confident": 0.2 + 0.4 * grown,
        "rollout/no_answer": 0.01 + noise(0.01),
        "rollout/unanimous": 0.06 + 0.4 * grown + noise(0.05),
        "rollout/distinct_answers": 4.2 - 1.8 * grown + noise(0.2),
        "rollout/logprob_gap": 2e-6 + noise(1e-6),
        "rollout/tokens": 4400.0,
        "retrace/agreement": 0.7 + 0.2 * grown + noise(0.03),
        "retrace/same_if_right": 0.85,
        "retrace/same_if_wrong": 0.4,
        "retrace/tokens": 6800.0,
        "label/accuracy": 0.58 + 0.25 * grown + noise(0.06),
        "label/vote_accuracy": 0.82 + 0.1 * grown + noise(0.06),
        "label/pass_at_n": 0.97 + noise(0.03),
        **{f"label/right_by_frequency/{low}": low or None for low in FREQUENCIES},
        **{f"label/answers_by_frequency/{low}": 0.2 for low in FREQUENCIES},
        "collapse/alarm": 0,
        "policy/loss": noise(0.01),
        "policy/grad_norm": 0.7 + noise(0.2),
        "policy/kl": 0.04 * grown**2,
        "policy/clip_fraction": 0.02 + noise(0.01),
        "policy/lr": 1e-4,
        "policy/skipped_updates": 0,
        **times,
        "time/step": spent,
        "throughput/tokens_per_second": 11200 / spent,
        "throughput/sampled_tokens_per_second": 18000 / spent,
        "throughput/forced_tokens_per_second": 90000 / spent,
        "throughput/slot_utilization": 0.8,
        "system/compiles": 20,
        "system/host_rss_mb": 1100.0 + 2 * step,
    }


def picture(size=112, noisy=False):
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    draw.polygon([(10, size - 16), (size - 12, size - 22), (size * 0.4, 14)], outline="black")
    draw.text((size * 0.38, 24), "60", fill="black")
    draw.text((22, size - 32), "90", fill="black")
    draw.text((size - 36, size - 36), "x", fill="black")
    if noisy:
        image = Image.frombytes("RGB", (size, size), random.Random(0).randbytes(3 * size * size))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def sample(position, rng, image, text=None):
    right = "30"
    answers = [rng.choice([right, right, right, "40", "120", None]) for _ in range(8)]
    after = [
        [a if rng.random() < 0.8 else rng.choice([right, "150", None]) for _ in range(5)]
        for a in answers
    ]
    classes = {a: i for i, a in enumerate(dict.fromkeys(a for a in answers if a))}
    flat = Counter(a for group in after for a in group)
    said = "<think> 6 0 and 9 0 . sum is 1 8 0 so 1 8 0 - 6 0 = 1 2 0 . so 1 2 0 - 9 0 = {} . "
    responses = [
        {
            "text": text or (said.format(a or "3") + (f"</think> \\boxed{{ {a} }}" if a else "")),
            "answer": a,
            "class": classes.get(a, -1),
            "count": answers.count(a) if a else 0,
            "recount": flat[a] if a else 0,
            "reward": answers.count(a) / 8 if a else 0.0,
            "advantage": (answers.count(a) / 8 if a else 0.0) - 0.4,
            "tokens": 36 + g,
            "stopped": a is not None,
            "anchor": 25,
            "kept": 60,
            "reinference": after[g],
            "continued": [f"{180 - 10 * m} . </think>" for m, _ in enumerate(after[g])],
            "correct": a == right,
        }
        for g, a in enumerate(answers)
    ]
    family, question = ("tri", "Find x.") if position % 2 else ("per3", "Find the perimeter.")
    return {
        "id": f"geometry-0-{position}",
        "family": family,
        "question": "<image>" + question,
        "label": right,
        "images": [image] if image else [],
        "responses": responses,
    }


def visit(step, total):
    """Held-out questions of which one answer takes over, from six samples of eight on."""
    rng = random.Random(step)
    shares = {name: rng.random() + 0.5 * step / total for name in range(64)}
    classes = {
        f"q{name}": [int(rng.random() > 0.3 + 0.7 * share / 1.5) for _ in range(8)]
        for name, share in shares.items()
    }
    return {"step": step, "of": "held-out", "classes": classes, "new": {}}


def write_lines(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(folder, steps=40, evaluate_every=20, samples_every=1, image=None):
    """A work directory such as training leaves it."""
    rng = random.Random(0)
    record = {
        "config": {
            "steps": steps,
            "seed": 0,
            "batch": 16,
            "model": {"path": "/somewhere/assets/geo_tiny"},
            "data": {"path": "geometry:tri=0.4,per3=0.4,parI=0.2"},
            "rollout": {"n": 8},
            "retrace": {"m": 5},
            "reward": {"kind": "softened", "gamma": 0.2, "beta": 5.0},
            "collapse": LIMITS.to_dict(),
        },
        "seed": 0,
        "command": ["/somewhere/jaxevolve/train.py", "--config=configs/csrs.py:tiny"],
        "versions": {"python": "3.11.2", "jaxevolve": "0.1.0", "jax": "0.10.2"},
        "devices": "1 x cpu",
        "git_commit": "0123456789abcdef",
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(record))
    write_lines(folder / "metrics.jsonl", [metrics(s, steps, rng) for s in range(1, steps + 1)])
    evaluated = range(0, steps + 1, evaluate_every)
    write_lines(folder / "eval.jsonl", [evaluation(step, steps) for step in evaluated])
    write_lines(folder / "visits.jsonl", [visit(step, steps) for step in evaluated])
    image = image or picture()
    for step in range(samples_every, steps + 1, samples_every):
        records = [sample(i, rng, image) for i in range(4)]
        write_lines(folder / "samples" / f"{step}.jsonl", records)
    return folder


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def read(folder):
    html = report.write(folder).read_text(encoding="utf-8")
    page = Page(html)
    assert not page.mismatched
    assert not page.open
    return page


def test_the_page_is_written_beside_and_renamed(tmp_path):
    run = make_run(tmp_path / "run", steps=2, evaluate_every=2)
    before = {path.name for path in run.iterdir()}
    assert report.write(run) == run / "report.html"
    assert {path.name for path in run.iterdir()} == before | {"report.html"}


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    page = read(make_run(tmp_path / "run", steps=3, evaluate_every=3))
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))
    assert not page.all("link")
    assert len(page.all("script")) == 1
    policy = page.all("meta")[1]["content"]
    assert "default-src 'none'" in policy


def test_links_lead_to_parts_of_the_page(tmp_path):
    page = read(make_run(tmp_path / "run", steps=3, evaluate_every=3))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a")} <= set(ids)


def test_what_ran_and_what_came_of_it(tmp_path):
    page = read(make_run(tmp_path / "run"))
    for words in (
        "csrs:tiny",
        "40 steps, 16 questions each, 8 responses a question, 5 re-inferences a response",
        "softened, gamma 0.2, beta 5.0",
        "geo_tiny",
        "python -m jaxevolve.train --config=configs/csrs.py:tiny",
        "Of 8 samples a question, 58.7% were right at step 0",
        "84.6% are at step 40: +25.9 points",
        "average@8",
        "high_confidence_wrong lower is better 0.3% 2.3% +2.0 worse",
        "pass@8 98.4% 96.4% −2.0 worse",
        "unanimous 5.0% 45.0% +40.0",
        "0.41 0.21 −0.200",
        "parI 51 questions",
        "77.0%from 27.0%+50.0 better",
    ):
        assert words in page.text


def test_an_unfinished_run_tells_how_far_it_is(tmp_path):
    run = make_run(tmp_path / "run", steps=4, evaluate_every=9)
    change_config(run, config={"steps": 10, "batch": 1, "rollout": {"n": 2}, "retrace": {"m": 0}})
    page = read(run)
    assert "4 of 10 steps, 1 question each, 2 responses a question." in page.text
    assert "At step 0, 58.7% of 8 samples a question are right." in page.text


def test_every_curve_that_has_values_is_drawn(tmp_path):
    run = make_run(tmp_path / "run")
    page = read(run)
    figures = [a["aria-label"] for a in page.all("svg") if a.get("role") == "img"]
    assert len(figures) == 29
    (entropy,) = [label for label in figures if label.startswith("Entropy")]
    first, *_, last = (json.loads(s) for s in (run / "metrics.jsonl").read_text().splitlines())
    for row in (first, last):
        assert f"{row['policy/entropy']:.3g} at step {row['step']}" in entropy
    assert "Columns with an arrow are taller than the drawing: step 1 (" in page.text


@pytest.mark.parametrize("missing", ["label", "retrace", "time", "policy", "rollout", "all"])
def test_missing_and_null_values_leave_their_curve_out(tmp_path, missing):
    run = make_run(tmp_path / "run", steps=3, evaluate_every=3)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    def without(row, value):
        hit = lambda key: key != "step" and (missing == "all" or key.startswith(missing + "/"))
        kept = {key: value if hit(key) else old for key, old in row.items()}
        return kept if value is None else {k: v for k, v in kept.items() if not hit(k)}

    found = []
    for value in (None, "gone"):
        write_lines(run / "metrics.jsonl", [without(row, value) for row in rows])
        page = read(run)
        found.append([a["aria-label"] for a in page.all("svg") if a.get("role") == "img"])
    assert found[0] == found[1]
    assert 0 < len(found[0]) < 29


def test_the_alarm_is_told_and_marked_where_it_went_on(tmp_path):
    run = make_run(tmp_path / "run", steps=20, evaluate_every=20)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows[8:]:
        row |= {"rollout/looping": 0.5, "collapse/alarm": int(row["step"] >= 13)}
    write_lines(run / "metrics.jsonl", rows)
    page = read(run)
    told = "Collapse alarm at step 13: 50% of the responses end in a loop (every step since 9)."
    assert page.text.count(told) == 1
    marks = page.all("line", "event")
    assert len(marks) > 5
    assert len({mark["x1"] for mark in marks}) == 2  # of steps from 0 on, and from 1 on
    assert not read(make_run(tmp_path / "healthy", steps=20)).all("line", "event")


def test_answers_by_frequency_are_pooled_over_thirds_of_the_run(tmp_path):
    run = make_run(tmp_path / "run", steps=2, evaluate_every=2)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"step": step} for step, row in enumerate(rows * 3, 1)]
    right, many = "label/right_by_frequency/0.8", "label/answers_by_frequency/0.8"
    rows[0] |= {right: 1.0, many: 0.3}
    rows[1] |= {right: 0.5, many: 0.1}
    rows[2] |= {right: None, many: 0.0}
    write_lines(run / "metrics.jsonl", rows)
    page = read(run)
    labels = {a["aria-label"].partition(".")[0]: a["aria-label"] for a in page.all("svg", None)
              if a.get("role") == "img"}  # fmt: skip
    curve = labels["Right answers by frequency"]
    # (1.0 * 0.3 + 0.5 * 0.1) / 0.4; the lowest range has no answer that is known to be right.
    assert "steps 1 to 2: 20.0% at 20 to 40%, 87.5% at 80 to 100%" in curve
    assert "steps 1 to 2: 20.0% at 0 to 20%, 20.0% at 80 to 100%" in labels["Answers by frequency"]


@pytest.mark.parametrize("lines", [0, 1])
def test_without_two_visits_nothing_is_measured(tmp_path, lines):
    run = make_run(tmp_path / "run", steps=2, evaluate_every=2)
    write_lines(run / "visits.jsonl", [visit(0, 2)][:lines])
    page = read(run)
    assert "Factor by lead" not in page.text
    assert "Leading answer, contested" not in page.text


def test_maps_of_responses_are_drawn_on_demand(tmp_path):
    run = make_run(tmp_path / "run", steps=3, evaluate_every=3)
    html = report.write(run, ["1", "3"], "ngrams").read_text()
    page = Page(html)
    assert not page.mismatched
    assert "embedded by hashed n-grams" in page.text
    assert "Responses at step 3" in page.text
    assert "Responses at step 2" not in page.text
    # Of each step 4 questions with 8 responses and 40 re-inferences; one sign in the legend.
    assert [len(page.all("path", f"point p{i}")) for i in (0, 1)] == [2 * 33, 2 * 161]
    assert not re.search(r'="[^"]*(nan|inf)\b', html)
    with pytest.raises(UserError, match=r"--embeddings=7: .* has no re-inferences of that step"):
        report.write(run, ["7"])


def test_maps_without_scikit_learn_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"--embeddings needs scikit-learn.*\.\[embeddings\]"):
        report.write(tmp_path / "nowhere", ["1"])


def test_a_gap_breaks_the_line_and_hides_no_neighbor(tmp_path):
    run = make_run(tmp_path / "run", steps=30, evaluate_every=30)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["step"] in (10, 12):
            row["policy/kl"] = None
    write_lines(run / "metrics.jsonl", rows)
    html = report.write(run).read_text()
    drawing = html[html.index('aria-label="KL to the reference') :].partition("</svg>")[0]
    strokes = re.findall(r'points="([^"]*)"', drawing)
    assert [len(points.split()) for points in strokes] == [9, 18]
    assert drawing.count("<circle") == 1


def test_a_run_without_evaluations_samples_and_labels(tmp_path):
    run = make_run(tmp_path / "run", steps=1)
    (run / "eval.jsonl").unlink()
    (run / "samples" / "1.jsonl").unlink()
    write_lines(run / "metrics.jsonl", [{"step": 1, "reward/mean": 0.25}])
    page = read(run)
    assert "No evaluation has been finished yet" in page.text
    assert "Questions and responses" not in page.text
    assert "Reward" in page.text


def test_text_of_models_and_data_is_escaped(tmp_path):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    clean = read(run)
    change_config(run, command=["train.py", HOSTILE], devices=HOSTILE, config={"model": HOSTILE})
    hostile = sample(0, random.Random(0), picture(), HOSTILE)
    hostile |= {"question": HOSTILE, "label": HOSTILE, "family": HOSTILE, "id": HOSTILE}
    hostile["images"] += ["https://example.org/x.png", "javascript:alert(3)"]
    for response in hostile["responses"]:
        response |= {"answer": HOSTILE, "reinference": [HOSTILE]}
    write_lines(run / "samples" / "1.jsonl", [hostile])
    first, last = evaluation(0, 1), evaluation(1, 1)
    for figures in (first, last):
        figures["family"] = {HOSTILE: figures["family"]["tri"]}
        figures["benchmark"] = HOSTILE
    write_lines(run / "eval.jsonl", [first, last])
    page = read(run)
    assert len(page.all("script")) == len(clean.all("script")) == 1
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert len(page.all("img")) == 1
    shown = re.sub(r"\s+", " ", HOSTILE)
    for words in (f"Label{shown}", f"A {shown}", f"devices{shown}".replace("devices", "Devices")):
        assert words in page.text


def test_a_question_shows_votes_responses_and_their_anchors(tmp_path):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    record = json.loads((run / "samples" / "1.jsonl").read_text().splitlines()[0])
    write_lines(run / "samples" / "1.jsonl", [record])
    page = read(run)
    right = [response for response in record["responses"] if response["correct"]]
    assert 0 < len(right) < 8
    assert len(page.all("tr", "is-right")) == len(right)
    assert page.text.count("✓ right") == len(right) + 1  # and in the votes
    assert page.text.count("✗ wrong") == 8 - len(right)
    one = record["responses"][0]
    assert f"{one['count']} + {one['recount']}" in page.text
    text = one["text"]
    assert f"{text[:60]}▸{text[60:]}" in page.text
    assert [a["src"] for a in page.all("img")] == record["images"]
    kept = Counter(one["reinference"]).most_common(1)[0]
    assert f"{kept[0]} ×{kept[1]}" in page.text


def test_a_users_reward_is_named_and_what_it_leaves_out_is_told(tmp_path):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    config = json.loads((run / "config.json").read_text())
    config["config"]["reward"]["kind"] = "mine/my_rewards.py:brief"
    (run / "config.json").write_text(json.dumps(config))
    record = json.loads((run / "samples" / "1.jsonl").read_text().splitlines()[0])
    for response in record["responses"][1:]:
        response["reward"] = None
    write_lines(run / "samples" / "1.jsonl", [record])
    page = read(run)
    assert "the user's mine/my_rewards.py:brief" in page.text
    assert page.text.count("left out") == len(record["responses"]) - 1


def test_votes_account_for_every_response_and_re_inference(tmp_path):
    for seed in range(20):
        record = sample(0, random.Random(seed), None)
        for response in record["responses"][::3]:
            response["reinference"][0] = "an answer of no response"
        rows = tables.votes(record["responses"])
        responses, again = (sum(row[key] for row in rows) for key in ("count", "recount"))
        assert (responses, again) == (8, 40)
        assert [row["count"] for row in rows if row["letter"]] == sorted(
            (row["count"] for row in rows if row["letter"]), reverse=True
        )


def test_the_anchor_is_marked_only_where_its_place_is_known(tmp_path):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    record = json.loads((run / "samples" / "1.jsonl").read_text().splitlines()[0])
    for response in record["responses"]:
        del response["kept"]
    write_lines(run / "samples" / "1.jsonl", [record])
    page = read(run)
    assert record["responses"][0]["text"] in page.text
    assert "▸" not in page.text


def test_without_retrace_there_is_nothing_about_it(tmp_path):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    record = json.loads((run / "samples" / "1.jsonl").read_text().splitlines()[0])
    for response in record["responses"]:
        response |= {"reinference": [], "recount": 0, "anchor": 0, "kept": 0, "correct": None}
    write_lines(run / "samples" / "1.jsonl", [record | {"label": None, "images": []}])
    page = read(run)
    shown = page.text.partition("Questions and responses")[2].partition("Numbers")[0]
    assert "of 8 responses" in shown
    for words in ("nference", "Anchor", "▸", "✓", "✗", "Label"):
        assert words not in shown


def test_the_last_step_is_open_without_script(tmp_path):
    page = read(make_run(tmp_path / "run", steps=3, evaluate_every=3))
    panels = page.all("details", "panel")
    assert [("open" in panel) for panel in panels] == [False] * 8 + [True] + [False] * 3


def test_a_long_run_with_heavy_images_stays_small(tmp_path):
    heavy = picture(450, noisy=True)
    assert len(heavy) > 800_000
    run = make_run(tmp_path / "run", steps=400, samples_every=100, image=heavy)
    page = report.write(run)
    assert page.stat().st_size < 3e6
    shown = re.findall(r'data-step="(\d+)"', page.read_text())
    assert shown == ["400"]
    assert "Every point of a training curve is the average of 4 steps" in page.read_text()


def test_steps_with_questions_are_spread_over_the_run(tmp_path):
    run = make_run(tmp_path / "run", steps=40)
    (run / "samples" / "40.jsonl").unlink()
    html = report.write(run).read_text()
    shown = list(map(int, re.findall(r'class="group" data-step="(\d+)"', html)))
    assert len(shown) == 7
    assert (shown[0], shown[-1]) == (1, 39)
    assert all(5 <= b - a <= 8 for a, b in pairwise(shown))


def test_a_resumed_run_appears_as_one(tmp_path):
    run = make_run(tmp_path / "run", steps=6, evaluate_every=3)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    again = [json.dumps(json.loads(line) | {"policy/kl": 0.777}) + "\n" for line in lines[3:]]
    (run / "metrics.jsonl").write_text("".join([*lines[:5], *again]))
    samples = (run / "samples" / "6.jsonl").read_text()
    (run / "samples" / "7.jsonl").write_text(samples)  # killed before its metrics were written
    html = report.write(run).read_text()
    assert "6 steps" in html
    drawing = html[html.index('aria-label="KL to the reference') :].partition("</svg>")[0]
    assert drawing.count("<circle") == 6
    assert "0.777 at step 6" in drawing
    assert 'data-step="7"' not in html


def test_lines_that_were_cut_are_left_out(tmp_path):
    run = make_run(tmp_path / "run", steps=2, evaluate_every=2)
    for path in (run / "metrics.jsonl", run / "eval.jsonl", run / "samples" / "2.jsonl"):
        path.write_text(path.read_text()[:-40])
    page = read(run)
    assert "1 of 2 steps" in page.text
    assert "At step 0" in page.text


def test_only_evaluations_on_the_same_questions_are_compared(tmp_path):
    run = make_run(tmp_path / "run", steps=2, evaluate_every=1)
    other = evaluation(0, 2) | {"benchmark": "mathvista", "average@8": 0.123}
    write_lines(run / "eval.jsonl", [other, evaluation(1, 2), evaluation(2, 2)])
    page = read(run)
    assert "12.3%" not in page.text
    assert "71.6% were right at step 1 and 84.6% are at step 2" in page.text


def test_skipped_updates_are_told(tmp_path):
    run = make_run(tmp_path / "run", steps=3, evaluate_every=3)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[1] |= {"policy/skipped_updates": 2, "policy/loss": None, "policy/grad_norm": None}
    write_lines(run / "metrics.jsonl", rows)
    assert "Updates skipped as not finite: 2, at step 2." in read(run).text


@pytest.mark.parametrize("content", [None, "", '{"step": 1, "rew'])
def test_a_run_without_a_finished_step_is_refused(tmp_path, content):
    run = make_run(tmp_path / "run", steps=1)
    (run / "metrics.jsonl").unlink()
    if content is not None:
        (run / "metrics.jsonl").write_text(content)
    with pytest.raises(UserError, match="run has no finished step yet"):
        report.write(run)
    assert not (run / "report.html").exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nowhere holds no run: give the --workdir"):
        report.write(tmp_path / "nowhere")


def test_the_command(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    for arguments, code in (([f"--workdir={run}"], 0), ([], 2), ([f"--workdir={run}x"], 2)):
        monkeypatch.setattr("sys.argv", ["report.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.run(report.main, report.define, report.__doc__)
        assert ended.value.code == code
    out, err = capsys.readouterr()
    assert out == f"{run / 'report.html'}\n"
    assert err.count("error: ") == err.count("\n") == 2


def test_drawings_of_zeros_are_finite(tmp_path):
    run = make_run(tmp_path / "run", steps=1, evaluate_every=1)
    zero = {key: 0.0 for key in metrics(1, 1, random.Random(0))} | {"step": 1}
    write_lines(run / "metrics.jsonl", [zero])
    assert not re.search(r'="[^"]*(nan|inf)\b', report.write(run).read_text())


bounded = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(st.tuples(bounded, bounded), st.integers(2, 8))
def test_ticks_are_few_even_and_cover_the_values(ends, most):
    low, high = sorted(ends)
    hypothesis.assume(low == high or high - low > 1e-6 * max(abs(low), abs(high)))
    ticks = charts.ticks(low, high, most)
    gaps = [b - a for a, b in pairwise(ticks)]
    slack = 1e-6 * max(gaps)
    assert 1 <= len(gaps) <= most
    assert max(gaps) - min(gaps) <= slack
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_whole_ticks_are_whole(low, more):
    assert all(tick == int(tick) for tick in charts.ticks(low, low + more, whole=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.123"), (2.1e-6, "2.1e-6"), (-41.26, "−41.3"), (12345.6, "12,346")],
)
def test_numbers_for_people(value, text):
    assert charts.number(value) == text
