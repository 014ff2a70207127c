"""Questions that come again: which of their answers are the same, and what grew."""

import numpy as np
import pytest

from jaxevolve import visits
from jaxevolve.runtime.metrics import read_jsonl
from jaxevolve.theory import tilted
from jaxevolve.visits import HELD_OUT, MOST, TRAINING, Answered, Visits, factors, rule_of


def test_an_answer_keeps_its_number_however_it_is_spelled(tmp_path):
    book = Visits(tmp_path, 0, "majority")
    assert book.note(HELD_OUT, 0, [Answered("a", ["41", "7", None, "41^\\circ"])]) == {}
    told = book.note(HELD_OUT, 10, [Answered("a", ["41.0", "1/2", "7", None]), Answered("b", [])])
    first, second = read_jsonl(tmp_path / visits.FILE)
    assert (first["classes"], first["new"]) == ({"a": [0, 1, -1, 0]}, {"a": ["41", "7"]})
    assert second["classes"] == {"a": [0, 2, 1, -1], "b": []}
    assert second["new"] == {"a": ["1/2"]}
    # 41 was given two times of three and one of three: odds 2.5 / 1.5 and 1.5 / 2.5.
    assert told["contrast/measured"] == pytest.approx((1.5 / 2.5) / (2.5 / 1.5))
    assert told["contrast/questions"] == 1


def test_questions_of_training_and_held_out_ones_are_not_mixed_up(tmp_path):
    book = Visits(tmp_path, 0, "majority")
    book.note(HELD_OUT, 1, [Answered("a", ["1", "2"])])
    assert book.note(TRAINING, 2, [Answered("a", ["2", "1"])]) == {}
    assert book.note(TRAINING, 3, [Answered("a", ["2", "2"])])["contrast/questions"] == 1


def test_a_run_that_goes_on_knows_what_was_answered_before(tmp_path):
    answers = {1: ["1", "2", "2"], 2: ["2", "2", "3"], 3: ["3", "2", "2"], 4: ["2", "4", "2"]}
    through, killed = tmp_path / "through", tmp_path / "killed"
    told = []
    for folder, stops in ((through, ()), (killed, (2, 3))):
        folder.mkdir()
        book, found = Visits(folder, 0, "softened"), []
        for step, given in answers.items():
            if step in stops:  # killed after this step was noted, and gone on from the one before
                book.note(TRAINING, step, [Answered("a", given)])
                book = Visits(folder, step - 1, "softened")
            found.append(book.note(TRAINING, step, [Answered("a", given)]))
        told.append(found)
    assert told[0] == told[1]
    files = [(folder / visits.FILE).read_text() for folder in (through, killed)]
    assert files[0] == files[1]


def test_a_step_that_is_noted_twice_is_no_visit_after_itself(tmp_path):
    """An evaluation before the first step, of a run that was killed in between."""
    asked = [Answered("a", ["1", "2"])]
    Visits(tmp_path, 0, "majority").note(HELD_OUT, 0, asked)
    assert Visits(tmp_path, 0, "majority").note(HELD_OUT, 0, asked) == {}


def test_answers_without_end_are_bounded(tmp_path):
    book = Visits(tmp_path, 0, "majority")
    for step in range(4):
        answers = [str(1000 * step + i) for i in range(20)] + ["9" * 500]
        book.note(TRAINING, step, [Answered("a", answers)])
    lines = read_jsonl(tmp_path / visits.FILE)
    assert sum(len(line["new"].get("a", ())) for line in lines) == MOST
    assert max(c for line in lines for c in line["classes"]["a"]) == MOST - 1
    assert all(line["classes"]["a"][-1] == -1 for line in lines)


@pytest.mark.parametrize("rule", ["majority", "softened"])
def test_a_runs_own_prediction_follows_what_is_measured(rule):
    """Groups of 2,000 answers that follow the recursion, eta 0.5, from known shares."""
    numbers = np.random.default_rng(0)
    p = numbers.dirichlet([2, 2, 1], 300)
    reward = p if rule == "softened" else np.eye(3)[p.argmax(-1)]
    after = tilted(p, reward, 0.5)
    draw = lambda shares: [numbers.choice(3, 2000, p=share).tolist() for share in shares]
    told = factors(list(zip(draw(p), draw(after))), rule)
    assert told["contrast/eta"] == pytest.approx(0.5, rel=0.1)
    assert told[f"contrast/{rule}"] == pytest.approx(told["contrast/measured"], rel=0.05)
    assert told["contrast/softened"] < told["contrast/majority"]


def test_where_all_agree_there_is_no_factor():
    assert factors([([0, 0], [0, 0]), ([-1, -1], [-1, 1])], "majority") == {"contrast/questions": 0}


def test_rewards_by_a_share_are_softened_and_all_others_are_not():
    kinds = ("softened", "self_consistency", "majority", "label")
    assert [rule_of(kind) for kind in kinds] == ["softened", "softened", "majority", "majority"]
