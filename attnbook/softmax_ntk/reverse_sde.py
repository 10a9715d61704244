r"""The backward process of section 6, which turns noise into samples once the score is known.

$dy=\big[\frac12g(T-t)\,y+g(T-t)\,\nabla\log p_{T-t}(y)\big]dt+\sqrt{g(T-t)}\,d\bar B$ from $y\sim N(0,I)$, by the
method of Euler and Maruyama. It ends at $T_0>0$, so that samples belong beside $p_{T_0}$, not beside the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.softmax_ntk.score_matching import Schedule, tweedie_score

__all__ = ["Denoiser", "look_up", "reverse_times", "sample", "wasserstein"]

Denoiser: TypeAlias = Callable[[float, np.ndarray], np.ndarray]
"""(time, points ``(count, dimension)``) to denoised points of the same shape: an estimate of $E[x_0|x_t]$."""


def reverse_times(n_steps: int, *, schedule: Schedule) -> Float[np.ndarray, " records"]:
    r"""Return the times that the backward process visits, $T_0+(T-T_0)u^{1.5}$ with $u$ falling from 1 to 0.

    The power refines the grid near $T_0$, where the score is sharp.

    Args:
        n_steps: Number of steps, at least 1.
        schedule: Gives $T_0$ and $T$.

    Returns:
        One time more than there are steps, falling from $T$ to $T_0$.

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


def sample(
    denoiser: Denoiser,
    count: int,
    *,
    dimension: int,
    rng: np.random.Generator,
    schedule: Schedule,
    n_steps: int = 150,
) -> Float[np.ndarray, "count dimension"]:
    """Draw samples by running the backward process with the score that belongs to a denoiser.

    Args:
        denoiser: Estimate of the clean point, called with one time and all particles.
        count: Number of particles, at least 1.
        dimension: Dimension of the data, at least 1.
        rng: Source of randomness.
        schedule: Rate of the noise.
        n_steps: Number of steps; default 150.

    Returns:
        Particles at the end.

    Raises:
        ValueError: If a number is outside its range or the denoiser's answer has another shape.
        FloatingPointError: If a particle becomes NaN or infinite; names the time.
    """
    if count < 1 or dimension < 1:
        raise ValueError(f"count, dimension: expected at least 1, got {count} and {dimension}")
    times = reverse_times(n_steps, schedule=schedule)
    now = rng.standard_normal((count, dimension))
    for time, following in pairwise(times):
        denoised = np.asarray(denoiser(float(time), now), dtype=np.float64)
        if denoised.shape != now.shape:
            raise ValueError(f"denoiser: expected an answer of shape {now.shape}, got {denoised.shape}")
        score = tweedie_score(denoised, np.full(count, time), now, schedule=schedule)
        growth = float(schedule.rate(time)) * (time - following)
        now = now + growth * (now / 2 + score) + np.sqrt(growth) * rng.standard_normal(now.shape)
        if not np.isfinite(now).all():
            raise FloatingPointError(
                f"sampling: a particle left the finite numbers at time {time:g}; check the denoiser"
            )
    return now


def look_up(grid: Float[np.ndarray, " points"], table: Mapping[float, Float[np.ndarray, " points"]]) -> Denoiser:
    """Return the denoiser on a line that looks its answers up in a table, and interpolates linearly.

    At one time a denoiser of one dimension is a function on a line: a few hundred points take the place of thousands
    of particles. Beyond the grid it repeats the last answer, as a network does whose inputs are clipped there.

    Args:
        grid: Increasing points of the line.
        table: Time to the answers at these points.

    Returns:
        The denoiser; it raises ``KeyError`` for times that the table does not hold.
    """
    return lambda time, at: np.interp(at[:, 0], grid, table[time])[:, None]


def wasserstein(samples: Float[np.ndarray, " count"], reference: Float[np.ndarray, " others"]) -> float:
    r"""Return the distance $W_1$ between two samples on a line: how far mass has to be moved, on average.

    Args:
        samples: Numbers.
        reference: Other numbers; both samples are read as quantile functions, so sizes may differ.

    Returns:
        The distance, in the unit of the numbers.

    Raises:
        ValueError: If a sample is empty.

    Example:
        >>> wasserstein(np.array([1.0, 0.0]), np.array([2.0, 1.0]))
        1.0
    """
    if not len(samples) or not len(reference):
        raise ValueError(f"samples, reference: expected numbers, got {len(samples)} and {len(reference)} of them")
    first, second = np.sort(samples), np.sort(reference)
    levels = np.unique(np.concatenate([np.arange(1, len(x) + 1) / len(x) for x in (first, second)]))
    heights = np.diff(levels, prepend=0.0)
    middles = levels - heights / 2
    at = [x[np.minimum((middles * len(x)).astype(int), len(x) - 1)] for x in (first, second)]
    return float(heights @ np.abs(at[0] - at[1]))
