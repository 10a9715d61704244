"""One variant in a process of its own, so that threads and memory are its own too.

Started by ``measuring.Worker`` as ``python worker.py MODULE CLASS ARRAYS``. It answers each line of standard input, a
request ``{"steps", "dtype", "save"}`` in JSON, with one line ``{"wall", "cpu", "compile", "memory"}``: seconds for all
steps together, seconds spent on compiling, and MiB by which the process has grown since its imports.

A variant is a class with ``__init__(arrays)`` and ``train(steps, dtype) -> (Seconds, parameters)``. This file needs
NumPy only: the environment of JAX has neither torch nor attnbook.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Seconds:
    """Elapsed time, processor time of all threads, and the part of compiling, which is in neither."""

    wall: float
    cpu: float
    compile: float = 0.0

    @classmethod
    def now(cls) -> Seconds:
        """Read the clocks."""
        return cls(time.perf_counter(), time.process_time())

    @classmethod
    def since(cls, start: Seconds) -> Seconds:
        """Return the time spent since another reading."""
        now = cls.now()
        return replace(now, wall=now.wall - start.wall, cpu=now.cpu - start.cpu)


def peak_memory() -> float:
    """Return the largest memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts the process that started this one as well
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(module: str, name: str, file: str) -> None:
    """Answer requests until standard input ends."""
    kind = getattr(importlib.import_module(module), name)
    before = peak_memory()
    with np.load(file) as stored:
        variant = kind(dict(stored))
    for line in sys.stdin:
        request = json.loads(line)
        spent, parameters = variant.train(request["steps"], request["dtype"])
        if request["save"]:
            np.savez(request["save"], **parameters)
        answer = {"wall": spent.wall, "cpu": spent.cpu, "compile": spent.compile, "memory": peak_memory() - before}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
