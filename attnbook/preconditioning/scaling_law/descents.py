"""Algorithm 1 in whitened coordinates with two gradients: of one data set, and of the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnbook.core.experiment import Arrays
from attnbook.core.rng import stream
from attnbook.preconditioning.attention import loss_and_gradient
from attnbook.preconditioning.attention_output import expected_excess, gaussian_nodes
from attnbook.preconditioning.landscape import RADIUS, gradient, regularised_loss
from attnbook.preconditioning.law_constants import bias_gradient, curvature_inverse, oracle_constant
from attnbook.preconditioning.manifold import minimum, nearest, split
from attnbook.preconditioning.optimizer import spectral_init
from attnbook.preconditioning.population import penalty_gradient, precondition, sample_covariance

if TYPE_CHECKING:
    from attnbook.preconditioning.scaling_law.experiments import GradientOracle, ScalingLaw

Batch = tuple[Tensor, Tensor]  # inputs and labels
COUNTS: dict[str, list[float]] = {
    "n": [25, 50, 100, 200, 400, 1600, 6400],  # samples at which the minimum of the expansion is found
    "measured_n": [25, 50, 100, 200],  # those of the runs with fresh batches
    "exact_n": [25, 50, 100, 400, 1600, 6400],  # those of the exact fixed points
    "surface_n": [100.0, 200.0, 400.0, 800.0, 1600.0, np.inf],  # from the cold start; the last on the population loss
}
PREDICTED = (4.0, 60)  # step size and number of steps that bring the predicted fixed point to rounding


def excess(point: Tensor, target: Tensor) -> Tensor:
    """Return the population loss above its smallest value."""
    return regularised_loss(point, target, penalty=0.0)


def on_data_sets(sizes: ScalingLaw, seed: int, n: int, trained: int, few: int) -> Arrays:
    """Start on data sets of one size and train on some of them, on a few from the cold start; means over them."""
    target, rng = sizes.target(seed), stream(seed, "data sets", n)
    shapes = [(sizes.start_sets, n, size) for size in (sizes.dimension, sizes.n_outputs)]
    inputs, noise = (torch.from_numpy(rng.standard_normal(shape)) for shape in shapes)
    labels = inputs @ target.mT + sizes.noise * noise
    value, key_query = spectral_init(inputs, labels)
    start = torch.cat([value, key_query.mT], dim=-2)
    regression = torch.linalg.solve(inputs.mT @ inputs, inputs.mT @ labels).mT
    inverse = torch.linalg.inv(sample_covariance(inputs)) - inputs.new_ones(sizes.dimension).diag()
    distance = (start - nearest(start, target)).square().sum((-2, -1))

    def train(sets: int, first: Tensor, step_size: float, steps: int) -> np.ndarray:
        data = inputs[:sets], labels[:sets]
        return data_descent(target, data, first, step_size=step_size, steps=steps).mean(dim=1).numpy()

    cold = (sizes.shrink * minimum(target)).expand(few, -1, -1)
    return {
        "distance": ((), float(distance.mean())),  # squared, to the minima
        "near": ((), float((distance <= RADIUS * sizes.smallest).double().mean())),  # share inside Theorem 1's radius
        "regression": ((), float((regression - target).square().sum((-2, -1)).mean().sqrt())),  # error of the map
        "inverse": ((), float(torch.linalg.matrix_norm(inverse, 2).mean())),  # error of the inverse covariance
        "start": ((), float(excess(start, target).mean())),
        "path": (("step",), train(trained, start[:trained], sizes.step_size, sizes.steps)),
        "cold": (("cold_step",), train(few, cold, sizes.cold_step_size, sizes.cold_steps)),
    }


def data_descent(target: Tensor, data: Batch, start: Tensor, *, step_size: float, steps: int) -> Tensor:
    """Run Algorithm 1 on all of each data set at every step; return the excess at each step."""
    estimate, batch, points = sample_covariance(data[0]), (data[0].float(), data[1].float()), [start]
    for _ in range(steps):
        points.append(algorithm_step(points[-1], batch, estimate, step_size))
    return excess(torch.stack(points), target)


@torch.no_grad()
def algorithm_step(point: Tensor, batch: Batch, covariance: Tensor, step_size: float, average: bool = False) -> Tensor:
    """Return the point after a step of Algorithm 1 on each batch, or after one on the average of their gradients."""
    value, key = split(point)
    parameters = {"value": value, "key_query": key.mT}
    members = {name: layer.float().expand(len(batch[0]), -1, -1) for name, layer in parameters.items()}
    found = loss_and_gradient(members, batch)[1].values()
    penalty = penalty_gradient(**parameters, covariance=covariance)
    total = [(g.mean(0) if average else g).double() + p for g, p in zip(found, penalty, strict=True)]
    for_value, for_key_query = precondition((total[0], total[1]), torch.linalg.inv(covariance), "two")
    return point - step_size * torch.cat([for_value, for_key_query.mT], dim=-2)


def with_the_oracle(oracle: GradientOracle, problem: ScalingLaw, seed: int) -> Arrays:
    """Find predicted and measured fixed points, and follow the predicted gradient from the cold start."""
    target = problem.target(seed)
    best, cold_size = minimum(target), problem.cold_step_size
    counts, all_counts = (torch.tensor(COUNTS[name], device="cpu", dtype=torch.float64) for name in ("surface_n", "n"))
    surface = oracle_descent(target, counts, problem.shrink * best, step_size=cold_size, steps=oracle.cold_steps)
    fixed = oracle_descent(target, all_counts, best, step_size=PREDICTED[0], steps=PREDICTED[1])[-1]
    measured = [fresh_batch_average(oracle, target, int(n), problem.noise, seed) for n in COUNTS["measured_n"]]
    along, at_best = (bias_gradient(points, target=target).square().sum((-2, -1)) for points in (surface[:, -1], best))
    return {
        "expansion": (("n",), excess(fixed, target).numpy()),
        "measured": (("measured_n",), measured),
        "limit": ((), oracle_constant(target)),  # of n^2 times the excess
        "bound": ((), 16 * problem.largest / problem.smallest**2 * float(at_best)),  # on the limit, by the proof
        "surface": (("surface_n", "cold_step"), excess(surface, target).T.numpy()),
        # squared bias of the gradient along the descent on the population loss, over that at the minimum
        "pull": (("cold_step",), (along / at_best).numpy()),
    }


def oracle_descent(target: Tensor, n_samples: Tensor, start: Tensor, *, step_size: float, steps: int) -> Tensor:
    """Follow the oracle's gradient to first order, of L + R + B / n, for each n; return the points at each step."""
    records = [start.expand(len(n_samples), -1, -1)]
    for _ in range(steps):
        pull = bias_gradient(records[-1], target=target) / n_samples[:, None, None]
        records.append(records[-1] - step_size * (gradient(records[-1], target) + pull))
    return torch.stack(records)


def exact_fixed_points(oracle: GradientOracle, target: Tensor) -> Arrays:
    """Find where the expected gradient vanishes: no expansion, no draws, but quadrature over few inputs."""
    nodes = gaussian_nodes(target.shape[1], oracle.per_axis)
    found = [exact_fixed_point(target, int(n), nodes=nodes, iterations=oracle.iterations) for n in COUNTS["exact_n"]]
    points = torch.stack(found)
    return {
        "exact": (("exact_n",), excess(points, target).numpy()),
        "exact_regularised": (("exact_n",), regularised_loss(points, target).numpy()),
        "exact_limit": ((), oracle_constant(target)),
    }


def exact_fixed_point(target: Tensor, n: int, *, nodes: tuple[Tensor, Tensor], iterations: int) -> Tensor:
    """Iterate from a minimum with the curvature there, which contracts by a factor of order 1 / n."""
    point, inverse = minimum(target), curvature_inverse(target)
    for _ in range(iterations):
        leaf = point.detach().requires_grad_()
        value, key = split(leaf)
        bias = expected_excess(value, key.mT, target=target, n_keys=(n,), nodes=nodes)
        total = gradient(point, target) + torch.autograd.grad(bias.sum(), leaf)[0]
        point = point - (inverse @ total.flatten()).view_as(point)
    return point


def fresh_batch_average(oracle: GradientOracle, target: Tensor, n: int, noise: float, seed: int) -> float:
    """Run from an optimum on gradients averaged over many fresh batches; return the excess of the mean last point."""
    points, rng = [minimum(target)], stream(seed, "fresh batches", n)
    for _ in range(oracle.steps):
        shapes = [(oracle.batches, n, size) for size in reversed(target.shape)]
        inputs, draws = (torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes)
        batch = inputs, inputs @ target.T.float() + noise * draws
        points.append(
            algorithm_step(points[-1], batch, target.new_ones(target.shape[1]).diag(), oracle.step_size, average=True)
        )
    return float(excess(torch.stack(points[-oracle.kept :]).mean(0), target))
