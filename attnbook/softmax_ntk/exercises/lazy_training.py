"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, Weights, loss_and_gradient

__all__ = ["CHECKS"]


def softmax_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the softmax network with one output (Claim 3.4)."""
    rng = stream(1, "exercise", "SN-1")
    weights, signs = rng.standard_normal((3, 8)), rng.choice([-1.0, 1.0], 8)
    x, y = rng.standard_normal((5, 3)), rng.standard_normal(5)
    got = np.asarray(answer(*(a.copy() for a in (weights, signs, x, y))), dtype=float)
    if got.shape != weights.shape:
        return f"one number per weight is wanted, shape {weights.shape}, got {got.shape}"
    network = Networks.stack("softmax", [Weights(weights, signs[None])])
    right = loss_and_gradient(network, _double(x[None]), _double(y[None, None]))[1][0].numpy()
    if np.allclose(got, right):
        return None
    logits = x @ weights
    neurons = 8 * np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    residual = neurons @ signs - y
    likely = {
        "the centring is missing: through the denominator every neuron also lowers all others": x.T
        @ (neurons * residual[:, None] * signs),
        "the loss has 1/2 in front: a factor 2 too many": 2 * right,
        "it is the sum over samples, not the mean": right / 5,
        "the sign is reversed: the residual is output minus label": -right,
        "the factor m is missing: the network is m times a softmax average": right / 8,
    }
    return likely_mistake(got, right, likely)


def gram_of_relu(answer: Callable[..., Any]) -> str | None:
    """Check the closed-form kernel of the ReLU network with one output."""
    rng = stream(1, "exercise", "SN-2")
    weights, x = rng.standard_normal((3, 8)), rng.standard_normal((5, 3))
    got = np.asarray(answer(weights.copy(), x.copy()), dtype=float)
    if got.shape != (5, 5):
        return f"one number per pair of samples is wanted, shape (5, 5), got {got.shape}"
    network = Networks.stack("relu", [Weights(weights, np.ones((1, 8)))])
    right = ntk_gram(network, _double(x[None]))[0].numpy()
    if np.allclose(got, right):
        return None
    on, neurons = (x @ weights > 0).astype(float), np.maximum(x @ weights, 0)
    likely = {
        "it is the average over neurons: divide by their number": 8 * right,
        "the inner products of the inputs are missing": on @ on.T / 8,
        "this uses the values of the neurons; the kernel is made of derivatives": neurons @ neurons.T / 8 * (x @ x.T),
        "this is the kernel of the features themselves, as if the second layer were trained": neurons @ neurons.T / 8,
    }
    return likely_mistake(got, right, likely)


def kernel_prediction(answer: Callable[..., Any]) -> str | None:
    """Check the outputs of gradient descent on a kernel after any number of steps."""
    rng = stream(1, "exercise", "SN-3")
    root, labels = rng.standard_normal((5, 5)), rng.standard_normal(5)
    kernel = root @ root.T / 5
    eta = 0.5 / float(np.linalg.eigvalsh(kernel)[-1])
    got = np.asarray(answer(kernel.copy(), labels.copy(), eta, 7), dtype=float)
    if got.shape != (5,):
        return f"one output per sample is wanted, shape (5,), got {got.shape}"

    def after(steps: int, step_size: float = eta) -> np.ndarray:
        return kernel_gradient_flow(_double(kernel), _double(labels), step_size, [steps])[0].numpy()

    right = after(7)
    if np.allclose(got, right):
        return None
    likely = {
        "this is what is left to learn; the outputs are the labels minus that": labels - right,
        "one step too few": after(6),
        "one step too many": after(8),
        "the labels themselves are reached only in the limit": labels,
        "the loss has 1/2 in front: a factor 2 too many in the step": after(7, 2 * eta),
        "this is gradient flow, exp(-eta t mu) in place of (1 - eta mu)^t": labels
        - np.linalg.multi_dot(_flow(kernel, eta * 7)) @ labels,
    }
    return likely_mistake(got, right, likely)


def _flow(kernel: np.ndarray, time: float) -> list[np.ndarray]:
    eigenvalues, vectors = np.linalg.eigh(kernel)
    return [vectors, np.diag(np.exp(-time * eigenvalues)), vectors.T]


def _double(array: np.ndarray) -> torch.Tensor:
    return to_tensor(array, dtype=torch.float64)


CHECKS = {"SN-1": softmax_gradient, "SN-2": gram_of_relu, "SN-3": kernel_prediction}
