import socket
import threading
import time

import pytest

from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.rollcall import roll_call


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.02)
    raise TimeoutError


@pytest.fixture
def port():
    return free_port()


def call_all(port, calls, timeout=20.0):
    """What each (process_id, processes, delay) is told: None, or the error."""
    told = {}

    def call(place, process_id, processes, delay):
        time.sleep(delay)
        try:
            roll_call(f"127.0.0.1:{port}", processes, process_id, timeout)
            told[place] = None
        except UserError as error:
            told[place] = str(error)

    threads = [threading.Thread(target=call, args=(i, *c)) for i, c in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [told[i] for i in range(len(calls))]


def test_one_process_waits_for_nobody(port):
    roll_call(f"127.0.0.1:{port}", 1, 0, 5)


@pytest.mark.parametrize("late", [0, 1])
def test_all_go_on_when_all_are_there_whoever_comes_first(port, late):
    assert call_all(port, [(i, 3, 0.3 * (i == late)) for i in range(3)]) == [None] * 3


def test_those_that_are_there_learn_who_is_missing(port):
    told = call_all(port, [(0, 4, 0), (2, 4, 0)], timeout=0.5)
    assert told[0] == told[1]
    assert "processes 1, 3 of 4 did not come within 0.5 seconds" in told[0]


def test_without_process_0_the_others_say_so_within_the_timeout(port):
    begun = time.monotonic()
    (told,) = call_all(port, [(1, 2, 0)], timeout=0.5)
    assert f"process 1 of 2 did not reach process 0 at 127.0.0.1:{port}" in told
    assert time.monotonic() - begun < 5


def test_processes_that_count_differently_are_told(port):
    told = call_all(port, [(0, 2, 0), (1, 3, 0)])
    assert told[0] == told[1]
    assert "--processes=3 and process 0 has 2" in told[0]


def test_two_processes_of_one_number_are_told(port):
    told = call_all(port, [(0, 3, 0), (1, 3, 0), (1, 3, 0.3)])
    assert all("two processes say that they are number 1" in words for words in told)


def test_strangers_are_ignored_and_the_place_of_one_that_was_killed_is_free(port):
    waiting = threading.Thread(target=call_all, args=(port, [(0, 2, 0)]))
    waiting.start()
    for words in (b"GET / HTTP/1.1\r\n", b"jaxevolve process 1 of 2\n"):
        with connect(port) as other:
            other.sendall(words)
    assert call_all(port, [(1, 2, 0)]) == [None]
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_port_in_use_is_told():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of the coordinator is in use"):
            roll_call(f"127.0.0.1:{port}", 2, 0, 1)


@pytest.mark.parametrize("address", ["host", "host:", ":12", "host:port", "host:99999"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(UserError, match="give HOST:PORT"):
        roll_call(address, 2, 1, 1)
