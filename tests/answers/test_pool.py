"""Limits and lives of the worker processes."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import pytest

from jaxevolve.answers import GraderError, classes, equal_many
from jaxevolve.answers.algebra import add, decode, mul
from jaxevolve.answers.equality import compare_many
from jaxevolve.answers.pool import MEMORY_MB, SECONDS, Pool, shared

HANGS = {"kind": "expression", "left": ["^", ["num", "9"], ["num", "30000000"]], "right": "x"}
EQUAL = {
    "kind": "expression",
    "left": ["^", ["+", "x", ["num", "1"]], ["num", "2"]],
    "right": ["+", ["^", "x", ["num", "2"]], ["*", ["num", "2"], "x"], ["num", "1"]],
}
UNEQUAL = EQUAL | {"right": "x"}
NONSENSE = {"kind": "expression", "left": ["no such", "x"], "right": "x"}
SUM = {"kind": "value", "left": r"\sum_{k=1}^{n} k"}
# Python's own loops hang in the one, an operation on one number in the other.
SLOW = {"kind": "value", "left": r"\sum_{k=1}^{n} \sin^{9}(k^2)"}
PAIRS = [
    (r"\frac{7}{\sqrt{3}+1}", r"\frac{7(\sqrt3-1)}{2}"),
    ("(x-1)^2", "x^2-2x+1"),
    (r"\sin 60^\circ", r"\frac{\sqrt3}{2}"),
    ("2x+3y=5", r"y=\frac{5-2x}{3}"),
]


@pytest.fixture
def pool():
    made = Pool(workers=2, seconds=1.5)
    yield made
    made.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_verdicts_come_in_order(pool):
    assert pool.ask([EQUAL, UNEQUAL, NONSENSE, EQUAL]) == [True, False, None, True]
    assert pool.ask([]) == []


def test_a_sum_comes_to_an_expression(pool):
    tree, nothing = pool.ask([SUM, {"kind": "value", "left": r"\sum_{k=1}^{n} f(k)"}])
    n = "n"
    assert decode(tree) == add(mul(Fraction(1, 2), n), mul(Fraction(1, 2), n, n))
    assert nothing is None


def test_of_32_answers_three_that_hang_cost_no_more_than_the_limit():
    pool = Pool()
    try:
        pool.ask([EQUAL])
        questions = [EQUAL, UNEQUAL] * 16
        questions[3], questions[4], questions[20] = HANGS, SLOW, HANGS
        start = time.monotonic()
        replies = pool.ask(questions)
        assert time.monotonic() - start < SECONDS + 1  # room for a machine that does other things
        expected = [True, False] * 16
        expected[3] = expected[4] = expected[20] = None
        assert replies == expected
        assert len(pool._workers) <= 2
    finally:
        pool.close()


def test_a_hopeless_formula_is_tried_once(monkeypatch):
    asked = []
    ask = shared().ask
    monkeypatch.setattr(
        shared(), "ask", lambda questions: asked.extend(questions) or ask(questions)
    )
    monkeypatch.setattr(shared(), "_seconds", 1.0)
    hopeless = [r"\sum_{k=1}^{m} \cos^{9}(k^3)", r"\int_0^1 \sin(x^{x^{x}})\,dx"]
    others = ["1", "x", "m^2", r"\sum_{k=1}^{m} 2k"]
    assert classes([*hopeless, *others, *hopeless]).tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert sorted(question["kind"] for question in asked) == ["value"] * 3
    assert compare_many([(hopeless[0], "7"), ("m(m+1)", others[3])]) == [
        (False, True),
        (True, False),
    ]
    assert len(asked) <= 4


def test_a_question_that_hangs_is_given_up(pool):
    pool.ask([EQUAL])
    start = time.monotonic()
    assert pool.ask([HANGS]) == [None]
    assert time.monotonic() - start < 4
    assert pool.ask([EQUAL]) == [True]


def test_a_worker_that_does_not_give_up_by_itself_is_ended(pool):
    pool.ask([EQUAL])
    (worker,) = pool._workers
    os.kill(worker.pid, signal.SIGSTOP)
    assert pool.ask([EQUAL]) == [None]
    assert not _alive(worker.pid)
    assert pool.ask([EQUAL]) == [True]


def test_the_others_do_not_wait_for_one_that_hangs(pool):
    assert pool.ask([EQUAL, HANGS, UNEQUAL, EQUAL]) == [True, None, False, True]


def test_a_worker_that_was_killed_while_idle_costs_no_verdict(pool):
    pool.ask([EQUAL])
    for worker in pool._workers:
        os.kill(worker.pid, signal.SIGKILL)
        while not worker.is_gone():
            time.sleep(0.01)
    assert pool.ask([EQUAL, UNEQUAL]) == [True, False]


def test_a_pool_whose_first_process_was_killed_begins_again(pool):
    pool.ask([EQUAL])
    os.kill(pool._nursery._process.pid, signal.SIGKILL)
    pool._nursery._process.wait()
    assert pool.ask([EQUAL, UNEQUAL]) == [True, False]


def test_close_leaves_no_process(pool):
    pool.ask([EQUAL])
    pids = [worker.pid for worker in pool._workers]
    assert pids
    pool.close()
    assert not any(map(_alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_limited_by_the_kernel(pool):
    pool.ask([EQUAL])
    (worker, *_) = pool._workers
    process = Path(f"/proc/{worker.pid}")
    (line,) = [x for x in (process / "limits").read_text().splitlines() if "address space" in x]
    limit = int(line.split()[3])
    used = int((process / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    assert 0 < limit - used <= MEMORY_MB * 2**20


@pytest.mark.parametrize(
    ("executable", "message"), [("/bin/false", "died"), ("/no/such/python", "cannot start")]
)
def test_a_grader_that_cannot_run_raises(monkeypatch, executable, message):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(GraderError, match=message):
        Pool().ask([EQUAL])


def test_threads_get_the_same_verdicts(pool):
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda pair: equal_many([pair]), PAIRS)) == [[True]] * 4
        batches = list(threads.map(pool.ask, [[EQUAL, UNEQUAL]] * 4))
    assert batches == [[True, False]] * 4


def test_other_processes_get_the_same_verdicts():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(equal_many, PAIRS).result(60) == [True] * 4


def test_a_forked_child_starts_its_own_workers():
    code = """
import os
from jaxevolve.answers import equal
assert equal(gold="(x+1)^2", pred="x^2+2x+1")
child = os.fork()
if child == 0:
    os._exit(0 if equal(gold="(x+2)^2", pred="x^2+4x+4") else 1)
assert os.waitpid(child, 0)[1] == 0
assert equal(gold="(x+3)^2", pred="x^2+6x+9")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_import_needs_no_jax_and_starts_nothing():
    code = """
import sys
import jaxevolve.answers
from jaxevolve.answers import pool
heavy = {"jax", "torch", "transformers", "sympy", "math_verify"} & set(sys.modules)
assert not heavy, heavy
assert pool._pool is None
assert jaxevolve.answers.equal(gold="0.5", pred="\\\\frac12")
assert pool._pool is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
