r"""The population loss, its regulariser and its geometry, in closed form.

=======================  ===================  =================================================================
paper                    name here            meaning, shape
=======================  ===================  =================================================================
$U$                      ``value``            value matrix, ``(..., n_outputs, dimension)``
$V$                      ``key_query``        product of key and query matrices, ``(..., dimension, dimension)``
$\Sigma$, $\hat\Sigma$   ``covariance``       of the inputs, or its estimate, ``(..., dimension, dimension)``
$A$, $\hat A$            ``true_map``         linear teacher, or its estimate, ``(..., n_outputs, dimension)``
$L-L^*$                  ``excess_loss``      $\frac12\|(U\Sigma V-A)\Sigma^{1/2}\|_F^2$; $L^*=\frac12m\sigma^2$
$\mathcal R$             ``balance_penalty``  $\frac18\|\Sigma^{1/2}(U^\top U-V\Sigma V^\top)\Sigma^{1/2}\|_F^2$
$\tilde U,\tilde V$      ``whiten``           $U\Sigma^{1/2}$ and $\Sigma^{1/2}V\Sigma^{1/2}$
=======================  ===================  =================================================================

All functions take leading batch axes and any floating point type. The text of the paper available to us has no
equations: every formula is this book's reconstruction. The weight of the regulariser is the natural one (whitened, it
is that of low-rank factorisation by Tu and others, 2016); its factor 1/8 is this book's.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "Preconditioner",
    "balance_penalty",
    "check_covariance",
    "check_parts",
    "excess_loss",
    "excess_loss_gradient",
    "imbalance",
    "penalty_gradient",
    "precondition",
    "sample_covariance",
    "spectral_factors",
    "square_roots",
    "whiten",
]

Preconditioner: TypeAlias = Literal["none", "left", "two"]
Value: TypeAlias = Float[Tensor, "*#batch outputs dimension"]
Square: TypeAlias = Float[Tensor, "*#batch dimension dimension"]
Layers: TypeAlias = tuple[Value, Square]


def sample_covariance(inputs: Float[Tensor, "*batch samples dimension"]) -> Float[Tensor, "*batch dimension dimension"]:
    r"""Return $\hat\Sigma=X^\top X/n$; not centred, as the inputs have mean zero.

    Args:
        inputs: Samples, one per row.

    Returns:
        The estimate.

    Raises:
        ValueError: If an input is not finite, or there are fewer samples than dimensions: it would be singular.
    """
    samples, dimension = inputs.shape[-2:]
    if not torch.isfinite(inputs).all():
        raise ValueError("inputs: expected finite numbers, got NaN or infinity")
    if samples < dimension:
        raise ValueError(f"inputs: expected at least as many samples as dimensions ({dimension}), got {samples}")
    return inputs.mT @ inputs / samples


def check_covariance(covariance: Square) -> None:
    """Refuse a matrix that is no covariance of full rank (Assumption 1).

    Args:
        covariance: What is to be used as covariance.

    Raises:
        ValueError: If it is not square, has a NaN or infinite entry, is not symmetric or not positive definite.
    """
    if covariance.ndim < 2 or covariance.shape[-2] != covariance.shape[-1]:
        raise ValueError(f"covariance: expected a square matrix, got shape {tuple(covariance.shape)}")
    if not torch.isfinite(covariance).all():
        raise ValueError("covariance: expected finite numbers, got NaN or infinity")
    precision, scale = torch.finfo(covariance.dtype).eps, covariance.abs().amax((-2, -1))
    uneven = (covariance - covariance.mT).abs().amax((-2, -1))
    if (uneven > 100 * precision * scale).any():
        raise ValueError(f"covariance: expected a symmetric matrix, got one that differs by {float(uneven.max()):.3g}")
    smallest = torch.linalg.eigvalsh(covariance.double())[..., 0]
    if (smallest <= covariance.shape[-1] * precision * scale).any():
        raise ValueError(
            f"covariance: expected a positive definite matrix, got smallest eigenvalue {float(smallest.min()):.3g}; "
            "drop redundant inputs, or add a multiple of the identity"
        )


def check_parts(preconditioner: str, penalty: float = 0.0, *, name: str = "preconditioner") -> None:
    """Refuse an unknown preconditioner or a weight of the regulariser that is negative or not finite.

    Args:
        preconditioner: One of :data:`Preconditioner`.
        penalty: The weight; default 0.
        name: What to call the preconditioner in the message.

    Raises:
        ValueError: If one of them is.
    """
    if preconditioner not in get_args(Preconditioner):
        raise ValueError(f"{name}: expected one of {', '.join(get_args(Preconditioner))}, got {preconditioner!r}")
    if not 0 <= penalty < float("inf"):
        raise ValueError(f"penalty: expected a finite number of at least 0, got {penalty}")


def square_roots(covariance: Square) -> tuple[Square, Square]:
    r"""Return the symmetric $\Sigma^{1/2}$ and $\Sigma^{-1/2}$.

    Args:
        covariance: Symmetric and positive definite.

    Returns:
        The root and its inverse.

    Raises:
        ValueError: As :func:`check_covariance`.
    """
    check_covariance(covariance)
    eigenvalues, axes = torch.linalg.eigh(covariance)
    root = eigenvalues.sqrt().unsqueeze(-2)
    return (axes * root) @ axes.mT, (axes / root) @ axes.mT


def excess_loss(value: Value, key_query: Square, *, covariance: Square, true_map: Value) -> Float[Tensor, "*batch"]:
    r"""Return $L(\theta)-L^*=\frac12\|(U\Sigma V-A)\Sigma^{1/2}\|_F^2$, Theorem 1.1.

    For Gaussian inputs softmax attention with infinitely many keys is the linear map $x\mapsto U\Sigma Vx$.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$.
        true_map: $A$.

    Returns:
        The excess over the best loss.

    Example:
        >>> one = torch.ones(1, 1)
        >>> float(excess_loss(2 * one, one, covariance=one, true_map=5 * one))
        4.5
    """
    error = value @ covariance @ key_query - true_map
    return 0.5 * (error @ covariance * error).sum((-2, -1))


def excess_loss_gradient(value: Value, key_query: Square, *, covariance: Square, true_map: Value) -> Layers:
    r"""Return the gradients of :func:`excess_loss`: $EV^\top\Sigma$ and $\Sigma U^\top E$, $E=(U\Sigma V-A)\Sigma$.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$.
        true_map: $A$.

    Returns:
        The gradients for ``value`` and ``key_query``.
    """
    error = (value @ covariance @ key_query - true_map) @ covariance
    return error @ key_query.mT @ covariance, covariance @ value.mT @ error


def balance_penalty(value: Value, key_query: Square, *, covariance: Square) -> Float[Tensor, "*batch"]:
    r"""Return $\mathcal R=\frac18\|\Sigma^{1/2}B\Sigma^{1/2}\|_F^2$ with $B=U^\top U-V\Sigma V^\top$.

    It is zero when the two layers are in balance: of equal size in the whitened coordinates.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$ or $\hat\Sigma$.

    Returns:
        The penalty.

    Example:
        >>> one = torch.ones(1, 1)
        >>> float(balance_penalty(3 * one, one, covariance=one))
        8.0
    """
    return _square_norm(_difference(value, key_query, covariance), covariance) / 8


def penalty_gradient(value: Value, key_query: Square, *, covariance: Square) -> Layers:
    r"""Return the gradients of :func:`balance_penalty`: $\frac12U\Sigma B\Sigma$ and $-\frac12\Sigma B\Sigma V\Sigma$.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$ or $\hat\Sigma$.

    Returns:
        The gradients for ``value`` and ``key_query``.
    """
    weighted = 0.5 * covariance @ _difference(value, key_query, covariance) @ covariance
    return value @ weighted, -weighted @ key_query @ covariance


def imbalance(value: Value, key_query: Square, *, covariance: Square) -> Float[Tensor, "*batch"]:
    r"""Return how unequal the layers are: 0 when in balance, 1 when one of them is negligible.

    $\|\Sigma^{1/2}B\Sigma^{1/2}\|_F\,/\,(\|\tilde U^\top\tilde U\|_F+\|\tilde V\tilde V^\top\|_F)$.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$.

    Returns:
        A number between 0 and 1.
    """
    grams = value.mT @ value, key_query @ covariance @ key_query.mT
    apart, *sizes = (_square_norm(one, covariance).sqrt() for one in (grams[0] - grams[1], *grams))
    return apart / sum(sizes)


def whiten(value: Value, key_query: Square, *, covariance: Square) -> Layers:
    r"""Return $\tilde U=U\Sigma^{1/2}$ and $\tilde V=\Sigma^{1/2}V\Sigma^{1/2}$, where the covariance drops out.

    Args:
        value: $U$.
        key_query: $V$.
        covariance: $\Sigma$.

    Returns:
        The layers in whitened coordinates.

    Raises:
        ValueError: As :func:`check_covariance`.
    """
    root, _ = square_roots(covariance)
    return value @ root, root @ key_query @ root


def precondition(gradients: Layers, inverse_covariance: Square, kind: Preconditioner) -> Layers:
    r"""Return the preconditioned gradient of Algorithm 1.

    With the extended covariance $\bar\Sigma=\mathrm{blkdiag}(I,\Sigma)$ and $\theta=[U;V^\top]$: ``left`` is
    $\bar\Sigma^{-1}\nabla_\theta$, the literal reading of the text available to us; ``two`` is
    $\bar\Sigma^{-1}\nabla_\theta\Sigma^{-1}$, plain gradient descent in whitened coordinates; ``none`` changes nothing.

    Args:
        gradients: For ``value`` and ``key_query``.
        inverse_covariance: $\Sigma^{-1}$ or $\hat\Sigma^{-1}$.
        kind: Which reading.

    Returns:
        The preconditioned gradients.

    Raises:
        ValueError: If ``kind`` is unknown.
    """
    check_parts(kind, name="kind")
    for_value, for_key_query = gradients
    if kind == "none":
        return for_value, for_key_query
    if kind == "left":
        return for_value, for_key_query @ inverse_covariance
    return for_value @ inverse_covariance, inverse_covariance @ for_key_query @ inverse_covariance


def spectral_factors(true_map: Value, covariance: Square) -> tuple[Value, Square, Float[Tensor, "*#batch dimension"]]:
    r"""Return a balanced global minimum for a linear map: Algorithm 1, line 2.

    With $A\Sigma^{1/2}=PDR^\top$: $U=PD^{1/2}\Sigma^{-1/2}$ and $V=\Sigma^{-1/2}D^{1/2}R^\top\Sigma^{-1/2}$, so that
    $U\Sigma V=A$ and $U^\top U=V\Sigma V^\top$. Put in estimates to get the spectral start.

    Args:
        true_map: $A$ or $\hat A$.
        covariance: $\Sigma$ or $\hat\Sigma$.

    Returns:
        ``value``, ``key_query`` and the singular values, largest first; with fewer outputs than inputs the missing ones
        are zero.

    Raises:
        ValueError: As :func:`check_covariance`.
    """
    root, inverse_root = square_roots(covariance)
    left, values, right = torch.linalg.svd(true_map @ root, full_matrices=False)
    missing = true_map.shape[-1] - values.shape[-1]
    left, values = (torch.nn.functional.pad(array, (0, missing)) for array in (left, values))
    right, half = torch.nn.functional.pad(right, (0, 0, 0, missing)), values.sqrt()
    value = (left * half.unsqueeze(-2)) @ inverse_root
    return value, inverse_root @ (half.unsqueeze(-1) * right) @ inverse_root, values


def _difference(value: Tensor, key_query: Tensor, covariance: Tensor) -> Tensor:
    return value.mT @ value - key_query @ covariance @ key_query.mT


def _square_norm(matrix: Tensor, covariance: Tensor) -> Tensor:
    r"""Return $\|\Sigma^{1/2}M\Sigma^{1/2}\|_F^2=\mathrm{tr}[(\Sigma M)^2]$ for symmetric $M$; needs no root."""
    product = covariance @ matrix
    return (product * product.mT).sum((-2, -1))
