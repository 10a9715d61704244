"""Gradient descent on the first layers of many networks at once, where divergence is a result."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnbook.softmax_ntk.two_layer import Inputs, Labels, Networks, check_finite, loss_and_gradient

__all__ = ["Descent", "gradient_descent"]

# A loss that has grown by this factor will not come back.
DIVERGED = 1e12


@dataclass(frozen=True)
class Descent:
    """What gradient descent did to each network.

    Attributes:
        loss: Loss at every step from 0 on, ``(steps + 1, members)``; NaN after a network has stopped.
        steps: Steps that each network took, ``(members,)``.
        reached: Whether it reached the target.
        diverged: Whether its loss became infinite, NaN or astronomically large.
        networks: The networks where they stopped; those that diverged are back at their start.
    """

    loss: Float[np.ndarray, "records members"]
    steps: Int[np.ndarray, " members"]
    reached: Bool[np.ndarray, " members"]
    diverged: Bool[np.ndarray, " members"]
    networks: Networks


@torch.no_grad()
def gradient_descent(
    networks: Networks,
    inputs: Inputs,
    labels: Labels,
    step_size: Float[Tensor, " members"],
    *,
    max_steps: int,
    target: float = 0.0,
) -> Descent:
    r"""Train first layers by gradient descent on the whole sample (Definition 3.5), one step size per network.

    A network stops when its loss has fallen to ``target`` times its first value, or diverges; divergence is a result
    here and no error. Networks that have stopped are no longer computed.

    Args:
        networks: Where to start; they are not changed.
        inputs: Samples of each network, ``(members, samples, inputs)``.
        labels: Their labels, ``(members, outputs, samples)``.
        step_size: Step size $\eta$ of each network, positive. A useful one is $1/(m\lambda_{\max}(H^*))$.
        max_steps: Steps after which to give up, at least 1.
        target: Fraction of the first loss to stop at; default 0, never.

    Returns:
        Losses at every step, and the trained networks.

    Raises:
        ValueError: If the shapes do not fit, a label is not finite or a number is outside its range.
    """
    check_finite("labels", labels)
    members = len(networks.first_layer)
    if step_size.shape != (members,) or not (torch.isfinite(step_size) & (step_size > 0)).all():
        raise ValueError(f"step_size: expected one positive number per network ({members},), got {step_size}")
    if max_steps < 1:
        raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
    if not 0 <= target < 1:
        raise ValueError(f"target: expected a fraction of the first loss, at least 0 and below 1, got {target}")
    final, who, history = networks.first_layer.clone(), np.arange(members), []
    steps, reached, diverged = np.full(members, max_steps), *np.zeros((2, members), dtype=bool)
    now, x, y, eta = replace(networks, first_layer=final.clone()), inputs, labels, step_size[:, None, None]
    for step in range(max_steps + 1):
        losses, gradient = loss_and_gradient(now, x, y)
        last = losses.cpu().numpy()
        history.append(np.full(members, np.nan))
        history[-1][who] = last
        first = history[0][who]
        arrived, lost = last <= target * first, ~(last <= DIVERGED * np.maximum(first, 1e-30))
        going = ~(arrived | lost) & (step < max_steps)
        if not going.all():
            ended = ~going & ~lost
            steps[who[~going]], reached[who], diverged[who] = step, arrived, lost
            final[who[ended]] = now.first_layer[ended]
            if not going.any():
                break
            who, now = who[going], now.subset(going)
            x, y, eta, gradient = (part[going] for part in (x, y, eta, gradient))
        now.first_layer.sub_(gradient.mul_(eta))
    return Descent(np.stack(history), steps, reached, diverged, replace(networks, first_layer=final))
