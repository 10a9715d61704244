"""Gradient descent on the first layers of many networks at once, where divergence is a result."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Networks, loss_and_gradient

__all__ = ["Descent", "gradient_descent"]

# A loss that has grown by this factor will not come back.
DIVERGED = 1e12


@dataclass(frozen=True)
class Descent:
    """What gradient descent did to each network.

    Attributes:
        loss: Loss at every step from 0 on, ``(steps + 1, members)``; a network that has stopped keeps its last one.
        steps: Steps that each network took, ``(members,)``.
        reached: Whether it reached the target.
        diverged: Whether its loss became infinite, NaN or astronomically large.
        longest_step: Longest single step of a single neuron, its change in Euclidean norm, ``(members,)``.
        networks: The networks where they stopped; those that diverged are back at their start.
    """

    loss: Float[np.ndarray, "records members"]
    steps: Int[np.ndarray, " members"]
    reached: Bool[np.ndarray, " members"]
    diverged: Bool[np.ndarray, " members"]
    longest_step: Float[np.ndarray, " members"]
    networks: Networks


@torch.no_grad()
def gradient_descent(
    networks: Networks,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members outputs samples"],
    step_size: Float[Tensor, " members"],
    *,
    max_steps: int,
    target: float = 0.0,
) -> Descent:
    r"""Train first layers by gradient descent on the whole sample (Definition 3.5), one step size per network.

    A network stops when its loss has fallen to ``target`` times its first value, or diverges; divergence is a result
    here and no error. Networks that have stopped cost nothing from then on.

    Args:
        networks: Where to start; they are not changed.
        inputs: Samples of each network.
        labels: Their labels.
        step_size: Step size $\eta$ of each network, positive. A useful one is $1/(m\lambda_{\max}(H^*))$.
        max_steps: Steps after which to give up, at least 1.
        target: Fraction of the first loss to stop at; default 0, never.

    Returns:
        Losses at every step, and the trained networks.

    Raises:
        ValueError: If the shapes do not fit, a label is not finite or a number is outside its range.
    """
    _check_descent(networks, labels, step_size, max_steps, target)
    final, members = networks.first_layer.clone(), len(networks.first_layer)
    active, who = torch.arange(members, device=final.device), np.arange(members)
    longest, squares = torch.zeros(2, members, dtype=final.dtype, device=final.device)  # squared, until the end
    steps, row, first = np.full(members, max_steps), np.zeros(members), np.zeros(members)
    reached, diverged = np.zeros((2, members), dtype=bool)
    now, x, y, eta = replace(networks, first_layer=final.clone()), inputs, labels, step_size[:, None, None]
    history: list[np.ndarray] = []
    for step in range(max_steps + 1):
        losses, gradient = loss_and_gradient(now, x, y)
        last = losses.cpu().numpy()
        row[who] = last
        history.append(row.copy())
        first = last if step == 0 else first
        arrived, lost = last <= target * first, ~(last <= DIVERGED * np.maximum(first, 1e-30))
        stop = arrived | lost | (step == max_steps)
        if stop.any():
            steps[who[stop]], reached[who], diverged[who] = step, arrived, lost
            final[active], longest[active] = now.first_layer, squares
            keep = torch.as_tensor(~stop, device=final.device)
            if not keep.any():
                break
            active, x, y, eta, gradient, squares = (t[keep] for t in (active, x, y, eta, gradient, squares))
            now = replace(now, first_layer=now.first_layer[keep], signs=now.signs[keep])
            who, first = who[~stop], first[~stop]
        gradient *= eta
        now.first_layer.sub_(gradient)
        # Not norm(dim=1), which strides and costs more than all the rest.
        torch.maximum(squares, gradient.mul_(gradient).sum(1).amax(1), out=squares)
    kept = torch.as_tensor(~diverged, device=final.device)[:, None, None]
    trained = replace(networks, first_layer=torch.where(kept, final, networks.first_layer))
    longest_step = longest.sqrt_().cpu().double().numpy()
    return Descent(np.stack(history), steps, reached, diverged, longest_step, trained)


def _check_descent(networks: Networks, labels: Tensor, step_size: Tensor, max_steps: int, target: float) -> None:
    members = len(networks.first_layer)
    if labels.ndim != 3 or labels.shape[:2] != networks.signs.shape[:2]:
        raise ValueError(
            f"labels: expected (members, outputs, samples) = ({members}, {networks.signs.shape[1]}, any), "
            f"got {tuple(labels.shape)}"
        )
    if not torch.isfinite(labels).all():
        raise ValueError("labels: expected finite numbers, got NaN or infinity")
    if step_size.shape != (members,) or not (torch.isfinite(step_size) & (step_size > 0)).all():
        raise ValueError(f"step_size: expected one positive number per network ({members},), got {step_size}")
    if max_steps < 1:
        raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
    if not 0 <= target < 1:
        raise ValueError(f"target: expected a fraction of the first loss, at least 0 and below 1, got {target}")
