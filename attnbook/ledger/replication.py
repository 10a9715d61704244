"""Replication: experiments run again on seeds that were used nowhere before, and how often each verdict held.

One file per experiment, ``results/replications/<experiment>.json``, keeps seeds and provenance of each set and, a line
per claim, what was measured. Verdicts are counted by today's rules, whatever they were when the sets ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbook.core.results import (
    FORMAT,
    Measurement,
    ResultError,
    plain,
    read_json,
    stored_measurements,
    stored_path,
    write_json,
)
from attnbook.core.runtime import Size
from attnbook.ledger.judging import judge, recorded
from attnbook.ledger.schema import Claim, LedgerError, claim

__all__ = ["Measure", "Replication", "fresh_seeds", "replicate", "replicated", "replicated_size"]

Measure = Callable[[Any], tuple[Mapping[str, Measurement], Mapping[str, Any]]]
"""Runs an experiment with these settings; returns what was measured, by claim id, and its provenance."""

FOLDER = "replications"


@dataclass(frozen=True)
class Replication:
    """How the verdict on the book's stored result fared on fresh seeds.

    Attributes:
        held: Number of sets of fresh seeds that gave the same verdict.
        sets: Number of sets.
    """

    held: int
    sets: int

    @property
    def unstable(self) -> bool:
        """Whether fewer than four sets of five gave the same verdict."""
        return 5 * self.held < 4 * self.sets

    def __str__(self) -> str:
        return f"{'unstable: ' * self.unstable}held in {self.held} of {self.sets}"


def fresh_seeds(count: int, number: int) -> tuple[int, ...]:
    """Return a set of seeds far from those of all stored results, which are below 10000.

    Args:
        count: Number of seeds, at most 10000.
        number: Number of the set, from 0; different sets share no seed.

    Returns:
        The seeds.

    Example:
        >>> fresh_seeds(3, 0), fresh_seeds(2, 1)
        ((20000, 20001, 20002), (30000, 30001))
    """
    first = 10_000 * (number + 2)
    return tuple(range(first, first + count))


def replicated_size(experiment: str) -> Size:
    """Return the size at which fresh seeds are tried: the book's, or the full one if claims are measured there only."""
    sizes: tuple[Size, ...] = ("book", "full")
    return next((size for size in sizes if stored_measurements(experiment, size)), "book")


def replicate(experiment: str, settings: Any, measure: Measure, *, sets: int = 5) -> Path:
    """Run an experiment on sets of fresh seeds and store what was measured, after each set.

    Sets that are stored for the same settings are not run again, so an interrupted replication continues.

    Args:
        experiment: Its id.
        settings: Its settings at the size at which its claims are measured, a dataclass; each set replaces its
            ``seeds``.
        measure: Runs the experiment with the settings it is given.
        sets: Number of sets.

    Returns:
        The file.

    Raises:
        ResultError: If the stored file is damaged or cannot be written.
        LedgerError: If a measured claim is not in the ledger or cannot be judged.
    """
    path, seeds = stored_path(experiment, FOLDER), settings.seeds
    fixed = {name: value for name, value in plain(settings).items() if name != "seeds"}
    content: dict[str, Any] = {
        "format": FORMAT,
        "experiment": experiment,
        "settings": fixed,
        "seeds": [],
        "provenance": [],
    }
    if path.exists():
        kept = read_json(path, experiment)
        if kept.get("settings") == fixed and _are_fresh(kept.get("seeds"), len(seeds)):
            content = kept
    for number in range(len(content["seeds"]), sets):
        fresh = fresh_seeds(len(seeds), number)
        measured, provenance = measure(replace(settings, seeds=fresh))
        content = _with_set(content, fresh, measured, provenance)
        write_json(path, content)
    return path


def _are_fresh(kept: Any, count: int) -> bool:
    """Whether kept sets have as many seeds as the settings ask for today."""
    return kept == [list(fresh_seeds(count, number)) for number in range(len(kept or ()))]


def _with_set(
    content: Mapping[str, Any],
    seeds: tuple[int, ...],
    measured: Mapping[str, Measurement],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of the file with one more set: one more entry in each list."""
    lists = {
        i: list(content.get(i, ())) for i in (*content, *measured) if i not in {"format", "experiment", "settings"}
    }
    lists["seeds"].append(list(seeds))
    lists["provenance"].append(dict(provenance))
    for i, m in measured.items():
        outcome = judge(claim(i), m).outcome
        lists[i].append({"outcome": outcome, "values": plain(m.values)})
    for i, entries in lists.items():
        if len(entries) != len(lists["seeds"]):
            raise LedgerError(f"{i}: measured in {len(entries)} of {len(lists['seeds'])} sets of seeds, expected all")
    return {**content, **lists}


def replicated(claim: Claim, file: Path | None = None) -> Replication | None:
    """Return on how many sets of fresh seeds the verdict on the stored result held, the book's where there is one.

    Args:
        claim: The claim.
        file: What :func:`replicate` returned; default the stored file.

    Returns:
        The count; None while the claim has not been replicated, or is not measured.

    Raises:
        ResultError: If the stored file is damaged, or older than the claim's rule.
    """
    path = file or stored_path(claim.experiment, FOLDER)
    before = recorded(claim, replicated_size(claim.experiment))
    if before.measurement is None or not path.exists():
        return None
    kept = read_json(path, claim.experiment)
    try:
        measured = [Measurement({k: float(v) for k, v in one["values"].items()}) for one in kept.get(claim.id, ())]
        held = sum(judge(claim, m).outcome == before.outcome for m in measured)
        return Replication(held, len(measured)) if measured else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        again = f"delete it and run `attnbook verify --fresh {claim.experiment}`"
        raise ResultError(
            f"{FOLDER}/{path.name}: damaged, or older than the rule of {claim.id}: {error}; {again}"
        ) from error
