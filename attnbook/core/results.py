"""Measured results: what was measured, how it was obtained, and where it is kept.

A result file is small JSON: settings, plain arrays, measurements by claim id, and provenance.
"""

from __future__ import annotations

import datetime
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

import attnbook
from attnbook.core.runtime import Scale
from attnbook.core.storage import FORMAT, ResultError, plain, read_json, tuples, write_json

__all__ = [
    "Clock",
    "Experiment",
    "Measurement",
    "Provenance",
    "Result",
    "extremes_over_seeds",
    "over_seeds",
    "results_folder",
    "stored_measurements",
    "stored_path",
]


@dataclass(frozen=True)
class Measurement:
    """What was measured for one claim.

    Attributes:
        values: Name to value; a median over seeds unless the name says otherwise.
        spread: Name to (smallest, largest) over seeds, for values that vary with the seed.
        n_seeds: Number of seeds behind each value; 1 for what no seed enters.
    """

    values: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    n_seeds: int = 1


def over_seeds(**samples: Sequence[float] | np.ndarray) -> Measurement:
    """Summarise one number per seed by the median and the range.

    Args:
        **samples: Name to values over seeds, all of the same length.

    Returns:
        The measurement.

    Raises:
        ValueError: If a name has no values or the lengths differ.

    Example:
        >>> over_seeds(loss=[1.0, 2.0, 4.0]).values
        {'loss': 2.0}
    """
    lengths = {name: len(values) for name, values in samples.items()}
    if not lengths or 0 in lengths.values() or len(set(lengths.values())) != 1:
        raise ValueError(f"samples: every name needs the same positive number of seeds, got {lengths}")
    values = {name: float(np.median(sample)) for name, sample in samples.items()}
    spread = {name: (float(np.min(sample)), float(np.max(sample))) for name, sample in samples.items()}
    return Measurement(values, spread, next(iter(lengths.values())))


def extremes_over_seeds(**samples: np.ndarray) -> Measurement:
    """Summarise arrays by their smallest or largest entry, as their names say.

    Args:
        **samples: Name to values, ``(seeds, ...)``. A name that starts with ``smallest`` asks for the smallest entry,
            any other for the largest.

    Returns:
        The extremes over everything, with the range over seeds of each seed's own.

    Example:
        >>> extremes_over_seeds(smallest_gap=np.array([[3.0, 1.0], [2.0, 5.0]]))
        Measurement(values={'smallest_gap': 1.0}, spread={'smallest_gap': (1.0, 2.0)}, n_seeds=2)
    """
    of = {name: np.min if name.startswith("smallest") else np.max for name in samples}
    per_seed = {name: of[name](array.reshape(len(array), -1), axis=1) for name, array in samples.items()}
    values = {name: float(of[name](array)) for name, array in per_seed.items()}
    spread = {name: (float(array.min()), float(array.max())) for name, array in per_seed.items()}
    return Measurement(values, spread, len(next(iter(per_seed.values()))))


@dataclass(frozen=True)
class Provenance:
    """How a result was obtained.

    Attributes:
        attnbook: Version of this package.
        python: Version of Python.
        torch: Version of torch.
        numpy: Version of NumPy.
        system: Operating system and processor family.
        device: Device that trained, with its name for a GPU.
        wall_seconds: Elapsed time.
        cpu_seconds: Processor time of this process.
        peak_memory_mib: Largest memory of this process so far.
        date: Day of the run, ISO 8601.
    """

    attnbook: str
    python: str
    torch: str
    numpy: str
    system: str
    device: str
    wall_seconds: float
    cpu_seconds: float
    peak_memory_mib: float
    date: str


class Clock:
    """Starts when made; :meth:`provenance` tells how the time was spent."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def spent(self) -> tuple[float, float]:
        """Return the elapsed and the processor time so far, in seconds."""
        return time.perf_counter() - self.wall, time.process_time() - self.cpu

    def add(self, wall: float, cpu: float) -> None:
        """Count time that an earlier, interrupted run spent on parts that are used again."""
        self.wall, self.cpu = self.wall - wall, self.cpu - cpu

    def provenance(self, device: torch.device) -> Provenance:
        """Return the provenance of a computation that ends now.

        Args:
            device: Device it ran on.

        Returns:
            Versions, device, times and memory.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        gpu = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
        return Provenance(
            attnbook=attnbook.__version__,
            python=platform.python_version(),
            torch=torch.__version__,
            numpy=np.__version__,
            system=f"{platform.system()} {platform.machine()}",
            device=device.type + gpu,
            wall_seconds=round(self.spent()[0], 2),
            cpu_seconds=round(self.spent()[1], 2),
            peak_memory_mib=round(peak),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )


@dataclass(frozen=True)
class Result:
    """Base of all results: settings, provenance, and arrays added by the subclass.

    Attributes:
        settings: The frozen settings that produced it.
        provenance: How it was obtained.
    """

    # Significant digits of stored arrays; None, all of them, where a claim compares nearly equal numbers.
    digits: ClassVar[int | None] = 9
    experiment: ClassVar[str]
    settings_type: ClassVar[type]

    settings: Any
    provenance: Provenance

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        raise NotImplementedError(f"{type(self).__name__} must say what it measured")

    def save(self, path: Path) -> None:
        """Write the result as JSON; the file appears whole or not at all.

        Args:
            path: Name of the file; its folder is made when missing.

        Raises:
            ResultError: If the folder or file cannot be written.
        """
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        measured = plain({claim: asdict(m) for claim, m in self.measurements().items()}, digits=None)
        write_json(
            path, {"format": FORMAT, "experiment": self.experiment, "measurements": measured, **plain(own, self.digits)}
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a result of this experiment.

        Args:
            path: A file written by :meth:`save`.

        Returns:
            The result, numbers as float64 NumPy arrays.

        Raises:
            ResultError: If the file is missing, damaged, of another experiment or of another format.
        """
        raw = read_json(path, cls.experiment)
        try:
            settings = cls.settings_type(**{k: tuples(v) for k, v in raw["settings"].items()})
            values = {
                f.name: _loaded(raw[f.name], f.type) for f in fields(cls) if f.name not in {"settings", "provenance"}
            }
            return cls(settings=settings, provenance=Provenance(**raw["provenance"]), **values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResultError(f"{path.name}: does not fit {cls.__name__}: {error}") from error

    @classmethod
    def load_stored(cls, scale: Scale) -> Self:
        """Read the result of this experiment that is kept with the book.

        Args:
            scale: ``book`` or ``paper``.

        Returns:
            The result.

        Raises:
            ResultError: As :meth:`load`.
        """
        return cls.load(stored_path(cls.experiment, scale))


@dataclass(frozen=True)
class Experiment:
    """An entry of the registry: everything the command line and the tests need to know.

    Attributes:
        id: ``<paper>.<name>``.
        summary: One line for ``attnbook list``.
        settings: Frozen dataclass with the constructors ``smoke()``, ``book()`` and ``paper()``.
        result: Its :class:`Result` class.
        run: ``run(settings, *, device=None, progress=None, workdir=None) -> Result``.
        budget_seconds: Time the book scale may take on two cores.
    """

    id: str
    summary: str
    settings: Any
    result: type[Result]
    run: Callable[..., Result]
    budget_seconds: float

    def settings_for(self, scale: Scale) -> Any:
        """Return the settings of a scale."""
        return getattr(self.settings, scale)()


def _loaded(value: Any, kind: Any) -> Any:
    """A text, or several, where the field's annotation says so; else numbers, infinity among them, as an array."""
    if kind == "str":
        return value
    return tuple(value) if kind == "tuple[str, ...]" else np.array(value, dtype=np.float64)


def results_folder() -> Path:
    """Return the folder of stored results.

    Returns:
        ``ATTNBOOK_RESULTS`` if set, else ``results/`` of the repository, else the copy inside the
        installed package.
    """
    if "ATTNBOOK_RESULTS" in os.environ:
        return Path(os.environ["ATTNBOOK_RESULTS"])
    package = Path(attnbook.__file__).parent
    beside = package.parent / "results"
    return beside if beside.is_dir() else package / "stored_results"


def stored_path(experiment: str, scale: str) -> Path:
    """Return the file that holds, or would hold, the stored result of an experiment."""
    return results_folder() / scale / f"{experiment}.json"


def stored_measurements(experiment: str, scale: str) -> dict[str, Measurement]:
    """Return the stored measurements of an experiment.

    Args:
        experiment: Its id.
        scale: ``book``, ``large`` or ``paper``.

    Returns:
        Measurements by claim id; empty when the experiment is not stored.

    Raises:
        ResultError: If the file is damaged, of another experiment or of another format.
    """
    path = stored_path(experiment, scale)
    if not path.exists():
        return {}
    raw = read_json(path, experiment)
    try:
        return {
            claim: Measurement(
                {k: float(v) for k, v in m["values"].items()},
                {k: (float(v[0]), float(v[1])) for k, v in m["spread"].items()},
                m["n_seeds"],
            )
            for claim, m in raw["measurements"].items()
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ResultError(f"{path.name}: damaged measurements: {error!r}") from error
