r"""Optimisers of the attention matrices side by side: training from the same starts, and what is measured afterwards.

A configuration is an optimiser and its step size. Members are ordered by configuration, then by seed; equal seeds share
start, data and batches, so differences between configurations are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnbook.core import ensemble
from attnbook.core.ensemble import Gradient, Parameters, autograd
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_rule import AttentionRule
from attnbook.mirror_descent.transformer import Inputs, Shape, attention_names, draw_parameters
from attnbook.mirror_descent.transformer import forward as run_network

__all__ = [
    "OPTIMIZERS",
    "Rates",
    "accuracy",
    "attended_words",
    "clipped_gradient",
    "configurations",
    "epoch_order",
    "sparsity",
    "train_configurations",
    "weight_histogram",
]

OPTIMIZERS: Mapping[str, float | None] = {"adam": None, "p1_1": 1.1, "p2": 2.0, "p3": 3.0}
"""Optimiser of the attention matrices to the exponent of its mirror map; Adam has none."""

Rates = tuple[tuple[float, ...], ...]
"""Step sizes of each optimiser, in the order of :data:`OPTIMIZERS`."""


def configurations(rates: Rates) -> tuple[tuple[str, float], ...]:
    """Return all pairs of optimiser and step size.

    Args:
        rates: Increasing step sizes of each optimiser, in the order of :data:`OPTIMIZERS`.

    Returns:
        Pairs, optimiser by optimiser.

    Raises:
        ValueError: If there is not one list per optimiser, or one is empty, not increasing or not positive.

    Example:
        >>> configurations(((1e-3,), (0.01, 0.03), (0.03,), (0.003,)))[1:3]
        (('p1_1', 0.01), ('p1_1', 0.03))
    """
    if len(rates) != len(OPTIMIZERS):
        raise ValueError(f"rates: expected step sizes of {', '.join(OPTIMIZERS)}, got {len(rates)} lists")
    for name, own in zip(OPTIMIZERS, rates, strict=True):
        if not own or list(own) != sorted(set(own)) or own[0] <= 0:
            raise ValueError(f"rates: expected increasing positive step sizes of {name}, got {own}")
    return tuple((name, rate) for name, own in zip(OPTIMIZERS, rates, strict=True) for rate in own)


def train_configurations(
    shape: Shape,
    rates: Rates,
    seeds: Sequence[int],
    batches: Callable[[int], Inputs],
    *,
    steps: int,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Parameters:
    """Train every configuration from every seed's start: mirror descent or Adam on the attention matrices.

    Mirror descent has momentum 0.9; all other parameters are trained by Adam with step size 1e-3 throughout; gradients
    are cut to length 1.

    Args:
        shape: Sizes of the network.
        rates: Step sizes of each optimiser.
        seeds: One start per seed.
        batches: Step number to a batch with one group per seed.
        steps: Number of steps.
        device: Where to train; default the CPU.
        progress: Told (steps done, steps in all).

    Returns:
        Trained parameters, ``(configurations * seeds, ...)``.

    Raises:
        FloatingPointError: If a network diverges; names configuration and seed.
    """
    pairs = [(name, rate, seed) for name, rate in configurations(rates) for seed in seeds]
    rule = AttentionRule(
        attention_names(shape), [rate for _, rate, _ in pairs], [OPTIMIZERS[name] for name, _, _ in pairs]
    )
    history = ensemble.train(
        clipped_gradient(shape),
        draw_parameters(shape, seeds, len(pairs) // len(seeds), device=str(device)),
        batches,
        optimizer=rule,
        steps=steps,
        record=lambda parameters: {"class_token": parameters["class_token"]},
        record_at=(steps,),
        names=[f"{name} at {rate:g}, seed {seed}" for name, rate, seed in pairs],
        progress=progress,
    )
    return history.parameters


def clipped_gradient(shape: Shape, largest: float = 1.0) -> Gradient:
    """Return the cross-entropy of each member and its gradient, shortened to a given length.

    Args:
        shape: Sizes of the network.
        largest: Longest gradient allowed, all parameters of a member together; default 1.

    Returns:
        A function for :func:`attnbook.core.ensemble.train`, of parameters and inputs.

    Raises:
        ValueError: If ``largest`` is not positive.
    """
    if not largest > 0:
        raise ValueError(f"largest: expected a positive length, got {largest}")
    plain = autograd(cross_entropy(shape))

    def gradient(parameters: Parameters, inputs: Inputs) -> tuple[Tensor, Parameters]:
        losses, gradients = plain(parameters, inputs)
        squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
        factor = (largest / torch.stack(squares).sum(0).sqrt()).clamp_(max=1.0)
        return losses, {n: g * factor.view(-1, *[1] * (g.ndim - 1)) for n, g in gradients.items()}

    return gradient


def cross_entropy(shape: Shape) -> Callable[[Parameters, Inputs], Float[Tensor, " members"]]:
    """Return the function of parameters and inputs that gives the mean cross-entropy of each member.

    Args:
        shape: Sizes of the network.

    Returns:
        A loss for :func:`attnbook.core.ensemble.autograd`.
    """

    def losses(parameters: Parameters, inputs: Inputs) -> Float[Tensor, " members"]:
        logits = run_network(parameters, shape, inputs).logits
        labels = inputs.labels.repeat(len(logits) // len(inputs.labels), 1)
        return (
            functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels).mean(1)
        )

    return losses


def epoch_order(n_samples: int, steps: int, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """Return which samples each step sees: shuffled epochs, one after the other.

    Args:
        n_samples: Number of samples.
        steps: Number of steps.
        batch_size: Samples per step.
        rng: Source of randomness.

    Returns:
        Indices ``(steps, batch_size)``; a batch may reach from one epoch into the next.
    """
    epochs = -(-steps * batch_size // n_samples)
    order = np.concatenate([rng.permutation(n_samples) for _ in range(epochs)])
    return order[: steps * batch_size].reshape(steps, batch_size)


@torch.no_grad()
def accuracy(parameters: Parameters, shape: Shape, batches: Iterable[Inputs]) -> Float[np.ndarray, " members"]:
    """Return the share of samples that each member classifies rightly.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.
        batches: The samples in parts, with one group for all members, or one per seed.

    Returns:
        Shares between 0 and 1.
    """
    right, count = torch.zeros(1, dtype=torch.float64), 0
    for inputs in batches:
        guess = run_network(parameters, shape, inputs).logits.argmax(-1)
        right = right.to(guess.device) + (
            guess == inputs.labels.repeat(len(guess) // len(inputs.labels), 1)
        ).double().sum(1)
        count += inputs.labels.shape[1]
    return np.asarray(right.cpu() / count)


@torch.no_grad()
def attended_words(
    parameters: Parameters, shape: Shape, batches: Iterable[tuple[Inputs, Bool[Tensor, "batch tokens"]]]
) -> dict[str, Float[np.ndarray, " members"]]:
    """Measure where the class token looks: attention on marked words, its most attended word, its entropy.

    Attention is that of the last layer, on words only: what the class token gives to itself is left out and the rest
    made to sum to one. Entropy is divided by that of uniform attention on the words that are there.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.
        batches: Samples in parts, one group for all members, each with the mask of marked words.

    Returns:
        ``mass`` on marked words and ``entropy``, means over samples and heads; ``top``, the share of samples whose most
        attended word (mean over heads) is marked.
    """
    parts: list[dict[str, Tensor]] = []
    for inputs, marked in batches:
        weights = run_network(parameters, shape, inputs).attention[..., :-1]
        weights = (weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)).double()
        present = torch.ones_like(marked) if inputs.present is None else inputs.present[0]
        uniform = present.sum(-1).clamp_min(2).double().log()[None, :, None]
        parts.append(
            {
                "mass": (weights * marked[None, :, None]).sum(-1).mean(-1),
                "entropy": (torch.special.entr(weights).sum(-1) / uniform).mean(-1),
                "top": marked.gather(1, weights.mean(2).argmax(-1).T).T.double(),
            }
        )
    return {name: torch.cat([part[name] for part in parts], 1).mean(1).cpu().numpy() for name in parts[0]}


def sparsity(parameters: Parameters, shape: Shape) -> dict[str, Float[np.ndarray, "members matrices"]]:
    """Measure how sparse the attention matrices are, each alone and, last, all together.

    Each matrix is divided by its own largest entry.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.

    Returns:
        ``effective_dimension`` (:func:`~attnbook.mirror_descent.mirror.effective_dimension`), and ``near_zero``,
        the share of entries of at most one per cent of the largest.
    """
    stacked = scaled_matrices(parameters, shape)
    together = stacked.reshape(len(stacked), 1, -1, stacked.shape[-1])
    found = {}
    for name, measure in (
        ("effective_dimension", mirror.effective_dimension),
        ("near_zero", lambda w: 1 - mirror.share_above(w)),
    ):
        found[name] = np.concatenate([measure(stacked), measure(together)], axis=1)
    return found


def weight_histogram(
    parameters: Parameters, shape: Shape, edges: Float[np.ndarray, " edges"]
) -> Float[np.ndarray, "members matrices bins"]:
    """Return how the sizes of the entries are distributed, as shares.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.
        edges: Bounds of the bins, increasing, for sizes divided by the largest of the matrix.

    Returns:
        Share of the entries in each bin; sizes below the first bound count in the first bin.
    """
    sizes = scaled_matrices(parameters, shape).clip(edges[0])
    counts = [[np.histogram(matrix, edges)[0] for matrix in member] for member in sizes]
    return np.array(counts) / sizes[0, 0].size


def scaled_matrices(parameters: Parameters, shape: Shape) -> Float[np.ndarray, "members matrices rows columns"]:
    """Return the sizes of the entries of all attention matrices, each divided by its own largest one.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.

    Returns:
        Sizes between 0 and 1.
    """
    names = attention_names(shape)
    stacked = np.stack([parameters[name].double().cpu().numpy() for name in names], axis=1)
    size = np.abs(stacked)
    return np.asarray(size / size.max(axis=(-2, -1), keepdims=True))
