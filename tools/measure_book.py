"""Measure what a reader needs: time and disk, in a fresh clone, for ``reference/measured.json`` and the README.

``python tools/measure_book.py``           installs, runs all chapters, builds the pages (do it on a quiet machine)
``python tools/measure_book.py --stored``  runs no chapter; times that only a full run tells stay as they are

On a busy machine only sizes are stored: times would tell more about the other programs than about the book.
"""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(description="Measure time and disk in a fresh clone.")
    parser.add_argument("--stored", action="store_true", help="run no chapter")
    options = parser.parse_args()
    busy = os.getloadavg()[0] > QUIET
    before = json.loads(STORE.read_text(encoding="utf-8")) if STORE.is_file() else {}
    with tempfile.TemporaryDirectory() as work:
        clone = Path(work) / "attnbook"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        found = measure(clone, stored=options.stored)
    if busy:
        print(f"the load of this machine was above {QUIET}: no times are stored")
        found = {name: value for name, value in found.items() if not name.endswith(("_seconds", "_times", "_wait"))}
    STORE.write_text(json.dumps({**before, **found}, indent=2) + "\n", encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_paragraph(readme.read_text(encoding="utf-8"), paragraph()), encoding="utf-8")
    print(paragraph())
    return 0


def measure(clone: Path, *, stored: bool) -> dict[str, Any]:
    """Install and build in a clone.

    Args:
        clone: A fresh clone.
        stored: Whether to build from the stored outputs instead of running the chapters.

    Returns:
        What was measured, without what only running the chapters tells if they were not run.
    """
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": os.cpu_count(),
        "install_seconds": seconds(["make", ".venv/.installed"], clone),
        "venv_mb": megabytes(clone / ".venv"),
    }
    if stored:
        seconds([".venv/bin/python", "tools/build.py", "--stored", "--output", "stored"], clone)
        return {**found, "html_mb": megabytes(clone / "stored" / "_build" / "html")}
    found["build_seconds"] = seconds(["make", "book"], clone)
    html = clone / "_build" / "html"
    return {
        **found,
        "html_mb": megabytes(html),
        "chapter_times": chapter_times(clone),
        "slider_wait": slowest_slider(html),
    }


def seconds(command: list[str], folder: Path) -> float:
    """Return how long a command takes; it must succeed."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - started, 1)


def megabytes(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return round(sum(file.lstat().st_size for file in folder.rglob("*")) / 1e6, 1)


def chapter_times(clone: Path) -> list[float]:
    """Return the seconds that each chapter took."""
    from jupyter_cache import get_cache

    records = get_cache(str(clone / "_build" / ".jupyter_cache")).list_cache_records()
    return sorted(round(record.data["execution_seconds"], 1) for record in records)


def slowest_slider(html: Path) -> float:
    """Return the seconds from opening a chapter until its first slider has answered, on the slowest page."""
    from chromium import launch, seconds_until_a_slider_answers
    from playwright.sync_api import sync_playwright

    waits = []
    with sync_playwright() as play:
        browser = launch(play)
        for file in sorted(html.glob("chapters/*/*.html")):
            page = browser.new_page()
            page.goto(file.as_uri(), wait_until="domcontentloaded")
            waits.append(seconds_until_a_slider_answers(page))
            page.close()
        browser.close()
    return round(max(filter(None, waits)), 1)


def paragraph() -> str:
    """Return the paragraph of the README: what is measured, and nothing about what is not."""
    m = book_facts.measured(ROOT)
    lines = [f"Measured on {m['date']} ({m['system']}, {m['cores']} cores):", ""]
    if "install_seconds" in m:
        lines.append(f"- installing takes {m['install_seconds']};")
    if "build_seconds" in m:
        lines.append(f"- `make book` then takes {m['build_seconds']}; a chapter takes {m['chapter_times']};")
    return "\n".join([*lines, f"- on disk, `.venv` takes {m['venv_mb']} and the finished pages {m['html_mb']}."])


def with_paragraph(readme: str, text: str) -> str:
    """Return the README with this paragraph between its two marks."""
    before, after = readme.split(BEGIN)[0], readme.split(END)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
