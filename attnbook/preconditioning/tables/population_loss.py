"""The tables of the chapter on the population loss."""

from __future__ import annotations

import numpy as np
import torch

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments.landscape import Landscape
from attnbook.preconditioning.experiments.minima import WEIGHTS, Minima
from attnbook.preconditioning.experiments.population_loss import PopulationLoss
from attnbook.preconditioning.experiments.simulation import NORMALISER_ORDERS, SCORE_ORDERS
from attnbook.preconditioning.figures.population_loss import START, STEPS
from attnbook.preconditioning.models.valley import Coordinates, Valley
from attnbook.preconditioning.theory import landscape

__all__ = ["bounds", "degrees", "moments", "spectrum_text", "steps_promised", "valley_text"]


def moments(result: PopulationLoss) -> Table:
    """Return simulated moments beside their determinants, one row each; medians over seeds and largest errors."""
    names = [f"E exp({k:g} q)" for k in NORMALISER_ORDERS] + [f"E exp({k:g} xᵀVx)" for k in SCORE_ORDERS]
    rows: list[list[str | Measured]] = []
    for at, name in enumerate([*names, "E exp(xᵀVx − q/2)"]):
        drawn, closed = result.moments[:, at], result.closed_moments[:, at]
        error = np.abs(drawn / closed - 1).max()
        rows.append([name, Measured(f"{np.median(drawn):.4f}"), Measured(f"{np.median(closed):.4f}"),
                     Measured(f"{100 * error:.2g} %")])  # fmt: skip
    s = result.settings
    caption = f"Medians over {len(s.seeds)} random matrices of norm {s.moment_tilt:g}, {s.moment_draws:,} draws each."
    return Table(["moment", "simulated", "determinant", "largest error"], rows, caption)


def degrees(result: Minima) -> Table:
    """Return the degree in the covariance of the gradients of three regularisers."""
    shapes = {"two-sided": "‖Σ^½ B Σ^½‖²", "one-sided": "‖Σ B‖²", "none": "‖B‖²"}
    rows: list[list[str | Measured]] = []
    for at, weight in enumerate(WEIGHTS):
        found = sorted({tuple(int(degree) for degree in one[at]) for one in result.degrees})
        pairs = [" or ".join(str(pair[layer]) for pair in found) for layer in (0, 1)]
        fits = "yes" if found == [(3, 4)] else "no"
        rows.append([f"{weight}: {shapes[weight]}", *pairs, fits])
    caption = "Degree as a polynomial in Σ, the same at every random point; the words of Theorem 5 speak of 3 and 4."
    return Table(["weight of the regulariser", "gradient for U", "gradient for V", "fits the words"], rows, caption)


def bounds(result: Landscape) -> Table:
    """Return what Theorem 1 promises within its radius, what the sharp forms promise, and the worst that was found."""
    within = np.array(result.settings.squared_distances) <= landscape.RADIUS
    rows: list[list[str | Measured]] = []
    edge = torch.tensor(landscape.RADIUS)
    for at, outputs in enumerate(result.settings.outputs):
        spare = outputs > result.settings.dimension
        sharp = float(landscape.one_point_bound(edge) if spare else landscape.shrinking_ratio(edge))
        low, chance = (v[:, at][..., within].min() for v in (result.smallest, result.random_smallest))
        rows.append([f"(3) at least, m {'>' if spare else '='} d", "0.5", f"{sharp:.3f}", Measured(f"{low:.4f}"),
                     Measured(f"{chance:.2f}")])  # fmt: skip
    for at, spread in enumerate(result.settings.spreads):
        sharp = float(landscape.growing_ratio(edge, spread))
        high, chance = (v[:, :, at][..., within].max() for v in (result.largest, result.random_largest))
        rows.append([f"(4) at most, s_d/s_1 = {spread:g}", f"{landscape.SMOOTHNESS:g}", f"{sharp:.3f}",
                     Measured(f"{high:.4f}"), Measured(f"{chance:.2f}")])  # fmt: skip
    caption = (
        "Ratios within the radius of Theorem 1. Sharp: our worst case at the edge; for m = d in (3) it was found by a "
        "search and is not proved."
    )
    return Table(["ratio", "Theorem 1", "sharp", "worst found", "worst of random points"], rows, caption)


def steps_promised(spreads: tuple[float, ...] = (1.0, 0.5, 0.25)) -> Table:
    """Return the steps that shrink the distance tenfold: by Theorem 1, by its sharp form, and close to a minimum.

    Args:
        spreads: $s_d/s_1$, one row each.

    Returns:
        The table; each column with its own best step size, for an output to spare.
    """
    rows: list[list[str | Measured]] = []
    for spread in spreads:
        sharp = float(landscape.growing_ratio(torch.tensor(landscape.RADIUS), spread))
        # A step multiplies the squared distance by at most 1 - 2 eta mu + (eta beta)^2; the best eta is mu / beta^2.
        squares = [1 - (spread / 2 / beta) ** 2 for beta in (landscape.SMOOTHNESS, sharp)]
        factors = [*(square**0.5 for square in squares), (2 - spread) / (2 + spread)]
        rows.append([f"{spread:g}", *(f"{np.ceil(-np.log(10) / np.log(factor)):.0f}" for factor in factors)])
    heads = ["s_d/s_1", "Theorem 1", "with the sharp (4)", "close to a minimum"]
    return Table(heads, rows, "Steps that divide the distance to the minima by ten, each with its own best step size.")


def valley_text(variance: float, coordinates: Coordinates, penalty: float) -> str:
    """Return the numbers behind one picture of the slider on coordinates."""
    valley = Valley(variance, coordinates, penalty)
    smallest, largest = valley.curvatures
    flat = smallest < 1e-9 * largest
    ratio = "infinite: the dashed curve is a valley of minima" if flat else f"{largest / smallest:.3g}"
    end = valley.descend(START, STEPS)[-1]
    left, first = float(valley.loss(*end)), float(valley.loss(*valley.descend(START, 0)[0]))
    share = "nothing but rounding" if left < 1e-20 * first else f"{left / first:.1e}"
    return (
        f"Variance {variance:.3g}, {coordinates} coordinates, weight {penalty:g}: largest over smallest curvature at "
        f"the minimum {ratio}. After {STEPS} steps {share} of the first loss is left."
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
