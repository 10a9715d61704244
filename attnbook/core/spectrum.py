r"""Eigenvalues of Hessians, small and large.

A symmetric matrix is known here by what it does to a vector (a *product*). Small ones are written out and decomposed;
for large ones Lanczos' method finds the extreme eigenvalues from a few dozen products. Hessians of losses over several
separate groups of parameters have more structure (:class:`BlocksPlusLowRank`), and then a product is cheap at any size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbook.core.ensemble import Parameters
from attnbook.core.lanczos import BlockProduct
from attnbook.core.rng import stream

__all__ = ["BlocksPlusLowRank", "Product", "dense", "extreme_eigenvalues", "hessian_in_blocks", "hessian_product"]

Product: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""A symmetric matrix as a function from vectors ``(size,)`` to vectors ``(size,)``, float64."""


def hessian_product(loss: Callable[[Parameters], Tensor], parameters: Parameters) -> tuple[Product, int]:
    """Return the product of a loss's Hessian with a vector, by differentiating twice.

    The first derivative is computed once; each product then costs about as much as one more gradient.

    Args:
        loss: Parameters to a scalar tensor.
        parameters: Where the Hessian is taken; the order of names and entries is that of the vectors.

    Returns:
        The product and the size of its vectors. Vectors are float64 on the CPU, whatever type and device the
        parameters have.

    Raises:
        ValueError: If the loss is not a finite scalar.

    Example:
        >>> product, size = hessian_product(lambda p: p["w"].square().sum(), {"w": torch.zeros(2, 3)})
        >>> size, product(np.ones(6)).tolist()
        (6, [2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    """
    gradient, leaves = _gradient(loss, parameters)

    def product(vector: np.ndarray) -> np.ndarray:
        moved = torch.as_tensor(np.asarray(vector).ravel(), dtype=gradient.dtype, device=gradient.device)
        return _derivative(gradient, leaves, moved).cpu().double().numpy()

    return product, gradient.numel()


def hessian_in_blocks(loss: Callable[[Parameters], Tensor], parameters: Parameters) -> tuple[BlockProduct, int]:
    """Return the product of a loss's Hessian as :func:`attnbook.core.lanczos.leading_eigenvalues` wants it, in blocks.

    Args:
        loss: Parameters to a scalar tensor; of a module, through ``torch.func.functional_call``.
        parameters: Where the Hessian is taken, for example ``dict(model.named_parameters())``.

    Returns:
        The product and the size of its vectors, which keep their type and device.

    Raises:
        ValueError: If the loss is not a finite scalar.

    Example:
        >>> product, size = hessian_in_blocks(lambda p: p["w"].square().sum(), {"w": torch.zeros(2)})
        >>> size, product(torch.eye(2)).tolist()
        (2, [[2.0, 0.0], [0.0, 2.0]])
    """
    gradient, leaves = _gradient(loss, parameters)

    def product(vectors: Tensor) -> Tensor:
        return torch.stack([_derivative(gradient, leaves, v) for v in vectors.to(gradient)]).to(vectors)

    return product, gradient.numel()


def _gradient(loss: Callable[[Parameters], Tensor], parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
    """The gradient of a loss as one vector that can be differentiated again, and what to differentiate by."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in parameters.items()}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        value = loss(leaves)
        if value.numel() != 1 or not torch.isfinite(value).all():
            raise ValueError(f"loss: expected a finite scalar, got {value.detach().cpu()}")
        own = list(leaves.values())
        gradients = torch.autograd.grad(value.sum(), own, create_graph=True, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in gradients]), own


def _derivative(gradient: Tensor, leaves: list[Tensor], vector: Tensor) -> Tensor:
    """The derivative of gradient times vector; zero by what the gradient does not depend on."""
    rows = torch.autograd.grad(gradient, leaves, vector, retain_graph=True, materialize_grads=True)
    return torch.cat([row.reshape(-1) for row in rows])


def dense(product: Product, size: int) -> Float[np.ndarray, "size size"]:
    """Write a symmetric matrix out, one product per column.

    Args:
        product: The matrix.
        size: Its number of rows.

    Returns:
        The matrix, with the rounding errors of its two halves averaged.
    """
    columns = np.stack([product(column) for column in np.eye(size)], axis=1)
    return (columns + columns.T) / 2


def extreme_eigenvalues(
    product: Product, size: int, *, dense_below: int = 2000, tolerance: float = 1e-4
) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue of a symmetric matrix.

    For many eigenvalues at the upper end, from products in blocks, use
    :func:`attnbook.core.lanczos.leading_eigenvalues`.

    Args:
        product: The matrix.
        size: Its number of rows, at least 1.
        dense_below: Matrices with fewer rows are written out and decomposed; default 2000, a few seconds.
        tolerance: Relative accuracy of Lanczos' method; default 1e-4. Matrices written out are exact to rounding.

    Returns:
        The smallest and the largest eigenvalue.

    Raises:
        ValueError: If a number is outside its range or the matrix has entries that are not finite.
        RuntimeError: If Lanczos' method does not converge.

    Example:
        >>> extreme_eigenvalues(lambda v: np.array([3.0, -1.0]) * v, 2)
        (-1.0, 3.0)
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1, got {size}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected between 0 and 1, got {tolerance}")
    if size < max(dense_below, 4):  # Lanczos needs room for more vectors than eigenvalues
        matrix = dense(product, size)
        _finite(matrix)
        values = np.linalg.eigvalsh(matrix)
        return float(values[0]), float(values[-1])
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    start = stream(0, "Lanczos").standard_normal(size)
    _finite(product(start))
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        both = eigsh(operator, k=2, which="BE", v0=start, tol=tolerance, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        raise RuntimeError(f"extreme_eigenvalues: no convergence at tolerance {tolerance:g}: {error}") from error
    return float(both.min()), float(both.max())


@dataclass(frozen=True)
class BlocksPlusLowRank:
    r"""The symmetric matrix $A=B+F^\top CF$ with $B$ block-diagonal and $C$ diagonal and positive.

    The Hessian of an average of $r$ convex losses of a *sum* of parts has this form: $F$ holds the gradients of the
    $r$ outputs, $C$ the curvatures of the losses, and $B$ the curvature of the parts, each with itself only.

    Attributes:
        blocks: The diagonal blocks of $B$, each symmetric.
        rows: $F$.
        weights: The diagonal of $C$, positive.

    Raises:
        ValueError: If the shapes do not fit, an entry is not finite, or a weight is not positive.

    Example:
        >>> matrix = BlocksPlusLowRank(-np.eye(2)[None], np.array([[1.0, 0.0]]), np.array([3.0]))
        >>> matrix.dense().tolist()
        [[2.0, 0.0], [0.0, -1.0]]
    """

    blocks: Float[np.ndarray, "blocks block block"]
    rows: Float[np.ndarray, "rank size"]
    weights: Float[np.ndarray, " rank"]

    def __post_init__(self) -> None:
        count, block, _ = self.blocks.shape
        if self.rows.shape != (len(self.weights), count * block):
            expected = (len(self.weights), count * block)
            raise ValueError(f"rows: expected {expected}, (weights, all rows of the blocks), got {self.rows.shape}")
        for name in ("blocks", "rows", "weights"):
            _finite(getattr(self, name), name)
        if not (self.weights > 0).all():
            raise ValueError(f"weights: expected positive numbers, got {self.weights.min()}")

    @property
    def size(self) -> int:
        """Number of rows of $A$."""
        return self.rows.shape[1]

    def product(self, vector: np.ndarray) -> np.ndarray:
        """Return $A$ times a vector ``(size,)``."""
        flat = np.asarray(vector).ravel()
        on_blocks = np.matmul(self.blocks, flat.reshape(*self.blocks.shape[:2], 1)).ravel()
        return on_blocks + self.rows.T @ (self.weights * (self.rows @ flat))

    def dense(self) -> Float[np.ndarray, "size size"]:
        """Return $A$ written out."""
        matrix = (self.rows.T * self.weights) @ self.rows
        step = self.blocks.shape[1]
        for i, block in enumerate(self.blocks):
            at = slice(i * step, (i + 1) * step)
            matrix[at, at] += block
        return matrix


def _finite(array: np.ndarray, name: str = "product") -> None:
    bad = array.size - int(np.isfinite(array).sum())
    if bad:
        raise ValueError(f"{name}: {bad} of {array.size} entries are NaN or infinite")
