"""Why a softmax network loses its smallest eigenvalue far from the start: a look at single networks after a move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attnbook.softmax_ntk.experiments.eigenvalue_radius import EigenvalueRadius
from attnbook.softmax_ntk.experiments.perturbed import Start
from attnbook.softmax_ntk.experiments.runs import Problem, place
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import neuron_derivatives

__all__ = ["Look", "look_at", "looks"]


@dataclass(frozen=True)
class Look:
    """One softmax network after a random move.

    Attributes:
        seed: Its seed.
        n_samples: Number of its samples.
        left: Its smallest eigenvalue after the move over that before.
        left_alone: The same of each output alone, the kernel's diagonal blocks; the smallest of them.
        on_one_sample: Share of the squared eigenvector of the smallest eigenvalue that lies on one sample.
        heaviest: Attention of that sample to its heaviest neuron.
        cosine: Largest cosine, up to sign, between the features of two outputs at that sample.
        cosine_median: The same of the median sample.
    """

    seed: int
    n_samples: int
    left: float
    left_alone: float
    on_one_sample: float
    heaviest: float
    cosine: float
    cosine_median: float


def look_at(problem: Problem, seed: int, radius: float) -> Look:
    """Move the neurons of one network at random and look where its smallest eigenvalue lives.

    Args:
        problem: Its sizes, two outputs or more.
        seed: Its seed.
        radius: How far each neuron moves.

    Returns:
        What was found.
    """
    n, d = problem.n_samples, problem.n_outputs
    start = Start(problem, (seed,), place("cpu"))
    moved = start.moved("random", radius)
    kernels = torch.stack([start.kernel[0], ntk_gram(moved, start.inputs)[0]])
    eigenvalues, vectors = torch.linalg.eigh(kernels)
    on_samples = vectors[1, :, 0].square().view(d, n).sum(dim=0)
    sample = int(on_samples.argmax())
    blocks = kernels.view(2, d, n, d, n)
    alone = torch.stack([torch.linalg.eigvalsh(blocks[:, k, :, k])[:, 0] for k in range(d)], dim=1)
    between = torch.einsum("kili->ikl", blocks[1])
    norms = between.diagonal(dim1=1, dim2=2).sqrt()
    cosines = (between / norms[:, :, None] / norms[:, None]).abs().triu(diagonal=1).amax(dim=(1, 2))
    attention = neuron_derivatives(moved, start.inputs)[0, sample] / problem.width
    return Look(
        seed=seed,
        n_samples=n,
        left=float(eigenvalues[1, 0] / eigenvalues[0, 0]),
        left_alone=float((alone[1] / alone[0]).min()),
        on_one_sample=float(on_samples[sample]),
        heaviest=float(attention.max()),
        cosine=float(cosines[sample]),
        cosine_median=float(cosines.median()),
    )


def looks(result: EigenvalueRadius) -> list[Look]:
    """Return a look at every softmax network that a random move cost half of its smallest eigenvalue.

    Args:
        result: The experiment that found them.

    Returns:
        One for each of them that has two outputs or more, at the largest radius.
    """
    s, lost = result.settings, np.isfinite(result.losses_of("random", "softmax"))
    return [
        look_at(Problem("softmax", s.width, s.sizes[k], s.n_inputs, s.outputs[j]), s.seeds[i], s.radii[-1])
        for i, j, k in np.argwhere(lost)
        if s.outputs[j] > 1
    ]
