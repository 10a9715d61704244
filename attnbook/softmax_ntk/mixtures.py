r"""A Gaussian mixture under the forward process: what a denoiser should answer, in closed form.

With modes $\mu_k$ of equal weight and standard deviation $s$, the noisy points at time $t$ are
again a mixture, with modes $\alpha\mu_k$ and variance $v=\alpha^2s^2+\beta$. So the denoiser that a
network should learn is known exactly, and its score by Tweedie's formula
(:meth:`attnbook.softmax_ntk.score_matching.Schedule.score`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.score_matching import Points, Schedule, Times

__all__ = ["Mixture"]


@dataclass(frozen=True)
class Mixture:
    r"""Normal modes of equal weight and width, $p_0=\frac1K\sum_kN(\mu_k,s^2I)$, under noise.

    Attributes:
        means: Centres of the modes, one row each, ``(modes, dimension)``.
        width: Standard deviation $s$ of each mode, positive.
        schedule: Rate of the noise; default that of this book.

    Example:
        >>> one = Mixture(((0.0,),), 1.0)
        >>> t, x = np.array([0.5]), np.array([[2.0]])
        >>> bool(np.isclose(one.denoiser(t, x), one.schedule.signal(t) * x).all())
        True
    """

    means: tuple[tuple[float, ...], ...]
    width: float
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if not self.means or {len(mean) for mean in self.means} != {len(self.means[0]) or -1}:
            raise ValueError(f"means: expected modes of one dimension, got {self.means}")
        check_positive(width=self.width)

    @property
    def dimension(self) -> int:
        """Dimension of the data."""
        return len(self.means[0])

    @property
    def second_moment(self) -> float:
        """Mean square of a coordinate of the data, if its mean is 0."""
        return float(np.var(self.means)) + self.width**2

    def draw(self, count: int, *, rng: np.random.Generator) -> Points:
        """Return points of the data, one per row."""
        centres = np.array(self.means)[rng.integers(len(self.means), size=count)]
        return centres + self.width * rng.standard_normal(centres.shape)

    def denoiser(self, times: Times, points: Points) -> Points:
        r"""Return the true label $f_*(t,x)=\sum_kq_k[\mu_k+\frac{\alpha s^2}v(x-\alpha\mu_k)]$.

        Args:
            times: One time in $[T_0,T]$ for each point.
            points: Noisy points $x$; $q_k$ is the probability that $x$ comes from mode $k$.

        Returns:
            $E[x_0|x_t=x]$ for each.

        Raises:
            ValueError: If a time is outside, or the shapes do not fit.
        """
        from scipy.special import softmax  # here, because a machine that only trains needs no scipy

        t = self.schedule.check(times)
        if points.shape != (len(t), self.dimension):
            shape = len(t), self.dimension
            raise ValueError(f"points: expected (times, dimension) = {shape}, got {points.shape}")
        signal, variance = self.schedule.signal(t)[:, None], self._variance(t)[:, None]
        gaps = points[:, None, :] - signal[:, :, None] * np.array(self.means)
        exponents = -(gaps**2).sum(axis=2) / (2 * variance)
        centres = softmax(exponents, axis=1) @ np.array(self.means)
        return centres + signal * self.width**2 / variance * (points - signal * centres)

    def quantiles(self, time: float, count: int) -> Times:
        r"""Return the quantiles at the levels $(i-\frac12)/$count of noisy points, to three digits.

        They are an ideal sample of one dimension: what particles are compared with.

        Raises:
            ValueError: If the mixture is not one-dimensional.
        """
        from scipy.special import ndtr

        if self.dimension != 1:
            raise ValueError(f"dimension: expected 1, got {self.dimension}")
        centres, radius = self.modes(time)
        deviation = radius / 2
        reach = np.abs(centres).max() + 6 * deviation
        grid = np.linspace(-reach, reach, 4001)
        below = ndtr((grid[:, None] - centres[:, 0]) / deviation).mean(axis=1)
        return np.interp((np.arange(count) + 0.5) / count, below, grid)

    def modes(self, time: float) -> tuple[Float[np.ndarray, "modes dimension"], float]:
        """Return the centres of the noisy modes at a time, and two of their standard deviations."""
        radius = 2 * np.sqrt(self._variance(self.schedule.check(time)))
        return self.schedule.signal(time) * np.array(self.means), radius

    def share_near(self, time: float, points: Points) -> float:
        """Return the share of points within two standard deviations of a noisy mode."""
        centres, radius = self.modes(time)
        gaps = np.linalg.norm(points[:, None, :] - centres, axis=2)
        return float((gaps.min(axis=1) < radius).mean())

    def _variance(self, times: np.ndarray) -> np.ndarray:
        return self.schedule.signal(times) ** 2 * self.width**2 + self.schedule.noise(times)
