r"""The backward process of section 6, which turns noise into samples once the score is known.

$dy=\big[\frac12g(T-t)\,y+g(T-t)\,\nabla\log p_{T-t}(y)\big]dt+\sqrt{g(T-t)}\,d\bar B$ from $y\sim N(0,I)$, by the
method of Euler and Maruyama. It ends at $T_0>0$, so that samples belong beside $p_{T_0}$, not beside the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.softmax_ntk.score_matching import Schedule

__all__ = ["Denoiser", "particles_back", "reverse_times", "sample", "snapshots"]

Denoiser: TypeAlias = Callable[[float, np.ndarray], np.ndarray]
"""(time, points ``(count, dimension)``) to denoised points of the same shape: an estimate of $E[x_0|x_t]$."""


def reverse_times(n_steps: int, *, schedule: Schedule) -> Float[np.ndarray, " records"]:
    r"""Return the times that the backward process visits, $T_0+(T-T_0)u^{1.5}$ with $u$ falling from 1 to 0.

    There is one time more than there are steps; the power refines the grid near $T_0$, where the score is sharp.

    Raises:
        ValueError: If there is no step.

    Example:
        >>> reverse_times(4, schedule=Schedule(first=0.5, last=1.5))[[0, 3, 4]].tolist()
        [1.5, 0.625, 0.5]
    """
    if n_steps < 1:
        raise ValueError(f"n_steps: expected at least 1, got {n_steps}")
    u = np.linspace(1.0, 0.0, n_steps + 1)
    return schedule.first + (schedule.last - schedule.first) * u**1.5


def particles_back(
    denoiser: Denoiser, count: int, *, dimension: int, rng: np.random.Generator, schedule: Schedule, n_steps: int = 150
) -> Iterator[tuple[float, Float[np.ndarray, "count dimension"]]]:
    """Yield each time of the backward process and where its particles are, with the score that belongs to a denoiser.

    Args:
        denoiser: Estimate of the clean point, called with one time and all particles.
        count: Number of particles, at least 1.
        dimension: Dimension of the data, at least 1.
        rng: Source of randomness.
        schedule: Rate of the noise.
        n_steps: Number of steps; default 150.

    Yields:
        Times from the last to the first, one more than there are steps, and the particles.

    Raises:
        ValueError: If a number is outside its range or the denoiser's answer has another shape.
        FloatingPointError: If a particle becomes NaN or infinite; names the time.
    """
    if count < 1 or dimension < 1:
        raise ValueError(f"count, dimension: expected at least 1, got {count} and {dimension}")
    times = reverse_times(n_steps, schedule=schedule)
    now = rng.standard_normal((count, dimension))
    yield float(times[0]), now
    for time, following in pairwise(times):
        denoised = np.asarray(denoiser(float(time), now), dtype=np.float64)
        if denoised.shape != now.shape:
            raise ValueError(f"denoiser: expected an answer of shape {now.shape}, got {denoised.shape}")
        score = schedule.score(denoised, np.full(count, time), now)
        growth = float(schedule.rate(time)) * (time - following)
        now = now + growth * (now / 2 + score) + np.sqrt(growth) * rng.standard_normal(now.shape)
        if not np.isfinite(now).all():
            raise FloatingPointError(
                f"sampling: a particle left the finite numbers at time {time:g}; check the denoiser"
            )
        yield float(following), now


def snapshots(
    denoiser: Denoiser, at: Sequence[float], count: int, **options: Any
) -> Float[np.ndarray, "times count dimension"]:
    """Return where the particles of :func:`particles_back` are at some times, or at the nearest of its times.

    Args:
        denoiser: Estimate of the clean point.
        at: Times to look at, in any order.
        count: Number of particles.
        **options: The other arguments of :func:`particles_back`.

    Returns:
        The particles at each time.
    """
    way = list(particles_back(denoiser, count, **options))
    times = np.array([time for time, _ in way])
    return np.stack([way[np.abs(times - time).argmin()][1] for time in at])


def sample(denoiser: Denoiser, count: int, **options: Any) -> Float[np.ndarray, "count dimension"]:
    """Return where the particles of :func:`particles_back` end; it says what the arguments mean."""
    *_, (_, last) = particles_back(denoiser, count, **options)
    return last
