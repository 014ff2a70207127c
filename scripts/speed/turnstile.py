"""Lets a trainer that has a loop of its own take one step at a time."""

import threading
from collections.abc import Callable


class Turnstile:
    """A trainer in a thread that stops at `wait` until it is let through.

    gate = Turnstile(lambda: trainer.train())   # which calls gate.wait() after every step
    gate.step()                                 # returns when the next step is done
    """

    def __init__(self, train: Callable[[], object]) -> None:
        self._train = train
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def step(self) -> None:
        """Lets the trainer work until it waits again."""
        if not self._thread.is_alive():
            self._thread.start()
        else:
            self._go.release()
        self._done.acquire()
        if self._error:
            raise self._error

    def wait(self) -> None:
        """Called by the trainer between steps."""
        self._done.release()
        self._go.acquire()

    def _run(self) -> None:
        try:
            self._train()
            raise RuntimeError("the trainer has ended by itself")
        except BaseException as error:
            self._error = error
            self._done.release()
