"""Run chapters, each in a fresh kernel: for the pages, or to store their outputs in the notebooks.

For the pages (``tools/build.py``) the stale ones run, several at a time. Outputs are kept chapter by chapter, as each
one ends: after a failure, or Ctrl-C, the same call continues. ``python tools/run_chapters.py [chapter ...]`` runs
these chapters, or all, and stores what comes out in the notebooks.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "_ext")]
from chapter_cache import KEY, cached_digest, digest  # noqa: E402  (its folder is on the path only now)
from slider_frames import frames_folder  # noqa: E402  (likewise)

LIVE = "application/vnd.jupyter.widget-view+json"


@dataclass
class Run:
    """What came out of one chapter.

    Attributes:
        outputs: The notebook with its outputs.
        seconds: Wall time.
        error: Number of the cell, its code and the traceback; empty when all cells ran.
    """

    outputs: Any
    seconds: float
    error: str


def chapters() -> list[Path]:
    """Return the notebooks that the table of contents names, in its order."""
    from sphinx_external_toc.parsing import parse_toc_yaml

    names = [str(name) for name in parse_toc_yaml(ROOT / "_toc.yml")]
    return [file for name in names if (file := ROOT / f"{name}.ipynb").exists()]


def run_stale(console: Console, *, jobs: int, timeout: int) -> list[str]:
    """Run every stale chapter and store its outputs.

    Args:
        console: Where progress and failures are shown.
        jobs: Number of chapters that run at the same time.
        timeout: Seconds allowed per cell.

    Returns:
        The chapters that failed; all others are stored.

    Raises:
        KeyboardInterrupt: On Ctrl-C, after the workers have been stopped.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    store = get_cache(str(ROOT / "_build" / ".jupyter_cache"))
    digests = {notebook: digest(notebook, ROOT) for notebook in chapters()}
    stale = [notebook for notebook in digests if cached_digest(store, notebook) != digests[notebook]]
    console.print(f"{len(digests) - len(stale)} of {len(digests)} chapters are up to date")
    failed = []
    for notebook, run in _run_all(stale, console, jobs, timeout):
        if run.error:
            failed.append(_name(notebook))
            console.print(Text.from_ansi(f"\n{_name(notebook)} failed in {run.error}\n"))
            continue
        data = {"execution_seconds": run.seconds, KEY: digests[notebook]}
        bundle = CacheBundleIn(run.outputs, str(notebook), data=data)
        store.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    return failed


def run_chapter(notebook: Path, timeout: int) -> Run:
    """Execute one notebook in a fresh kernel.

    Args:
        notebook: The chapter.
        timeout: Seconds allowed per cell.

    Returns:
        Outputs, time, and the error if there was one.
    """
    import nbformat
    from jupyter_cache.executors.utils import single_nb_execution

    book = nbformat.read(notebook, as_version=4)
    code = [(number, cell) for number, cell in enumerate(book.cells, 1) if cell.cell_type == "code"]
    for _, cell in code:
        cell.outputs, cell.execution_count = [], None
    result = single_nb_execution(book, cwd=str(notebook.parent), timeout=timeout, allow_errors=False)
    reached = [number for number, cell in code if cell.execution_count is not None]
    where = f"cell {reached[-1] if reached else 1} of {len(book.cells)}"
    return Run(book, result.time, f"{where}\n{result.err}" if result.err else "")


def store(notebook: Path, timeout: int) -> None:
    """Execute one notebook and store its outputs in it, without the widgets, which die with their kernel.

    Args:
        notebook: The chapter.
        timeout: Seconds allowed per cell.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails; the notebook stays as it was.
    """
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(notebook, as_version=4)
    book.metadata.pop("widgets", None)
    resources = {"metadata": {"path": str(notebook.parent)}}
    NotebookClient(book, timeout=timeout, store_widget_state=False, resources=resources).execute()
    for cell in book.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(LIVE, None)
    nbformat.write(book, notebook)


def _run_all(notebooks: list[Path], console: Console, jobs: int, timeout: int) -> Iterator[tuple[Path, Run]]:
    """Yield each chapter as soon as it has ended; meanwhile show one line per chapter."""
    os.environ["OMP_NUM_THREADS"] = "1"  # two kernels that both take all cores are slower than two that share them
    os.environ["ATTNBOOK_FRAMES"] = str(frames_folder(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    columns = SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), TimeElapsedColumn()
    spawn, own_session = multiprocessing.get_context("spawn"), getattr(os, "setsid", None)
    todo, running = list(notebooks), {}
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(min(jobs, max(1, len(notebooks))), spawn, initializer=own_session) as pool,
    ):
        try:
            while todo or running:
                while todo and len(running) < jobs:
                    notebook = todo.pop(0)
                    line = progress.add_task(_name(notebook), total=1)
                    running[pool.submit(run_chapter, notebook, timeout)] = (notebook, line)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    notebook, line = running.pop(future)
                    run = _outcome(future)
                    progress.update(line, completed=1, description=_name(notebook) + " [red]failed" * bool(run.error))
                    yield notebook, run  # stored by the caller before the line that says it has ended
                    if not console.is_terminal:
                        console.print(f"{_name(notebook)}: {run.seconds:.1f} s")
        except BaseException:  # workers have their own session, so that Ctrl-C reaches this process alone
            for worker in multiprocessing.active_children():
                worker.kill()  # their kernels notice and end too
            raise


def _outcome(future: Future) -> Run:
    try:
        return future.result()
    except Exception as error:  # a kernel that died, a notebook that cannot be read
        return Run(None, 0.0, f"an unknown cell\n{type(error).__name__}: {error}")


def _name(notebook: Path) -> str:
    return notebook.relative_to(ROOT).with_suffix("").as_posix()


if __name__ == "__main__":
    for chapter in [Path(name).resolve() for name in sys.argv[1:]] or chapters():
        started = time.perf_counter()
        store(chapter, timeout=600)  # generous: a busy machine is no reason to lose a run
        print(f"{_name(chapter)}: {time.perf_counter() - started:.1f} s", flush=True)
