"""Checks of the exercises of this chapter. Each returns None for a right answer, else the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.softmax_ntk.linearised import outputs_and_change
from attnbook.softmax_ntk.two_layer import Networks, Weights


def flow_prediction(answer: Callable[..., Any]) -> str | None:
    """Check the predictions of gradient flow on a kernel at one time."""
    rng = stream(1, "exercise", "SN-10")
    root, labels, cross = rng.standard_normal((5, 5)), rng.standard_normal(5), rng.standard_normal((3, 5))
    kernel, time = root @ root.T / 5, 1.7
    eigenvalues, vectors = np.linalg.eigh(kernel)

    def fitted(when: float) -> np.ndarray:
        """Return what is learned of the labels at the samples."""
        return vectors @ (-np.expm1(-when * eigenvalues) * (vectors.T @ labels))

    right, late = (cross @ np.linalg.solve(kernel, fitted(when)) for when in (time, 2 * time))
    limit = cross @ np.linalg.solve(kernel, labels)
    likely = {
        "this is the end of the flow, for time without bound": limit,
        "this is what is still missing from the limit; subtract it": limit - right,
        "divide by the eigenvalues: the kernel has to be inverted on the way": cross @ fitted(time),
        "a factor 2 in the time: the loss has 1/2 in front": late,
        "the factor 1 - exp(-time * eigenvalue) is missing its minus sign": -right,
        "these are steps, (1 - t mu); the flow has exp(-t mu)": cross @ (time * labels),
    }
    return verdict(answer(kernel.copy(), labels.copy(), cross.copy(), time), right, likely, "one number per point")


def linearised_output(answer: Callable[..., Any]) -> str | None:
    """Check how a change of the weights moves a softmax network, to first order."""
    rng = stream(1, "exercise", "SN-11")
    weights, change = rng.standard_normal((2, 3, 8))
    signs, x = rng.choice([-1.0, 1.0], 8), rng.standard_normal((5, 3))
    network = Networks.stack("softmax", [Weights(weights, signs[None])])
    right = outputs_and_change(network, *(torch.from_numpy(a[None]) for a in (x, change)))[1][0, 0].numpy()
    neurons, moved = (np.exp(x @ w) * 8 / np.exp(x @ w).sum(1, keepdims=True) for w in (weights, weights + change))
    likely = {
        "the centring is missing: raising one neuron lowers all others": (neurons * (x @ change)) @ signs,
        "the factor m is missing: the network is m times a softmax average": right / 8,
        "this is the network after the change, all orders included": moved @ signs,
        "this is the whole change of the network, all orders included": (moved - neurons) @ signs,
        "add the change only: the output at the start is not part of it": right + neurons @ signs,
    }
    return verdict(answer(*(a.copy() for a in (weights, signs, x, change))), right, likely, "one number per input")


CHECKS = {"SN-10": flow_prediction, "SN-11": linearised_output}
