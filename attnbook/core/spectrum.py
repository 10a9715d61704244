r"""Eigenvalues of Hessians, small and large.

A symmetric matrix is known here by what it does to a vector (a *product*). Small ones are written out and decomposed;
for large ones Lanczos' method finds the extreme eigenvalues from a few dozen products. Hessians of losses over several
separate groups of parameters have more structure (:class:`BlocksPlusLowRank`), and then a product is cheap at any size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from attnbook.core.ensemble import Parameters
from attnbook.core.lanczos import FLOOR, BlockProduct, symmetric
from attnbook.core.rng import stream

__all__ = ["BlocksPlusLowRank", "Product", "dense", "extreme_eigenvalues", "hessian_in_blocks", "hessian_product"]

Product: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""A symmetric matrix as a function from vectors ``(size,)`` to vectors ``(size,)``, float64."""


# Products between two looks at how far Lanczos' method has come.
LOOK_EVERY = 8


def hessian_product(loss: Callable[[Parameters], Tensor], parameters: Parameters) -> tuple[Product, int]:
    """Return the product of a loss's Hessian with a vector, by differentiating twice.

    The first derivative is computed once; each product then costs about as much as one more gradient.

    Args:
        loss: Parameters to a scalar tensor. Where it is linear, products are zero, with a warning. What a module in it
            keeps in buffers, as BatchNorm does in training mode, stays as it is.
        parameters: Where the Hessian is taken; the order of names and entries is that of the vectors. Frozen ones,
            ``torch.nn.Parameter`` with ``requires_grad=False``, are left out.

    Returns:
        The product and the size of its vectors. Vectors are float64 on the CPU, whatever type and device the
        parameters have.

    Raises:
        ValueError: If the loss is not a finite scalar or depends on no parameter, or all of these are frozen.

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
        loss: As in :func:`hessian_product`; of a module, through ``torch.func.functional_call``.
        parameters: As there, for example ``dict(model.named_parameters())``.

    Returns:
        The product and the size of its vectors, which keep their type and device.

    Raises:
        ValueError: If the loss is not a finite scalar or depends on no parameter, or all of these are frozen.

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
    leaves = {name: tensor.detach().clone() for name, tensor in parameters.items()}
    own = []
    for name, tensor in parameters.items():
        if isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:
            continue
        if not tensor.is_floating_point():
            raise ValueError(f"parameters: expected floating-point numbers, got {tensor.dtype} in {name!r}")
        own.append(leaves[name].requires_grad_())
    if not own:
        raise ValueError(f"parameters: expected at least one that is not frozen, got {list(parameters)}")
    # Fused attention has no second derivative.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _copied_buffers():
        found = loss(leaves)
        value = found if isinstance(found, Tensor) else own[0].new_tensor(found)
        if value.numel() != 1 or not torch.isfinite(value).all():
            raise ValueError(f"loss: expected a finite scalar, got {value.detach().cpu()}")
        gradients = (
            torch.autograd.grad(value.sum(), own, create_graph=True, allow_unused=True) if value.requires_grad else ()
        )
        if all(g is None for g in gradients):
            raise ValueError("loss: expected one that depends on the parameters that it is given, got a constant")
        return _joined(gradients, own), own


def _derivative(gradient: Tensor, own: list[Tensor], vector: Tensor) -> Tensor:
    """The derivative of gradient times vector."""
    rows: tuple[Tensor | None, ...] = (None,) * len(own)
    if gradient.requires_grad:
        rows = torch.autograd.grad(gradient, own, vector, retain_graph=True, allow_unused=True)
    if all(row is None for row in rows):
        warnings.warn("loss: linear in the parameters, so that its Hessian is zero", stacklevel=3)
    return _joined(rows, own)


def _joined(parts: Sequence[Tensor | None], own: list[Tensor]) -> Tensor:
    """Derivatives by all parameters as one vector; zero by those on which nothing depends."""
    pairs = zip(parts, own, strict=True)
    return torch.cat([(torch.zeros_like(leaf) if part is None else part).reshape(-1) for part, leaf in pairs])


@contextmanager
def _copied_buffers() -> Iterator[None]:
    """Let modules that run inside change copies of their buffers, as BatchNorm does in training mode."""
    kept: list[list[tuple[torch.nn.Module, dict[str, Tensor | None]]]] = []  # one entry per module that is running

    def before(module: torch.nn.Module, _: Any) -> None:
        kept.append([] if kept else [(part, dict(part._buffers)) for part in module.modules()])
        for part, buffers in kept[-1]:
            part._buffers.update({name: buffer.clone() for name, buffer in buffers.items() if buffer is not None})

    def after(*_: Any) -> None:
        for part, buffers in kept.pop():
            part._buffers.update(buffers)

    hooks = register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def dense(product: Product, size: int) -> Float[np.ndarray, "size size"]:
    """Write a symmetric matrix out, one product per column.

    Args:
        product: The matrix.
        size: Its number of rows.

    Returns:
        The matrix, with the rounding errors of its two halves averaged.

    Raises:
        ValueError: If it has entries that are not finite or is not symmetric.
    """
    columns = np.stack([product(column) for column in np.eye(size)], axis=1)
    _finite(columns)
    return symmetric(columns)


def extreme_eigenvalues(
    product: Product, size: int, *, dense_below: int = 2000, tolerance: float = 1e-4, most_products: int = 2000
) -> tuple[float, float]:
    """Return the smallest and the largest eigenvalue of a symmetric matrix.

    For many eigenvalues at the upper end, from products in blocks, use
    :func:`attnbook.core.lanczos.leading_eigenvalues`.

    Args:
        product: The matrix.
        size: Its number of rows, at least 1.
        dense_below: Matrices with fewer rows are written out and decomposed; default 2000, a few seconds.
        tolerance: Largest residual of Lanczos' method, relative to the eigenvalue itself, or to a millionth of the
            larger of the two in size if that is more; default 1e-4. A third more products must not change the
            eigenvalues by more than that. What is returned never lies outside the spectrum, up to rounding. Matrices
            written out are exact to rounding.
        most_products: When Lanczos' method gives up, at least 1; default 2000.

    Returns:
        The smallest and the largest eigenvalue.

    Raises:
        ValueError: If a number is outside its range or the matrix has entries that are not finite or is not symmetric.
        RuntimeError: If Lanczos' method does not converge.

    Example:
        >>> extreme_eigenvalues(lambda v: np.array([3.0, -1.0]) * v, 2)
        (-1.0, 3.0)
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1, got {size}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected between 0 and 1, got {tolerance}")
    if most_products < 1:
        raise ValueError(f"most_products: expected at least 1, got {most_products}")
    if size < dense_below:
        values = np.linalg.eigvalsh(dense(product, size))
        return float(values[0]), float(values[-1])
    return _by_lanczos(product, size, tolerance, most_products)


def _by_lanczos(product: Product, size: int, tolerance: float, most_products: int) -> tuple[float, float]:
    """Go on from a random vector, and so with a share in every eigenvector, until both ends have converged."""
    from scipy.linalg import eigh_tridiagonal

    vector = stream(0, "Lanczos").standard_normal(size)
    vector /= np.linalg.norm(vector)
    basis, largest = np.empty((2 * LOOK_EVERY, size)), 0.0
    look_at, before = LOOK_EVERY, np.full(2, np.inf)
    diagonal: list[float] = []
    beside: list[float] = []
    for m in range(1, min(size, most_products) + 1):
        if m > len(basis):
            basis = np.concatenate([basis, np.empty_like(basis)])
        basis[m - 1] = vector
        image = np.array(product(vector), dtype=np.float64).ravel()
        _finite(image)
        largest = max(largest, float(np.linalg.norm(image)))
        diagonal.append(float(basis[m - 1] @ image))
        image -= diagonal[-1] * basis[m - 1]
        if m > 1:
            image -= beside[-1] * basis[m - 2]
        rest = basis[:m] @ image  # rounding errors
        if np.abs(rest).max() > 1e-3 * largest:
            raise ValueError("product: expected a symmetric matrix, got one that is not")
        image -= rest @ basis[:m]
        beside.append(float(np.linalg.norm(image)))
        exhausted = m == size or beside[-1] <= 10 * np.finfo(np.float64).eps * largest
        if exhausted or m == most_products or m >= look_at:
            values, vectors = eigh_tridiagonal(diagonal, beside[:-1])
            ends = values[[0, -1]]
            residuals = beside[-1] * np.abs(vectors[-1, [0, -1]])
            allowed = tolerance * np.maximum(np.abs(ends), FLOOR * np.abs(ends).max())
            small = bool((residuals <= allowed).all())
            if exhausted or (small and (np.abs(ends - before) <= allowed).all()):
                return float(ends[0]), float(ends[1])
            # Small residuals may belong to neighbours of the ends: a third more products must not move them.
            before = ends if small else np.full(2, np.inf)
            look_at = m + (max(m // 3, LOOK_EVERY) if small else LOOK_EVERY)
        vector = image / beside[-1]
    raise RuntimeError(
        f"tolerance: after {most_products} products the eigenvalues {ends} have the residuals {residuals}, expected at "
        f"most {allowed}; allow more products or a larger tolerance"
    )


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
