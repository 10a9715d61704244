r"""The backward process of section 6, which turns noise into samples once the score is known.

$dy=[\frac12g(T-s)\,y+g(T-s)\,\nabla\log p_{T-s}(y)]ds+\sqrt{g(T-s)}\,dB$ from $y\sim N(0,I)$, by
the method of Euler and Maruyama. It ends at $T_0>0$, so samples are compared with $p_{T_0}$.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from attnbook.softmax_ntk.score_matching import Points, Schedule

__all__ = ["Denoiser", "particles_back"]

Denoiser: TypeAlias = Callable[[float, np.ndarray], np.ndarray]
"""(time, points ``(count, dimension)``) to denoised points of the same shape."""


def particles_back(
    denoiser: Denoiser,
    count: int,
    *,
    dimension: int,
    rng: np.random.Generator,
    schedule: Schedule,
    n_steps: int = 150,
) -> Iterator[tuple[float, Points]]:
    """Yield each time of the backward process, and where its particles are.

    Times fall as $T_0+(T-T_0)u^{1.5}$ for evenly spaced $u$: finest where the score is sharp.

    Args:
        denoiser: Estimate of the clean point, called with one time and all particles.
        count: Number of particles, at least 1.
        dimension: Dimension of the data, at least 1.
        rng: Source of randomness.
        schedule: Rate of the noise.
        n_steps: Number of steps, at least 1; default 150.

    Yields:
        Times from the last to the first, one more than there are steps, and the particles.

    Raises:
        ValueError: If a number is outside its range or the denoiser's answer has another shape.
        FloatingPointError: If a particle becomes NaN or infinite; names the time.
    """
    sizes = count, dimension, n_steps
    if min(sizes) < 1:
        raise ValueError(f"count, dimension, n_steps: expected at least 1, got {sizes}")
    u = np.linspace(1.0, 0.0, n_steps + 1)
    times = schedule.first + (schedule.last - schedule.first) * u**1.5
    now = rng.standard_normal((count, dimension))
    yield times[0], now
    for time, following in pairwise(times):
        denoised = np.asarray(denoiser(time, now), dtype=float)
        if denoised.shape != now.shape:
            raise ValueError(f"denoiser: expected shape {now.shape}, got {denoised.shape}")
        score = schedule.score(denoised, np.full(count, time), now)
        growth = schedule.rate(time) * (time - following)
        noise = np.sqrt(growth) * rng.standard_normal(now.shape)
        now = now + growth * (now / 2 + score) + noise
        if not np.isfinite(now).all():
            raise FloatingPointError(f"denoiser: a particle is not finite after time {time:g}")
        yield following, now
