r"""What is minimised: functions of the outputs, each with its derivative in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.multi_head.layer import Objective

__all__ = ["log_sum_exp", "logistic", "side_by_side"]


def logistic(
    labels: Float[Tensor, "members samples"], weights: Float[Tensor, "members samples"] | None = None
) -> Objective:
    r"""Return the logistic loss $\sum_iw_i\log(1+e^{-y_i\tilde\Phi(X_i)})$ of each member.

    Args:
        labels: 1 or -1.
        weights: Weight $w_i$ of each sample; default $1/n$, the mean. Zero leaves a sample out.

    Returns:
        The objective.

    Example:
        >>> import torch
        >>> logistic(torch.tensor([[1.0, -1.0]]))(torch.zeros(1, 2))[1]
        tensor([[-0.2500,  0.2500]])
    """
    shares = labels.new_full(labels.shape, 1 / labels.shape[1]) if weights is None else weights

    def objective(outputs: Tensor) -> tuple[Tensor, Tensor]:
        margins = labels * outputs
        return -(shares * logsigmoid(margins)).sum(1), -shares * labels * (-margins).sigmoid()

    return objective


def log_sum_exp(labels: Float[Tensor, "members samples"]) -> Objective:
    r"""Return $\log\frac1n\sum_ie^{-y_i\tilde\Phi(X_i)}$ of each member, a smooth version of minus the smallest margin.

    Where the logistic loss is small its gradient divided by the loss tends to the gradient of this function, which
    neither overflows nor vanishes at margins of a thousand.

    Args:
        labels: 1 or -1.

    Returns:
        The objective.

    Example:
        >>> import torch
        >>> value, slopes = log_sum_exp(torch.tensor([[1.0, 1.0]]))(torch.tensor([[2000.0, 1000.0]]))
        >>> slopes
        tensor([[-0., -1.]])
    """

    def objective(outputs: Tensor) -> tuple[Tensor, Tensor]:
        exponents = -labels * outputs
        return exponents.logsumexp(1) - math.log(labels.shape[1]), -labels * exponents.softmax(1)

    return objective


def side_by_side(parts: Sequence[tuple[int, Objective]]) -> Objective:
    """Return the objective of a stack of members that do not all minimise the same.

    Args:
        parts: Number of members, at least 1, and their objective, in the order of the stack.

    Returns:
        The objective.

    Raises:
        ValueError: If there is no part or a number is not positive; when called, if the numbers do not add up to the
            members that come.

    Example:
        >>> import torch
        >>> labels = torch.ones(1, 2)
        >>> both = side_by_side([(1, logistic(labels)), (1, log_sum_exp(labels))])
        >>> both(torch.zeros(2, 2))[1].tolist()
        [[-0.25, -0.25], [-0.5, -0.5]]
    """
    sizes, objectives = [size for size, _ in parts], [one for _, one in parts]
    if not sizes or min(sizes) < 1:
        raise ValueError(f"parts: expected parts of at least one member, got {sizes}")

    def objective(outputs: Tensor) -> tuple[Tensor, Tensor]:
        if len(outputs) != sum(sizes):
            raise ValueError(f"outputs: expected those of {sum(sizes)} members, got {len(outputs)}")
        found = [one(part) for one, part in zip(objectives, outputs.split(sizes), strict=True)]
        return torch.cat([value for value, _ in found]), torch.cat([slopes for _, slopes in found])

    return objective
