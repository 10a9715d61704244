"""Measured results: what was measured, how it was obtained, and where it is kept.

A result file is small JSON: settings, plain arrays, measurements by claim id, and provenance.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

import attnbook
from attnbook.core.runtime import Progress, Scale

__all__ = [
    "Clock",
    "Experiment",
    "Measurement",
    "Provenance",
    "Result",
    "ResultError",
    "by_seeds",
    "check_seeds",
    "over_seeds",
    "ratio_over_seeds",
    "results_folder",
    "resumable",
    "stored_measurements",
    "stored_path",
]

FORMAT = 1


class ResultError(ValueError):
    """A result file is missing, damaged, of another experiment or of another format."""


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


def ratio_over_seeds(name: str, above: np.ndarray, below: np.ndarray) -> Measurement:
    """Summarise a ratio: of the medians over seeds, with its range seed by seed.

    Args:
        name: Name of the value.
        above: Numerators, one per seed.
        below: Denominators, one per seed.

    Returns:
        The measurement.

    Example:
        >>> ratio_over_seeds("gain", np.array([2.0, 3.0]), np.array([1.0, 1.0])).values
        {'gain': 2.5}
    """
    ratios = above / below
    value = float(np.median(above) / np.median(below))
    return Measurement({name: value}, {name: (float(ratios.min()), float(ratios.max()))}, len(ratios))


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
        measured = {claim: asdict(m) for claim, m in self.measurements().items()}
        _write(path, {"format": FORMAT, "experiment": self.experiment, "measurements": measured, **_plain(own)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a result of this experiment.

        Args:
            path: A file written by :meth:`save`.

        Returns:
            The result, arrays as float64 NumPy arrays.

        Raises:
            ResultError: If the file is missing, damaged, of another experiment or of another format.
        """
        raw = _read(path, cls.experiment)
        try:
            settings = cls.settings_type(**{k: _tuples(v) for k, v in raw["settings"].items()})
            arrays = {
                f.name: np.array(raw[f.name], dtype=np.float64)
                for f in fields(cls)
                if f.name not in {"settings", "provenance"}
            }
            return cls(settings=settings, provenance=Provenance(**raw["provenance"]), **arrays)
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


def stored_path(experiment: str, scale: Scale) -> Path:
    """Return the file that holds, or would hold, the stored result of an experiment."""
    return results_folder() / scale / f"{experiment}.json"


def stored_measurements(experiment: str, scale: Scale) -> dict[str, Measurement]:
    """Return the stored measurements of an experiment.

    Args:
        experiment: Its id.
        scale: ``book`` or ``paper``.

    Returns:
        Measurements by claim id; empty when the experiment is not stored.

    Raises:
        ResultError: If the file is damaged, of another experiment or of another format.
    """
    path = stored_path(experiment, scale)
    if not path.exists():
        return {}
    raw = _read(path, experiment)
    try:
        return {
            claim: Measurement(
                {k: float(v) for k, v in m["values"].items()},
                {k: (v[0], v[1]) for k, v in m["spread"].items()},
                m["n_seeds"],
            )
            for claim, m in raw["measurements"].items()
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ResultError(f"{path.name}: damaged measurements: {error!r}") from error


def resumable(
    parts: Sequence[str],
    compute: Callable[[str, Progress | None], Mapping[str, np.ndarray]],
    *,
    settings: Any,
    clock: Clock,
    workdir: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Compute the parts of a long run, keeping each finished part on disk.

    A killed run continues with the first missing part and ends with the same numbers.

    Args:
        parts: Names of the parts, usable as file names.
        compute: (part, progress) to named arrays; must depend on the name and the settings only.
        settings: Frozen settings; parts of other settings are not used.
        clock: Clock of the run; the time that kept parts took is added to it.
        workdir: Folder for the finished parts; default none, nothing is kept.
        progress: Told (work done, work in all), where every part counts the same.

    Returns:
        Part to named arrays.

    Raises:
        ResultError: If the folder cannot be written, or a kept part is damaged.
    """
    exact = _plain(settings, digits=None)
    done = {}
    for number, part in enumerate(parts):
        file = workdir / f"{part}.json" if workdir is not None else None
        kept = _read(file, part) if file is not None and file.exists() else None
        if kept is not None and kept.get("settings") == exact:
            try:
                done[part] = {name: np.array(value, dtype=np.float64) for name, value in kept["arrays"].items()}
                clock.add(*kept["seconds"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ResultError(f"{part}.json: damaged part: {error!r}; delete it and run again") from error
            continue
        own = Clock()
        arrays = compute(part, _share(progress, number, len(parts)))
        done[part] = {name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()}
        if file is not None:
            arrays_exact = _plain(done[part], digits=None)
            head = {"format": FORMAT, "experiment": part, "settings": exact, "seconds": own.spent()}
            _write(file, {**head, "arrays": arrays_exact})
    return done


def by_seeds(
    settings: Any,
    train: Callable[[tuple[int, ...], Progress | None], Mapping[str, np.ndarray]],
    *,
    clock: Clock,
    workdir: Path | None = None,
    progress: Progress | None = None,
) -> list[dict[str, np.ndarray]]:
    """Train a few seeds at a time, keeping what is finished on disk.

    Args:
        settings: Settings with ``seeds`` and ``chunk``, the number of seeds trained together.
        train: (seeds, progress) to named arrays.
        clock: As for :func:`resumable`.
        workdir: As for :func:`resumable`.
        progress: As for :func:`resumable`.

    Returns:
        The arrays of each group of seeds, in order.
    """
    starts = range(0, len(settings.seeds), settings.chunk)
    groups = {f"seeds-from-{start}": settings.seeds[start : start + settings.chunk] for start in starts}
    parts = resumable(
        list(groups),
        lambda part, inner: train(groups[part], inner),
        settings=settings,
        clock=clock,
        workdir=workdir,
        progress=progress,
    )
    return list(parts.values())


def check_seeds(seeds: tuple[int, ...], chunk: int) -> None:
    """Refuse settings without seeds, with a seed twice, or with an empty group of seeds.

    Raises:
        ValueError: If that is so.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds: expected at least one and no repeats, got {seeds}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least one seed, got {chunk}")


def _share(progress: Progress | None, number: int, parts: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, parts * total)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
        try:
            part.write_text(_layout(content), encoding="utf-8")
            part.chmod(0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"path: cannot write {path.name} in {path.parent}: {error.strerror}") from error


def _layout(content: Mapping[str, Any]) -> str:
    """One line per top-level entry: short files, readable differences."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _read(path: Path, experiment: str) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError(f"path: no result file {path.name}; make it with `attnbook run {experiment}`") from None
    except (OSError, ValueError) as error:
        raise ResultError(f"{path.name}: damaged or unreadable: {error}; delete it and run again") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else None
        raise ResultError(f"{path.name}: written in format {found!r}, this version reads {FORMAT}; run it again")
    if raw.get("experiment") != experiment:
        raise ResultError(f"{path.name}: holds {raw.get('experiment')!r}, expected {experiment!r}")
    return raw


def _plain(value: Any, digits: int | None = 6) -> Any:
    """Turn settings and arrays into JSON values, floats rounded to significant digits."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), None) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), digits)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, digits) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item(), digits)
    if isinstance(value, float) and digits is not None:
        return float(f"{value:.{digits}g}")
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
