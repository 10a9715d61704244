"""Optimisers of the attention matrices side by side: training from the same starts, and what is measured afterwards.

A configuration is an optimiser and its step size; ``uniform`` is the control whose queries stay zero, so that attention
is the same on all tokens. Members are ordered by configuration, then by seed; equal seeds share start, data and
batches, so differences between configurations are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from attnbook.core.ensemble import Gradient, Parameters, autograd
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.real_text_and_images.transformer import ATTENTION, Inputs, Shape, attention_names
from attnbook.mirror_descent.real_text_and_images.transformer import forward as run_network

# Optimiser of the attention matrices to the exponent of its mirror map; Adam has none.
OPTIMIZERS: Mapping[str, float | None] = {"uniform": None, "adam": None, "p1_1": 1.1, "p2": 2.0, "p3": 3.0}
MIRROR = ("p1_1", "p2", "p3")  # those that are mirror descent, by rising exponent

Rates = tuple[tuple[float, ...], ...]
"""Step sizes of each optimiser, in the order of ``OPTIMIZERS``, equally many for all."""


def configurations(rates: Rates) -> tuple[tuple[str, float], ...]:
    """Return all pairs of optimiser and step size, optimiser by optimiser."""
    if len(rates) != len(OPTIMIZERS) or len({len(own) for own in rates}) != 1:
        raise ValueError(f"rates: expected equally many step sizes of {', '.join(OPTIMIZERS)}, got {rates}")
    for name, own in zip(OPTIMIZERS, rates, strict=True):
        if not own or list(own) != sorted(set(own)) or own[0] <= 0:
            raise ValueError(f"rates: expected increasing positive step sizes of {name}, got {own}")
    return tuple((name, rate) for name, own in zip(OPTIMIZERS, rates, strict=True) for rate in own)


def clipped_gradient(
    shape: Shape, largest: float = 1.0, *, asking: Float[Tensor, " members"] | None = None
) -> Gradient:
    """Return the cross-entropy of each member and its gradient, all parameters together shortened to a given length.

    Queries are trained where ``asking`` is 1 and stay where it is 0; default all are trained.
    """

    def cross_entropy(parameters: Parameters, inputs: Inputs) -> Float[Tensor, " members"]:
        logits = run_network(parameters, shape, inputs).logits
        labels = inputs.labels.repeat(len(logits) // len(inputs.labels), 1)
        each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return each.view_as(labels).mean(1)

    plain = autograd(cross_entropy)

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
    """Return the gradient in which noise of the same length, given by name, stands in the place of some parts."""

    def noisy(parameters: Parameters, batch: tuple[Inputs, Parameters]) -> tuple[Tensor, Parameters]:
        inputs, noise = batch
        losses, gradients = gradient(parameters, inputs)
        for name, drawn in noise.items():
            lengths, own = (torch.linalg.vector_norm(g, dim=(1, 2), keepdim=True) for g in (gradients[name], drawn))
            gradients[name] = lengths * (drawn / own).repeat(len(lengths) // len(own), 1, 1)
        return losses, gradients

    return noisy


def epoch_order(n_samples: int, steps: int, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """Return which samples each step sees, ``(steps, batch_size)``: shuffled epochs, one after the other."""
    epochs = -(-steps * batch_size // n_samples)
    order = np.concatenate([rng.permutation(n_samples) for _ in range(epochs)])
    return order[: steps * batch_size].reshape(steps, batch_size)


@torch.no_grad()
def accuracy(parameters: Parameters, shape: Shape, batches: Iterable[Inputs]) -> Float[Tensor, " members"]:
    """Return the share of samples that each member classifies rightly; the samples come in parts."""
    right = []
    for inputs in batches:
        guess = run_network(parameters, shape, inputs).logits.argmax(-1)
        right.append(guess == inputs.labels.repeat(len(guess) // len(inputs.labels), 1))
    return torch.cat(right, dim=1).float().mean(1)


@torch.no_grad()
def attended_words(
    parameters: Parameters, shape: Shape, batches: Iterable[tuple[Inputs, Bool[Tensor, "batch tokens"]]]
) -> dict[str, Float[np.ndarray, " members"]]:
    """Return where the class token looks: ``mass`` on marked words, whether the ``top`` word is marked, ``entropy``.

    Attention is that of the last layer, on words only: what the class token gives to itself is left out and the rest
    made to sum to one. Entropy is divided by that of uniform attention on the words that are there. Samples come in
    parts, one group for all members, with the mask of marked words; means over samples and heads.
    """
    parts: list[dict[str, Tensor]] = []
    for inputs, marked in batches:
        weights = run_network(parameters, shape, inputs).attention[..., :-1]
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
        present = torch.ones_like(marked) if inputs.present is None else inputs.present[0]
        uniform = present.sum(-1).clamp_min(2).to(weights).log()[None, :, None]
        parts.append(
            {
                "mass": (weights * marked[None, :, None]).sum(-1).mean(-1),
                "entropy": (torch.special.entr(weights).sum(-1) / uniform).mean(-1),
                "top": marked.gather(1, weights.mean(2).argmax(-1).T).T.float(),
            }
        )
    return {name: torch.cat([part[name] for part in parts], 1).double().mean(1).cpu().numpy() for name in parts[0]}


def sparsity(parameters: Parameters, shape: Shape) -> dict[str, Float[np.ndarray, "members matrices"]]:
    """Return how sparse the attention matrices are, kind by kind (layers together) and, last, all together.

    Each matrix is divided by its own largest entry; NaN where it is zero. ``near_zero`` is the share of entries of at
    most one per cent of the largest.
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
    """Return the sizes of the entries of all attention matrices, each divided by its own largest one."""
    stacked = np.stack([parameters[name].double().cpu().numpy() for name in attention_names(shape)], axis=1)
    size = np.abs(stacked)
    with np.errstate(invalid="ignore"):
        return np.asarray(size / size.max(axis=(-2, -1), keepdims=True))
