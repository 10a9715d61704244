r"""Networks of any number of layers behind a mask, $w^{(D)}\phi(w^{(D-1)}\dots\phi(w^{(1)}(x\odot a)))$ (Appendix D.2).

Parameters are ``mask`` $=a$, ``(inputs,)``, and ``layer_1`` to ``layer_D``, each ``(outputs, inputs)`` of its layer,
the last with one output; a member axis leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters

__all__ = ["draw_deep", "largest_gradient_correlation", "predict_deep"]


def draw_deep(
    n_inputs: int, widths: Sequence[int], *, rng: np.random.Generator, n_relevant: int | None = None
) -> dict[str, np.ndarray]:
    """Draw one network: weights with variance 2 / fan-in, those of the last layer half of it; a mask of ones.

    Args:
        n_inputs: Inputs.
        widths: Hidden units of each layer but the last.
        rng: Source of randomness.
        n_relevant: Inputs that count as the first layer's fan-in; default all.

    Returns:
        The parameters, without member axis.
    """
    sizes = list(pairwise([n_inputs, *widths, 1]))
    drawn = {"mask": np.ones(n_inputs)}
    for k, (below, above) in enumerate(sizes, 1):
        fan_in = n_relevant if k == 1 and n_relevant else below
        drawn[f"layer_{k}"] = rng.standard_normal((above, below)) * np.sqrt((2 if k < len(sizes) else 1) / fan_in)
    return drawn


def predict_deep(
    parameters: Parameters, inputs: Float[Tensor, "members samples inputs"]
) -> Float[Tensor, "members samples"]:
    """Return the answers of each member to its inputs."""
    *_, last = _given(parameters, inputs)
    return (last @ parameters[f"layer_{len(parameters) - 1}"].mT).squeeze(2)


def largest_gradient_correlation(
    parameters: Parameters, inputs: Float[Tensor, "samples inputs"], truth: Float[Tensor, " samples"]
) -> float:
    r"""Return the largest correlation, over samples, of the residual with an entry of $\partial f/\partial w^{(k)}$.

    Appendix D.2 assumes that it is of order 1 for some layer.

    Args:
        parameters: One network, its member axis of length 1.
        inputs: Inputs.
        truth: Their clean labels.

    Returns:
        The absolute value; entries that do not vary count as uncorrelated.
    """
    given = [layer[0] for layer in _given(parameters, inputs[None])]
    given[0] = inputs * parameters["mask"][0]
    residual = predict_deep(parameters, inputs[None])[0] - truth
    centred, back, largest = residual - residual.mean(), torch.ones_like(residual)[:, None], 0.0
    # The gradient of a layer is, for each sample, the product of what comes back to it and of what it is given.
    for k in range(len(given), 0, -1):
        below = given[k - 1]
        variances = back.square().mT @ below.square() / len(inputs) - (back.mT @ below / len(inputs)).square()
        covariances = (back * centred[:, None]).mT @ below / len(inputs)
        found = covariances / (variances.clamp(min=1e-12) * centred.square().mean()).sqrt()
        largest = max(largest, float(found.abs().max()))
        back = (back @ parameters[f"layer_{k}"][0]) * below.sign()
    return largest


def _given(parameters: Parameters, inputs: Tensor) -> list[Tensor]:
    """What each layer is given: the inputs, as they are, and the hidden units."""
    weights = parameters | {"layer_1": parameters["layer_1"] * parameters["mask"].unsqueeze(1)}
    given = [inputs]
    for k in range(1, len(parameters) - 1):
        given.append((given[-1] @ weights[f"layer_{k}"].mT).relu())
    return given
