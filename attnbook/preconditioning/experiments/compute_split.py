"""Splitting a compute budget between samples and steps, on the measured surface of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from attnbook.preconditioning.experiments.gradient_oracle import GradientOracle
from attnbook.preconditioning.experiments.scaling_law import ScalingLaw

__all__ = ["AlongBudget", "Surface", "along_budget", "late_decay", "surfaces"]


class Surface(NamedTuple):
    r"""Excess loss over numbers of samples and steps from the cold start; medians over problems.

    Attributes:
        name: Which gradient.
        samples: Numbers of samples, increasing, ``(counts,)``.
        excess: Excess loss, ``(counts, records)``.
        bias: Constant $\beta$ of the statistical error $\beta n^{-p}$.
        power: Its exponent $p$.
    """

    name: str
    samples: Float[np.ndarray, " counts"]
    excess: Float[np.ndarray, "counts records"]
    bias: float
    power: float


def surfaces(data: ScalingLaw, oracle: GradientOracle) -> tuple[Surface, Surface]:
    """Return the surfaces of both gradients.

    Args:
        data: Training on one data set.
        oracle: The gradient oracle; its price of $n^2$ pairs a step is nominal, as it averages over many batches.

    Returns:
        That of one data set and that of the oracle.
    """
    one, fresh = (np.array(counts, float) for counts in (data.settings.n_samples, oracle.settings.surface_samples))
    constant = float(np.median(oracle.constant))
    return (
        Surface("one data set", one, np.median(data.cold, axis=0), data.constant, 1.0),
        Surface("gradient oracle", fresh, np.median(oracle.cold[:, :-1], axis=0), constant, 2.0),
    )


def late_decay(data: ScalingLaw, oracle: GradientOracle) -> tuple[float, float]:
    r"""Return $E_0$ and $c$ of the optimisation error $E_0e^{-ct}$ from the cold start.

    The late rate is $c=-2\log(1-2\eta s_d)$ with the step size $\eta$; $E_0$ is the end of the population's curve,
    carried back along it.

    Args:
        data: Settings of the cold start.
        oracle: Descent on the population loss from it.

    Returns:
        Both numbers.
    """
    rate = -2 * float(np.log(1 - 2 * data.settings.cold_step_size * data.settings.smallest))
    population = np.median(oracle.cold[:, -1], axis=0)
    return float(population[-1] * np.exp(rate * (len(population) - 1))), rate


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

    def penalty(self, factor: float) -> float:
        """Return how many times larger the excess is with so many times the best number of steps.

        Args:
            factor: Of the steps; the samples follow from the budget.

        Returns:
            The ratio; not a number where that split is not on the surface.
        """
        found = np.flatnonzero(self.steps == round(factor * self.steps[self.best]))
        return float(self.excess[found[0]] / self.excess[self.best]) if len(found) else float("nan")


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
