r"""Optimisers of the attention matrices side by side: training from the same starts, and what is measured afterwards.

A configuration is an optimiser and its step size; ``uniform`` is the control whose queries stay zero, so that attention
is the same on all tokens. Members are ordered by configuration, then by seed; equal seeds share start, data and
batches, so differences between configurations are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnbook.core import ensemble
from attnbook.core.ensemble import Gradient, History, Parameters, autograd
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention_rule import AttentionRule
from attnbook.mirror_descent.transformer import ATTENTION, Inputs, Shape, attention_names
from attnbook.mirror_descent.transformer import forward as run_network

__all__ = [
    "MIRROR",
    "OPTIMIZERS",
    "Rates",
    "accuracy",
    "attended_words",
    "clipped_gradient",
    "configurations",
    "drowned",
    "epoch_order",
    "right_answers",
    "scaled_matrices",
    "sparsity",
    "train_configurations",
]

OPTIMIZERS: Mapping[str, float | None] = {"uniform": None, "adam": None, "p1_1": 1.1, "p2": 2.0, "p3": 3.0}
"""Optimiser of the attention matrices to the exponent of its mirror map; Adam has none."""

MIRROR = ("p1_1", "p2", "p3")
"""The optimisers that are mirror descent, by rising exponent."""

Rates = tuple[tuple[float, ...], ...]
"""Step sizes of each optimiser, in the order of :data:`OPTIMIZERS`, equally many for all."""


def configurations(rates: Rates) -> tuple[tuple[str, float], ...]:
    """Return all pairs of optimiser and step size.

    Args:
        rates: Increasing step sizes of each optimiser, in the order of :data:`OPTIMIZERS`.

    Returns:
        Pairs, optimiser by optimiser.

    Raises:
        ValueError: If there is not one list per optimiser, all of one length, or one is not increasing or positive.

    Example:
        >>> configurations(((1e-3,), (1e-3,), (0.01,), (0.03,), (0.003,)))[2:]
        (('p1_1', 0.01), ('p2', 0.03), ('p3', 0.003))
    """
    if len(rates) != len(OPTIMIZERS) or len({len(own) for own in rates}) != 1:
        raise ValueError(f"rates: expected equally many step sizes of {', '.join(OPTIMIZERS)}, got {rates}")
    for name, own in zip(OPTIMIZERS, rates, strict=True):
        if not own or list(own) != sorted(set(own)) or own[0] <= 0:
            raise ValueError(f"rates: expected increasing positive step sizes of {name}, got {own}")
    return tuple((name, rate) for name, own in zip(OPTIMIZERS, rates, strict=True) for rate in own)


def train_configurations(
    shape: Shape,
    rates: Rates,
    seeds: Sequence[int],
    start: Parameters,
    batches: Callable[[int], Inputs],
    *,
    steps: int,
    noise: Callable[[int], Parameters] | None = None,
    record: Callable[[Parameters], Mapping[str, Tensor]],
    record_at: Sequence[int],
    progress: Progress | None = None,
) -> History:
    """Train every configuration from every seed's start: mirror descent or Adam on the attention matrices.

    Mirror descent has momentum 0.9; all other parameters are trained by Adam with step size 1e-3 throughout; gradients
    are cut to length 1.

    Args:
        shape: Sizes of the network.
        rates: Step sizes of each optimiser.
        seeds: One start per seed.
        start: Initial values, ``(configurations * seeds, ...)``; the queries of the control are set to zero.
        batches: Step number to a batch with one group per seed.
        steps: Number of steps.
        noise: Step number to noise for each attention matrix, ``(seeds, rows, columns)``, which takes the place of its
            gradient, with the length that this had; default none.
        record: Parameters to statistics, each ``(configurations * seeds, ...)``.
        record_at: Steps at which they are taken.
        progress: Told (steps done, steps in all).

    Returns:
        The history, with the trained parameters; it tells which members diverged.
    """
    pairs = [(name, rate, seed) for name, rate in configurations(rates) for seed in seeds]
    device = start["class_token"].device
    asking = torch.tensor([float(name != "uniform") for name, *_ in pairs], device=device)
    queries = [name for name in start if name.startswith(ATTENTION[0])]
    gradient = clipped_gradient(shape, asking=asking)
    return ensemble.train(
        gradient if noise is None else drowned(gradient),
        start | {name: start[name] * asking.view(-1, 1, 1) for name in queries},
        batches if noise is None else lambda step: (batches(step), noise(step)),
        optimizer=AttentionRule(
            attention_names(shape), [rate for _, rate, _ in pairs], [OPTIMIZERS[name] for name, *_ in pairs]
        ),
        steps=steps,
        record=record,
        record_at=record_at,
        on_divergence="record",
        progress=progress,
    )


def clipped_gradient(
    shape: Shape, largest: float = 1.0, *, asking: Float[Tensor, " members"] | None = None
) -> Gradient:
    """Return the cross-entropy of each member and its gradient, shortened to a given length.

    Args:
        shape: Sizes of the network.
        largest: Longest gradient allowed, all parameters of a member together; default 1.
        asking: 1 for members whose queries are trained, 0 for those whose queries stay; default all 1.

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
        if asking is not None:
            for name in (name for name in gradients if name.startswith(ATTENTION[0])):
                gradients[name] = gradients[name] * asking.view(-1, 1, 1)
        lengths = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients.values()]
        factor = (largest / torch.stack(lengths).square().sum(0).sqrt()).clamp_(max=1.0)
        return losses, {n: g * factor.view(-1, *[1] * (g.ndim - 1)) for n, g in gradients.items()}

    return gradient


def drowned(gradient: Gradient) -> Gradient:
    """Return a gradient in which noise of the same length stands in the place of some of its parts.

    Args:
        gradient: Of parameters and inputs.

    Returns:
        A function of parameters and a pair of inputs and noise, by name of the parameter, ``(groups, rows, columns)``.
    """

    def noisy(parameters: Parameters, batch: tuple[Inputs, Parameters]) -> tuple[Tensor, Parameters]:
        inputs, noise = batch
        losses, gradients = gradient(parameters, inputs)
        for name, drawn in noise.items():
            lengths, own = (torch.linalg.vector_norm(g, dim=(1, 2), keepdim=True) for g in (gradients[name], drawn))
            gradients[name] = lengths * (drawn / own).repeat(len(lengths) // len(own), 1, 1)
        return losses, gradients

    return noisy


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
def right_answers(parameters: Parameters, shape: Shape, batches: Iterable[Inputs]) -> Bool[Tensor, "members samples"]:
    """Return which samples each member classifies rightly.

    Args:
        parameters: Parameters.
        shape: Sizes of the network.
        batches: The samples in parts, with one group for all members, or one per seed.

    Returns:
        Whether the most likely class is the right one.
    """
    right = []
    for inputs in batches:
        guess = run_network(parameters, shape, inputs).logits.argmax(-1)
        right.append(guess == inputs.labels.repeat(len(guess) // len(inputs.labels), 1))
    return torch.cat(right, dim=1)


def accuracy(parameters: Parameters, shape: Shape, batches: Iterable[Inputs]) -> Float[Tensor, " members"]:
    """Return the share of samples that each member classifies rightly; arguments as :func:`right_answers`."""
    return right_answers(parameters, shape, batches).float().mean(1)


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
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
        present = torch.ones_like(marked) if inputs.present is None else inputs.present[0]
        uniform = present.sum(-1).clamp_min(2).log()[None, :, None]
        parts.append(
            {
                "mass": (weights * marked[None, :, None]).sum(-1).mean(-1),
                "entropy": (torch.special.entr(weights).sum(-1) / uniform).mean(-1),
                "top": marked.gather(1, weights.mean(2).argmax(-1).T).T.float(),
            }
        )
    return {name: torch.cat([part[name] for part in parts], 1).double().mean(1).cpu().numpy() for name in parts[0]}


def sparsity(parameters: Parameters, shape: Shape) -> dict[str, Float[np.ndarray, "members matrices"]]:
    """Measure how sparse the attention matrices are, kind by kind and, last, all together.

    Each matrix is divided by its own largest entry.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.

    Returns:
        ``effective_dimension`` (:func:`~attnbook.mirror_descent.mirror.effective_dimension`), and ``near_zero``, the
        share of entries of at most one per cent of the largest; of query, key, value and output matrices, the layers
        together, and of all. NaN where a matrix is zero.
    """
    sizes = scaled_matrices(parameters, shape)
    kinds = [sizes[:, kind :: len(ATTENTION)] for kind in range(len(ATTENTION))]
    pooled = [kind.reshape(len(sizes), 1, -1, sizes.shape[-1]) for kind in (*kinds, sizes)]
    measures = {"effective_dimension": mirror.effective_dimension, "near_zero": lambda w: 1 - mirror.share_above(w)}
    with np.errstate(invalid="ignore"):
        found = {name: np.concatenate([of(one) for one in pooled], axis=1) for name, of in measures.items()}
    found["near_zero"][np.isnan(found["effective_dimension"])] = np.nan
    return found


def scaled_matrices(parameters: Parameters, shape: Shape) -> Float[np.ndarray, "members matrices rows columns"]:
    """Return the sizes of the entries of all attention matrices, each divided by its own largest one.

    Args:
        parameters: Trained parameters.
        shape: Sizes of the network.

    Returns:
        Sizes between 0 and 1; NaN for a matrix of zeros.
    """
    stacked = np.stack([parameters[name].double().cpu().numpy() for name in attention_names(shape)], axis=1)
    size = np.abs(stacked)
    with np.errstate(invalid="ignore"):
        return np.asarray(size / size.max(axis=(-2, -1), keepdims=True))
