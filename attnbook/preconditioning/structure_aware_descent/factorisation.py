r"""Gradient descent on the regularised population loss, for many problems and metrics at once.

In whitened coordinates the loss is a factorisation of $\tilde A$, and a preconditioner is a metric: see
:mod:`~attnbook.preconditioning.metric`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.manifold import Map, Point, Square, split
from attnbook.preconditioning.metric import metric
from attnbook.preconditioning.population import Preconditioner

__all__ = ["Factorisation"]


@dataclass(frozen=True)
class Factorisation:
    r"""Descent $Z\leftarrow Z-\eta\,\Lambda\,\nabla\,\Sigma'$ on the excess loss plus a multiple of the regulariser.

    Attributes:
        whitened_map: $\tilde A$, ``(..., m, d)``.
        step_size: $\eta$, with the batch axes of the map or fewer.
        penalty: Weight of the regulariser, likewise.
        before: The factor $\Lambda$, ``(..., m + d, m + d)``; None for the identity.
        after: The factor $\Sigma'$, ``(..., d, d)``; None for the identity.
    """

    whitened_map: Tensor
    step_size: Tensor
    penalty: Tensor
    before: Tensor | None = None
    after: Tensor | None = None

    @classmethod
    def preconditioned(
        cls, whitened_map: Map, step_size: Float[Tensor, "*#batch"], covariance: Square, kind: Preconditioner
    ) -> Factorisation:
        r"""Return Algorithm 1's step, with the weight 1 of the regulariser and one of the preconditioners.

        Args:
            whitened_map: $\tilde A$.
            step_size: $\eta$.
            covariance: $\Sigma$.
            kind: Which preconditioner.

        Returns:
            The descent.

        Raises:
            ValueError: If ``kind`` is unknown.
        """
        before, after = metric(covariance, whitened_map.shape[-2], kind)
        weight = torch.ones_like(step_size)
        return cls(
            whitened_map, step_size, weight, before if kind == "none" else None, after if kind != "two" else None
        )

    def step(self, point: Point) -> tuple[Float[Tensor, "*batch"], Point]:
        """Take one step.

        Args:
            point: $Z$.

        Returns:
            The excess loss (without the regulariser) before the step, and the point after it.
        """
        value, key_query = split(point)
        error = value @ key_query.mT - self.whitened_map
        balance = 0.5 * self.penalty[..., None, None] * (value.mT @ value - key_query.mT @ key_query)
        slope = torch.cat([error @ key_query + value @ balance, error.mT @ value - key_query @ balance], dim=-2)
        if self.before is not None:
            slope = self.before @ slope
        if self.after is not None:
            slope = slope @ self.after
        return error.square().sum((-2, -1)) / 2, point - self.step_size[..., None, None] * slope

    @torch.no_grad()
    def descend(
        self, start: Point, max_steps: int, *, keep: Sequence[int] = (), until: Float[Tensor, "*#batch"] | None = None
    ) -> tuple[Float[Tensor, " times *batch"], Float[Tensor, "kept *batch stacked dimension"]]:
        """Take steps, all problems together; divergence is a result, not an error.

        Args:
            start: Where to begin.
            max_steps: Number of steps, at least 0.
            keep: Steps whose points to return, increasing, 0 for the start; default none.
            until: Stop once every excess loss has been at or below this, each at some step; default never.

        Returns:
            The excess loss at every step, infinite after a divergence, and the points that were asked for as far as
            the descent got; not finite after a divergence.

        Raises:
            ValueError: If ``max_steps`` is negative, or ``keep`` not increasing or beyond it.
        """
        if max_steps < 0:
            raise ValueError(f"max_steps: expected at least 0, got {max_steps}")
        if list(keep) != sorted(set(keep)) or any(not 0 <= step <= max_steps for step in keep):
            raise ValueError(f"keep: expected increasing steps from 0 to {max_steps}, got {tuple(keep)}")
        point, losses, points, wanted = start, [], [], set(keep)
        below = torch.zeros(start.shape[:-2], dtype=torch.bool, device=start.device)
        for number in range(max_steps + 1):
            if number in wanted:
                points.append(point)
            excess, point = self.step(point)
            losses.append(excess)
            if until is not None:
                below |= excess <= until
                if bool(below.all()):
                    break
        excess_losses = torch.stack(losses).nan_to_num(nan=torch.inf, posinf=torch.inf)
        return excess_losses, torch.stack(points) if points else start.new_empty(0, *start.shape)
