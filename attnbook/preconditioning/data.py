r"""The data of Section 3: Gaussian inputs, a linear teacher, and a covariance of chosen condition number.

=======================  ====================  ==================================================
paper                    name here             shape
=======================  ====================  ==================================================
$\Sigma$                 ``covariance``        ``(dimension, dimension)``, symmetric, positive
$\kappa$                 ``condition_number``  largest over smallest eigenvalue of $\Sigma$
$A$                      ``true_map``          ``(n_outputs, dimension)``
$\sigma$                 ``noise``             standard deviation of each output's noise
$s_1\ge\dots\ge s_d$     ``singular_values``   of $A\Sigma^{1/2}$; largest and smallest are chosen
=======================  ====================  ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.core.rng import stream

__all__ = ["Problem", "Setup", "draw_problem"]


@dataclass(frozen=True)
class Problem:
    r"""Where the data come from: $x\sim N(0,\Sigma)$ and $y=Ax+\varepsilon$ with $\varepsilon\sim N(0,\sigma^2I)$."""

    covariance: Float[np.ndarray, "dimension dimension"]  #: $\Sigma$, ``(dimension, dimension)``
    true_map: Float[np.ndarray, "outputs dimension"]  #: $A$, ``(n_outputs, dimension)``
    noise: float  #: $\sigma$, at least 0


@dataclass(frozen=True)
class Setup:
    r"""Sizes of a family of problems, one per seed."""

    dimension: int  #: Number of inputs $d$
    n_outputs: int  #: Number of outputs $m$
    condition_number: float  #: $\kappa(\Sigma)$, at least 1
    largest: float  #: Largest singular value $s_1$ of $A\Sigma^{1/2}$
    smallest: float  #: Smallest one, $s_d$; those between are evenly spaced
    noise: float  #: Standard deviation $\sigma$ of the noise, above 0, as losses are compared with the best one
    n_samples: int  #: Size $n$ of the data set

    def __post_init__(self) -> None:
        _check_at_least(1, dimension=self.dimension, n_outputs=self.n_outputs, n_samples=self.n_samples)
        _check_at_least(1, condition_number=self.condition_number)
        if not 0 < self.noise < float("inf"):
            raise ValueError(f"noise: expected a positive number, got {self.noise}")
        if not 0 < self.smallest <= self.largest < float("inf"):
            raise ValueError(f"smallest: expected above 0 and at most largest, {self.largest}, got {self.smallest}")

    @property
    def best_loss(self) -> float:
        r"""The smallest population loss $L^*=\frac12m\sigma^2$."""
        return 0.5 * self.n_outputs * self.noise**2

    def problem(self, seed: int) -> Problem:
        """Return the problem of a seed."""
        values = np.linspace(self.largest, self.smallest, min(self.dimension, self.n_outputs))
        return draw_problem(self.dimension, self.n_outputs, condition_number=self.condition_number,
                            singular_values=values, noise=self.noise, rng=stream(seed, "problem"))  # fmt: skip

    def draw(self, seed: int) -> tuple[Float[np.ndarray, "samples dimension"], Float[np.ndarray, "samples outputs"]]:
        """Return inputs and labels of a seed; noise has a stream of its own, so that outputs do not change inputs."""
        problem = self.problem(seed)
        drawn = stream(seed, "inputs").standard_normal((self.n_samples, self.dimension))
        x = drawn @ np.linalg.cholesky(problem.covariance).T
        noise = stream(seed, "label noise").standard_normal((self.n_samples, self.n_outputs))
        return x, x @ problem.true_map.T + self.noise * noise


def draw_problem(
    dimension: int,
    n_outputs: int,
    *,
    condition_number: float,
    singular_values: Float[np.ndarray, " rank"],
    noise: float,
    rng: np.random.Generator,
) -> Problem:
    r"""Draw a random problem that meets Assumptions 1 to 3 exactly as asked.

    $\Sigma=O\,\mathrm{diag}(\lambda)\,O^\top$ with eigenvalues spaced geometrically from $\sqrt\kappa$ to
    $1/\sqrt\kappa$, and $A=PDR^\top\Sigma^{-1/2}$ with random orthogonal $O$, $P$, $R$. (The paper builds both from
    Gaussian matrices; how, the text available to us does not show.)

    Args:
        dimension: Number of inputs $d$, at least 1.
        n_outputs: Number of outputs $m$, at least 1.
        condition_number: $\kappa(\Sigma)$, at least 1.
        singular_values: Singular values of $A\Sigma^{1/2}$, positive, as many as the smaller of $m$ and $d$.
        noise: Standard deviation $\sigma$ of the noise, at least 0.
        rng: Source of randomness.

    Returns:
        The problem.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> s = np.array([0.3, 0.2])
        >>> p = draw_problem(2, 3, condition_number=4.0, singular_values=s, noise=0.1, rng=np.random.default_rng(0))
        >>> round(float(np.linalg.cond(p.covariance)), 9)
        4.0
    """
    _check_at_least(1, dimension=dimension, n_outputs=n_outputs, condition_number=condition_number)
    _check_at_least(0, noise=noise)
    rank = min(dimension, n_outputs)
    if len(singular_values) != rank or not (np.isfinite(singular_values) & (singular_values > 0)).all():
        raise ValueError(f"singular_values: expected {rank} positive numbers, got {singular_values}")
    eigenvalues = np.geomspace(condition_number**0.5, condition_number**-0.5, dimension)
    axes, left, right = (_orthogonal(size, rng) for size in (dimension, n_outputs, dimension))
    whitened_map = (left[:, :rank] * singular_values) @ right[:, :rank].T
    true_map = whitened_map @ (axes / np.sqrt(eigenvalues)) @ axes.T
    return Problem((axes * eigenvalues) @ axes.T, true_map, noise)


def _orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an orthogonal matrix uniformly: QR of a Gaussian matrix, with the signs of R undone."""
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def _check_at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not least <= value < float("inf"):
            raise ValueError(f"{name}: expected a finite number of at least {least}, got {value}")
