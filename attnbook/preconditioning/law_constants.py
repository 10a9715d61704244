r"""The two terms of the scaling law: what $n$ samples leave, and what $t$ steps leave.

Everything is in whitened coordinates, where the covariance of the inputs is the identity:

=======================  =======================  ===========================================================
paper                    name here                meaning, shape
=======================  =======================  ===========================================================
$\tilde U$               ``value``                $U\Sigma^{1/2}$, ``(..., n_outputs, dimension)``
$\tilde V$               ``key_query``            $\Sigma^{1/2}V\Sigma^{1/2}$, ``(..., dimension, dimension)``
$\tilde A$               ``target``               $A\Sigma^{1/2}$, ``(..., n_outputs, dimension)``
$q$                      ``tilt``                 $\|\tilde Vx\|^2$, variance of the scores of a query
$\mathcal B$             ``bias_coefficient``     $\lim n\,(\mathbb EL_n-L)$
$\gamma$                 ``heavy_tail_exponent``  $\mathbb EL_n-L^*\sim n^{-\gamma}$ at an optimum
=======================  =======================  ===========================================================

The text of the paper available to us has no equations. The bounds of its Lemmas 9 to 14 are reconstructed elsewhere;
the exact coefficients here are this book's.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "BiasTerms",
    "best_split",
    "bias_coefficient",
    "bias_terms",
    "curvature_inverse",
    "heavy_tail_exponent",
    "oracle_bias",
    "oracle_bias_bound",
    "scalar_bias_coefficient",
    "spectral_start_constant",
]

Value: TypeAlias = Float[Tensor, "*#batch outputs dimension"]
Square: TypeAlias = Float[Tensor, "*#batch dimension dimension"]


class BiasTerms(NamedTuple):
    r"""The three parts of $\mathcal B$, each ``(...)``.

    Attributes:
        itself: The query is among its own keys; zero where the layers fit the target.
        ratio: The mean of a ratio is not the ratio of the means; zero where the layers fit the target.
        variance: Attention over finitely many keys is noisy; never zero.
    """

    itself: Tensor
    ratio: Tensor
    variance: Tensor


def bias_terms(value: Value, key_query: Square, *, target: Value) -> BiasTerms:
    r"""Return the exact coefficient of $1/n$ in $\mathbb EL_n$, as its three terms.

    With $E_0=\tilde U\tilde V-\tilde A$, $S=(I-2\tilde V^\top\tilde V)^{-1}$ and $c_S=\sqrt{\det S}$:

    self-interaction $\;\mathrm{tr}(E_0^\top\tilde U(I-\tilde V)^{-\top})\,/\,|\det(I-\tilde V)|$,
    ratio bias $\;-c_S\,\mathrm{tr}(E_0^\top\tilde U\tilde VS)$, attention variance
    $\;\frac{c_S}2\big(\|\tilde U\|_F^2+\mathrm{tr}((\tilde U\tilde V)^\top\tilde U\tilde VS)\big)$.

    Args:
        value: $\tilde U$; any batch axes.
        key_query: $\tilde V$, of largest singular value below $\sqrt{1/2}$.
        target: $\tilde A$.

    Returns:
        The terms; differentiable.

    Raises:
        ValueError: If a singular value of ``key_query`` reaches $\sqrt{1/2}$: the variance term is then infinite.

    Example:
        >>> half = torch.full((1, 1), 0.5, dtype=torch.float64)
        >>> round(float(bias_terms(half, half, target=half * half).variance), 6)
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
    return BiasTerms(itself, ratio, variance)


def bias_coefficient(value: Value, key_query: Square, *, target: Value) -> Float[Tensor, "*batch"]:
    r"""Return $\mathcal B=\lim_nn\,(\mathbb EL_n-L)$: the sum of :func:`bias_terms`.

    It is the exact coefficient of $1/n$, not an identity at finite $n$. The layers are the whitened ones of
    :func:`~attnbook.preconditioning.population.whiten`, the target is $A\Sigma^{1/2}$.

    Args:
        value: $\tilde U$.
        key_query: $\tilde V$.
        target: $\tilde A$.

    Returns:
        The coefficient; differentiable.

    Raises:
        ValueError: As :func:`bias_terms`.

    Example:
        >>> from attnbook.preconditioning.population import spectral_factors, square_roots, whiten
        >>> covariance, true_map = torch.tensor([[4.0]]), torch.tensor([[0.05]])
        >>> root, _ = square_roots(covariance)
        >>> value, key_query, _ = spectral_factors(true_map, covariance)
        >>> layers = whiten(value, key_query, covariance=covariance)
        >>> round(float(bias_coefficient(*layers, target=true_map @ root)), 4)
        0.0629
    """
    return sum(bias_terms(value, key_query, target=target))  # type: ignore[return-value]  # the sum of three tensors


def scalar_bias_coefficient(largest: np.ndarray | float) -> np.ndarray:
    r"""Return $\mathcal B$ at the balanced optimum in one dimension: $\frac12s(1-s)(1-2s)^{-3/2}$.

    Args:
        largest: $s_1$, at least 0.

    Returns:
        The coefficient; infinite from one half on.

    Example:
        >>> float(scalar_bias_coefficient(0.5)), round(float(scalar_bias_coefficient(0.1)), 4)
        (inf, 0.0629)
    """
    s = np.asarray(largest, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(s < 0.5, 0.5 * s * (1 - s) * np.abs(1 - 2 * s) ** -1.5, np.inf)


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


def oracle_bias(value: Float[Tensor, "m d"], key_query: Float[Tensor, "d d"]) -> float:
    r"""Return $\lim n^2(L-L^*)$ at the fixed point of the gradient oracle near an optimum.

    The fixed point minimises $L+\mathcal R+\mathcal B/n$. To first order it is off the optimum by
    $\delta=-\nabla^2(L+\mathcal R)^+\nabla\mathcal B/n$, where the loss is $\frac12\|\delta_U\tilde V
    +\tilde U\delta_V\|_F^2$.

    Args:
        value: $\tilde U$ of the optimum; float64.
        key_query: $\tilde V$.

    Returns:
        The exact constant of the oracle's $n^{-2}$.

    Raises:
        ValueError: As :func:`bias_terms`.
    """
    leaves = [layer.detach().requires_grad_() for layer in (value, key_query)]
    pulls = torch.autograd.grad(bias_coefficient(*leaves, target=(value @ key_query).detach()), leaves)
    flat = -curvature_inverse(value, key_query) @ torch.cat([pull.flatten() for pull in pulls])
    shift = flat[: value.numel()].view(value.shape), flat[value.numel() :].view(key_query.shape)
    return float(0.5 * (shift[0] @ key_query + value @ shift[1]).square().sum())


def curvature_inverse(value: Float[Tensor, "m d"], key_query: Float[Tensor, "d d"]) -> Float[Tensor, "size size"]:
    r"""Return $\nabla^2(L+\mathcal R)^+$ at an optimum: the pseudo-inverse leaves out the rotations of the minimum.

    Args:
        value: $\tilde U$ of the optimum; float64.
        key_query: $\tilde V$.

    Returns:
        The matrix, over the entries of $\tilde U$ and then those of $\tilde V$, row by row.
    """
    outputs, dimension = value.shape
    target = value @ key_query

    def regularised(flat: Tensor) -> Tensor:
        u, v = flat[: outputs * dimension].view(outputs, dimension), flat[outputs * dimension :].view(dimension, -1)
        return 0.5 * (u @ v - target).square().sum() + (u.mT @ u - v @ v.mT).square().sum() / 8

    point = torch.cat([value.flatten(), key_query.flatten()])
    curvature = torch.autograd.functional.hessian(regularised, point)
    return torch.linalg.pinv(curvature, rtol=1e-9, hermitian=True)


def oracle_bias_bound(value: Float[Tensor, "m d"], key_query: Float[Tensor, "d d"]) -> float:
    r"""Return what the proof of Theorem 2 gives for :func:`oracle_bias`: $\frac{16s_1}{s_d^2}\|\nabla\mathcal B\|_F^2$.

    The recursion ends at $\Phi\le\frac{16}{s_d^2}\|b\|^2$ with the bias $b=\nabla\mathcal B/n$ of the gradient, and
    $L-L^*\le s_1\Phi$ to leading order. Reconstructed, with the constants of this book.

    Args:
        value: $\tilde U$ of the optimum; float64.
        key_query: $\tilde V$.

    Returns:
        The bound.

    Raises:
        ValueError: As :func:`bias_terms`.
    """
    leaves = [layer.detach().requires_grad_() for layer in (value, key_query)]
    pulls = torch.autograd.grad(bias_coefficient(*leaves, target=(value @ key_query).detach()), leaves)
    singular = torch.linalg.svdvals(value @ key_query)
    return float(16 * singular[0] / singular[-1] ** 2 * sum(pull.square().sum() for pull in pulls))


def best_split(
    bias: float, power: float, start: float, rate: float, compute: float, *, alignment: float = 0.0
) -> tuple[float, float, float]:
    r"""Return the best split of a compute budget between samples and steps.

    Minimises $\beta n^{-p}+E_0e^{-ct}$ subject to $n^2t=C$, over $ct$ from 0.01 to 1000: one step of attention over
    $n$ samples costs $n^2$. At the best split the optimisation error is $\frac p{2ct}$ of the statistical one. With
    an ``alignment`` $\chi$ the error is $a+b+2\chi\sqrt{ab}$ instead of the sum of its two terms $a$ and $b$: half
    the squared length of a sum of two vectors.

    Args:
        bias: $\beta$, constant of the statistical error.
        power: $p$, its exponent: 1 for one data set, 2 for the gradient oracle.
        start: $E_0$, error of the start.
        rate: $c$, decay of the optimisation error per step.
        compute: $C$, number of pairs of samples over the whole run.
        alignment: $\chi$, cosine between both errors, from -1 to 1; default 0, their sum.

    Returns:
        Samples, steps and error at the best split.

    Raises:
        ValueError: If an argument is not positive, or ``alignment`` is no cosine.

    Example:
        >>> n, t, error = best_split(1.0, 2.0, 1.0, 1.0, 1e6)
        >>> round(n * n * t)
        1000000
    """
    given = {"bias": bias, "power": power, "start": start, "rate": rate, "compute": compute}
    for name, number in given.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name}: expected a positive number, got {number}")

    if not abs(alignment) <= 1:
        raise ValueError(f"alignment: expected -1 to 1, got {alignment}")

    def error(steps: np.ndarray) -> np.ndarray:
        samples, descent = bias * (compute / steps) ** (-power / 2), start * np.exp(-rate * steps)
        return samples + descent + 2 * alignment * np.sqrt(samples * descent)

    grid = np.geomspace(1e-2, 1e3, 401) / rate
    for _ in range(4):
        at = int(error(grid).argmin())
        grid = np.geomspace(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], 401)
    best = grid[int(error(grid).argmin())]
    return math.sqrt(compute / best), float(best), float(error(best))


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum((-2, -1))
