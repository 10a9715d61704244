"""Training one network after another with automatic differentiation: what a reader would write first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor

Loss: TypeAlias = Callable[[dict[str, Tensor], int], Tensor]
"""(parameters, number of the step) to the loss of one network."""


def train_each(
    starts: Iterable[dict[str, Tensor]],
    losses: Iterable[Loss],
    build: Callable[[list[Tensor], int], torch.optim.Optimizer],
    steps: int,
) -> list[dict[str, Tensor]]:
    """Train networks one by one.

    Args:
        starts: Initial parameters of each network.
        losses: Its loss, from its parameters and the number of the step.
        build: Its optimiser, from its parameters and its number.
        steps: Steps of each.

    Returns:
        The trained parameters.
    """
    trained = []
    for number, (start, loss) in enumerate(zip(starts, losses, strict=True)):
        parameters = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.items()}
        optimizer = build(list(parameters.values()), number)
        for step in range(steps):
            optimizer.zero_grad()
            loss(parameters, step).backward()
            optimizer.step()
        trained.append({name: tensor.detach() for name, tensor in parameters.items()})
    return trained
