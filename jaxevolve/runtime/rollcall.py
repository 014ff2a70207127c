"""Are all processes there? Asked over plain TCP before JAX's own service starts on that port.

JAX ends a program by SIGABRT where a process is missing, without naming it. Here process 0 listens,
every other one says its number, and all learn within the timeout that they may go on, or who is
missing.
"""

import contextlib
import errno
import re
import socket
import time

from jaxevolve.runtime.errors import UserError

_HELLO = re.compile(r"jaxevolve process (\d+) of (\d+)")
_GO = "go"
_SPEAK = 5  # seconds that a caller has to say who it is


def roll_call(coordinator: str, processes: int, process_id: int, timeout: float) -> None:
    """Returns when all processes have called it.

    Args:
        coordinator: HOST:PORT of process 0.
        processes: how many there are.
        process_id: which this is, from 0.
        timeout: seconds until those that are there give up.

    Raises:
        UserError: a process is missing, by number, or does not belong here.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"coordinator {coordinator!r} is no address; give HOST:PORT of process 0")
    deadline = time.monotonic() + timeout
    if process_id == 0:
        verdict = _call(int(port), processes, deadline, timeout)
    else:
        verdict = _answer(host, int(port), processes, process_id, deadline, timeout)
    if verdict != _GO:
        raise UserError(verdict)


def _call(port: int, processes: int, deadline: float, timeout: float) -> str:
    """Process 0: waits for the others and tells them the verdict, which it returns."""
    try:
        server = _listen(port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return f"port {port} of the coordinator is in use; give another, the same to all processes"
    callers: dict[int, socket.socket] = {}
    with server, contextlib.ExitStack() as stack:
        verdict = ""
        while not verdict:
            callers = {number: caller for number, caller in callers.items() if not _gone(caller)}
            missing = sorted(set(range(1, processes)) - callers.keys())
            remaining = deadline - time.monotonic()
            if not missing:
                verdict = _GO
            elif remaining <= 0:
                verdict = _absent(missing, processes, timeout)
            else:
                server.settimeout(min(remaining, _SPEAK))
                with contextlib.suppress(TimeoutError):
                    caller = stack.enter_context(server.accept()[0])
                    verdict = _admit(caller, callers, processes)
        for caller in callers.values():
            caller.settimeout(_SPEAK)
            with contextlib.suppress(OSError):
                caller.sendall(f"{verdict}\n".encode())
    return verdict


def _admit(caller: socket.socket, callers: dict[int, socket.socket], processes: int) -> str:
    """Notes who has called. Returns what is wrong with it, or ""."""
    caller.settimeout(_SPEAK)
    try:
        hello = _HELLO.fullmatch(_line(caller))
    except OSError:
        return ""  # a passer-by who says nothing
    if hello is None:
        return ""
    number, count = map(int, hello.groups())
    if count == processes and 0 < number < processes and number not in callers:
        callers[number] = caller
        return ""
    verdict = (
        f"one process has --processes={count} and process 0 has {processes}; make them equal"
        if count != processes
        else f"two processes say that they are number {number}; give each its own --process_id"
    )
    with contextlib.suppress(OSError):
        caller.sendall(f"{verdict}\n".encode())
    return verdict


def _gone(caller: socket.socket) -> bool:
    """Whether a caller has hung up, as it does where it is killed."""
    caller.setblocking(False)
    try:
        return not caller.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _answer(
    host: str, port: int, processes: int, process_id: int, deadline: float, timeout: float
) -> str:
    """Any other process: says who it is and returns the verdict of process 0."""
    trouble = "no answer"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            # Process 0 has been listening already, so its verdict comes within its own timeout.
            with socket.create_connection((host, port), min(remaining, _SPEAK)) as server:
                server.settimeout(timeout + _SPEAK)
                server.sendall(f"jaxevolve process {process_id} of {processes}\n".encode())
                if verdict := _line(server):
                    return verdict
        except OSError as error:  # not there yet, or its name is not known yet
            trouble = error.strerror or str(error) or "no answer"
        time.sleep(min(0.2, max(remaining, 0)))
    return (
        f"process {process_id} of {processes} did not reach process 0 at {host}:{port} within "
        f"{timeout:g} seconds ({trouble}); start it, or correct --coordinator"
    )


def _absent(missing: list[int], processes: int, timeout: float) -> str:
    named = ", ".join(map(str, missing))
    return (
        f"process{'es' * (len(missing) > 1)} {named} of {processes} did not come within "
        f"{timeout:g} seconds; start all of them, or raise --initialization_timeout"
    )


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _line(connection: socket.socket) -> str:
    """One line, "" where the other side has closed."""
    with connection.makefile(encoding="utf-8", errors="replace") as file:
        return file.readline(1000).strip()
