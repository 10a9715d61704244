"""Run the examples of "Use it in your work" and store what they print: ``python tools/examples.py [NAME ...]``.

Each one runs as a stranger would run it: copied into an empty folder, as a program of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "reference" / "use_it"
EXAMPLES = sorted(file.stem for file in FOLDER.glob("*.py"))


def run(name: str) -> str:
    """Run one example.

    Args:
        name: One of ``EXAMPLES``.

    Returns:
        What it printed.

    Raises:
        RuntimeError: If it failed, or said something on standard error (a warning).
    """
    with tempfile.TemporaryDirectory() as empty:
        shutil.copy(FOLDER / f"{name}.py", empty)
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, f"{name}.py"], cwd=empty, env=env, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise RuntimeError(f"{name}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def main(names: list[str]) -> None:
    """Run some examples, default all, and store what they print."""
    for name in names or EXAMPLES:
        started = time.perf_counter()
        (FOLDER / f"{name}.txt").write_text(run(name), encoding="utf-8")
        print(f"{name}: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
