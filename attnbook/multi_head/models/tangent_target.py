"""What the paper's proofs compare training with: the best tangent direction at the start, followed for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.kernel_margin import kernel_margin
from attnbook.multi_head.models import closed_form
from attnbook.multi_head.models.tangent_kernel import tangent_features

__all__ = ["TangentTarget", "tangent_target"]


@dataclass(frozen=True)
class TangentTarget:
    r"""The best direction of the linearised network at the start.

    Attributes:
        margin: $\gamma$ of Definition 1 (P3), for directions of norm $\sqrt2$.
        direction: $\tilde\theta_\star$ with $\|\tilde\theta_\star\|=\sqrt2$ over all heads, for one head of each group.
    """

    margin: Float[np.ndarray, " members"]
    direction: Parameters

    def at(self, start: Parameters, distance: Float[Tensor, " members"]) -> Parameters:
        """Return the parameters at this distance from the start, in the best direction.

        Args:
            start: Where the direction belongs to.
            distance: Distance of each member, over all heads.

        Returns:
            The target.
        """
        along = (distance / math.sqrt(2))[:, None, None, None]
        return {name: start[name] + along * self.direction[name] for name in start}


def tangent_target(
    start: Parameters,
    tokens: Float[Tensor, "members samples tokens dimension"],
    labels: Float[Tensor, "members samples"],
    *,
    counts: Float[Tensor, "members groups"],
) -> TangentTarget:
    r"""Return the largest tangent-kernel margin at the start and the direction that has it.

    Args:
        start: Parameters in groups of equal heads.
        tokens: Samples of each member.
        labels: 1 or -1.
        counts: Heads of each group.

    Returns:
        Margin and direction of each member.

    Raises:
        ValueError: If the shapes do not fit, or no direction has a positive margin.
    """
    members, groups, n_tokens, dimension = closed_form.check(start, tokens, labels, counts=counts)
    features = tangent_features(start, tokens, counts=counts)
    grams = torch.bmm(features, features.mT).cpu().numpy()
    found = [kernel_margin(gram, y) for gram, y in zip(grams, labels.cpu().numpy(), strict=True)]
    weights = labels * torch.as_tensor(np.stack([one.weights for one in found])).to(labels)
    normal = torch.bmm(weights.unsqueeze(1), features).squeeze(1)
    normal = math.sqrt(2) * normal / normal.norm(dim=1, keepdim=True)
    # Features carry the root of the multiplicity, so that norms are those over all heads; one head moves less.
    one_head = normal.view(members, groups, -1) / counts.to(normal).sqrt().unsqueeze(2)
    decoder, key_query = one_head.split([n_tokens * dimension, dimension**2], dim=2)
    direction = {
        "decoder": decoder.reshape(members, groups, n_tokens, dimension),
        "key_query": key_query.reshape(members, groups, dimension, dimension),
    }
    return TangentTarget(math.sqrt(2) * np.array([one.margin for one in found]), direction)
