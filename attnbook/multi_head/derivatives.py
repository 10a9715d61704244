r"""First and second derivatives of all heads, and the Hessian of the loss, in closed form (Lemma 1).

``tokens`` are samples $X_i$, ``(samples, tokens, dimension)``; a query is a row, token $t$ attends with
$\varphi_t=\varphi(XW^\top x_t)$, and $J_t=\mathrm{diag}(\varphi_t)-\varphi_t\varphi_t^\top$ is the softmax Jacobian
there. The Hessian of the loss is split as the paper's proof splits it. With
$c_i=\ell'(y_i\tilde\Phi_i)y_i/n$ and $w_i=\ell''(y_i\tilde\Phi_i)/n$,

.. math:: \nabla^2\hat L=\sum_iw_i\nabla\tilde\Phi_i\nabla\tilde\Phi_i^\top
          +\frac1{\sqrt H}\,\mathrm{blockdiag}_h\Big(\sum_ic_i\nabla^2\Phi_h(X_i)\Big).

The first part has no negative eigenvalue. The second is a small matrix for each head and carries the factor
$1/\sqrt H$: no head appears in the block of another.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.spectrum import BlocksPlusLowRank
from attnbook.multi_head import layer
from attnbook.multi_head.tangent_kernel import tangent_features

__all__ = ["head_gradients", "head_hessians", "loss_hessian"]

Samples: TypeAlias = Float[Tensor, "samples tokens dimension"]
OneNetwork: TypeAlias = dict[str, Float[Tensor, "heads rows dimension"]]
"""``decoder (heads, tokens, dimension)`` and ``key_query (heads, dimension, dimension)``, without one of members."""


def head_gradients(parameters: OneNetwork, tokens: Samples) -> Float[Tensor, "samples heads entries"]:
    r"""Return the gradient of each head's output $\Phi_h(X_i)=\langle U_h,\varphi(X_iW_hX_i^\top)X_i\rangle$.

    Entries are those of ``decoder``, then those of ``key_query``, row by row.
    """
    heads = len(parameters["decoder"])
    of_network = tangent_features(_stacked(parameters), tokens.unsqueeze(0))[0]
    return math.sqrt(heads) * of_network.unflatten(1, (heads, -1))


def head_hessians(
    parameters: OneNetwork, tokens: Samples, weights: Float[Tensor, " samples"]
) -> Float[Tensor, "heads entries entries"]:
    r"""Return $\sum_ic_i\nabla^2\Phi_h(X_i)$ for each head and the weights $c_i$, in closed form (Lemma 1).

    Per sample, with $q_t=J_tXu_t$ and
    $K_t=\mathrm{diag}(q_t)-q_t\varphi_t^\top-\varphi_tq_t^\top$: the decoder has no curvature of its own, the mixed
    part is $x_t\otimes X^\top J_tX$, and the key-query part is $\sum_tx_tx_t^\top\otimes X^\top K_tX$.

    One symmetric matrix per head; entries ordered as in :func:`head_gradients`.
    """
    heads, n_tokens, dimension = parameters["decoder"].shape
    attention = layer.attention_weights(_stacked(parameters), tokens.unsqueeze(0))[0]  # samples, heads, queries, keys
    values = torch.einsum("htd,nsd->nhts", parameters["decoder"], tokens)
    pull = attention * (values - (attention * values).sum(-1, keepdim=True))
    # First and second moments of the keys with these weights, for each query.
    of_keys = tokens, torch.einsum("nsa,nsb->nsab", tokens, tokens)
    (mean, drift), (seconds, bent) = (
        [torch.einsum("nhts,ns...->nht...", weighted, moment) for weighted in (attention, pull)] for moment in of_keys
    )
    covariance = seconds - mean.unsqueeze(4) * mean.unsqueeze(3)
    cross = drift.unsqueeze(4) * mean.unsqueeze(3)
    curvature = bent - cross - cross.mT

    at, size = n_tokens * dimension, dimension**2
    mixed = torch.einsum("n,nti,nhtaj->htaij", weights, tokens, covariance).reshape(heads, at, size)
    own = torch.einsum("n,nti,ntk,nhtjl->hijkl", weights, tokens, tokens, curvature).reshape(heads, size, size)
    blocks = tokens.new_zeros(heads, at + size, at + size)
    blocks[:, :at, at:], blocks[:, at:, :at] = mixed, mixed.mT
    blocks[:, at:, at:] = (own + own.mT) / 2
    return blocks


def loss_hessian(parameters: OneNetwork, tokens: Samples, labels: Float[Tensor, " samples"]) -> BlocksPlusLowRank:
    r"""Return the Hessian of the logistic loss of one network, in closed form; labels are 1 or -1.

    Blocks, one per head, plus a positive part whose rank is at most the number of samples. Entries are ordered head by
    head, in each head as in :func:`head_gradients`.
    """
    root = math.sqrt(len(parameters["decoder"]))
    margins = labels * layer.outputs(_stacked(parameters), tokens.unsqueeze(0))[0]
    slopes, curvatures = -torch.sigmoid(-margins), torch.sigmoid(-margins) * torch.sigmoid(margins)
    blocks = head_hessians(parameters, tokens, labels * slopes / (len(labels) * root))
    gradients = head_gradients(parameters, tokens).flatten(1) / root
    parts = blocks, gradients, curvatures / len(labels)
    return BlocksPlusLowRank(*(part.double().numpy(force=True) for part in parts))


def _stacked(parameters: Parameters) -> Parameters:
    """The same with a first axis of one member."""
    return {name: tensor.unsqueeze(0) for name, tensor in parameters.items()}
