"""Runs that were broken off: their finished groups of seeds are kept, so that the same run continues.

By default they lie in the user's cache until the run ends, or for a month. The name of a file tells apart all that the
numbers depend on: experiment, seeds, settings, device, version and source of this package and of the script.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import attnbook
from attnbook.core.places import cache_folder

__all__ = ["PATIENCE", "Stopped", "clear", "own_folder", "part_name"]

PATIENCE = 2.0
"""Seconds after which a run is worth continuing; a shorter one writes nothing by itself."""
MONTH = 30 * 24 * 3600.0
LOADED = time.time()


class Stopped(KeyboardInterrupt):
    """A run was interrupted. The message says what is kept; a notebook shows this line and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def own_folder(experiment: object) -> Path | None:
    """Return where finished groups wait by default.

    Args:
        experiment: What runs.

    Returns:
        The folder, which need not exist. None without a home folder, and where groups of other code could be mixed with
        those of this run: for an experiment of the user's own, or if the source is newer than what was loaded.
    """
    with suppress(ValueError):
        ours = type(experiment).__module__.startswith("attnbook.")
        return cache_folder() / "unfinished" if ours and _source() else None
    return None


def part_name(experiment: Any, seeds: tuple[int, ...], device: object) -> str:
    """Return the name of the file of a group of seeds.

    Args:
        experiment: With its settings.
        seeds: Those of the group.
        device: Where they are trained; None where that is left to other machines.
    """
    script = getattr(experiment, "code", "")  # of an experiment that is defined beside a notebook
    all_else = f"{experiment!r} {device} {attnbook.__version__} {_source()} {script}"
    return f"{experiment.id}-seeds-{seeds[0]}-{seeds[-1]}-{hashlib.sha256(all_else.encode()).hexdigest()[:12]}.json"


def clear(files: Iterable[Path]) -> None:
    """Remove the files of a run that has ended, those of more than a month ago beside them, and an empty folder."""
    for file in files:
        with suppress(OSError):  # another run may take it away first
            file.unlink(missing_ok=True)
            for other in file.parent.iterdir():
                if other.stat().st_mtime < time.time() - MONTH:
                    other.unlink()
            file.parent.rmdir()


@cache
def _source() -> str:
    """A digest of the package's source; empty if that is newer than what was loaded."""
    digest = hashlib.sha256()
    for file in sorted(Path(attnbook.__file__).parent.rglob("*.py")):
        if os.path.getmtime(file) > LOADED:
            return ""
        digest.update(file.read_bytes())
    return digest.hexdigest()
