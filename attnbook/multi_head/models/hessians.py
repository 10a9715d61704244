r"""The Hessian of the multi-head loss, split as the paper's proof splits it.

With $c_i=\ell'(y_i\tilde\Phi_i)y_i/n$ and $w_i=\ell''(y_i\tilde\Phi_i)/n$,

.. math:: \nabla^2\hat L=\sum_iw_i\nabla\tilde\Phi_i\nabla\tilde\Phi_i^\top
          +\frac1{\sqrt H}\,\mathrm{blockdiag}_h\Big(\sum_ic_i\nabla^2\Phi_h(X_i)\Big).

The first part has no negative eigenvalue. The second is a small matrix for each head, from Lemma 1 in closed form, and
carries the factor $1/\sqrt H$: no head appears in the block of another.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.spectrum import BlocksPlusLowRank
from attnbook.multi_head.models import closed_form, network

__all__ = ["block_weights", "head_gradients", "head_hessians", "loss_hessian"]


def head_gradients(
    parameters: dict[str, Float[Tensor, "heads rows dimension"]],
    tokens: Float[Tensor, "samples tokens dimension"],
) -> Float[Tensor, "samples heads entries"]:
    r"""Return the gradient of each head's output $\Phi_h(X_i)=\langle U_h,\varphi(X_iW_hX_i^\top)X_i\rangle$.

    Args:
        parameters: ``decoder (heads, tokens, dimension)`` and ``key_query (heads, dimension, dimension)``.
        tokens: Samples.

    Returns:
        Gradients; entries are those of ``decoder``, then those of ``key_query``, row by row.
    """
    attention, values = _attention_and_values(parameters, tokens)
    decoder = torch.einsum("nhts,nsd->nhtd", attention, tokens)
    pull = attention * (values - (attention * values).sum(-1, keepdim=True))
    key_query = torch.einsum("nta,nhts,nsb->nhab", tokens, pull, tokens)
    return torch.cat([decoder.flatten(2), key_query.flatten(2)], dim=2)


def head_hessians(
    parameters: dict[str, Float[Tensor, "heads rows dimension"]],
    tokens: Float[Tensor, "samples tokens dimension"],
    weights: Float[Tensor, " samples"],
) -> Float[Tensor, "heads entries entries"]:
    r"""Return $\sum_ic_i\nabla^2\Phi_h(X_i)$ for each head, in closed form (Lemma 1).

    Per sample, with $J_t$ the softmax Jacobian, $q_t=J_tXu_t$ and
    $K_t=\mathrm{diag}(q_t)-q_t\varphi_t^\top-\varphi_tq_t^\top$: the decoder has no curvature of its own, the mixed
    part is $x_t\otimes X^\top J_tX$, and the key-query part is $\sum_tx_tx_t^\top\otimes X^\top K_tX$.

    Args:
        parameters: As for :func:`head_gradients`.
        tokens: Samples.
        weights: The $c_i$.

    Returns:
        One symmetric matrix per head; entries ordered as in :func:`head_gradients`.
    """
    heads, n_tokens, dimension = parameters["decoder"].shape
    attention, values = _attention_and_values(parameters, tokens)
    pull = attention * (values - (attention * values).sum(-1, keepdim=True))
    mean, drift = (torch.einsum("nhts,nsd->nhtd", a, tokens) for a in (attention, pull))
    covariance = _second_moment(attention, tokens) - mean.unsqueeze(4) * mean.unsqueeze(3)
    cross = drift.unsqueeze(4) * mean.unsqueeze(3)
    curvature = _second_moment(pull, tokens) - cross - cross.mT

    weighted = tokens * weights[:, None, None]
    mixed = torch.einsum("nti,nhtaj->htaij", weighted, covariance).flatten(3).flatten(1, 2)
    outer = torch.einsum("nti,ntk->ntik", weighted, tokens).flatten(0, 1).flatten(1)
    inner = curvature.permute(1, 0, 2, 3, 4).reshape(heads, -1, dimension**2)
    pairs = torch.matmul(outer.T, inner).view(heads, *[dimension] * 4)
    own = pairs.permute(0, 1, 3, 2, 4).reshape(heads, dimension**2, dimension**2)
    at = n_tokens * dimension
    blocks = torch.zeros(heads, at + dimension**2, at + dimension**2, dtype=tokens.dtype, device=tokens.device)
    blocks[:, :at, at:], blocks[:, at:, :at] = mixed, mixed.mT
    blocks[:, at:, at:] = (own + own.mT) / 2
    return blocks


def loss_hessian(
    parameters: dict[str, Float[Tensor, "heads rows dimension"]],
    tokens: Float[Tensor, "samples tokens dimension"],
    labels: Float[Tensor, " samples"],
) -> BlocksPlusLowRank:
    r"""Return the Hessian of the logistic loss of one network, in closed form.

    Args:
        parameters: ``decoder (heads, tokens, dimension)`` and ``key_query (heads, dimension, dimension)``, without
            the axis for members.
        tokens: Samples.
        labels: 1 or -1.

    Returns:
        The Hessian as blocks (one per head) plus a positive part whose rank is at most the number of samples. Entries
        are ordered head by head, in each head as in :func:`head_gradients`.

    Raises:
        ValueError: If the shapes do not fit or an entry is not finite.
    """
    blocks = head_hessians(parameters, tokens, block_weights(parameters, tokens, labels))
    gradients = head_gradients(parameters, tokens).flatten(1) / math.sqrt(len(parameters["decoder"]))
    outputs = _outputs(parameters, tokens)
    curvatures = torch.sigmoid(outputs) * torch.sigmoid(-outputs) / len(labels)
    return BlocksPlusLowRank(_numpy(blocks), _numpy(gradients), _numpy(curvatures))


def block_weights(
    parameters: dict[str, Float[Tensor, "heads rows dimension"]],
    tokens: Float[Tensor, "samples tokens dimension"],
    labels: Float[Tensor, " samples"],
) -> Float[Tensor, " samples"]:
    r"""Return $c_i/\sqrt H$, the weights with which the curvatures of one head enter the Hessian of the loss.

    Args:
        parameters: As for :func:`head_gradients`.
        tokens: Samples.
        labels: 1 or -1.

    Returns:
        For logistic loss $-y_i\,\sigma(-y_i\tilde\Phi_i)/(n\sqrt H)$ with $\sigma$ the logistic function.

    Raises:
        ValueError: If the shapes do not fit.
    """
    wrong = torch.sigmoid(-labels * _outputs(parameters, tokens))
    return -labels * wrong / (len(labels) * math.sqrt(len(parameters["decoder"])))


def _outputs(parameters: Parameters, tokens: Tensor) -> Tensor:
    return network.predict({name: tensor.unsqueeze(0) for name, tensor in parameters.items()}, tokens.unsqueeze(0))[0]


def _attention_and_values(parameters: Parameters, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and $U_hX^T$, both ``(samples, heads, queries, keys)``."""
    stacked = {name: tensor.unsqueeze(0) for name, tensor in parameters.items()}
    attention = closed_form.attention_weights(stacked, tokens.unsqueeze(0))[0]
    return attention, torch.einsum("htd,nsd->nhts", parameters["decoder"], tokens)


def _second_moment(weights: Tensor, tokens: Tensor) -> Tensor:
    """Sum over keys of weight times outer product of the key token with itself."""
    outer = torch.einsum("nsa,nsb->nsab", tokens, tokens).flatten(2)
    moment = torch.bmm(weights.flatten(1, 2), outer)
    return moment.view(*weights.shape[:3], tokens.shape[2], tokens.shape[2])


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()
