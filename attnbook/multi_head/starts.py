r"""Where training starts: at zero, or after the first phase (the paper's good initialisation).

The first phase is one step of gradient descent from zero on $n_1$ extra samples, with step size $\alpha_h\sqrt H$ for
head $h$. It leaves $W_h=0$ and

.. math:: U_h^{(1)}=\alpha_h\mathbb 1_Tm^\top,\qquad m=\frac1{2n_1}\sum_iy_i\bar x_i,

with $\bar x_i$ the mean token of sample $i$. The paper's $\alpha_h\sim\mathrm{Unif}(\pm1)$ is read as a random sign.

A head's margin towards the target $(\bar U,\mathrm{sign}(\alpha_h)\bar W)$ there is
$y\langle\sum_t\bar u_t,\bar x\rangle+|\alpha_h|\langle m,g\rangle$ with $g$ of :func:`key_query_pull`.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head.checks import whole
from attnbook.multi_head.layer import PerSample, Tokens

__all__ = ["even_sign_counts", "first_phase", "first_phase_direction", "key_query_pull", "zero"]


def zero(members: int, n_tokens: int, dimension: int, *, device: torch.device | str = "cpu") -> Parameters:
    """Return the zero start: one group that holds all heads, in double precision; on the CPU by default."""
    sizes = {"decoder": n_tokens, "key_query": dimension}
    return {
        name: torch.zeros(members, 1, n, dimension, dtype=torch.float64, device=device) for name, n in sizes.items()
    }


def first_phase_direction(tokens: Tokens, labels: PerSample) -> Float[Tensor, "members dimension"]:
    r"""Return $m=\frac1{2n_1}\sum_iy_i\bar x_i$, every row of $U_h^{(1)}/\alpha_h$; half as $\ell'(0)=-\frac12$."""
    return torch.einsum("bn,bntd->bd", labels, tokens) / (2 * tokens.shape[1] * tokens.shape[2])


def first_phase(
    tokens: Tokens, labels: PerSample, *, coefficients: Float[Tensor, " heads"] | None = None
) -> Parameters:
    r"""Return the parameters after a first phase on these samples.

    Args:
        tokens: Samples of the first phase.
        labels: Their labels.
        coefficients: $\alpha_h$ of each head, or group; default 1 and -1, the groups that random signs leave.

    Returns:
        Decoders and key-query matrices.

    Raises:
        ValueError: If there is no coefficient.
    """
    alpha = tokens.new_tensor((1.0, -1.0)) if coefficients is None else coefficients.to(tokens)
    if alpha.ndim != 1 or not len(alpha):
        raise ValueError(f"coefficients: expected one number for each head, got shape {tuple(alpha.shape)}")
    members, _, n_tokens, dimension = tokens.shape
    row = first_phase_direction(tokens, labels)[:, None, None].expand(-1, -1, n_tokens, -1)
    still = tokens.new_zeros(members, len(alpha), dimension, dimension)
    return {"decoder": alpha[:, None, None] * row, "key_query": still}


def even_sign_counts(n_heads: int | float) -> Float[np.ndarray, " 2"]:
    """Return how many heads have coefficient 1 and -1 when they are balanced; an odd one goes to the plus heads."""
    whole(n_heads=n_heads)
    return np.array([n_heads - n_heads // 2, n_heads // 2], float)


def key_query_pull(
    tokens: Tokens, labels: PerSample, key_query: Float[Tensor, "members dimension dimension"]
) -> Float[Tensor, "members samples dimension"]:
    r"""Return $g=y\sum_s(x_s-\bar x)\,\bar x^\top\bar Wx_s$; the attention part of the margin is $\langle m,g\rangle$.

    Its norm is the most that a change of $m$ by one can change the margin; $\bar W$ is that of each member's target.
    """
    mean = tokens.mean(2, keepdim=True)
    gains = (tokens @ (mean @ key_query[:, None]).mT)[..., 0]
    return labels.unsqueeze(2) * torch.einsum("bnt,bntd->bnd", gains, tokens - mean)
