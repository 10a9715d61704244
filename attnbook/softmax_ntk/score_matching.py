r"""Score matching as regression on noisy labels: the forward process, training sets, stopping.

========================  =====================  ================================================
paper                     name here              meaning
========================  =====================  ================================================
$g(t)$                    ``Schedule.rate``      rate of the noise; the paper leaves it open
$\alpha(t)$, $\beta(t)$   ``signal``, ``noise``  $x_t|x_0\sim N(\alpha x_0,\beta I)$
$T_0$, $T$                ``first``, ``last``    times that are used
$f_*(t,x)=E[x_0|x_t=x]$   ``denoised``           the true label; what a denoiser answers
$\frac{\alpha f-x}\beta$  ``Schedule.score``     the score that belongs to a denoiser $f$
========================  =====================  ================================================

In the text available to us the equations are missing: all formulas are our reconstruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = ["NoisySample", "Schedule", "StoppingRule"]

Points: TypeAlias = Float[np.ndarray, "count dimension"]
Times: TypeAlias = Float[np.ndarray, "*times"]


@dataclass(frozen=True)
class Schedule:
    r"""The variance preserving process $dx=-\frac12g(t)x\,dt+\sqrt{g(t)}\,dB$ with $g(t)=g_0+g_1t$.

    Times outside $[T_0,T]$ raise ValueError where points are drawn or scores asked for.

    Attributes:
        base: $g_0$; default 0.1.
        slope: $g_1$; default 4, so that most noise comes late and small times are well resolved.
        first: $T_0$: at time 0 the score need not exist. Default 0.05.
        last: $T$; default 1.5, where a tenth of the signal is left.

    Example:
        >>> schedule = Schedule()
        >>> bool(np.allclose(schedule.signal(0.5) ** 2 + schedule.noise(0.5), 1))
        True
    """

    base: float = 0.1
    slope: float = 4.0
    first: float = 0.05
    last: float = 1.5

    def __post_init__(self) -> None:
        if min(self.base, self.slope) < 0 or self.base + self.slope <= 0:
            raise ValueError(f"base, slope: expected a rate > 0, got {self.base}, {self.slope}")
        if not 0 < self.first < self.last < np.inf:
            raise ValueError(f"first, last: expected 0 < first < last, got {self}")

    def rate(self, times: Times | float) -> Times:
        """Return $g(t)$."""
        return np.asarray(self.base + self.slope * np.asarray(times, dtype=float))

    def signal(self, times: Times | float) -> Times:
        r"""Return $\alpha(t)=e^{-\frac12\int_0^tg}$, what is left of the data."""
        return np.asarray(np.exp(-self._added(times) / 2))

    def noise(self, times: Times | float) -> Times:
        r"""Return $\beta(t)=1-\alpha(t)^2$, the variance of the noise."""
        return np.asarray(-np.expm1(-self._added(times)))

    def check(self, times: Times | float) -> Times:
        """Return times as an array, or refuse those outside $[T_0,T]$.

        Raises:
            ValueError: If a time is outside; names the first such time.
        """
        t = np.asarray(times, dtype=float)
        outside = ~((t >= self.first - 1e-12) & (t <= self.last + 1e-12))
        if outside.any():
            raise ValueError(
                f"times: expected times from {self.first:g} to {self.last:g}, got "
                f"{t[outside].flat[0]:g}; choose others, or a schedule with other first and last"
            )
        return t

    def noised(self, clean: Points, *, rng: np.random.Generator) -> NoisySample:
        r"""Return each clean point at a time of its own, $x_t=\alpha(t)x_0+\sqrt{\beta(t)}\,\xi$.

        Args:
            clean: Clean points $x_0$.
            rng: Source of the times, uniform on $[T_0,T]$, and of the standard normal $\xi$.

        Returns:
            The training set.
        """
        times = rng.uniform(self.first, self.last, len(clean))
        t, noise = times[:, None], rng.standard_normal(clean.shape)
        points = self.signal(t) * clean + np.sqrt(self.noise(t)) * noise
        return NoisySample(times, clean, points)

    def score(self, denoised: Points, times: Times, points: Points) -> Points:
        r"""Return the score of a denoiser's answers, by Tweedie's formula: $(\alpha f-x)/\beta$.

        Example:
            >>> t, x = np.array([0.5]), np.array([[2.0]])
            >>> schedule = Schedule()
            >>> schedule.score(schedule.signal(t)[:, None] * x, t, x).round(9).tolist()
            [[-2.0]]
        """
        t = self.check(times)[:, None]
        return (self.signal(t) * denoised - points) / self.noise(t)

    def _added(self, times: Times | float) -> Times:
        t = np.asarray(times, dtype=float)
        return np.asarray(self.base * t + self.slope * t**2 / 2)


@dataclass(frozen=True)
class NoisySample:
    """A training set of denoising score matching.

    Attributes:
        times: One time per sample.
        clean: Noisy labels $x_0$: where the sample really came from.
        points: Noisy points $x_t$.
    """

    times: Float[np.ndarray, " count"]
    clean: Points
    points: Points


@dataclass(frozen=True)
class StoppingRule:
    """The steps that are recorded, and the rule that stops training by held-out noisy labels.

    Training goes on while their loss falls. It ends when ``patience`` times as many steps as the
    best record took have brought nothing better, and then returns to that record.

    Attributes:
        last: The last step that is recorded.
        budget: Step at which the rule gives up in any case; default 10000.
        patience: Above 1; default 4.

    Example:
        >>> rule = StoppingRule(4)
        >>> rule.recorded, rule.stop(np.array([3.0, 1.0, 2.0, 2.5]))
        ([1, 2, 3, 4], 2)
    """

    last: int
    budget: int = 10_000
    patience: float = 4.0

    def __post_init__(self) -> None:
        if not self.patience > 1:
            raise ValueError(f"patience: expected more than 1, got {self.patience}")

    @property
    def recorded(self) -> list[int]:
        """Steps from 1 to the last, eight to a factor of ten."""
        count = round(8 * np.log10(self.last)) + 1
        return np.unique(np.round(np.geomspace(1, self.last, count)).astype(int)).tolist()

    def stop(self, losses: np.ndarray) -> int:
        """Return the step that held-out losses at the recorded steps choose within the budget.

        Raises:
            ValueError: If there is not one loss for each recorded step.
        """
        steps = self.recorded
        if losses.shape != (len(steps),):
            raise ValueError(f"losses: expected {len(steps)}, one a record, got {losses.shape}")
        best = 0
        for record, step in enumerate(steps):
            if step > min(self.budget, self.patience * steps[best]):
                break
            if losses[record] < losses[best]:
                best = record
        return steps[best]
