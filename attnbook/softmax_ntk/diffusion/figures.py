"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but means and medians."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.softmax_ntk.diffusion.experiments import EARLY, at_stop
from attnbook.softmax_ntk.diffusion.tasks import BINS, GRID, ON_A_LINE, SCHEDULE, exact_denoiser, line_denoiser

MACHINE = Look("kernel machine", "#0b5cad", "-", "none")
NETWORK = Look("network, stopped by held-out labels", "#0b5cad", "none", "o", hollow=True)
LINE = Look("best straight line", "#8a5a00", (0, (5, 1)), "none")
BEST = Look("stopped by an oracle", "#5b5f66", ":", "s")
WEIGHTED = Look("weighted by signal over noise", "#15803d", "-.", "none")
LABELS = "#5b5f66"
ERROR = "error against the truth"
WEIGHTS = {"of the theorem": "theorem", "signal over noise": "signal_to_noise"}
AT_POINTS = GRID[::4]  # where the network's answers are kept


def stopped(data: xr.Dataset, sizes: xr.Dataset) -> Figure:
    """Draw error against steps with the networks where they stopped, and against the number of labels."""
    plain = data.sel(task="line", weighting="theorem")
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 2.9), sharey=True)
        band(left, data.step, plain.error.values, MACHINE)
        left.plot(plain.stopped, data.stopped_error, **NETWORK.line_style())
        _line(left, plain.line_error)
        band(right, sizes.size, sizes.stopped_error.values, Look("stopped by held-out labels", "#0b5cad", "-", "o"))
        band(right, sizes.size, sizes.best_error.values, BEST)
        _line(right, sizes.line_error)
        left.set(xscale="log", yscale="log", xlabel="steps", ylabel=ERROR, ylim=(2e-3, 0.2))
        log_axis(right, sizes.size.values, "noisy labels")
        for ax in (left, right):
            ax.legend(fontsize=8.5, loc="upper right")
    return figure


def weight_frame(data: xr.Dataset, weight: str) -> Figure:
    """Draw errors against steps, with the stops, and the samples that the stopped machine leads to."""
    one, sampler = _weighted(data, weight)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4))
        for look, name, line in ((MACHINE, "error", "line_error"), (WEIGHTED, "small_error", "small_line_error")):
            label = "all times" if name == "error" else f"times below {EARLY:g}"
            band(left, data.step, one[name].values, Look(label, look.color, look.line, "none"))
            left.axhline(float(one[line].median()), color=look.color, linestyle=LINE.line, linewidth=1)
            left.plot(one.stopped, at_stop(one, name), "o", color=look.color, fillstyle="none")
        left.set(xscale="log", yscale="log", xlabel="steps", ylabel=ERROR, ylim=(2e-3, 0.3), title="weight " + weight)
        left.legend(fontsize=8.5, loc="upper center")
        for name, look in ((sampler, MACHINE), ("line", LINE)):
            heights = data.histogram.sel(sampler=name).median("seed")
            right.stairs(heights, BINS, color=look.color, linestyle=look.line, linewidth=1.4)
        right.plot(GRID, _at(SCHEDULE.first)[2], color=INK, linestyle=":", linewidth=1.6)
        right.set(xlim=(-1.6, 1.6), ylim=(0, 2.1), xlabel="sample", ylabel="density", title="samples")
    return figure


def weight_text(data: xr.Dataset, weight: str) -> str:
    """Return the numbers behind one picture of the switch."""
    one, sampler = _weighted(data, weight)
    over = {
        "error at all times": at_stop(one, "error") / one.line_error,
        "error at small times": at_stop(one, "small_error") / one.small_line_error,
        "distance of samples": data.wasserstein.sel(sampler=sampler) / data.wasserstein.sel(sampler="line"),
    }
    numbers = ", ".join(f"{name} {float(x.median()):.2f} times the line's" for name, x in over.items())
    return f"Weight {weight}, stopped after {float(one.stopped.median()):.0f} steps (medians): {numbers}."


def denoiser_frame(data: xr.Dataset, time: float) -> Figure:
    """Draw true label, scatter of noisy ones, best line and stopped networks at one time, above the density."""
    truth, scatter, _ = _at(time)
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(6.0, 4.6), sharex=True, height_ratios=(2.6, 1))
        above.fill_between(GRID, truth - scatter, truth + scatter, color=LABELS, alpha=0.2, lw=0, label="noisy labels")
        band(above, AT_POINTS, data.answers.sel(time=time).values, Look("networks, stopped", "#0b5cad", "-", "none"))
        above.plot(GRID, line_denoiser(time, GRID), **LINE.line_style())
        above.plot(GRID, truth, color=INK, linestyle=":", label="true label")
        above.set(xlim=(-2, 2), ylim=(-1.3, 1.3), ylabel="clean point", title=f"time {time:g}")
        above.legend(fontsize=9, loc="upper left")
        below.plot(GRID, _at(time)[2], color=INK, linestyle=":", linewidth=1.6)
        below.set(ylim=(0, 1.9), xlabel="noisy point", ylabel="density")
    return figure


def denoiser_text(data: xr.Dataset, time: float) -> str:
    """Return by how much line and networks miss the true label at one time, beside the noise of the labels."""
    truth, scatter, density = _at(time)
    networks = [np.interp(GRID, AT_POINTS, one) for one in data.answers.sel(time=time).values]
    line, *each = (
        np.average((answer - truth) ** 2, weights=density) for answer in (line_denoiser(time, GRID), *networks)
    )
    miss = np.average(scatter**2, weights=density)
    return (
        f"Time {time:g}, mean squares: noisy labels miss the true one by {miss:.4f}, the best line by {line:.4f}, "
        f"the networks by {np.median(each):.4f} (median)."
    )


def beside_the_line(data: xr.Dataset) -> Table:
    """Return errors over the signal and samples, of the network where it stopped and of what it competes with."""
    plain, weighted = (data.sel(task="line", weighting=weighting) for weighting in data.weighting.values)
    plane = data.sel(task="plane", weighting="theorem")
    rows: list[list[str | Measured]] = []
    for name, one, error, sampler in (
        ("network, stopped by held-out labels", plain, data.stopped_error, "stopped"),
        ("kernel machine, oracle's stop", plain, plain.error.min("step"), None),
        ("kernel machine, 1000 times the steps", plain, None, "longer"),
        ("machine weighted by signal over noise, stopped", weighted, at_stop(weighted, "error"), "weighted"),
        ("best line; it knows the data's variance", plain, plain.line_error, "line"),
        ("line with the variance of the same labels", plain, plain.line_by_labels_error, None),
        ("plane: machine, stopped", plane, at_stop(plane, "error"), None),
        ("plane: best line", plane, plane.line_error, None),
    ):
        cells = [spread(error / one.signal, ".3f") if error is not None else ""]
        cells += [spread(data[k].sel(sampler=sampler), ".2f") if sampler else "" for k in ("wasserstein", "gap")]
        rows.append([name, *cells])
    caption = f"Median [least, most] over {data.sizes['seed']} seeds. Always answering zero has error 1."
    return Table(["denoiser", "error over signal", "distance of samples", "between the modes"], rows, caption)


def terms(data: xr.Dataset) -> Table:
    """Return the four terms where the network stopped, their sum times four, and the error."""
    parts = {str(term): data.terms.sel(term=term) for term in data.term.values}
    parts |= {"four times the sum": 4 * data.terms.sum("term"), "error of the network": data.stopped_error}
    rows: list[list[str | Measured]] = [[name, spread(x, ".1e")] for name, x in parts.items()]
    return Table(["term", "mean square"], rows, f"Median [least, most] over {data.sizes['seed']} seeds.")


def by_size(sizes: xr.Dataset) -> Table:
    """Return stops, errors over the line's, and the smallest eigenvalue, by number of labels."""
    rows: list[list[str | Measured]] = []
    for n in sizes.size.values:
        one = sizes.sel(size=n)
        over = [spread(one[name] / one.line_error, ".2f") for name in ("stopped_error", "best_error", "end_error")]
        eigenvalue = int(np.ceil(np.log10(np.abs(one.smallest_eigenvalue).max())))
        rows.append([str(n), spread(one.stopped, ".0f"), *over, Measured(f"below 1e{eigenvalue}")])
    head = ["labels", "stopped after", "error over line's", "oracle's stop", "after long training", "size of λ"]
    return Table(head, rows, f"Median [least, most] over {sizes.sizes['seed']} seeds; λ: largest size computed.")


def _weighted(data: xr.Dataset, weight: str) -> tuple[xr.Dataset, str]:
    """The runs on the line with this weight of time, and the sampler that goes with it."""
    sampler = {"theorem": "stopped", "signal_to_noise": "weighted"}[WEIGHTS[weight]]
    return data.sel(task="line", weighting=WEIGHTS[weight]), sampler


def _at(time: float) -> tuple[np.ndarray, ...]:
    """True labels, scatter of the noisy ones and density on the grid."""
    mixture, where = ON_A_LINE.mixture, (np.full(len(GRID), time), GRID[:, None])
    return exact_denoiser(time, GRID[:, None])[:, 0], mixture.label_spread(*where), np.exp(mixture.log_density(*where))


def _line(ax: Axes, error: xr.DataArray) -> None:
    ax.axhline(float(error.median()), color=LINE.color, linestyle=LINE.line, label=LINE.label)
