"""The set of minima and Theorem 1 by other means: automatic differentiation, ways between minima, and a search."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.preconditioning import landscape, population
from attnbook.preconditioning.manifold import minimum, sideways, split, unstack


def gradient_error(point: Tensor, covariance: Tensor, true_map: Tensor) -> Tensor:
    """Return the error of the gradient in whitened coordinates against automatic differentiation in the original."""
    layers = unstack(point.requires_grad_(), covariance=covariance)
    loss = population.excess_loss(*layers, covariance=covariance, true_map=true_map)
    loss = loss + population.balance_penalty(*layers, covariance=covariance)
    (automatic,) = torch.autograd.grad(loss, point)
    whitened_map = true_map @ population.square_roots(covariance)[0]
    return (automatic - landscape.gradient(point.detach(), whitened_map)).abs().max()


def residuals(orbit: Tensor, covariance: Tensor, true_map: Tensor) -> dict[str, Tensor]:
    """Return how far minima are from fitting, from balance and from a zero gradient, in the original coordinates."""
    value, key_query = unstack(orbit, covariance=covariance)
    losses = population.excess_loss_gradient(value, key_query, covariance=covariance, true_map=true_map)
    slopes = map(torch.add, losses, population.penalty_gradient(value, key_query, covariance=covariance))
    return {
        "product_residual": (value @ covariance @ key_query - true_map).abs().max(),
        "balance_residual": (value.mT @ value - key_query @ covariance @ key_query.mT).abs().max(),
        "minimum_gradient": torch.stack([slope.abs().max() for slope in slopes]).max(),
    }


def barrier(start: Tensor, turns: Tensor, whitened_map: Tensor) -> Tensor:
    r"""Return the highest loss on a straight way to a minimum of the other orientation, the lowest of several.

    Ways lead from a minimum and from its rotations to this minimum with the weakest column turned around, or not, so
    that the determinant of $Q$ changes sign.
    """
    sign = torch.cat([turns.new_ones(1), torch.linalg.det(turns).sign()]).to(start)
    flipped = start.repeat(len(sign), 1, 1)
    flipped[:, :, -1] *= -sign[:, None]
    along = torch.linspace(0, 1, 51, device=start.device, dtype=start.dtype)[:, None, None, None]
    lines = (1 - along) * torch.cat([start[None], start @ turns]) + along * flipped
    return landscape.regularised_loss(lines, whitened_map).amax(0).min()


def convexity(points: Tensor, whitened_map: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the curvature in each layer is from the other's, and the share of points bent down in the pair.

    The curvature of the loss in one layer alone should be the weakest squared singular value of the other layer.
    """
    value, key_query = split(points)
    hessians, size = torch.stack([_hessian(point, whitened_map, 0.0) for point in points]), value[0].numel()
    blocks = hessians[:, :size, :size], hessians[:, size:, size:]
    alone = torch.stack([torch.linalg.eigvalsh(block)[:, 0] for block in blocks])
    other = torch.stack([torch.linalg.svdvals(layer)[:, -1].square() for layer in (key_query, value)])
    return (alone - other).abs().max(), (torch.linalg.eigvalsh(hessians)[:, 0] < 0).double().mean()


def spectrum_error(whitened_map: Tensor, singular_values: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the error of the predicted eigenvalues at a random minimum, by automatic differentiation."""
    turn = torch.linalg.qr(torch.from_numpy(rng.standard_normal((len(singular_values), len(singular_values))))).Q
    found = torch.linalg.eigvalsh(_hessian(minimum(whitened_map) @ turn, whitened_map))
    return (found - landscape.hessian_spectrum(singular_values, len(whitened_map))).abs().max()


def ratios(away: Tensor, base: Tensor, whitened_map: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return $\langle\nabla,H\rangle/(s_d\|H\|^2)$, $\|\nabla\|/(s_1\|H\|)$ and the excess loss over $s_1\|H\|^2$."""
    slope, loss = (of(base + away, whitened_map) for of in (landscape.gradient, landscape.regularised_loss))
    strongest, weakest, length = values[..., 0], values[..., -1], torch.linalg.matrix_norm(away)
    inner, steep = (slope * away).sum((-2, -1)), torch.linalg.matrix_norm(slope)
    return inner / (weakest * length.square()), steep / (strongest * length), loss / (strongest * length.square())


def of_length(direction: Tensor, base: Tensor, length: Tensor) -> Tensor:
    """Return directions less their part along the set of minima, as displacements of given length."""
    away = sideways(direction, base)
    return away * (length / torch.linalg.matrix_norm(away))[..., None, None]


def search(starts: Tensor, base: Tensor, length: Tensor, whitened_map: Tensor, steps: int, *, convex: bool) -> Tensor:
    """Walk over displacements of a length, down on the ratio of (3) or up on that of (4), with shrinking steps."""
    at, scale = of_length(starts, base, length), length[..., None, None]
    for step in range(steps):
        point = base + at
        slope = landscape.gradient(point, whitened_map)
        uphill = landscape.curvature(point, at if convex else slope, whitened_map)
        uphill = sideways(-slope - uphill if convex else uphill, base)
        uphill = uphill - at * ((uphill * at).sum((-2, -1), keepdim=True) / scale.square())
        size = torch.linalg.matrix_norm(uphill)[..., None, None].clamp(min=1e-300)
        at = of_length(at + 0.3 * (1 - step / steps) * scale * uphill / size, base, length)
    return at


def worst_direction(base: Tensor, squared_distance: float) -> Tensor:
    r"""Return a displacement of given $r=\|H\|^2/s_d$ for which the bound (3) is an equality, or nearly.

    Shrink the weakest column $z$ by $\alpha$ and add $\beta$ in a new direction, an output that no minimum uses. With
    $\alpha=\frac32\|H\|^2/\|z\|$ the bound is an equality for $r\le\frac89$; beyond, or for $m=d$, only shrink.
    """
    eigenvalues, axes = torch.linalg.eigh(base.mT @ base)
    weakest, length = axes[:, 0], (squared_distance * eigenvalues[0] / 2).sqrt()
    column = base @ weakest / eigenvalues[0].sqrt()
    value, _ = split(base)
    spare, shrink = base.new_zeros(len(base)), length
    if len(value) > len(weakest):
        spare[: len(value)] = torch.linalg.svd(value).U[:, -1]
        shrink = torch.minimum(length, 1.5 * length.square() / eigenvalues[0].sqrt())
    grow = (length.square() - shrink.square()).clamp(min=0).sqrt()
    return torch.outer(grow * spare - shrink * column, weakest)


def one_sided_ratio(
    singular_values: Tensor, n_outputs: int, condition_number: float, directions: int, rng: np.random.Generator
) -> float:
    r"""Return the smallest $\langle\nabla,H\rangle/(s_d\lambda_d\|H\|^2)$ that was found, $\|H\|$ the one-sided norm.

    In whitened coordinates that norm is $\mathrm{tr}(H\Sigma^{-1}H^\top)^{1/2}$, and the inner product is unchanged.
    Within $s_d/(3\sqrt{2s_1\lambda_1})$ of random minima, and of one whose weakest column lies along the eigenvector of
    $\lambda_d$, displaced in its flattest direction.
    """
    values, dimension = singular_values.cpu(), len(singular_values)
    # Without loss of generality the covariance is diagonal.
    eigenvalues = torch.from_numpy(np.geomspace(condition_number**0.5, condition_number**-0.5, dimension))
    whitened_map = torch.cat([values.diag(), values.new_zeros(n_outputs - dimension, dimension)])
    start = minimum(whitened_map)
    turns = torch.linalg.qr(torch.from_numpy(rng.standard_normal((directions, dimension, dimension)))).Q
    base = torch.cat([start[None], start @ turns])
    flat = worst_direction(start, 1e-6)[None]
    away = sideways(torch.cat([flat, torch.from_numpy(rng.standard_normal((directions, *start.shape)))]), base)
    norm = (away.square() / eigenvalues).sum((-2, -1)).sqrt()
    radius = values[-1] / (3 * (2 * values[0] * eigenvalues[0]).sqrt())
    lengths = radius * torch.tensor([1.0, *np.linspace(0.05, 1, directions)], device="cpu", dtype=torch.float64)
    away = away * (lengths / norm)[:, None, None]
    products = (landscape.gradient(base + away, whitened_map) * away).sum((-2, -1))
    return float((products / (values[-1] * eigenvalues[-1] * lengths.square())).min())


def _hessian(point: Tensor, whitened_map: Tensor, penalty: float = 1.0) -> Tensor:
    hessian = torch.autograd.functional.hessian(lambda z: landscape.regularised_loss(z, whitened_map, penalty), point)
    return hessian.reshape(point.numel(), -1)
