"""The outer eigenvalues of large symmetric matrices that are known by what they do to vectors.

Block Lanczos with full reorthogonalisation and no restarts: for the top hundred of ten thousand it needs a few hundred
products, done in blocks, so that both the products and the reorthogonalisation are matrix products. Every eigenvalue
comes with its residual, a bound on its error.

A block shows no more copies of a repeated eigenvalue than it has vectors, and a matrix of low rank leaves nothing to
go on with. In both cases vectors drawn at random, orthogonal to all before them, join the block. This is why it is
not ``scipy.sparse.linalg.eigsh``, which is as fast but leaves copies out in silence, even at its smallest tolerance:
of nineteen copies of 3 above numbers from -1 to 2.8 it finds fewer.
"""

from __future__ import annotations

import math
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
# Eigenvalues below this share of the largest in size count as this large where their residuals are judged.
FLOOR = 1e-6


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
    """Return the largest eigenvalues of a symmetric matrix, each as often as it occurs.

    Args:
        product: The matrix.
        size: Its number of rows.
        count: How many eigenvalues, between 1 and ``size``.
        block: Vectors multiplied at a time; default 8. Larger ones make a product faster and need more of them.
        tolerance: Largest residual, relative to the eigenvalue itself, or to a millionth of the largest one in size
            if that is more; default 0.01. The error of a separated eigenvalue is of the order of the square; the
            residuals bound all, up to rounding.
        most_products: When to give up, at least ``count + block``; default 2000.
        device: Where the vectors live; default the CPU.
        dtype: Their type; default float64. With float32, eigenvalues below a millionth of the largest are noise.

    Returns:
        Eigenvalues, largest first, with residuals.

    Raises:
        ValueError: If an argument is outside its range, or the product not finite, not symmetric or of another shape.
        RuntimeError: If after ``most_products`` the residuals are still too large, or there may be more copies of an
            eigenvalue than were found.

    Example:
        >>> numbers = torch.arange(500.0, dtype=torch.float64)
        >>> leading_eigenvalues(lambda v: v * numbers, 500, 2, tolerance=1e-6).values.round(3).tolist()
        [499.0, 498.0]
    """
    _check(size, count, block, tolerance, most_products)
    if size <= max(2 * (count + block), 64):
        found = _dense(product, size, device, dtype)
    else:
        start = torch.empty(0, size, device=device, dtype=dtype)
        found = _by_blocks(product, start, count, block, tolerance, most_products)
    values, residuals = (numbers[::-1][:count].copy() for numbers in (found.values, found.residuals))
    return Leading(values, residuals, float(found.values[0]), len(found.values))


def _check(size: int, count: int, block: int, tolerance: float, most_products: int) -> None:
    if not 1 <= count <= size:
        raise ValueError(f"count: expected between 1 and size = {size}, got {count}")
    if block < 1:
        raise ValueError(f"block: expected at least 1, got {block}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected between 0 and 1, got {tolerance}")
    if most_products < count + block:
        raise ValueError(f"most_products: expected at least count + block = {count + block}, got {most_products}")


@dataclass(frozen=True)
class _Ritz:
    """All eigenvalues that a Krylov space shows, the smallest first, with residuals as in :class:`Leading`."""

    values: Float[np.ndarray, " products"]
    residuals: Float[np.ndarray, " products"]

    def allowed(self, tolerance: float) -> Float[np.ndarray, " products"]:
        """Return how large the residuals may be."""
        sizes = np.abs(self.values)
        return tolerance * np.maximum(sizes, FLOOR * sizes.max())

    def may_hide_copies(self, count: int, tolerance: float, drawn: int) -> bool:
        """Say whether as many upper values agree as vectors were drawn, and more like them would change the last."""
        values, residuals, allowed = (x[-count:] for x in (self.values, self.residuals, self.allowed(tolerance)))
        low, high = slice(max(count - drawn + 1, 0)), slice(drawn - 1, None)
        agree = values[high] - values[low] <= residuals[high] + residuals[low] + FLOOR * np.abs(values).max()
        return bool((agree & (values[high] - values[0] > 2 * allowed[high])).any())


def _by_blocks(
    product: BlockProduct, following: Tensor, count: int, block: int, tolerance: float, most_products: int
) -> _Ritz:
    """Go on from random vectors until the upper eigenvalues have converged and none can be hidden."""
    rng, size = stream(0, "Lanczos"), following.shape[1]
    basis = following.new_empty(2 * (count + block), size)
    reduced = np.zeros((len(basis), len(basis)))
    start = end = drawn = 0
    width = explored = block  # explored: vectors drawn early enough for their copies to show
    look_at, largest, thin = count + block, 0.0, False
    while True:
        if (new := min(width, size - end) - len(following)) > 0:
            random = to_tensor(rng.standard_normal((size, new)), device=basis.device, dtype=basis.dtype).T
            following, drawn, thin = torch.cat([following, random]), drawn + new, True
        if thin:
            following = _orthonormal(following, basis[:end])
        before, start, end = start, end, end + len(following)
        if end > len(basis):
            basis, reduced = torch.cat([basis, torch.empty_like(basis)]), np.pad(reduced, (0, len(reduced)))
        basis[start:end] = following
        image, norm = _image(product, following)
        largest = max(largest, norm)
        image, coefficients = _project_out(image, basis[:end], before)
        symmetric(coefficients[:, start - before :], largest)
        reduced[start:end, before:end] = coefficients
        following, coupling, thin = _outside(image, largest)
        following, coupling = following[: size - end], coupling[: size - end]
        last = end + min(width, size - end) > most_products or end == size
        if end < look_at and not last:
            continue
        found = _ritz(reduced[:end, :end], coupling)
        over = (found.residuals - found.allowed(tolerance))[-count:]
        missing = int((over > 0).sum())
        if not missing and (end == size or not found.may_hide_copies(count, tolerance, explored)):
            return found
        if missing and last:
            worst = over.argmax() - count
            raise RuntimeError(
                f"tolerance: after {end} products the eigenvalue {found.values[worst]:.4g} has the residual "
                f"{found.residuals[worst]:.1e}, expected at most {found.allowed(tolerance)[worst]:.1e}; allow more "
                f"products or a larger tolerance"
            )
        if missing:
            look_at = end + max(missing, AT_LEAST)
            continue
        # New vectors beside what there is, for as many steps as the first ones had.
        width, look_at = width + block, min(3 * end, size)
        if look_at > most_products:
            raise RuntimeError(
                f"block: after {end} products as many eigenvalues agree as a block of {explored} vectors can show, so "
                f"that there may be more; allow {look_at} products or take a larger block"
            )
        explored = drawn + block


def _image(product: BlockProduct, vectors: Tensor) -> tuple[Tensor, float]:
    """Multiply, and return the largest norm, too."""
    image = product(vectors)
    if image.shape != vectors.shape:
        raise ValueError(
            f"product: expected images of the shape of its vectors, {tuple(vectors.shape)}, got {tuple(image.shape)}"
        )
    image = image.to(vectors)
    norm = float(torch.linalg.vector_norm(image, dim=1).max())
    if not math.isfinite(norm):
        raise ValueError("product: expected a finite image of a finite vector, got entries that are NaN or infinite")
    return image, norm


def _orthonormal(rows: Tensor, basis: Tensor) -> Tensor:
    """Make rows orthogonal to a basis and to each other; where they are, up to rounding, they keep their direction."""
    for _ in range(2):
        rows = rows - (rows @ basis.T) @ basis
        columns, triangle = torch.linalg.qr(rows.T)
        rows = (columns * triangle.diagonal().sign()).T
    return rows


def _project_out(image: Tensor, basis: Tensor, before: int) -> tuple[Tensor, np.ndarray]:
    """Subtract the part of the vectors inside the span of the basis."""
    # Only the last two blocks have a share in it, but for rounding errors: one pass over all removes those.
    recent = basis[before:]
    coefficients = image @ recent.T
    image = image - coefficients @ recent
    return image - (image @ basis.T) @ basis, coefficients.cpu().double().numpy()


def _outside(image: Tensor, largest: float) -> tuple[Tensor, Tensor, bool]:
    """Return orthonormal rows that span vectors but for rounding errors, the vectors in them, and if some are small."""
    columns, triangle = torch.linalg.qr(image.T)
    if triangle.diagonal().abs().min() > 1e-3 * largest:
        return columns.T, triangle, False
    left, sizes, right = torch.linalg.svd(triangle)
    kept = sizes > 10 * torch.finfo(image.dtype).eps * largest
    return (columns @ left[:, kept]).T, sizes[kept, None] * right[kept], True


def _ritz(reduced: np.ndarray, coupling: Tensor) -> _Ritz:
    """Eigenvalues of the matrix as seen inside the basis; the coupling to what lies outside gives the residuals."""
    values, vectors = np.linalg.eigh(reduced)  # which reads the lower triangle
    last = vectors[-coupling.shape[1] :]
    return _Ritz(values, np.linalg.norm(coupling.cpu().double().numpy() @ last, axis=0))


def symmetric(matrix: np.ndarray, largest: float | None = None) -> np.ndarray:
    """Average the rounding errors of a matrix's two halves.

    Args:
        matrix: Any square one.
        largest: What differences are compared with; default its largest entry.

    Returns:
        The average of the matrix and its transpose.

    Raises:
        ValueError: If the halves differ by more than a thousandth of that.
    """
    off = np.abs(matrix - matrix.T).max()
    if off > 1e-3 * (np.abs(matrix).max() if largest is None else largest):
        raise ValueError(f"product: expected a symmetric matrix, got one whose two halves differ by {off:.2g}")
    return (matrix + matrix.T) / 2


def _dense(product: BlockProduct, size: int, device: torch.device | str, dtype: torch.dtype) -> _Ritz:
    matrix = _image(product, torch.eye(size, device=device, dtype=dtype))[0].cpu().double().numpy()
    return _Ritz(np.linalg.eigvalsh(symmetric(matrix)), np.zeros(size))
