"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.softmax_ntk.two_layer import Networks, Weights, loss_and_gradient


def softmax_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the softmax network with one output (Claim 3.4)."""
    rng = stream(1, "exercise", "SN-1")
    weights, signs = rng.standard_normal((3, 8)), rng.choice([-1.0, 1.0], 8)
    x, y = rng.standard_normal((5, 3)), rng.standard_normal(5)
    network = Networks.stack("softmax", [Weights(weights, signs[None])])
    right = loss_and_gradient(network, torch.from_numpy(x[None]), torch.from_numpy(y[None, None]))[1][0].numpy()
    neurons = 8 * np.exp(x @ weights) / np.exp(x @ weights).sum(1, keepdims=True)
    uncentred = x.T @ (neurons * (neurons @ signs - y)[:, None] * signs)
    likely = {
        "the centring is missing: through the denominator every neuron also lowers all others": uncentred,
        "the loss has 1/2 in front: a factor 2 too many": 2 * right,
        "it is the sum over samples, not the mean": right / 5,
        "the sign is reversed: the residual is output minus label": -right,
        "the factor m is missing: the network is m times a softmax average": right / 8,
    }
    return verdict(answer(*(a.copy() for a in (weights, signs, x, y))), right, likely, "one number per weight")


def kernel_change(answer: Callable[..., Any]) -> str | None:
    """Check the first-order change of one entry of the exp network's kernel."""
    rng = stream(1, "exercise", "SN-12")
    weights, move = rng.standard_normal((2, 3, 8))
    x, z = rng.standard_normal((2, 3))
    neurons, product = np.exp(weights.T @ (x + z)), x @ z
    right = product * (neurons * (move.T @ (x + z))).mean()
    whole = product * (np.exp((weights + move).T @ (x + z)) - neurons).mean()
    likely = {
        "it is the average over neurons: divide by their number": 8 * right,
        "the inner product of the two inputs is missing": right / product,
        "both inputs feel the move: one of the two terms is missing": product * (neurons * (move.T @ x)).mean(),
        "this is the kernel itself, not its change": product * neurons.mean(),
        "this is the whole change, all orders included": whole,
    }
    return verdict(answer(*(a.copy() for a in (weights, x, z, move))), right, likely, "one number")


CHECKS = {"SN-1": softmax_gradient, "SN-12": kernel_change}
