r"""A Gaussian mixture under the forward process: density, denoiser and spread of the labels in closed form.

With modes $\mu_k$ of equal weight and standard deviation $s$, the noisy points at time $t$ are again a mixture, with
modes $\alpha\mu_k$ and variance $v=\alpha^2s^2+\beta$. So the denoiser that a network should learn is known exactly,
and its score by Tweedie's formula (:meth:`attnbook.softmax_ntk.score_matching.Schedule.score`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive
from attnbook.softmax_ntk.score_matching import Schedule

__all__ = ["Mixture"]


@dataclass(frozen=True)
class Mixture:
    r"""Normal modes of equal weight and one width, $p_0=\frac1K\sum_kN(\mu_k,s^2I)$, and what noise makes of them.

    Methods take one time in $[T_0,T]$ for each point, ``(count,)``, and points $x$, ``(count, dimension)``; $q_k$ is
    the probability that $x$ comes from mode $k$. Times outside and points of other dimensions raise ValueError.

    Attributes:
        means: Centres of the modes, one row each, ``(modes, dimension)``.
        width: Standard deviation $s$ of each mode, positive.
        schedule: Rate of the noise; default that of this book.

    Example:
        >>> one = Mixture(((0.0,),), 1.0)
        >>> t, x = np.array([0.5]), np.array([[2.0]])
        >>> bool(np.isclose(one.label_spread(t, x) ** 2, one.schedule.noise(t)).all())
        True
    """

    means: tuple[tuple[float, ...], ...]
    width: float
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if not self.means or len({len(mean) for mean in self.means}) != 1 or not self.means[0]:
            raise ValueError(f"means: expected modes of one dimension, at least one mode, got {self.means}")
        check_positive(width=self.width)

    @property
    def dimension(self) -> int:
        """Dimension of the data."""
        return len(self.means[0])

    @property
    def second_moment(self) -> float:
        """Mean square of a coordinate of the data, if its mean is 0."""
        return float(np.var(self.means)) + self.width**2

    def draw(self, count: int, *, rng: np.random.Generator) -> Float[np.ndarray, "count dimension"]:
        """Return points of the data, one per row.

        Raises:
            ValueError: If there are none.
        """
        if count < 1:
            raise ValueError(f"count: expected at least 1, got {count}")
        centres = np.array(self.means)[rng.integers(len(self.means), size=count)]
        return centres + self.width * rng.standard_normal(centres.shape)

    def log_density(
        self, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"]
    ) -> Float[np.ndarray, " count"]:
        r"""Return $\log p_t(x)$ of the diffused mixture."""
        exponents, variance = self._exponents(times, points)
        total = np.logaddexp.reduce(exponents, axis=1)
        return total - np.log(len(self.means)) - self.dimension / 2 * np.log(2 * np.pi * variance)

    def denoiser(
        self, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"]
    ) -> Float[np.ndarray, "count dimension"]:
        r"""Return $f_*(t,x)=E[x_0|x_t=x]=\sum_kq_k[\mu_k+\frac{\alpha s^2}v(x-\alpha\mu_k)]$, the true label."""
        exponents, variance = self._exponents(times, points)
        means, signal = _softmax(exponents) @ np.array(self.means), self.schedule.signal(times)[:, None]
        return means + signal * self.width**2 / variance[:, None] * (points - signal * means)

    def label_spread(
        self, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"]
    ) -> Float[np.ndarray, " count"]:
        r"""Return how far noisy labels scatter around the true one, $\sqrt{E[\|x_0-f_*(t,x)\|^2\,|\,x_t=x]}$.

        Within a mode the label has variance $s^2\beta/v$ per coordinate; across modes the centres differ too.
        """
        exponents, variance = self._exponents(times, points)
        signal, share = self.schedule.signal(times)[:, None, None], _softmax(exponents)[:, :, None]
        means = np.array(self.means)
        centres = means + signal * self.width**2 / variance[:, None, None] * (points[:, None] - signal * means)
        middle = (share * centres).sum(axis=1, keepdims=True)
        between = (share * (centres - middle) ** 2).sum(axis=(1, 2))
        return np.sqrt(between + self.dimension * self.width**2 * self.schedule.noise(times) / variance)

    def quantiles(self, time: float, count: int) -> Float[np.ndarray, " count"]:
        r"""Return the quantiles at the levels $(i-\frac12)/$count of noisy points of one dimension, to three digits.

        They stand for an ideal sample: what a sampler's particles are compared with.

        Raises:
            ValueError: If the mixture is not one-dimensional, or there are none.
        """
        from scipy.special import ndtr

        if self.dimension != 1 or count < 1:
            raise ValueError(f"expected one dimension and at least 1 quantile, got {self.dimension} and {count}")
        signal, deviation = self.schedule.signal(self.schedule.check(time)), np.sqrt(self._variance(time))
        centres = signal * np.array(self.means)[:, 0]
        reach = np.abs(centres).max() + 6 * deviation
        grid = np.linspace(-reach, reach, 4001)
        below = ndtr((grid[:, None] - centres) / deviation).mean(axis=1)
        return np.interp((np.arange(count) + 0.5) / count, below, grid)

    def modes(self, time: float, deviations: float = 2.0) -> tuple[Float[np.ndarray, "modes dimension"], float]:
        """Return the centres of the noisy modes at a time, and some of their standard deviations; default two."""
        radius = deviations * np.sqrt(self._variance(self.schedule.check(time)))
        return self.schedule.signal(time) * np.array(self.means), float(radius)

    def share_near(self, time: float, points: Float[np.ndarray, "count dimension"]) -> float:
        """Return the share of points that lie within two standard deviations of a noisy mode."""
        centres, radius = self.modes(time)
        return float((np.linalg.norm(points[:, None, :] - centres, axis=2).min(axis=1) < radius).mean())

    def _variance(self, times: np.ndarray | float) -> np.ndarray:
        return np.asarray(self.schedule.signal(times) ** 2 * self.width**2 + self.schedule.noise(times))

    def _exponents(self, times: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""$-\|x-\alpha\mu_k\|^2/2v$ for each point and mode, and the variances $v$."""
        t = self.schedule.check(times)
        if points.shape != (len(t), self.dimension):
            raise ValueError(f"points: expected (times, dimension) = {(len(t), self.dimension)}, got {points.shape}")
        gaps = points[:, None, :] - self.schedule.signal(t)[:, None, None] * np.array(self.means)
        return -(gaps**2).sum(axis=2) / (2 * self._variance(t)[:, None]), self._variance(t)


def _softmax(exponents: np.ndarray) -> np.ndarray:
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
