"""Build the book.

``python tools/build.py``                        run the chapters that need it, then write ``_build/html``
``python tools/build.py --stored --output DIR``  run nothing: write the pages from the outputs stored in the notebooks
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
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

# The trees of the pages live on, and looking for garbage among them took two fifths of a build: new objects are enough.
# jsonschema can check addresses by a grammar that takes a second to load, and nobody asks it to.
LIGHTLY = "import gc, sys; gc.set_threshold(500_000, 5, 1000); sys.modules['rfc3987_syntax'] = None; "
JUPYTER_BOOK = [sys.executable, "-c", f"{LIGHTLY}from jupyter_book.cli.main import main; main()", "build", str(ROOT)]
STRICT = ["-n", "-W", "--keep-going", "-q"]
# What pages are made of, besides the installed packages.
SOURCES = (
    *("_config.yml", "_ext", "_toc.yml", "attnbook", "benchmarks", "chapters", "genindex.md", "intro.md"),
    *("reference", "results", "style", "tools"),
)
SETTINGS = ("ATTNBOOK_DATA", "ATTNBOOK_PDF", "ATTNBOOK_RESULTS", "ATTNBOOK_SIZE")
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
    stamp, made_of = options.output / "_build" / "made_of", fingerprint(ROOT)
    page = options.output / "_build" / "html" / "index.html"
    if not options.stored and is_made_of(page, stamp, made_of):
        console.print(f"nothing has changed: open {os.path.relpath(page)} in a browser")
        return 0
    stamp.unlink(missing_ok=True)  # whatever happens now, the pages are no longer known to be these
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
    drop_unused_mathjax(page.parent / "_static" / "mathjax")
    if fingerprint(ROOT) == made_of:  # nobody wrote to a file meanwhile
        stamp.write_text(made_of, encoding="utf-8")
    console.print(f"open {os.path.relpath(page)} in a browser (built in {time.perf_counter() - started:.1f} s)")
    return 0


def fingerprint(root: Path) -> str:
    """Return a SHA-256 of all that pages are made of: files, settings of the environment, installed packages."""
    inside = [file for name in SOURCES for file in (root / name, *(root / name).rglob("*"))]
    files = sorted(
        file for file in inside if file.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & {*file.parts}
    )
    packages = sorted(f"{found.name} {found.version}" for found in importlib.metadata.distributions())
    total = hashlib.sha256(repr([packages, [os.environ.get(name) for name in SETTINGS]]).encode())
    for file in files:
        total.update(file.relative_to(root).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def is_made_of(page: Path, stamp: Path, made_of: str) -> bool:
    """Whether pages are there and were made of just this."""
    return page.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == made_of


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
