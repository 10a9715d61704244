r"""The networks of the first chapter with biases, which Theorem 3 needs and equation (1) lacks.

A bias is the weight of an input that is always one and that the mask leaves alone, so the closed-form gradient of
:mod:`attnbook.global_attention.masks` serves here too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, loss_and_gradient

__all__ = ["FirstLayers", "train_with_biases"]


@dataclass(frozen=True)
class FirstLayers:
    """First layers of trained networks, mask folded in.

    Attributes:
        normals: Rows of the first layer times the mask, ``(members, width, inputs)``.
        offsets: Biases, ``(members, width)``.
    """

    normals: Float[np.ndarray, "members width inputs"]
    offsets: Float[np.ndarray, "members width"]


def train_with_biases(
    members: list[Member],
    setup: Setup,
    *,
    steps: int,
    batch_size: int,
    step_size: float,
    device: torch.device,
    progress: Progress | None = None,
) -> tuple[FirstLayers, FirstLayers]:
    """Train networks with biases by Adam, ``baseline``, ``attention`` and ``l1_attention``.

    Args:
        members: The networks, ordered by seed, equally many for each and all of one sample size and sparsity.
        setup: Sizes and noise.
        steps: Steps of Adam.
        batch_size: Samples per step, drawn with replacement.
        step_size: Step size of Adam, falling to zero along a cosine.
        device: Where to compute; float32.
        progress: Told (steps done, steps in all).

    Returns:
        The first layers before and after training.

    Raises:
        ValueError: If the members are not ordered by seed, equally many for each.
        FloatingPointError: If a member diverges.
    """
    seeds = list(dict.fromkeys(m.seed for m in members))
    if not members or [m.seed for m in members] != list(np.repeat(seeds, len(members) // len(seeds))):
        raise ValueError("members: expected networks ordered by seed, equally many for each")
    n_samples, n_relevant = members[0].n_samples, members[0].n_relevant
    drawn = [_draw(seed, setup, n_samples, n_relevant) for seed in seeds]
    inputs, labels = (to_tensor(np.stack(arrays), device=device) for arrays in zip(*drawn, strict=True))
    trained = torch.ones(len(members), setup.n_inputs + 1, device=device)
    trained[:, -1] = 0
    trained *= to_tensor([float(m.model != "baseline") for m in members], device=device).unsqueeze(1)
    penalty = to_tensor([m.penalty if m.model == "l1_attention" else 0.0 for m in members], device=device)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        rows = np.stack([(stream(seed, "batches", step).random(batch_size) * n_samples).astype(int) for seed in seeds])
        index = torch.as_tensor(rows, device=device).unsqueeze(2)
        return torch.take_along_dim(inputs, index, dim=1), torch.take_along_dim(labels, index, dim=1).mT

    def gradient(parameters: Parameters, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
        losses, gradients = loss_and_gradient(parameters, at)
        gradients["mask"].addcmul_(parameters["mask"].sign(), penalty.unsqueeze(1)).mul_(trained)
        return losses, gradients

    start = _initial_parameters(members, setup, device)
    with threads(1):
        history = ensemble.train(
            gradient,
            start,
            batch,
            optimizer=update_rules.Adam(step_size),
            steps=steps,
            record=lambda p: {"norm": p["hidden"].norm(dim=(1, 2))},
            record_at=(steps,),
            schedule=update_rules.cosine(steps),
            names=[str(m) for m in members],
            progress=progress,
        )
    return _first_layers(start), _first_layers(history.parameters)


def _draw(seed: int, setup: Setup, n_samples: int, n_relevant: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs with a constant one at the end, and noisy labels."""
    inputs = stream(seed, "inputs").standard_normal((n_samples, setup.n_inputs))
    noise = stream(seed, "noise").standard_normal((n_samples, setup.outputs))
    labels = setup.teacher(seed, n_relevant)(inputs) + setup.noise * noise
    return np.column_stack([inputs, np.ones(n_samples)]), labels


def _initial_parameters(members: list[Member], setup: Setup, device: torch.device) -> Parameters:
    """Weights with variance 1 / fan-in, biases with the same variance; masks of ones."""
    fan_in = setup.n_inputs + 1
    hidden, decoder = [], []
    for member in members:
        rng = stream(member.seed, "initial weights")
        hidden.append(rng.standard_normal((setup.width, fan_in)) / np.sqrt(fan_in))
        decoder.append(rng.standard_normal((setup.outputs, setup.width)) / np.sqrt(setup.width))
    arrays = {"mask": np.ones((len(members), fan_in)), "hidden": np.stack(hidden), "decoder": np.stack(decoder)}
    return {name: to_tensor(array, device=device) for name, array in arrays.items()}


def _first_layers(parameters: Parameters) -> FirstLayers:
    folded = (parameters["hidden"] * parameters["mask"].unsqueeze(1)).cpu().double().numpy()
    return FirstLayers(folded[:, :, :-1], folded[:, :, -1])
