"""How networks and starts look in all pictures of this part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnbook.core.figures import Look
from attnbook.core.tables import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LOOKS", "STARTS", "log_axis", "spread"]

LOOKS: Mapping[str, Look] = {
    "softmax": Look("softmax", "#0b5cad", "-", "o"),
    "exp": Look("exp", "#c2410c", "-.", "^"),
    "relu": Look("ReLU", "#5b5f66", "--", "s"),
}
STARTS: Mapping[str, Look] = {
    "paired": Look("pairs", "#15803d", "-", "v"),
    "opposite_signs": Look("opposite signs only", "#7c3aed", "-.", "D"),
    "independent": Look("independent", "#8a5a00", "--", "P"),
}


def log_axis(ax: Axes, numbers: np.ndarray, *, label: str = "width") -> None:
    """Make the horizontal axis logarithmic, with a tick at each of these numbers."""
    ax.set(xscale="log", xlabel=label)
    ax.set_xticks(numbers, [f"{number:g}" for number in numbers])
    ax.minorticks_off()


def spread(samples: xr.DataArray | np.ndarray, form: str) -> Measured:
    """Return the cell "median [smallest, largest]" of a table, all in one format."""
    low, middle, high = (f"{number:{form}}" for number in np.quantile(samples, (0, 0.5, 1)))
    return Measured(f"{middle} [{low}, {high}]")
