"""The tables of the chapter on the scaling law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments import (
    finite_keys,
    gradient_oracle,
    heavy_tails,
    minibatch_floor,
    scaling_law,
)
from attnbook.preconditioning.experiments.compute_split import along_budget, late_decay, surfaces
from attnbook.preconditioning.theory.scaling_law import best_split, heavy_tail_exponent, scalar_bias_coefficient

__all__ = [
    "alignment",
    "approach",
    "bounds",
    "floors",
    "growth",
    "numbers",
    "one_data_set",
    "oracle_counts",
    "over_the_sum",
    "proof",
    "simulated",
    "split_text",
    "splits",
    "tail_text",
    "terms",
]


RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def oracle_counts(oracle: gradient_oracle.GradientOracle) -> Table:
    """Return the oracle's excess over its leading order by number of samples: exact, predicted and of runs."""
    s, rows = oracle.settings, []
    found = (
        (s.exact_samples, oracle.exact / oracle.exact_constant[:, None]),
        (s.measured_samples, oracle.beside / oracle.constant[:, None]),
        (s.measured_samples, oracle.measured / oracle.constant[:, None]),
    )
    for n in sorted({*s.exact_samples, *s.measured_samples}):
        row: list[str | Measured] = [f"{n}"]
        for counts, ratios in found:
            row.append(Measured(_spread(ratios[:, counts.index(n)] * float(n) ** 2)) if n in counts else "")
        rows.append(row)
    columns = ["n", "exact, d = 2", "expansion, d = 4", "runs, d = 4"]
    return Table(columns, rows, "n² times excess, over its limit; median over problems [smallest, largest].")


def one_data_set(data: scaling_law.ScalingLaw) -> Table:
    """Return what one data set leaves by number of samples, over the limit of the start, and what training adds."""
    rows: list[list[str | Measured]] = []
    path = data.pooled_path
    for number, n in enumerate(data.settings.n_samples):
        scaled = (n * values[:, number] / data.constant for values in (data.start, data.trained))
        rows.append([
            f"{n}",
            *(Measured(_spread(values)) for values in scaled),
            Measured(f"{path[number, -1]:.3f}"),
            Measured(f"{path[number].min():.3f}"),
        ])  # fmt: skip
    columns = ["n", "n · start / limit", "n · trained / limit", "trained / start", "best step / start"]
    caption = (
        "First two: median over problems [smallest, largest]; the start is averaged over more data sets. Last two: "
        "means over all data sets of the trained ones. Limit of n · start: "
    )
    return Table(columns, rows, Measured(f"{data.constant:.3g}.", caption))


def numbers(values: Mapping[str, str], caption: str) -> Table:
    """Return a table of one row of measured numbers, already rounded, below their names."""
    return Table(list(values), [[Measured(text) for text in values.values()]], caption)


def proof(values: Mapping[str, Sequence[float]]) -> Table:
    """Return how far the constants of the proof are from the true ones.

    Args:
        values: What is compared, and one number per problem or a single one.

    Returns:
        A table of one row for each.
    """
    rows: list[list[str | Measured]] = [
        [name, Measured(_spread(np.array(found)) if len(found) > 1 else _number(found[0]))]
        for name, found in values.items()
    ]
    caption = "Four lines of proof beside exact constants; the runs are those from the cold start below."
    return Table(["proof against truth", ""], rows, caption)


def approach(result: finite_keys.FiniteKeys) -> Table:
    """Return the exact bias over its leading order by number of keys, problem by problem."""
    ratio = result.loss_bias / result.coefficient[..., None]
    rows: list[list[str | Measured]] = [
        [f"{n}", *(Measured(_spread(ratio[:, point, number])) for point in range(2))]
        for number, n in enumerate(result.settings.loss_keys)
    ]
    caption = "n times the bias of the loss, over B: median of the ratios of single problems [smallest, largest]."
    return Table(["n", "at an optimum", "away from it"], rows, caption)


def over_the_sum(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle) -> Table:
    """Return how far the curves of both gradients rise above the sum of the population's curve and their last value."""
    population = np.median(oracle.cold[:, -1], axis=0)
    rows: list[list[str | Measured]] = []
    for surface in surfaces(data, oracle):
        ratio = surface.excess / (population[: surface.excess.shape[1]] + surface.excess[:, -1:])
        for n, row in zip(surface.samples, ratio, strict=True):
            largest = int(row.argmax())
            inner = f"{largest}" if largest < len(row) - 1 else "the last"
            rows.append([f"{surface.name}, n = {n:g}", Measured(f"{row.max():.2f}"), Measured(inner)])
    caption = "Largest ratio of a curve to the sum of the dotted one and the curve's own last value."
    return Table(["", "curve / sum, at most", "at step"], rows, caption)


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

    Args:
        data: Training on one data set.
        oracle: The gradient oracle.
        budgets: $C=n^2t$, one row for each and each gradient.

    Returns:
        A table of steps and excess as measured, predicted by the sum of both terms, and predicted if both errors had
        one direction, so that they add before they are squared.
    """
    start, rate = late_decay(data, oracle)
    rows: list[list[str | Measured]] = []
    shares = []
    for surface in surfaces(data, oracle):
        for compute in budgets:
            path = along_budget(surface.samples, surface.excess, compute)
            found = [(0.0, path.steps[path.best], path.excess[path.best])]
            found += [best_split(surface.bias, surface.power, start, rate, compute, alignment=k) for k in (0.0, 1.0)]
            numbers = [text for _, t, error in found for text in (f"{t:.0f}", f"{error:.2g}")]
            rows.append([f"{surface.name}, {compute / 1e6:g}", *map(Measured, numbers)])
            n, t, _ = found[1]
            shares.append(start * np.exp(-rate * t) / (surface.bias * n**-surface.power))
    columns = ["gradient, million pairs", *["steps", "excess"] * 3]
    groups = [("", 1), ("measured", 2), ("by the sum", 2), ("if aligned", 2)]
    caption = (
        "Best split; n is the root of pairs over steps. Measured: medians over problems. Predicted: nothing fitted to "
        "finite n. Error of the steps over that of the samples, by the sum: "
    )
    return Table(columns, rows, Measured(f"{min(shares):.2f} to {max(shares):.2f}.", caption), groups)


def alignment(
    data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle, cosines: Mapping[int, Sequence[float]]
) -> Table:
    """Return how far errors that point the same way rise above their sum, beside how far the oracle's curve does.

    Args:
        data: Training on one data set.
        oracle: The gradient oracle.
        cosines: Number of samples to the cosine between both errors, one per problem.

    Returns:
        The table. Two errors of equal length have a squared sum of one plus their cosine times the sum of squares.
    """
    population = np.median(oracle.cold[:, -1], axis=0)
    surface = surfaces(data, oracle)[1]
    rows: list[list[str | Measured]] = []
    for n, found in cosines.items():
        row = surface.excess[list(surface.samples).index(n)]
        ratio = float((row / (population[: len(row)] + row[-1])).max())
        numbers = _spread(np.array(found)), f"{1 + np.median(found):.2f}", f"{ratio:.2f}"
        rows.append([f"{n}", *map(Measured, numbers)])
    caption = (
        "Oracle, at the steps above: cosine between what descent on the population loss still lacks and what the "
        "oracle's floor lacks, median over problems [smallest, largest]; curve / sum as above."
    )
    return Table(["n", "cosine", "1 + cosine", "curve / sum"], rows, caption)


def growth(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle, budgets: tuple[float, ...]) -> Table:
    """Return by which factors samples and steps of the predicted best split grow from one budget to the next."""
    start, rate = late_decay(data, oracle)
    rows: list[list[str | Measured]] = []
    for surface in surfaces(data, oracle):
        found = [best_split(surface.bias, surface.power, start, rate, compute) for compute in budgets]
        for number, (before, after) in enumerate(pairwise(found)):
            step = f"{surface.name}, {budgets[number] / 1e6:g} to {budgets[number + 1] / 1e6:g}"
            rows.append([step, *(Measured(f"× {after[k] / before[k]:.3g}") for k in (0, 1))])
    return Table(["gradient, million pairs", "samples", "steps"], rows, "Growth of the predicted best split.")


def floors(result: minibatch_floor.MinibatchFloor) -> Table:
    """Return the floor by batch size, its slope to the next one, and what smaller steps do to it."""
    s = result.settings
    median = np.median(result.floor, axis=1)
    own = median - np.median(result.initial)
    rows: list[list[str | Measured]] = []
    for number, b in enumerate(s.batch_sizes):
        row: list[str | Measured] = [f"{b}", Measured(f"{median[number]:.2g}")]
        if number + 1 < len(s.batch_sizes):
            apart = np.log(s.batch_sizes[number + 1] / b)
            slopes = [Measured(f"{np.log(v[number + 1] / v[number]) / apart:.2f}") for v in (median, own)]
            row += [slopes[0], Measured(f"{own[number]:.2g}"), slopes[1], Measured(_spread(result.decay_ratio[number]))]
        else:
            row += ["", Measured(f"{own[number]:.2g}"), "", ""]
        halved = Measured(_spread(result.floor_halved / result.floor[number]))
        rows.append([*row, halved if b == minibatch_floor.HALVED else ""])
    columns = ["b", "excess", "slope", "excess", "slope", "decayed", "half step"]
    groups = [("", 1), ("floor", 2), ("less the start", 2), ("over the floor", 2)]
    caption = "Median over seeds [smallest, largest]; slope to the next b, on log axes. Median excess of the start: "
    return Table(columns, rows, Measured(f"{np.median(result.initial):.3g}.", caption), groups)


def simulated(result: heavy_tails.HeavyTails, signals: tuple[float, ...]) -> Table:
    """Return quadrature beside simulation at the smallest number of samples, for some signals."""
    rows: list[list[str | Measured]] = []
    for signal in signals:
        number = result.settings.signals.index(signal)
        draws = result.simulated[:, number]
        error = draws.std(ddof=1) / len(draws) ** 0.5 if len(draws) > 1 else np.nan
        exact = Measured(f"{result.bias[number, 0]:.4g}")
        rows.append([f"{signal:g}", exact, Measured(f"{draws.mean():.4g} ± {error:.1g}")])
    caption = f"Bias of the loss at n = {result.settings.n_samples[0]}; simulation with its standard error over seeds."
    return Table(["signal", "quadrature", "simulation"], rows, caption)


def split_text(data: scaling_law.ScalingLaw, oracle: gradient_oracle.GradientOracle, compute: float) -> str:
    """Return the numbers behind one picture of the slider on compute."""
    found = []
    for surface in surfaces(data, oracle):
        path = along_budget(surface.samples, surface.excess, compute)
        t, n, best = (float(values[path.best]) for values in path)
        near = not path.steps[0] <= t / 1.25 < 1.25 * t <= path.steps[-1]
        edge = " (near the edge of the surface)" if near else ""
        factors = {"half the steps": 0.5, "a fifth less": 0.8, "a quarter more": 1.25, "twice": 2.0}
        others = ", ".join(f"with {word} {_times(path.penalty(factor))}" for word, factor in factors.items())
        found.append(f"{surface.name}: n = {n:.0f}, t = {t:.0f}{edge}, excess {best:.2g}; at the same budget {others}")
    return f"Best split of {compute / 1e6:g} million pairs. {'. '.join(found)}. The oracle's budget is nominal."


def tail_text(result: heavy_tails.HeavyTails, signal: float) -> str:
    """Return the numbers behind one picture of the slider on the signal."""
    number = result.settings.signals.index(signal)
    coefficient = float(scalar_bias_coefficient(signal))
    finite = f"{coefficient:.3g}" if np.isfinite(coefficient) else "infinite"
    first, middle, last = (f"2{str(power).translate(RAISED)}" for power in (7, 12, int(np.log2(result.n_samples[-1]))))
    scaled = result.n_samples[-1] * result.bias[number, -1]
    share = f", {scaled / coefficient:.3f} of it" if np.isfinite(coefficient) else ""
    return (
        f"Signal {signal:g}: slope {result.fitted()[number]:.3f} from n = {first} to {middle} and "
        f"{result.slopes()[number, -1]:.3f} near n = {last}; predicted {-float(heavy_tail_exponent(signal)):.3f}. "
        f"Coefficient of 1/n: {finite}; n times the bias at {last}: {scaled:.3g}{share}."
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times as much" if np.isfinite(ratio) else "not covered by the runs"


def _spread(samples: np.ndarray) -> str:
    low, middle, high = (_number(float(pick(samples))) for pick in (np.min, np.median, np.max))
    return f"{middle} [{low}, {high}]"


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:.3g}"
