"""Several experiments in one go: where each is stored, one live line for each, what failed."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Lines

import attnbook
from attnbook.core import runtime
from attnbook.core.executors import call_off, parse_where
from attnbook.core.experiment import Experiment
from attnbook.core.results import Measurement, read_json, stored_path
from attnbook.core.runtime import Progress, Size

__all__ = ["Done", "Job", "prepare", "run_jobs"]


@dataclass(frozen=True)
class Job:
    """An experiment to run.

    Attributes:
        experiment: The experiment with its settings.
        path: Where its result goes.
        workdir: Where finished groups of seeds wait until it is stored.
    """

    experiment: Experiment
    path: Path
    workdir: Path


@dataclass(frozen=True)
class Done:
    """What became of a job.

    Attributes:
        name: Id of the experiment.
        measured: What was measured, by claim id.
        summary: Time, device and file, in a line.
        error: Why it failed; empty where it did not.
    """

    name: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    summary: str = ""
    error: str = ""


def prepare(
    chosen: Sequence[type[Experiment]], size: Size, *, device: str | None, on: str, output: Path | None, strict: bool
) -> tuple[list[Job], list[str]]:
    """Look at everything that can be wrong before anything is trained.

    Args:
        chosen: Experiments.
        size: Size of the run.
        device: Where to train; default the first that the machine at work has.
        on: Where the groups run; see :func:`attnbook.core.executors.parse_where`.
        output: File of the result; default in :func:`attnbook.core.results.results_folder`.
        strict: Whether an experiment without this size is an error; else it is left out.

    Returns:
        The jobs, and the ids that were left out.

    Raises:
        ValueError: If the device or the size is not there, or a result could not be written.
    """
    if output and len(chosen) > 1:
        raise ValueError(f"output: one file for {len(chosen)} experiments; name one experiment")
    where = runtime.device(device) if parse_where(on) is None else device
    fitting = [kind for kind in chosen if strict or size in kind.has()]
    jobs = []
    for kind in fitting:
        experiment, path = kind.at(size), output or stored_path(kind.id, size)
        _check_writable(path)
        # other settings, versions or devices have other folders
        label = hashlib.sha256(f"{attnbook.__version__} {where} {experiment!r}".encode()).hexdigest()[:12]
        jobs.append(Job(experiment, path, path.parent / ".parts" / f"{kind.id}-{label}"))
    return jobs, [kind.id for kind in chosen if kind not in fitting]


def run_jobs(jobs: Sequence[Job], executor: Executor | None, device: str | None) -> list[Done]:
    """Run all jobs: side by side on an executor, which their groups of seeds share, else one after another.

    Args:
        jobs: What to run.
        executor: Where the groups of seeds run; None for here.
        device: Where to train.

    Returns:
        What became of each, in order; a failure of one does not stop the others.
    """
    with _lines(len(jobs) > 1) as line:

        def one(job: Job) -> Done:
            with line(job) as (progress, finish):
                done = _run(job, executor, device, progress)
                finish(done)
            return done

        if executor is None:
            return [one(job) for job in jobs]
        with ThreadPoolExecutor(max(1, len(jobs))) as threads:  # they only wait
            try:
                return list(threads.map(one, jobs))
            except BaseException:
                call_off(executor)
                raise


def _run(job: Job, executor: Executor | None, device: str | None, progress: Progress | None) -> Done:
    experiment = job.experiment
    try:
        data = experiment.run(device=device, workdir=job.workdir, executor=executor, progress=progress)
        experiment.store(data, job.path)
        measured = experiment.measurements(data)
    except (ValueError, FloatingPointError) as error:
        return Done(experiment.id, error=str(error))
    except BrokenExecutor:
        reason = "a worker process was killed, perhaps for want of memory; run again, what is finished is kept"
        return Done(experiment.id, error=reason)
    except Exception as error:  # whatever it is, the others go on
        return Done(experiment.id, error=f"{type(error).__name__}: {error}")
    shutil.rmtree(job.workdir, ignore_errors=True)
    with suppress(OSError):  # parts of other runs may wait beside them
        job.workdir.parent.rmdir()
    run = read_json(job.path, experiment.id)["provenance"]
    return Done(experiment.id, measured, f"{run['wall_seconds']:.1f} s on {run['device']}; stored {job.path}")


@contextmanager
def _lines(several: bool) -> Iterator[Callable[[Job], Any]]:
    """A line with bar, groups of seeds and time left for each job at work; without a terminal one when it is done."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.3g}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Lines(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        lock = threading.Lock()

        @contextmanager
        def line(job: Job) -> Iterator[tuple[Progress, Callable[[Done], None]]]:
            name, groups = job.experiment.id, len(job.experiment.groups())
            task = bars.add_task(name, total=groups)

            def finish(done: Done) -> None:
                with lock:
                    bars.remove_task(task)
                    if several:
                        console.print(
                            f"{name}: {done.error or done.summary}", highlight=False, markup=False, soft_wrap=True
                        )

            yield lambda done, total: bars.update(task, completed=groups * done / total), finish

        yield line


def _check_writable(path: Path) -> None:
    """Fail before the run, not after it, when the result could not be stored."""
    if path.is_dir():
        raise ValueError(f"output: {path.name} is a folder, expected the name of a file")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        mend = "choose another place with --output or ATTNBOOK_RESULTS"
        raise ValueError(f"output: no permission to write {path.name} in {folder}; {mend}")
