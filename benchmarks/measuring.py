"""Processes that are measured in turn, the speed of the processor, and the Markdown table."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

import attnbook
from attnbook.core.runtime import threads as use_threads

HERE = Path(__file__).parent


class Worker:
    """A variant in a process of its own; see ``worker.py``.

    Args:
        label: What the table calls it.
        variant: Module and class of the variant.
        arrays: File that holds the problem.
        threads: Threads it may use.
        python: Interpreter; default this one.
    """

    def __init__(
        self, label: str, variant: tuple[str, str], arrays: Path, threads: int, python: Path | None = None
    ) -> None:
        self.label, self.threads = label, threads
        self.is_jax = python is not None
        self.memory = 0.0
        self.measured: list[dict[str, float]] = []
        command = [str(python or sys.executable), str(HERE / "worker.py"), *variant, str(arrays)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(threads)
        )
        if self.is_jax and hasattr(os, "sched_setaffinity"):  # JAX has no setting for the number of threads
            os.sched_setaffinity(self.process.pid, sorted(os.sched_getaffinity(0))[-threads:])

    def train(self, steps: int, dtype: str = "float32", save: Path | None = None) -> dict[str, float]:
        """Let it train all networks.

        Returns:
            What it spent; see ``worker.py``.

        Raises:
            RuntimeError: If the process ended; it has said why on standard error.
        """
        try:
            self.process.stdin.write(json.dumps({"steps": steps, "dtype": dtype, "save": str(save or "")}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"{self.label}: its process ended; the reason stands above")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def _environment(threads: int) -> dict[str, str]:
    # NumPy's own threads would wait busily after the data are drawn, and count as processor time of the training.
    limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    if threads == 1:
        limits["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return os.environ | limits


def peak_gflops() -> float:
    """Return the speed of the fastest of a few square float32 matrix products on one thread, in 10^9 operations/s."""
    best = 0.0
    with use_threads(1):
        for size in (256, 512, 1024, 2048):
            matrix = torch.rand(size, size)
            for _ in range(4):
                start = time.perf_counter()
                matrix @ matrix
                best = max(best, 2e-9 * size**3 / (time.perf_counter() - start))
    return best


def provenance(jax_python: Path | None) -> dict[str, Any]:
    """Find versions, system and day.

    Returns:
        Name to value.

    Raises:
        RuntimeError: If the Python for JAX cannot import it.
    """
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    if jax_python is not None:
        asked = [str(jax_python), "-c", "import jax; print(jax.__version__)"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"{jax_python}: cannot import jax; benchmarks/README.md says how to make an environment")
        versions["jax"] = answer.stdout.strip()
    return {
        "attnbook": attnbook.__version__,
        **versions,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def span(values: Sequence[float], digits: int) -> str:
    """Return median and range of measured values as text."""
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, numbers on the right."""
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows))
