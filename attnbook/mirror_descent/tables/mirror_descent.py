"""The tables of this part, as notebooks show them."""

from __future__ import annotations

import dataclasses

import numpy as np

from attnbook.core import tables
from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.experiments import direction, geometry, trajectories
from attnbook.mirror_descent.figures.mirror_descent import lens_directions

__all__ = ["cost", "explorer_text", "lens_text", "nearest", "tokens"]

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
    """Return, by exponent and kind of query, how many runs end at locally and at globally optimal tokens, and when."""
    rows: list[list[str | Measured]] = []
    kinds = range(len(direction.QUERIES))
    for at, p in enumerate(result.settings.ps):
        counts = [
            found[kind, :, at].sum() for kind in kinds for found in (result.locally_optimal, result.globally_optimal)
        ]
        latest = result.settled_at()[0, :, at].max()
        rows.append([f"{p:g}", *(Measured(f"{count:.0f}") for count in counts), Measured(f"{latest:.0f}")])
    caption = (
        f"Of {len(result.settings.seeds)} runs each: how many end at locally optimal tokens (Definition 3), how many "
        "attend to the best token in every sample, and, with queries of their own, the first recorded step after the "
        "last change of a token in any run."
    )
    heads = ["p", *["local", "best"] * len(direction.QUERIES), "latest change"]
    spans = [("", 1), *((NAMES[kind], 2) for kind in direction.QUERIES), ("", 1)]
    return Table(heads, rows, caption, spans)


def nearest(result: direction.Direction) -> Table:
    """Return, by exponent, in how many runs the own solution and the own run are nearest, by two measures."""
    by_divergence, by_cosine = result.own_is_nearest(), result.own_has_largest_cosine()
    rows: list[list[str | Measured]] = [
        [f"{p:g}", Measured(f"{by_divergence[:, at].sum():.0f}"), Measured(f"{by_cosine[:, at].sum():.0f}")]
        for at, p in enumerate(result.settings.ps)
    ]
    caption = (
        f"Of {len(by_cosine)} seeds. First: target fixed, as in the cross table; the run with its p has the smallest "
        "divergence of all runs. Second: run fixed; the target with its p has the largest cosine of all targets."
    )
    return Table(["p", "own run nearest (divergence)", "own target nearest (cosine)"], rows, caption)


def explorer_text(result: geometry.Geometry, p: float, scale: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    at, level = result.settings.ps.index(p), result.settings.scales.index(scale)
    weights = np.abs(result.weights[at])
    attention = result.attention[at, level]
    chosen = attention[np.arange(len(attention)), result.selected.astype(int)]
    share = (weights > 0.01 * weights.max()).mean()
    angle = np.degrees(np.arctan2(*result.plane[at][::-1]))
    shown = f"{angle:.3g}" if angle >= 0.001 else "less than 0.001"
    return (
        f"p = {p:g}: the toy's solution has angle {shown} degrees; {share:.0%} of the matrix's entries are above "
        f"one per cent of the largest; at {scale:g} times the norm of the solution the "
        f"other tokens get at most {1 - chosen.min():.2g} of a sample's attention."
    )


def lens_text(p: float, pushes: float) -> str:
    """Return the numbers behind one picture of the slider on pushes."""
    constraint, weights = lens_directions(p, pushes)
    ray = mirror.inverse_mirror_map(constraint[None], p)[0]
    norms = np.linalg.norm(weights, axis=1)
    cosines = weights @ ray / norms / np.linalg.norm(ray)
    # The sine keeps the digits of a small angle.
    sines = np.abs(weights @ np.array([-ray[1], ray[0]])) / norms / np.linalg.norm(ray)
    worst = np.degrees(np.arctan2(sines, cosines)).max()
    return (
        f"p = {p:g}, {pushes:g} push{'es' * (pushes != 1)}: the worst of six directions is {worst:.2g} degrees away "
        f"from the ray, at Euclidean norms from {norms.min():.3g} to {norms.max():.3g}."
    )
