"""Every layout that a benchmark comes in, made by hand, and real rows where they are at hand."""

import base64
import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jaxevolve.benchmarks import records, table
from jaxevolve.hf.rows import IMAGE
from jaxevolve.runtime.errors import UserError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def png(size=(40, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", size, "white").save(buffer, "PNG")
    return buffer.getvalue()


PNG = png()
BASE64 = base64.b64encode(PNG).decode()


def parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def tsv(path, rows, delimiter="\t"):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def loaded(name, path):
    benchmark = table.find(name)
    rows = benchmark.load(str(path))
    return rows, [benchmark.prompt(row) for row in rows]


def test_mathvision_in_all_layouts(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "7.png").write_bytes(PNG)
    text = {"question": "What is\n<image1>", "answer": "B", "subject": "logic", "level": 2}
    official = {"id": "7", "options": ["a", "b"], "image": "images/7.png", **text}
    hub = {**official, "decoded_image": {"bytes": PNG, "path": None}}
    kit = {**text, "index": 7, "image": BASE64, "choices": "['a', 'b']", "category": "logic"}
    del kit["subject"]
    for path in (
        jsonl(tmp_path / "test.jsonl", [official]),
        parquet(tmp_path / "test.parquet", [hub]),
        tsv(tmp_path / "MathVision.tsv", [kit]),
    ):
        rows, prompts = loaded("mathvision", path)
        assert rows[0]["id"] == "7"
        assert rows[0]["options"] == {"A": "a", "B": "b"}
        assert (rows[0]["subject"], rows[0]["level"]) == ("logic", "2")
        (image,) = prompts[0]["images"]
        assert (image if isinstance(image, bytes) else image.read_bytes()) == PNG
        assert prompts[0]["question"].startswith(f"{IMAGE}What is\n<image1>\n(A) a\n(B) b")


def test_mathvista_in_all_layouts(tmp_path):
    problem = {
        "question": "How long?",
        "answer": "1.2",
        "question_type": "free_form",
        "answer_type": "float",
        "precision": 1.0,
        "unit": "m",
        "choices": None,
        "image": "images/1.jpg",
    }
    meta = {"task": "textbook", "skills": ["a", "b"], "source": "S", "grade": "college"}
    official = tmp_path / "testmini.json"
    official.write_text(json.dumps({"1": {**problem, "pid": "1", "metadata": meta}}))
    hub = {**problem, "pid": "1", "metadata": meta, "decoded_image": {"bytes": PNG, "path": "x"}}
    kit = {**problem, **meta, "index": 1, "image": BASE64, "skills": "['a', 'b']"}
    for path in (
        official,
        parquet(tmp_path / "testmini.parquet", [hub]),
        tsv(tmp_path / "MathVista_MINI.tsv", [kit]),
    ):
        rows, prompts = loaded("mathvista", path)
        (row,) = rows
        assert (row["id"], row["precision"], row["skills"]) == ("1", 1, ["a", "b"])
        assert (row["task"], row["grade"], row["choices"]) == ("textbook", "college", [])
        assert len(row["images"]) == 1
        assert "one" in prompts[0]["question"] or "1 decimal place" in prompts[0]["question"]
        assert "How long? (Unit: m)" in prompts[0]["question"]


def test_the_query_column_is_the_prompt_where_there_is_one(tmp_path):
    row = {"pid": "1", "question": "q", "answer": "2", "question_type": "free_form"}
    row |= {"answer_type": "integer", "query": "Hint: h\nQuestion: q", "image": BASE64}
    _, prompts = loaded("mathvista", parquet(tmp_path / "a.parquet", [row]))
    assert prompts[0]["question"] == f"{IMAGE}Hint: h\nQuestion: q"


def test_mathverse_versions_share_the_choices_of_their_problem(tmp_path):
    whole = "What is x?\nChoices:\nA:40°\nB:60°"
    rows = [
        {"problem_version": "Text Lite", "question": whole, "question_for_eval": whole},
        {"problem_version": "Vision Only", "question": "", "question_for_eval": whole},
        {"problem_version": "Text Only", "question": whole, "question_for_eval": whole},
    ]
    for i, row in enumerate(rows):
        row |= {"sample_index": str(i), "problem_index": "3", "answer": "B", "image": BASE64}
        row |= {"question_type": "multi-choice"}
        row |= {"metadata": {"subject": "Plane Geometry", "subfield": "Angle", "source": "s"}}
    kit = [{**row, "metadata": str(row["metadata"])} for row in rows]
    hub = [{**row, "image": {"bytes": PNG, "path": None}} for row in rows]
    for path in (
        parquet(tmp_path / "testmini.parquet", hub),
        tsv(tmp_path / "MathVerse_MINI.tsv", kit),
        jsonl(tmp_path / "testmini.jsonl", rows),
    ):
        found, prompts = loaded("mathverse", path)
        assert [row["options"] for row in found] == [{"A": "40°", "B": "60°"}] * 3
        assert [len(row["images"]) for row in found] == [1, 1, 0]
        assert {row["subject"] for row in found} == {"Plane Geometry"}
        assert prompts[1]["question"].startswith(f"{IMAGE}Answer the question in the image.")
        assert IMAGE not in prompts[2]["question"]


def test_wemath_in_all_layouts(tmp_path):
    def problem(key, **more):
        row = {"ID": "2steps_1", "key": key, "question": "q", "answer": "A"}
        return {**row, "knowledge concept": "Area", "option": "A. 1; B. 2;C. 3", **more}

    keys = ("2steps_1", "2steps_2", "2steps_multi")
    nodes = [{"full node": "Plane_Calculation_Area"}]
    (tmp_path / "knowledge_structure_nodes.json").write_text(json.dumps(nodes))
    for path in (
        parquet(tmp_path / "a.parquet", [problem(k, image_path={"bytes": PNG}) for k in keys]),
        tsv(tmp_path / "WeMath.tsv", [problem(k, image=BASE64) for k in keys]),
    ):
        rows, prompts = loaded("wemath", path)
        assert [row["id"] for row in rows] == [f"2steps_1/{key}" for key in keys]
        assert [row["step"] for row in rows] == ["1", "2", "multi"]
        assert rows[0]["options"] == {"A": "1", "B": "2", "C": "3"}
        assert rows[0]["field"] == "Calculation"
        assert "A. 1; B. 2;C. 3" in prompts[0]["question"]
        assert len(prompts[0]["images"]) == 1
        figures = table.find("wemath").score(rows, ["Answer: A", "Answer: A", "Answer: B"])
        assert (figures["groups"], figures["inadequate_generalization"]) == (1, 1.0)


def test_logicvista_and_its_dataset_json(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "v1_0.png").write_bytes(PNG)
    entry = {"imagesource": "v1_0.png", "question": "Select from A-C.", "answer": "A, C"}
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"v1_0": {**entry, "skill": ["inductive"]}}))
    rows, prompts = loaded("logicvista", path)
    assert rows[0]["id"] == "v1_0"
    assert rows[0]["images"] == [tmp_path / "images" / "v1_0.png"]
    kit = {"index": 0, "question": "q", "answer": "B", "image": BASE64, "skill": "['spatial']"}
    rows, _ = loaded("logicvista", tsv(tmp_path / "LogicVista.tsv", [kit]))
    assert rows[0]["skill"] == ["spatial"]
    assert prompts[0]["question"].startswith(IMAGE)


def test_dynamath_variants_in_files_and_in_columns(tmp_path):
    hub = {"id": "1", "question": "q", "ground_truth": "2.5", "answer_type": "float"}
    hub |= {"subject": "algebra", "knowledge_level": "high school"}
    hub |= {"decoded_image": {"bytes": PNG, "path": None}}
    for variant in (1, 2):
        parquet(tmp_path / f"sample_variant{variant}-00000-of-00001.parquet", [hub])
    rows, _ = loaded("dynamath", tmp_path)
    assert [(row["id"], row["seed"], row["variant"]) for row in rows] == [
        ("1-1", "1", "1"),
        ("1-2", "1", "2"),
    ]
    kit = [
        {"index": i, "qid": 1, "varid": i + 1, "question": "q", "answer": "A", "image": BASE64}
        | {"answer_type": "multiple choice", "subject": "s", "knowledge_level": "l"}
        for i in range(2)
    ]
    rows, _ = loaded("dynamath", tsv(tmp_path / "DynaMath.tsv", kit))
    assert [(row["id"], row["variant"], row["level"]) for row in rows] == [
        ("0", "1", "l"),
        ("1", "2", "l"),
    ]


def test_chartqa_in_all_layouts(tmp_path):
    (tmp_path / "png").mkdir()
    (tmp_path / "png" / "chart.png").write_bytes(PNG)
    official = [{"imgname": "chart.png", "query": "How many?", "label": "12"}]
    for kind in ("human", "augmented"):
        (tmp_path / f"test_{kind}.json").write_text(json.dumps(official))
    rows, prompts = loaded("chartqa", tmp_path)
    assert [row["split"] for row in rows] == ["augmented", "human"]
    assert prompts[0]["images"] == [tmp_path / "png" / "chart.png"]
    lmms = {"type": "human_test", "question": "q", "answer": "12", "image": {"bytes": PNG}}
    hub = {"human_or_machine": 1, "query": "q", "label": ["12"], "image": {"bytes": PNG}}
    kit = {"index": 0, "split": "test_augmented", "question": "q", "answer": 12, "image": BASE64}
    for path, split in (
        (parquet(tmp_path / "lmms.parquet", [lmms]), "human"),
        (parquet(tmp_path / "hub.parquet", [hub]), "augmented"),
        (tsv(tmp_path / "ChartQA_TEST.tsv", [kit]), "augmented"),
    ):
        rows, prompts = loaded("chartqa", path)
        assert (rows[0]["split"], rows[0]["answer"]) == (split, "12")
        assert prompts[0]["images"] == [PNG]


def test_mmvp_from_its_csv_and_from_tsv(tmp_path):
    (tmp_path / "MMVP Images").mkdir()
    csv_rows = [
        {"Index": i, "Question": "Is it?", "Options": "(a) Yes (b) No", "Correct Answer": "(b)"}
        for i in (1, 2, 3, 4)
    ]
    rows, prompts = loaded("mmvp", tsv(tmp_path / "Questions.csv", csv_rows, ","))
    assert [row["pair"] for row in rows] == [0, 0, 1, 1]
    assert (rows[0]["answer"], rows[0]["options"]) == ("B", {"A": "Yes", "B": "No"})
    assert prompts[2]["images"] == [tmp_path / "MMVP Images" / "3.jpg"]
    assert "(A) Yes\n(B) No" in prompts[0]["question"]
    kit = [{"index": i, "question": "q", "A": "Yes", "B": "No", "answer": "A"} for i in (0, 1)]
    kit = [row | {"image": BASE64} for row in kit]
    rows, prompts = loaded("mmvp", tsv(tmp_path / "MMVP.tsv", kit))
    assert rows[1]["options"] == {"A": "Yes", "B": "No"}
    assert prompts[0]["images"] == [PNG]


def test_mmmu_puts_every_image_where_its_mark_stands(tmp_path):
    other = png((50, 20))
    row = {
        "id": "validation_Basic_Medical_Science_7",
        "question": "Compare <image 2> with <image 1>.",
        "options": "['like <image 1>', 'neither']",
        "answer": "A",
        "question_type": "multiple-choice",
        "image_1": {"bytes": PNG, "path": None},
        "image_2": {"bytes": other, "path": None},
        "image_3": None,
    }
    rows, prompts = loaded("mmmu", parquet(tmp_path / "validation.parquet", [row]))
    assert (rows[0]["subject"], rows[0]["domain"]) == (
        "Basic_Medical_Science",
        "Health and Medicine",
    )
    assert prompts[0]["images"] == [other, PNG, PNG]
    question = prompts[0]["question"]
    assert question.startswith(f"Compare {IMAGE} with {IMAGE}.\n(A) like {IMAGE}\n(B) neither")
    kit = {"index": 3, "id": "validation_Math_1", "question": "q", "A": "1", "B": "2"}
    kit |= {"answer": "B", "image": BASE64}
    rows, prompts = loaded("mmmu", tsv(tmp_path / "MMMU_DEV_VAL.tsv", [kit]))
    assert (rows[0]["id"], rows[0]["options"]) == ("validation_Math_1", {"A": "1", "B": "2"})
    assert prompts[0]["images"] == [PNG]
    answers = {"validation_Math_1": {"question_type": "short-answer", "ground_truth": ["2", "3"]}}
    (tmp_path / "answer_dict_val.json").write_text(json.dumps(answers))
    rows, _ = loaded("mmmu", tmp_path / "answer_dict_val.json")
    assert (rows[0]["open"], rows[0]["answer"]) == (True, ["2", "3"])


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"question": "q", "answer": "6 * 3\n#### 1,018"}, "1018"),
        ({"problem": "q", "answer": "204"}, "204"),
        ({"problem": "q", "solution": "so \\boxed{\\frac12}"}, "\\frac12"),
        ({"question": "q", "final_answer": ["$69$", "84"]}, "69, 84"),
        ({"question": "q", "answer": 27.0}, "27"),
    ],
)
def test_labels_of_text_benchmarks(tmp_path, row, answer):
    rows, prompts = loaded("math500", jsonl(tmp_path / "a.jsonl", [row]))
    assert rows[0]["answer"] == answer
    assert prompts[0] == {
        "id": "a.jsonl:0",
        "question": "q",
        "images": [],
        "answer": answer,
        "family": None,
    }


def test_geometry3k_as_its_authors_have_it_and_as_the_hub_does(tmp_path):
    folder = tmp_path / "test" / "2401"
    folder.mkdir(parents=True)
    data = {"id": 2401, "annotat_text": "Find $x$.", "choices": ["12", "13"], "answer": "B"}
    (folder / "data.json").write_text(json.dumps([data]))
    rows, prompts = loaded("geometry3k", tmp_path / "test")
    assert rows[0]["images"] == [folder / "img_diagram.png"]
    assert prompts[0]["question"].startswith(f"{IMAGE}Find $x$.\n(A) 12\n(B) 13")
    hub = {"images": [{"bytes": PNG, "path": None}], "problem": "<image>Find x.", "answer": "12"}
    rows, prompts = loaded("geometry3k", parquet(tmp_path / "test.parquet", [hub]))
    assert prompts[0]["question"] == "<image>Find x."
    r1v = {"image": {"bytes": PNG}, "problem": "Find x.", "solution": "<answer> 12 </answer>"}
    rows, prompts = loaded("geoqa", parquet(tmp_path / "train.parquet", [r1v]))
    assert (rows[0]["answer"], prompts[0]["question"]) == ("12", "<image>Find x.")


def test_a_tsv_image_may_be_that_of_another_row(tmp_path):
    rows = [{"index": 1, "image": BASE64}, {"index": 2, "image": "1"}]
    rows = [row | {"question": "q", "answer": "1", "category": "c"} for row in rows]
    found, _ = loaded("mathvision", tsv(tmp_path / "a.tsv", rows))
    assert found[0]["images"] == found[1]["images"] == [PNG]


def test_a_list_of_images_in_a_tsv_cell(tmp_path):
    row = {"index": 1, "image": str([BASE64, BASE64]), "question": "q", "answer": "1"}
    found, prompts = loaded("mathvision", tsv(tmp_path / "a.tsv", [row]))
    assert found[0]["images"] == [PNG, PNG]
    assert prompts[0]["question"].startswith(IMAGE * 2)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: jsonl(p / "a.jsonl", [{"query": "q", "label": "1"}]), ["question", "query"]),
        (lambda p: jsonl(p / "a.jsonl", [{"question": "q"}] * 2), ["answer", "question"]),
        (lambda p: p / "nowhere.jsonl", ["nowhere.jsonl", "does not exist"]),
        (lambda p: jsonl(p / "a.txt", []), ["a.txt", "no kind"]),
        (lambda p: jsonl(p / "a.jsonl", []), ["no rows"]),
        (
            lambda p: jsonl(p / "a.jsonl", [{"id": 1, "question": "q", "answer": "1"}] * 2),
            ["two rows", "'1'"],
        ),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence(tmp_path, write, words):
    with pytest.raises(UserError) as error:
        table.find("mathvision").load(str(write(tmp_path)))
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_broken_files_are_one_sentence(tmp_path):
    for name in ("a.parquet", "a.json", "a.jsonl"):
        (tmp_path / name).write_text("{ no")
        with pytest.raises(UserError, match=name):
            records.read(str(tmp_path / name), {"question": ("question",)})


def test_an_unknown_benchmark_is_told_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean mathvision"):
        table.find("mathvison")
    with pytest.raises(UserError, match="there is mathvision, mathverse"):
        table.find("imagenet")
    assert table.find("MATH-500").name == "math500"
    assert table.find("We-Math").name == "wemath"


REAL = [
    ("mathvision", "mathvision/testmini_100.jsonl", 100),
    ("mathverse", "mathverse/visualizer_42x6.jsonl", 252),
    ("mathverse", "mathverse/testmini_text_only.jsonl", 788),
    ("mathvista", "mathvista_geometry/testmini_geometry_109.jsonl", 109),
    ("mathvista", "mathvista_geometry/testmini_all_1000_text.jsonl", 1000),
    ("wemath", "wemath/testmini_36groups.jsonl", 120),
    ("logicvista", "logicvista/sample_80.jsonl", 79),  # one of 80 has no label
    ("dynamath", "dynamath/10variants_sample.jsonl", 270),
    ("chartqa", "charts_visonlyqa/charts.jsonl", 100),
    ("mmmu", "mmmu/val_answers_900.jsonl", 900),
    ("gsm8k", "text/gsm8k_test_300.jsonl", 300),
    ("math500", "text/math500.jsonl", 500),
    ("aime2024", "text/aime24.jsonl", 30),
    ("amc2023", "text/amc23.jsonl", 40),
    ("olympiadbench", "text/olympiadbench_oe_to_en_200.jsonl", 200),
    ("college_math", "text/college_math_200.jsonl", 200),
    ("gaokao2023en", "text/gaokao2023en.jsonl", 383),  # two of 385 have no label
    ("geometry3k", "geometry3k_redrawn/test.jsonl", 324),
    ("geometry3k", "geometry3k_original_samples/samples.jsonl", 10),
    ("geoqa", "text/geoqa_test_754_textonly.jsonl", 754),
    ("mmr1", "parquet_layout/data@test", 24),
]


@pytest.mark.parametrize(("name", "path", "questions"), REAL)
def test_the_labels_of_real_rows_score_full_and_something_else_scores_nothing(
    name, path, questions
):
    if not DATA.is_dir():
        pytest.skip(f"the real rows are not at hand in {DATA}")
    benchmark = table.find(name)
    rows = [row for row in benchmark.load(str(DATA / path)) if not benchmark.fault(row)]
    assert len(rows) == questions
    golds = [row["answer"][0] if isinstance(row["answer"], list) else row["answer"] for row in rows]
    right = benchmark.grade(rows, [[f"So \\boxed{{{gold}}}.", ""] for gold in golds]).correct
    assert right[:, 0].all()
    assert not right[:, 1].any()
    assert table.headline(benchmark.figures(rows, right[:, 0])) == 1
    assert table.headline(benchmark.figures(rows, right[:, 1])) == 0
    sample = benchmark.prompt(rows[len(rows) // 2])
    assert sample["question"].count(IMAGE) == len(sample["images"])
