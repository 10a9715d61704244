r"""The tangent kernel of multi-head attention: inner products of $\nabla_{\tilde\theta}\tilde\Phi(X_i)$."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head.models import closed_form

__all__ = ["tangent_features"]


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
    members, heads, *_ = closed_form.check(parameters, tokens, counts=counts)
    samples = tokens.shape[1]
    # Each sample is a member of its own, whose objective is its output.
    spread = {name: tensor.repeat_interleave(samples, dim=0) for name, tensor in parameters.items()}
    each = None if counts is None else counts.repeat_interleave(samples, dim=0)
    gradients = closed_form.value_and_gradient(
        spread, tokens.flatten(0, 1).unsqueeze(1), lambda out: (out[:, 0], torch.ones_like(out)), counts=each
    )[1]
    features = torch.cat([gradients[name].flatten(2) for name in ("decoder", "key_query")], dim=2)
    if each is not None:
        features = features * each.sqrt().unsqueeze(2)
    return features.reshape(members, samples, heads * features.shape[2])
