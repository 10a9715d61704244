"""The tables of this part, as notebooks show them."""

from __future__ import annotations

import dataclasses

import numpy as np

from attnbook.core import tables
from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.experiments import direction, geometry, trajectories

__all__ = ["cost", "explorer_text", "tokens"]

NAMES = {"independent": "queries of their own", "first_token": "first token as query"}


def cost(result: trajectories.Trajectories, networks: int) -> Table:
    """Return how many paths were trained, where and in what time.

    Args:
        result: The paths.
        networks: Their number.

    Returns:
        A table of one row.
    """
    caption = "Scale-free paths, plain paths and runs with one constraint: three programs."
    return dataclasses.replace(tables.cost(result, networks), caption=caption)


def tokens(result: direction.Direction) -> Table:
    """Return, by exponent and kind of query, how often the tokens attended last are locally and globally optimal."""
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        row: list[str | Measured] = [f"{p:g}"]
        for kind in range(len(direction.QUERIES)):
            local = result.locally_optimal[kind, :, at]
            best = result.globally_optimal[kind, :, at]
            row.append(Measured(f"{local.sum():.0f} and {best.sum():.0f} of {len(local)}"))
        rows.append(row)
    caption = (
        "Runs whose tokens attended last are locally optimal (Definition 3), and runs in which every sample attends "
        "to its best token."
    )
    return Table(["p", *(f"{NAMES[kind]}: local, global" for kind in direction.QUERIES)], rows, caption)


def explorer_text(result: geometry.Geometry, p: float, scale: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    at, level = result.settings.ps.index(p), result.settings.scales.index(scale)
    weights = np.abs(result.weights[at])
    attention = result.attention[at, level]
    chosen = attention[np.arange(len(attention)), result.selected.astype(int)]
    share = (weights > 0.01 * weights.max()).mean()
    angle = np.degrees(np.arctan2(*result.plane[at][::-1]))
    return (
        f"p = {p:g}: the toy's solution has angle {angle:.3g} degrees; {share:.0%} of the matrix's entries are above "
        f"one per cent of the largest; at {scale:g} times the norm of the solution the "
        f"selected tokens get between {chosen.min():.0%} and {chosen.max():.0%} of the attention."
    )
