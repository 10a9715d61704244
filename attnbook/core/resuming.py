"""Long runs that an interruption does not lose: finished parts are kept and used again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.core.results import Clock
from attnbook.core.runtime import Progress
from attnbook.core.storage import FORMAT, ResultError, plain, read_json, write_json

__all__ = ["by_seeds", "check_seeds", "concatenate", "resumable", "seed_by_seed", "share"]


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
    exact = plain(settings, digits=None)
    done = {}
    for number, part in enumerate(parts):
        file = workdir / f"{part}.json" if workdir is not None else None
        kept = read_json(file, part) if file is not None and file.exists() else None
        if kept is not None and kept.get("settings") == exact:
            try:
                done[part] = {name: np.array(value, dtype=np.float64) for name, value in kept["arrays"].items()}
                clock.add(*kept["seconds"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ResultError(f"{part}.json: damaged part: {error!r}; delete it and run again") from error
            continue
        own = Clock()
        arrays = compute(part, share(progress, number, len(parts)))
        done[part] = {name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()}
        if file is not None:
            arrays_exact = plain(done[part], digits=None)
            head = {"format": FORMAT, "experiment": part, "settings": exact, "seconds": own.spent()}
            write_json(file, {**head, "arrays": arrays_exact})
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


def seed_by_seed(
    settings: Any,
    measure: Callable[[int], Mapping[str, np.ndarray]],
    *,
    clock: Clock,
    workdir: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Measure one seed after the other, keeping what is finished on disk.

    Args:
        settings: Settings with ``seeds`` and ``chunk``, the number of seeds kept together.
        measure: Seed to named arrays, the same names and shapes for each seed.
        clock: As for :func:`resumable`.
        workdir: As for :func:`resumable`.
        progress: Told (seeds done, seeds in the part) as for :func:`resumable`.

    Returns:
        Name to array of all seeds; the first axis runs over them.
    """

    def group(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        found = []
        for number, seed in enumerate(seeds, 1):
            found.append(measure(seed))
            if inner:
                inner(number, len(seeds))
        return {name: np.stack([one[name] for one in found]) for name in found[0]}

    return concatenate(by_seeds(settings, group, clock=clock, workdir=workdir, progress=progress))


def concatenate(parts: Sequence[Mapping[str, np.ndarray]], *, axis: int = 0) -> dict[str, np.ndarray]:
    """Put the arrays of all groups of seeds together.

    Args:
        parts: What :func:`by_seeds` returned: the same names in each.
        axis: The axis that runs over seeds; default the first.

    Returns:
        Name to array of all seeds.
    """
    return {name: np.concatenate([part[name] for part in parts], axis=axis) for name in parts[0]}


def check_seeds(seeds: tuple[int, ...], chunk: int) -> None:
    """Refuse settings without seeds, with a seed twice, or with an empty group of seeds.

    Raises:
        ValueError: If that is so.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds: expected at least one and no repeats, got {seeds}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least one seed, got {chunk}")


def share(progress: Progress | None, number: int, parts: int) -> Progress | None:
    """Return what to tell the progress of one of several equal parts to.

    Args:
        progress: Told (work done, work in all) of the whole; may be None.
        number: Number of the part, from 0.
        parts: Number of parts.

    Returns:
        A function for the part, or None.
    """
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, parts * total)
