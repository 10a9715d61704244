"""What the learned score is held against: the four terms of the theorem, and denoisers that are straight lines."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.rng import to_tensor
from attnbook.softmax_ntk.experiments.score_tasks import GAP, ON_A_LINE, KernelMachine
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.reverse_sde import Denoiser
from attnbook.softmax_ntk.score_matching import NoisySample

__all__ = ["best_linear", "best_linear_factor", "four_terms", "gap_of_one_heap", "linear_answers"]


def best_linear() -> Denoiser:
    r"""Return the denoiser on the line that is best among those linear in $x$, a factor of its own at every time.

    It knows mean $0$ and variance $v$ of the data: its factor is $\alpha v/(\alpha^2v+\beta)$. To the backward process
    this is data in one normal heap.
    """
    return lambda time, points: best_linear_factor(np.full(len(points), time))[:, None] * points


def best_linear_factor(times: Float[np.ndarray, " count"]) -> Float[np.ndarray, " count"]:
    """Return the factor of the best linear denoiser at some times."""
    signal, noise = ON_A_LINE.schedule.signal(times), ON_A_LINE.schedule.noise(times)
    return signal * _variance() / (signal**2 * _variance() + noise)


def linear_answers(drawn: NoisySample, test: NoisySample) -> Float[np.ndarray, "2 tests"]:
    r"""Return what two linear denoisers answer at test points: the best one, and one fitted to the noisy labels.

    Args:
        drawn: The training set.
        test: The test points.

    Returns:
        Answers of the best linear denoiser, and of least squares on $1$, $x$ and $tx$.
    """
    best = best_linear_factor(test.times) * test.points[:, 0]
    known, asked = (
        np.column_stack([np.ones(len(d.times)), d.points, d.times[:, None] * d.points]) for d in (drawn, test)
    )
    return np.stack([best, asked @ np.linalg.lstsq(known, drawn.clean[:, 0], rcond=None)[0]])


def gap_of_one_heap() -> float:
    """Return the share between the modes of one normal heap, with the variance of the data at the first time."""
    schedule = ON_A_LINE.schedule
    variance = float(schedule.signal(schedule.first) ** 2 * _variance() + schedule.noise(schedule.first))
    return erf(GAP / sqrt(2 * variance))


def _variance() -> float:
    mixture = ON_A_LINE.mixture
    return float(np.var(mixture.means)) + mixture.width**2


def four_terms(
    machine: KernelMachine,
    drawn: NoisySample,
    test: NoisySample,
    network: Float[np.ndarray, " tests"],
    *,
    fresh: NoisySample,
    ridge: float,
    steps: int,
) -> Float[np.ndarray, " terms"]:
    """Return the four terms of Claim G.1, with a ridge fit of true labels as function of the class.

    Args:
        machine: The kernel machine on the training inputs.
        drawn: The training set.
        test: The fresh points on which the terms are measured.
        network: Answers of the trained network there.
        fresh: Points whose true labels define the function of the class.
        ridge: Ridge of that fit, added to the kernel's diagonal.
        steps: Number of steps of the network.

    Returns:
        Coupling, label mismatch, early stopping and approximation.
    """
    task, start = ON_A_LINE, machine.networks
    many, points = (task.inputs(d.times, d.points, start.signs) for d in (fresh, test))
    kernel = ntk_gram(start, many)[0]
    kernel.diagonal().add_(ridge)
    exact = to_tensor(task.true_labels(fresh), device=kernel.device, dtype=kernel.dtype)
    coefficients = torch.cholesky_solve(exact, torch.linalg.cholesky(kernel))[:, 0]
    in_class = [(ntk_gram(start, at, many)[0] @ coefficients).cpu().numpy() for at in (points, machine.inputs)]
    pseudo = in_class[1] + (drawn.clean - task.true_labels(drawn))[:, 0]
    both = np.stack([drawn.clean[:, 0], pseudo])
    noisy, matched = (
        machine.predict(machine.after(to_tensor(y[None], dtype=kernel.dtype, device=kernel.device), [steps]),
                        points)[0, 0].cpu().numpy()
        for y in both
    )  # fmt: skip
    truth = task.true_labels(test)[:, 0]
    pairs = ((network, noisy), (noisy, matched), (matched, in_class[0]), (in_class[0], truth))
    return np.array([np.mean((a - b) ** 2) for a, b in pairs])
