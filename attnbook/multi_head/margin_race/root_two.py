r"""Margins for norm $\sqrt2$: tangent-kernel margins at starts, and the largest one of the model itself.

The gradient in $W_h$ is linear in $U_h$ and that in $U_h$ does not depend on it. So one evaluation of a random start at
$\sigma_U=1$ gives the kernel for every scale of the value matrices: $K=K_U+\sigma_U^2K_W$.

The search for the largest margin, the paper's "global margin", has $G$ kinds of heads, each $H/G$ times. With
$V_g=\sqrt{H/G}\,U_g$ and $B_g=\sqrt{H/G}\,W_g$ the squared norm of the network is $\sum_g\|V_g\|^2+\|B_g\|^2$ and its
output is $G^{-1/2}\sum_g\langle V_g,A_gX\rangle$ with attention $A_g$ of the matrix $\sqrt{G/H}\,B_g$. So many heads
are few whose attention is *shrunk*.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays
from attnbook.core.kernel_margin import NotSeparableError, kernel_margin
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, share
from attnbook.multi_head import head_groups, layer, objectives, starts, tangent_kernel
from attnbook.multi_head.data import Drawn
from attnbook.multi_head.experiment_parts import random_networks

if TYPE_CHECKING:
    from attnbook.multi_head.margin_race.experiments import RandomStarts

NORM = math.sqrt(2)
STEP_SIZE = 0.03  # of Adam
SHARPNESS = (3.0, 300.0)  # of the smooth minimum over samples, at the first and at the last step


def at_starts(sizes: RandomStarts, seeds: tuple[int, ...], drawn: Drawn, first: Drawn) -> Arrays:
    """Return margins at zero, after the first phase and at random starts, and what these have with coin flips."""
    # One head: the kernel sees the square of its coefficient only, and so is the same for every number of heads.
    later = starts.first_phase(first.tokens, first.labels, coefficients=first.tokens.new_ones(1))
    fixed = {"zero": {name: torch.zeros_like(tensor) for name, tensor in later.items()}, "first_phase": later}
    labels = drawn.labels.cpu().numpy()
    flips = np.stack([stream(seed, "coin flips").choice([1.0, -1.0], sizes.n_samples) for seed in seeds])
    norms = starts.first_phase_direction(first.tokens, first.labels).norm(dim=1).cpu().numpy()
    matched = norms / math.sqrt(sizes.dimension)  # the scale at which value matrices are as large as after it
    parts = {scale: kernel_parts(sizes, scale, seeds, drawn) for scale in sizes.key_query_scales}

    def margins(y: np.ndarray, key_query_scale: float, scale: float | np.ndarray, heads: int) -> Any:
        u, w = (part[:, sizes.heads.index(heads)] for part in parts[key_query_scale])
        return ("seed",), NORM * tangent_kernel.largest_margins(u + np.reshape(scale, (-1, 1, 1)) ** 2 * w, y)

    def random(*cell: Any) -> Arrays:
        return {"random": margins(labels, *cell), "coin_flips": margins(flips, *cell)}

    found: Arrays = {
        name + kind: (("seed",), tangent_margins(start, drawn.tokens, y))
        for name, start in fixed.items()
        for kind, y in {"": labels, "_coin_flips": flips}.items()
    }
    found |= sizes.grid(("key_query_scale", "value_scale", "heads"), random)
    found |= sizes.grid(("key_query_scale", "heads"), lambda w, heads: {"matched": margins(labels, w, matched, heads)})
    return found | {"matched_scale": (("seed",), matched)}


def kernel_parts(sizes: RandomStarts, key_query_scale: float, seeds: tuple[int, ...], drawn: Drawn) -> np.ndarray:
    """Kernels of the gradients in value and in key-query matrices at unit values, ``(2, seeds, heads, n, n)``."""
    most, values = sizes.heads[-1], sizes.n_tokens * sizes.dimension
    rngs = [stream(seed, "random start") for seed in seeds]
    start = random_networks(rngs, (most, sizes.n_tokens, sizes.dimension), device=drawn.tokens.device)
    start["key_query"] = key_query_scale * start["key_query"]
    blocks = tangent_kernel.tangent_features(start, drawn.tokens).unflatten(2, (most, -1)).tensor_split([values], dim=3)
    kernels = [
        torch.stack([seen @ seen.mT * most / n for n in sizes.heads for seen in [block[:, :, :n].flatten(2)]], dim=1)
        for block in blocks
    ]
    return np.asarray(torch.stack(kernels).cpu().numpy())


def tangent_margins(parameters: Parameters, tokens: Tensor, labels: np.ndarray) -> np.ndarray:
    """Return the tangent-kernel margin of each member for targets of norm root two; 0 where there is none."""
    features = tangent_kernel.tangent_features(parameters, tokens)
    return NORM * tangent_kernel.largest_margins((features @ features.mT).cpu().numpy(), labels)


def global_margins(sizes: RandomStarts, seeds: tuple[int, ...], drawn: Drawn, progress: Progress | None) -> Arrays:
    """Search with equal heads for every number of heads, and with heads that are free; bound what can be found."""
    names = [(seed, start) for seed in seeds for start in range(sizes.search_starts)]
    tokens, labels = (part.repeat_interleave(sizes.search_starts, 0) for part in (drawn.tokens, drawn.labels))

    def search(kinds: int, heads: tuple[int, ...], told: Progress | None) -> np.ndarray:
        draws = [stream(seed, "search", str(kinds), str(start)) for _ in heads for seed, start in names]
        shapes = {"decoder": (kinds, sizes.n_tokens, sizes.dimension), "key_query": (kinds, *[sizes.dimension] * 2)}
        entries = [{name: rng.standard_normal(s) / s[1] for name, s in shapes.items()} for rng in draws]
        start = {name: torch.from_numpy(np.stack([e[name] for e in entries])).to(tokens) for name in shapes}
        counts = tokens.new_tensor([[h / kinds] * kinds for h in heads]).repeat_interleave(len(names), 0)
        many = tokens.repeat(len(heads), 1, 1, 1), labels.repeat(len(heads), 1)
        found = best_networks(start, *many, counts=counts, steps=sizes.search_steps, progress=told)
        margins = (many[1] * layer.outputs(found, many[0], counts=counts)).amin(1)
        return margins.cpu().numpy().reshape(len(heads), len(seeds), -1)

    return {
        "global_margin": (("searched", "seed", "start"), search(1, sizes.searched, share(progress, 0, 2))),
        "free_margin": (("seed", "start"), search(sizes.free_heads, (sizes.free_heads,), share(progress, 1, 2))[0]),
        "bound": (("seed",), upper_bound(drawn.tokens, drawn.labels, heads=sizes.bound_heads)),
    }


def best_networks(
    start: Parameters, tokens: Tensor, labels: Tensor, *, counts: Tensor, steps: int, progress: Progress | None = None
) -> Parameters:
    """Return one head of each kind of networks with a large margin; all kinds have equally many heads, ``counts``."""
    # Adam on the sphere, on a smooth minimum over the samples that sharpens; at last the best value matrices for the
    # attention that was found, by an exact solver.
    per_head = counts[:, :1, None, None].rsqrt()

    def shrunk(parameters: Parameters) -> Parameters:
        return {"decoder": parameters["decoder"], "key_query": per_head * parameters["key_query"]}

    def onto_sphere(parameters: Parameters) -> None:
        factor = NORM / head_groups.norm(parameters, counts=torch.ones_like(counts))
        for tensor in parameters.values():
            tensor.mul_(factor[:, None, None, None])

    def value_and_gradient(parameters: Parameters, sharpness: float) -> tuple[Tensor, Parameters]:
        def objective(outputs: Tensor) -> tuple[Tensor, Tensor]:
            value, slopes = objectives.log_sum_exp(labels)(sharpness * outputs)
            return value / sharpness, slopes

        value, slopes = layer.value_and_gradient(shrunk(parameters), tokens, objective)
        slopes["key_query"] = per_head * slopes["key_query"]
        # Along the sphere only: what points outwards would change the norm, which is set back.
        outwards = torch.stack([(slopes[name] * parameters[name]).sum((1, 2, 3)) for name in slopes]).sum(0) / NORM**2
        return value, {name: slopes[name] - outwards[:, None, None, None] * parameters[name] for name in slopes}

    low, high = SHARPNESS
    point = {name: tensor.clone() for name, tensor in start.items()}
    onto_sphere(point)
    history = ensemble.train(
        value_and_gradient, point, lambda step: low * (high / low) ** (step / steps), steps=steps, progress=progress,
        optimizer=update_rules.Adam(STEP_SIZE), schedule=update_rules.cosine(steps), project=onto_sphere,
        record=lambda p: {"norm": p["decoder"].flatten(1).norm(dim=1)},
    )  # fmt: skip
    found = shrunk(history.parameters)
    found["decoder"] = per_head * best_values(found, tokens, labels, history.parameters["key_query"])
    return found


def best_values(parameters: Parameters, tokens: Tensor, labels: Tensor, key_query: Tensor) -> Tensor:
    """Return the value matrices that make the most of this attention with the norm that is left."""
    attention = layer.attention_weights(parameters, tokens)
    features = torch.einsum("bnhts,bnsd->bnhtd", attention, tokens).flatten(2)
    found = []
    for one, y in zip(features, labels, strict=True):
        try:
            weights = kernel_margin((one @ one.mT).cpu().numpy(), y.cpu().numpy()).weights
        except NotSeparableError as error:  # the search has not found a network that separates: any values will do
            weights = error.combination
        found.append((torch.from_numpy(weights).to(one) * y) @ one)
    left = (NORM**2 - key_query.square().sum((1, 2, 3))).sqrt()
    best = torch.stack(found)
    return (best / best.norm(dim=1, keepdim=True) * left[:, None]).view_as(parameters["decoder"])


def upper_bound(tokens: Tensor, labels: Tensor, *, heads: float) -> np.ndarray:
    r"""Return $\sqrt2\,\kappa_0+\sqrt T\,R^3/\sqrt H$, which no network of norm $\sqrt2$ exceeds (ours).

    Here $\kappa_0$ is the largest margin per norm with uniform attention and $R$ the largest norm of a token. Proved
    in the chapter.
    """
    members, _, n_tokens, dimension = tokens.shape
    zero = starts.zero(members, n_tokens, dimension, device=tokens.device)
    largest = tokens.norm(dim=3).amax((1, 2)).cpu().numpy()
    uniform = tangent_margins(zero, tokens, labels.cpu().numpy())
    return np.asarray(uniform + math.sqrt(n_tokens / heads) * largest**3)
