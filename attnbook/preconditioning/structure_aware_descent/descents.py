"""Descents near the minima: conditioning, rates, and what balance costs. All in float64, on the population loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.preconditioning.curves import first_time
from attnbook.preconditioning.data import Setup, draw_problem
from attnbook.preconditioning.manifold import minimum, nearest, split, stack, unstack
from attnbook.preconditioning.optimizer import StructureAwareGD, spectral_init
from attnbook.preconditioning.population import (
    Preconditioner,
    excess_loss,
    excess_loss_gradient,
    imbalance,
    penalty_gradient,
    precondition,
    sample_covariance,
    spectral_factors,
    square_roots,
)
from attnbook.preconditioning.structure_aware_descent.factorisation import Factorisation

__all__ = [
    "arrival",
    "closed_form_imbalance",
    "exact",
    "limit",
    "near_minimum",
    "noisy_balance",
    "rate",
    "settled_imbalance",
    "trajectory_difference",
    "unbalanced",
]


def exact(device: torch.device) -> torch.device:
    """Return a device that has float64: the processor in place of mps."""
    return torch.device("cpu") if device.type == "mps" else device


def near_minimum(
    singular_values: np.ndarray, outputs: int, displacement: float, seeds: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return whitened maps, and starts around one of the minima of each, a seed each."""
    to, dimension = partial(to_tensor, device=device, dtype=torch.float64), len(singular_values)
    draw = partial(draw_problem, dimension, outputs, condition_number=1.0, singular_values=singular_values, noise=0.0)
    maps = [draw(rng=stream(seed, "problem", outputs)).true_map for seed in seeds]
    whitened_map = to(np.array(maps))
    base = minimum(whitened_map)
    draws = np.array([stream(seed, "start", outputs).standard_normal(base.shape[1:]) for seed in seeds])
    return whitened_map, base + displacement * to(draws)


def arrival(
    descent: Factorisation, start: Tensor, max_steps: int, records: Sequence[int], accuracy: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps to a share of the initial excess, and the curve at the records; NaN where all had arrived."""
    initial, _ = descent.step(start)
    losses, _ = descent.descend(start, max_steps, until=accuracy * initial)
    shares = (losses / initial).cpu().numpy()
    curve = np.full((len(start), len(records)), np.nan)
    reached = [step for step in records if step < len(shares)]
    curve[:, : len(reached)] = shares[reached].T
    return first_time(np.arange(len(shares)), shares, accuracy), curve


def trajectory_difference(
    start: Tensor, whitened_map: Tensor, covariance: Tensor, kind: Preconditioner, step_size: float, steps: int
) -> np.ndarray:
    """Return the largest difference along a run between the optimiser and descent in whitened coordinates.

    The optimiser takes automatic gradients in the original coordinates; infinite if one of the two diverges.
    """
    one = torch.full(start.shape[:1], step_size, dtype=start.dtype, device=start.device)
    descent = Factorisation.preconditioned(whitened_map, one, covariance, kind)
    _, path = descent.descend(start, steps, keep=range(steps + 1))
    value, key_query = (layer.clone().requires_grad_() for layer in unstack(start, covariance=covariance))
    true_map = whitened_map @ square_roots(covariance)[1]
    optimizer = StructureAwareGD(value, key_query, covariance=covariance, step_size=step_size, preconditioner=kind)
    largest = torch.zeros_like(one)
    for point in path:
        at = stack(value.detach(), key_query.detach(), covariance=covariance)
        largest = torch.maximum(largest, (at - point).abs().amax((-2, -1)))
        optimizer.zero_grad()
        excess_loss(value, key_query, covariance=covariance, true_map=true_map).sum().backward()
        optimizer.step()
    return largest.nan_to_num(nan=torch.inf).cpu().numpy()


def rate(whitened_map: Tensor, start: Tensor, step_size: float, kept: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return excess losses and squared distances to the nearest minimum along a run, ``(seeds, records)``."""
    one = whitened_map.new_ones(len(whitened_map))
    losses, points = Factorisation(whitened_map, step_size * one, one).descend(start, kept[-1], keep=kept)
    finite = points.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    closest = nearest(torch.where(finite, points, minimum(whitened_map)), whitened_map)
    distance = (points - closest).square().sum((-2, -1)).nan_to_num(nan=torch.inf)
    return losses[list(kept)].T.cpu().numpy(), distance.T.cpu().numpy()


def limit(whitened_map: Tensor, start: Tensor, step_sizes: Sequence[float], steps: int) -> np.ndarray:
    """Return excess losses at the end of runs with several step sizes, ``(seeds, step_sizes)``."""
    sizes = torch.tensor(step_sizes, dtype=start.dtype, device=start.device)
    descent = Factorisation(whitened_map.unsqueeze(1), sizes, torch.ones_like(sizes))
    losses, _ = descent.descend(start.unsqueeze(1).expand(-1, len(sizes), -1, -1), steps)
    return np.where(np.isfinite(end := losses[-1].cpu().numpy()), end, np.inf)


def unbalanced(
    whitened_map: Tensor, start: Tensor, scales: Sequence[float], step_sizes: np.ndarray, records: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Descend from starts with the value layer scaled and the key-query layer divided, without and with regulariser.

    Args:
        whitened_map: Whitened maps, a seed each.
        start: Where to begin, likewise.
        scales: Factors of the value layer.
        step_sizes: Step size of each scale.
        records: Steps at which the imbalance is kept, the last one of the run among them.

    Returns:
        Excess losses at every step, ``(steps, seeds, penalties, scales)``, and imbalances at the records.
    """
    to = partial(to_tensor, device=start.device, dtype=torch.float64)
    value, key_query = split(start[:, None, None])
    factors = to(scales)[:, None, None]
    scaled = torch.cat([value * factors, key_query / factors], dim=-2).expand(-1, 2, -1, -1, -1)
    descent = Factorisation(whitened_map[:, None, None], to(step_sizes), to([0.0, 1.0]).unsqueeze(-1))
    losses, points = descent.descend(scaled, records[-1], keep=records)
    outer, inner = split(points)
    one = torch.eye(outer.shape[-1], dtype=torch.float64, device=start.device)
    unequal = imbalance(outer, inner.mT, covariance=one).nan_to_num(nan=torch.inf)
    return losses.cpu().numpy(), unequal.cpu().numpy()


def noisy_balance(
    setups: Sequence[Setup], seeds: tuple[int, ...], step_size: float, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what a regulariser from data leaves behind, by descent and in closed form, and how exact the start is.

    Both levels of the imbalance are ``(seeds, setups)``; the last are the largest entries of
    ``spectral_residuals`` over all setups, ``(seeds, 2)``.
    """
    data = [[setup.draw(seed) for setup in setups] for seed in seeds]
    problems = [setups[0].problem(seed) for seed in seeds]
    estimates = torch.stack([torch.stack([sample_covariance(torch.as_tensor(x)) for x, _ in row]) for row in data])
    covariance = torch.as_tensor(np.stack([p.covariance for p in problems])).unsqueeze(1)
    true_map = torch.as_tensor(np.stack([p.true_map for p in problems])).unsqueeze(1)
    settled = settled_imbalance(covariance, true_map, estimates, step_size, steps)
    residuals = np.array([np.max([spectral_residuals(*pair) for pair in row], axis=0) for row in data])
    return settled, closed_form_imbalance(covariance, true_map, estimates), residuals


def settled_imbalance(
    covariance: Tensor, true_map: Tensor, estimate: Tensor, step_size: float, steps: int
) -> np.ndarray:
    r"""Return where the imbalance settles, measured with $\Sigma$: preconditioned descent on $L+\hat{\mathcal R}$.

    The loss is the population's; the regulariser and the preconditioner are made from $\hat\Sigma$, as in Algorithm 1.
    It starts at the minimum that is balanced for the true covariance.
    """
    value, key_query, _ = spectral_factors(true_map, covariance)
    inverse = torch.linalg.inv(estimate)
    for _ in range(steps):
        losses = excess_loss_gradient(value, key_query, covariance=covariance, true_map=true_map)
        penalties = penalty_gradient(value, key_query, covariance=estimate)
        sums = (losses[0] + penalties[0], losses[1] + penalties[1])
        for_value, for_key_query = precondition(sums, inverse, "two")
        value, key_query = value - step_size * for_value, key_query - step_size * for_key_query
    return imbalance(value, key_query, covariance=covariance).numpy()


def closed_form_imbalance(covariance: Tensor, true_map: Tensor, estimate: Tensor) -> np.ndarray:
    r"""Return the imbalance, measured with $\Sigma$, of the layers that fit $A$ and are balanced for $\hat\Sigma$.

    From $U\Sigma V=A$ and $U^\top U=V\hat\Sigma V^\top$ the factors $U\Sigma^{1/2}$ and $\Sigma^{1/2}V\hat\Sigma^{1/2}$
    are a balanced factorisation of $A\hat\Sigma^{1/2}$.
    """
    _, inverse_root = square_roots(covariance)
    estimated_root, inverse_estimated_root = square_roots(estimate)
    one = torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    outer, inner, _ = spectral_factors(true_map @ estimated_root, one)
    value, key_query = outer @ inverse_root, inverse_root @ inner @ inverse_estimated_root
    return imbalance(value, key_query, covariance=covariance).numpy()


def spectral_residuals(inputs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return how far a spectral start is from interpolating the regression estimate, and from balance."""
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    value, key_query = spectral_init(x, y)
    estimate, regression = sample_covariance(x), torch.linalg.lstsq(x, y).solution.mT
    product = value @ estimate @ key_query - regression
    balance = value.mT @ value - key_query @ estimate @ key_query.mT
    return float(product.abs().max()), float(balance.abs().max())
