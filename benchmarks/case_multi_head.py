"""The multi-head network: its gradient, and training several networks at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from plain_loop import Loss, train_each
from side_by_side import Case
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream
from attnbook.multi_head import layer
from attnbook.multi_head import network as models

SAMPLES, TOKENS, DIMENSION = 16, 10, 50
SEEDS, STEPS = 16, 200


def cases() -> list[Case]:
    """Return the comparisons of this part."""
    return [gradient(64, aim=2.0), gradient(256, aim=4.0), training()]


def gradient(n_heads: int, *, aim: float) -> Case:
    """Compare the closed-form gradient with automatic differentiation of three ways to write the network."""
    parameters, batch = _problem(n_heads)
    ways = {
        "autograd, matrix products as the formula says": _as_written,
        "autograd, scaled_dot_product_attention": _with_torch_attention,
        "autograd through our own forward pass": layer.outputs,
    }
    return Case(
        title=f"Gradient of a multi-head network with {n_heads} heads",
        what=f"Loss and gradient for {SAMPLES} samples of {TOKENS} tokens in {DIMENSION} dimensions, in float64.",
        variants={"closed form (ours)": lambda: _flat(models.loss_and_gradient(parameters, batch)[1])}
        | {label: _autograd(predict, parameters, batch) for label, predict in ways.items()},
        tolerance=1e-10,
        aim={next(iter(ways)): aim},
    )


def training() -> Case:
    """Compare training all seeds at once with training one after another."""
    sizes = {"n_heads": 8, "n_tokens": 5, "dimension": 8}
    drawn = [models.draw_parameters(*sizes.values(), scale=0.3, rng=stream(s, "benchmark")) for s in range(SEEDS)]
    start = {name: torch.from_numpy(np.stack([d[name] for d in drawn])) for name in drawn[0]}
    rng = stream(0, "benchmark", "samples")
    tokens = torch.from_numpy(rng.standard_normal((SEEDS, 20, sizes["n_tokens"], sizes["dimension"])))
    labels = torch.from_numpy(rng.choice([-1.0, 1.0], (SEEDS, 20)))

    def together(chosen: slice) -> np.ndarray:
        parameters = {name: tensor[chosen] for name, tensor in start.items()}
        batch = (tokens[chosen], labels[chosen])
        return _each(models.gradient_descent(parameters, batch, step_size=0.3, steps=STEPS).parameters)

    def loss_of(i: int) -> Loss:
        def loss(parameters: Parameters, _: int) -> Tensor:
            stacked = {name: tensor[None] for name, tensor in parameters.items()}
            return F.softplus(-labels[i] * _as_written(stacked, tokens[i : i + 1])[0]).mean()

        return loss

    def loop() -> np.ndarray:
        starts = [{name: tensor[i] for name, tensor in start.items()} for i in range(SEEDS)]
        each = train_each(starts, map(loss_of, range(SEEDS)), lambda ps, i: torch.optim.SGD(ps, 0.3), STEPS)
        return _each({name: torch.stack([t[name] for t in each]) for name in start})

    return Case(
        title="Training multi-head networks",
        what=f"{STEPS} steps of gradient descent of {SEEDS} networks with 8 heads, 20 samples of 5 tokens, in float64.",
        variants={
            "one batch (ours)": lambda: together(slice(None)),
            "one after another (ours)": lambda: np.concatenate([together(slice(i, i + 1)) for i in range(SEEDS)]),
            "one after another, autograd and torch.optim": loop,
        },
        tolerance=1e-9,
        aim={},
    )


def _each(parameters: Parameters) -> np.ndarray:
    return torch.cat([parameters[name].flatten(1) for name in sorted(parameters)], dim=1).numpy()


def _problem(n_heads: int) -> tuple[Parameters, tuple[Tensor, Tensor]]:
    rng = stream(0, "benchmark")
    drawn = models.draw_parameters(n_heads, TOKENS, DIMENSION, scale=0.3, rng=rng)
    tokens = torch.from_numpy(rng.standard_normal((1, SAMPLES, TOKENS, DIMENSION)))
    labels = torch.from_numpy(rng.choice([-1.0, 1.0], (1, SAMPLES)))
    return {name: torch.from_numpy(array.copy())[None] for name, array in drawn.items()}, (tokens, labels)


def _autograd(
    predict: Callable[[Parameters, Tensor], Tensor], parameters: Parameters, batch: tuple[Tensor, Tensor]
) -> Callable[[], np.ndarray]:
    def run() -> np.ndarray:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        tokens, labels = batch
        loss = F.softplus(-labels * predict(leaves, tokens)).mean()
        return _flat(dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)))

    return run


def _as_written(parameters: Parameters, tokens: Tensor) -> Tensor:
    decoder, key_query = parameters["decoder"][0], parameters["key_query"][0]
    x = tokens[0].unsqueeze(1)
    attended = (x @ key_query @ x.mT).softmax(-1) @ x
    return (decoder * attended).sum((1, 2, 3))[None] / math.sqrt(len(decoder))


def _with_torch_attention(parameters: Parameters, tokens: Tensor) -> Tensor:
    decoder, key_query = parameters["decoder"][0], parameters["key_query"][0]
    x = tokens[0].unsqueeze(1).expand(-1, len(decoder), -1, -1)
    attended = F.scaled_dot_product_attention(x @ key_query, x, x, scale=1.0)
    return (decoder * attended).sum((1, 2, 3))[None] / math.sqrt(len(decoder))


def _flat(gradients: Parameters) -> np.ndarray:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)]).numpy()
