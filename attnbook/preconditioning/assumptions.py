r"""Assumptions 2 and 3, and the moments that the third one keeps finite (Lemma 7).

With $q(x)=x^\top V^\top\Sigma Vx$ and $\tilde V=\Sigma^{1/2}V\Sigma^{1/2}$ the normaliser of softmax attention on
Gaussian keys is $e^{q/2}$ in the limit of many keys. A weight lies between 0 and 1; what may be infinite are the bounds
on $n$ times a weight, and the coefficient of $1/n$, which are moments of $e^q$. The text of the paper available to us
has no equations: the formulas are this book's reconstruction, and so is the threshold.
"""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "LARGEST_SIGNAL",
    "normaliser_moment",
    "score_moment",
    "self_moment",
    "self_square_moment",
    "warn_about_assumptions",
    "warn_about_sizes",
]

LARGEST_SIGNAL = 0.5
"""Largest $s_1$ for which $E e^q$ is finite at the minima.

This book's reading of Assumption 3, whose constant is missing in the text available to us.
"""

Whitened = Float[Tensor, "*batch dimension dimension"]


def warn_about_assumptions(singular_values: Float[Tensor, "*batch dimension"], n_outputs: int) -> None:
    r"""Warn when Assumption 2 or 3 fails, and say what degenerates.

    Args:
        singular_values: Of $A\Sigma^{1/2}$, largest first.
        n_outputs: Number of outputs $m$.

    Warns:
        UserWarning: If there are fewer outputs than inputs, a singular value is zero, or the largest one is at least
            :data:`LARGEST_SIGNAL`.
    """
    dimension, largest = singular_values.shape[-1], float(singular_values.max())
    warn_about_sizes(n_outputs, dimension, stacklevel=5)
    threshold = dimension * torch.finfo(singular_values.dtype).eps * largest
    if n_outputs >= dimension and float(singular_values.min()) <= threshold:
        warnings.warn(
            "true_map: linearly dependent columns: Assumption 2 fails; the smallest singular value of A Sigma^(1/2) "
            "is zero, so the guaranteed rate degenerates to zero",
            stacklevel=4,
        )
    if largest >= LARGEST_SIGNAL:
        warnings.warn(
            f"true_map: the largest singular value of A Sigma^(1/2) is {largest:.3g}; from {LARGEST_SIGNAL} on "
            "E exp(q), which the 1/n term needs, is infinite (Assumption 3); divide the labels by a constant",
            stacklevel=4,
        )


def warn_about_sizes(n_outputs: int, dimension: int, *, stacklevel: int = 3) -> None:
    """Warn when there are fewer outputs than inputs.

    Args:
        n_outputs: Number of outputs $m$.
        dimension: Number of inputs $d$.
        stacklevel: Whose line the warning names; default the caller of the caller.

    Warns:
        UserWarning: If that is so.
    """
    if n_outputs < dimension:
        warnings.warn(
            f"fewer outputs ({n_outputs}) than inputs ({dimension}): Assumption 2 fails; the smallest singular value "
            "of A Sigma^(1/2) is zero, so the guaranteed rate degenerates to zero",
            stacklevel=stacklevel,
        )


def normaliser_moment(whitened: Whitened, k: float) -> Float[Tensor, "*batch"]:
    r"""Return $E e^{kq}=\det(I-2k\tilde V^\top\tilde V)^{-1/2}$; infinite from $\|\tilde V\|^2=1/(2k)$ on.

    Args:
        whitened: $\tilde V$.
        k: Order of the moment, positive.

    Returns:
        The moment.

    Example:
        >>> normaliser_moment(torch.diag(torch.tensor([0.6, 0.0])), 1.0)
        tensor(1.8898)
        >>> normaliser_moment(torch.diag(torch.tensor([0.8, 0.0])), 1.0)
        tensor(inf)
    """
    return _moment(2 * torch.linalg.svdvals(whitened).square(), k)


def score_moment(whitened: Whitened, k: float) -> Float[Tensor, "*batch"]:
    r"""Return $E e^{k\,x^\top Vx}=\det(I-k(\tilde V+\tilde V^\top))^{-1/2}$: bounds for $n$ times a self-weight.

    Args:
        whitened: $\tilde V$.
        k: Order of the moment, positive.

    Returns:
        The moment; infinite once the largest eigenvalue of the symmetric part of $\tilde V$ is at least $1/(2k)$.
    """
    return _moment(torch.linalg.eigvalsh(whitened + whitened.mT), k)


def self_moment(whitened: Whitened) -> Float[Tensor, "*batch"]:
    r"""Return $E e^{x^\top Vx-q/2}=1/|\det(I-\tilde V)|$: $n$ times a query's mean weight on itself, for many keys.

    Args:
        whitened: $\tilde V$.

    Returns:
        The mean; infinite if $I-\tilde V$ is singular.
    """
    one = torch.eye(whitened.shape[-1], dtype=whitened.dtype, device=whitened.device)
    return 1 / torch.linalg.det(one - whitened).abs()


def self_square_moment(whitened: Whitened) -> Float[Tensor, "*batch"]:
    r"""Return $E e^{2x^\top Vx-q}=\det(I-2M)^{-1/2}$ with $M=\tilde V+\tilde V^\top-\tilde V^\top\tilde V$.

    The second moment of what :func:`self_moment` is the mean of.

    Args:
        whitened: $\tilde V$.

    Returns:
        The moment; infinite once an eigenvalue of $M$ is at least one half.

    Example:
        >>> self_square_moment(torch.diag(torch.tensor([0.2, 0.0])))
        tensor(1.8898)
        >>> self_square_moment(torch.diag(torch.tensor([0.3, 0.0])))
        tensor(inf)
    """
    return _moment(2 * torch.linalg.eigvalsh(whitened + whitened.mT - whitened.mT @ whitened), 1.0)


def _moment(eigenvalues: Tensor, k: float) -> Tensor:
    """The Gaussian integral with these eigenvalues in the exponent; infinite where it diverges."""
    left = 1 - k * eigenvalues
    return torch.where((left > 0).all(-1), left.clamp(min=0).prod(-1).rsqrt(), torch.inf)
