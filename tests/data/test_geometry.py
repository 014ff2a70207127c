import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxevolve.data.geometry import FAMILIES, STEPS, WANDER, GeometryProblems, solve
from jaxevolve.runtime.errors import UserError

ASSET = Path(__file__).parents[2] / "jaxevolve" / "assets" / "geo_tiny"
ALL = dict.fromkeys(FAMILIES, 1.0)
RULES = {
    "tri": lambda a, b: 180 - a - b,
    "per3": lambda a, b, c: a + b + c,
    "parC": lambda a: a,
    "parI": lambda a: 180 - a,
    "ext": lambda a, c: a + c,
    "iso": lambda a: 180 - a - a,
    "rect": lambda w, h: w + h + w + h,
}
# What the given numbers, and then the answer, are in the drawing: angles by three letters.
ANGLES = {
    "tri": ("BAC", "ABC", "ACB"),
    "parC": ("LPT", "NQP"),
    "parI": ("LPQ", "NQP"),
    "ext": ("BAC", "ACB", "CBD"),
    "iso": ("BAC", "ACB"),
}
SIDES = {"per3": ("AC", "BC", "AB"), "rect": ("AB", "BC")}

problems = st.builds(
    lambda family, difficulty, seed, index: GeometryProblems(
        seed=seed, families={family: 1.0}, difficulty=difficulty
    ).problem(index),
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from(sorted(STEPS)),
    st.integers(0, 9),
    st.integers(0, 9999),
)


def pixels(row):
    return np.asarray(row["images"][0])


def test_a_row_is_a_function_of_seed_and_index():
    source = GeometryProblems(seed=3, families=ALL)
    again = GeometryProblems(seed=3, families=ALL)
    backwards = [again[i] for i in reversed(range(20))][::-1]
    for i, row in enumerate(backwards):
        same = source[i]
        assert (pixels(row) == pixels(same)).all()
        assert {**row, "images": None} == {**same, "images": None}


def test_seeds_and_indices_differ():
    first, second = GeometryProblems(seed=0), GeometryProblems(seed=1)
    images = [pixels(source[i]).tobytes() for source in (first, second) for i in range(30)]
    assert len(set(images)) == len(images)
    assert len({source[i]["id"] for source in (first, second) for i in range(30)}) == 60


def test_a_row_has_what_a_row_has():
    row = GeometryProblems(seed=5, size=84)[7]
    assert row["id"] == "geometry-5-7"
    assert row["question"].startswith("<image>Find ")
    assert row["images"][0].size == (84, 84)
    assert row["images"][0].mode == "RGB"
    assert row["solution"].endswith(f"</think> \\boxed{{{row['answer']}}}")


@given(problems)
def test_the_answer_follows_from_the_numbers_that_are_read_off(problem):
    numbers = re.match(r"<think>([\d, ]+)\. ", problem.solution)[1]
    read = [int(number) for number in numbers.split(", ")]
    assert read == list(problem.values)
    assert problem.answer == RULES[problem.family](*read)
    assert problem.answer > 0


@given(problems)
def test_every_sum_in_a_solution_is_right(problem):
    sums = re.findall(r"(\d+)([+-])(\d+)=(\d+)", problem.solution)
    for left, sign, right, result in sums:
        assert int(left) + int(sign + right) == int(result)
    assert re.search(r"(\d+)</think>", problem.solution)[1] == str(problem.answer)


@given(problems)
def test_the_drawing_has_the_angles_and_sides_that_it_names(problem):
    if problem.family in ANGLES:
        for name, value in zip(ANGLES[problem.family], (*problem.values, problem.answer)):
            assert problem.figure.angle(name) == pytest.approx(value, abs=1e-6)
    else:
        lengths = [problem.figure.length(name) for name in SIDES[problem.family]]
        ratios = [length / value for length, value in zip(lengths, problem.values)]
        assert ratios == pytest.approx([ratios[0]] * len(ratios))


@given(problems)
def test_labels_are_inside_the_image_and_apart(problem):
    boxes = [label.box() for label in problem.figure.labels]
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 112
        assert 0 <= top < bottom <= 112
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = one[0] >= other[2] or other[0] >= one[2]
            assert apart or one[1] >= other[3] or other[1] >= one[3]


@given(problems)
def test_labels_show_the_given_numbers_first(problem):
    shown = [label.text.rstrip("°") for label in problem.figure.labels]
    assert shown[: len(problem.values)] == [str(value) for value in problem.values]


@given(problems)
def test_points_of_a_figure_are_inside_the_image(problem):
    for x, y in problem.figure.points.values():
        assert 0 <= x <= 112
        assert 0 <= y <= 112


@pytest.mark.parametrize("difficulty", sorted(STEPS))
def test_difficulty_sets_the_numbers(difficulty):
    source = GeometryProblems(families=ALL, difficulty=difficulty)
    values = [value for i in range(200) for value in source.problem(i).values]
    assert np.gcd.reduce(values) == STEPS[difficulty]


def test_difficulty_lets_labels_wander():
    for difficulty, wander in WANDER.items():
        source = GeometryProblems(families={"rect": 1.0}, difficulty=difficulty)
        places = np.array([source.problem(i).figure.labels[0].x for i in range(200)])
        assert np.abs(places - 50).max() == pytest.approx(wander, rel=0.1)


def test_families_come_by_their_weights():
    source = GeometryProblems(families={"tri": 3.0, "rect": 1.0, "iso": 0.0})
    drawn = [source.problem(i).family for i in range(2000)]
    assert drawn.count("tri") / 2000 == pytest.approx(0.75, abs=0.04)
    assert set(drawn) == {"tri", "rect"}


def test_the_given_label_stays_at_its_place_whatever_the_figure():
    source = GeometryProblems(families={"per3": 1.0})
    places = np.array([[(p.x, p.y) for p in source.problem(i).figure.labels] for i in range(100)])
    assert np.ptp(places, axis=0).max() <= 2


def test_the_background_is_white_and_strokes_are_dark():
    image = pixels(GeometryProblems(families={"tri": 1.0})[0])
    assert (image[:2] == 255).all()
    assert image.min() < 40
    assert 0.7 < (image == 255).mean() < 0.98


def test_another_arithmetic_is_carried_to_the_box():
    slipping = lambda left, sign, right: 100 if sign == "+" else left - right
    assert solve("tri", (60, 90), slipping) == (
        "<think>60, 90. 60+90=100, so x=180-100=80</think> \\boxed{80}"
    )


def test_a_row_beyond_the_end_is_an_index_error():
    source = GeometryProblems(length=3)
    assert len(list(source)) == 3
    with pytest.raises(IndexError):
        source[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": {"circle": 1.0}}, "circle"),
        ({"families": {}}, "weights"),
        ({"families": {"tri": -1.0}}, "weights"),
        ({"difficulty": 4}, "difficulty 4"),
        ({"size": 20}, "size 20"),
        ({"length": 0}, "length 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        GeometryProblems(**arguments)


@pytest.mark.skipif(not ASSET.is_dir(), reason="the embedded model has not been made")
@given(problems)
def test_solutions_come_back_from_the_embedded_tokenizer(problem):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ASSET / "tokenizer.json"))
    ids = tokenizer.encode(problem.solution).ids
    assert tokenizer.decode(ids) == problem.solution
    assert len(ids) < 40
    assert tokenizer.token_to_id("<unk>") not in ids
