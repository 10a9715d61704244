"""Claim 3.4, Definitions 3.6 and 3.7: the closed forms against automatic differentiation, and exact invariants.

Small sizes, no training beyond a few steps: these hold to rounding or they are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, over_runs
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import (
    Networks,
    Start,
    draw_weights,
    loss_and_gradient,
    predict,
)

__all__ = ["Identities", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the checks.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        width: Number of neurons.
        steps: Steps over which the mean weight is watched.
        seeds: Seeds of data and weights.
        chunk: Seeds checked together.
    """

    n_samples: int = 5
    n_inputs: int = 7
    n_outputs: int = 3
    width: int = 24
    steps: int = 50
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second; the identities hold at any size."""
        return cls(n_samples=3, steps=5, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger check; the paper has none."""
        return cls(n_samples=11, n_outputs=5, width=96, seeds=tuple(range(10)))


@dataclass(frozen=True)
class Identities(Result):
    """Errors, each ``(seeds,)``.

    Attributes:
        gradient_error: Relative error of the closed-form gradient of the softmax network.
        other_gradient_error: The larger of those of exp and ReLU.
        kernel_error: Relative error of the closed-form kernel, the largest of the three networks.
        fast_kernel_error: Relative distance of the matrix product from the literal sum of Definition 3.6.
        output: Largest output of a paired softmax network at random inputs.
        mean_weight_change: Largest change of the mean weight during training.
        shift_change: Relative change of outputs and kernel when one vector is added to every neuron.
        origin_output: Largest output at the zero input, before and after training.
    """

    experiment: ClassVar[str] = "softmax_ntk.identities"
    settings_type: ClassVar[type] = Settings

    gradient_error: Float[np.ndarray, " seeds"]
    other_gradient_error: Float[np.ndarray, " seeds"]
    kernel_error: Float[np.ndarray, " seeds"]
    fast_kernel_error: Float[np.ndarray, " seeds"]
    output: Float[np.ndarray, " seeds"]
    mean_weight_change: Float[np.ndarray, " seeds"]
    shift_change: Float[np.ndarray, " seeds"]
    origin_output: Float[np.ndarray, " seeds"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the largest errors, by claim id."""
        n = len(self.settings.seeds)
        return {
            "SN-GRAD": over_runs(n, np.max, max_relative_error=self.gradient_error),
            "SN-GRAD-others": over_runs(n, np.max, max_relative_error=self.other_gradient_error),
            "SN-NTK": over_runs(n, np.max, max_relative_error=self.kernel_error),
            "SN-NTK-fast": over_runs(n, np.max, max_relative_error=self.fast_kernel_error),
            "SN-INIT": over_runs(n, np.max, max_output=self.output),
            "SN-INV-mean": over_runs(n, np.max, max_mean_weight_change=self.mean_weight_change),
            "SN-INV-shift": over_runs(n, np.max, max_relative_change=self.shift_change),
            "SN-INV-origin": over_runs(n, np.max, max_output=self.origin_output),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Identities:
    """Check the closed forms.

    Args:
        settings: Sizes and seeds.
        device: Checked for being there; the identities are computed in float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            found = [_check(settings, seed) for seed in seeds]
        if inner:
            inner(len(seeds), len(seeds))
        return {name: np.array([f[name] for f in found]) for name in found[0]}

    parts = by_seeds(settings, part, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return Identities(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _check(s: Settings, seed: int) -> dict[str, float]:
    rng = stream(seed, "identities")
    x = to_tensor(rng.standard_normal((1, s.n_samples, s.n_inputs)), dtype=torch.float64)
    y = to_tensor(rng.standard_normal((1, s.n_outputs, s.n_samples)), dtype=torch.float64)

    def draw(activation: Activation, start: Start) -> Networks:
        weights = draw_weights(s.width, s.n_inputs, s.n_outputs, rng=rng, start=start)
        return Networks.stack(activation, [weights])

    free = {name: draw(name, "independent") for name in ACTIVATIONS}
    gradients = {name: _gradient_error(networks, x, y) for name, networks in free.items()}
    return {
        "gradient_error": gradients["softmax"],
        "other_gradient_error": max(gradients["exp"], gradients["relu"]),
        "kernel_error": max(_distance(ntk_gram(n, x)[0], _jacobian_kernel(n, x)) for n in free.values()),
        "fast_kernel_error": _distance(ntk_gram(free["softmax"], x)[0], _literal_kernel(free["softmax"], x)),
        **_invariants(draw("softmax", "paired"), free["softmax"], x, y, s.steps),
    }


def _invariants(paired: Networks, free: Networks, x: Tensor, y: Tensor, steps: int) -> dict[str, float]:
    eta = 1 / (paired.width * torch.linalg.eigvalsh(ntk_gram(paired, x))[:, -1])
    trained = gradient_descent(paired, x, y, eta, max_steps=steps).networks
    shifted = replace(free, first_layer=free.first_layer + x[:, :1].mT)
    origin = torch.zeros_like(x)
    return {
        "output": float(predict(paired, x).abs().max()),
        "mean_weight_change": float((trained.first_layer - paired.first_layer).mean(2).abs().max()),
        "shift_change": max(
            _distance(predict(shifted, x)[0], predict(free, x)[0]),
            _distance(ntk_gram(shifted, x)[0], ntk_gram(free, x)[0]),
        ),
        "origin_output": float(max(predict(n, origin).abs().max() for n in (paired, trained))),
    }


def _plain_outputs(networks: Networks, first_layer: Tensor, x: Tensor) -> Tensor:
    """Outputs of the first network as one would write them down, for automatic differentiation."""
    logits = x[0] @ first_layer
    if networks.activation == "softmax":
        neurons = networks.width * torch.softmax(logits, dim=1)
    else:
        neurons = logits.exp() if networks.activation == "exp" else logits.relu()
    return networks.signs[0] @ neurons.T


def _gradient_error(networks: Networks, x: Tensor, y: Tensor) -> float:
    leaf = networks.first_layer[0].clone().requires_grad_()
    loss = (_plain_outputs(networks, leaf, x) - y[0]).square().sum() / 2
    (automatic,) = torch.autograd.grad(loss, leaf)
    return _distance(loss_and_gradient(networks, x, y)[1][0], automatic)


def _jacobian_kernel(networks: Networks, x: Tensor) -> Tensor:
    def outputs(first_layer: Tensor) -> Tensor:
        return _plain_outputs(networks, first_layer, x).flatten()

    jacobian = torch.autograd.functional.jacobian(outputs, networks.first_layer[0]).flatten(1)
    return jacobian @ jacobian.T / networks.width


def _literal_kernel(networks: Networks, x: Tensor) -> Tensor:
    """Definition 3.6 term by term, with the vectors $v_{l,r} = a_{l,r} 1 - a_l$ written out."""
    m, signs, points = networks.width, networks.signs[0], x[0]
    softmax = torch.softmax(points @ networks.first_layer[0], dim=1)
    entries = torch.zeros(len(signs), len(points), len(signs), len(points), dtype=x.dtype)
    for a, i, b, j in np.ndindex(*entries.shape):
        total = sum(
            ((signs[a, r] - signs[a]) @ softmax[i]) * m * softmax[i, r]
            * ((signs[b, r] - signs[b]) @ softmax[j]) * m * softmax[j, r]
            for r in range(m)
        )  # fmt: skip
        entries[a, i, b, j] = points[i] @ points[j] * total / m
    return entries.view(len(signs) * len(points), -1)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())
