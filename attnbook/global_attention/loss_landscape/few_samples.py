"""Theorem 5: few samples with random labels, many hidden units."""

from __future__ import annotations

import numpy as np
import torch

from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import threads
from attnbook.global_attention.interpolation import fit_all_weights
from attnbook.global_attention.two_layer import Hessian, Softplus

__all__ = ["FITTED", "STATIONARY", "STUCK", "features", "fits", "random_features"]

STATIONARY = 1e-6  # norm of the gradient up to which a run counts as at rest
STUCK, FITTED = 1e-4, 1e-12  # relative losses from which it counts as stuck, and up to which as having fitted


def features(inputs: np.ndarray, mask: np.ndarray, hidden: np.ndarray, activation: Softplus) -> np.ndarray:
    """Return what the hidden units make of each sample, ``(samples, width)``."""
    return activation.value(torch.as_tensor((inputs * mask) @ hidden.T)).numpy()


def random_features(
    n_samples: int, n_inputs: int, activation: Softplus, widths: tuple[int, ...], seeds: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Fit only the second layer to random labels: share of the labels missed, and ranks, ``(seeds, widths)``."""
    found = {name: np.empty((len(seeds), len(widths))) for name in ("residual", "feature_rank", "input_rank")}
    for at in np.ndindex(len(seeds), len(widths)):
        rng, width = stream(seeds[at[0]], "random features", widths[at[1]]), widths[at[1]]
        inputs, labels = rng.standard_normal((n_samples, n_inputs)), rng.standard_normal(n_samples)
        mask, hidden = rng.random(n_inputs), rng.standard_normal((width, n_inputs))
        made = features(inputs, mask, hidden, activation)
        best = np.linalg.lstsq(made, labels, rcond=None)[0]
        found["residual"][at] = np.square(made @ best - labels).sum() / (labels @ labels)
        found["feature_rank"][at] = np.linalg.matrix_rank(made)
        found["input_rank"][at] = np.linalg.matrix_rank((inputs * mask) @ hidden.T)
    return found


def fits(
    n_samples: int,
    n_inputs: int,
    activation: Softplus,
    widths: tuple[int, ...],
    seeds: tuple[int, ...],
    *,
    steps: int,
    device: torch.device,
) -> dict[str, np.ndarray]:
    """Train all weights on random labels, without and with a mask; arrays ``(seeds, models, widths)``."""
    # Losses are in units of that of the output zero; the lowest eigenvalue over the largest is 0 where a run fits.
    where, count = torch.device("cpu") if device.type == "mps" else device, len(seeds)  # mps has no float64
    names = ("fit_loss", "fit_gradient", "fit_rank", "fit_lowest")
    found = {name: np.zeros((count, 2, len(widths))) for name in names}
    drawn = [stream(seed, "small samples") for seed in seeds]
    inputs = np.stack([rng.standard_normal((n_samples, n_inputs)) for rng in drawn])
    labels = np.stack([rng.standard_normal(n_samples) for rng in drawn])

    def twice(array: np.ndarray) -> torch.Tensor:  # baselines first, then the same networks with a trained mask
        return to_tensor(np.concatenate([array, array]), device=where, dtype=torch.float64)

    for k, width in enumerate(widths):
        starts = [stream(seed, "initial weights", width) for seed in seeds]
        start = {
            "mask": twice(np.ones((count, n_inputs))),
            "hidden": twice(np.stack([rng.standard_normal((width, n_inputs)) for rng in starts]) / n_inputs**0.5),
            "decoder": twice(np.stack([rng.standard_normal((1, width)) / np.sqrt(width) for rng in starts])),
        }
        x, y, masked = twice(inputs), twice(labels), torch.arange(2 * count, device=where) >= count
        with threads(1):
            fit = fit_all_weights(start, x, y, activation=activation, trained_mask=masked, steps=steps)
        each = {"fit_loss": fit.losses / (y.square().mean(1) / 2), "fit_gradient": fit.gradient_norms}
        for name, values in each.items():
            found[name][:, :, k] = values.cpu().numpy().reshape(2, -1).T
        for member in range(2 * count):
            at = member % count, member // count, k
            mask, hidden, decoder = (fit.parameters[name][member] for name in start)
            made = activation.value((x[member] * mask) @ hidden.T)
            found["fit_rank"][at] = int(torch.linalg.matrix_rank(made))
            if found["fit_loss"][at] > FITTED:
                point = Hessian(mask if masked[member] else None, hidden, decoder, x[member], y[member][None],
                                activation=activation, loss="squared")  # fmt: skip
                values = torch.linalg.eigvalsh(point.dense())
                found["fit_lowest"][at] = float(values[0] / values[-1])
    return found
