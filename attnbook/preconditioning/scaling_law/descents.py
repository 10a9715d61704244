"""Algorithm 1 in whitened coordinates with three gradients: of one data set, of the oracle, of minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnbook.core.experiment import Arrays
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.attention import loss_and_gradient
from attnbook.preconditioning.attention_output import expected_excess, gaussian_nodes
from attnbook.preconditioning.curves import stage
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.landscape import RADIUS, gradient, regularised_loss
from attnbook.preconditioning.law_constants import bias_gradient
from attnbook.preconditioning.manifold import minimum, nearest, split
from attnbook.preconditioning.optimizer import spectral_init
from attnbook.preconditioning.population import penalty_gradient, precondition, sample_covariance
from attnbook.preconditioning.training import Training, Variant, train_variants

if TYPE_CHECKING:
    from attnbook.preconditioning.scaling_law.experiments import GradientOracle, MinibatchFloor, ScalingLaw

Layers = tuple[Tensor, Tensor]
STRONG = Setup(5, 8, condition_number=10.0, largest=0.4, smallest=0.2, noise=0.1, n_samples=1000)  # a larger signal
BATCHES = (50, 100, 200, 400)  # keys per batch
COUNTS: dict[str, list[float]] = {
    "n": [25, 50, 100, 200, 400, 1600, 6400],  # samples at which the minimum of the expansion is found
    "measured_n": [25, 50, 100, 200],  # those of the runs with fresh batches
    "exact_n": [25, 50, 100, 400, 1600, 6400],  # those of the exact fixed points
    "surface_n": [100.0, 200.0, 400.0, 800.0, 1600.0, np.inf],  # from the cold start; the last on the population loss
}
PREDICTED = (4.0, 60)  # step size and number of steps that bring the predicted fixed point to rounding


def excess(value: Tensor, key_query: Tensor, target: Tensor) -> Tensor:
    """Return the population loss above its smallest value."""
    return 0.5 * (value @ key_query - target).square().sum((-2, -1))


def excess_at(point: Tensor, target: Tensor) -> Tensor:
    """Return the same of a point, which holds the second layer transposed."""
    value, key = split(point)
    return excess(value, key.mT, target)


def on_data_sets(sizes: ScalingLaw, seed: int, n: int, trained: int, few: int) -> Arrays:
    """Start on data sets of one size and train on some of them, on a few from the cold start; means over them."""
    target = sizes.target(seed)
    rng = stream(seed, "data sets", n)
    inputs = torch.as_tensor(rng.standard_normal((sizes.start_sets, n, sizes.dimension)))
    noise = torch.as_tensor(rng.standard_normal((sizes.start_sets, n, sizes.n_outputs)))
    labels = inputs @ target.mT + sizes.noise * noise
    start = spectral_init(inputs, labels)
    regression = torch.linalg.solve(inputs.mT @ inputs, inputs.mT @ labels).mT
    inverse = torch.linalg.inv(sample_covariance(inputs)) - torch.eye(sizes.dimension, dtype=inputs.dtype)
    point = torch.cat([start[0], start[1].mT], dim=-2)
    distance = (point - nearest(point, target)).square().sum((-2, -1))

    def train(sets: int, layers: Layers, step_size: float, steps: int) -> np.ndarray:
        data, first = (inputs[:sets], labels[:sets]), (layers[0][:sets], layers[1][:sets])
        return data_descent(target, data, first, step_size=step_size, steps=steps).mean(dim=1).numpy()

    value, key = split(sizes.cold_start(target).expand(few, -1, -1))
    return {
        "distance": ((), float(distance.mean())),  # squared, to the minima
        "near": ((), float((distance <= RADIUS * sizes.smallest).double().mean())),  # share inside Theorem 1's radius
        "regression": ((), float((regression - target).square().sum((-2, -1)).mean().sqrt())),  # error of the map
        "inverse": ((), float(torch.linalg.matrix_norm(inverse, 2).mean())),  # error of the inverse covariance
        "start": ((), float(excess(*start, target).mean())),
        "path": (("step",), train(trained, start, sizes.step_size, sizes.steps)),
        "cold": (("cold_step",), train(few, (value, key.mT), sizes.cold_step_size, sizes.cold_steps)),
    }


@torch.no_grad()
def data_descent(target: Tensor, data: Layers, start: Layers, *, step_size: float, steps: int) -> Tensor:
    """Run Algorithm 1 on all of each data set at every step, gradients in float32; return the excess at each step."""
    estimate = sample_covariance(data[0])
    inverse, batch, layers = torch.linalg.inv(estimate), (data[0].float(), data[1].float()), start
    records = [excess(*layers, target)]
    for _ in range(steps):
        _, found = loss_and_gradient({"value": layers[0].float(), "key_query": layers[1].float()}, batch)
        penalty = penalty_gradient(*layers, covariance=estimate)
        sums = (found["value"].double() + penalty[0], found["key_query"].double() + penalty[1])
        directions = precondition(sums, inverse, "two")
        layers = (layers[0] - step_size * directions[0], layers[1] - step_size * directions[1])
        records.append(excess(*layers, target))
    return torch.stack(records)


def with_the_oracle(oracle: GradientOracle, problem: ScalingLaw, seed: int) -> Arrays:
    """Find predicted and measured fixed points, and follow the predicted gradient from the cold start."""
    target = problem.target(seed)
    best, cold, cold_size = minimum(target), problem.cold_start(target), problem.cold_step_size
    counts, all_counts = (torch.tensor(COUNTS[name], dtype=torch.float64) for name in ("surface_n", "n"))
    surface = oracle_descent(target, counts, cold, step_size=cold_size, steps=oracle.cold_steps)
    fixed = oracle_descent(target, all_counts, best, step_size=PREDICTED[0], steps=PREDICTED[1])[-1]
    measured = []
    for n in map(int, COUNTS["measured_n"]):
        batches = _fresh(target, (oracle.batches, n), problem.noise, stream(seed, "fresh batches", n))
        measured.append(float(fresh_batch_average(oracle, target, batches)))
    along, at_best = (bias_gradient(points, target=target).square().sum((-2, -1)) for points in (surface[:, -1], best))
    return {
        "expansion": (("n",), excess_at(fixed, target).numpy()),
        "measured": (("measured_n",), np.array(measured)),
        "limit": ((), oracle_bias(best)),  # of n^2 times the excess
        "bound": ((), 16 * problem.largest / problem.smallest**2 * float(at_best)),  # on the limit, by the proof
        "surface": (("surface_n", "cold_step"), excess_at(surface, target).T.numpy()),
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


def oracle_bias(optimum: Tensor) -> float:
    """Return the limit of n^2 times the excess at the oracle's fixed point: how far B pulls a minimum."""
    value, key = split(optimum)
    shift = -curvature_inverse(optimum) @ bias_gradient(optimum, target=value @ key.mT).flatten()
    for_value, for_key = split(shift.view_as(optimum))
    return float(0.5 * (for_value @ key.mT + value @ for_key.mT).square().sum())


def curvature_inverse(optimum: Tensor) -> Tensor:
    """Return the pseudo-inverse of the curvature of L + R, which leaves out the rotations of the minimum."""
    value, key = split(optimum)

    def loss(flat: Tensor) -> Tensor:
        return regularised_loss(flat.view_as(optimum), value @ key.mT)

    return torch.linalg.pinv(torch.autograd.functional.hessian(loss, optimum.flatten()), rtol=1e-9, hermitian=True)


def exact_fixed_points(oracle: GradientOracle, target: Tensor) -> Arrays:
    """Find where the expected gradient vanishes: no expansion, no draws, but quadrature over few inputs."""
    nodes = gaussian_nodes(target.shape[1], oracle.per_axis)
    found = [exact_fixed_point(target, int(n), nodes=nodes, iterations=oracle.iterations) for n in COUNTS["exact_n"]]
    return {
        "exact": (("exact_n",), np.array([float(excess_at(point, target)) for point in found])),
        "exact_regularised": (("exact_n",), np.array([float(regularised_loss(point, target)) for point in found])),
        "exact_limit": ((), oracle_bias(minimum(target))),
    }


def exact_fixed_point(target: Tensor, n: int, *, nodes: Layers, iterations: int) -> Tensor:
    """Iterate from a minimum with the curvature there, which contracts by a factor of order 1 / n."""
    point = minimum(target)
    inverse = curvature_inverse(point)
    for _ in range(iterations):
        leaf = point.detach().requires_grad_()
        value, key = split(leaf)
        bias = expected_excess(value, key.mT, target=target, n_keys=(n,), nodes=nodes)
        total = gradient(point, target) + torch.autograd.grad(bias.sum(), leaf)[0]
        point = point - (inverse @ total.flatten()).view_as(point)
    return point


@torch.no_grad()
def fresh_batch_average(oracle: GradientOracle, target: Tensor, batches: Iterator[Layers]) -> Tensor:
    """Run from an optimum on gradients averaged over many fresh batches; return the excess of the mean last layers."""
    (value, key), last = split(minimum(target)), []
    key_query, one = key.mT, torch.eye(target.shape[-1], dtype=target.dtype)
    for _, (inputs, labels) in zip(range(oracle.steps), batches, strict=False):
        repeated = {
            name: layer.to(inputs.dtype).expand(len(inputs), -1, -1)
            for name, layer in (("value", value), ("key_query", key_query))
        }
        found = loss_and_gradient(repeated, (inputs, labels))[1]
        penalty = penalty_gradient(value, key_query, covariance=one)
        value = value - oracle.step_size * (found["value"].mean(0).double() + penalty[0])
        key_query = key_query - oracle.step_size * (found["key_query"].mean(0).double() + penalty[1])
        last.append((value, key_query))
    mean = [sum(layers) / oracle.kept for layers in zip(*last[-oracle.kept :], strict=True)]
    return excess(mean[0], mean[1], target)


def _fresh(target: Tensor, shape: tuple[int, int], noise: float, rng: np.random.Generator) -> Iterator[Layers]:
    """Yield inputs and noisy labels for every step, in float32."""
    while True:
        inputs = torch.as_tensor(rng.standard_normal((*shape, target.shape[1]), dtype=np.float32))
        draws = torch.as_tensor(rng.standard_normal((*shape, target.shape[0]), dtype=np.float32))
        yield inputs, inputs @ target.T.float() + noise * draws


def minibatch_curves(
    floor: MinibatchFloor, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> list[np.ndarray]:
    """Return the excess in minibatch training from the spectral start: constant, then decaying step size."""
    record_at = tuple(floor.coordinates()["step"])
    trainings = [Training(floor.steps, size, record_at) for size in BATCHES]
    trainings += [replace(training, decay=True) for training in trainings[:-1]]
    chosen, found = replace(STRONG, n_samples=floor.n_samples), []
    variant = Variant(floor.step_size, "two", 1.0, "spectral")
    for number, training in enumerate(trainings):
        told = stage(progress, number, len(trainings))
        history = train_variants([variant], seeds, chosen, training, device=device, progress=told)
        found.append(history.records["excess_loss"])
    return found
