r"""First and second derivatives of one head, and the Hessian of the loss, in closed form (Lemma 1).

For one sample, in NumPy and with the letters of the text; a query is a row, token $t$ attends with
$\varphi(XW^\top x_t)$:

================  ========================  ==================================================
paper             name here                 meaning, shape
================  ========================  ==================================================
$X$               ``tokens``                one sample, ``(tokens, dimension)``
$U$, $u_t$        ``decoder``               one head's decoder and its rows, as ``tokens``
$W$               ``key_query``             one head's matrix, ``(dimension, dimension)``
$\varphi$, $J_t$  --, ``softmax_jacobian``  softmax of a row of $XWX^\top$; its Jacobian
================  ========================  ==================================================

For all samples and heads of a network, in torch, the Hessian of the loss is split as the paper's proof splits it. With
$c_i=\ell'(y_i\tilde\Phi_i)y_i/n$ and $w_i=\ell''(y_i\tilde\Phi_i)/n$,

.. math:: \nabla^2\hat L=\sum_iw_i\nabla\tilde\Phi_i\nabla\tilde\Phi_i^\top
          +\frac1{\sqrt H}\,\mathrm{blockdiag}_h\Big(\sum_ic_i\nabla^2\Phi_h(X_i)\Big).

The first part has no negative eigenvalue. The second is a small matrix for each head and carries the factor
$1/\sqrt H$: no head appears in the block of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.spectrum import BlocksPlusLowRank
from attnbook.multi_head import layer
from attnbook.multi_head.tangent_kernel import tangent_features

__all__ = [
    "attention",
    "curvature_in_key_query",
    "decoder_gradient",
    "head_gradients",
    "head_hessians",
    "key_query_gradient",
    "loss_hessian",
    "mixed_curvature",
    "printed_softmax_jacobian",
    "softmax_jacobian",
]


Sample: TypeAlias = Float[np.ndarray, "tokens dimension"]
Square: TypeAlias = Float[np.ndarray, "dimension dimension"]
Vector: TypeAlias = Float[np.ndarray, " dimension"]

Samples: TypeAlias = Float[Tensor, "samples tokens dimension"]
OneNetwork: TypeAlias = dict[str, Float[Tensor, "heads rows dimension"]]
"""``decoder (heads, tokens, dimension)`` and ``key_query (heads, dimension, dimension)``, without one of members."""


def attention(tokens: Sample, key_query: Square) -> Float[np.ndarray, "tokens tokens"]:
    r"""Return $\varphi(XWX^\top)$, the attention weights of every query (row)."""
    return _softmax(_logits(tokens, key_query))


def softmax_jacobian(logits: Float[np.ndarray, "*batch tokens"]) -> Float[np.ndarray, "*batch tokens tokens"]:
    r"""Return the Jacobian of softmax, $\mathrm{diag}(\varphi(v))-\varphi(v)\varphi(v)^\top$, for each row of logits.

    ValueError, here and in what uses it, if a logit is NaN or infinite.

    Example:
        >>> softmax_jacobian(np.zeros(2)).tolist()
        [[0.25, -0.25], [-0.25, 0.25]]
    """
    weights = _softmax(logits)
    return weights[..., None] * np.eye(weights.shape[-1]) - weights[..., None] * weights[..., None, :]


def printed_softmax_jacobian(logits: Float[np.ndarray, "*batch tokens"]) -> Float[np.ndarray, "*batch tokens tokens"]:
    r"""Return $\mathrm{diag}(\varphi(v))-vv^\top$, which is not the Jacobian of softmax.

    The text reads $vv^\top$ where $\varphi(v)\varphi(v)^\top$ must stand; as :func:`softmax_jacobian` otherwise.
    """
    weights = _softmax(logits)
    return weights[..., None] * np.eye(weights.shape[-1]) - logits[..., None] * logits[..., None, :]


def decoder_gradient(tokens: Sample, key_query: Square) -> Sample:
    r"""Return $\nabla_U\Phi=\varphi(XWX^\top)X$ (Lemma 1)."""
    return attention(tokens, key_query) @ tokens


def key_query_gradient(
    tokens: Sample,
    decoder: Sample,
    key_query: Square,
    *,
    jacobian: Callable[[np.ndarray], np.ndarray] = softmax_jacobian,
) -> Square:
    r"""Return $\nabla_W\Phi=\sum_tx_tu_t^\top X^\top J_tX$ (Lemma 1).

    The ``jacobian`` turns logits, one query per row, into the $J_t$; default the true ones.
    """
    jacobians = jacobian(_logits(tokens, key_query))
    return tokens.T @ np.einsum("ts,tsr,rj->tj", decoder @ tokens.T, jacobians, tokens)


def mixed_curvature(tokens: Sample, key_query: Square, a: Float[np.ndarray, " tokens"], b: Vector) -> Square:
    r"""Return $\nabla_W\langle a,\nabla_U\Phi\,b\rangle=\sum_ta_tx_tb^\top X^\top J_tX$ (Lemma 1), for any $a,b$."""
    jacobians = softmax_jacobian(_logits(tokens, key_query))
    return tokens.T @ (a[:, None] * np.einsum("s,tsr,rj->tj", tokens @ b, jacobians, tokens))


def curvature_in_key_query(tokens: Sample, decoder: Sample, key_query: Square, b: Vector, c: Vector) -> Square:
    r"""Return $\nabla_W\langle c,\nabla_W\Phi\,b\rangle=\sum_t(c^\top x_t)\,x_t\mathbf d_t^\top J_tX$ (Lemma 1).

    For any $b,c$; $\mathbf d_t=\mathrm{diag}(Xb)Xu_t-(b^\top X^\top\varphi)\,Xu_t-(u_t^\top X^\top\varphi)\,Xb$.
    """
    logits = _logits(tokens, key_query)
    weights, along, values = _softmax(logits), tokens @ b, decoder @ tokens.T
    d = along * values - (weights @ along)[:, None] * values - (weights * values).sum(1)[:, None] * along
    return tokens.T @ ((tokens @ c)[:, None] * np.einsum("ts,tsr,rj->tj", d, softmax_jacobian(logits), tokens))


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

    Per sample, with $J_t$ the softmax Jacobian, $q_t=J_tXu_t$ and
    $K_t=\mathrm{diag}(q_t)-q_t\varphi_t^\top-\varphi_tq_t^\top$: the decoder has no curvature of its own, the mixed
    part is $x_t\otimes X^\top J_tX$, and the key-query part is $\sum_tx_tx_t^\top\otimes X^\top K_tX$.

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
    return BlocksPlusLowRank(_numpy(blocks), _numpy(gradients), _numpy(curvatures / len(labels)))


def _logits(tokens: np.ndarray, key_query: np.ndarray) -> np.ndarray:
    return tokens @ key_query @ tokens.T


def _softmax(logits: np.ndarray) -> np.ndarray:
    if not np.isfinite(logits).all():
        raise ValueError(f"logits: {int((~np.isfinite(logits)).sum())} of {logits.size} entries are NaN or infinite")
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _stacked(parameters: Parameters) -> Parameters:
    """The same with a first axis of one member."""
    return {name: tensor.unsqueeze(0) for name, tensor in parameters.items()}


def _attention_and_values(parameters: Parameters, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and $U_hX^T$, both ``(samples, heads, queries, keys)``."""
    attention = layer.attention_weights(_stacked(parameters), tokens.unsqueeze(0))[0]
    return attention, torch.einsum("htd,nsd->nhts", parameters["decoder"], tokens)


def _second_moment(weights: Tensor, tokens: Tensor) -> Tensor:
    """Sum over keys of weight times outer product of the key token with itself."""
    outer = torch.einsum("nsa,nsb->nsab", tokens, tokens).flatten(2)
    moment = torch.bmm(weights.flatten(1, 2), outer)
    return moment.view(*weights.shape[:3], tokens.shape[2], tokens.shape[2])


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()
