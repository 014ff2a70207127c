"""A user's own reward, from the file to the numbers."""

import re
from pathlib import Path

import numpy as np
import pytest

from jaxevolve.answers.grading import Graded
from jaxevolve.rewards.user import load, user_reward
from jaxevolve.runtime.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
GROUP, M = 3, 2
ROWS = [{"id": "q0", "answer": "1", "images": []}, {"id": "q1", "answer": None, "images": []}]
TEXTS = [[f"text {p}{i}" for i in range(GROUP * (1 + M))] for p in range(2)]
ANSWERS = [["1", "2", None, *"112212"], ["3", "3", "4", *"333344"]]
CLASSES = np.array([[0, 1, -1, 0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0, 0, 1, 1]], np.int32)
GRADED = Graded(ANSWERS, CLASSES, [None, None], CLASSES == 0, np.array([True, False]), [None] * 2)
MATERNAL = np.arange(GROUP)


@pytest.fixture
def write(tmp_path):
    """Writes a file of a user and gives FILE.py:FUNCTION."""

    def make(source, name="reward"):
        file = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.py"
        file.write_text(source, encoding="utf-8")
        return f"{file}:{name}"

    return make


def rewarded(kind, order=MATERNAL, scores=None):
    return user_reward(kind, ROWS, TEXTS, GRADED, order, GROUP, scores)


def refusal(kind):
    with pytest.raises(UserError) as told:
        load(kind)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_the_function_sees_the_group_and_its_numbers_are_the_rewards(write):
    kind = write(
        "seen = []\ndef reward(group):\n    seen.append(group)\n    return [len(seen), 0.5, None]\n"
    )
    scores = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], np.float32)
    np.testing.assert_array_equal(
        rewarded(kind, scores=scores), np.float32([[1, 0.5, np.nan], [2, 0.5, np.nan]])
    )
    first, second = load(kind).__globals__["seen"]
    assert first.row is ROWS[0]
    assert first.responses == ["text 00", "text 01", "text 02"]
    assert first.answers == ["1", "2", None]
    assert first.classes.tolist() == [0, 1, -1]
    assert second.reinferences == [
        ["text 13", "text 14"],
        ["text 15", "text 16"],
        ["text 17", "text 18"],
    ]
    assert second.reanswers == [["3", "3"], ["3", "3"], ["4", "4"]]
    assert second.reclasses.tolist() == [[0, 0], [0, 0], [1, 1]]
    np.testing.assert_array_equal(second.scores, scores[1])


def test_re_inferences_that_are_trained_on_are_rewarded_in_the_given_order(write):
    kind = write("def reward(group):\n    return [float(text[-1]) for text in group.responses]\n")
    order = np.array([0, 3, 4, 1, 5, 6, 2, 7, 8])
    np.testing.assert_array_equal(rewarded(kind, order), [order, order])


def test_without_re_inferences_and_judge_there_are_none(write):
    kind = write(
        "def reward(group):\n"
        "    assert group.reinferences == [[], [], []] and group.reclasses.shape == (3, 0)\n"
        "    assert group.scores is None\n"
        "    return group.classes\n"
    )
    graded = Graded(
        [a[:GROUP] for a in ANSWERS],
        CLASSES[:, :GROUP],
        [None] * 2,
        CLASSES[:, :GROUP] == 0,
        np.ones(2, bool),
        [None] * 2,
    )
    texts = [group[:GROUP] for group in TEXTS]
    found = user_reward(kind, ROWS, texts, graded, MATERNAL, GROUP)
    np.testing.assert_array_equal(found, CLASSES[:, :GROUP])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def other(group):\n    pass\n", ["has no reward", "define reward(group)"]),
        ("def rewards(group):\n    pass\n", ["has no reward", "did you mean rewards"]),
        ("x = 1\n\ndef reward(group:\n    pass\n", [":3", "SyntaxError"]),
        ("x = 1\nimport nothing_of_this_name\n", [":2", "nothing_of_this_name"]),
        ("reward = 0.5\n", ["no function", "0.5"]),
        ("def reward():\n    pass\n", ["one argument", "reward(group)"]),
        ("def reward(texts, answers):\n    pass\n", ["one argument", "answers"]),
    ],
    ids=["other", "near", "syntax", "import", "number", "none", "two"],
)
def test_a_file_that_cannot_serve_is_refused_with_one_sentence(write, source, words):
    kind = write(source)
    told = refusal(kind)
    assert kind.rpartition(":")[0] in told
    assert all(word in told for word in words), told


def test_a_missing_file_is_named():
    assert "nowhere/mine.py does not exist" in refusal("nowhere/mine.py:reward")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("[1, 2]", ["2 values", "3 responses"]),
        ("[1, 2, float('nan')]", ["nan", "response 2", "None"]),
        ("[1, float('inf'), 0]", ["inf", "response 1"]),
        ("[1, '2', 3]", ["'2'", "response 1"]),
        ("0.5", ["0.5", "list of 3 numbers"]),
        ("None", ["None", "list of 3 numbers"]),
        ("'abc'", ["'abc'", "list of 3 numbers"]),
        ("{0: 1, 1: 2, 2: 3}", ["list of 3 numbers"]),
    ],
)
def test_what_is_no_list_of_numbers_is_told_with_its_row(write, returned, words):
    kind = write(f"def reward(group):\n    return {returned}\n")
    with pytest.raises(UserError) as told:
        rewarded(kind)
    assert all(word in str(told.value) for word in ["row q0", kind, *words]), told.value


def test_numbers_of_all_kinds_are_numbers(write):
    kind = write(
        "import numpy as np\n"
        "def reward(group):\n"
        "    return [True, np.float32(0.5), np.bool_(True)]\n"
    )
    np.testing.assert_array_equal(rewarded(kind), [[1, 0.5, 1]] * 2)


def test_an_error_is_told_with_file_line_and_row(write):
    kind = write(
        "import math\n"
        "def root(x):\n"
        "    return math.sqrt(x)\n"
        "\n"
        "def reward(group):\n"
        "    return [root(-1 if group.row['answer'] is None else 1) for _ in group.answers]\n"
    )
    with pytest.raises(UserError) as told:
        rewarded(kind)
    path = kind.rpartition(":")[0]
    assert str(told.value).startswith(f"reward {path}:3 failed at row q1; ValueError: ")


def test_the_example_of_the_documents_rewards_as_it_says(write):
    page = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found = rewarded(write(example, "brief"))
    third = 1 / 3
    expected = [[third - 0.1, third - 0.1, np.nan], [2 * third - 0.1, 2 * third - 0.1, third - 0.1]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
