"""The picture of the chapter, that of its slider, and the words below it; nothing is computed but medians."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style

KINDS = (Look("others keep clear", "#0b5cad", "-", "o"), Look("others come close", "#c2410c", "-.", "^"))


def along_training(data: xr.Dataset) -> Figure:
    """Draw angle, norm times margin and loss against steps, and what the theory says of each."""
    t, best = data.step[8:], data.isel(clearance=0).median("seed")
    longer, size = best.norm * best.margin - np.log(data.step), data.attrs["settings"]["step_size"]
    panels = {
        "angle (degrees)": (data.angle, best.angle[-1].values * np.log(t[-1]) / np.log(t), r"$1/\log t$"),
        "norm × margin": (data.norm * data.margin, longer[-1] + np.log(t), r"$\log t$ + constant"),
        "loss": (data.loss, 1 / (size * best.margin**2 * t), r"$1/(\eta\gamma^2t)$"),
    }
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.8, 3.0))
        for ax, (title, (values, theory, label)) in zip(axes, panels.items(), strict=True):
            for kind, look in zip(values.transpose("clearance", "seed", "step")[..., ::3], KINDS, strict=True):
                band(ax, kind.step.values, kind.values, look)
            ax.plot(t, theory, color=INK, linestyle=":", label=label)
            ax.set(xscale="log", yscale="linear" if "norm" in title else "log", title=title, xlabel="steps")
            ax.legend(handles=ax.lines[-1:] if ax is not axes[0] else ax.lines, fontsize=8.5)
    return figure


def lines_frame(data: xr.Dataset, steps: int, samples: str) -> Figure:
    """Draw the samples of one problem with the best line and that of gradient descent."""
    one, labels = first(data, steps, samples), np.resize([1, -1], data.sizes["sample"])
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.8))
        for label, marker in ((1, "o"), (-1, "s")):
            shown = label * one.samples.values[labels == label].T
            ax.plot(*shown, marker, color=KINDS[label < 0].color, label=f"label {label:+d}")
        for (x, y), line, name in ((one.best.values, ":", "largest margin"), (one.weights.values, "-", "descent")):
            ax.axline((0, 0), (-y, x), color=INK, linestyle=line, label=name)
        ax.set(xlim=(-5, 5), ylim=(-4, 4), aspect="equal")
        figure.legend(loc="outside right center", fontsize=9.5)
    return figure


def lines_text(data: xr.Dataset, steps: int, samples: str) -> str:
    """Return the numbers behind one picture."""
    angle, norm, loss = (float(first(data, steps, samples)[name]) for name in ("angle", "norm", "loss"))
    return f"Steps: {steps:,}. Angle to the best line: {angle:.2g} degrees; norm {norm:.2g}; loss {loss:.2g}."


def first(data: xr.Dataset, steps: int, samples: str) -> xr.Dataset:
    """Return one problem, whose line turns far, after so many steps."""
    return data.isel(seed=3, clearance=[look.label for look in KINDS].index(samples)).sel(step=steps)
