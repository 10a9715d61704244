r"""What the theorem promises and asks for, evaluated at measured starts or at given sizes, for figures and tables.

The readings of :mod:`~attnbook.multi_head.readings`, and ``tracked``: this book's, with the dimension-free
constant, every head tracked by itself and the target at $\sqrt2\,g_0(1/K)$.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from jaxtyping import Float

from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head.certificate import heads_for, tracked_heads
from attnbook.multi_head.convergence_bounds import GoodStart
from attnbook.multi_head.experiments.training_bounds import TrainingBounds
from attnbook.multi_head.readings import HEADS, STEP_SIZES

__all__ = ["READINGS", "bounds", "demands", "heads", "step_size"]

READINGS = (*STEP_SIZES, "tracked")


def bounds(result: TrainingBounds, steps: Sequence[float] | np.ndarray) -> dict[str, Float[np.ndarray, "seeds steps"]]:
    """Return the bound of Corollary 2 at the widest networks, at the practical and at the allowed step sizes.

    Args:
        result: Measured starts.
        steps: Numbers of steps.

    Returns:
        ``practical`` and the readings of :data:`~attnbook.multi_head.readings.STEP_SIZES`.
    """
    n_heads, eta = result.settings.heads[-1], result.settings.step_size
    rates = {"practical": lambda start, k, n_heads: eta, **STEP_SIZES}
    starts = [row[-1] for row in result.starts]
    return {
        name: np.array([[theory.final_bound(start, k, rate(start, k, n_heads)) for k in steps] for start in starts])
        for name, rate in rates.items()
    }


def heads(start: GoodStart, steps: float, *, start_head_norm: float) -> dict[str, float]:
    """Return how many heads each reading asks for.

    Args:
        start: The start.
        steps: Number of steps.
        start_head_norm: Norm of the largest head at the start, before it is raised to 1.

    Returns:
        Reading to number of heads.
    """
    far = 2**0.5 * theory.target_distance(start, steps)
    tracked = heads_for(
        far,
        n_tokens=start.n_tokens,
        dimension=start.dimension,
        token_norm=start.token_norm,
        start_head_norm=start_head_norm,
    )
    return {**{name: of(start, steps) for name, of in HEADS.items()}, "tracked": tracked}


def step_size(start: GoodStart, steps: float, reading: str, *, n_heads: float, start_head_norm: float) -> float:
    """Return the step size that a reading allows.

    Args:
        start: The start.
        steps: Number of steps.
        reading: One of :data:`READINGS`.
        n_heads: Number of heads.
        start_head_norm: Norm of the largest head at the start, before it is raised to 1.

    Returns:
        The step size.

    Raises:
        ValueError: If the reading is unknown.
    """
    if reading not in READINGS:
        raise ValueError(f"reading: expected one of {', '.join(READINGS)}, got {reading!r}")
    if reading in STEP_SIZES:
        return STEP_SIZES[reading](start, steps, n_heads)
    allowed = tracked_heads(
        n_tokens=start.n_tokens,
        dimension=start.dimension,
        n_heads=n_heads,
        token_norm=start.token_norm,
        start_head_norm=start_head_norm,
    )
    return allowed.step_size


def demands(start: GoodStart, steps: float, *, start_head_norm: float) -> dict[str, dict[str, float]]:
    r"""Return what each reading asks for.

    Args:
        start: The start.
        steps: Number of steps at which heads and step size are asked for.
        start_head_norm: Norm of the largest head at the start, before it is raised to 1.

    Returns:
        Reading to ``heads``, ``step_size`` (with this many heads) and ``steps`` after which the bound on the loss,
        at the step size allowed for these steps, is below $\log2$.
    """
    found = {}
    for reading, n_heads in heads(start, steps, start_head_norm=start_head_norm).items():
        rate = partial(step_size, start, reading=reading, n_heads=n_heads, start_head_norm=start_head_norm)
        stretch = 2**0.5 if reading == "tracked" else 1.0

        def bound(k: float, rate: Callable[[float], float] = rate, stretch: float = stretch) -> float:
            far = stretch * theory.target_distance(start, k)
            return theory.regret_bound(target_loss=1 / k, distance=far, step_size=rate(k), steps=k)

        informative = theory.informative_steps(bound)
        found[reading] = {"heads": n_heads, "step_size": rate(steps), "steps": informative}
    return found
