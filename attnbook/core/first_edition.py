"""Experiments of the first edition behind the contract of the second; goes with the last room that has some.

An entry of a room's ``EXPERIMENTS`` keeps its ``settings_for``, ``run`` and ``result``; it gains what the command line
and the generic test ask of any experiment: ``scales``, ``at`` and, from there, ``run``, ``measurements``, ``store``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch

from attnbook.core import results, runtime
from attnbook.core.results import Measurement, Result
from attnbook.core.runtime import Progress, Scale
from attnbook.core.settings import check_known

__all__ = ["OldEntry", "OldExperiment"]


@dataclasses.dataclass(frozen=True)
class OldEntry(results.Experiment):
    """An entry of the registry that can be asked like a class of the new kind."""

    def scales(self) -> tuple[Scale, ...]:
        """Return the sizes that this experiment has."""
        return ("smoke", "book", "paper")

    def at(self, scale: Scale | None = None, **changes: Any) -> OldExperiment:
        """Return the experiment at a scale, as :meth:`attnbook.core.experiment.Experiment.at` does.

        Args:
            scale: One of :meth:`scales`; default that of the session.
            **changes: Settings to change.

        Returns:
            The experiment, ready to run.

        Raises:
            ValueError: If the experiment has no such scale or setting.
        """
        if scale is None:
            scale = runtime.scale() if runtime.scale() in self.scales() else "book"
        if scale not in self.scales():
            raise ValueError(f"scale: {self.id} has no size {scale!r}, expected one of {', '.join(self.scales())}")
        check_known(self.settings, changes)
        return OldExperiment(self, dataclasses.replace(self.settings_for(scale), **changes))

    def load_stored(self, scale: Scale) -> Result:
        """Return the result that is kept with the book."""
        return self.result.load_stored(scale)


@dataclasses.dataclass(frozen=True)
class OldExperiment:
    """An entry with settings.

    Attributes:
        entry: The entry of the registry.
        settings: Its settings.
    """

    entry: OldEntry = dataclasses.field(repr=False)
    settings: Any

    @property
    def id(self) -> str:
        """The id of the entry."""
        return self.entry.id

    def groups(self) -> list[tuple[int, ...]]:
        """Return one group: it runs as a whole."""
        return [tuple(getattr(self.settings, "seeds", ()))]

    def run(
        self,
        *,
        device: str | torch.device | None = None,
        workdir: Path | None = None,
        executor: Executor | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Run it here, or as one task on an executor, where it keeps no parts.

        Args:
            device: Where to train.
            workdir: Folder for finished parts, used here only.
            executor: Where to run; default here.
            progress: Told (work done, work in all).

        Returns:
            The result.
        """
        if executor is None:
            return self.entry.run(self.settings, device=device, workdir=workdir, progress=progress)
        found = executor.submit(self.entry.run, self.settings, device=device).result()
        if progress:
            progress(1, 1)
        return found

    def measurements(self, data: Result) -> Mapping[str, Measurement]:
        """Return what was measured, by claim id."""
        return data.measurements()

    def store(self, data: Result, path: Path) -> None:
        """Write the result; the file appears whole or not at all."""
        data.save(path)

    def load(self, path: Path) -> Result:
        """Read a result of this experiment."""
        return self.entry.result.load(path)
