"""A step of MirrorDescent on a model of ten million parameters, beside the optimisers of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import torch
from side_by_side import Case
from torch import Tensor

from attnbook.mirror_descent.optimizer import MirrorDescent

WORDS, WIDTH, LAYERS, STEPS = 8000, 288, 8, 20
ADAM, FUSED = "torch.optim.Adam, foreach", "torch.optim.Adam, fused"
SGD, BY_HAND = "torch.optim.SGD, foreach", "the formula, tensor by tensor"


def cases() -> list[Case]:
    """Return one comparison for each exponent."""
    return [stepping(p) for p in (1.5, 2.0, 3.0)]


def stepping(p: float) -> Case:
    """Compare steps at one exponent."""

    def remark(wall: Mapping[str, float]) -> str:
        count, ours = sum(weight.numel() for weight in _model()[0]), next(iter(wall.values()))
        return (
            f"A step of ours takes {1e6 * ours / STEPS / count:.1f} ns a parameter. Its state is one float64 number a "
            f"parameter, {8 * count / 2**20:.0f} MiB: as much as the two float32 numbers of Adam."
        )

    return Case(
        title=f"Steps of an optimiser, p = {p:g}",
        what=f"{STEPS} steps of a fresh optimiser from the same weights with the same gradients: a transformer's "
        f"{len(_model()[0])} tensors with {sum(w.numel() for w in _model()[0]) / 1e6:.1f} million float32 parameters. "
        "Memory includes a copy of the weights. The optimisers of torch compute something else.",
        variants={
            "MirrorDescent (ours)": _run(lambda ws: MirrorDescent(ws, 1e-3, p=p).step),
            BY_HAND: _run(lambda ws: _by_hand(ws, p)),
            ADAM: _run(lambda ws: torch.optim.Adam(ws, 1e-3, foreach=True).step),
            FUSED: _run(lambda ws: torch.optim.Adam(ws, 1e-3, fused=True).step),
            SGD: _run(lambda ws: torch.optim.SGD(ws, 1e-3, foreach=True).step),
        },
        tolerance=1e-6,
        aim={ADAM: 0.5},
        remark=remark,
        yardsticks=(ADAM, FUSED, SGD),
    )


@cache
def _model() -> tuple[list[Tensor], list[Tensor]]:
    """Weights and gradients of a transformer: word vectors, and layers of attention, two maps, biases and scales."""
    layer = [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,), (4 * WIDTH, WIDTH), (4 * WIDTH,)]
    layer += [(WIDTH, 4 * WIDTH), *[(WIDTH,)] * 5]
    generator = torch.Generator().manual_seed(0)
    shapes = [(WORDS, WIDTH), *layer * LAYERS]
    weights = [0.05 * torch.randn(shape, generator=generator) for shape in shapes]
    return weights, [1e-3 * torch.randn(shape, generator=generator) for shape in shapes]


def _run(build: Callable[[list[Tensor]], Callable[[], object]]) -> Callable[[], np.ndarray]:
    def run() -> np.ndarray:
        start, gradients = _model()
        weights = [torch.nn.Parameter(weight.clone()) for weight in start]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        step = build(weights)
        for _ in range(STEPS):
            step()
        return weights[1].detach().numpy()

    return run


def _by_hand(weights: list[Tensor], p: float) -> Callable[[], None]:
    mirrored = [weight.detach().double() for weight in weights]
    mirrored = [weight.sign() * weight.abs() ** (p - 1) for weight in mirrored]

    @torch.no_grad()
    def step() -> None:
        for weight, theta in zip(weights, mirrored, strict=True):
            theta -= 1e-3 * weight.grad
            weight.copy_(theta.sign() * theta.abs() ** (1 / (p - 1)))

    return step
