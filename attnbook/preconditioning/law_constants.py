r"""The constants of the scaling law: what $n$ samples leave.

In whitened coordinates, where the covariance of the inputs is the identity:

=======================  ===========================  =======================================================
paper                    name here                    meaning, shape
=======================  ===========================  =======================================================
$\tilde U$               ``value``                    $U\Sigma^{1/2}$, ``(..., n_outputs, dimension)``
$\tilde V$               ``key_query``                $\Sigma^{1/2}V\Sigma^{1/2}$, ``(..., dimension, dimension)``
$\tilde A$               ``target``                   $A\Sigma^{1/2}$, ``(..., n_outputs, dimension)``
$\mathcal B$             ``bias_coefficient``         $\lim n\,(\mathbb EL_n-L)$
$\gamma$                 ``heavy_tail_exponent``      $\mathbb EL_n-L^*\sim n^{-\gamma}$ at an optimum
                         ``oracle_constant``          $\lim n^2\,(L-L^*)$ where the gradient oracle ends
=======================  ===========================  =======================================================

The text of the paper available to us has no equations; the exact coefficients here are this book's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.landscape import curvature
from attnbook.preconditioning.manifold import Map, Point, Square, minimum, split

__all__ = [
    "bias_coefficient",
    "bias_gradient",
    "curvature_inverse",
    "heavy_tail_exponent",
    "oracle_constant",
    "spectral_start_constant",
]


def bias_coefficient(value: Map, key_query: Square, *, target: Map) -> Float[Tensor, "*batch"]:
    r"""Return $\mathcal B=\lim_nn\,(\mathbb EL_n-L)$: the exact coefficient of $1/n$, not an identity at finite $n$.

    With $E_0=\tilde U\tilde V-\tilde A$, $S=(I-2\tilde V^\top\tilde V)^{-1}$ and $c_S=\sqrt{\det S}$ it is the sum of:

    * the query is among its own keys: $\mathrm{tr}(E_0^\top\tilde U(I-\tilde V)^{-\top})\,/\,|\det(I-\tilde V)|$,
    * the mean of a ratio is not the ratio of the means: $-c_S\,\mathrm{tr}(E_0^\top\tilde U\tilde VS)$,
    * attention is noisy: $\frac{c_S}2\big(\|\tilde U\|_F^2+\mathrm{tr}((\tilde U\tilde V)^\top\tilde U\tilde VS)\big)$.

    Args:
        value: $\tilde U$, whitened as by :func:`~attnbook.preconditioning.population.whiten`; any batch axes.
        key_query: $\tilde V$, of largest singular value below $\sqrt{1/2}$.
        target: $\tilde A=A\Sigma^{1/2}$.

    Returns:
        The coefficient; differentiable.

    Raises:
        ValueError: If a singular value of ``key_query`` reaches $\sqrt{1/2}$: the last term is then infinite.

    Example:
        >>> half = torch.full((1, 1), 0.5, dtype=torch.float64)
        >>> round(float(bias_coefficient(half, half, target=half * half)), 6)
        0.265165
    """
    largest = float(torch.linalg.matrix_norm(key_query.detach(), 2).max())
    if not largest**2 < 0.5:
        raise ValueError(
            f"key_query: expected singular values below {math.sqrt(0.5):.4f}, where the coefficient is finite, got "
            f"{largest:.4g}"
        )
    one = torch.eye(key_query.shape[-1], dtype=key_query.dtype, device=key_query.device)
    product = value @ key_query
    error = product - target
    weight = torch.linalg.inv(one - 2 * key_query.mT @ key_query)
    scale = torch.linalg.det(weight).sqrt()
    without = one - key_query
    itself = _inner(error, value @ torch.linalg.inv(without).mT) / torch.linalg.det(without).abs()
    ratio = -scale * _inner(error, product @ weight)
    variance = scale / 2 * (_inner(value, value) + _inner(product, product @ weight))
    return itself + ratio + variance


def bias_gradient(point: Point, *, target: Map) -> Point:
    r"""Return $\nabla\mathcal B$: $n$ times the bias of the expected gradient, to leading order.

    Args:
        point: $\tilde U$ above $\tilde V^\top$, as in :mod:`~attnbook.preconditioning.manifold`; any batch axes.
        target: $\tilde A$.

    Returns:
        The gradient, a point.

    Raises:
        ValueError: As :func:`bias_coefficient`.
    """
    leaf = point.detach().requires_grad_()
    value, key = split(leaf)
    return torch.autograd.grad(bias_coefficient(value, key.mT, target=target).sum(), leaf)[0]


def curvature_inverse(target: Map) -> Float[Tensor, "size size"]:
    r"""Return the pseudo-inverse of the Hessian of $L+\mathcal R$ at a minimum; it leaves out the rotations.

    Args:
        target: $\tilde A$, without batch axes; the minimum is :func:`~attnbook.preconditioning.manifold.minimum`.

    Returns:
        A matrix that acts on flattened points.
    """
    optimum = minimum(target)
    directions = torch.eye(optimum.numel(), device=optimum.device, dtype=optimum.dtype).view(-1, *optimum.shape)
    return torch.linalg.pinv(curvature(optimum, directions, target).flatten(1), rtol=1e-9, hermitian=True)


def oracle_constant(target: Map) -> float:
    r"""Return $\lim n^2\,(L-L^*)$ where the gradient oracle ends: how far $\mathcal B/n$ pulls a minimum.

    The pull moves it by $\delta=-\nabla^2(L+\mathcal R)^+\,\nabla\mathcal B/n$, and the excess is quadratic in that.

    Args:
        target: $\tilde A$, of largest singular value below one half.

    Returns:
        The constant.

    Raises:
        ValueError: As :func:`bias_coefficient`.

    Example:
        >>> round(oracle_constant(torch.tensor([[0.1]], dtype=torch.float64)), 4)
        0.8864
    """
    optimum = minimum(target)
    shift = -curvature_inverse(target) @ bias_gradient(optimum, target=target).flatten()
    (value, key), (for_value, for_key) = split(optimum), split(shift.view_as(optimum))
    return float(0.5 * (for_value @ key.mT + value @ for_key.mT).square().sum())


def heavy_tail_exponent(largest: np.ndarray | float) -> np.ndarray:
    r"""Return $\gamma$ with $\mathbb EL_n-L^*\sim n^{-\gamma}$ at an optimum, up to logarithmic factors.

    $\gamma=1$ for $s_1\le\frac12$ and $\gamma=\sqrt{1/s_1+\frac14}-\frac12$ above: from a random-energy argument, not
    a theorem, and outside the assumptions of the paper's theorem.

    Args:
        largest: $s_1>0$, largest singular value of $\tilde A$.

    Returns:
        The exponent.

    Example:
        >>> heavy_tail_exponent(np.array([0.1, 0.5, 1.5])).round(4).tolist()
        [1.0, 1.0, 0.4574]
    """
    s = np.asarray(largest, dtype=float)
    return np.where(s <= 0.5, 1.0, np.sqrt(1 / s + 0.25) - 0.5)


def spectral_start_constant(singular_values: np.ndarray, n_outputs: int, noise: float) -> float:
    r"""Return $\lim n\,(L(\theta_0)-L^*)$ for the spectral start.

    $\frac12\big[\sigma^2md+\sum_is_i^2+(\sum_is_i)^2\big]$: the price of regression, plus that of using the
    sample covariance in the place of the true one inside attention.

    Args:
        singular_values: $s_1,\dots,s_d$ of $\tilde A$.
        n_outputs: $m$.
        noise: $\sigma$.

    Returns:
        The constant.

    Example:
        >>> spectral_start_constant(np.array([1.0, 1.0]), 3, noise=1.0)
        6.0
    """
    s = np.asarray(singular_values, dtype=float)
    return float(0.5 * (noise**2 * n_outputs * len(s) + (s**2).sum() + s.sum() ** 2))


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum((-2, -1))
