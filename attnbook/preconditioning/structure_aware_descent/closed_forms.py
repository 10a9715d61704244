"""The closed-form gradients of the chapter, held against automatic differentiation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.preconditioning.attention import loss_and_gradient, predict
from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
    sample_covariance,
)

__all__ = ["LOSSES", "gradient_errors"]

LOSSES = ("empirical", "population", "regulariser")


def gradient_errors(m: int, d: int) -> np.ndarray:
    """Return the largest difference for each of the losses, at random points in float64.

    Args:
        m: Number of outputs.
        d: Number of inputs.

    Returns:
        The differences, in the order of :data:`LOSSES`.
    """
    rng, members, seeds = stream(0, "gradients"), 6, 3

    def draw(*shape: int) -> Tensor:
        return to_tensor(rng.standard_normal(shape), dtype=torch.float64)

    layers = {"value": draw(members, m, d).requires_grad_(), "key_query": draw(members, d, d).requires_grad_()}
    inputs, labels, true_map = draw(seeds, 2 * d, d), draw(seeds, 2 * d, m), draw(m, d)
    covariance = sample_covariance(inputs[0])
    together = [tensor.repeat(members // seeds, 1, 1) for tensor in (inputs, labels)]
    residual = predict(layers["value"], layers["key_query"], together[0]) - together[1]
    true = {"covariance": covariance, "true_map": true_map}
    losses = [
        residual.square().sum((-2, -1)) / (4 * d),
        excess_loss(*layers.values(), **true),
        balance_penalty(*layers.values(), covariance=covariance),
    ]
    detached = {name: layer.detach() for name, layer in layers.items()}
    closed = [
        tuple(loss_and_gradient(detached, (inputs, labels))[1].values()),
        excess_loss_gradient(*detached.values(), **true),
        penalty_gradient(*detached.values(), covariance=covariance),
    ]
    automatic = [torch.autograd.grad(loss.sum(), list(layers.values())) for loss in losses]
    pairs = zip(closed, automatic, strict=True)
    return np.array([max(float((a - b).abs().max()) for a, b in zip(*pair, strict=True)) for pair in pairs])
