"""Shares of right answers, against small examples worked by hand."""

import contextlib
import itertools
from dataclasses import dataclass, field

import answerer
import numpy as np
import pytest

from jaxevolve.benchmarks import accuracy
from jaxevolve.benchmarks.accuracy import (
    Outcome,
    evaluate,
    outcome_of,
    pass_at,
    select,
    shares,
    summary,
)
from jaxevolve.policy import Samples

# Four questions, four samples each. Of the first question class 1 is right, of the second class 0,
# of the third none though all agree; the last has no answer.
CLASSES = np.array([[0, 1, 1, 2], [0, 1, 0, 1], [0, 0, 0, 0], [-1, -1, -1, -1]])
CORRECT = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]], bool)
OUTCOME = Outcome(
    greedy=np.array([True, True, False, False]),
    correct=CORRECT,
    classes=CLASSES,
    stopped=np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool),
    entropy=np.array([0.5, 1.5, 1.0, 3.0]),
    tokens=100,
)


def test_shares_of_a_small_example():
    assert shares(OUTCOME) == {
        "questions": 4,
        "greedy": 2 / 4,
        "average@4": 4 / 16,
        "majority@4": 2 / 4,  # the second ties and its first seen answer is right
        "pass@4": 2 / 4,
        "unanimous": 1 / 4,  # to agree on no answer is no agreement
        "high_confidence_wrong": 1 / 4,
        "no_answer": 4 / 16,
        "truncated": 5 / 16,
        "entropy": 1.5,
    }


def test_a_tie_goes_to_the_answer_seen_first():
    lost = np.array([[0, 1, 0, 1]]) == 1
    outcome = select(OUTCOME, np.array([False, True, False, False]))
    outcome = Outcome(**{**vars(outcome), "correct": lost})
    assert shares(outcome)["majority@4"] == 0
    assert shares(outcome)["pass@4"] == 1


@pytest.mark.parametrize(
    ("classes", "right", "confident_and_wrong"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 1], 1, True),  # seven of eight
        ([0, 0, 0, 0, 0, 0, 1, 1], 1, False),  # six of eight
        ([0, 0, 0, 0, 0, 0, 0, 0], 0, False),  # sure and right
        ([0, 1, 1, 1, 1, 1, 1, 1], 0, True),  # the first seen is not the majority
        ([-1, 0, 0, 0, 0, 0, 0, 0], 5, True),  # no answer is no vote, and stays in the number
        ([-1, -1, 0, 0, 0, 0, 0, 0], 5, False),
        ([-1, -1, -1, -1, -1, -1, -1, -1], 5, False),
    ],
)
def test_seven_of_eight_on_one_wrong_answer_are_confident_and_wrong(
    classes, right, confident_and_wrong
):
    classes = np.array([classes])
    outcome = Outcome(
        greedy=np.array([False]),
        correct=classes == right,
        classes=classes,
        stopped=np.ones((1, 8), bool),
        entropy=np.zeros(1),
        tokens=0,
    )
    assert shares(outcome)["high_confidence_wrong"] == confident_and_wrong


def test_a_summary_has_the_same_shares_by_family():
    made = summary(OUTCOME, ["b", "a", "b", None])
    assert {key: made[key] for key in shares(OUTCOME)} == shares(OUTCOME)
    assert list(made["family"]) == ["a", "b"]
    assert made["family"]["a"]["questions"] == 1
    assert made["family"]["a"]["average@4"] == 2 / 4
    assert made["family"]["b"]["questions"] == 2
    assert made["family"]["b"]["greedy"] == 1 / 2
    assert made["family"]["b"]["high_confidence_wrong"] == 1 / 2
    assert "family" not in summary(OUTCOME, [None] * 4)


def test_the_outcome_of_records_is_that_of_their_arrays():
    records = [
        {
            "greedy_correct": bool(OUTCOME.greedy[i]),
            "correct": CORRECT[i].tolist(),
            "classes": CLASSES[i].tolist(),
            "stopped": OUTCOME.stopped[i].tolist(),
            "entropy": float(OUTCOME.entropy[i]),
            "tokens": 25,
        }
        for i in range(4)
    ]
    made = outcome_of(records)
    assert made.tokens == 100
    assert shares(made) == shares(OUTCOME)


def test_what_nobody_knows_of_responses_is_left_out():
    records = [{"greedy_correct": True, "correct": [True, False], "classes": [0, 1]}]
    figures = summary(outcome_of(records, excluded=3), [None])
    assert figures["average@2"] == 1 / 2
    assert figures["excluded"] == 3
    assert not {"truncated", "entropy"} & set(figures)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    generator = np.random.default_rng(0)
    for n in (1, 2, 5, 8):
        correct = generator.random((6, n)) < 0.4
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(range(n), k))
            brute = np.mean([[row[list(s)].any() for s in subsets] for row in correct])
            assert pass_at(correct, k) == pytest.approx(brute, abs=1e-12)
    assert pass_at(CORRECT, 1) == pytest.approx(CORRECT.mean())
    assert pass_at(CORRECT, 4) == 2 / 4
    # One right of three: of the three pairs two hold it. Two right: every pair holds one.
    assert pass_at(np.array([[1, 0, 0], [1, 1, 0]], bool), 2) == pytest.approx((2 / 3 + 1) / 2)


def test_entropy_is_the_mean_surprise_of_a_questions_sampled_tokens():
    logprobs = np.zeros((2, 2, 3), np.float32)
    logprobs[0] = [[-1, -2, -3], [-2, 0, 0]]
    lengths = np.array([[3, 1], [0, 0]])
    samples = Samples([], np.zeros((2, 2, 3), int), lengths, logprobs, lengths > 0)
    assert accuracy.token_entropy(samples).tolist() == [2.0, 0.0]


@dataclass
class Reciter:
    """A policy that answers by heart: the label at first, then the label and two other answers."""

    processor: object
    answers: dict  # by sample id
    asked: list = field(default_factory=list)  # (sample ids, n, temperature)

    def generate(self, prompts, *, n, temperature=1.0, max_tokens, seed=0):
        ids = prompts.ids.tolist()
        self.asked.append((ids, n, temperature))
        boxes = [self.answers.get(id, "9") for id in ids]
        texts = [[f"\\boxed{{{a}}}", "\\boxed{7}", "none"][:n] for a in boxes]
        shape = (len(ids), n)
        return Samples(
            texts,
            np.zeros((*shape, max_tokens), np.int32),
            np.full(shape, 2, np.int32),
            np.zeros((*shape, max_tokens), np.float32),
            np.ones(shape, bool),
        )


@pytest.mark.parametrize(("batch", "batches"), [(4, 2), (256, 1), (1, 5)])
def test_every_question_is_scored_once_and_the_last_batch_counts(policy, batch, batches):
    rows = answerer.rows(5)
    wrong = rows[4]["id"]
    ids = policy.prompts(rows).ids.tolist()
    known = {id: "8" if row["id"] == wrong else row["answer"] for id, row in zip(ids, rows)}
    reciter = Reciter(policy.processor, known)
    outcome, records = evaluate(reciter, rows, n=3, max_tokens=4, batch=batch)
    figures = shares(outcome)
    assert figures["questions"] == len(records) == 5
    assert [record["id"] for record in records] == [row["id"] for row in rows]
    assert figures["greedy"] == figures["pass@3"] == figures["majority@3"] == 4 / 5
    assert figures["average@3"] == pytest.approx(4 / 15)
    assert figures["no_answer"] == pytest.approx(1 / 3)
    assert outcome.tokens == 5 * 4 * 2
    assert len(reciter.asked) == 2 * batches
    assert {(n, t) for _, n, t in reciter.asked} == {(1, 0.0), (3, 1.0)}
    assert len({len(asked) for asked, *_ in reciter.asked}) == 1  # one shape
    assert records[4]["responses"] == ["\\boxed{8}", "\\boxed{7}", "none"]
    assert records[4]["answers"] == ["8", "7", None]
    assert records[0]["correct"] == [True, False, False]
    assert (records[0]["greedy_correct"], records[4]["greedy_correct"]) == (True, False)


def test_a_question_with_a_broken_label_is_left_out_and_counted(policy, caplog):
    rows = answerer.rows(3)
    rows = [rows[0], {**rows[1], "answer": "see figure"}, rows[2]]
    ids = policy.prompts(rows).ids.tolist()
    known = {id: row["answer"] for id, row in zip(ids, rows)}
    outcome, records = evaluate(Reciter(policy.processor, known), rows, n=2, max_tokens=4)
    figures = summary(outcome, [record["family"] for record in records])
    assert (figures["questions"], figures["excluded"], figures["greedy"]) == (2, 1, 1.0)
    assert [record["id"] for record in records] == [rows[0]["id"], rows[2]["id"]]
    assert f"question {rows[1]['id']} is excluded: the label points elsewhere" in caplog.text


def test_two_processes_share_the_questions_and_both_know_all(policy, monkeypatch):
    rows = answerer.rows(5)
    known = dict(zip(policy.prompts(rows).ids.tolist(), (row["answer"] for row in rows)))
    alone, records = evaluate(Reciter(policy.processor, known), rows, n=2, max_tokens=4)
    shared = []

    def gather(mine):
        shared.append(mine)
        if len(shared) == 1:
            raise StopIteration  # process 0 would wait here
        return shared

    monkeypatch.setattr(accuracy, "gather", gather)
    monkeypatch.setattr(accuracy.jax, "process_count", lambda: 2)
    for process in range(2):
        monkeypatch.setattr(accuracy.jax, "process_index", lambda process=process: process)
        reciter = Reciter(policy.processor, known)
        with contextlib.suppress(StopIteration):
            both, together = evaluate(reciter, rows, n=2, max_tokens=4, batch=1)
    assert [len(mine) for mine in shared] == [3, 2]
    assert shares(both) == shares(alone)
    assert [r["responses"] for r in together] == [r["responses"] for r in records]


def test_the_first_questions_are_asked_where_not_all_are(policy):
    rows = answerer.rows(5)
    reciter = Reciter(policy.processor, {})
    outcome, records = evaluate(reciter, rows, questions=2, n=2, max_tokens=4)
    assert [record["id"] for record in records] == [row["id"] for row in rows[:2]]
    assert shares(outcome)["questions"] == 2
