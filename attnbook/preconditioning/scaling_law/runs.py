"""What the experiments compute: on data sets, with the gradient oracle, in minibatches; mostly seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.experiment import Arrays
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.attention_output import gaussian_nodes
from attnbook.preconditioning.curves import stage
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.law_constants import oracle_bias, spectral_start_constant
from attnbook.preconditioning.optimizer import spectral_init
from attnbook.preconditioning.population import excess_loss
from attnbook.preconditioning.scaling_law import three_gradients as models
from attnbook.preconditioning.training import Training, Variant, train_variants

if TYPE_CHECKING:
    from attnbook.preconditioning.scaling_law.experiments import FiniteKeys, GradientOracle, MinibatchFloor, ScalingLaw

HALVED = 100  # batch size that is also trained with half the step size
PREDICTED = (4.0, 60)  # step size and number of steps that bring the predicted fixed point to rounding


def each(seeds: tuple[int, ...], one: Callable[[int], Arrays], progress: Progress | None) -> Arrays:
    """Return the arrays of all seeds, one after the other, on one thread of the CPU: matrices are small."""
    found = []
    with runtime.threads(1):
        for number, seed in enumerate(seeds, 1):
            found.append(one(seed))
            if progress:
                progress(number, len(seeds))
    return stack("seed", found)


def stack(axis: str, rows: Sequence[Arrays]) -> Arrays:
    """Return arrays of the same names and shapes along a new first dimension."""
    return {name: ((axis, *axes), np.stack([row[name][1] for row in rows])) for name, (axes, _) in rows[0].items()}


def problem(sizes: FiniteKeys | ScalingLaw, condition_number: float, noise: float) -> Setup:
    """Return the problem of an experiment; it draws its samples itself."""
    return Setup(
        dimension=sizes.dimension, n_outputs=sizes.n_outputs, condition_number=condition_number, largest=sizes.largest,
        smallest=sizes.smallest, noise=noise, n_samples=1,
    )  # fmt: skip


def figure_problem(n_samples: int) -> Setup:
    """Return the problem of the figures at condition number 10, which has a larger signal."""
    return Setup(
        dimension=5, n_outputs=8, condition_number=10.0, largest=0.4, smallest=0.2, noise=0.1, n_samples=n_samples
    )


def start_limit(problem: Setup) -> float:
    """Return the limit of n times the excess of the spectral start."""
    values = np.linspace(problem.largest, problem.smallest, problem.dimension)
    return spectral_start_constant(values, problem.n_outputs, problem.noise)


def start_excess(problem: Setup, seed: int, sets: int) -> float:
    """Return the mean excess of the spectral start over data sets."""
    chosen = problem.problem(seed)
    drawn = [
        chosen.draw(problem.n_samples, inputs=stream(seed, "strong", i), noise=stream(seed, "strong noise", i))
        for i in range(sets)
    ]
    inputs, labels = (torch.as_tensor(np.stack(arrays)) for arrays in zip(*drawn, strict=True))
    true = {"covariance": torch.as_tensor(chosen.covariance), "true_map": torch.as_tensor(chosen.true_map)}
    return float(excess_loss(*spectral_init(inputs, labels), **true).mean())


def on_data_sets(sizes: ScalingLaw, seed: int, number: int) -> Arrays:
    """Start and train on data sets with one of the numbers of samples; means over them."""
    target, n = sizes.target(seed), sizes.n_samples[number]
    rng = stream(seed, "data sets", n)
    inputs = torch.as_tensor(rng.standard_normal((sizes.start_sets, n, sizes.dimension)))
    noise = torch.as_tensor(rng.standard_normal((sizes.start_sets, n, sizes.n_outputs)))
    labels = inputs @ target.mT + sizes.noise * noise
    start = spectral_init(inputs, labels)
    regression = torch.linalg.solve(inputs.mT @ inputs, inputs.mT @ labels).mT

    def train(sets: int, layers: models.Layers, step_size: float, steps: int) -> np.ndarray:
        data, first = (inputs[:sets], labels[:sets]), (layers[0][:sets], layers[1][:sets])
        return models.data_descent(target, data, first, step_size=step_size, steps=steps).mean(dim=1).numpy()

    few = sizes.cold_sets[number]
    cold = _members(sizes.cold_start(target), few)
    return {
        "distance": ((), float(models.distance_to_minima(start, target).mean())),  # squared, to the minima
        "regression": ((), float((regression - target).square().sum((-2, -1)).mean().sqrt())),  # error of the map
        "start": ((), float(models.excess(start, target).mean())),
        "path": (("step",), train(sizes.trained_sets[number], start, sizes.step_size, sizes.steps)),
        "cold": (("cold_step",), train(few, cold, sizes.cold_step_size, sizes.cold_steps)),
    }


def with_the_oracle(oracle: GradientOracle, problem: ScalingLaw, seed: int) -> Arrays:
    """Find predicted and measured fixed points, and follow the predicted gradient from the cold start."""
    target = problem.target(seed)
    minimum, cold, cold_size = models.whitened_minimum(target), problem.cold_start(target), problem.cold_step_size

    def follow(counts: tuple[float, ...], start: models.Layers, step_size: float, steps: int) -> Tensor:
        n = torch.tensor(counts, dtype=torch.float64)
        return models.oracle_descent(target, n, _members(start, len(n)), step_size=step_size, steps=steps)[0]

    split = len(oracle.predicted_samples)
    fixed = follow(oracle.predicted_samples + oracle.measured_samples, minimum, *PREDICTED)[-1].numpy()
    surface = follow((*oracle.surface_samples, float("inf")), cold, cold_size, oracle.cold_steps)
    measured = []
    for n in oracle.measured_samples:
        batches = _fresh(target, (oracle.batches, n), problem.noise, stream(seed, "fresh batches", n))
        run = {"step_size": oracle.step_size, "steps": oracle.steps, "kept": oracle.kept}
        measured.append(float(models.fresh_batch_average(target, batches, **run)))  # type: ignore[arg-type]  # mypy sees one type for all values of ``run``
    pull = models.pull_along_descent(target, cold, step_size=cold_size, steps=oracle.cold_steps)
    return {
        "predicted": (("predicted_n",), fixed[:split]),
        "beside": (("measured_n",), fixed[split:]),  # the prediction at the numbers of samples of the runs
        "measured": (("measured_n",), np.array(measured)),
        "limit": ((), oracle_bias(*minimum)),  # of n^2 times the excess
        "surface": (("surface_n", "cold_step"), surface.T.numpy()),
        # squared bias of the gradient along the descent, over that at the minimum
        "pull": (("cold_step",), (pull / models.pull_along_descent(target, minimum, step_size=0.0, steps=0)).numpy()),
    }


def exact_fixed_points(oracle: GradientOracle, target: Tensor) -> Arrays:
    """Find the fixed points of the expected gradient; the problem is small enough for quadrature over its queries."""
    nodes = gaussian_nodes(target.shape[1], oracle.per_axis)
    found = [
        models.exact_fixed_point(target, n, nodes=nodes, iterations=oracle.iterations) for n in oracle.exact_samples
    ]
    return {
        "exact": (("exact_n",), np.array([float(models.excess(layers, target)) for layers in found])),
        "exact_limit": ((), oracle_bias(*models.whitened_minimum(target))),
    }


def _members(layers: models.Layers, count: int) -> models.Layers:
    return layers[0].expand(count, -1, -1), layers[1].expand(count, -1, -1)


def _fresh(
    target: Tensor, shape: tuple[int, int], noise: float, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and noisy labels for every step, in float32."""
    while True:
        inputs = torch.as_tensor(rng.standard_normal((*shape, target.shape[1]), dtype=np.float32))
        draws = torch.as_tensor(rng.standard_normal((*shape, target.shape[0]), dtype=np.float32))
        yield inputs, inputs @ target.T.float() + noise * draws


def from_the_start(
    floor: MinibatchFloor, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> list[np.ndarray]:
    """Return the excess in minibatch training from the spectral start: constant, decaying and halved step size."""
    trainings = [Training(floor.steps, size, floor.record_at) for size in floor.batch_sizes]
    trainings += [replace(training, decay=True) for training in trainings[:-1]]
    trainings.append(Training(2 * floor.steps, HALVED, tuple(2 * step for step in floor.record_at)))
    chosen, found = figure_problem(floor.n_samples), []
    for number, training in enumerate(trainings):
        variants = [Variant(floor.step_size * floor.steps / training.steps, "two", 1.0, "spectral")]
        told = stage(progress, number, len(trainings))
        history = train_variants(variants, seeds, chosen, training, device=device, progress=told)
        found.append(history.records["excess_loss"])
    return found


def simulated_bias(signal: float, n: int, draws: int, seed: int) -> float:
    """Return the mean of the bias of the loss in one dimension over draws of keys, the query among them."""
    keys = stream(seed, "heavy tails", f"{signal:g}").standard_normal((draws, n))
    query = keys[:, :1]
    scores = signal**0.5 * query * keys
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    output = (weights * keys).sum(axis=1) / weights.sum(axis=1)
    return float(signal / 2 * np.mean((output - signal**0.5 * query[:, 0]) ** 2))


def check_increasing(name: str, counts: tuple[int, ...], least: int = 0) -> None:
    """Refuse fewer than two numbers, any order but the increasing one, and a last number below the least."""
    if len(counts) < 2 or list(counts) != sorted(set(counts)):
        raise ValueError(f"{name}: expected at least two increasing numbers, got {counts}")
    if counts[-1] < least:
        raise ValueError(f"{name}: expected one of at least {least}, got {counts}")
