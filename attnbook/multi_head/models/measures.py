"""What is measured of a network on samples of the tokenised mixture."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head.models import closed_form

__all__ = ["error_rate", "relevant_mass"]


def error_rate(
    outputs: Float[Tensor, "members samples"], labels: Float[Tensor, "members samples"]
) -> Float[Tensor, " members"]:
    """Return the share of samples whose output does not have the sign of the label; an output of zero is an error.

    Args:
        outputs: Predictions.
        labels: 1 or -1.

    Returns:
        The rates, between 0 and 1.

    Example:
        >>> import torch
        >>> error_rate(torch.tensor([[2.0, -1.0, 0.0, 3.0]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]]))
        tensor([0.5000])
    """
    return (outputs * labels <= 0).to(outputs.dtype).mean(1)


def relevant_mass(
    parameters: Parameters,
    tokens: Float[Tensor, "members samples tokens dimension"],
    relevant: Bool[Tensor, "members samples tokens"],
) -> Float[Tensor, "members heads"]:
    r"""Return how much of its attention each head gives to the relevant tokens, on average over samples and queries.

    Args:
        parameters: ``decoder`` and ``key_query``, see :mod:`~attnbook.multi_head.models.network`.
        tokens: Samples of each member.
        relevant: Which tokens carry the label.

    Returns:
        The masses, between 0 and 1; uniform attention gives $\zeta$, the share of relevant tokens.

    Raises:
        ValueError: If the shapes do not fit.
    """
    if relevant.shape != tokens.shape[:3]:
        raise ValueError(f"relevant: expected {tuple(tokens.shape[:3])}, got {tuple(relevant.shape)}")
    weights = closed_form.attention_weights(parameters, tokens)
    on_relevant = weights * relevant[:, :, None, None, :].to(weights.dtype)
    return on_relevant.sum(4).mean((1, 3))
