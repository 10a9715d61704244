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

__all__ = ["logits_by_tensor_trick", "uniform_condition"]


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
