r"""Proximal steps of a group penalty, $\lambda\sum_k\|w_k\|$, for all members of an ensemble at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["group_shrinkage", "shrink_columns", "span"]

# Below this the norm of a column counts as zero.
SMALLEST_NORM = 1e-12


def span(values: Sequence[float]) -> slice:
    """Return the range from the first to the last value other than zero, empty where there is none.

    Example:
        >>> span([0.0, 2.0, 0.0, 1.0, 0.0])
        slice(1, 4, None)
    """
    there = [i for i, value in enumerate(values) if value]
    return slice(there[0], there[-1] + 1) if there else slice(0, 0)


def shrink_columns(weights: Float[Tensor, "members width inputs"], by: Float[Tensor, " members"]) -> None:
    """Shorten each column, the weights of one input, by a length, in place; shorter ones become zero.

    This is the proximal map of the group penalty with that weight.

    Example:
        >>> weights = torch.tensor([[[3.0, 0.3], [4.0, 0.4]]])
        >>> shrink_columns(weights, torch.tensor([1.0]))
        >>> [round(value, 6) for value in weights.flatten().tolist()]
        [2.4, 0.0, 3.2, 0.0]
    """
    norms = weights.norm(dim=1, keepdim=True).clamp_min_(SMALLEST_NORM)
    weights.mul_((1 - by.view(-1, 1, 1) / norms).clamp_min_(0))


def group_shrinkage(lengths: Sequence[float], hidden: Tensor) -> Callable[[Parameters], None] | None:
    """Return what shortens the columns of the parameter ``hidden`` after each step.

    Args:
        lengths: By how much, one number per member.
        hidden: A tensor of the device and type of the computation.

    Returns:
        For ``project`` of :func:`~attnbook.core.ensemble.train`; None where no length is positive. Only the members
        from the first to the last with a positive length are visited.
    """
    rows = span(lengths)
    if rows == slice(0, 0):
        return None
    by = torch.as_tensor(lengths[rows], device=hidden.device, dtype=hidden.dtype)
    return lambda parameters: shrink_columns(parameters["hidden"][rows], by)
