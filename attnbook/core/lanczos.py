"""The leading eigenvalues of large symmetric matrices that are known by what they do to vectors.

Block Lanczos with full reorthogonalisation and no restarts: for the top hundred of ten thousand it needs a few hundred
products, done in blocks, so that both the products and the reorthogonalisation are matrix products. Every eigenvalue
comes with its residual, a bound on its error. For the one smallest and the one largest eigenvalue alone, of a matrix
that knows its product with a single vector, use :func:`attnbook.core.spectrum.extreme_eigenvalues`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor

__all__ = ["BlockProduct", "Leading", "leading_eigenvalues"]

BlockProduct: TypeAlias = Callable[[Tensor], Tensor]
"""A symmetric matrix as a function of vectors ``(vectors, size)``, one per row."""

# Convergence is tested again after as many products as eigenvalues are missing, but not before this many.
AT_LEAST = 16


@dataclass(frozen=True)
class Leading:
    """The largest eigenvalues of a symmetric matrix.

    Attributes:
        values: The eigenvalues, the largest first, ``(count,)``.
        residuals: Norm of (matrix @ vector - value * vector) for each; an eigenvalue lies within this distance.
        lowest: The smallest Ritz value: the smallest eigenvalue is at most this.
        products: Number of products that were needed.
    """

    values: Float[np.ndarray, " count"]
    residuals: Float[np.ndarray, " count"]
    lowest: float
    products: int


@torch.no_grad()
def leading_eigenvalues(
    product: BlockProduct,
    size: int,
    count: int,
    *,
    block: int = 8,
    tolerance: float = 1e-2,
    most_products: int = 2000,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Leading:
    """Return the largest eigenvalues of a symmetric matrix.

    Args:
        product: The matrix.
        size: Its number of rows.
        count: How many eigenvalues, between 1 and ``size``.
        block: Vectors multiplied at a time; default 8. Larger ones make a product faster and need more of them.
        tolerance: Largest residual, relative to the eigenvalue itself; default 0.01. The error of a separated
            eigenvalue is of the order of the square; the residuals bound all.
        most_products: When to give up, at least ``count + block``; default 2000.
        device: Where the vectors live; default the CPU.
        dtype: Their type; default float64. With float32, eigenvalues below a millionth of the largest are noise.

    Returns:
        Eigenvalues, largest first, with residuals.

    Raises:
        ValueError: If an argument is outside its range or the product is not finite.
        RuntimeError: If the residuals are still too large after ``most_products``.

    Example:
        >>> numbers = torch.arange(500.0, dtype=torch.float64)
        >>> leading_eigenvalues(lambda v: v * numbers, 500, 2, tolerance=1e-6).values.round(3).tolist()
        [499.0, 498.0]
    """
    _check(size, count, block, tolerance, most_products)
    if size <= max(2 * (count + block), 64):
        return _dense(product, size, count, device, dtype)
    rows = min(most_products // block * block, size // block * block)
    basis = torch.empty(rows, size, device=device, dtype=dtype)
    reduced = np.zeros((rows, rows))
    start = to_tensor(stream(0, "Lanczos").standard_normal((size, block)), device=device, dtype=dtype)
    basis[:block] = torch.linalg.qr(start).Q.T
    look_at = count + block
    for m in range(block, rows + 1, block):
        image, coefficients = _project_out(product(basis[m - block : m]), basis[:m], block)
        reduced[m - block : m, m - coefficients.shape[1] : m] = coefficients
        following, coupling = torch.linalg.qr(image.T)
        if m >= look_at or m == rows:
            found = _ritz(reduced[:m, :m], coupling, count)
            missing = count - int((found.residuals <= tolerance * np.abs(found.values)).sum())
            if not missing:
                return found
            look_at = m + max(missing, AT_LEAST)
        if m < rows:
            basis[m : m + block] = following.T
    worst = float((found.residuals / np.abs(found.values)).max())
    raise RuntimeError(
        f"leading_eigenvalues: relative residual {worst:.1e} above the tolerance {tolerance:g} after {rows} products; "
        f"allow more products or a larger tolerance"
    )


def _check(size: int, count: int, block: int, tolerance: float, most_products: int) -> None:
    if not 1 <= count <= size:
        raise ValueError(f"count: expected between 1 and size = {size}, got {count}")
    if block < 1:
        raise ValueError(f"block: expected at least 1, got {block}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected between 0 and 1, got {tolerance}")
    if most_products < count + block:
        raise ValueError(f"most_products: expected at least count + block = {count + block}, got {most_products}")


def _project_out(image: Tensor, basis: Tensor, block: int) -> tuple[Tensor, np.ndarray]:
    """Subtract the part of the vectors inside the span of the basis."""
    # Only the last two blocks have a share in it, but for rounding errors: one pass over all removes those.
    recent = basis[-2 * block :]
    coefficients = image @ recent.T
    numbers = coefficients.cpu().double().numpy()
    if not np.isfinite(numbers).all():
        raise ValueError("product: expected a finite image of a finite vector, got entries that are NaN or infinite")
    image = image - coefficients @ recent
    return image - (image @ basis.T) @ basis, numbers


def _ritz(reduced: np.ndarray, coupling: Tensor, count: int) -> Leading:
    """Eigenvalues of the matrix as seen inside the basis; the coupling to what lies outside gives the residuals."""
    lower = np.tril(reduced)
    values, vectors = np.linalg.eigh(lower + np.tril(reduced, -1).T)
    last = vectors[-len(coupling) :]
    residuals = np.linalg.norm(coupling.cpu().double().numpy() @ last, axis=0)
    return Leading(values[::-1][:count].copy(), residuals[::-1][:count].copy(), float(values[0]), len(reduced))


def _dense(product: BlockProduct, size: int, count: int, device: torch.device | str, dtype: torch.dtype) -> Leading:
    matrix = product(torch.eye(size, device=device, dtype=dtype)).cpu().double().numpy()
    if not np.isfinite(matrix).all():
        raise ValueError("product: expected a finite image of a finite vector, got entries that are NaN or infinite")
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    return Leading(values[::-1][:count].copy(), np.zeros(count), float(values[0]), size)
