r"""The backward process of section 6, which turns noise into samples once the score is known.

$dy=\big[\frac12g(T-t)\,y+g(T-t)\,\nabla\log p_{T-t}(y)\big]dt+\sqrt{g(T-t)}\,d\bar B$ from $y\sim N(0,I)$, by the
method of Euler and Maruyama. It ends at $T_0>0$, so that samples belong beside $p_{T_0}$, not beside the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.softmax_ntk.kernels import check_positive
from attnbook.softmax_ntk.score_matching import Schedule, tweedie_score

__all__ = ["Denoiser", "look_up", "reverse_times", "sample", "tabulate", "wasserstein"]

Denoiser: TypeAlias = Callable[[float, np.ndarray], np.ndarray]
"""(time, points ``(count, dimension)``) to denoised points of the same shape: an estimate of $E[x_0|x_t]$."""


def reverse_times(n_steps: int, *, schedule: Schedule, power: float = 1.5) -> Float[np.ndarray, " records"]:
    r"""Return the times that the backward process visits, $T_0+(T-T_0)u^{1.5}$ with $u$ falling from 1 to 0.

    Args:
        n_steps: Number of steps, at least 1.
        schedule: Gives $T_0$ and $T$.
        power: Refines the grid near $T_0$ when above 1, where the score is sharp; positive, default 1.5.

    Returns:
        One time more than there are steps, falling from $T$ to $T_0$.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> reverse_times(2, schedule=Schedule(first=0.5, last=1.5), power=2.0).tolist()
        [1.5, 0.75, 0.5]
    """
    if n_steps < 1:
        raise ValueError(f"n_steps: expected at least 1, got {n_steps}")
    check_positive(power=power)
    u = np.linspace(1.0, 0.0, n_steps + 1)
    return schedule.first + (schedule.last - schedule.first) * u**power


def sample(
    denoiser: Denoiser,
    count: int,
    *,
    dimension: int,
    rng: np.random.Generator,
    schedule: Schedule,
    n_steps: int = 150,
    keep: Sequence[int] = (),
) -> tuple[Float[np.ndarray, "count dimension"], Float[np.ndarray, "kept count dimension"]]:
    """Draw samples by running the backward process with the score that belongs to a denoiser.

    Args:
        denoiser: Estimate of the clean point, called with one time and all particles.
        count: Number of particles, at least 1.
        dimension: Dimension of the data, at least 1.
        rng: Source of randomness.
        schedule: Rate of the noise.
        n_steps: Number of steps; default 150.
        keep: Steps after which to keep the particles, 0 for the start; default none.

    Returns:
        Particles at the end, and those kept.

    Raises:
        ValueError: If a number is outside its range or the denoiser's answer has another shape.
        FloatingPointError: If a particle becomes NaN or infinite; names the time.
    """
    if count < 1 or dimension < 1:
        raise ValueError(f"count, dimension: expected at least 1, got {count} and {dimension}")
    if any(not 0 <= step <= n_steps for step in keep):
        raise ValueError(f"keep: expected steps from 0 to {n_steps}, got {tuple(keep)}")
    times = reverse_times(n_steps, schedule=schedule)
    now = rng.standard_normal((count, dimension))
    kept = {0: now}
    for step, (time, following) in enumerate(pairwise(times), 1):
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
        if step in keep:
            kept[step] = now
    return now, np.array([kept[step] for step in keep]).reshape(len(keep), count, dimension)


def tabulate(denoiser: Denoiser, times: Float[np.ndarray, " times"], *, reach: float, points: int = 501) -> Denoiser:
    """Return a one-dimensional denoiser that looks its answers up instead of computing them for each particle.

    At one time a denoiser of one dimension is a function on a line: a few hundred points and linear interpolation
    take the place of thousands of particles. Beyond ``reach`` the answer is that at ``reach``, as for a network whose
    inputs are clipped there.

    Args:
        denoiser: The denoiser to tabulate.
        times: The times it will be asked for.
        reach: Largest distance from 0 in the table, positive.
        points: Number of points of the table, at least 2; default 501.

    Returns:
        The table as a denoiser; it raises ``KeyError`` for a time it does not hold.

    Raises:
        ValueError: If a number is outside its range.
    """
    check_positive(reach=reach)
    if points < 2:
        raise ValueError(f"points: expected at least 2, got {points}")
    grid = np.linspace(-reach, reach, points)
    return look_up(grid, {float(time): denoiser(float(time), grid[:, None])[:, 0] for time in times})


def look_up(grid: Float[np.ndarray, " points"], table: Mapping[float, Float[np.ndarray, " points"]]) -> Denoiser:
    """Return the denoiser that interpolates a table linearly.

    Args:
        grid: Increasing points of the line.
        table: Time to the answers at these points.

    Returns:
        The denoiser; beyond the grid it repeats the last answer, and it raises ``KeyError`` for other times.
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
