"""A side of a comparison: a process that does what it is told and says what it took.

    python -m speed.child MODULE:CLASS

It reads one JSON object a line, {"call": METHOD, "with": {ARGUMENTS}}, and answers with one:
{"result": ..., "cpu": ..., "wall": ..., "since_start": ..., "peak_mb": ...}, in seconds, since
the start in CPU-seconds; or {"error": TRACEBACK}. The first call, "__init__", makes the object.
What libraries print goes to the error stream. It stays alive between calls, so that imports,
loading and compilation are not timed with the work.
"""

import importlib
import json
import os
import resource
import sys
import time
import traceback

import psutil


def cpu_seconds() -> float:
    """CPU-seconds of this process and of those that it has started."""
    me = psutil.Process()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in me.children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def main() -> None:
    """Serves calls until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, name = sys.argv[1].split(":")
    kind = getattr(importlib.import_module(module), name)
    side = None
    for line in sys.stdin:
        request = json.loads(line)
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            if request["call"] == "__init__":
                side, result = kind(**request["with"]), None
            else:
                result = getattr(side, request["call"])(**request["with"])
        except Exception:
            answer = {"error": traceback.format_exc()}
        else:
            now = cpu_seconds()
            answer = {
                "result": result,
                "cpu": now - cpu,
                "since_start": now,
                "wall": time.perf_counter() - wall,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
