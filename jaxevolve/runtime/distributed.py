"""Who else takes part? Several processes that make one run, and what they tell each other.

    values: --distributed, or --coordinator=HOST:PORT --processes=N --process_id=I
    distributed.start(values)          # before JAX looks for devices
    distributed.gather("any value")    # [value of process 0, value of process 1, ...]

Every process calls the functions here, in the same order: each waits for all. In a run of one
process they return at once and nothing is compiled.
"""

import contextlib
import logging
import os
import pickle
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from jaxevolve.runtime.buckets import bucket
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.rollcall import roll_call

FAREWELL = 10  # seconds that a process which fails waits for the others to fail as well
VISIBLE = 60  # seconds that a shared file system may take to show a file to all


def define(values: flags.FlagValues) -> None:
    """The flags of a command that several processes may run together."""
    flags.DEFINE_bool(
        "distributed",
        False,
        "run with the other processes of this TPU pod, SLURM step or GKE job, which are found",
        flag_values=values,
    )
    flags.DEFINE_string(
        "coordinator",
        None,
        "HOST:PORT of process 0, where the others are not found by themselves",
        flag_values=values,
    )
    counts = {"processes": "how many there are", "process_id": "which this is, from 0"}
    for name, meaning in counts.items():
        flags.DEFINE_integer(name, None, f"with --coordinator: {meaning}", flag_values=values)
    flags.DEFINE_integer(
        "initialization_timeout",
        300,
        "seconds to wait until all processes are there",
        lower_bound=1,
        flag_values=values,
    )


def start(values: flags.FlagValues) -> None:
    """Joins the other processes, if any are asked for.

    Args:
        values: the flags of `define`.

    Raises:
        UserError: the flags are incomplete, no cluster is found, or a process does not come.
    """
    by_hand = (values.coordinator, values.processes, values.process_id)
    if by_hand == (None, None, None):
        if not values.distributed:
            return
        coordinator, processes, process_id = _find(values.initialization_timeout)
    else:
        if None in by_hand or not 0 <= values.process_id < values.processes:
            raise UserError(
                f"--coordinator={values.coordinator} --processes={values.processes} --process_id="
                f"{values.process_id} is no run of several processes; give all three, with "
                "--process_id from 0 to one less than --processes"
            )
        coordinator, processes, process_id = by_hand
    roll_call(coordinator, processes, process_id, values.initialization_timeout)
    # The service would take SIGTERM away before a run can.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        processes,
        process_id,
        # All devices that this process sees are its own.
        cluster_detection_method="deactivate",
        initialization_timeout=values.initialization_timeout,
    )
    if process_id:
        # Whatever is told of the run, process 0 tells.
        logging.getLogger("jaxevolve").setLevel(logging.ERROR)


def _find(timeout: int) -> tuple[str, int, int]:
    """Coordinator, number of processes and number of this one, from the cluster that it is on."""
    from jax._src.clusters import ClusterEnv  # what jax.distributed.initialize() does first

    found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, (), None, timeout)[:3]
    if None in found:
        raise UserError(
            "--distributed finds no TPU pod, SLURM step or GKE job around this process; "
            "give --coordinator=HOST:PORT, --processes and --process_id"
        )
    return found


def is_first() -> bool:
    """Whether this is process 0, which writes files and speaks."""
    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """What each process has given, in the order of the processes; any value that pickles."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    # A size from the ladder: few programs for values of any size.
    padded = np.zeros(bucket(int(sizes.max())), np.uint8)
    padded[: len(data)] = data
    everyone = multihost_utils.process_allgather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes)]


def from_first(value: Any) -> Any:
    """What process 0 has given; what the others give is ignored."""
    return gather(value if is_first() else None)[0]


def agree(fine: bool) -> bool:
    """Whether `fine` is true on every process."""
    return all(gather(bool(fine)))


def wait() -> None:
    """Returns when every process has come here."""
    gather(None)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A block that all processes leave in the same way: without an error, or each with one.

    There is no exchange between processes inside of it.

    Raises:
        UserError: this process's own, or else that of the first process that has one.
    """
    own = None
    try:
        yield
    except UserError as error:
        own = error
    told = gather(None if own is None else str(own))
    if own is not None:
        raise own
    for number, message in enumerate(told):
        if message is not None:
            raise UserError(f"{message} (on process {number} of {len(told)})")


def check_shared(file: Path) -> None:
    """Checks that a file which process 0 has just written is there for all processes.

    Raises:
        UserError: on some it is missing or another.
    """
    if jax.process_count() == 1:
        return
    wanted = from_first(_checksum(file))
    deadline = time.monotonic() + VISIBLE
    while (found := _checksum(file)) != wanted and time.monotonic() < deadline:
        time.sleep(1)
    blind = [i for i, fine in enumerate(gather(found == wanted)) if not fine]
    if blind:
        raise UserError(
            f"{file.parent} is not the same folder on process {', '.join(map(str, blind))} as on "
            "process 0; give a --workdir on a file system that all of them share"
        )


def _checksum(file: Path) -> int | None:
    return zlib.crc32(file.read_bytes()) if file.is_file() else None


def leave(code: int) -> NoReturn:
    """Ends this process after an error.

    The others may be waiting for it in a computation, and it must not wait for them in turn: where
    they do not end within FAREWELL seconds, they are left to find that it is gone.
    """
    if not jax.distributed.is_initialized():
        sys.exit(code)
    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    farewell.start()
    farewell.join(FAREWELL)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
