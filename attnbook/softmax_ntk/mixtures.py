r"""A Gaussian mixture under the forward process: density, score and denoiser in closed form.

With modes $\mu_k$ of equal weight and standard deviation $s$, the noisy points at time $t$ are again a mixture, with
modes $\alpha\mu_k$ and variance $v=\alpha^2s^2+\beta$. So the score that a network should learn is known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from attnbook.softmax_ntk.kernels import check_positive
from attnbook.softmax_ntk.score_matching import Schedule

__all__ = [
    "Mixture",
    "linear_slope",
    "mixture_denoiser",
    "mixture_label_spread",
    "mixture_log_density",
    "mixture_quantiles",
    "mixture_score",
]


@dataclass(frozen=True)
class Mixture:
    r"""Normal modes of equal weight and one width: $p_0=\frac1K\sum_kN(\mu_k,s^2I)$.

    Attributes:
        means: Centres of the modes, one row each, ``(modes, dimension)``.
        width: Standard deviation $s$ of each mode, positive.

    Example:
        >>> Mixture(((-0.6,), (0.6,)), 0.15).dimension
        1
    """

    means: tuple[tuple[float, ...], ...]
    width: float

    def __post_init__(self) -> None:
        if not self.means or len({len(mean) for mean in self.means}) != 1 or not self.means[0]:
            raise ValueError(f"means: expected modes of one dimension, at least one mode, got {self.means}")
        check_positive(width=self.width)

    @property
    def dimension(self) -> int:
        """Dimension of the data."""
        return len(self.means[0])

    def draw(self, count: int, *, rng: np.random.Generator) -> Float[np.ndarray, "count dimension"]:
        """Draw points.

        Args:
            count: Number of points, at least 1.
            rng: Source of randomness.

        Returns:
            One point per row.

        Raises:
            ValueError: If ``count`` is not positive.
        """
        if count < 1:
            raise ValueError(f"count: expected at least 1, got {count}")
        centres = np.array(self.means)[rng.integers(len(self.means), size=count)]
        return centres + self.width * rng.standard_normal(centres.shape)


def mixture_log_density(
    mixture: Mixture, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"], *,
    schedule: Schedule,
) -> Float[np.ndarray, " count"]:  # fmt: skip
    r"""Return $\log p_t(x)$ of the diffused mixture, modes at $\alpha\mu_k$ with variance $v=\alpha^2s^2+\beta$.

    Args:
        mixture: The data.
        times: One time per point, in $[T_0,T]$.
        points: Where.
        schedule: Rate of the noise.

    Returns:
        Logarithms of the density.

    Raises:
        ValueError: If a time lies outside $[T_0,T]$.
    """
    exponents, variance = _exponents(mixture, times, points, schedule)
    top = exponents.max(axis=1, keepdims=True)
    total = np.log(np.exp(exponents - top).sum(axis=1)) + top[:, 0]
    return total - np.log(len(mixture.means)) - mixture.dimension / 2 * np.log(2 * np.pi * variance)


def mixture_score(
    mixture: Mixture, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"], *,
    schedule: Schedule,
) -> Float[np.ndarray, "count dimension"]:  # fmt: skip
    r"""Return the exact score $\nabla\log p_t(x)=-\sum_kq_k\,(x-\alpha\mu_k)/v$.

    Here $q_k$ is the probability that $x$ comes from mode $k$ and $v=\alpha^2s^2+\beta$.

    Args:
        mixture: The data.
        times: One time per point, in $[T_0,T]$.
        points: Where.
        schedule: Rate of the noise.

    Returns:
        One score per point.

    Raises:
        ValueError: If a time lies outside $[T_0,T]$.

    Example:
        >>> one = Mixture(((0.0,),), 1.0)
        >>> mixture_score(one, np.array([0.5]), np.array([[2.0]]), schedule=Schedule()).tolist()
        [[-2.0]]
    """
    exponents, variance = _exponents(mixture, times, points, schedule)
    means = _softmax(exponents) @ np.array(mixture.means)
    return (schedule.signal(times)[:, None] * means - points) / variance[:, None]


def mixture_denoiser(
    mixture: Mixture, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"], *,
    schedule: Schedule,
) -> Float[np.ndarray, "count dimension"]:  # fmt: skip
    r"""Return $f_*(t,x)=E[x_0|x_t=x]=\sum_kq_k\big[\mu_k+\frac{\alpha s^2}v(x-\alpha\mu_k)\big]$, the true label.

    Args:
        mixture: The data.
        times: One time per point, in $[T_0,T]$.
        points: Where.
        schedule: Rate of the noise.

    Returns:
        One denoised point per point.

    Raises:
        ValueError: If a time lies outside $[T_0,T]$.
    """
    exponents, variance = _exponents(mixture, times, points, schedule)
    means, signal = _softmax(exponents) @ np.array(mixture.means), schedule.signal(times)[:, None]
    return means + signal * mixture.width**2 / variance[:, None] * (points - signal * means)


def mixture_quantiles(mixture: Mixture, time: float, count: int, *, schedule: Schedule) -> Float[np.ndarray, " count"]:
    r"""Return the quantiles of a diffused one-dimensional mixture at the levels $(i-\frac12)/$count.

    They stand for an ideal sample: what a sampler's particles are compared with.

    Args:
        mixture: The data, of dimension 1.
        time: One time, in $[T_0,T]$.
        count: Number of quantiles, at least 1.
        schedule: Rate of the noise.

    Returns:
        Increasing numbers, right to about three digits.

    Raises:
        ValueError: If the mixture is not one-dimensional, the time lies outside $[T_0,T]$ or ``count`` is below 1.
    """
    if mixture.dimension != 1:
        raise ValueError(f"mixture: expected one dimension, got {mixture.dimension}")
    if count < 1:
        raise ValueError(f"count: expected at least 1, got {count}")
    signal, variance = _signal_and_variance(mixture, schedule.check(time), schedule)
    centres = signal * np.array(mixture.means)[:, 0]
    reach = np.abs(centres).max() + 6 * np.sqrt(variance)
    grid = np.linspace(-reach, reach, 4001)
    below = torch.special.ndtr(torch.as_tensor((grid[:, None] - centres) / np.sqrt(variance))).mean(dim=1).numpy()
    return np.interp((np.arange(count) + 0.5) / count, below, grid)


def mixture_label_spread(
    mixture: Mixture, times: Float[np.ndarray, " count"], points: Float[np.ndarray, "count dimension"], *,
    schedule: Schedule,
) -> Float[np.ndarray, " count"]:  # fmt: skip
    r"""Return how far noisy labels scatter around the true one, $\sqrt{E[\|x_0-f_*(t,x)\|^2\,|\,x_t=x]}$.

    Within a mode the label has variance $s^2\beta/v$ per coordinate; across modes the centres differ too.

    Args:
        mixture: The data.
        times: One time per point, in $[T_0,T]$.
        points: Where.
        schedule: Rate of the noise.

    Returns:
        Standard deviations.

    Raises:
        ValueError: If a time lies outside $[T_0,T]$.

    Example:
        >>> one = Mixture(((0.0,),), 1.0)
        >>> t = np.array([0.5])
        >>> spread = mixture_label_spread(one, t, np.array([[2.0]]), schedule=Schedule())
        >>> bool(np.isclose(spread**2, Schedule().noise(t)).all())
        True
    """
    exponents, variance = _exponents(mixture, times, points, schedule)
    signal, share = schedule.signal(times)[:, None, None], _softmax(exponents)[:, :, None]
    means = np.array(mixture.means)
    centres = means + signal * mixture.width**2 / variance[:, None, None] * (points[:, None] - signal * means)
    middle = (share * centres).sum(axis=1, keepdims=True)
    between = (share * (centres - middle) ** 2).sum(axis=(1, 2))
    return np.sqrt(between + mixture.dimension * mixture.width**2 * schedule.noise(times) / variance)


def linear_slope(
    second_moment: float, times: Float[np.ndarray, "*times"] | float, *, schedule: Schedule
) -> Float[np.ndarray, "*times"]:
    r"""Return the slope of the best denoiser linear in $x$, $\alpha v/(\alpha^2v+\beta)$, for data of mean 0.

    It needs one number of the data: to the backward process all of it is then one normal heap.

    Args:
        second_moment: $v$, the mean square of a coordinate of the data, positive.
        times: Times in $[T_0,T]$.
        schedule: Rate of the noise.

    Returns:
        One slope per time.

    Raises:
        ValueError: If a time lies outside $[T_0,T]$ or the second moment is not positive.

    Example:
        >>> schedule = Schedule()
        >>> float(linear_slope(1.0, 0.5, schedule=schedule)) == float(schedule.signal(0.5))
        True
    """
    check_positive(second_moment=second_moment)
    t = schedule.check(times)
    signal = schedule.signal(t)
    return np.asarray(signal * second_moment / (signal**2 * second_moment + schedule.noise(t)))


def _signal_and_variance(mixture: Mixture, times: np.ndarray, schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    signal = schedule.signal(times)
    return signal, signal**2 * mixture.width**2 + schedule.noise(times)


def _exponents(
    mixture: Mixture, times: np.ndarray, points: np.ndarray, schedule: Schedule
) -> tuple[np.ndarray, np.ndarray]:
    r"""$-\|x-\alpha\mu_k\|^2/2v$ for each point and mode, and the variances $v$."""
    t = schedule.check(times)
    if points.shape != (len(t), mixture.dimension):
        raise ValueError(f"points: expected (times, dimension) = {(len(t), mixture.dimension)}, got {points.shape}")
    signal, variance = _signal_and_variance(mixture, t, schedule)
    gaps = points[:, None, :] - signal[:, None, None] * np.array(mixture.means)
    return -(gaps**2).sum(axis=2) / (2 * variance[:, None]), variance


def _softmax(exponents: np.ndarray) -> np.ndarray:
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
