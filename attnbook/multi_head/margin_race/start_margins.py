r"""Tangent-kernel margins at random starts, beside those at zero and after the first phase.

With $\|\tilde\theta_\star\|=\sqrt2$, as in the paper's P3, the margin is $\sqrt2$ times the exact largest one for rules
of unit norm. The gradient in $W_h$ is linear in $U_h$ and that in $U_h$ does not depend on it. So one evaluation at
$\sigma_U=1$ gives the kernel for every scale of the value matrices: $K=K_U+\sigma_U^2K_W$.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.rng import stream, to_tensor
from attnbook.multi_head import network, starts, tangent_kernel
from attnbook.multi_head.data import Drawn

if TYPE_CHECKING:
    from attnbook.multi_head.margin_race.experiments import RandomStarts


def at_fixed_starts(sizes: RandomStarts, seeds: tuple[int, ...], drawn: Drawn, first: Drawn) -> Arrays:
    """Return margins at zero and after the first phase, and those that the same starts have with coin flips."""
    # One head: the kernel sees the square of its coefficient only, and so is the same for every number of heads.
    later = starts.first_phase(first.tokens, first.labels, coefficients=first.tokens.new_ones(1))
    zero = {name: torch.zeros_like(tensor) for name, tensor in later.items()}
    labels = {"": drawn.labels.cpu().numpy(), "_coin_flips": coin_flips(seeds, sizes.n_samples)}
    return {
        f"{name}{kind}": (("seed",), tangent_margins(start, drawn.tokens, y))
        for name, start in {"zero": zero, "first_phase": later}.items()
        for kind, y in labels.items()
    }


def at_random_starts(sizes: RandomStarts, seeds: tuple[int, ...], drawn: Drawn, first: Drawn) -> Arrays:
    """Return margins by heads and scales; ``matched`` has value matrices as large as after the first phase."""
    direction = starts.first_phase_direction(first.tokens, first.labels)
    matched = (direction.norm(dim=1) / math.sqrt(sizes.dimension)).cpu().numpy()
    labels, flips = drawn.labels.cpu().numpy(), coin_flips(seeds, sizes.n_samples)
    found: dict[str, list[list[np.ndarray]]] = {"random": [], "coin_flips": [], "matched": []}
    for key_query_scale in sizes.key_query_scales:
        of_values, of_key_query = kernel_parts(sizes, key_query_scale, seeds, drawn)

        def margins(y: np.ndarray, scale: np.ndarray | float, u: np.ndarray, w: np.ndarray) -> np.ndarray:
            kernels = u + np.reshape(scale, (-1, 1, 1, 1)) ** 2 * w
            return np.stack([root_two_margins(kernels[:, i], y) for i in range(len(sizes.heads))])

        parts = of_values, of_key_query
        found["random"].append([margins(labels, scale, *parts) for scale in sizes.value_scales])
        found["coin_flips"].append([margins(flips, scale, *parts) for scale in sizes.value_scales])
        found["matched"].append([margins(labels, matched, *parts)])
    axes = ("key_query_scale", "value_scale", "heads", "seed")
    arrays: Arrays = {name: (axes, found[name]) for name in ("random", "coin_flips")}
    equal = [scale[0] for scale in found["matched"]]
    return arrays | {"matched": (("key_query_scale", "heads", "seed"), equal), "matched_scale": (("seed",), matched)}


def kernel_parts(sizes: RandomStarts, key_query_scale: float, seeds: tuple[int, ...], drawn: Drawn) -> np.ndarray:
    """Kernels of the gradients in value and in key-query matrices at unit values, ``(2, seeds, heads, n, n)``."""
    most = sizes.heads[-1]
    entries = [
        network.draw_parameters(most, sizes.n_tokens, sizes.dimension, scale=1.0, rng=stream(seed, "random start"))
        for seed in seeds
    ]
    start = {
        name: to_tensor(np.stack([one[name] for one in entries]), device=drawn.tokens.device, dtype=torch.float64)
        for name in entries[0]
    }
    start["key_query"] = key_query_scale * start["key_query"]
    features = tangent_kernel.tangent_features(start, drawn.tokens).unflatten(2, (most, -1))
    blocks = features.split([sizes.n_tokens * sizes.dimension, sizes.dimension**2], dim=3)
    kernels = [
        torch.stack([gram(block[:, :, :n_heads].flatten(2)) * most / n_heads for n_heads in sizes.heads], dim=1)
        for block in blocks
    ]
    return np.asarray(torch.stack(kernels).cpu().numpy())


def tangent_margins(
    parameters: Parameters, tokens: Tensor, labels: np.ndarray, *, counts: Tensor | None = None
) -> np.ndarray:
    """Return the tangent-kernel margin of each member for targets of norm root two; 0 where there is none."""
    kernels = gram(tangent_kernel.tangent_features(parameters, tokens, counts=counts))
    return root_two_margins(kernels.cpu().numpy(), labels)


def root_two_margins(kernels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the largest margin of rules of norm root two for each kernel, ``(members, n, n)``; 0 for none."""
    found = np.zeros(len(kernels))
    for i, (kernel, y) in enumerate(zip(kernels, labels, strict=True)):
        with contextlib.suppress(NotSeparableError):
            found[i] = math.sqrt(2) * kernel_margin(kernel, y).margin
    return found


def gram(features: Tensor) -> Tensor:
    """Return the inner products of the features of each member."""
    return features @ features.mT


def coin_flips(seeds: tuple[int, ...], n_samples: int) -> np.ndarray:
    """Return a coin flip for the label of each sample."""
    return np.stack([stream(seed, "coin flips").choice([1.0, -1.0], n_samples) for seed in seeds])
