"""The tables of the chapter on the scaling law."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments import finite_keys, gradient_oracle, heavy_tails, scaling_law
from attnbook.preconditioning.experiments.compute_split import along_budget
from attnbook.preconditioning.theory.scaling_law import best_split, heavy_tail_exponent, scalar_bias_coefficient

__all__ = ["bounds", "one_against_fresh", "proof", "split_text", "splits", "tail_text", "terms"]


def one_against_fresh(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle) -> Table:
    """Return scaled excess losses by number of samples: n times for one data set, n squared times for the oracle."""
    rows: list[list[str | Measured]] = []
    own = oracle.settings
    oracles = dict(zip(own.measured_samples, (oracle.measured * np.array(own.measured_samples) ** 2).T, strict=True))
    predicted = dict(zip(own.measured_samples, (oracle.beside * np.array(own.measured_samples) ** 2).T, strict=True))
    of_data = dict(zip(data.settings.n_samples, range(len(data.settings.n_samples)), strict=True))
    for n in sorted({*oracles, *of_data}):
        row: list[str | Measured] = [f"{n}"]
        for values in (data.start, data.trained):
            row.append(Measured(_spread(n * values[:, of_data[n]])) if n in of_data else "")
        row += [Measured(_spread(found[n])) if n in found else "" for found in (predicted, oracles)]
        rows.append(row)
    limits: list[str | Measured] = [
        "limit",
        Measured(f"{data.constant:.3g}"),
        "",
        Measured(_spread(oracle.constant)),
        "",
    ]
    columns = ["n", "n · spectral start", "n · trained", "n² · oracle, predicted", "n² · oracle, fresh batches"]
    return Table(columns, [*rows, limits], "Excess loss times n or n²; median over problems [smallest, largest].")


def proof(bias_ratios: list[float], rate_ratio: float) -> Table:
    """Return how far the constants of the proof are from the true ones.

    Args:
        bias_ratios: Bound over exact bias of the oracle, one per problem.
        rate_ratio: True late decay over guaranteed decay.

    Returns:
        A table of two rows.
    """
    rows: list[list[str | Measured]] = [
        ["bias, times too large", Measured(_spread(np.array(bias_ratios)))],
        ["rate, times too slow", Measured(f"{rate_ratio:.1f}")],
    ]
    caption = "Four lines of proof beside exact constants; the rate is that of the steps from the cold start below."
    return Table(["proof against truth", ""], rows, caption)


def bounds(result: finite_keys.FiniteKeys) -> Table:
    """Return how loose Lemmas 9 and 10 are: moment over bound at random queries."""
    rows: list[list[str | Measured]] = []
    for number, p in enumerate(finite_keys.POWERS):
        pair = (result.self_ratio[:, number], result.other_ratio[:, number])
        rows.append([f"Lemma 9, p = {p}", *(Measured(_spread(values)) for values in pair)])
    rows.append(["Lemma 10", "", Measured(_spread(result.variance_ratio))])
    caption = "Exact moment over bound: median over queries and problems [smallest, largest]; 1 is attained."
    return Table(["", "weight on itself", "weight on another key"], rows, caption)


def terms(result: finite_keys.FiniteKeys) -> Table:
    r"""Return the three terms of $\mathcal B$ at an optimum and away from it."""
    names = ("at an optimum", "away from it")
    rows: list[list[str | Measured]] = [
        [name, *(Measured(_spread(result.terms[:, point, k] + 0.0)) for k in range(3)),
         Measured(_spread(result.coefficient[:, point]))]
        for point, name in enumerate(names)
    ]  # fmt: skip
    columns = ["", "self-interaction", "ratio bias", "attention variance", "sum: B"]
    return Table(columns, rows, "Median over problems [smallest, largest].")


def splits(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle, budgets: tuple[float, ...]) -> Table:
    r"""Return the best split of each budget, measured and predicted from the constants of both terms.

    The late rate is $c=-2\log(1-2\eta s_d)$; the start is the population's curve carried back along it.
    """
    s = data.settings
    rate = -2 * np.log(1 - 2 * s.cold_step_size * s.smallest)
    population = np.median(oracle.cold[:, -1], axis=0)
    start = float(population[-1] * np.exp(rate * (len(population) - 1)))
    rows: list[list[str | Measured]] = []
    for name, counts, curves, bias, power in (
        ("one data set", s.n_samples, data.cold, data.constant, 1.0),
        ("gradient oracle", oracle.settings.surface_samples, oracle.cold[:, :-1], np.median(oracle.constant), 2.0),
    ):
        surface = np.median(curves, axis=0)
        for compute in budgets:
            path = along_budget(np.array(counts, dtype=float), surface, compute)
            n, t, error = best_split(float(bias), power, start, rate, compute)
            rows.append([
                name,
                f"{compute:.0e}",
                Measured(f"{path.samples[path.best]:.0f} × {path.steps[path.best]:.0f}"),
                Measured(f"{path.excess[path.best]:.2g}"),
                Measured(f"{n:.0f} × {t:.0f}"),
                Measured(f"{error:.2g}"),
            ])  # fmt: skip
    columns = ["gradient", "budget n²t", "best n × t, measured", "excess", "best n × t, predicted", "excess, predicted"]
    return Table(
        columns, rows, "Median over problems; predicted as the sum of the two terms, with nothing fitted to n."
    )


def split_text(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle, compute: float) -> str:
    """Return the numbers behind one picture of the slider on compute."""
    found = []
    for name, counts, curves in (
        ("one data set", data.settings.n_samples, data.cold),
        ("oracle", oracle.settings.surface_samples, oracle.cold[:, :-1]),
    ):
        surface = np.median(curves, axis=0)
        path = along_budget(np.array(counts, dtype=float), surface, compute)
        t, n, best = (float(values[path.best]) for values in path)
        worst = path.excess.max() / best
        edge = " (edge of the surface)" if path.best in (0, len(path.steps) - 1) else ""
        found.append(
            f"{name}: best split n = {n:.0f}, t = {t:.0f}{edge}, excess {best:.2g}; the worst split on the curve is "
            f"{worst:.3g} times worse"
        )
    return f"Budget of {compute:.1e} pairs of samples, spent along the orange curve. " + "; ".join(found) + "."


def tail_text(result: heavy_tails.HeavyTails, signal: float) -> str:
    """Return the numbers behind one picture of the slider on the signal."""
    number = result.settings.signals.index(signal)
    coefficient = float(scalar_bias_coefficient(signal))
    finite = f"{coefficient:.3g}" if np.isfinite(coefficient) else "infinite"
    last = int(np.log2(result.n_samples[-1]))
    scaled = result.n_samples[-1] * result.bias[number, -1]
    return (
        f"Signal {signal:g}: slope {result.fitted()[number]:.3f} from n = 2^7 to 2^12 and "
        f"{result.slopes()[number, -1]:.3f} near n = 2^{last}; predicted {-float(heavy_tail_exponent(signal)):.3f}. "
        f"Coefficient of 1/n: {finite}; n times the bias at 2^{last}: {scaled:.3g}."
    )


def _spread(samples: np.ndarray) -> str:
    low, middle, high = (_number(float(pick(samples))) for pick in (np.min, np.median, np.max))
    return f"{middle} [{low}, {high}]"


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:.3g}"
