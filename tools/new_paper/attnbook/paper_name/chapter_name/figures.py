"""The pictures of the chapter, and the words of its slider; nothing is computed but medians."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style

LOOK = Look("measured", "#0b5cad", "-", "o")


def errors(data: xr.Dataset, sizes: int | None = None) -> Figure:
    """Draw the error against the size, all sizes or the first few, with the slope of the statement."""
    shown = data.isel(size=slice(sizes))
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.6))
        band(ax, shown["size"].values, shown.error.transpose("seed", "size").values, LOOK)
        first = float(data.error.isel(size=0).median())
        ax.plot(data["size"], first * np.sqrt(data["size"][0] / data["size"]), ":", color=INK, label="slope -1/2")
        ax.set(xscale="log", yscale="log", xlabel="numbers in a mean", ylabel="mean error")
        ax.legend()
    return figure


def errors_text(data: xr.Dataset, sizes: int) -> str:
    """Return the numbers behind one picture."""
    last = data.error.isel(size=sizes - 1)
    return f"Means of {int(last['size'])} numbers are off by {float(last.median()):.2g}, median over seeds."
