"""What each reading of the conditions allows at measured starts, and what each of our two changes gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnbook.core.results import Measurement, extremes_over_seeds, over_seeds
from attnbook.multi_head import readings as theory
from attnbook.multi_head.convergence_bounds import GoodStart, final_bound, informative_steps, target_distance

__all__ = ["allowed", "gains"]


def allowed(
    starts: Sequence[Sequence[GoodStart]],
    step_size: Callable[[GoodStart, float, float], float],
    *,
    heads: Sequence[float],
    horizons: Sequence[int],
) -> Measurement:
    r"""Return what a reading allows.

    Args:
        starts: The starts, by seed and width.
        step_size: One of :data:`~attnbook.multi_head.readings.STEP_SIZES`.
        heads: The widths.
        horizons: Numbers of steps $K$.

    Returns:
        The largest step size over widths and horizons, and the smallest number of steps over widths until the bound of
        Corollary 2, at the step size allowed for so many steps, is below $\log2$.
    """

    def informative(start: GoodStart, n_heads: float) -> float:
        return informative_steps(lambda k: final_bound(start, k, step_size(start, k, n_heads)))

    pairs = [list(zip(row, heads, strict=True)) for row in starts]
    return extremes_over_seeds(
        largest_step_size=np.array([[max(step_size(s, k, h) for k in horizons) for s, h in row] for row in pairs]),
        smallest_informative_steps=np.array([[informative(s, h) for s, h in row] for row in pairs]),
    )


def gains(starts: Sequence[GoodStart], *, steps: float, n_heads: float) -> Measurement:
    """Return what the dimension-free constant and tracked heads gain, each alone, for the target of Corollary 2.

    Args:
        starts: One start for each seed.
        steps: Number of steps of the target.
        n_heads: Number of heads at which step sizes are compared.

    Returns:
        Factors by which fewer heads are asked for, and larger steps allowed.
    """
    found: dict[str, list[float]] = {}
    for start in starts:
        far = target_distance(start, steps)
        plain = theory.four_steps(start, far)
        changed = {
            "constant": theory.four_steps(start, far, dimension_free=True),
            "tracking": theory.four_steps(start, far, tracked=True),
        }
        for name, one in changed.items():
            found.setdefault(f"heads_saved_by_{name}", []).append(plain.heads / one.heads)
            gained = one.step_size(n_heads) / plain.step_size(n_heads)
            found.setdefault(f"step_size_gained_by_{name}", []).append(gained)
    return over_seeds(**found)
