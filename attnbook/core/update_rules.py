"""How parameters are updated: rules whose options may differ from member to member of an ensemble.

torch's optimisers are called as functions: the first object of their classes loads torch's compiler, which takes a
second, and for small tensors a step of such an object takes longer than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

__all__ = ["SGD", "Adam", "Optimizer", "Rule", "cosine", "per_member"]

PLAIN: dict[str, Any] = {"fused": True, "weight_decay": 0.0, "maximize": False}


class Optimizer(Protocol):
    """What takes the steps of a rule; every ``torch.optim.Optimizer`` is one."""

    param_groups: list[dict[str, Any]]

    def step(self) -> object:
        """Change the parameters of all groups along their gradients."""


class Rule(Protocol):
    """An update rule: its options for each member, and the optimiser that obeys them."""

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the options of each member, ``lr`` among them; neighbours with equal options share a group."""

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the optimiser for parameter groups that carry these options and the ``names`` of their tensors.

        It must act on each member alone.
        """


def per_member(name: str, value: float | Sequence[float], members: int) -> np.ndarray:
    """Spread a positive option over the members.

    Args:
        name: What to call it in messages.
        value: One number for all, or one per member.
        members: Number of members.

    Returns:
        One number per member, ``(members,)``.

    Raises:
        ValueError: If there are as many numbers as neither one nor the members, or one is not positive and finite.

    Example:
        >>> per_member("step_size", 0.5, 2)
        array([0.5, 0.5])
    """
    values = np.asarray(value, dtype=np.float64)
    if values.ndim and values.shape != (members,):
        raise ValueError(f"{name}: expected one number or one per member ({members},), got shape {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{name}: expected positive numbers, got {value!r}")
    return np.broadcast_to(values, (members,))


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with heavy-ball momentum when ``momentum`` is positive.

    Attributes:
        step_size: One number, or one per member.
        momentum: In [0, 1); default 0, plain gradient descent.
    """

    step_size: float | Sequence[float]
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected at least 0 and less than 1, got {self.momentum!r}")

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the step size of each member."""
        return _step_sizes(self.step_size, members)

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the optimiser for these parameter groups."""
        if not self.momentum:
            return _Called(groups, _descend, lambda tensors: [])
        change = partial(sgd, momentum=self.momentum, dampening=0.0, nesterov=False, **PLAIN)
        return _Called(groups, change, lambda tensors: [[None] * len(tensors)])


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015) with bias correction.

    Attributes:
        step_size: One number, or one per member.
        betas: Decay of the first and second moment; default as in the paper by Kingma and Ba.
        eps: Added to the denominator; default as in the paper by Kingma and Ba.
    """

    step_size: float | Sequence[float]
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the step size of each member."""
        return _step_sizes(self.step_size, members)

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the optimiser for these parameter groups."""

        def state(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
            first, second = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
            return [first, second, [], [torch.zeros((), device=tensor.device) for tensor in tensors]]

        change = partial(adam, beta1=self.betas[0], beta2=self.betas[1], eps=self.eps, amsgrad=False, **PLAIN)
        return _Called(groups, change, state)


def cosine(steps: int) -> Callable[[int], float]:
    """Return the schedule that lowers the step size from its full value to zero along half a cosine.

    Args:
        steps: Length of the run.

    Returns:
        Step number to a factor in (0, 1].
    """
    return lambda step: 0.5 * (1.0 + float(np.cos(np.pi * step / steps)))


def _step_sizes(step_size: float | Sequence[float], members: int) -> list[dict[str, float]]:
    return [{"lr": float(size)} for size in per_member("step_size", step_size, members)]


class _Called:
    """An optimiser that calls a function with all tensors of a group, their gradients and their state."""

    def __init__(self, groups: list[dict[str, Any]], change: Callable[..., None], state: Callable[..., Any]) -> None:
        self.param_groups, self.change = groups, change
        self.states = [state(group["params"]) for group in groups]

    @torch.no_grad()
    def step(self) -> None:
        for group, state in zip(self.param_groups, self.states, strict=True):
            self.change(group["params"], [tensor.grad for tensor in group["params"]], *state, lr=group["lr"])


def _descend(tensors: list[torch.Tensor], gradients: list[torch.Tensor], lr: float) -> None:
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.sub_(gradient, alpha=lr)
