r"""What the conditions of Theorem 1 and Corollary 2 ask for, in four readings, and what each change of ours gains.

The text states its conditions up to constants. The readings, with $g_0=g_0(1/K)$:

=================  =====================================================================================
``corollary``      the order of $\rho$ in Corollary 2, constant 1
``theorem``        the order of $\rho$ in Theorem 1, constant 1, heads of the target taken as $B_2$
``reconstructed``  the $\rho$ with constants that we reconstructed for the text's proof
``chain``          $\rho=\beta_2(B)$ with $B=B_2+3.1\,g_0$: what the four steps of this book ask for
=================  =====================================================================================

The first two go with the heads of condition (3) with constant 1, the others with the heads of the four steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head.certificate import ROOM
from attnbook.multi_head.convergence_bounds import GoodStart
from attnbook.multi_head.curvature_bounds import loss_constants

__all__ = ["HEADS", "REACH", "STEP_SIZES", "FourSteps", "chain_heads", "chain_step_size", "four_steps"]

REACH = 3.1
r"""How far gradient descent comes from its start, in target distances; above $1+\sqrt{13/3}$, about 3.08."""


@dataclass(frozen=True)
class FourSteps:
    r"""What the four steps ask for.

    Attributes:
        heads: $(18\,\beta D^2)^2$ with $\beta$ the curvature.
        gradient: $\beta_1$ at the largest head that can occur.
        curvature: $\beta_3$ there, or $\beta_3'$.
    """

    heads: float
    gradient: float
    curvature: float

    def step_size(self, n_heads: float) -> float:
        r"""Return $1/\beta_2$, at most 1.

        Args:
            n_heads: $H$, at least 1.

        Returns:
            A step size.

        Raises:
            ValueError: If ``n_heads`` is below 1.
        """
        if not n_heads >= 1:
            raise ValueError(f"n_heads: expected at least 1, got {n_heads}")
        return 1 / max(1.0, self.curvature / math.sqrt(n_heads) + self.gradient**2 / 4)


def four_steps(start: GoodStart, distance: float, *, dimension_free: bool = False, tracked: bool = False) -> FourSteps:
    r"""Return what the four steps ask for with a target at some distance, with and without our two changes.

    Args:
        start: The start.
        distance: $D$, positive.
        dimension_free: Take $\beta_3'$ in the place of $\beta_3$.
        tracked: Bound the largest head by $B_2+\frac58$ in the place of $B_2+3.1D$.

    Returns:
        Heads and constants.

    Raises:
        ValueError: If ``distance`` is not positive.
    """
    if not 0 < distance < math.inf:
        raise ValueError(f"distance: expected a finite positive number, got {distance}")
    constants = loss_constants(
        n_tokens=start.n_tokens,
        dimension=start.dimension,
        n_heads=1,
        token_norm=start.token_norm,
        largest_head_norm=start.head_bound + (ROOM if tracked else REACH * distance),
    )
    curvature = constants.dimension_free_curvature if dimension_free else constants.curvature
    return FourSteps(max(1.0, (18 * curvature * distance**2) ** 2), constants.gradient, curvature)


def chain_heads(start: GoodStart, steps: float) -> float:
    r"""Return $(18\,\beta_3(B)\,g_0(1/K)^2)^2$ with $B=B_2+3.1\,g_0(1/K)$.

    Args:
        start: The start.
        steps: $K$, at least 1.

    Returns:
        A number of heads.

    Raises:
        ValueError: If ``steps`` is below 1.
    """
    return four_steps(start, theory.target_distance(start, steps)).heads


def chain_step_size(start: GoodStart, steps: float, n_heads: float) -> float:
    r"""Return $1/\beta_2(B)$ with $B=B_2+3.1\,g_0(1/K)$, at most 1.

    Args:
        start: The start.
        steps: $K$, at least 1.
        n_heads: $H$, at least 1.

    Returns:
        A step size.

    Raises:
        ValueError: If an argument is outside its range.
    """
    return four_steps(start, theory.target_distance(start, steps)).step_size(n_heads)


HEADS: dict[str, Callable[[GoodStart, float], float]] = {
    "corollary": theory.order_heads,
    "theorem": theory.order_heads,
    "reconstructed": chain_heads,
    "chain": chain_heads,
}
"""Reading to heads asked for, of a start and the number of steps."""

STEP_SIZES: dict[str, Callable[[GoodStart, float, float], float]] = {
    "corollary": lambda start, steps, n_heads: theory.order_step_size(start, steps),
    "theorem": lambda start, steps, n_heads: theory.theorem_step_size(start, steps),
    "reconstructed": theory.reconstructed_step_size,
    "chain": chain_step_size,
}
"""Reading to step size allowed, of a start, the number of steps and the number of heads."""
