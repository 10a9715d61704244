r"""Score matching as regression on noisy labels: the forward process, training sets, inputs, and where to stop.

========================  =====================  ==========================================================
paper                     name here              meaning
========================  =====================  ==========================================================
$g(t)$                    ``Schedule.rate``      rate of the noise; $0.1+4t$ here, the paper leaves it open
$\alpha(t)$, $\beta(t)$   ``signal``, ``noise``  $x_t|x_0\sim N(\alpha x_0,\beta I)$, $\beta=1-\alpha^2$
$T_0$, $T$                ``first``, ``last``    times that are used
$f_*(t,x)=E[x_0|x_t=x]$   ``denoised``           the true label; what a denoiser answers
$\frac{\alpha f-x}\beta$  ``Schedule.score``     the score that belongs to a denoiser $f$
========================  =====================  ==========================================================

In the text available to us the equations are missing: all formulas are our reconstruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive

__all__ = ["NoisySample", "Schedule", "StoppingRule", "draw_noisy_sample", "held_out_stop", "network_input"]


@dataclass(frozen=True)
class Schedule:
    r"""The variance preserving forward process $dx=-\frac12g(t)x\,dt+\sqrt{g(t)}\,dB$ with $g(t)=g_0+g_1t$.

    Times outside $[T_0,T]$ raise ValueError where points are drawn or scores asked for.

    Attributes:
        base: $g_0$; default 0.1.
        slope: $g_1$; default 4, so that most noise comes late and small times are well resolved.
        first: $T_0$, the first time that is used: at time 0 the score need not exist. Default 0.05.
        last: $T$, the last time; default 1.5, where a tenth of the signal is left.

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
        if self.base < 0 or self.slope < 0 or self.base + self.slope <= 0:
            raise ValueError(f"base, slope: expected a rate g0 + g1 t that is positive, got {self.base}, {self.slope}")
        if not 0 < self.first < self.last < float("inf"):
            raise ValueError(f"first, last: expected times 0 < first < last, got {self.first} and {self.last}")

    def rate(self, times: Float[np.ndarray, "*times"] | float) -> Float[np.ndarray, "*times"]:
        """Return $g(t)$."""
        return np.asarray(self.base + self.slope * np.asarray(times, dtype=np.float64))

    def signal(self, times: Float[np.ndarray, "*times"] | float) -> Float[np.ndarray, "*times"]:
        r"""Return $\alpha(t)=e^{-\frac12\int_0^tg}$, what is left of the data."""
        t = np.asarray(times, dtype=np.float64)
        return np.asarray(np.exp(-(self.base * t + self.slope * t**2 / 2) / 2))

    def noise(self, times: Float[np.ndarray, "*times"] | float) -> Float[np.ndarray, "*times"]:
        r"""Return $\beta(t)=1-\alpha(t)^2$, the variance of the noise."""
        t = np.asarray(times, dtype=np.float64)
        return np.asarray(-np.expm1(-(self.base * t + self.slope * t**2 / 2)))

    def check(self, times: Float[np.ndarray, "*times"] | float) -> Float[np.ndarray, "*times"]:
        """Return times as an array, or refuse those outside $[T_0,T]$.

        Raises:
            ValueError: If a time lies outside; names the first such time.
        """
        t = np.asarray(times, dtype=np.float64)
        outside = ~((t >= self.first - 1e-12) & (t <= self.last + 1e-12))
        if outside.any():
            raise ValueError(
                f"times: expected times from {self.first:g} to {self.last:g}, got {t[outside].flat[0]:g}; "
                "choose other times, or a schedule with other first and last"
            )
        return t

    def diffuse(
        self,
        clean: Float[np.ndarray, "count dimension"],
        times: Float[np.ndarray, " count"],
        *,
        rng: np.random.Generator,
    ) -> Float[np.ndarray, "count dimension"]:
        r"""Return $x_t=\alpha(t)x_0+\sqrt{\beta(t)}\,\xi$ with standard normal $\xi$: the forward process at once."""
        t = self.check(times)[:, None]
        return self.signal(t) * clean + np.sqrt(self.noise(t)) * rng.standard_normal(clean.shape)

    def score(
        self,
        denoised: Float[np.ndarray, "count dimension"],
        times: Float[np.ndarray, " count"],
        points: Float[np.ndarray, "count dimension"],
    ) -> Float[np.ndarray, "count dimension"]:
        r"""Return the score of a denoiser's answers by Tweedie's formula, $(\alpha f(t,x)-x)/\beta$.

        Example:
            >>> t, x = np.array([0.5]), np.array([[2.0]])
            >>> schedule = Schedule()
            >>> schedule.score(schedule.signal(t)[:, None] * x, t, x).round(9).tolist()
            [[-2.0]]
        """
        t = self.check(times)[:, None]
        return (self.signal(t) * denoised - points) / self.noise(t)

    def linear_slope(
        self, second_moment: float, times: Float[np.ndarray, "*times"] | float
    ) -> Float[np.ndarray, "*times"]:
        r"""Return the slope of the best denoiser linear in $x$, $\alpha v/(\alpha^2v+\beta)$, for data of mean 0.

        It needs one number of the data, the mean square $v$ of a coordinate, which must be positive: to the backward
        process all of it is then one normal heap.

        Example:
            >>> float(Schedule().linear_slope(1.0, 0.5)) == float(Schedule().signal(0.5))
            True
        """
        check_positive(second_moment=second_moment)
        signal = self.signal(self.check(times))
        return np.asarray(signal * second_moment / (signal**2 * second_moment + self.noise(times)))


def network_input(
    points: Float[np.ndarray, "count dimension"],
    times: Float[np.ndarray, " count"],
    *,
    schedule: Schedule,
    radius: float = 2.5,
) -> Float[np.ndarray, "count inputs"]:
    r"""Return the network's inputs $(0.8\,\mathrm{clip}(x)/r,\;0.42\,(2t/T-1),\;0.42)$, of norm below one.

    Assumption 6.1 asks for inputs of norm at most one, which normal noise never satisfies. So points longer than $r$
    are pulled back to length $r$ along their direction (our reading), and everything is scaled; the default, 2.5,
    touches about one point in a hundred in one dimension. The last coordinate is constant: a paired network without one
    is zero at $x=0$ whatever its weights.

    Example:
        >>> x = network_input(np.array([[100.0]]), np.array([1.5]), schedule=Schedule())
        >>> bool(np.linalg.norm(x) < 1)
        True
    """
    check_positive(radius=radius)
    t = schedule.check(times)
    length = np.linalg.norm(points, axis=1, keepdims=True)
    inside = points * np.minimum(1.0, radius / np.maximum(length, 1e-300))
    clock = 0.42 * (2 * t / schedule.last - 1)
    return np.column_stack([0.8 * inside / radius, clock, np.full_like(t, 0.42)])


@dataclass(frozen=True)
class NoisySample:
    """A training set of denoising score matching.

    Attributes:
        times: One time per sample.
        clean: Noisy labels $x_0$: where the sample really came from.
        points: Noisy points $x_t$.
    """

    times: Float[np.ndarray, " count"]
    clean: Float[np.ndarray, "count dimension"]
    points: Float[np.ndarray, "count dimension"]

    def before(self, time: float) -> NoisySample:
        """Return the samples of times up to one."""
        kept = self.times <= time
        return NoisySample(self.times[kept], self.clean[kept], self.points[kept])


def draw_noisy_sample(
    clean: Float[np.ndarray, "count dimension"], *, rng: np.random.Generator, schedule: Schedule
) -> NoisySample:
    """Return one time for each clean point, drawn uniformly from $[T_0,T]$, and the noisy point of that time."""
    times = rng.uniform(schedule.first, schedule.last, len(clean))
    return NoisySample(times, clean, schedule.diffuse(clean, times, rng=rng))


def held_out_stop(losses: Float[np.ndarray, " records"], steps: Sequence[int], *, patience: float) -> int:
    """Return the number of the record to which training returns if it sees the loss on held-out noisy labels only.

    Training goes on while the loss falls. It ends when ``patience`` times as many steps as the best one took have
    brought nothing better, and then returns to the best one.

    Args:
        losses: Held-out loss at the recorded steps.
        steps: Those steps, increasing and positive.
        patience: Above 1.

    Raises:
        ValueError: If the shapes do not fit or the patience is not above 1.

    Example:
        >>> losses = np.array([3.0, 2.0, 2.5, 1.0])
        >>> [held_out_stop(losses, [1, 2, 4, 8], patience=patience) for patience in (2.0, 4.0)]
        [1, 3]
    """
    if losses.shape != (len(steps),) or not len(steps):
        raise ValueError(f"losses: expected one for each of {len(steps)} steps, got {losses.shape}")
    if not patience > 1:
        raise ValueError(f"patience: expected more than 1, got {patience}")
    best = 0
    for record, (loss, step) in enumerate(zip(losses, steps, strict=True)):
        if step > patience * steps[best]:
            break
        if loss < losses[best]:
            best = record
    return best


@dataclass(frozen=True)
class StoppingRule:
    """The steps that are recorded, and the rule that stops training by held-out noisy labels.

    Attributes:
        last: The last step that is recorded.
        budget: Step at which the rule gives up in any case; default 10000.
        per_decade: Recorded steps per factor of ten; default 8.
        patience: How many times the steps of the best record may bring nothing better; default 4.

    Example:
        >>> rule = StoppingRule(100, 20, per_decade=2)
        >>> rule.recorded, rule.stop(np.array([3.0, 2.0, 2.5, 1.0, 0.5]))
        ([1, 3, 10, 32, 100], 3)
    """

    last: int
    budget: int = 10_000
    per_decade: int = 8
    patience: float = 4.0

    @property
    def recorded(self) -> list[int]:
        """Steps from 1 to the last, evenly spaced on a log axis."""
        count = round(self.per_decade * np.log10(self.last)) + 1
        return np.unique(np.round(np.geomspace(1, self.last, count)).astype(int)).tolist()

    def stop(self, losses: Float[np.ndarray, " records"]) -> int:
        """Return the step that held-out losses at the recorded steps choose within the budget."""
        within = [step for step in self.recorded if step <= self.budget]
        return within[held_out_stop(losses[: len(within)], within, patience=self.patience)]
