"""How parameters are updated: rules whose options may differ from member to member of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from attnbook.core.settings import whole

__all__ = ["SGD", "Adam", "Rule", "Stepper", "cosine", "per_member"]


class Stepper(Protocol):
    """What moves tensors by their ``.grad``, as torch's optimisers do."""

    param_groups: list[dict[str, Any]]

    def step(self) -> object:
        """Move them once."""


class Rule(Protocol):
    """An update rule: its options for each member, and the optimiser that obeys them."""

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the options of each member, ``lr`` among them; neighbours with equal options share a group."""

    def build(self, groups: list[dict[str, Any]]) -> Stepper:
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

    def build(self, groups: list[dict[str, Any]]) -> Stepper:
        """Return the optimiser for these parameter groups."""
        return _Descent(groups, self.momentum)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015) with bias correction.

    Attributes:
        step_size: One number, or one per member.
        betas: Decay of the first and second moment, each in [0, 1); default as in the paper by Kingma and Ba.
        eps: Added to the denominator, positive; default as in the paper by Kingma and Ba.
    """

    step_size: float | Sequence[float]
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: expected two numbers of at least 0 and less than 1, got {self.betas!r}")
        if not 0 < self.eps < float("inf"):
            raise ValueError(f"eps: expected a positive number, got {self.eps!r}")

    def options(self, members: int) -> list[dict[str, float]]:
        """Return the step size of each member."""
        return _step_sizes(self.step_size, members)

    def build(self, groups: list[dict[str, Any]]) -> Stepper:
        """Return the optimiser for these parameter groups."""
        return _Adam(groups, self)


def cosine(steps: int) -> Callable[[int], float]:
    """Return the schedule that lowers the step size from its full value to zero along half a cosine.

    Args:
        steps: Length of the run.

    Returns:
        Step number to a factor in (0, 1].

    Raises:
        ValueError: If ``steps`` is not a whole number of at least 1.
    """
    steps = whole("steps", steps)
    return lambda step: 0.5 * (1.0 + float(np.cos(np.pi * step / steps)))


def _step_sizes(step_size: float | Sequence[float], members: int) -> list[dict[str, float]]:
    return [{"lr": float(size)} for size in per_member("step_size", step_size, members)]


# Torch's functions without its classes, of which the first one made imports a compiler: a second, for nothing.
FUSED: dict[str, Any] = {"fused": True, "weight_decay": 0.0, "maximize": False}


class _Descent:
    """Gradient descent, with momentum or without."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        self.param_groups, self.momentum = groups, momentum
        self.buffers: list[list[Any]] = [[None] * len(group["params"]) for group in groups]

    @torch.no_grad()
    def step(self) -> None:
        for group, buffers in zip(self.param_groups, self.buffers, strict=True):
            tensors, rate, momentum = group["params"], group["lr"], self.momentum
            if momentum:
                found = [tensor.grad for tensor in tensors]
                sgd(tensors, found, buffers, lr=rate, momentum=momentum, dampening=0.0, nesterov=False, **FUSED)
            else:
                for tensor in tensors:  # for small ones sgd takes three times as long, none of it arithmetic
                    tensor.sub_(tensor.grad, alpha=rate)


class _Adam:
    """Adam; the state of each group, then one call for all its tensors."""

    def __init__(self, groups: list[dict[str, Any]], rule: Adam) -> None:
        self.param_groups, (beta1, beta2) = groups, rule.betas
        self.options = FUSED | {"beta1": beta1, "beta2": beta2, "eps": rule.eps, "amsgrad": False}
        self.first, self.second = ([[torch.zeros_like(t) for t in g["params"]] for g in groups] for _ in range(2))
        self.counts = [[torch.zeros((), device=t.device) for t in g["params"]] for g in groups]

    @torch.no_grad()
    def step(self) -> None:
        for group, first, second, counts in zip(self.param_groups, self.first, self.second, self.counts, strict=True):
            found = [tensor.grad for tensor in group["params"]]
            adam(group["params"], found, first, second, [], counts, lr=group["lr"], **self.options)
