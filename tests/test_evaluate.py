"""The command that measures: what it writes, how it goes on, what it makes of others' answers."""

import json
from pathlib import Path

import answerer
import pytest
from PIL import Image

from jaxevolve import evaluate
from jaxevolve.benchmarks import accuracy
from jaxevolve.benchmarks import questions as questions_of
from jaxevolve.runtime import cli
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.metrics import read_jsonl

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
EMBEDDED = str(Path(__file__).resolve().parents[1] / "jaxevolve" / "assets" / "geo_tiny")


def run(**flags):
    argv = ["evaluate.py", *(f"--{name}={value}" for name, value in flags.items())]
    evaluate.main(cli.parse(argv, evaluate.define))
    return json.loads(Path(flags["out"]).read_text(encoding="utf-8"))


def without_times(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """Five labeled questions of one size, so that programs are compiled once."""
    folder = tmp_path_factory.mktemp("questions")
    return str(answerer.write_rows(folder / "test.jsonl", answerer.rows(5, varied=False)))


@pytest.fixture(scope="module")
def flags(answering, questions):
    return {"model": answering, "data": questions, "n": 2, "max_tokens": 6, "batch": 2}


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    """An evaluation that nothing has interrupted: its figures and its responses."""
    out = tmp_path_factory.mktemp("whole") / "figures.json"
    return run(out=out, **flags), read_jsonl(evaluate.responses_beside(out))


def test_figures_name_the_grader_and_the_decoding(whole):
    figures, records = whole
    assert figures["grader"] == "jaxevolve.answers"
    assert figures["decoding"]["temperature"] == 1.0
    assert (figures["decoding"]["n"], figures["decoding"]["max_tokens"]) == (2, 6)
    assert figures["questions"] == len(records) == 5
    assert {"greedy", "average@2", "majority@2", "pass@2", "pass@1"} <= set(figures)
    assert figures["pass@1"] == pytest.approx(figures["average@2"])
    assert set(figures["family"]) == {"a", "b"}
    assert figures["tokens_per_second"] > 0
    assert figures["counts"]["responses"] == 10
    assert figures["counts"]["no_answer"] == round(10 * figures["no_answer"])
    assert figures["counts"]["truncated"] == round(10 * figures["truncated"])
    assert all(len(r["responses"]) == len(r["stopped"]) == 2 for r in records)
    assert all(record["decoding"] == figures["decoding"] for record in records)


def test_a_killed_evaluation_goes_on_from_its_responses(flags, whole, tmp_path, monkeypatch):
    figures, records = whole
    out = tmp_path / "figures.json"
    asked = []

    def count(benchmark, rows, texts):
        asked.extend(row["id"] for row in rows)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return judge(benchmark, rows, texts)

    judge = accuracy.judge
    monkeypatch.setattr(accuracy, "judge", count)
    with pytest.raises(KeyboardInterrupt):
        run(out=out, **flags)
    beside = evaluate.responses_beside(out)
    assert len(read_jsonl(beside)) == 2
    assert not out.exists()
    with beside.open("a") as file:  # and the machine went down within a line
        file.write('{"id": "cut sho')
    asked.clear()
    monkeypatch.setattr(
        accuracy, "judge", lambda *a: asked.extend(r["id"] for r in a[1]) or judge(*a)
    )
    resumed = run(out=out, **flags)
    assert len(asked) == 3
    assert without_times(read_jsonl(beside)) == without_times(records)
    for name in ("greedy", "average@2", "majority@2", "pass@2", "entropy", "no_answer"):
        assert resumed[name] == figures[name]
    asked.clear()
    assert run(out=out, **flags)["average@2"] == figures["average@2"]
    assert not asked


def test_responses_by_other_settings_are_not_mixed(flags, whole, tmp_path):
    out = tmp_path / "figures.json"
    beside = evaluate.responses_beside(out)
    beside.write_text("".join(json.dumps(record) + "\n" for record in whole[1]))
    with pytest.raises(UserError, match="seed was 0 and is 3"):
        run(out=out, **flags, seed=3)


def test_rescoring_our_own_responses_gives_the_same_figures(questions, whole, tmp_path):
    figures, records = whole
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    again = run(rescore=path, data=questions, out=tmp_path / "again.json")
    left = {"model", "decoding"}
    assert {k: v for k, v in again.items() if k not in left} == {
        k: v for k, v in figures.items() if k not in left
    }


def labeled_rows(path, count=4):
    rows = [
        {"id": i, "question": "q", "options": ["1", "2"], "answer": "B", "subject": "logic"}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rescoring_needs_no_more_than_id_and_response(tmp_path):
    data = labeled_rows(tmp_path / "test.jsonl")
    # Right, wrong, no answer, and one question without a response.
    texts = {0: "The answer is (B)", 1: "\\boxed{A}", 2: "I do not know"}
    answers = tmp_path / "theirs.jsonl"
    answers.write_text(
        "".join(json.dumps({"id": i, "response": t}) + "\n" for i, t in texts.items())
    )
    settings = {"benchmark": "mathvision", "data": data, "out": tmp_path / "out.json"}
    figures = run(rescore=answers, **settings)
    assert figures["official"] == figures["greedy"] == pytest.approx(1 / 3)
    assert (figures["questions"], figures["missing"]) == (3, 1)
    assert figures["no_answer"] == pytest.approx(1 / 3)
    assert figures["decoding"] == {"responses": str(answers)}
    assert "MATH-V" in figures["grader"]
    assert figures["figures"]["by_subject"] == {"logic": pytest.approx(1 / 3)}
    assert not {"truncated", "entropy", "tokens_per_second"} & set(figures)


def test_rescoring_several_responses_a_question(tmp_path):
    data = labeled_rows(tmp_path / "test.jsonl", 2)
    answers = tmp_path / "theirs.jsonl"
    lines = [
        {"index": 0, "prediction": text} for text in ("\\boxed{A}", "\\boxed{B}", "\\boxed{B}")
    ]
    lines.append({"index": "x", "question_id": 1, "prediction": ["\\boxed{A}", "?", "\\boxed{B}"]})
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = run(rescore=answers, benchmark="mathvision", data=data, out=tmp_path / "out.json")
    assert figures["average@3"] == pytest.approx(3 / 6)
    assert figures["official_average@3"] == pytest.approx(3 / 6)
    assert figures["majority@3"] == 1 / 2  # B by two to one; A, none and B: A was seen first
    assert figures["pass@3"] == 1
    assert figures["pass@2"] == pytest.approx((1 + 2 / 3) / 2)
    assert figures["greedy"] == 0  # the first stands for it


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"id": 9, "response": "1"}, ["'9'", "no question"]),
        ({"name": 1, "response": "1"}, ["no column for the id", "name, response"]),
        ({"id": 1, "text": "1"}, ["no column for the response", "id, text"]),
    ],
)
def test_responses_that_cannot_be_used_are_one_sentence(tmp_path, line, words):
    data = labeled_rows(tmp_path / "test.jsonl")
    answers = tmp_path / "theirs.jsonl"
    answers.write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError) as error:
        run(rescore=answers, benchmark="mathvision", data=data, out=tmp_path / "out.json")
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"benchmark": "mathvison"}, ["did you mean mathvision"]),
        ({"benchmark": "mathvision"}, ["4 of 4", "no image", "the first is 0"]),
        ({"data": "nowhere.jsonl"}, ["nowhere.jsonl", "does not exist"]),
        ({"rescore": "theirs.jsonl"}, ["--model and --rescore"]),
        ({"benchmark": "gsm8k", "mmmu_random_guess": "true"}, ["no random guess"]),
        ({"benchmark": "gsm8k", "min_pixels": 9999999}, ["--min_pixels"]),
    ],
)
def test_bad_input_ends_before_anything_is_sampled(answering, tmp_path, monkeypatch, flags, words):
    monkeypatch.setattr(accuracy, "evaluate", lambda *a, **k: pytest.fail("it was sampled"))
    data = labeled_rows(tmp_path / "test.jsonl")
    with pytest.raises(UserError) as error:
        run(**{"model": answering, "data": data, "out": tmp_path / "out.json", **flags})
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_limits_of_an_images_area_change_its_tokens(policy):
    row = answerer.rows(1, varied=False)[0] | {"images": [Image.new("RGB", (1000, 800))]}
    processor = policy.processor
    sizes = [
        questions_of.with_limits(processor, least, most).row_size(row)[0]
        for least, most in ((0, 0), (0, 28 * 28 * 4), (0, 28 * 28 * 64), (28 * 28 * 40, 31360))
    ]
    # 28 x 28 pixels a token: at most 16 tokens by the model's own limit, 4, 64 and 40.
    text = sizes[1] - 4
    assert sizes[1] < sizes[0] <= text + 16 < sizes[3] <= text + 40 < sizes[2] <= text + 64
    assert questions_of.with_limits(processor, 0, 0) is processor


def test_missing_images_are_named_before_anything_is_sampled(answering, tmp_path):
    data = tmp_path / "test.jsonl"
    row = {"id": 1, "question": "q", "answer": "B", "image": "images/1.png"}
    data.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"row 1, image 1: .*images/1.png does not exist"):
        run(model=answering, benchmark="mathvision", data=data, out=tmp_path / "out.json")


def test_questions_with_broken_labels_are_left_out_and_counted(answering, tmp_path):
    data = tmp_path / "test.jsonl"
    rows = [{"id": i, "problem": "2 + 3", "answer": a} for i, a in enumerate(("5", "see figure"))]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = tmp_path / "theirs.jsonl"
    answers.write_text(json.dumps({"id": 0, "response": "\\boxed{5}"}) + "\n")
    figures = run(rescore=answers, benchmark="math500", data=data, out=tmp_path / "out.json")
    assert (figures["questions"], figures["excluded"], figures["missing"]) == (1, 1, 0)
    assert figures["excluded_ids"] == ["1"]
    assert figures["official"] == 1


def test_the_embedded_model_answers_real_questions_with_their_images(tmp_path, capsys):
    if not DATA.is_dir():
        pytest.skip(f"the real rows are not at hand in {DATA}")
    figures = run(
        model=EMBEDDED,
        benchmark="wemath",
        data=DATA / "wemath" / "testmini_36groups.jsonl",
        questions=3,
        n=1,
        max_tokens=4,
        batch=3,
        out=tmp_path / "out.json",
    )
    assert figures["questions"] == 3
    assert figures["figures"]["groups"] == 1
    shown = capsys.readouterr().out
    assert "We-Math four_dimensional_metrics.py" in shown
    assert "official" in shown
