"""Softmax networks: their kernel, and training many at once."""

from __future__ import annotations

import numpy as np
import torch
from plain_loop import Loss, train_each
from side_by_side import Case
from torch import Tensor
from torch.func import jacrev, vmap

from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.models.descent import gradient_descent
from attnbook.softmax_ntk.models.two_layer import Networks, draw_weights
from attnbook.softmax_ntk.ntk import ntk_gram

SEEDS, WIDTH, SAMPLES, STEPS = 20, 512, 16, 100


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [kernel(), training()]


def kernel() -> Case:
    """Compare the closed-form kernel with the product of Jacobians."""
    networks, inputs, _ = _stack(1, width=2048, n_samples=128, n_inputs=16, n_outputs=4)
    first, signs, x = networks.first_layer[0], networks.signs[0], inputs[0]

    def output(weights: Tensor, one: Tensor) -> Tensor:
        return len(signs[0]) * (signs @ torch.softmax(weights.T @ one, dim=0))

    def product_of_jacobians() -> np.ndarray:
        rows = vmap(jacrev(output), (None, 0))(first, x).transpose(0, 1).flatten(0, 1).flatten(1)
        return (rows @ rows.T / len(signs[0])).numpy()

    return Case(
        title="Neural tangent kernel of a softmax network",
        what="The kernel of 128 samples and 4 outputs of a network with 2048 neurons and 16 inputs, in float64.",
        variants={
            "closed form (ours)": lambda: ntk_gram(networks, inputs)[0].numpy(),
            "torch.func: vmap(jacrev), then the product": product_of_jacobians,
        },
        tolerance=1e-10,
        aim={"torch.func: vmap(jacrev), then the product": 10.0},
    )


def training() -> Case:
    """Compare training all seeds at once with training one after another."""
    networks, inputs, labels = _stack(SEEDS, WIDTH, SAMPLES, SAMPLES, 1)
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


def _stack(members: int, width: int, n_samples: int, n_inputs: int, n_outputs: int) -> tuple[Networks, Tensor, Tensor]:
    weights = [draw_weights(width, n_inputs, n_outputs, rng=stream(s, "benchmark")) for s in range(members)]
    drawn = [draw_sample(n_samples, n_inputs, n_outputs, seed=s) for s in range(members)]
    inputs, labels = (torch.from_numpy(np.stack([getattr(d, name) for d in drawn])) for name in ("inputs", "labels"))
    return Networks.stack("softmax", weights), inputs, labels
