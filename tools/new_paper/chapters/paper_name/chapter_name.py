"""Replace this: what the chapter asks. Its experiment, what its claim reads off it, a picture, an exercise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from pydantic import PositiveInt

from attnbook.core.feedback import verdict
from attnbook.lab import Seeds, experiment, slope, sweep
from attnbook.paper_name.means import draw_numbers
from attnbook.show import INK, curves, own_lines, style

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure


@experiment("paper_name.first", group=10, needs="cpu", smoke={"n_means": 10, "seeds": (0, 1)})
def first(
    seeds: Seeds = tuple(range(10)),
    sizes: tuple[PositiveInt, ...] = (10, 30, 100, 300),  # numbers in a mean
    n_means: PositiveInt = 200,  # of each size
) -> xr.Dataset:
    """How far a mean is off, against how many numbers it is of."""

    def one(seed: int, size: int) -> dict[str, float]:
        return {"error": abs(draw_numbers(size, n_means, seed).mean(axis=1)).mean()}

    return sweep(one, seed=seeds, size=sizes)


@first.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    return {"XX-T1": {"slope": slope(data.error, "size")}}


ALT = "Error of a mean against its number of numbers, on log axes: it falls along a line of slope minus one half."


def errors(data: xr.Dataset, yours: Mapping[str, Mapping[int, float]] | None = None, most: int | None = None) -> Figure:
    """Draw the error against the size, up to the largest to show, with the slope of the statement, and your own."""
    import matplotlib.pyplot as plt

    start = data.error.isel(size=0).median("seed")
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.6))
        curves(ax, data.error.sel(size=slice(most)), "size", label="measured")
        ax.plot(data["size"], start * (data["size"] / data["size"][0]) ** -0.5, ":", color=INK, label="slope -1/2")
        own_lines(ax, yours)
        ax.set(xscale="log", yscale="log", xlabel="numbers in a mean", ylabel="mean error")
        ax.legend()
    return figure


def errors_text(data: xr.Dataset, most: int) -> str:
    """Return the number behind one picture."""
    return f"Means of {most} numbers are off by {float(data.error.sel(size=most).median()):.2g}, median over seeds."


def numbers_needed(answer: Callable[..., Any]) -> str | None:
    """Check how many numbers a mean needs for a given error, if means of one number are off by one."""
    wanted = np.array([0.1, 0.03, 0.5])
    likely = {"the error falls like the root of the size": 1 / wanted}
    return verdict([answer(error) for error in wanted], wanted**-2.0, likely, "one number")


CHECKS = {"XX-1": numbers_needed}
