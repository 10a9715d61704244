r"""The tangent kernel of multi-head attention, its direction of largest margin, and the linearised network.

The kernel holds the inner products of $\nabla_{\tilde\theta}\tilde\Phi(X_i)$. The direction of largest margin is the
target that a linearised network points to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head import layer

__all__ = ["TangentMargin", "linearised_outputs", "tangent_features", "tangent_margin"]


def tangent_features(
    parameters: Parameters,
    tokens: Float[Tensor, "members samples tokens dimension"],
    *,
    counts: Float[Tensor, "members heads"] | None = None,
) -> Float[Tensor, "members samples entries"]:
    r"""Return vectors with the inner products of the gradients $\nabla_{\tilde\theta}\tilde\Phi(X_i)$.

    Without ``counts`` they are the gradients. With them each head stands for $m_h$ equal ones, and its part carries the
    factor $\sqrt{m_h}$ in the place of $m_h$ repetitions.

    Args:
        parameters: ``decoder (members, heads, tokens, dimension)`` and ``key_query (members, heads, dimension,
            dimension)``.
        tokens: Samples of each member.
        counts: How many equal heads each stands for; default one each.

    Returns:
        Features; head by head, in each the entries of ``decoder``, then those of ``key_query``, row by row.

    Raises:
        ValueError: If the shapes do not fit.
    """
    members, heads, *_ = layer.check(parameters, tokens, counts=counts)
    samples = tokens.shape[1]
    # Each sample is a member of its own, whose objective is its output.
    spread = {name: tensor.repeat_interleave(samples, dim=0) for name, tensor in parameters.items()}
    each = None if counts is None else counts.repeat_interleave(samples, dim=0)
    gradients = layer.value_and_gradient(
        spread, tokens.flatten(0, 1).unsqueeze(1), lambda out: (out[:, 0], torch.ones_like(out)), counts=each
    )[1]
    features = torch.cat([gradients[name].flatten(2) for name in ("decoder", "key_query")], dim=2)
    if each is not None:
        features = features * each.sqrt().unsqueeze(2)
    return features.reshape(members, samples, heads * features.shape[2])


class TangentMargin(NamedTuple):
    r"""The largest margin of the linearised network.

    Attributes:
        margin: $\gamma$, for directions of norm $\sqrt2$ as in property P3, ``(members,)``.
        direction: The best direction of norm 1, one entry per group of heads.
        gram: Inner products of the gradients of the outputs.
    """

    margin: Float[np.ndarray, " members"]
    direction: Parameters
    gram: Float[Tensor, "members samples samples"]


def tangent_margin(
    parameters: Parameters,
    tokens: Float[Tensor, "members samples tokens dimension"],
    labels: Float[Tensor, "members samples"],
    *,
    counts: Float[Tensor, "members groups"],
) -> TangentMargin:
    r"""Return the largest margin $\min_iy_i\langle\nabla\tilde\Phi(X_i),\tilde\theta_\star\rangle$ and its direction.

    Args:
        parameters: Where to linearise: ``decoder`` and ``key_query`` of each group of equal heads.
        tokens: Samples of each member.
        labels: 1 or -1.
        counts: Heads of each group.

    Returns:
        The margin with $\|\tilde\theta_\star\|=\sqrt2$, the direction with norm 1 and the tangent kernel.

    Raises:
        ValueError: If the shapes do not fit or a member's samples are not separable.
    """
    from attnbook.core.kernel_margin import kernel_margin

    features = tangent_features(parameters, tokens, counts=counts)
    gram = features @ features.mT
    found = [kernel_margin(g, y) for g, y in zip(gram.cpu().numpy(), labels.cpu().numpy(), strict=True)]
    weights = torch.tensor(np.stack([one.weights for one in found])).to(labels)
    whole = torch.einsum("bn,bnf->bf", weights * labels, features)
    whole = whole / whole.norm(dim=1, keepdim=True)
    # Features of a group stand for all its heads together; one of them has an equal share of the squared length.
    by_group = whole.view(*counts.shape, -1) / counts.sqrt().unsqueeze(2)
    split = parameters["decoder"][0, 0].numel()
    direction = {
        "decoder": by_group[:, :, :split].reshape(parameters["decoder"].shape),
        "key_query": by_group[:, :, split:].reshape(parameters["key_query"].shape),
    }
    return TangentMargin(math.sqrt(2) * np.array([one.margin for one in found]), direction, gram)


def linearised_outputs(
    outputs: Float[Tensor, "members samples"],
    labels: Float[Tensor, "members samples"],
    gram: Float[Tensor, "members samples samples"],
    *,
    step_size: float,
    steps: int,
) -> Float[Tensor, "members samples"]:
    r"""Train the linearised network by gradient descent and return its outputs on the samples.

    Its outputs $f$ follow $f\leftarrow f+\frac\eta n\,G\,(y\odot\sigma(-y\odot f))$ with the tangent kernel $G$.

    Args:
        outputs: Outputs of the network where it is linearised.
        labels: 1 or -1.
        gram: The tangent kernel $G$ there.
        step_size: $\eta$, positive.
        steps: Number of steps, at least 1.

    Returns:
        The outputs after the last step.

    Raises:
        ValueError: If a number is outside its range.
    """
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size: expected a finite positive number, got {step_size}")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    pushed = (step_size / labels.shape[1]) * gram
    for _ in range(steps):
        outputs = outputs + torch.bmm(pushed, (labels * torch.sigmoid(-labels * outputs)).unsqueeze(2)).squeeze(2)
    return outputs
