"""Measure what a reader needs, the time to install and the disk, for ``reference/measured.json`` and the README.

In a fresh clone, built from the stored outputs; ``benchmarks/book_times.py`` measures the time of ``make book``. On a
busy machine only sizes are stored: a time would tell more about the other programs than about the book.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "_ext")]
import book_facts  # noqa: E402  (its folder is on the path only now)

STORE = ROOT / "reference" / "measured.json"
QUIET = 0.5  # load, in processes that want to run
BEGIN, END = "<!-- measured: written by tools/measure_book.py -->", "<!-- end of measured -->"


def main() -> int:
    """Measure, store, and write the paragraph of the README.

    Returns:
        0.
    """
    busy = os.getloadavg()[0] > QUIET
    before = json.loads(STORE.read_text(encoding="utf-8")) if STORE.is_file() else {}
    with tempfile.TemporaryDirectory() as work:
        clone = Path(work) / "attnbook"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        found = measure(clone)
    if busy:
        print(f"the load of this machine was above {QUIET}: no time is stored")
        del found["install_seconds"]
    STORE.write_text(json.dumps({**before, **found}, indent=2) + "\n", encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_paragraph(readme.read_text(encoding="utf-8"), paragraph()), encoding="utf-8")
    print(paragraph())
    return 0


def measure(clone: Path) -> dict[str, Any]:
    """Install, and build the pages from the stored outputs.

    Args:
        clone: A fresh clone.

    Returns:
        What was measured.
    """
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count(),
        "install_seconds": seconds(["make", ".venv/.installed"], clone),
        "venv_mb": megabytes(clone / ".venv"),
    }
    seconds([".venv/bin/python", "tools/build.py", "--stored", "--output", "stored"], clone)
    return {**found, "html_mb": megabytes(clone / "stored" / "_build" / "html")}


def seconds(command: list[str], folder: Path) -> float:
    """Return how long a command takes; it must succeed."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - started, 1)


def megabytes(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return round(sum(file.lstat().st_size for file in folder.rglob("*")) / 1e6, 1)


def paragraph() -> str:
    """Return the paragraph of the README: what is measured, and nothing about what is not."""
    m = book_facts.measured(ROOT)
    lines = [f"Measured on {m['date']} ({m['system']}, {m['cores']} cores):", ""]
    if "install_seconds" in m:
        lines.append(f"- installing takes {m['install_seconds']};")
    if "build_seconds" in m:
        lines.append(f"- `make book` then takes {m['build_seconds']} ({m['build_measured']});")
    return "\n".join([*lines, f"- on disk, `.venv` takes {m['venv_mb']} and the finished pages {m['html_mb']}."])


def with_paragraph(readme: str, text: str) -> str:
    """Return the README with this paragraph between its two marks."""
    before, after = readme.split(BEGIN)[0], readme.split(END)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
