"""The tables of the chapter, and the sentences below its sliders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.core.tables import Measured, Table
from attnbook.preconditioning import landscape
from attnbook.preconditioning.manifold import nearest
from attnbook.preconditioning.population_loss import contraction
from attnbook.preconditioning.population_loss.experiments import within
from attnbook.preconditioning.population_loss.figures import LINE_QUERIES, LINE_SEEDS, START, STEPS, line_outputs
from attnbook.preconditioning.population_loss.valley import Coordinates, Valley

Rows = list[list[str | Measured]]


def moments(data: xr.Dataset) -> Table:
    """Return simulated moments beside their determinants, one row each; medians over seeds and largest errors."""
    rows: Rows = []
    for name in data.moment.values:
        one = data.sel(moment=name)
        error = float(np.abs(one.moments / one.closed_moments - 1).max())
        drawn, exact = (Measured(f"{float(values.median()):.4f}") for values in (one.moments, one.closed_moments))
        finite = f"{float(one.finite_variance.sum()):.0f} of {data.sizes['seed']}"
        rows.append([name, drawn, exact, Measured(f"{100 * error:.2g} %"), finite])
    s = data.attrs["settings"]
    caption = (
        f"Medians over {data.sizes['seed']} random matrices of norm {s['moment_tilt']:g}, {s['moment_draws']:,} draws "
        "each. Exact: determinants; error: the largest; variance: for how many of the matrices that of one draw is "
        "finite."
    )
    return Table(["moment", "drawn", "exact", "error", "variance"], rows, caption)


def degrees(data: xr.Dataset) -> Table:
    """Return the degree in the covariance of the gradients of three regularisers."""
    shapes = {"two-sided": "‖√Σ B √Σ‖²", "one-sided": "‖Σ B‖²", "none": "‖B‖²"}
    rows: Rows = []
    for weight, shape in shapes.items():
        found = np.unique(data.degrees.sel(weight=weight).values, axis=0).astype(int).tolist()
        pairs = [" or ".join(str(pair[layer]) for pair in found) for layer in (0, 1)]
        rows.append([f"{weight}: {shape}", *pairs, "yes" if found == [[3, 4]] else "no"])
    caption = "Degree as a polynomial in Σ, the same at every random point; the words of Theorem 5 speak of 3 and 4."
    return Table(["weight of the regulariser", "gradient for U", "gradient for V", "fits the words"], rows, caption)


def fit_with_and_without(variances: tuple[float, ...] = (0.1, 1.0, 10.0), early: int = 5) -> Table:
    """Return how much of the loss alone is left on the paths of the slider, early and late, for both weights."""
    rows: Rows = []
    cases: list[tuple[Coordinates, float]] = [("original", variance) for variance in variances]
    for coordinates, variance in [*cases, ("whitened", 1.0)]:
        left = [_share_left(variance, coordinates, penalty) for penalty in (0.0, 1.0)]
        name = f"original, {variance:g}" if coordinates == "original" else "whitened"
        rows.append([name, *(Measured(_tiny(share[at])) for at in (early, STEPS) for share in left)])
    groups = [("", 1), (f"after {early} steps", 2), (f"after {STEPS} steps", 2)]
    heads = ["variance", "λ = 0", "λ = 1", "λ = 0", "λ = 1"]
    caption = "Loss without the penalty, over that at the start; coordinates, and variance where it matters."
    return Table(heads, rows, caption, groups)


def starts(squared_distances: Mapping[str, Sequence[float]]) -> Table:
    """Return how far starts are from the minima, over $s_d$, and how many lie inside the radius of Theorem 1."""
    rows: Rows = []
    for name, found in squared_distances.items():
        low, middle, high = np.quantile(found, [0, 0.5, 1])
        inside = sum(one <= landscape.RADIUS for one in found)
        radii = math.sqrt(middle / landscape.RADIUS)
        rows.append([name, Measured(f"{middle:#.3g}"), Measured(f"{low:#.3g} to {high:#.3g}"),
                     Measured(f"{radii:.2g}"), Measured(f"{inside} of {len(found)}")])  # fmt: skip
    caption = (
        "Squared distance to the minima over the weakest singular value; inside: ≤ 0.8. Radii: median distance over "
        "the radius."
    )
    return Table(["start", "median", "range", "radii", "inside"], rows, caption)


def line_text(n: int, key_query: float) -> str:
    """Return the numbers behind one picture of the slider on the number of keys."""
    reach = math.sqrt(math.log(n)) / key_query
    outputs = line_outputs(n, key_query)
    off = np.abs(np.median(outputs, axis=0) - key_query * LINE_QUERIES).max()
    share = math.erf(reach / math.sqrt(2))
    inside = np.abs(LINE_QUERIES) <= reach
    spread = (outputs.max(axis=0) - outputs.min(axis=0))[inside].max()
    return (
        f"{n} keys, V = {key_query:g}: there are more than exp(w²) of them for |z| below {reach:.2f}, which is "
        f"{100 * share:.3g} % of all queries. There seeds differ by at most {spread:.2g}. Largest distance of the "
        f"median over {LINE_SEEDS} seeds from the line, |z| up to 3: {off:.2g}."
    )


def line_reach(key_query: float = 1.4, sizes: Sequence[int] = (10, 100, 10_000), off: float = 0.5) -> Table:
    """Return how far from zero attention follows the line, up to ``off``, beside two predictions."""
    rows: Rows = []
    for n in sizes:
        errors = line_outputs(n, key_query) - key_query * LINE_QUERIES
        left = [np.abs(errors).max(axis=0) > off, np.abs(np.median(errors, axis=0)) > off]
        found = [f"{np.abs(LINE_QUERIES)[out].min():.2f}" if out.any() else "none" for out in left]
        reach = math.sqrt(math.log(n)) / key_query
        rows.append([f"{n}", Measured(found[0]), f"{reach:.2f}", Measured(found[1]), f"{math.sqrt(2) * reach:.2f}"])
    caption = (
        f"V = {key_query:g}: smallest |z| with an output more than {off:g} off the line, for some of {LINE_SEEDS} "
        "seeds and for their median; grey: n = exp(w²); one key: where it takes all the weight, as log n grows."
    )
    return Table(["keys", "some seed", "grey from", "median", "one key"], rows, caption)


def valley_text(variance: float, coordinates: Coordinates, penalty: float) -> str:
    """Return the numbers behind one picture of the slider on coordinates."""
    smallest, largest = Valley(variance, coordinates, penalty).curvatures
    flat = smallest < 1e-9 * largest
    ratio = "infinite: the dashed curve is a valley of minima" if flat else f"{largest / smallest:.3g}"
    left = _tiny(_share_left(variance, coordinates, penalty)[STEPS])
    return (
        f"Variance {variance:.3g}, {coordinates} coordinates, weight {penalty:g}: largest over smallest curvature at "
        f"the minimum {ratio}. After {STEPS} steps {left} of the loss (without the penalty) is left."
    )


def spectrum_text(spare: int, spread: float, penalty: float, dimension: int = 3) -> str:
    """Return the numbers behind one picture of the slider on the Hessian."""
    values = torch.linspace(1, spread, dimension, dtype=torch.float64)
    spectrum = landscape.hessian_spectrum(values, dimension + spare, penalty)
    positive = spectrum[spectrum > 1e-9]
    smallest, largest = float(positive.min()), float(positive.max())
    return (
        f"{len(spectrum)} directions, {len(spectrum) - len(positive)} of them flat. Smallest other eigenvalue "
        f"{smallest:.3g}, largest {largest:.3g}: step size below {2 / largest:.3g}, and at the best one the slowest "
        f"direction keeps {(largest - smallest) / (largest + smallest):.3g} of its error per step."
    )


def theorem_text(data: xr.Dataset, outputs: str, spread: float) -> str:
    """Return the numbers behind one picture of the slider on Theorem 1."""
    inside = data.sel(outputs=outputs, spread=spread, distance=within(data))
    low, high = inside.min(), inside.max()
    return (
        f"{outputs}, weakest over strongest singular value {spread:g}, inside the neighbourhood: the ratio of (3) is "
        f"at least {low.random_smallest:.2f} for random displacements and {low.found_smallest:.3f} in the search; that "
        f"of (4) at most {high.random_largest:.2f} and {high.found_largest:.2f}."
    )


def bounds(data: xr.Dataset) -> Table:
    """Return what Theorem 1 promises within its radius, what the sharp forms promise, and the worst that was found."""
    inside, edge = data.sel(distance=within(data)), torch.tensor(landscape.RADIUS)
    rows: Rows = []
    for outputs in data.outputs.values:
        sharp = landscape.one_point_bound(edge) if outputs == "m > d" else landscape.shrinking_ratio(edge)
        low = inside.sel(outputs=outputs).min()
        rows.append([f"(3) at least, {outputs}", "0.5", f"{float(sharp):.3f}", Measured(f"{low.found_smallest:.4f}"),
                     Measured(f"{low.random_smallest:.2f}")])  # fmt: skip
    for spread in data.spread.values.tolist():
        sharp, high = landscape.growing_ratio(edge, spread), inside.sel(spread=spread).max()
        rows.append([f"(4) at most, weakest/strongest = {spread:g}", f"{landscape.SMOOTHNESS:g}", f"{float(sharp):.3f}",
                     Measured(f"{high.found_largest:.4f}"), Measured(f"{high.random_largest:.2f}")])  # fmt: skip
    caption = (
        "Ratios within the radius of Theorem 1. By hand: the displacement of which we can compute the ratio at the "
        "edge; the search starts at random and does not know it. For m = d in (3) there is no proof that it is worst."
    )
    return Table(["ratio", "Theorem 1", "worst by hand", "worst by search", "worst at random"], rows, caption)


def to_the_saddle(data: xr.Dataset) -> Table:
    """Return how far the gradient points back, from the radius to the saddle: by proof, at random and in the search."""
    ends = {landscape.RADIUS: "radius", landscape.PROVED: "end of the proof", landscape.SADDLE: "saddle"}
    distances = data.distance.values.tolist()
    rows: Rows = []
    for r in sorted({*ends, *(r for r in distances if r > landscape.RADIUS)}):
        proved = float(landscape.one_point_bound(torch.tensor(r, dtype=torch.float64)))
        found = ["", ""]
        if r in distances:
            low = data.sel(distance=r).min()
            found = [f"{low.random_smallest:.3f}", f"{low.found_smallest:.3f}"]
        rows.append([f"{r:g}", ends.get(r, ""), f"{100 * (r / landscape.SADDLE) ** 0.5:.0f} %",
                     f"{proved:.3f}" if r <= landscape.PROVED else "", *map(Measured, found)])  # fmt: skip
    caption = (
        "Smallest ratio in (3), all problems and seeds. r: squared distance over the weakest singular value; of the "
        "way: distance over that of the nearest saddle."
    )
    return Table(["r", "", "of the way", "proved", "at random", "by search"], rows, caption)


def one_sided(data: xr.Dataset) -> Table:
    """Return the smallest ratio of (3) in the one-sided norm, by outputs and spectrum."""
    least, s = data.one_sided.min("seed"), data.attrs["settings"]
    rows: Rows = [[str(o), *(Measured(f"{x:.4f}") for x in least.sel(outputs=o).values)] for o in data.outputs.values]
    caption = (
        f"Smallest ratio to ‖H‖² times weakest singular value times smallest eigenvalue of Σ, over "
        f"{data.sizes['seed']} seeds, each with {s['directions']} random displacements and one chosen one; no search. "
        f"d = {s['dimension']}, condition number {s['condition_number']:g}."
    )
    heads = [f"weakest/strongest = {spread:g}" for spread in data.spread.values]
    return Table(["outputs", *heads], rows, caption)


def worst_together(spreads: tuple[float, ...] = (1.0, 0.5, 0.25), dimension: int = 3) -> Table:
    """Return both ratios at the two points on the edge where one of them is at its worst, for an output to spare."""
    rows: Rows = []
    for spread in spreads:
        points, whitened_map = _edge(spread, dimension, n_random=0)
        closest = nearest(points, whitened_map)
        values = torch.linspace(1, spread, dimension, dtype=torch.float64)
        back, steep = contraction.ratios(points - closest, closest, whitened_map, values)
        rows.append([f"{spread:g}", *(f"{float(x):.2f}" for x in (back[0], steep[0], back[1], steep[1]))])
    heads = ["weakest/strongest", "ratio of (3)", "ratio of (4)", "ratio of (3)", "ratio of (4)"]
    caption = (
        f"At the edge of the neighbourhood, {_problem(dimension)}; Theorem 1 promises at least 0.5 and at most 5.3."
    )
    groups = [("", 1), ("where (3) is worst", 2), ("where (4) is worst", 2)]
    return Table(heads, rows, caption, groups)


def steps_promised(spreads: tuple[float, ...] = (1.0, 0.5, 0.25), dimension: int = 3, n_random: int = 30) -> Table:
    """Return the steps that shrink the distance tenfold, for an output to spare: promised, and needed from the edge.

    Needed is the largest number over all points that were tried, with the step size of the theorem and with
    $2/(s_d+2s_1)$, the best close to a minimum.
    """
    rows: Rows = []
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


def _edge(spread: float, dimension: int, n_random: int) -> tuple[Tensor, Tensor]:
    values = torch.linspace(1, spread, dimension, dtype=torch.float64)
    return contraction.edge_points(values, dimension + 1, n_random=n_random, rng=stream(0, "edge", str(spread)))


def _problem(dimension: int) -> str:
    return f"d = {dimension}, {dimension + 1} outputs"


def _share_left(variance: float, coordinates: Coordinates, penalty: float) -> np.ndarray:
    """Loss without the penalty along the path of the slider, over that at its start."""
    path = Valley(variance, coordinates, penalty).descend(START, STEPS)
    loss = Valley(variance, coordinates, 0.0).loss(*path.T)
    return loss / loss[0]


def _tiny(share: float) -> str:
    return "rounding" if share < 1e-20 else f"{share:.1e}"
