"""Measured results: what was measured, how it was obtained, and the files that keep it.

A result file is JSON that appears whole or not at all, and says what is wrong with it when it is read: settings,
arrays, measurements by claim id, and provenance.
"""

from __future__ import annotations

import datetime
import errno
import glob
import hashlib
import json
import math
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnbook
from attnbook.core.places import checkout

__all__ = [
    "FORMAT",
    "Clock",
    "Measurement",
    "ResultError",
    "at_paper_size",
    "plain",
    "read_json",
    "results_folder",
    "stored_measurements",
    "stored_path",
    "write_json",
]

FORMAT = 1
# Stands between the text of a file and its checksum.
SEAL = ',\n  "sha256": "'
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# How often a folder may vanish while a file is written into it.
TRIES = 9


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


class Clock:
    """Starts when made; :meth:`provenance` tells how the time was spent."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def spent(self) -> tuple[float, float]:
        """Return the elapsed and the processor time so far, in seconds."""
        return time.perf_counter() - self.wall, time.process_time() - self.cpu

    def provenance(self, device: torch.device) -> dict[str, Any]:
        """Return how a computation that ends now was obtained.

        Args:
            device: Device it ran on.

        Returns:
            Versions of this package, of Python, torch and NumPy; operating system and processor family; device, with
            its name for a GPU; elapsed and processor time of this process in seconds; its largest memory so far; day.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        gpu = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
        wall, cpu = self.spent()
        return {
            "attnbook": attnbook.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "system": f"{platform.system()} {platform.machine()}",
            "device": device.type + gpu,
            "wall_seconds": round(wall, 2),
            "cpu_seconds": round(cpu, 2),
            "peak_memory_mib": round(peak),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }


def results_folder() -> Path:
    """Return the folder of stored results, to which runs write as well.

    Returns:
        ``ATTNBOOK_RESULTS`` if set, else ``results`` of the checkout of the book.

    Raises:
        ValueError: If there is neither.
    """
    if "ATTNBOOK_RESULTS" in os.environ:
        return Path(os.environ["ATTNBOOK_RESULTS"])
    return checkout() / "results"


def stored_path(experiment: str, size: str) -> Path:
    """Return the file that holds, or would hold, the stored result of an experiment."""
    return results_folder() / size / f"{experiment}.json"


def stored_measurements(experiment: str, size: str) -> dict[str, Measurement]:
    """Return the stored measurements of an experiment.

    Args:
        experiment: Its id.
        size: ``book`` or ``full``.

    Returns:
        Measurements by claim id; empty when the experiment is not stored.

    Raises:
        ResultError: If the file is damaged, of another experiment or of another format.
    """
    path = stored_path(experiment, size)
    return dict(_stored(path, experiment)[0]) if path.exists() else {}


def at_paper_size(experiment: str) -> bool:
    """Return whether the stored result of the full size is of the paper's own size, as its provenance says."""
    path = stored_path(experiment, "full")
    return path.exists() and _stored(path, experiment)[1]


def _stored(path: Path, experiment: str) -> tuple[dict[str, Measurement], bool]:
    now = path.stat()
    return _read(path, experiment, (now.st_ino, now.st_mtime_ns, now.st_size))


@cache
def _read(path: Path, experiment: str, state: tuple[int, ...]) -> tuple[dict[str, Measurement], bool]:
    """Read measurements and size of a file in this state, once: a page of the book asks for each claim and size."""
    raw = read_json(path, experiment)
    try:
        measured = {
            claim: Measurement(
                {k: float(v) for k, v in m["values"].items()},
                {k: (float(v[0]), float(v[1])) for k, v in m["spread"].items()},
                m["n_seeds"],
            )
            for claim, m in raw["measurements"].items()
        }
        return measured, raw.get("provenance", {}).get("paper_size", False)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ResultError(f"{path.name}: damaged measurements: {error!r}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file; it appears whole or not at all, with a checksum as its last entry.

    Args:
        path: Name of the file; its folder is made when missing.
        content: JSON values.

    Raises:
        ResultError: If the folder or file cannot be written.
    """
    try:
        text = _layout(content).removesuffix("\n}\n")
        _appear(path, f'{text}{SEAL}{_sha256(text)}"\n}}\n', TRIES)
    except OSError as error:
        elsewhere = "choose another place with --output or ATTNBOOK_RESULTS"
        mend = "make room and run again, what is finished is kept" if error.errno in NO_ROOM else elsewhere
        raise ResultError(f"path: cannot write {path.name} in {path.parent}: {error.strerror}; {mend}") from error


def _appear(path: Path, text: str, tries: int) -> None:
    """Write beside, then rename; what killed processes have left beside goes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside: Any = {"dir": path.parent, "prefix": f".{path.name}.", "suffix": ".part"}
        with tempfile.NamedTemporaryFile(**beside, delete=False) as file:
            part = Path(file.name)
        try:
            part.write_text(text, encoding="utf-8")
            part.chmod(0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except (FileNotFoundError, FileExistsError):  # another run of the same experiment took folder or file away
        if tries == 1:
            raise
        _appear(path, text, tries - 1)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        left.unlink(missing_ok=True)


def _layout(content: Mapping[str, Any], indent: str = "  ") -> str:
    """One line per top-level entry, and per variable of a data set: short files, readable differences."""
    lines = []
    for key, value in content.items():
        nested = key in ("coords", "data_vars") and value
        text = _layout(value, indent + "  ").strip() if nested else json.dumps(value, allow_nan=False)
        lines.append(f"{indent}{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent[2:]}}}\n"


def read_json(path: Path, experiment: str) -> dict[str, Any]:
    """Read a file of :func:`write_json` that holds this experiment, or this part of one.

    Args:
        path: The file.
        experiment: What its entry ``experiment`` must be.

    Returns:
        Its content.

    Raises:
        ResultError: If the file is missing, damaged, of another experiment or of another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw, (body, seal, rest) = json.loads(text), text.rpartition(SEAL)
    except FileNotFoundError:
        raise ResultError(f"path: no result file {path.name}; make it with `attnbook run {experiment}`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultError(f"{path.name}: damaged or unreadable: {error}; delete it and run again") from error
    if seal and _sha256(body) != rest[:64]:
        raise ResultError(f"{path.name}: damaged, its checksum is another; delete it and run again")
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else None
        raise ResultError(f"{path.name}: written in format {found!r}, this version reads {FORMAT}; run it again")
    if raw.get("experiment") != experiment:
        raise ResultError(f"{path.name}: holds {raw.get('experiment')!r}, expected {experiment!r}")
    raw.pop("sha256", None)  # results of before have none
    return raw


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """Turn settings and arrays into JSON values, infinity and NaN as texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has neither infinity nor NaN; float() and NumPy read the texts
    return value
