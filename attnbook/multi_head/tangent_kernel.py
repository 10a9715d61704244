r"""The tangent kernel of multi-head attention, and its direction of largest margin.

The kernel holds the inner products of $\nabla_{\tilde\theta}\tilde\Phi(X_i)$. The direction of largest margin is the
target that a linearised network points to.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.multi_head import layer
from attnbook.multi_head.layer import Counts, PerSample, Tokens

__all__ = ["TangentMargin", "from_features", "largest_margins", "tangent_features", "tangent_margin"]


def tangent_features(
    parameters: Parameters, tokens: Tokens, *, counts: Counts | None = None
) -> Float[Tensor, "members samples entries"]:
    r"""Return vectors with the inner products of the gradients $\nabla_{\tilde\theta}\tilde\Phi(X_i)$.

    Args:
        parameters: Where the network is linearised.
        tokens: The samples.
        counts: How many equal heads each head stands for; default one.

    Returns:
        Head by head the entries of ``decoder``, then those of ``key_query``, row by row. Without ``counts`` they are
        the gradients; with them the part of a head that stands for $m_h$ has the factor $\sqrt{m_h}$.
    """
    layer.check(parameters, tokens, counts=counts)
    members, samples, *_ = tokens.shape
    # Each sample is a member of its own, whose objective is its output.
    spread = {name: tensor.repeat_interleave(samples, 0) for name, tensor in parameters.items()}
    each = None if counts is None else counts.repeat_interleave(samples, 0)
    gradients = layer.value_and_gradient(
        spread, tokens.flatten(0, 1).unsqueeze(1), lambda out: (out[:, 0], torch.ones_like(out)), counts=each
    )[1]
    features = torch.cat([gradients[name].flatten(2) for name in ("decoder", "key_query")], 2)
    weight = 1.0 if each is None else each.sqrt().unsqueeze(2)
    return (weight * features).reshape(members, samples, -1)


def from_features(vectors: Float[Tensor, "members entries"], parameters: Parameters, *, counts: Counts) -> Parameters:
    """Return a vector of each member, entries as in its features, in the shape of its parameters.

    Features of a group stand for all its heads together; one of them has an equal share of the squared length.
    """
    each = vectors.view(*counts.shape, -1) / counts.sqrt().unsqueeze(2)
    decoder, key_query = parameters["decoder"], parameters["key_query"]
    size = decoder[0, 0].numel()
    return {"decoder": each[..., :size].reshape_as(decoder), "key_query": each[..., size:].reshape_as(key_query)}


def largest_margins(
    kernels: Float[np.ndarray, "members samples samples"], labels: Float[np.ndarray, "members samples"]
) -> Float[np.ndarray, " members"]:
    """Return the largest margin of any rule of norm one for each kernel; 0 where no rule separates."""
    found = np.zeros(len(kernels))
    for i, (kernel, y) in enumerate(zip(kernels, labels, strict=True)):
        with contextlib.suppress(NotSeparableError):
            found[i] = kernel_margin(kernel, y).margin
    return found


class TangentMargin(NamedTuple):
    r"""The largest margin of the linearised network.

    Attributes:
        margin: $\gamma$, for directions of norm $\sqrt2$ as in property P3, ``(members,)``.
        direction: The best direction of norm 1, one entry per group of heads.
    """

    margin: Float[np.ndarray, " members"]
    direction: Parameters


def tangent_margin(parameters: Parameters, tokens: Tokens, labels: PerSample, *, counts: Counts) -> TangentMargin:
    r"""Return the largest margin $\min_iy_i\langle\nabla\tilde\Phi(X_i),\tilde\theta_\star\rangle$ and its direction.

    The network is linearised at the ``parameters``; ``counts`` are the heads of each group of equal ones. ValueError if
    the shapes do not fit or a member's samples are not separable.
    """
    features = tangent_features(parameters, tokens, counts=counts)
    grams = (features @ features.mT).cpu().numpy()
    found = [kernel_margin(*pair) for pair in zip(grams, labels.cpu().numpy(), strict=True)]
    weights = torch.from_numpy(np.stack([one.weights for one in found])).to(labels)
    whole = torch.einsum("bn,bnf->bf", weights * labels, features)
    direction = from_features(whole / whole.norm(dim=1, keepdim=True), parameters, counts=counts)
    return TangentMargin(2**0.5 * np.array([one.margin for one in found]), direction)
