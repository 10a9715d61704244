"""The gradient of one layer of softmax attention on all samples: in blocks, and as a reader would take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from side_by_side import Case
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbook.core.rng import stream, to_tensor
from attnbook.preconditioning.attention import in_sample_loss_and_gradient

OUTPUTS = 8
OURS, ALL_WEIGHTS = "blocks of queries (ours)", "torch.autograd, all weights at once"
FUSED = "torch.autograd through scaled_dot_product_attention"


def cases() -> list[Case]:
    """Return the comparisons of the gradient on all samples."""
    sizes = (1000, 2000, 4000, 8000, 16_000)
    dimensions = (2, 5, 10, 20, 40)
    return [
        gradient(),
        many_samples(),
        growth("number of samples", [(f"{n} samples", draw(n, 5)) for n in sizes], sizes, "5 dimensions"),
        growth("dimension", [(f"{d} dimensions", draw(4000, d)) for d in dimensions], dimensions, "4000 samples"),
    ]


def draw(samples: int, dimension: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return a layer and its data; scores are of order one, so that a query attends to many keys."""
    rng = stream(0, "in-sample gradient")
    shapes = {"x": (samples, dimension), "y": (samples, OUTPUTS), "value": (OUTPUTS, dimension)}
    drawn = {name: to_tensor(rng.standard_normal(shape), dtype=dtype) for name, shape in shapes.items()}
    return drawn | {"key_query": to_tensor(rng.standard_normal((dimension, dimension)) / dimension, dtype=dtype)}


def gradient() -> Case:
    """Compare the gradient in blocks with automatic differentiation."""
    layer = draw(8000, 5)
    return Case(
        title="In-sample gradient of softmax attention",
        what=f"One loss and gradient of a layer on 8000 samples, each of which attends to all, 5 dimensions, {OUTPUTS} "
        "outputs, float32.",
        variants={
            OURS: lambda: ours(layer),
            ALL_WEIGHTS: lambda: autograd(layer, all_weights),
            FUSED: lambda: autograd(layer, fused),
        },
        tolerance=1e-4,
        aim={ALL_WEIGHTS: 5.0, FUSED: 1.5},
    )


def many_samples(samples: int = 100_000) -> Case:
    """Measure what no matrix of all weights could: 40 GB of them."""
    single, double = draw(samples, 5), draw(samples, 5, torch.float64)
    in_double = "blocks of queries in float64 (ours)"
    return Case(
        title=f"In-sample gradient of {samples} samples",
        what=f"One loss and gradient of a layer on {samples} samples in 5 dimensions, {OUTPUTS} outputs, float32; all "
        f"weights at once would be {4e-9 * samples**2:.0f} GB. Aim: less than 1024 MiB of memory.",
        variants={OURS: lambda: ours(single), in_double: lambda: ours(double)},
        tolerance=1e-4,
        aim={},
        once=(OURS, in_double),
    )


def growth(name: str, layers: Sequence[tuple[str, Mapping[str, Tensor]]], sizes: Sequence[int], fixed: str) -> Case:
    """Measure how the time grows with one size."""

    def remark(medians: Mapping[str, float]) -> str:
        times = np.log([medians[label] for label, _ in layers])
        whole, end = (np.polyfit(np.log(sizes[i:]), times[i:], 1)[0] for i in (0, len(sizes) - 3))
        return (
            f"Fitted exponent of CPU time against the {name}: {whole:.2f} over all rows, {end:.2f} over the last three."
        )

    return Case(
        title=f"In-sample gradient against the {name}",
        what=f"One loss and gradient in blocks of queries with {fixed}, {OUTPUTS} outputs, float32. Here the variants "
        "differ in size: their ratios say how the cost grows.",
        variants={label: _bound(layer) for label, layer in layers},
        tolerance=0.0,
        aim={},
        remark=remark,
        clock="cpu_ms",
        yardsticks=[label for label, _ in layers[1:]],
    )


def ours(layer: Mapping[str, Tensor]) -> np.ndarray:
    """Return the gradient in blocks."""
    _, found = in_sample_loss_and_gradient(**layer)
    return torch.cat([found["value"], found["key_query"]]).numpy()


def _bound(layer: Mapping[str, Tensor]) -> Callable[[], np.ndarray]:
    return lambda: ours(layer)


def autograd(layer: Mapping[str, Tensor], attend: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
    """Return the gradient by automatic differentiation of a way to attend."""
    value, key_query = (layer[name].clone().requires_grad_() for name in ("value", "key_query"))
    residual = attend(layer["x"], key_query) @ value.T - layer["y"]
    (residual.square().sum() / (2 * len(residual))).backward()
    return torch.cat([value.grad, key_query.grad]).numpy()


def all_weights(x: Tensor, key_query: Tensor) -> Tensor:
    """Attend with the matrix of all weights."""
    return torch.softmax(x @ key_query.T @ x.T, dim=1) @ x


def fused(x: Tensor, key_query: Tensor) -> Tensor:
    """Attend with torch's fused kernel, which never holds all weights; its default scale is not this layer's."""
    heads = (t.unsqueeze(0).unsqueeze(0) for t in (x @ key_query.T, x, x))
    return scaled_dot_product_attention(*heads, scale=1.0).squeeze(0).squeeze(0)
