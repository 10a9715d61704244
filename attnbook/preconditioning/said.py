"""Tables that several chapters of this part show."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict

import xarray as xr
from torch import Tensor

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table

__all__ = ["provenance", "said"]


def provenance(**found: xr.Dataset | Result) -> Table:
    """Return how several results were obtained, one column each.

    Args:
        **found: Name to result.

    Returns:
        The table.
    """
    facts = {
        name: one.attrs["provenance"] if isinstance(one, xr.Dataset) else asdict(one.provenance)
        for name, one in found.items()
    }
    seeds = [one.sizes["seed"] if isinstance(one, xr.Dataset) else len(one.settings.seeds) for one in found.values()]
    rows: list[list[str | Measured]] = [["seeds", *map(str, seeds)]]
    for fact in next(iter(facts.values())):
        if fact != "groups":
            rows.append([fact.replace("_", " "), *(Measured(str(one[fact])) for one in facts.values())])
    heads = [name.replace("_", " ") for name in found]
    return Table(["", *heads], rows, "How the results on this page were obtained.")


def said(
    function: Callable[..., object], good: Mapping[str, Tensor], wrong: Mapping[str, Mapping[str, Tensor]]
) -> Table:
    """Return what a function answers to arguments that break an assumption.

    Args:
        function: Takes keyword arguments; warns, or raises ``ValueError``.
        good: Arguments in order.
        wrong: Name of a case to the arguments that differ.

    Returns:
        The table of cases, each with warning or error and its words.
    """
    rows: list[list[str | Measured]] = []
    for case, changes in wrong.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                function(**{**good, **changes})
                kind, message = "warning", str(caught[0].message) if caught else "nothing"
            except ValueError as error:
                kind, message = "error", str(error)
        rows.append([case, kind, Measured(message)])
    return Table(["what is wrong", "answer", "in the words of the package"], rows, "Each case breaks one assumption.")
