"""Splitting a compute budget between samples and steps, on the measured surface of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

__all__ = ["AlongBudget", "along_budget"]


class AlongBudget(NamedTuple):
    r"""Errors along the curve $n^2t=C$.

    Attributes:
        steps: Numbers of steps whose number of samples lies inside the surface, ``(points,)``.
        samples: $n=\sqrt{C/t}$ of each, ``(points,)``.
        excess: Excess loss there, interpolated between numbers of samples on log axes, ``(points,)``.
    """

    steps: Float[np.ndarray, " points"]
    samples: Float[np.ndarray, " points"]
    excess: Float[np.ndarray, " points"]

    @property
    def best(self) -> int:
        """Position of the smallest excess."""
        return int(self.excess.argmin())


def along_budget(
    n_samples: Float[np.ndarray, " counts"], surface: Float[np.ndarray, "counts records"], compute: float
) -> AlongBudget:
    r"""Return the errors of all splits of a budget that the surface covers.

    Args:
        n_samples: Numbers of samples, increasing.
        surface: Excess loss by number of samples and step; the first record is the start.
        compute: $C=n^2t$: pairs of samples over the whole run.

    Returns:
        The errors by number of steps, at least one step.

    Raises:
        ValueError: If no split of the budget lies on the surface.

    Example:
        >>> surface = np.array([[1.0, 0.5, 0.25], [1.0, 0.4, 0.16]])
        >>> along_budget(np.array([10.0, 20.0]), surface, 200.0).samples
        array([14.14213562, 10.        ])
    """
    steps = np.arange(1, surface.shape[1])
    samples = np.sqrt(compute / steps)
    inside = (samples >= n_samples[0] * (1 - 1e-12)) & (samples <= n_samples[-1] * (1 + 1e-12))
    if not inside.any():
        least, most = n_samples[0] ** 2, n_samples[-1] ** 2 * steps[-1]
        raise ValueError(f"compute: expected a budget between {least:.3g} and {most:.3g}, got {compute:.3g}")
    values = [
        np.exp(np.interp(np.log(n), np.log(n_samples), np.log(surface[:, t])))
        for n, t in zip(samples[inside], steps[inside], strict=True)
    ]
    return AlongBudget(steps[inside].astype(float), samples[inside], np.array(values))
