r"""Lemmas D.1, D.3 and E.1: where the decrease of the loss in one step comes from.

The induction behind Lemma 5.3 splits the change of the squared residual into four terms and bounds each of them. Here
all four are computed along the training, beside the account that the induction makes. This book's experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.experiments.runs import Problem, over_runs, place, train
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.one_step import loss_terms
from attnbook.softmax_ntk.two_layer import Networks, loss_and_gradient, neuron_derivatives, predict

__all__ = ["TERMS", "OneStep", "Settings", "run"]

TERMS = ("normaliser", "first order", "higher orders", "squared change")


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs.
        n_outputs: Number of outputs.
        width: Number of neurons.
        fraction: Step size, in units of $1/(m\lambda_{\max}(H^*))$; below 2.
        steps: Steps that are taken apart.
        seeds: Seeds of data and weights.
        chunk: Seeds trained together.
    """

    n_samples: int = 16
    n_inputs: int = 16
    n_outputs: int = 2
    width: int = 256
    fraction: float = 0.5
    steps: int = 40
    seeds: tuple[int, ...] = tuple(range(10))
    chunk: int = 10

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: expected at least one, got {self.steps}")
        if not 0 < self.fraction < 2:
            raise ValueError(
                "fraction: the step size is this many 1/(m λ_max), and from 2 on even a linear model diverges; "
                f"expected a number between 0 and 2, got {self.fraction}"
            )
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_samples=5, n_inputs=7, width=32, steps=3, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(n_samples=128, n_inputs=128, n_outputs=4, width=4096, chunk=1)


@dataclass(frozen=True)
class OneStep(Result):
    r"""What each step did; arrays ``(seeds, steps)`` unless stated.

    Attributes:
        terms: $C_0$ to $C_3$ over $\|F-Y\|_F^2$ before the step, ``(seeds, steps, 4)``.
        change: Relative change of $\|F-Y\|_F^2$.
        residual_error: Relative distance of the sum of the terms from that change.
        leading: $2m\eta\,e^\top H(\tau)e/\|e\|^2$ with $e$ the residual.
        unit: $m\eta\lambda$, the unit of the induction's account, ``(seeds,)``.
        gradient_ratio: Lemma D.1: largest $\|\Delta w_r\|$ over its bound, with the largest $mS_{ir}$ for $e^{3B}$.
        largest_neuron: That largest $mS_{ir}$.
        exponent: Largest $|\langle w_r,x_i\rangle|$ at the start, the smallest possible $B$, ``(seeds,)``.
        start_error: Lemma D.3: relative distance of $\|F(0)-Y\|_F^2$ from $\|Y\|_F^2$, ``(seeds,)``.
        start_norm: $\|F(0)-Y\|_F^2$ over the number of samples, ``(seeds,)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.one_step"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    terms: Float[np.ndarray, "seeds steps terms"]
    change: Float[np.ndarray, "seeds steps"]
    residual_error: Float[np.ndarray, "seeds steps"]
    leading: Float[np.ndarray, "seeds steps"]
    unit: Float[np.ndarray, " seeds"]
    gradient_ratio: Float[np.ndarray, "seeds steps"]
    largest_neuron: Float[np.ndarray, "seeds steps"]
    exponent: Float[np.ndarray, " seeds"]
    start_error: Float[np.ndarray, " seeds"]
    start_norm: Float[np.ndarray, " seeds"]

    def shares(self) -> Float[np.ndarray, "seeds steps terms"]:
        """Return the size of each term relative to the first-order term."""
        return np.abs(self.terms) / np.abs(self.terms[:, :, 1:2])

    def measurements(self) -> dict[str, Measurement]:
        """Return errors of the identities and sizes of the terms, by claim id."""
        n, shares, ratio = len(self.settings.seeds), self.shares(), -self.terms[:, :, 1] / self.leading
        start = over_runs(n, np.max, max_relative_error=self.start_error, max_norm_over_count=self.start_norm)
        return {
            "SN-D1": over_runs(n, np.max, max_ratio_to_bound=self.gradient_ratio),
            "SN-D3": start,
            "SN-E1": over_runs(n, np.max, max_relative_error=self.residual_error),
            "SN-E1s": over_runs(n, np.min, min_ratio_to_leading_form=ratio),
            "SN-E1s-exact": over_runs(n, np.max, max_ratio_deviation=np.abs(ratio - 1)),
            "SN-E1s-normaliser": over_runs(n, np.max, max_ratio_to_first_order=shares[:, :, 0]),
            "SN-E1s-higher": over_runs(n, np.max, max_ratio_to_first_order=shares[:, :, 2]),
            "SN-E1s-square": over_runs(n, np.max, max_ratio_to_first_order=shares[:, :, 3]),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> OneStep:
    """Train softmax networks and take every step apart.

    Args:
        settings: Sizes, step size and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where, s = Clock(), place(device), settings

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            found = _take_apart(s, seeds, where)
        if inner:
            inner(len(seeds), len(seeds))
        return found

    arrays = concatenate(by_seeds(s, part, clock=clock, workdir=workdir, progress=progress))
    return OneStep(settings=s, provenance=clock.provenance(where), **arrays)


def _take_apart(s: Settings, seeds: tuple[int, ...], device: torch.device) -> dict[str, np.ndarray]:
    problem = Problem("softmax", s.width, s.n_samples, s.n_inputs, s.n_outputs)
    samples = [draw_sample(s.n_samples, s.n_inputs, s.n_outputs, seed=seed) for seed in seeds]
    begun = train(problem, seeds, device=device, max_steps=1, fraction=s.fraction, samples=samples)
    inputs, eta, networks = begun.inputs, begun.step_size, begun.start
    labels = to_tensor(np.stack([sample.labels for sample in samples]), device=device, dtype=torch.float64)
    first, norm = ((out - labels).square().sum((1, 2)) for out in (predict(networks, inputs), 0))
    found = []
    for _ in range(s.steps):
        after = gradient_descent(networks, inputs, labels, eta, max_steps=1).networks
        found.append(_one(networks, after, inputs, labels, eta))
        networks = after
    stacked = {name: torch.stack([f[name] for f in found], dim=1) for name in found[0]}
    logits = torch.bmm(inputs, begun.start.first_layer)
    stacked |= {
        "unit": s.width * eta * torch.as_tensor(begun.eigenvalues[:, 0], dtype=eta.dtype, device=eta.device),
        "exponent": logits.abs().amax((1, 2)),
        "start_error": (first - norm).abs() / norm,
        "start_norm": first / s.n_samples,
    }
    return {name: tensor.cpu().double().numpy() for name, tensor in stacked.items()}


def _one(before: Networks, after: Networks, inputs: Tensor, labels: Tensor, eta: Tensor) -> dict[str, Tensor]:
    error, end = (predict(n, inputs) - labels for n in (before, after))
    squared = error.square().sum((1, 2))
    change = end.square().sum((1, 2)) - squared
    terms = loss_terms(before, after, inputs, labels)
    flat = error.flatten(1)[:, :, None]
    form = torch.bmm(flat.mT, torch.bmm(ntk_gram(before, inputs), flat))[:, 0, 0]
    largest = neuron_derivatives(before, inputs).amax((1, 2))
    gradient = loss_and_gradient(before, inputs, labels)[1].norm(dim=1).amax(1)
    count = labels.shape[1] * labels.shape[2]
    return {
        "terms": terms / squared[:, None],
        "change": change / squared,
        "residual_error": (terms.sum(1) - change).abs() / change.abs(),
        "leading": 2 * before.width * eta * form / squared,
        "gradient_ratio": gradient / (2 * largest * (count * squared).sqrt()),
        "largest_neuron": largest,
    }
