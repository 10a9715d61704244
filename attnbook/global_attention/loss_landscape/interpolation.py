r"""Training all weights of equation (1) on few samples, to a stationary point.

Levenberg-Marquardt: Gauss-Newton steps with a damping that shrinks while the loss falls. With $n$ samples a step
solves an $n\times n$ system, whatever the number of weights; it reaches a loss of rounding size in some dozens of
steps where gradient methods need many thousands. Members are solved together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.global_attention.two_layer import Activation

__all__ = ["Fit", "fit_all_weights"]

FIRST_DAMPING, LEAST_DAMPING = 1e-2, 1e-14  # relative to the mean diagonal of the Gauss-Newton matrix


class Fit(NamedTuple):
    """Where the training of all weights ended."""

    parameters: Parameters  # mask, hidden and decoder of each member
    losses: Float[Tensor, " members"]  # mean over samples of half the squared error, objective (2)
    gradient_norms: Float[Tensor, " members"]  # norm of its gradient


@torch.no_grad()
def fit_all_weights(
    parameters: Parameters,
    inputs: Float[Tensor, "members samples inputs"],
    labels: Float[Tensor, "members samples"],
    *,
    activation: Activation,
    trained_mask: Bool[Tensor, " members"],
    steps: int = 200,
    tolerance: float = 1e-13,
) -> Fit:
    """Minimise the squared error of networks with one output until all gradients are of rounding size."""
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    now = _linearised(parameters, inputs, labels, activation, trained_mask)
    damping = torch.full_like(inputs[:, 0, 0], FIRST_DAMPING)
    identity = torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
    for _ in range(steps):
        residual, jacobian = now["residual"], now["jacobian"]
        if (_gradient(now).norm(dim=1) <= tolerance).all():
            break
        gram = jacobian @ jacobian.mT
        scale = gram.diagonal(dim1=1, dim2=2).mean(1) * damping
        weights = torch.linalg.solve(gram + scale[:, None, None] * identity, residual.unsqueeze(2))
        parts = (jacobian.mT @ weights).squeeze(2).split([now[name][0].numel() for name in parameters], dim=1)
        moved = {name: now[name] - part.view_as(now[name]) for name, part in zip(parameters, parts, strict=True)}
        trial = _linearised(moved, inputs, labels, activation, trained_mask)
        better = trial["residual"].square().sum(1) < residual.square().sum(1)
        now = {name: torch.where(better.view(-1, *[1] * (old.dim() - 1)), trial[name], old)
               for name, old in now.items()}  # fmt: skip
        damping = torch.where(better, damping * 0.3, damping * 4).clamp(LEAST_DAMPING, 1e6)
    return Fit({n: now[n] for n in parameters}, now["residual"].square().mean(1) / 2, _gradient(now).norm(dim=1))


def _linearised(
    parameters: Parameters, inputs: Tensor, labels: Tensor, activation: Activation, trained_mask: Tensor
) -> Parameters:
    """Add residuals ``(members, samples)`` and their derivatives in mask, first and second layer, side by side."""
    mask, hidden, decoder = parameters["mask"], parameters["hidden"], parameters["decoder"].squeeze(1)
    masked = inputs * mask.unsqueeze(1)
    before = masked @ hidden.mT
    value, slope = activation(before), torch.func.grad(lambda u: activation(u).sum())(before)
    through = slope * decoder.unsqueeze(1)
    for_mask = inputs * (through @ hidden) * trained_mask[:, None, None]
    for_hidden = through.unsqueeze(3) * masked.unsqueeze(2)
    residual = (value @ decoder.unsqueeze(2)).squeeze(2) - labels
    return parameters | {"residual": residual, "jacobian": torch.cat([for_mask, for_hidden.flatten(2), value], 2)}


def _gradient(at: Parameters) -> Tensor:
    return (at["jacobian"].mT @ at["residual"].unsqueeze(2)).squeeze(2) / at["residual"].shape[1]
