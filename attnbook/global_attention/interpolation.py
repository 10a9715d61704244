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

# Damping relative to the mean diagonal of the Gauss-Newton matrix: where it starts, and its floor.
FIRST_DAMPING, LEAST_DAMPING = 1e-2, 1e-14


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
    """Minimise the squared error of networks with one output over all their weights.

    Args:
        parameters: Initial ``mask (members, inputs)``, ``hidden (members, width, inputs)``, ``decoder (members, 1,
            width)``.
        inputs: Samples of each member.
        labels: Labels of each member.
        activation: The nonlinearity.
        trained_mask: Members whose mask is trained; those of the others stay as they are.
        steps: Most steps tried; default 200. A step that raises the loss is not taken.
        tolerance: Norm of the gradient at which a member is done; training ends when all are. Default 1e-13, rounding
            size in float64.

    Returns:
        Where it ended.

    Raises:
        ValueError: If ``steps`` is not positive.
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    now = {name: tensor.clone() for name, tensor in parameters.items()}
    residual, jacobian = _linearise(now, inputs, labels, activation, trained_mask)
    damping = torch.full_like(residual[:, 0], FIRST_DAMPING)
    identity = torch.eye(residual.shape[1], dtype=residual.dtype, device=residual.device)
    for _ in range(steps):
        if (_gradient(residual, jacobian).norm(dim=1) <= tolerance).all():
            break
        gram = jacobian @ jacobian.mT
        scale = gram.diagonal(dim1=1, dim2=2).mean(1) * damping
        weights = torch.linalg.solve(gram + scale[:, None, None] * identity, residual.unsqueeze(2))
        trial = _move(now, (jacobian.mT @ weights).squeeze(2))
        new_residual, new_jacobian = _linearise(trial, inputs, labels, activation, trained_mask)
        better = new_residual.square().sum(1) < residual.square().sum(1)
        now = {name: torch.where(_like(better, old), trial[name], old) for name, old in now.items()}
        residual = torch.where(_like(better, residual), new_residual, residual)
        jacobian = torch.where(_like(better, jacobian), new_jacobian, jacobian)
        damping = torch.where(better, damping * 0.3, damping * 4).clamp(LEAST_DAMPING, 1e6)
    return Fit(now, residual.square().mean(1) / 2, _gradient(residual, jacobian).norm(dim=1))


def _linearise(
    parameters: Parameters, inputs: Tensor, labels: Tensor, activation: Activation, trained_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Residuals ``(members, samples)`` and their derivatives in mask, first and second layer, side by side."""
    mask, hidden, decoder = parameters["mask"], parameters["hidden"], parameters["decoder"].squeeze(1)
    masked = inputs * mask.unsqueeze(1)
    before = masked @ hidden.mT
    value, slope = activation(before), torch.func.grad(lambda u: activation(u).sum())(before)
    through = slope * decoder.unsqueeze(1)
    for_mask = inputs * (through @ hidden) * trained_mask[:, None, None]
    for_hidden = through.unsqueeze(3) * masked.unsqueeze(2)
    residual = (value @ decoder.unsqueeze(2)).squeeze(2) - labels
    return residual, torch.cat([for_mask, for_hidden.flatten(2), value], 2)


def _gradient(residual: Tensor, jacobian: Tensor) -> Tensor:
    return (jacobian.mT @ residual.unsqueeze(2)).squeeze(2) / residual.shape[1]


def _move(parameters: Parameters, step: Tensor) -> Parameters:
    """Subtract a step from all parameters."""
    parts = step.split([tensor[0].numel() for tensor in parameters.values()], dim=1)
    return {name: tensor - part.view_as(tensor) for (name, tensor), part in zip(parameters.items(), parts, strict=True)}


def _like(mask: Tensor, tensor: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (tensor.dim() - 1))
