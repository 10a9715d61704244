"""All experiments of all papers, by id."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module

from attnbook.core.results import Experiment
from attnbook.rooms import ROOMS

__all__ = ["experiment", "experiments"]


@cache
def experiments() -> dict[str, Experiment]:
    """Return the experiments by id, in the order of the book."""
    return {e.id: e for room in ROOMS.values() for e in import_module(f"{room}.experiments").EXPERIMENTS}


def experiment(name: str) -> Experiment:
    """Return the experiment with this id.

    Args:
        name: For example ``global_attention.sample_complexity``.

    Returns:
        The experiment.

    Raises:
        ValueError: If there is none; the message names the nearest ids.
    """
    known = experiments()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or list(known)
        raise ValueError(f"experiment: no experiment {name!r}; did you mean {', '.join(near)}?")
    return known[name]
