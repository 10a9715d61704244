"""The pictures of the chapter. Each function takes a data set and computes nothing but medians and where to look."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style

HEADS = "number of heads H"
ATTENTION = "attention on relevant tokens"
LAW = "#b00020"  # the line of the law, on a map in other colours
BY_HEADS = {
    1: Look("H = 1", "#7fbf3f", "-", "o"),
    16: Look("H = 16", "#1c7558", "-.", "^"),
    256: Look("H = 256", "#0d4849", ":", "D"),
    4096: Look("H = 4096", "#06303a", (0, (5, 1)), "s"),
}  # the more heads, the darker


def step_map(data: xr.Dataset) -> Figure:
    """Draw the test error over numbers of heads and step sizes, with the line of the law."""
    errors, worst = data.test_error.median("seed").values, data.test_error.max("seed").values
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.65))
        image = ax.imshow(errors, origin="lower", aspect="auto", cmap=plt.get_cmap("cividis_r", 10), vmin=0, vmax=0.2)
        for i, j in np.ndindex(errors.shape):
            color = "white" if errors[i, j] > 0.07 else INK
            text = f"{errors[i, j]:.3f}\n({worst[i, j]:.2f})"
            box = {"facecolor": image.cmap(image.norm(errors[i, j])), "edgecolor": "none", "pad": 1.2}
            ax.text(j, i, text, ha="center", va="center", color=color, fontsize=10, linespacing=1.1, bbox=box, zorder=4)
        # In these axes, both logarithmic, a law is a straight line; from one head to the most.
        for law, line in ((8 * data.heads**0.5, ":"), (data.heads / 2, "--")):
            columns = np.interp(np.log(law), np.log(data.step_size), range(len(data.step_size)))
            ax.plot(columns, range(len(data.heads)), color=LAW, linestyle=line, marker="")
        ax.set_xticks(range(len(data.step_size)), [f"{step:g}" for step in data.step_size.values])
        ax.set_yticks(range(len(data.heads)), [f"{h}" for h in data.heads.values])
        ax.set(xlabel="step size η", ylabel=HEADS)
        ax.grid(visible=False)
        ax.set_title("dotted: η = 8√H, dashed: η = H / 2", fontsize=11)
        figure.colorbar(image, ax=ax, label="test error, median")
    return figure


def law_frame(data: xr.Dataset, power: float) -> Figure:
    """Draw attention against the step size over a power of the number of heads; on the law the lines coincide."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for n_heads in data.heads.values:
            curve = data.mass.sel(heads=n_heads).transpose("seed", "step_size")
            band(ax, data.step_size.values / float(n_heads) ** power, curve.values, BY_HEADS[n_heads])
        ax.set(xscale="log", xlabel=rf"$\eta\,/\,H^{{{power:g}}}$", ylabel=ATTENTION, ylim=(0, 1), xlim=(1e-4, 4e3))
        ax.legend(loc="upper left", fontsize=9.5)
    return figure


def law_text(data: xr.Dataset, power: float) -> str:
    """Return how far the lines of one picture of the slider are apart, where all of them are drawn."""
    heads = data.heads.values[data.heads.values > 1].astype(float)
    steps, mass = np.log(data.step_size.values), data.mass.median("seed")
    first, last = (steps[end] - power * np.log(heads) for end in (0, -1))
    common = np.linspace(first.max(), last.min(), 100)
    lines = [np.interp(common, steps - power * np.log(h), mass.sel(heads=h)) for h in heads]
    apart = np.ptp(lines, axis=0).max()
    return f"Lines of {heads[0]:.0f} to {heads[-1]:.0f} heads, at equal η / H^{power:g}: at most {apart:.2f} apart."
