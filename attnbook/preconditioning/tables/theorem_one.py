"""The tables on Theorem 1 in the chapter on the population loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments.landscape import Landscape
from attnbook.preconditioning.models import contraction
from attnbook.preconditioning.theory import landscape

__all__ = ["bounds", "one_sided", "steps_promised", "theorem_text", "to_the_saddle", "worst_together"]


def bounds(result: Landscape) -> Table:
    """Return what Theorem 1 promises within its radius, what the sharp forms promise, and the worst that was found."""
    within = np.array(result.settings.squared_distances) <= landscape.RADIUS
    rows: list[list[str | Measured]] = []
    edge = torch.tensor(landscape.RADIUS)
    for at, outputs in enumerate(result.settings.outputs):
        spare = outputs > result.settings.dimension
        sharp = float(landscape.one_point_bound(edge) if spare else landscape.shrinking_ratio(edge))
        low, chance = (v[:, at][..., within].min() for v in (result.found_smallest, result.random_smallest))
        rows.append([f"(3) at least, m {'>' if spare else '='} d", "0.5", f"{sharp:.3f}", Measured(f"{low:.4f}"),
                     Measured(f"{chance:.2f}")])  # fmt: skip
    for at, spread in enumerate(result.settings.spreads):
        sharp = float(landscape.growing_ratio(edge, spread))
        high, chance = (v[:, :, at][..., within].max() for v in (result.found_largest, result.random_largest))
        rows.append([f"(4) at most, weakest/strongest = {spread:g}", f"{landscape.SMOOTHNESS:g}", f"{sharp:.3f}",
                     Measured(f"{high:.4f}"), Measured(f"{chance:.2f}")])  # fmt: skip
    caption = (
        "Ratios within the radius of Theorem 1. By hand: the displacement of which we can compute the ratio at the "
        "edge; the search starts at random and does not know it. For m = d in (3) there is no proof that it is worst."
    )
    return Table(["ratio", "Theorem 1", "worst by hand", "worst by search", "worst at random"], rows, caption)


def to_the_saddle(result: Landscape) -> Table:
    """Return how far the gradient points back: by the proof, at random and in the search, up to the nearest saddle.

    Args:
        result: Ratios at random and at worst.

    Returns:
        The table, one row per squared distance from the radius of Theorem 1 on; extremes over all problems and seeds.
    """
    distances = list(result.settings.squared_distances)
    ends = {landscape.RADIUS: "radius", landscape.PROVED: "end of the proof", landscape.SADDLE: "saddle"}
    rows: list[list[str | Measured]] = []
    for r in sorted({*ends, *(r for r in distances if r > landscape.RADIUS)}):
        proved = float(landscape.one_point_bound(torch.tensor(r, dtype=torch.float64)))
        found = ["", ""]
        if r in distances:
            chosen = np.s_[..., distances.index(r)]
            found = [f"{v[chosen].min():.3f}" for v in (result.random_smallest, result.found_smallest)]
        rows.append([f"{r:g}", ends.get(r, ""), f"{100 * (r / landscape.SADDLE) ** 0.5:.0f} %",
                     f"{proved:.3f}" if r <= landscape.PROVED else "", *map(Measured, found)])  # fmt: skip
    heads = ["r", "", "of the way", "proved", "at random", "by search"]
    caption = (
        "Smallest ratio in (3), all problems and seeds. r: squared distance over the weakest singular value; of the "
        "way: distance over that of the nearest saddle."
    )
    return Table(heads, rows, caption)


def one_sided(result: Landscape) -> Table:
    """Return the smallest ratio of (3) in the one-sided norm, by outputs and spectrum."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for at, outputs in enumerate(s.outputs):
        found = result.one_sided[:, at].min(axis=0)
        rows.append([f"m {'>' if outputs > s.dimension else '='} d", *(Measured(f"{x:.4f}") for x in found)])
    caption = (
        f"Smallest ratio to ‖H‖² times weakest singular value times smallest eigenvalue of Σ, over {len(s.seeds)} "
        f"seeds, each with {s.directions} random displacements and one chosen one; no search. "
        f"d = {s.dimension}, condition number {s.condition_number:g}."
    )
    return Table(["outputs", *(f"weakest/strongest = {spread:g}" for spread in s.spreads)], rows, caption)


def worst_together(spreads: tuple[float, ...] = (1.0, 0.5, 0.25), dimension: int = 3) -> Table:
    """Return both ratios at the two points on the edge where one of them is at its worst, for an output to spare.

    Args:
        spreads: $s_d/s_1$, one row each.
        dimension: Number of inputs.

    Returns:
        The table.
    """
    rows: list[list[str | Measured]] = []
    for spread in spreads:
        points, whitened_map = _edge(spread, dimension, n_random=0)
        back, steep = contraction.ratios(points, whitened_map)
        rows.append([f"{spread:g}", *(f"{float(x):.2f}" for x in (back[0], steep[0], back[1], steep[1]))])
    heads = ["weakest/strongest", "ratio of (3)", "ratio of (4)", "ratio of (3)", "ratio of (4)"]
    caption = (
        f"At the edge of the neighbourhood, {_problem(dimension)}; Theorem 1 promises at least 0.5 and at most 5.3."
    )
    groups = [("", 1), ("where (3) is worst", 2), ("where (4) is worst", 2)]
    return Table(heads, rows, caption, groups)


def steps_promised(spreads: tuple[float, ...] = (1.0, 0.5, 0.25), dimension: int = 3, n_random: int = 30) -> Table:
    r"""Return the steps that shrink the distance tenfold: promised by Theorem 1, and needed from the edge.

    Args:
        spreads: $s_d/s_1$, one row each.
        dimension: Number of inputs.
        n_random: Random points on the edge, beside the two worst ones.

    Returns:
        The table, for an output to spare. What is needed is the largest number over all points that were tried, with
        the step size of the theorem and with $2/(s_d+2s_1)$, the best close to a minimum.
    """
    rows: list[list[str | Measured]] = []
    for spread in spreads:
        points, whitened_map = _edge(spread, dimension, n_random)
        sharp = float(landscape.growing_ratio(torch.tensor(landscape.RADIUS), spread))
        # A step multiplies the squared distance by at most 1 - 2 eta mu + (eta beta)^2; the best eta is mu / beta^2.
        sizes = [spread / 2 / beta**2 for beta in (landscape.SMOOTHNESS, sharp)]
        promised = [np.ceil(-2 * np.log(10) / np.log1p(-size * spread / 2)) for size in sizes]
        needed = [
            contraction.steps_to_shrink(points, whitened_map, size).max() for size in (sizes[0], 2 / (spread + 2))
        ]
        rows.append([f"{spread:g}", *(f"{steps:.0f}" for steps in promised), *(Measured(f"{n}") for n in needed)])
    heads = ["weakest/strongest", "by (3), (4)", "sharp (4)", "same step", "best step"]
    caption = (
        "Steps until the distance is a tenth. Same step: that of the first promise; best: two over the sum of the "
        "weakest and twice the strongest singular value. Needed: the "
        f"largest number over {n_random} random points on the edge (one seed) and the two worst ones; "
        f"{_problem(dimension)}."
    )
    return Table(heads, rows, caption, [("", 1), ("promised", 2), ("needed", 2)])


def theorem_text(result: Landscape, outputs: str, spread: float) -> str:
    """Return the numbers behind one picture of the slider on Theorem 1."""
    s = result.settings
    at = np.s_[:, int(outputs == "m > d"), s.spreads.index(spread)]
    within = np.array(s.squared_distances) <= landscape.RADIUS
    low, random_low = (v[at][:, within].min() for v in (result.found_smallest, result.random_smallest))
    high, random_high = (v[at][:, within].max() for v in (result.found_largest, result.random_largest))
    return (
        f"{outputs}, weakest over strongest singular value {spread:g}, inside the neighbourhood: "
        f"the ratio of (3) is at least {random_low:.2f} for random displacements and {low:.3f} in the search; that of "
        f"(4) at most {random_high:.2f} and {high:.2f}."
    )


def _edge(spread: float, dimension: int, n_random: int) -> tuple[Tensor, Tensor]:
    values = torch.linspace(1, spread, dimension, dtype=torch.float64)
    return contraction.edge_points(values, dimension + 1, n_random=n_random, rng=stream(0, "edge", str(spread)))


def _problem(dimension: int) -> str:
    return f"d = {dimension}, {dimension + 1} outputs"
