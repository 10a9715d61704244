r"""Appendix H: the logits of self-attention by the tensor trick; the condition of the values' problem.

===================  =====================================  =====================
paper                meaning                                shape
===================  =====================================  =====================
$X$                  ``tokens`` of one sequence             ``(length, dim)``
$QK^\top$            ``key_query``                          ``(dim, dim)``
$\mathrm{vec}$       rows of a matrix, one after another    ``(rows * columns,)``
===================  =====================================  =====================

In the text available to us the equations are missing; these forms are our reconstruction.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["logits_by_tensor_trick", "uniform_condition", "values_descent"]


def logits_by_tensor_trick(
    tokens: Float[np.ndarray, "length dim"], key_query: Float[np.ndarray, "dim dim"]
) -> Float[np.ndarray, "length length"]:
    r"""Return $XQK^\top X^\top$ from $\mathrm{vec}(XQK^\top X^\top)=(X\otimes X)\mathrm{vec}(QK^\top)$.

    A matrix that is linear in the weights, applied to a vector of weights: the form of a first layer. It has
    ``length ** 2 * dim ** 2`` entries; for checking, not for computing.

    Args:
        tokens: One sequence.
        key_query: The product of query and key matrix.

    Returns:
        The logits, one row per query.

    Example:
        >>> logits_by_tensor_trick(np.array([[1.0], [2.0]]), np.array([[3.0]])).tolist()
        [[3.0, 6.0], [6.0, 12.0]]
    """
    length = len(tokens)
    return (np.kron(tokens, tokens) @ key_query.ravel()).reshape(length, length)


def uniform_condition(mean_norm: float | np.ndarray, length: int) -> float | np.ndarray:
    r"""Return the condition number of the values' problem at uniform attention, $1+L\|\mu\|^2$, for many sequences.

    Each context is then the mean of $L$ tokens. For tokens from $N(\mu,I)$ contexts have second moments
    $\mu\mu^\top+I/L$: averaging shrinks what tells tokens apart, and keeps what they share.

    Args:
        mean_norm: Norm of the mean $\mu$ of the tokens.
        length: Tokens of a sequence $L$.

    Returns:
        Largest over smallest eigenvalue.

    Example:
        >>> uniform_condition(2.0, 8)
        33.0
    """
    return 1 + length * mean_norm**2


def values_descent(mean_norm: float, length: int, *, steps: int) -> Float[np.ndarray, "records 2"]:
    r"""Return the error of the values along the shared mean and across it, under gradient descent at uniform attention.

    The two directions have curvatures $\|\mu\|^2+\frac1L$ and $\frac1L$; both errors start at one. The step size is the
    best fixed one, two over the sum of the curvatures, with which each step multiplies both errors by
    $\pm(\kappa-1)/(\kappa+1)$; $\kappa$ is :func:`uniform_condition`. For many sequences and fixed attention; ours.

    Args:
        mean_norm: $\|\mu\|$, not negative.
        length: $L$, at least 1.
        steps: Number of steps, at least 1.

    Returns:
        Errors after $0,1,\dots$ steps.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> values_descent(1.0, 1, steps=1).round(3).tolist()
        [[1.0, 1.0], [-0.333, 0.333]]
    """
    if mean_norm < 0 or length < 1 or steps < 1:
        raise ValueError(f"mean_norm, length, steps: expected at least 0, 1, 1, got {mean_norm}, {length}, {steps}")
    condition = uniform_condition(mean_norm, length)
    factor = (condition - 1) / (condition + 1)
    return np.power.outer(np.array([-factor, factor]), np.arange(steps + 1)).T
