r"""The networks whose curvature is measured, and what is measured at them.

*Random* points; *trained* ones (a fixed number of steps of gradient descent from there); *lone* ones, where the first
of $H$ heads does the work of a trained single head and the others are zero: the same function for every $H$; and
*equal* ones, trained until the loss is the same for every $H$. And two where bounds come near: zero weights, and tokens
that are all the same (*equal tokens*) or point half each way (*opposite tokens*), up to the sign of the label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnbook.core import spectrum
from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import derivatives, network

if TYPE_CHECKING:
    from attnbook.multi_head.curvature.experiments import Curvature

WORST = ("equal tokens", "opposite tokens")
POINTS = ("random", "trained", "lone", "equal", *WORST)
# Whole Hessians with larger blocks than this are not put together: a block of 3000 rows takes 72 MB.
LARGEST_BLOCK = 1000


def random_networks(
    n_heads: int, n_tokens: int, dimension: int, *, scale: float, seeds: Sequence[int], device: torch.device
) -> Parameters:
    """Return one network for each seed; the heads of a smaller one are those of a larger one."""
    rngs = [stream(seed, "random point") for seed in seeds]
    drawn = [network.draw_parameters(n_heads, n_tokens, dimension, scale=scale, rng=rng) for rng in rngs]
    return {
        name: to_tensor(np.stack([one[name] for one in drawn]), device=device, dtype=torch.float64) for name in drawn[0]
    }


def worst_tokens(point: str, batch: network.Batch) -> network.Batch:
    """Return tokens of length one with the labels and sizes of a batch, for zero weights."""
    tokens, labels = torch.zeros_like(batch[0]), batch[1]
    signs = torch.ones(tokens.shape[2], dtype=tokens.dtype, device=tokens.device)
    if point == "opposite tokens":
        signs[1::2] = -1
    tokens[..., 0] = labels[..., None] * signs
    return tokens, labels


def draw_points(
    sizes: Curvature, scale: float, n_heads: int, seeds: Sequence[int], batch: network.Batch
) -> dict[str, tuple[Parameters, network.Batch]]:
    """Return the networks of all seeds at each of the points, and the samples there."""

    def start(count: int) -> Parameters:
        device = batch[0].device
        return random_networks(count, sizes.n_tokens, sizes.dimension, scale=scale, seeds=seeds, device=device)

    def train(start: Parameters) -> Parameters:
        return network.gradient_descent(start, batch, step_size=sizes.step_size, steps=sizes.steps).parameters

    random, single = start(n_heads), train(start(1))
    lone = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    for name, tensor in single.items():
        lone[name][:, :1] = tensor
    lone["decoder"] *= math.sqrt(n_heads)
    most = 10 * max(sizes.steps, 100)
    equal = network.descend_to(random, batch, step_size=sizes.step_size, loss=sizes.equal_loss, most_steps=most)
    drawn = {"random": random, "trained": train(random), "lone": lone, "equal": equal}
    zero = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    worst = {name: (zero, worst_tokens(name, batch)) for name in WORST}
    return {name: (parameters, batch) for name, parameters in drawn.items()} | worst


def measure_point(parameters: Parameters, batch: network.Batch) -> dict[str, np.ndarray]:
    """Return what is measured at one point, each ``(members,)``."""
    loss, gradients = network.loss_and_gradient(parameters, batch)
    squares = sum(g.square().flatten(1).sum(1) for g in gradients.values())
    found = [_eigenvalues(parameters, batch, member) for member in range(len(loss))]
    return {
        **{name: np.array([one[name] for one in found]) for name in found[0]},
        "loss": loss.cpu().numpy(),
        "gradient_norm": torch.as_tensor(squares).sqrt().cpu().numpy(),
        "head_norm": network.largest_head_norm(parameters).cpu().numpy(),
        "token_norm": batch[0].norm(dim=3).amax((1, 2)).clamp(min=1).cpu().numpy(),
        "decoder_norm": parameters["decoder"].square().sum((2, 3)).amax(1).sqrt().cpu().numpy(),
    }


def _eigenvalues(parameters: Parameters, batch: network.Batch, member: int) -> dict[str, float]:
    """Extreme eigenvalues of the whole Hessian, and of the blocks of all heads where these are small."""
    own = {name: tensor[member] for name, tensor in parameters.items()}
    tokens, labels = batch[0][member], batch[1][member]
    product: spectrum.Product
    if own["decoder"][0].numel() + own["key_query"][0].numel() <= LARGEST_BLOCK:
        hessian = derivatives.loss_hessian(own, tokens, labels)
        product, size = hessian.product, hessian.size
        of_heads = -np.linalg.eigvalsh(hessian.blocks)[:, 0]
    else:

        def loss(p: Parameters) -> Tensor:
            stacked = {name: tensor.unsqueeze(0) for name, tensor in p.items()}
            return network.losses(stacked, (tokens.unsqueeze(0), labels.unsqueeze(0)))[0]

        product, size = spectrum.hessian_product(loss, own)
        of_heads = np.array([np.inf])
    smallest, largest = spectrum.extreme_eigenvalues(product, size, dense_below=300, tolerance=1e-3)
    if abs(smallest) < 1e-12 * largest:  # no negative curvature; its rounding error would differ from run to run
        smallest = 0.0
    heads = {"typical_head": float(np.median(of_heads)), "worst_head": float(of_heads.max())}
    return {"smallest": smallest, "largest": largest, **heads}


def two_parts(n_heads: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    """Return both parts of a small Hessian and the loss: copies of one pair of heads that cancel, so it is log 2."""
    tokens, labels = stream(seed, "two parts").standard_normal((5, 4, 2)), [1.0, -1.0, 1.0, 1.0, -1.0]
    head = network.draw_parameters(1, 4, 2, scale=1.0, rng=stream(seed, "pair of heads"))
    copies = {name: torch.tensor(array).repeat(n_heads, 1, 1) for name, array in head.items()}
    copies["decoder"][1::2] *= -1
    hessian = derivatives.loss_hessian(copies, torch.tensor(tokens), torch.tensor(labels, dtype=torch.float64))
    bowl = hessian.rows.T * hessian.weights @ hessian.rows
    return bowl, hessian.dense() - bowl, math.log(2)
