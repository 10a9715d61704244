r"""Gradient descent on the regularised population loss near its minima, for many problems and metrics at once.

In whitened coordinates the loss is a factorisation of $\tilde A$, and a preconditioner is a metric: see
:mod:`~attnbook.preconditioning.metric`. All in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.preconditioning.data import draw_problem
from attnbook.preconditioning.manifold import Map, Point, Square, minimum, split, stack, unstack
from attnbook.preconditioning.metric import metric
from attnbook.preconditioning.optimizer import StructureAwareGD
from attnbook.preconditioning.population import Preconditioner, excess_loss, square_roots

__all__ = ["Factorisation", "exact", "near_minimum", "trajectory_difference"]


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
        """Return Algorithm 1's step, with the weight 1 of the regulariser and one of the preconditioners."""
        before, after = metric(covariance, whitened_map.shape[-2], kind)
        one = torch.ones_like(step_size)
        return cls(whitened_map, step_size, one, before if kind == "none" else None, after if kind != "two" else None)

    def step(self, point: Point) -> tuple[Float[Tensor, "*batch"], Point]:
        """Return the excess loss (without the regulariser) before a step, and the point after it."""
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
    ) -> tuple[Float[Tensor, " times *batch"], list[Point]]:
        """Take steps, all problems together; divergence is a result, not an error.

        Args:
            start: Where to begin.
            max_steps: Number of steps.
            keep: Steps whose points to return, increasing, 0 for the start.
            until: Stop once every excess loss has been at or below this, each at some step.

        Returns:
            The excess loss at every step, infinite after a divergence, and the points that were asked for.
        """
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
        return torch.stack(losses).nan_to_num(nan=torch.inf, posinf=torch.inf), points


def exact(device: torch.device) -> torch.device:
    """Return a device that has float64: the processor in place of mps."""
    return torch.device("cpu") if device.type == "mps" else device


def near_minimum(
    singular_values: np.ndarray, outputs: int, displacement: float, seeds: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return whitened maps, and starts around one of the minima of each, a seed each."""
    to, dimension = partial(to_tensor, device=device, dtype=torch.float64), len(singular_values)
    draw = partial(draw_problem, dimension, outputs, condition_number=1.0, singular_values=singular_values, noise=0.0)
    whitened_map = to(np.array([draw(rng=stream(seed, "problem", outputs)).true_map for seed in seeds]))
    base = minimum(whitened_map)
    draws = np.array([stream(seed, "start", outputs).standard_normal(base.shape[1:]) for seed in seeds])
    return whitened_map, base + displacement * to(draws)


def trajectory_difference(
    start: Tensor, whitened_map: Tensor, covariance: Tensor, kind: Preconditioner, step_size: float, steps: int
) -> np.ndarray:
    """Return the largest difference along a run between the optimiser and descent in whitened coordinates.

    The optimiser takes automatic gradients in the original coordinates; infinite if one of the two diverges.
    """
    one = torch.full(start.shape[:1], step_size, dtype=start.dtype, device=start.device)
    _, path = Factorisation.preconditioned(whitened_map, one, covariance, kind).descend(
        start, steps, keep=range(steps + 1)
    )
    value, key_query = (layer.clone().requires_grad_() for layer in unstack(start, covariance=covariance))
    true_map = whitened_map @ square_roots(covariance)[1]
    optimizer = StructureAwareGD(value, key_query, covariance=covariance, step_size=step_size, preconditioner=kind)
    largest = torch.zeros_like(one)
    for point in path:
        at = stack(value.detach(), key_query.detach(), covariance=covariance)
        largest = torch.maximum(largest, (at - point).abs().amax((-2, -1)))
        optimizer.zero_grad()
        excess_loss(value, key_query, covariance=covariance, true_map=true_map).sum().backward()
        optimizer.step()
    return largest.nan_to_num(nan=torch.inf).cpu().numpy()
