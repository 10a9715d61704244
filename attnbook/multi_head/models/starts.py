r"""Where training starts: at zero, or after the first phase (the paper's good initialisation).

The first phase is one step of gradient descent from zero on $n_1$ extra samples, with step size $\alpha_h\sqrt H$ for
head $h$. It leaves $W_h=0$ and

.. math:: U_h^{(1)}=\alpha_h\mathbb 1_Tm^\top,\qquad m=\frac1{2n_1}\sum_iy_i\bar x_i,

with $\bar x_i$ the mean token of sample $i$. The text available to us has $\alpha_h\sim\mathrm{Unif}(\pm1)$; we read
it as a random sign.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["draw_sign_counts", "even_sign_counts", "first_phase", "first_phase_direction", "zero"]

SIGNS = (1.0, -1.0)
"""The coefficients of the two groups of a first-phase start."""


def zero(members: int, n_tokens: int, dimension: int, *, device: torch.device | None = None) -> Parameters:
    """Return the zero start: one group that holds all heads, in double precision.

    Args:
        members: Number of members.
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        device: Default CPU.

    Returns:
        ``decoder`` and ``key_query`` with one group each.
    """
    shapes = {"decoder": (members, 1, n_tokens, dimension), "key_query": (members, 1, dimension, dimension)}
    return {name: torch.zeros(shape, dtype=torch.float64, device=device) for name, shape in shapes.items()}


def first_phase_direction(
    tokens: Float[Tensor, "members samples tokens dimension"], labels: Float[Tensor, "members samples"]
) -> Float[Tensor, "members dimension"]:
    r"""Return $m=\frac1{2n_1}\sum_iy_i\bar x_i$, every row of $U_h^{(1)}/\alpha_h$ (half because $\ell'(0)=-\frac12$).

    Args:
        tokens: Samples of the first phase.
        labels: Their labels.

    Returns:
        One direction for each member.
    """
    return torch.einsum("bn,bntd->bd", labels, tokens) / (2 * tokens.shape[1] * tokens.shape[2])


def first_phase(
    tokens: Float[Tensor, "members samples tokens dimension"],
    labels: Float[Tensor, "members samples"],
    *,
    coefficients: Float[Tensor, " heads"] | None = None,
) -> Parameters:
    r"""Return the parameters after the first phase.

    Args:
        tokens: Samples of the first phase.
        labels: Their labels.
        coefficients: $\alpha_h$ of each head, or group of heads; default 1 and -1, the two groups that random signs
            leave.

    Returns:
        ``decoder`` and ``key_query`` (zero).

    Raises:
        ValueError: If there is no coefficient.
    """
    members, _, n_tokens, dimension = tokens.shape
    alpha = tokens.new_tensor(SIGNS) if coefficients is None else coefficients.to(tokens)
    if alpha.ndim != 1 or not len(alpha):
        raise ValueError(f"coefficients: expected one number for each head, got shape {tuple(alpha.shape)}")
    rows = first_phase_direction(tokens, labels)[:, None, None, :].expand(members, len(alpha), n_tokens, dimension)
    return {
        "decoder": alpha[None, :, None, None] * rows,
        "key_query": tokens.new_zeros((members, len(alpha), dimension, dimension)),
    }


def even_sign_counts(n_heads: int | float) -> Float[np.ndarray, " 2"]:
    """Return how many heads have coefficient 1 and -1 when they are balanced; an odd one goes to the plus heads.

    Args:
        n_heads: Number of heads, a whole number between 1 and 1e15. A single head is a plus head.

    Returns:
        The two counts.

    Raises:
        ValueError: If ``n_heads`` is not a whole number of at least 1.

    Example:
        >>> even_sign_counts(5)
        array([3., 2.])
    """
    _check_heads(n_heads)
    return np.array([n_heads - n_heads // 2, n_heads // 2], dtype=np.float64)


def draw_sign_counts(n_heads: int | float, *, rng: np.random.Generator) -> Float[np.ndarray, " 2"]:
    """Draw how many heads have coefficient 1 and -1 when every sign is random.

    Args:
        n_heads: Number of heads, a whole number between 1 and 1e15.
        rng: Source of randomness.

    Returns:
        The two counts; one may be zero.

    Raises:
        ValueError: If ``n_heads`` is outside its range.

    Example:
        >>> draw_sign_counts(1e12, rng=np.random.default_rng(0)).sum()
        np.float64(1000000000000.0)
    """
    _check_heads(n_heads)
    plus = float(rng.binomial(int(n_heads), 0.5))
    return np.array([plus, n_heads - plus])


def _check_heads(n_heads: int | float) -> None:
    if isinstance(n_heads, bool) or not 1 <= n_heads <= 1e15 or n_heads != int(n_heads):
        raise ValueError(f"n_heads: expected a whole number between 1 and 1e15, got {n_heads!r}")
