"""Runs the algebra that could hang or eat memory in processes that may be killed.

Every worker is a process group of its own, limited in memory by the kernel (on Linux) and in time
by us. Questions are handed out by one event loop, so that any thread may ask. The pool starts with
the first question and ends with the interpreter.
"""

import atexit
import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import struct
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
WORKERS = 8
_START_SECONDS = 120.0
_TASKS_A_WORKER = 8
_PATIENCE = 0.1
_IDLE = 2
_LONGEST = 100_000
_COMMAND = struct.Struct("!ci")
_LOG = logging.getLogger(__name__)


class GraderError(RuntimeError):
    """No worker can be started, so no answer can be graded."""


class _Nursery:
    """The process that has loaded sympy and forks the workers."""

    def __init__(self, seconds: float, memory_mb: int):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._control, theirs = socket.socketpair()
        script = str(Path(__file__).with_name("worker.py"))
        # -P: the folder of the script is no place to import from.
        limits = [str(seconds), str(memory_mb), str(theirs.fileno())]
        command = [sys.executable, "-P", script, *limits]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise GraderError(f"cannot start {' '.join(command)}: {error}") from error
        finally:
            theirs.close()
        self._control.settimeout(_START_SECONDS)
        try:
            self._receive()
        except GraderError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not been ended from outside."""
        return self._process.poll() is None

    def fork(self, connection: socket.socket) -> int:
        """Forks a worker that serves a connection; its process id."""
        self._send(b"f", 0, connection)
        return self._receive()

    def end(self, worker: int) -> None:
        """Kills a worker's process group, and waits for its end."""
        self._send(b"k", worker)
        self._receive()

    def close(self) -> None:
        """Ends it with its workers."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def forget(self) -> None:
        """Lets go of it in a forked child, whose own it is not."""
        self._control.close()

    def _send(self, command: bytes, number: int, connection: socket.socket | None = None) -> None:
        files = [] if connection is None else [connection.fileno()]
        try:
            socket.send_fds(self._control, [_COMMAND.pack(command, number)], files)
        except OSError as error:
            raise GraderError(f"the process of the answer workers is gone: {error}") from error

    def _receive(self) -> int:
        try:
            message = self._control.recv(_COMMAND.size, socket.MSG_WAITALL)
        except TimeoutError:
            raise GraderError(
                f"the process of the answer workers was silent for {_START_SECONDS:.0f} s"
            ) from None
        except OSError:
            message = b""
        if len(message) < _COMMAND.size:
            self._log.seek(0)
            complaint = self._log.read().decode(errors="replace").strip()[-2000:]
            raise GraderError(f"the process of the answer workers died: {complaint}")
        return _COMMAND.unpack(message)[1]


class _Worker:
    """A worker process: idle, or at work until its deadline."""

    def __init__(self, nursery: _Nursery, seconds: float):
        self._seconds = seconds
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.pid = nursery.fork(theirs)
        self.task: int | None = None
        self.deadline = 0.0
        self._received = b""

    def ask(self, task: int, question: str) -> None:
        self.task = task
        self.deadline = time.monotonic() + self._seconds
        try:
            self.connection.sendall(question.encode() + b"\n")
        except OSError:
            self.deadline = time.monotonic()  # it died while idle

    def is_gone(self) -> bool:
        """Whether it has been ended from outside while idle."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_stuck(self, now: float) -> bool:
        """Whether it has been at its task for longer than ordinary algebra takes."""
        return self.task is not None and now > self.deadline - self._seconds + _PATIENCE

    def receive(self) -> str | None:
        """What has arrived: a line, "" for not yet a whole one, None for the end."""
        try:
            piece = self.connection.recv(1 << 16)
        except OSError:
            piece = b""
        self._received += piece
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return "" if piece else None
        self._received = rest
        return line.decode()


class Pool:
    """Worker processes that answer the questions of `worker`.

    Args:
        workers: how many at most; there are as many as cores, and one more for each that is stuck.
        seconds: wall time a question may take.
        memory_mb: memory that a worker may take beyond what it starts with.
    """

    def __init__(
        self, workers: int = WORKERS, seconds: float = SECONDS, memory_mb: int = MEMORY_MB
    ):
        self._limit = workers
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._nursery: _Nursery | None = None
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def ask(self, questions: Sequence[dict[str, Any]]) -> list[Any]:
        """Answers questions, in their order.

        Returns:
            A reply each; None where sympy had none, or hit a limit.

        Raises:
            GraderError: no worker could be started.
        """
        replies: list[Any] = [None] * len(questions)
        encoded = [json.dumps(question) for question in questions]
        waiting = deque(i for i, text in enumerate(encoded) if len(text) <= _LONGEST)
        with self._lock:
            try:
                self._clear()
                while waiting or any(worker.task is not None for worker in self._workers):
                    self._start(len(waiting))
                    for worker in self._workers:
                        if waiting and worker.task is None:
                            task = waiting.popleft()
                            worker.ask(task, encoded[task])
                    self._wait(replies, encoded)
                for worker in self._workers[_IDLE:]:
                    self._drop(worker)
            except BaseException:  # an interrupt too: what is at work has no one to answer to
                self._end()
                raise
        return replies

    def processes(self) -> list[int]:
        """The ids of the processes that live now."""
        first = [] if self._nursery is None else [self._nursery.pid]
        return first + [worker.pid for worker in self._workers]

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Lets go of all processes in a forked child."""
        for worker in self._workers:
            worker.connection.close()
        if self._nursery is not None:
            self._nursery.forget()

    def _clear(self) -> None:
        """Drops what has been ended from outside since the last questions."""
        if self._nursery is not None and not self._nursery.alive:
            self._end()
        for worker in [worker for worker in self._workers if worker.is_gone()]:
            self._drop(worker)

    def _end(self) -> None:
        for worker in self._workers:
            worker.connection.close()
            if not self._nursery.alive:  # or else it ends them itself
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
        self._workers = []
        if self._nursery is not None:
            self._nursery.close()
        self._nursery = None

    def _start(self, waiting: int) -> None:
        """Starts workers for what waits, and in the place of those that seem stuck."""
        now = time.monotonic()
        stuck = sum(worker.is_stuck(now) for worker in self._workers)
        wanted = min(-(-waiting // _TASKS_A_WORKER), os.cpu_count() or 1) + stuck
        if not waiting or len(self._workers) >= min(wanted, self._limit):
            return
        if self._nursery is None:
            self._nursery = _Nursery(self._seconds, self._memory_mb)
        while len(self._workers) < min(wanted, self._limit):
            self._workers.append(_Worker(self._nursery, self._seconds))

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        self._nursery.end(worker.pid)

    def _wait(self, replies: list[Any], questions: list[str]) -> None:
        """Waits until a worker says something or is out of time."""
        busy = [worker for worker in self._workers if worker.task is not None]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.connection, selectors.EVENT_READ, worker)
            left = min(worker.deadline for worker in busy) - time.monotonic()
            events = selector.select(min(max(left, 0), _PATIENCE))
        for key, _ in events:
            worker = key.data
            line = worker.receive()
            if line is None:
                self._give_up(worker, questions, "ended its worker")
            elif line:
                reply = json.loads(line)
                replies[worker.task] = reply["reply"]
                worker.task = None
                if reply["recycle"]:
                    self._drop(worker)
        now = time.monotonic()
        for worker in [w for w in busy if w in self._workers and w.deadline <= now]:
            if worker.task is not None:
                self._give_up(worker, questions, f"took over {self._seconds:g} s")

    def _give_up(self, worker: _Worker, questions: list[str], reason: str) -> None:
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
    if _pool is not None:
        _pool.forget()
    _pool, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
