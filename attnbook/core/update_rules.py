"""How parameters are updated: rules whose options may differ from member to member of an ensemble."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

__all__ = ["SGD", "Adam", "Optimizer", "Rule", "cosine", "per_member"]


class Rule(Protocol):
    """An update rule: its options for each member, and the torch optimiser that obeys them."""

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the options of each member, ``lr`` among them; neighbours with equal options share a group."""

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
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

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the torch optimiser for these parameter groups."""
        return _Momentum(groups, momentum=self.momentum, fused=True) if self.momentum else _PlainDescent(groups)


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

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the torch optimiser for these parameter groups."""
        return _Adam(groups, betas=self.betas, eps=self.eps, fused=True)


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


class Optimizer(torch.optim.Optimizer):
    """torch's, whose first use does not import torch's compiler: that takes longer than most trainings here."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class _Momentum(Optimizer, torch.optim.SGD):
    step = inspect.unwrap(torch.optim.SGD.step)  # likewise; gradients are off while an ensemble trains


class _Adam(Optimizer, torch.optim.Adam):
    step = inspect.unwrap(torch.optim.Adam.step)


class _PlainDescent(Optimizer):
    """Gradient descent alone: for small tensors torch's own costs three times as much, none of it arithmetic."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody has a closure here
        for group in self.param_groups:
            for tensor in group["params"]:
                tensor.sub_(tensor.grad, alpha=group["lr"])
