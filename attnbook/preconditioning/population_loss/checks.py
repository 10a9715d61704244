"""The set of minima by other means: automatic differentiation, and ways from one minimum to another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.preconditioning import landscape
from attnbook.preconditioning.manifold import minimum, split, unstack
from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
    square_roots,
)


def gradient_error(point: Tensor, covariance: Tensor, true_map: Tensor) -> Tensor:
    """Return the error of the gradient in whitened coordinates against automatic differentiation in the original."""
    point = point.requires_grad_()
    layers = unstack(point, covariance=covariance)
    loss = excess_loss(*layers, covariance=covariance, true_map=true_map)
    (automatic,) = torch.autograd.grad(loss + balance_penalty(*layers, covariance=covariance), point)
    return (automatic - landscape.gradient(point.detach(), true_map @ square_roots(covariance)[0])).abs().max()


def residuals(orbit: Tensor, covariance: Tensor, true_map: Tensor) -> dict[str, Tensor]:
    """Return how far minima are from fitting, from balance and from a zero gradient, in the original coordinates."""
    value, key_query = unstack(orbit, covariance=covariance)
    losses = excess_loss_gradient(value, key_query, covariance=covariance, true_map=true_map)
    penalties = penalty_gradient(value, key_query, covariance=covariance)
    slopes = [(loss + penalty).abs().max() for loss, penalty in zip(losses, penalties, strict=True)]
    return {
        "product_residual": (value @ covariance @ key_query - true_map).abs().max(),
        "balance_residual": (value.mT @ value - key_query @ covariance @ key_query.mT).abs().max(),
        "minimum_gradient": torch.stack(slopes).max(),
    }


def barrier(start: Tensor, turns: Tensor, whitened_map: Tensor) -> Tensor:
    r"""Return the highest loss on a straight way to a minimum of the other orientation, the lowest of several.

    Ways lead from a minimum and from its rotations to this minimum with the weakest column turned around, or not, so
    that the determinant of $Q$ changes sign.
    """
    sign = torch.cat([torch.ones(1), torch.linalg.det(turns).sign()]).to(start)
    flipped = start.repeat(len(sign), 1, 1)
    flipped[:, :, -1] *= -sign[:, None]
    along = torch.linspace(0, 1, 51, dtype=start.dtype)[:, None, None, None]
    lines = (1 - along) * torch.cat([start[None], start @ turns]) + along * flipped
    return landscape.regularised_loss(lines, whitened_map).amax(0).min()


def convexity(points: Tensor, whitened_map: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the curvature in each layer is from the other's, and the share of points bent down in the pair.

    The curvature of the loss in one layer alone should be the weakest squared singular value of the other layer.
    """
    errors, bent = [], []
    for point in points:
        hessian = _hessian(point, whitened_map, 0.0)
        value, key_query = split(point)
        layers = (slice(value.numel()), key_query), (slice(value.numel(), None), value)
        errors += [torch.linalg.eigvalsh(hessian[s, s])[0] - torch.linalg.svdvals(o)[-1].square() for s, o in layers]
        bent.append(torch.linalg.eigvalsh(hessian)[0] < 0)
    return torch.stack(errors).abs().max(), torch.stack(bent).double().mean()


def spectrum_error(whitened_map: Tensor, singular_values: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the error of the predicted eigenvalues at a random minimum, by automatic differentiation."""
    turn = np.linalg.qr(rng.standard_normal((len(singular_values), len(singular_values))))[0]
    found = torch.linalg.eigvalsh(_hessian(minimum(whitened_map) @ to_tensor(turn, dtype=torch.float64), whitened_map))
    return (found - landscape.hessian_spectrum(singular_values, len(whitened_map))).abs().max()


def _hessian(point: Tensor, whitened_map: Tensor, penalty: float = 1.0) -> Tensor:
    hessian = torch.autograd.functional.hessian(lambda z: landscape.regularised_loss(z, whitened_map, penalty), point)
    return hessian.reshape(point.numel(), -1)
