"""Softmax networks: training many at once."""

from __future__ import annotations

import numpy as np
import torch
from case_softmax_ntk_kernel import stack
from plain_loop import Loss, train_each
from side_by_side import Case
from torch import Tensor

from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.ntk import ntk_gram

SEEDS, WIDTH, SAMPLES, STEPS = 20, 512, 16, 100


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [training()]


def training() -> Case:
    """Compare training all seeds at once with training one after another."""
    networks, inputs, labels = stack(SEEDS, WIDTH, SAMPLES, SAMPLES, 1)
    eta = 0.5 / (WIDTH * torch.linalg.eigvalsh(ntk_gram(networks, inputs))[:, -1])

    def together(chosen: list[int]) -> np.ndarray:
        part = networks.subset(np.array(chosen))
        run = gradient_descent(part, inputs[chosen], labels[chosen], eta[chosen], max_steps=STEPS)
        return run.networks.first_layer.numpy()

    def loss_of(i: int) -> Loss:
        signs, x, y = networks.signs[i], inputs[i], labels[i]

        def loss(parameters: dict[str, Tensor], _: int) -> Tensor:
            return 0.5 * (WIDTH * signs @ torch.softmax(parameters["w"].T @ x.T, dim=0) - y).square().sum()

        return loss

    def loop() -> np.ndarray:
        starts = [{"w": one} for one in networks.first_layer]
        each = train_each(starts, map(loss_of, range(SEEDS)), lambda ps, i: torch.optim.SGD(ps, float(eta[i])), STEPS)
        return torch.stack([trained["w"] for trained in each]).numpy()

    return Case(
        title="Training softmax networks",
        what=f"{STEPS} steps of gradient descent of {SEEDS} networks with {WIDTH} neurons, {SAMPLES} samples, float64.",
        variants={
            "one batch (ours)": lambda: together(list(range(SEEDS))),
            "one after another (ours)": lambda: np.concatenate([together([i]) for i in range(SEEDS)]),
            "one after another, autograd and torch.optim": loop,
        },
        tolerance=1e-9,
        aim={},
    )
