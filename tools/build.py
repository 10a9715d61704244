"""Build the book.

``python tools/build.py``                        run the chapters that need it, then write ``_build/html``
``python tools/build.py --stored --output DIR``  run nothing: write the pages from the outputs stored in the notebooks
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from rich.console import Console
from run_chapters import ROOT, run_stale

JUPYTER_BOOK = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(ROOT)]
STRICT = ["-n", "-W", "--keep-going", "-q"]
# What a page may ask MathJax for: TeX in, HTML out, with fonts, rarer TeX packages and the helpers that a reader
# can switch on in the menu of a formula (speech, exploring by keyboard). The rest are other builds of the same.
MATHJAX = ("tex-chtml.js", "a11y/", "sre/", "ui/", "input/tex/", "input/mml", "output/chtml/fonts/")


def main() -> int:
    """Build and say where the book is.

    Returns:
        0, or 1 when a chapter failed or a page has a warning, or 130 after Ctrl-C or SIGTERM.
    """
    options = _options()
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    settings = ROOT / "_config.yml"
    for each in (signal.SIGINT, signal.SIGTERM):  # a script that starts this with & lets it ignore the first of them
        signal.signal(each, signal.default_int_handler)
    try:
        if options.stored:
            settings = _stored_settings(settings, options.output)
        elif failed := run_stale(console, jobs=options.jobs, timeout=_read(settings)["execute"]["timeout"]):
            console.print(f"not built: {', '.join(failed)} failed (chapters that ran are kept)")
            return 1
        if not _write_pages(settings, options.output):
            return 1
    except KeyboardInterrupt:
        console.print("\nstopped; chapters that had ended are kept, the same command continues")
        return 130
    html = options.output / "_build" / "html"
    drop_unused_mathjax(html / "_static" / "mathjax")
    page = os.path.relpath(html / "index.html")
    console.print(f"open {page} in a browser (built in {time.perf_counter() - started:.1f} s)")
    return 0


def drop_unused_mathjax(folder: Path) -> None:
    """Delete the builds of MathJax that no page asks for, two thirds of the size of the book.

    Args:
        folder: The copy of MathJax in the book.
    """
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        if not file.relative_to(folder).as_posix().startswith(MATHJAX):
            file.unlink()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the book.")
    parser.add_argument("--stored", action="store_true", help="run nothing, show the outputs stored in the notebooks")
    parser.add_argument("--output", type=Path, help="folder that gets _build/html (only with --stored)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="chapters run at a time")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs: expected 1 or more, got {options.jobs}")
    if options.stored != (options.output is not None):
        parser.error("--stored and --output DIR belong together")
    options.output = (options.output or ROOT).resolve()
    return options


def _read(settings: Path) -> dict:
    return yaml.safe_load(settings.read_text(encoding="utf-8"))


def _stored_settings(settings: Path, folder: Path) -> Path:
    """Write a copy of the settings that executes nothing; its extensions are named by their full path."""
    changed = _read(settings)
    changed["execute"]["execute_notebooks"] = "off"
    local = changed["sphinx"]["local_extensions"]
    changed["sphinx"]["local_extensions"] = {name: str(ROOT / place) for name, place in local.items()}
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "_config.yml"
    copy.write_text(yaml.safe_dump(changed), encoding="utf-8")
    return copy


def _write_pages(settings: Path, output: Path) -> bool:
    """Call Jupyter Book; pass its warnings on, and its report too when it fails."""
    reports = output / "_build" / "html" / "reports"
    shutil.rmtree(reports, ignore_errors=True)  # logs of failures that have been mended since
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [*JUPYTER_BOOK, "--path-output", str(output), "--config", str(settings), *STRICT]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": search_path}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
