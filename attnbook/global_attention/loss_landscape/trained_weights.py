"""What trained networks (1) look like: their pieces, their norms, and the two parts of assumption A5."""

from __future__ import annotations

import numpy as np
import torch

from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model, Training, train_members

__all__ = ["LAYERS", "NETWORKS", "largest_correlation", "trained_weights"]

NETWORKS: tuple[Model, ...] = ("baseline", "attention", "l1_attention")
LAYERS = ("first", "first, masked", "second")  # whose norms are taken


def trained_weights(
    setup: Setup,
    seeds: tuple[int, ...],
    *,
    n_samples: int,
    n_relevant: int,
    penalty: float,
    steps: int,
    fresh: int,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Train the networks of Table 1 and look at them on fresh inputs; all arrays are ``(seeds, networks, ...)``."""
    members = [Member(model, seed, n_samples, n_relevant, penalty) for seed in seeds for model in NETWORKS]
    training = Training(steps, 64, 5e-3, record_at=(steps,), decay=True)
    history = train_members(members, setup, training, device=device, progress=progress)
    found: dict[str, list[np.ndarray | float]] = {"error": list(history.records["test_loss"][-1])}
    for i, member in enumerate(members):
        network = {name: tensor[i].cpu().double().numpy() for name, tensor in history.parameters.items()}
        inputs = stream(member.seed, "pattern inputs").standard_normal((fresh, setup.n_inputs))
        truth = setup.teacher(member.seed, n_relevant)(inputs)
        for name, value in _look(network, inputs, truth).items():
            found.setdefault(name, []).append(value)
    arrays = {name: np.array(values) for name, values in found.items()}
    return {name: array.reshape(len(seeds), len(NETWORKS), *array.shape[1:]) for name, array in arrays.items()}


def _look(network: dict[str, np.ndarray], inputs: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray | float]:
    """Measure one network."""
    hidden, decoder = network["hidden"], network["decoder"]
    folded = hidden * network["mask"]
    before = inputs @ folded.T
    on = before > 0
    features = before * on
    bias = features @ decoder.T - truth
    return {
        "patterns": float(len(np.unique(np.packbits(on, axis=1), axis=0))),
        "norm": np.array([np.linalg.norm(layer) for layer in (hidden, folded, decoder)]),
        "correlation": largest_correlation(bias, inputs, on),
        "least_variance": float(np.linalg.eigvalsh(np.cov(features.T))[0]),
    }


def largest_correlation(bias: np.ndarray, inputs: np.ndarray, on: np.ndarray) -> float:
    r"""Return the largest $|\mathrm{cor}(u,h_t(x_{\cdot k}))|$ over outputs, units $t$ and inputs $k$.

    Mask and second layer only scale $h_t(x_{\cdot k})=x_ka_kw^{(2)}_t\phi'_t$, so neither enters a correlation.
    """
    centred = (bias - bias.mean(0)) / bias.std(0)
    largest = 0.0
    for feature in inputs.T:
        slopes = feature[:, None] * on
        spread = slopes.std(0)
        products = centred.T @ (slopes - slopes.mean(0)) / len(inputs)
        largest = max(largest, float(np.abs(products[:, spread > 0] / spread[spread > 0]).max(initial=0.0)))
    return largest
