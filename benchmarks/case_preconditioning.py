"""Structure-aware descent: training many seeds at once."""

from __future__ import annotations

import numpy as np
import torch
from plain_loop import Loss, train_each
from side_by_side import Case
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.optimizer import StructureAwareGD
from attnbook.preconditioning.population import sample_covariance
from attnbook.preconditioning.training import Training, Variant, train_variants

SEEDS, STEPS, BATCH = 10, 200, 100
SETUP = Setup(
    dimension=5, n_outputs=8, condition_number=3, largest=0.4, smallest=0.2, noise=0.1, n_samples=1000
)  # fmt: skip
RULE = Variant(0.02, "two", 1.0)


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [training()]


def training() -> Case:
    """Compare training all seeds at once with training one after another."""
    data = [[torch.from_numpy(array) for array in SETUP.draw(seed)] for seed in range(SEEDS)]
    rows = [_batches(seed) for seed in range(SEEDS)]

    def together(seeds: list[int]) -> np.ndarray:
        plan = Training(STEPS, BATCH, record_at=(STEPS,))
        history = train_variants([RULE], seeds, SETUP, plan, device=torch.device("cpu"), dtype=torch.float64)
        return history.parameters["key_query"].numpy()

    def loss_of(seed: int) -> Loss:
        def loss(parameters: dict[str, Tensor], step: int) -> Tensor:
            x, y = (array[rows[seed][step]] for array in data[seed])
            attended = torch.softmax(x @ parameters["key_query"].T @ x.T, dim=1) @ x
            return 0.5 * (attended @ parameters["value"].T - y).square().sum() / BATCH

        return loss

    def build(parameters: list[Tensor], seed: int) -> torch.optim.Optimizer:
        value, key_query = parameters
        covariance = sample_covariance(data[seed][0])
        return StructureAwareGD(value, key_query, covariance=covariance, step_size=RULE.step_size)

    def loop() -> np.ndarray:
        trained = train_each(map(_start, range(SEEDS)), map(loss_of, range(SEEDS)), build, STEPS)
        return torch.stack([layers["key_query"] for layers in trained]).numpy()

    return Case(
        title="Training with structure-aware descent",
        what=f"{STEPS} steps of Algorithm 1 for {SEEDS} seeds, batches of {BATCH} in 5 dimensions, in float64.",
        variants={
            "one batch (ours)": lambda: together(list(range(SEEDS))),
            "one after another (ours)": lambda: np.concatenate([together([seed]) for seed in range(SEEDS)]),
            "one after another, autograd and our optimiser": loop,
        },
        tolerance=1e-8,
        aim={"one after another (ours)": 2.0, "one after another, autograd and our optimiser": 2.0},
    )


def _batches(seed: int) -> list[Tensor]:
    """The rows of every batch, as the package draws them."""
    rng = stream(seed, "batches", SETUP.n_samples)
    return [torch.from_numpy(rng.choice(SETUP.n_samples, BATCH, replace=False, shuffle=False)) for _ in range(STEPS)]


def _start(seed: int) -> dict[str, Tensor]:
    rng = stream(seed, "random start")
    return {
        "value": torch.from_numpy(rng.standard_normal((8, 5))),
        "key_query": torch.from_numpy(rng.standard_normal((5, 5))),
    }
