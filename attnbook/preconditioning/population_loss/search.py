"""Theorem 1 in whitened coordinates: its ratios, and the search for the worst displacement."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.preconditioning import landscape
from attnbook.preconditioning.manifold import minimum, sideways, split


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
    values, dimension = singular_values.cpu().double(), len(singular_values)
    # Without loss of generality the covariance is diagonal.
    eigenvalues = torch.tensor(np.geomspace(condition_number**0.5, condition_number**-0.5, dimension))
    whitened_map = torch.cat([values.diag(), values.new_zeros(n_outputs - dimension, dimension)])
    start = minimum(whitened_map)
    turns = torch.linalg.qr(torch.tensor(rng.standard_normal((directions, dimension, dimension)))).Q
    base = torch.cat([start.unsqueeze(0), start @ turns])
    flat = worst_direction(start, 1e-6).unsqueeze(0)
    away = sideways(torch.cat([flat, torch.tensor(rng.standard_normal((directions, *start.shape)))]), base)
    norm = (away.square() / eigenvalues).sum((-2, -1)).sqrt()
    radius = values[-1] / (3 * (2 * values[0] * eigenvalues[0]).sqrt())
    shares = torch.tensor([1.0, *np.linspace(0.05, 1, directions)], dtype=torch.float64)
    away = away * (shares * radius / norm)[:, None, None]
    products = (landscape.gradient(base + away, whitened_map) * away).sum((-2, -1))
    squares = (away.square() / eigenvalues).sum((-2, -1))
    return float((products / (values[-1] * eigenvalues[-1] * squares)).min())
