"""The tables of the chapter on the scaling law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import xarray as xr

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.law_constants import best_split, heavy_tail_exponent, scalar_bias_coefficient
from attnbook.preconditioning.scaling_law import readings, runs

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
Rows = list[list[str | Measured]]


def oracle_counts(oracle: xr.Dataset) -> Table:
    """Return the oracle's excess over its leading order by number of samples: exact, predicted and of runs."""
    found = [
        (oracle.exact / oracle.exact_limit).rename(exact_n="n"),
        (oracle.beside / oracle.limit).rename(measured_n="n"),
        (oracle.measured / oracle.limit).rename(measured_n="n"),
    ]
    rows: Rows = []
    for n in sorted({*oracle.exact_n.values.tolist(), *oracle.measured_n.values.tolist()}):
        cells = [Measured(_spread(ratio.sel(n=n) * float(n) ** 2)) if n in ratio.n.values else "" for ratio in found]
        rows.append([f"{n}", *cells])
    columns = ["n", "exact, d = 2", "expansion, d = 4", "runs, d = 4"]
    return Table(columns, rows, "n² times excess, over its limit; median over problems [smallest, largest].")


def one_data_set(data: xr.Dataset) -> Table:
    """Return what one data set leaves by number of samples, over the limit of the start, and what training adds."""
    rows: Rows = []
    paths = readings.pooled_path(data)
    for n in data.n.values:
        path, chosen = paths.sel(n=n), data.sel(n=n)
        scaled = (n * values / data.limit for values in (chosen.start, chosen.path.isel(step=-1)))
        ends = (float(path.isel(step=-1)), float(path.min()))
        rows.append([f"{n}", *(Measured(_spread(v)) for v in scaled), *(Measured(f"{end:.3f}") for end in ends)])
    columns = ["n", "n · start / limit", "n · trained / limit", "trained / start", "best step / start"]
    caption = (
        "First two: median over problems [smallest, largest]; the start is averaged over more data sets. Last two: "
        "means over all data sets of the trained ones. Limit of n · start: "
    )
    return Table(columns, rows, Measured(f"{float(data.limit):.3g}.", caption))


def numbers(values: Mapping[str, str], caption: str) -> Table:
    """Return a table of one row of measured numbers, already rounded, below their names."""
    return Table(list(values), [[Measured(text) for text in values.values()]], caption)


def proof(values: Mapping[str, Sequence[float]]) -> Table:
    """Return how far the constants of the proof are from the true ones; one number for each problem, or a single."""
    rows: Rows = [
        [name, Measured(_spread(found) if len(found) > 1 else _number(found[0]))] for name, found in values.items()
    ]
    caption = "Four lines of proof beside exact constants; the runs are those from the cold start below."
    return Table(["proof against truth", ""], rows, caption)


def approach(keys: xr.Dataset) -> Table:
    """Return the exact bias over its leading order by number of keys, problem by problem."""
    ratio = keys.loss_bias / keys.terms.sum("term")
    rows: Rows = [
        [f"{n}", *(Measured(_spread(ratio.sel(n=n, point=point))) for point in keys.point)] for n in keys.n.values
    ]
    caption = "n times the bias of the loss, over B: median of the ratios of single problems [smallest, largest]."
    return Table(["n", *keys.point.values], rows, caption)


def over_the_sum(data: xr.Dataset, oracle: xr.Dataset) -> Table:
    """Return how far the curves of both gradients rise above the sum of the population's curve and their last value."""
    rows: Rows = []
    for surface in readings.surfaces(data, oracle):
        for n, row in zip(surface.samples, readings.over_the_sum(surface, oracle), strict=True):
            largest = int(row.argmax())
            inner = f"{largest}" if largest < len(row) - 1 else "the last"
            rows.append([f"{surface.name}, n = {n:g}", Measured(f"{row.max():.2f}"), Measured(inner)])
    caption = "Largest ratio of a curve to the sum of the dotted one and the curve's own last value."
    return Table(["", "curve / sum, at most", "at step"], rows, caption)


def bounds(keys: xr.Dataset) -> Table:
    """Return how loose Lemmas 9 and 10 are: moment over bound at random queries."""
    rows: Rows = [
        [f"Lemma 9, p = {p}", *(Measured(_spread(keys.weight_ratio.sel(power=p, weight=w))) for w in keys.weight)]
        for p in keys.power.values
    ]
    rows.append(["Lemma 10", "", Measured(_spread(keys.variance_ratio))])
    caption = "Exact moment over bound: median over queries and problems [smallest, largest]; 1 is attained."
    return Table(["", "weight on itself", "weight on another key"], rows, caption)


def terms(keys: xr.Dataset) -> Table:
    """Return the three terms of the coefficient at an optimum and away from it."""
    rows: Rows = [
        [str(point), *(Measured(_spread(values.sel(point=point))) for values in (*found, sum(found)))]
        for found in [keys.terms.transpose("term", ...)]
        for point in keys.point.values
    ]
    return Table(["", *keys.term.values, "sum: B"], rows, "Median over problems [smallest, largest].")


def splits(data: xr.Dataset, oracle: xr.Dataset, budgets: tuple[float, ...]) -> Table:
    """Return the best split of each budget: measured, by the sum of both terms, and if both errors had one direction.

    Errors of one direction add before they are squared.
    """
    start, rate = readings.late_decay(data, oracle)
    rows: Rows = []
    shares = []
    for surface in readings.surfaces(data, oracle):
        for compute in budgets:
            path = readings.along_budget(surface, compute)
            found = [(0.0, path.steps[path.best], path.excess[path.best])]
            found += [best_split(surface.bias, surface.power, start, rate, compute, alignment=k) for k in (0.0, 1.0)]
            texts = [text for _, t, error in found for text in (f"{t:.0f}", f"{error:.2g}")]
            rows.append([f"{surface.name}, {compute / 1e6:g}", *map(Measured, texts)])
            n, t, _ = found[1]
            shares.append(start * np.exp(-rate * t) / (surface.bias * n**-surface.power))
    columns = ["gradient, million pairs", *["steps", "excess"] * 3]
    groups = [("", 1), ("measured", 2), ("by the sum", 2), ("if aligned", 2)]
    caption = (
        "Best split; n is the root of pairs over steps. Measured: medians over problems. Predicted: nothing fitted to "
        "finite n. Error of the steps over that of the samples, by the sum: "
    )
    return Table(columns, rows, Measured(f"{min(shares):.2f} to {max(shares):.2f}.", caption), groups)


def alignment(data: xr.Dataset, oracle: xr.Dataset, cosines: Mapping[int, Sequence[float]]) -> Table:
    """Return how far errors that point the same way rise above their sum, beside how far the oracle's curve does.

    For each number of samples there is a cosine between both errors for each problem. Two errors of equal length have a
    squared sum of one plus their cosine times the sum of squares.
    """
    surface = readings.surfaces(data, oracle)[1]
    rises = dict(zip(surface.samples, readings.over_the_sum(surface, oracle).max(axis=1), strict=True))
    rows: Rows = [
        [f"{n}", *map(Measured, (_spread(found), f"{1 + np.median(found):.2f}", f"{rises[n]:.2f}"))]
        for n, found in cosines.items()
    ]
    caption = (
        "Oracle, at the steps above: cosine between what descent on the population loss still lacks and what the "
        "oracle's floor lacks, median over problems [smallest, largest]; curve / sum as above."
    )
    return Table(["n", "cosine", "1 + cosine", "curve / sum"], rows, caption)


def growth(data: xr.Dataset, oracle: xr.Dataset, budgets: tuple[float, ...]) -> Table:
    """Return by which factors samples and steps of the predicted best split grow from one budget to the next."""
    start, rate = readings.late_decay(data, oracle)
    rows: Rows = []
    for surface in readings.surfaces(data, oracle):
        found = {compute: best_split(surface.bias, surface.power, start, rate, compute) for compute in budgets}
        for before, after in pairwise(budgets):
            factors = (found[after][k] / found[before][k] for k in (0, 1))
            step = f"{surface.name}, {before / 1e6:g} to {after / 1e6:g}"
            rows.append([step, *(Measured(f"× {factor:.3g}") for factor in factors)])
    return Table(["gradient, million pairs", "samples", "steps"], rows, "Growth of the predicted best split.")


def floors(batches: xr.Dataset) -> Table:
    """Return the floor by batch size, its slope to the next one, and what smaller steps do to it."""
    floor, start = readings.floor(batches.constant), float(readings.initial(batches).median())
    decayed, halved = readings.decay_ratio(batches), readings.floor(batches.halved)
    median = floor.median("seed")
    local = [xr.DataArray(np.log(values)).diff("b") / np.log(values.b).diff("b") for values in (median, median - start)]
    rows: Rows = []
    for number, b in enumerate(batches.b.values):
        texts = [f"{float(values[number]):.2g}" for values in (median, median - start)]
        slopes = [f"{float(values[number]):.2f}" if number < values.size else "" for values in local]
        smaller = _spread(decayed.sel(b=b)) if b in decayed.b.values else ""
        half = _spread(halved / floor.sel(b=b)) if b == runs.HALVED else ""
        cells = (texts[0], slopes[0], texts[1], slopes[1], smaller, half)
        rows.append([f"{b}", *(Measured(cell) if cell else "" for cell in cells)])
    columns = ["b", "excess", "slope", "excess", "slope", "decayed", "half step"]
    groups = [("", 1), ("floor", 2), ("less the start", 2), ("over the floor", 2)]
    caption = "Median over seeds [smallest, largest]; slope to the next b, on log axes. Median excess of the start: "
    return Table(columns, rows, Measured(f"{start:.3g}.", caption), groups)


def simulated(tails: xr.Dataset, signals: tuple[float, ...]) -> Table:
    """Return quadrature beside simulation at the smallest number of samples, for some signals."""
    rows: Rows = []
    for signal in signals:
        draws, exact = tails.simulated.sel(signal=signal).values, float(tails.bias.sel(signal=signal)[0])
        error = draws.std(ddof=1) / len(draws) ** 0.5 if len(draws) > 1 else np.nan
        rows.append([f"{signal:g}", Measured(f"{exact:.4g}"), Measured(f"{draws.mean():.4g} ± {error:.1g}")])
    n = int(tails.n[0])
    caption = f"Bias of the loss at n = {n}; simulation with its standard error over seeds."
    return Table(["signal", "quadrature", "simulation"], rows, caption)


def cost(data: xr.Dataset) -> Table:
    """Return how many networks were trained on one data set each, in how many programs, where and in what time."""
    s, origin = data.attrs["settings"], data.attrs["provenance"]
    networks = len(s["seeds"]) * sum((*s["trained_sets"], *s["cold_sets"]))
    cells = (f"{origin['wall_seconds']:.1f} s", f"{origin['peak_memory_mib']} MiB", origin["device"])
    caption = f"They were trained as {2 * len(s['n_samples']) * len(s['seeds'])} programs, each of them a batch."
    columns = ["networks", "time", "peak memory of the process", "device"]
    return Table(columns, [[f"{networks}", *map(Measured, cells)]], caption)


def origins(**found: xr.Dataset) -> Table:
    """Return how the results on the page were obtained, one column each."""
    facts = {name: dict(data.attrs["provenance"]) for name, data in found.items()}
    rows: Rows = [["seeds", *(f"{data.sizes['seed']}" for data in found.values())]]
    for fact in next(iter(facts.values())):
        if fact != "groups":
            rows.append([fact.replace("_", " "), *(Measured(str(one[fact])) for one in facts.values())])
    heads = [name.replace("_", " ") for name in found]
    return Table(["", *heads], rows, "How the results on this page were obtained.")


def split_text(data: xr.Dataset, oracle: xr.Dataset, compute: float) -> str:
    """Return the numbers behind one picture of the slider on compute."""
    found = []
    for surface in readings.surfaces(data, oracle):
        path = readings.along_budget(surface, compute)
        t, n, best = (float(values[path.best]) for values in path)
        near = not path.steps[0] <= t / 1.25 < 1.25 * t <= path.steps[-1]
        edge = " (near the edge of the surface)" if near else ""
        factors = {"half the steps": 0.5, "a fifth less": 0.8, "a quarter more": 1.25, "twice": 2.0}
        others = ", ".join(f"with {word} {_times(path.penalty(factor))}" for word, factor in factors.items())
        found.append(f"{surface.name}: n = {n:.0f}, t = {t:.0f}{edge}, excess {best:.2g}; at the same budget {others}")
    return f"Best split of {compute / 1e6:g} million pairs. {'. '.join(found)}. The oracle's budget is nominal."


def tail_text(tails: xr.Dataset, signal: float) -> str:
    """Return the numbers behind one picture of the slider on the signal."""
    coefficient, most = float(scalar_bias_coefficient(signal)), float(tails.n[-1])
    finite = f"{coefficient:.3g}" if np.isfinite(coefficient) else "infinite"
    first, middle, last = (f"2{str(power).translate(RAISED)}" for power in (7, 12, int(np.log2(most))))
    scaled = most * float(tails.bias.sel(signal=signal)[-1])
    share = f", {scaled / coefficient:.3f} of it" if np.isfinite(coefficient) else ""
    fitted, far = (float(slopes.sel(signal=signal))
                   for slopes in (readings.fitted_slope(tails), readings.local_slopes(tails)[:, -1]))  # fmt: skip
    return (
        f"Signal {signal:g}: slope {fitted:.3f} from n = {first} to {middle} and "
        f"{far:.3f} near n = {last}; predicted {-float(heavy_tail_exponent(signal)):.3f}. "
        f"Coefficient of 1/n: {finite}; n times the bias at {last}: {scaled:.3g}{share}."
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times as much" if np.isfinite(ratio) else "not covered by the runs"


def _spread(samples: xr.DataArray | Sequence[float]) -> str:
    low, middle, high = (_number(float(pick(np.asarray(samples)))) for pick in (np.min, np.median, np.max))
    return f"{middle} [{low}, {high}]"


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:.3g}"
