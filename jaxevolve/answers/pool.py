"""Runs the algebra that could hang or eat memory in processes that may be killed.

Each worker is a process group of its own, started from a file that imports no jax, limited in
memory by the kernel (on Linux) and in time by us. Questions are handed out by one event loop, so
that any thread may ask. The pool starts with the first question and ends with the interpreter.
"""

import atexit
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 2.0
MEMORY_MB = 200
WORKERS = 4
_START_SECONDS = 120.0
_TASKS_A_WORKER = 8
_PATIENCE = 0.25
_LONGEST = 100_000
_LOG = logging.getLogger(__name__)


class GraderError(RuntimeError):
    """No worker can be started, so no answer can be graded."""


class _Worker:
    """A worker process: starting until it says so, then idle or at work until its deadline."""

    def __init__(self, seconds: float, memory_mb: int):
        self.seconds = seconds
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the worker)
        script = str(Path(__file__).with_name("worker.py"))
        # -P: the folder of the script is no place to import from.
        command = [sys.executable, "-P", script, str(seconds), str(memory_mb)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                start_new_session=True,
            )
        except OSError as error:
            raise GraderError(f"cannot start {' '.join(command)}: {error}") from error
        self.ready = False
        self.task: int | None = None
        self.deadline = time.monotonic() + _START_SECONDS
        self._received = b""

    def ask(self, task: int, question: str) -> None:
        self.task = task
        self.deadline = time.monotonic() + self.seconds
        try:
            self.process.stdin.write(question.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.deadline = time.monotonic()  # it died while idle

    def stuck(self, now: float) -> bool:
        """Whether it has been at its task for longer than ordinary algebra takes."""
        return self.task is not None and now > self.deadline - self.seconds + _PATIENCE

    def receive(self) -> str | None:
        """What has arrived: a line, "" for not yet a whole one, None for the end."""
        piece = os.read(self.process.stdout.fileno(), 1 << 16)
        self._received += piece
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return "" if piece else None
        self._received = rest
        return line.decode()

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.log.close()

    def complaint(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()[-2000:]


class Pool:
    """Worker processes that answer the questions of `worker`.

    Args:
        workers: how many at most; one is started for every few questions that wait.
        seconds: wall time a question may take.
        memory_mb: memory that a worker may take beyond what it starts with.
    """

    def __init__(
        self, workers: int = WORKERS, seconds: float = SECONDS, memory_mb: int = MEMORY_MB
    ):
        self._limit = workers
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def ask(self, questions: Sequence[dict[str, Any]]) -> list[bool | None]:
        """Answers questions, in their order.

        Returns:
            A verdict each; None where sympy had none, or hit a limit.

        Raises:
            GraderError: no worker could be started.
        """
        verdicts: list[bool | None] = [None] * len(questions)
        encoded = [json.dumps(question) for question in questions]
        waiting = deque(i for i, text in enumerate(encoded) if len(text) <= _LONGEST)
        with self._lock:
            for worker in [w for w in self._workers if w.process.poll() is not None]:
                self._drop(worker)  # it was ended from outside while idle
            try:
                while waiting or any(worker.task is not None for worker in self._workers):
                    self._start(len(waiting))
                    for worker in self._workers:
                        if waiting and worker.ready and worker.task is None:
                            task = waiting.popleft()
                            worker.ask(task, encoded[task])
                    self._wait(verdicts, encoded)
            finally:
                for worker in [w for w in self._workers if w.task is not None or not w.ready]:
                    self._drop(worker)
        return verdicts

    def close(self) -> None:
        """Ends all workers."""
        with self._lock:
            for worker in list(self._workers):
                self._drop(worker)

    def _start(self, waiting: int) -> None:
        """Starts workers for what waits: by its number, and where all at work seem stuck."""
        free = sum(worker.task is None for worker in self._workers)
        wanted = -(-waiting // _TASKS_A_WORKER) - free
        now = time.monotonic()
        if waiting and not free and all(w.stuck(now) for w in self._workers):
            wanted = max(wanted, 1)
        for _ in range(min(wanted, self._limit - len(self._workers))):
            self._workers.append(_Worker(self._seconds, self._memory_mb))

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.kill()

    def _wait(self, verdicts: list[bool | None], questions: list[str]) -> None:
        """Waits until a worker says something or is out of time."""
        busy = [w for w in self._workers if w.task is not None or not w.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            left = min(worker.deadline for worker in busy) - time.monotonic()
            events = selector.select(min(max(left, 0), _PATIENCE))
        for key, _ in events:
            worker = key.data
            line = worker.receive()
            if line is None and not worker.ready:
                raise GraderError(f"an answer worker died at its start: {worker.complaint()}")
            if line is None:
                self._give_up(worker, questions, "ended its worker")
            elif line and not worker.ready:
                worker.ready = True
            elif line:
                reply = json.loads(line)
                verdicts[worker.task] = reply["verdict"]
                worker.task = None
                if reply["recycle"]:
                    self._drop(worker)
        now = time.monotonic()
        for worker in [w for w in busy if w in self._workers and w.deadline <= now]:
            if not worker.ready:
                raise GraderError(f"an answer worker took over {_START_SECONDS:.0f} s to start")
            if worker.task is not None:
                self._give_up(worker, questions, f"took over {self._seconds:g} s")

    def _give_up(self, worker: _Worker, questions: list[str], reason: str) -> None:
        if worker.task is not None:
            _LOG.warning("a comparison %s: %.200s", reason, questions[worker.task])
        self._drop(worker)


_pool: Pool | None = None
_starting = threading.Lock()


def shared() -> Pool:
    """The pool of this process; made at the first call."""
    global _pool
    with _starting:
        if _pool is None:
            _pool = Pool()
            atexit.register(_pool.close)
        return _pool


def _forget() -> None:
    """A forked child must not talk to its parent's workers."""
    global _pool, _starting
    _pool, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
