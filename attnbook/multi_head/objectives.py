r"""What is minimised: functions of the outputs, each with its derivative in them."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.multi_head.layer import Objective, PerSample

__all__ = ["log_sum_exp", "logistic"]


def logistic(labels: PerSample, weights: PerSample | None = None) -> Objective:
    r"""Return the logistic loss $\sum_iw_i\log(1+e^{-y_i\tilde\Phi(X_i)})$ of each member, labels $y_i$ 1 or -1.

    The weights are $1/n$ by default, for the mean; zero leaves a sample out.

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


def log_sum_exp(labels: PerSample) -> Objective:
    r"""Return $\log\frac1n\sum_ie^{-y_i\tilde\Phi(X_i)}$ of each member, a smooth version of minus the smallest margin.

    Where the logistic loss is small its gradient divided by the loss tends to the gradient of this function, which
    neither overflows nor vanishes at margins of a thousand.
    """

    def objective(outputs: Tensor) -> tuple[Tensor, Tensor]:
        exponents = -labels * outputs
        return exponents.logsumexp(1) - math.log(labels.shape[1]), -labels * exponents.softmax(1)

    return objective
