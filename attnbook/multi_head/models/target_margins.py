r"""Margins of a target in the tangent kernel at a first-phase start, in closed form.

At $W_h=0$, $U_h=\alpha_h\mathbb 1_Tm^\top$ attention is uniform, and softmax answers a change of the logits with their
deviation from the mean. With $\bar x$ the mean token, a head's slope towards the target
$(\bar U,\mathrm{sign}(\alpha_h)\bar W)$ is

.. math:: y\,\Big\langle\sum_t\bar u_t,\bar x\Big\rangle+|\alpha_h|\,\langle m,g\rangle,\qquad
          g=y\sum_s(x_s-\bar x)\,\bar x^\top\bar Wx_s,

so that $\langle m,g\rangle$ is $T$ times the covariance, over the tokens, of what the decoder reads from a token and
what its logit gains. Averaged over heads this is $y\langle\nabla\tilde\Phi,\tilde\theta_\star\rangle$ for
$\tilde\theta_\star=H^{-1/2}(\bar U,\mathrm{sign}(\alpha_h)\bar W)_h$.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["decoder_part", "key_query_pull"]


def decoder_part(
    tokens: Float[Tensor, "members samples tokens dimension"],
    labels: Float[Tensor, "members samples"],
    decoder: Float[Tensor, "members tokens dimension"],
) -> Float[Tensor, "members samples"]:
    r"""Return $y\langle\sum_t\bar u_t,\bar x\rangle$, the part of the margin that is there at zero already.

    Args:
        tokens: Samples of each member.
        labels: 1 or -1.
        decoder: $\bar U$ of each member's target.

    Returns:
        One number for each sample.
    """
    return labels * torch.einsum("bnd,bd->bn", tokens.mean(2), decoder.sum(1))


def key_query_pull(
    tokens: Float[Tensor, "members samples tokens dimension"],
    labels: Float[Tensor, "members samples"],
    key_query: Float[Tensor, "members dimension dimension"],
) -> Float[Tensor, "members samples dimension"]:
    r"""Return $g=y\sum_s(x_s-\bar x)\,\bar x^\top\bar Wx_s$; the attention part of the margin is $\langle m,g\rangle$.

    Its norm is the most that a change of $m$ by one can change the margin.

    Args:
        tokens: Samples of each member.
        labels: 1 or -1.
        key_query: $\bar W$ of each member's target.

    Returns:
        One vector for each sample.
    """
    mean = tokens.mean(2, keepdim=True)
    gains = (tokens @ (mean @ key_query[:, None]).mT).squeeze(3)
    return labels.unsqueeze(2) * torch.einsum("bnt,bntd->bnd", gains, tokens - mean)
