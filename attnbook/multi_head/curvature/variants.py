r"""Corollary 1 with what the paper's footnotes allow: other decoders, and another self-bounded loss.

A tied decoder is $U_h=P(u_h)$ with one vector $u_h$ for all tokens (pooling, $U_h=\mathbb 1u_h^\top$) or for the last
token only. Gradients and Hessians in $u_h$ are those in $U_h$ times $P$ and its transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.multi_head import derivatives, network
from attnbook.multi_head.curvature.points import WORST, random_networks, worst_tokens
from attnbook.multi_head.curvature_bounds import loss_constants

# Pooling is measured by the norm of U_h, or, "plain", by that of u_h as the footnote may be read.
VARIANTS = ("last token", "pooling", "pooling, plain", "squareplus")
# Standard deviation of the weights, by point.
SCALES = {"random": 0.5, "larger weights": 2.0, **dict.fromkeys(WORST, 0.0)}
QUANTITIES = ("gradient", "smoothness", "curvature")
Derivatives = Callable[[Tensor], tuple[Tensor, Tensor]]


def logistic(margins: Tensor) -> Tensor:
    r"""Return $\ell(t)=\log(1+e^{-t})$."""
    return -logsigmoid(margins)


def squareplus(margins: Tensor) -> Tensor:
    r"""Return $\ell(t)=\frac12(\sqrt{t^2+4}-t)$: convex, $|\ell'|\le\frac12\ell$, $|\ell'|\le1$, $\ell''\le\frac14$."""
    return ((margins.square() + 4).sqrt() - margins) / 2


def squareplus_derivatives(margins: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return $\ell'$ and $\ell''$ of :func:`squareplus`."""
    root = (margins.square() + 4).sqrt()
    return (margins / root - 1) / 2, 2 / root**3


def rows_of(variant: str, n_tokens: int) -> np.ndarray:
    """Return how the rows of a decoder depend on the vectors that are trained, ``(tokens, vectors)``."""
    if variant == "squareplus":
        return np.eye(n_tokens)
    if variant == "last token":
        return np.eye(n_tokens)[:, -1:]
    return np.ones((n_tokens, 1)) / (math.sqrt(n_tokens) if variant == "pooling" else 1)


def ratios(variant: str, point: str, n_heads: int, seed: int, batch: network.Batch) -> list[float]:
    """Return gradient, Hessian norm and negative curvature over their bounds, for one member of a batch."""
    tokens, labels = (part[0] for part in (worst_tokens(point, batch) if point in WORST else batch))
    n_tokens, dimension = tokens.shape[1:]
    rows = torch.tensor(rows_of(variant, n_tokens))
    drawn = random_networks(n_heads, rows.shape[1], dimension, scale=SCALES[point], seeds=[seed], device=rows.device)
    trained = {name: tensor[0] for name, tensor in drawn.items()}
    whole = {"decoder": rows @ trained["decoder"], "key_query": trained["key_query"]}

    loss, of_loss = (squareplus, squareplus_derivatives) if variant == "squareplus" else (logistic, None)
    return _over_bounds(whole, trained, rows, tokens, labels, loss, of_loss or derivatives.logistic_derivatives)


def _over_bounds(
    whole: dict[str, Tensor],
    trained: dict[str, Tensor],
    rows: Tensor,
    tokens: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor], Tensor],
    of_loss: Derivatives,
) -> list[float]:
    n_heads, n_tokens, dimension = whole["decoder"].shape
    margins = labels * network.predict({name: tensor[None] for name, tensor in whole.items()}, tokens[None])[0]
    hessian = derivatives.loss_hessian(whole, tokens, labels, of_loss)
    one = torch.block_diag(torch.kron(rows, torch.eye(dimension)), torch.eye(dimension**2)).double()
    every = np.kron(np.eye(n_heads), one.numpy())
    gradient = (of_loss(margins)[0] * labels / len(labels)).numpy() @ hessian.rows @ every
    eigenvalues = np.linalg.eigvalsh(every.T @ hessian.dense() @ every)
    stated = loss_constants(
        n_tokens=n_tokens,
        dimension=dimension,
        n_heads=n_heads,
        token_norm=max(1.0, float(tokens.norm(dim=2).max())),
        largest_head_norm=float(network.largest_head_norm({name: tensor[None] for name, tensor in trained.items()})),
    )
    value = float(loss(margins).mean())
    return [
        float(np.linalg.norm(gradient)) / (stated.gradient * value),
        float(np.abs(eigenvalues).max()) / stated.smoothness,
        -float(eigenvalues[0]) * math.sqrt(n_heads) / (stated.curvature * value),
    ]
