"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnbook.core.feedback import likely_mistake
from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.linearised import change_of_outputs
from attnbook.softmax_ntk.ntk import kernel_gradient_flow
from attnbook.softmax_ntk.two_layer import Networks, Weights

__all__ = ["CHECKS"]


def flow_prediction(answer: Callable[..., Any]) -> str | None:
    """Check the predictions of gradient flow on a kernel at one time."""
    rng = stream(1, "exercise", "SN-10")
    root, labels, cross = rng.standard_normal((5, 5)), rng.standard_normal(5), rng.standard_normal((3, 5))
    kernel, time = root @ root.T / 5, 1.7
    got = np.asarray(answer(kernel.copy(), labels.copy(), cross.copy(), time), dtype=float)
    if got.shape != (3,):
        return f"one prediction per new point is wanted, shape (3,), got {got.shape}"

    def at(when: float, step_size: float | None = None) -> np.ndarray:
        k, y, c = (_double(a) for a in (kernel, labels, cross))
        return kernel_gradient_flow(k, y, step_size, [when], cross=c)[0].numpy()

    right = at(time)
    if np.allclose(got, right):
        return None
    eigenvalues, vectors = np.linalg.eigh(kernel)
    decayed = vectors @ (np.exp(-time * eigenvalues) * (vectors.T @ labels))
    limit = cross @ np.linalg.solve(kernel, labels)
    likely = {
        "this is the end of the flow, for time without bound": limit,
        "this is what is still missing from the limit; subtract it": limit - right,
        "divide by the eigenvalues: the kernel has to be inverted on the way": cross @ (labels - decayed),
        "a factor 2 in the time: the loss has 1/2 in front": at(2 * time),
        "the factor 1 - exp(-time * eigenvalue) is missing its minus sign": -right,
        "these are steps, (1 - t mu); the flow has exp(-t mu)": cross @ (time * labels),
    }
    return likely_mistake(got, right, likely)


def linearised_output(answer: Callable[..., Any]) -> str | None:
    """Check how a change of the weights moves a softmax network, to first order."""
    rng = stream(1, "exercise", "SN-11")
    weights, change = rng.standard_normal((2, 3, 8))
    signs, x = rng.choice([-1.0, 1.0], 8), rng.standard_normal((5, 3))
    got = np.asarray(answer(*(a.copy() for a in (weights, signs, x, change))), dtype=float)
    if got.shape != (5,):
        return f"one number per input is wanted, shape (5,), got {got.shape}"
    network = Networks.stack("softmax", [Weights(weights, signs[None])])
    right = change_of_outputs(network, _double(x[None]), _double(change[None]))[0, 0].numpy()
    if np.allclose(got, right):
        return None
    neurons, moved = _neurons(weights, x), _neurons(weights + change, x)
    likely = {
        "the centring is missing: raising one neuron lowers all others": (neurons * (x @ change)) @ signs,
        "the factor m is missing: the network is m times a softmax average": right / 8,
        "this is the network after the change, all orders included": moved @ signs,
        "this is the whole change of the network, all orders included": (moved - neurons) @ signs,
        "add the change only: the output at the start is not part of it": right + neurons @ signs,
    }
    return likely_mistake(got, right, likely)


def _neurons(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    values = np.exp(x @ weights)
    return weights.shape[1] * values / values.sum(axis=1, keepdims=True)


def _double(array: np.ndarray) -> torch.Tensor:
    return to_tensor(array, dtype=torch.float64)


CHECKS = {"SN-10": flow_prediction, "SN-11": linearised_output}
