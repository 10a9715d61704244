"""Measure how long the book's own commands take, elapsed and in processor time, and store the table.

``python benchmarks/book_times.py``        all, in a fresh clone with this Python's packages, one after the other
``python benchmarks/book_times.py quick``  only these, without storing
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import markdown_table, provenance

ROOT = Path(__file__).resolve().parent.parent
STORE = Path(__file__).with_suffix(".md")
COMMANDS = {"quick": "", "book": "from nothing", "book again": "nothing has changed", "test": ""}


def spent(target: str, clone: Path) -> tuple[float, float]:
    """Return the elapsed and the processor time of a command of the Makefile, which must succeed, in seconds."""
    venv = sys.prefix
    command = ["make", "-o", f"{venv}/.installed", f"VENV={venv}", target]
    started, before = time.perf_counter(), sum(os.times()[2:4])
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    subprocess.run(command, cwd=clone, env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - started, sum(os.times()[2:4]) - before


def main(names: list[str]) -> None:
    """Measure, print, and store the table if everything was measured."""
    rows, found = [], provenance(None)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "attnbook"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for name in names or COMMANDS:
            target = name.split()[0]
            how = f", {COMMANDS[name]}" if COMMANDS.get(name) else ""
            rows.append((f"`make {target}`{how}", *(f"{seconds:.0f}" for seconds in spent(target, clone))))
    table = markdown_table(("command", "elapsed, s", "processor, s"), rows)
    text = f"## The book's own commands\n\n{table}\n\n"
    text += f"{found['system']}, {found['cores']} cores, Python {found['python']}, {found['date']}.\n"
    print(text)
    if not names:
        STORE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
