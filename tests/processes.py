"""Starts several processes of one run on this machine.

group = processes.start([sys.executable, "-m", "jaxevolve.train", ...], count=2, devices=2)
processes.finish(group)     # [(exit code, what was printed), ...]
"""

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environment(devices: int, variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with simulated CPU devices and further variables."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags} | variables


def start(
    command: Sequence[object], count: int, devices: int, **variables: str
) -> list[subprocess.Popen]:
    """Starts a command `count` times, each with its own number.

    Args:
        command: what takes the flags of `runtime.distributed`.
        count: how many processes.
        devices: simulated devices of each.
        **variables: environment of all.
    """
    address = f"--coordinator=127.0.0.1:{free_port()}"
    return [
        subprocess.Popen(
            [*map(str, command), address, f"--processes={count}", f"--process_id={number}"],
            cwd=ROOT,
            env=environment(devices, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]


def finish(group: Sequence[subprocess.Popen], timeout: float = 900) -> list[tuple[int, str]]:
    """Waits for all; what still runs after the timeout is killed."""
    try:
        # A pipe holds more than a run prints, so that one need not be emptied while another is.
        return [(process.wait(timeout), process.stdout.read()) for process in group]
    finally:
        for process in group:
            process.kill()
