"""What the chapter reads off its runs: choices on validation samples, paired differences with intervals, orders."""

from __future__ import annotations

import itertools
from math import gamma, pi

import numpy as np
import xarray as xr

from attnbook.mirror_descent.real_text_and_images.comparison import MIRROR, OPTIMIZERS

TUNED = [name for name in OPTIMIZERS if name != "uniform"]


def interval(differences: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Return the mean over seeds and the ends of its 95 per cent interval by Student's t."""
    from scipy import stats

    n = differences.sizes["seed"]
    mean, deviation = differences.mean("seed"), differences.std("seed", ddof=1)
    half = stats.t.ppf(0.975, n - 1) * deviation / np.sqrt(n)
    return mean, mean - half, mean + half


def choice(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return for each optimiser the record and the place of the step size that are best on validation samples.

    Both are chosen together, by the mean over all seeds, for each optimiser and the uniform control alike.
    """
    found = data.validation_accuracy.mean("seed").argmax(["record", "rate"])
    return {str(name): place for name, place in found.items()}


def tuned(data: xr.Dataset) -> xr.DataArray:
    """Return the test accuracy of each optimiser and seed at its choice."""
    return data.test_accuracy.isel(choice(data))


def lead(data: xr.Dataset) -> xr.DataArray:
    """Return by how much each tuned optimiser is ahead of its strongest rival without attention, seed by seed.

    Rivals are the uniform control and the baselines; the one with the highest mean test accuracy counts.
    """
    accuracy = tuned(data)
    rivals = [accuracy.sel(optimizer="uniform", drop=True), *baselines(data).values()]
    return accuracy.sel(optimizer=TUNED) - max(rivals, key=lambda rival: float(rival.mean()))


def baselines(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the accuracies of logistic regression by its features; images have pixels only."""
    found = data.baseline_accuracy
    names = found.baseline.values if "baseline" in found.dims else ()
    return {str(name): found.sel(baseline=name, drop=True) for name in names} or {"pixels": found}


def lead_of_attention(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the lead of the weakest optimiser, and the smallest lower end of an interval of all."""
    mean, lower, _ = interval(lead(data))
    return {"lead_over_baselines": lead(data).isel(optimizer=mean.argmin("optimizer")), "lead_lower": lower.min()}


def largest_difference(data: xr.Dataset) -> xr.DataArray:
    """Return the farthest end of an interval for the difference of two tuned optimisers."""
    accuracy = tuned(data)
    ends = []
    for one, two in itertools.combinations(TUNED, 2):
        _, lower, upper = interval(accuracy.sel(optimizer=one, drop=True) - accuracy.sel(optimizer=two, drop=True))
        ends += [-lower, upper]
    return xr.concat(ends, "pair").max()


def moved_by_step_size(data: xr.Dataset) -> xr.DataArray:
    """Return by how much test accuracy falls from the best to the worst step size, at the end; mirror descent only.

    Best and worst are chosen by mean validation accuracy.
    """
    end = data.sel(optimizer=list(MIRROR)).isel(record=-1)
    means = end.validation_accuracy.mean("seed")
    return end.test_accuracy.isel(rate=means.argmax("rate")) - end.test_accuracy.isel(rate=means.argmin("rate"))


def order(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return how clearly values rise with the exponent.

    That is the smallest lower end of an interval over both steps and all other dimensions, and the share of seeds where
    everything rises.
    """
    rises = values.sel(optimizer=list(MIRROR)).diff("optimizer")
    _, lower, _ = interval(rises)
    others = [name for name in rises.dims if name != "seed"]
    return {"dimension_lower": lower.min(), "share_ordered": (rises > 0).all(others).mean()}


def by_exponent(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the effective dimension of each exponent, seed by seed."""
    return {f"dimension_{name}": values.sel(optimizer=name) for name in MIRROR}


def noise_limit(p: float) -> float:
    r"""Return the effective dimension of :math:`|z|^{1/(p-1)}` for standard normal z, where pure noise leads."""

    def moment(k: float) -> float:
        return 2 ** (k / 2) * gamma((k + 1) / 2) / pi**0.5

    power = 1 / (p - 1)
    return moment(power) ** 2 / moment(2 * power)


def words_by_entropy(data: xr.Dataset) -> tuple[np.ndarray, xr.DataArray, float]:
    """Return a quadratic of entropy fitted to attention on telling words of all optimisers with attention together.

    That is its coefficients, the residuals, and the share of the variance that it explains.
    """
    runs = data.sel(optimizer=TUNED)
    curve = np.polyfit(runs.entropy.values.ravel(), runs.mass.values.ravel(), 2)
    residuals = runs.mass - np.polyval(curve, runs.entropy)
    return curve, residuals, float(1 - residuals.var() / max(float(runs.mass.var()), 1e-30))
