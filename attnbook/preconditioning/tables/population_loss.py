"""The tables of the chapter on the population loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments.degrees import WEIGHTS
from attnbook.preconditioning.experiments.minima import Minima
from attnbook.preconditioning.experiments.population_loss import PopulationLoss
from attnbook.preconditioning.experiments.simulation import NORMALISER_ORDERS, SCORE_ORDERS
from attnbook.preconditioning.figures.population_loss import LINE_QUERIES, LINE_SEEDS, START, STEPS, line_outputs
from attnbook.preconditioning.models.valley import Coordinates, Valley
from attnbook.preconditioning.theory import landscape

__all__ = [
    "degrees", "fit_with_and_without", "line_reach", "line_text", "moments", "provenance", "said", "spectrum_text",
    "starts", "valley_text",
]  # fmt: skip


def moments(result: PopulationLoss) -> Table:
    """Return simulated moments beside their determinants, one row each; medians over seeds and largest errors."""
    names = [f"E exp({k:g} q)" for k in NORMALISER_ORDERS] + [f"E exp({k:g} xᵀVx)" for k in SCORE_ORDERS]
    rows: list[list[str | Measured]] = []
    for at, name in enumerate([*names, "E exp(xᵀVx − q/2)"]):
        drawn, closed, finite = (v[:, at] for v in (result.moments, result.closed_moments, result.finite_variance))
        error = np.abs(drawn / closed - 1).max()
        rows.append([name, Measured(f"{np.median(drawn):.4f}"), Measured(f"{np.median(closed):.4f}"),
                     Measured(f"{100 * error:.2g} %"), f"{finite.sum():.0f} of {len(finite)}"])  # fmt: skip
    s = result.settings
    caption = (
        f"Medians over {len(s.seeds)} random matrices of norm {s.moment_tilt:g}, {s.moment_draws:,} draws each. Exact: "
        "determinants; error: the largest; variance: for how many of the matrices that of one draw is finite."
    )
    return Table(["moment", "drawn", "exact", "error", "variance"], rows, caption)


def degrees(result: Minima) -> Table:
    """Return the degree in the covariance of the gradients of three regularisers."""
    shapes = {"two-sided": "‖√Σ B √Σ‖²", "one-sided": "‖Σ B‖²", "none": "‖B‖²"}
    rows: list[list[str | Measured]] = []
    for at, weight in enumerate(WEIGHTS):
        found = sorted({tuple(int(degree) for degree in one[at]) for one in result.degrees})
        pairs = [" or ".join(str(pair[layer]) for pair in found) for layer in (0, 1)]
        fits = "yes" if found == [(3, 4)] else "no"
        rows.append([f"{weight}: {shapes[weight]}", *pairs, fits])
    caption = "Degree as a polynomial in Σ, the same at every random point; the words of Theorem 5 speak of 3 and 4."
    return Table(["weight of the regulariser", "gradient for U", "gradient for V", "fits the words"], rows, caption)


def fit_with_and_without(variances: tuple[float, ...] = (0.1, 1.0, 10.0), early: int = 5) -> Table:
    """Return how much of the loss alone, without the penalty, is left on the paths of the slider, for both weights.

    Args:
        variances: Of the input, one row each in original coordinates.
        early: Steps after which to look, beside those of the slider.

    Returns:
        The table.
    """
    rows: list[list[str | Measured]] = []
    cases: list[tuple[Coordinates, float]] = [("original", variance) for variance in variances]
    for coordinates, variance in [*cases, ("whitened", 1.0)]:
        left = [_share_left(variance, coordinates, penalty) for penalty in (0.0, 1.0)]
        name = f"original, {variance:g}" if coordinates == "original" else "whitened"
        rows.append([name, *(Measured(_tiny(share[at])) for at in (early, STEPS) for share in left)])
    groups = [("", 1), (f"after {early} steps", 2), (f"after {STEPS} steps", 2)]
    heads = ["variance", "λ = 0", "λ = 1", "λ = 0", "λ = 1"]
    return Table(
        heads,
        rows,
        "Loss without the penalty, over that at the start; coordinates, and variance where it matters.",
        groups,
    )


def starts(squared_distances: Mapping[str, Sequence[float]]) -> Table:
    """Return how far starts are from the minima, and how many lie inside the neighbourhood of Theorem 1.

    Args:
        squared_distances: Name of a start to its squared distances over $s_d$, one per seed.

    Returns:
        The table.
    """
    rows: list[list[str | Measured]] = []
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


def provenance(**results: Result) -> Table:
    """Return how several results were obtained, one column each.

    Args:
        **results: Name to result.

    Returns:
        The table.
    """
    facts = {name: asdict(result.provenance) for name, result in results.items()}
    rows: list[list[str | Measured]] = [["seeds", *(f"{len(result.settings.seeds)}" for result in results.values())]]
    for fact in next(iter(facts.values())):
        rows.append([fact.replace("_", " "), *(Measured(str(one[fact])) for one in facts.values())])
    heads = [name.replace("_", " ") for name in results]
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
    r"""Return how far from zero attention follows the line, in seeds and in their median, beside two predictions.

    Args:
        key_query: $V$.
        sizes: Numbers of keys, one row each.
        off: Distance from the line that counts as having left it.

    Returns:
        The table; distances are $|z|$.
    """
    rows: list[list[str | Measured]] = []
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


def _share_left(variance: float, coordinates: Coordinates, penalty: float) -> np.ndarray:
    """Loss without the penalty along the path of the slider, over that at its start."""
    path = Valley(variance, coordinates, penalty).descend(START, STEPS)
    loss = Valley(variance, coordinates, 0.0).loss(*path.T)
    return loss / loss[0]


def _tiny(share: float) -> str:
    return "rounding" if share < 1e-20 else f"{share:.1e}"
