"""The part of ``loss_landscape`` on Theorem 5: few samples, many hidden units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attnbook.core.ensemble import Parameters
from attnbook.core.results import Measurement
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import threads
from attnbook.global_attention.interpolation import Fit, fit_all_weights
from attnbook.global_attention.small_samples import relative_residual, softplus_features
from attnbook.global_attention.two_layer import Hessian, Softplus

__all__ = ["ARRAYS", "FITTED", "STATIONARY", "STUCK", "Task", "claims", "fits", "relu_failures", "residuals"]

ARRAYS = ("residuals", "ranks", "input_ranks", "fit_losses", "fit_gradients", "relu_failure_rate")
"""What the claims are judged by."""

STATIONARY, STUCK = 1e-6, 1e-4
"""Gradient norm up to which a run counts as at rest, and relative training loss from which it counts as stuck."""

FITTED = 1e-12
"""Relative training loss up to which a run counts as having fitted the labels."""


@dataclass(frozen=True)
class Task:
    """Random labels at random inputs.

    Attributes:
        n_samples: Samples.
        n_inputs: Inputs.
        sharpness: Sharpness of softplus.
    """

    n_samples: int
    n_inputs: int
    sharpness: float


def residuals(task: Task, widths: tuple[int, ...], seeds: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Fit only the second layer to random labels, for random masks and first layers.

    Args:
        task: Samples and activation.
        widths: Hidden units.
        seeds: Seeds.

    Returns:
        ``residuals``, ``ranks`` and ``input_ranks`` (of features and pre-activations), ``(seeds, widths)``.
    """
    shape = (len(seeds), len(widths))
    found = {name: np.empty(shape) for name in ("residuals", "ranks", "input_ranks")}
    for i, j in np.ndindex(shape):
        rng = stream(seeds[i], "random features", widths[j])
        inputs, labels = rng.standard_normal((task.n_samples, task.n_inputs)), rng.standard_normal(task.n_samples)
        mask, hidden = rng.random(task.n_inputs), rng.standard_normal((widths[j], task.n_inputs))
        features = softplus_features(inputs, mask, hidden, task.sharpness)
        found["residuals"][i, j] = relative_residual(features, labels)
        found["ranks"][i, j] = np.linalg.matrix_rank(features)
        found["input_ranks"][i, j] = np.linalg.matrix_rank((inputs * mask) @ hidden.T)
    return found


def fits(
    task: Task,
    widths: tuple[int, ...],
    seeds: tuple[int, ...],
    *,
    steps: int,
    device: torch.device,
) -> dict[str, np.ndarray]:
    """Train all weights to a stationary point on random labels, with and without a mask.

    Args:
        task: Samples and activation.
        widths: Hidden units.
        seeds: Seeds.
        steps: Steps of Levenberg-Marquardt.
        device: Where to compute; float64, on the CPU where the device has none.

    Returns:
        ``fit_losses`` (in units of half the mean squared label, the loss of the output zero), ``fit_gradients``,
        ``fit_lowest`` (lowest eigenvalue of the Hessian over the largest, 0 for runs that fit) and ``fit_growth``
        (norm of all weights over that at the start), ``(seeds, models, widths)``, models baseline and attention.
    """
    where = torch.device("cpu") if device.type == "mps" else device
    names = ("fit_losses", "fit_gradients", "fit_lowest", "fit_growth")
    found = {name: np.zeros((len(seeds), 2, len(widths))) for name in names}
    drawn = [stream(seed, "small samples") for seed in seeds]
    inputs = np.stack([rng.standard_normal((task.n_samples, task.n_inputs)) for rng in drawn])
    labels = np.stack([rng.standard_normal(task.n_samples) for rng in drawn])
    for k, width in enumerate(widths):
        starts = [stream(seed, "initial weights", width) for seed in seeds]
        arrays = {
            "mask": np.ones((len(seeds), task.n_inputs)),
            "hidden": np.stack([rng.standard_normal((width, task.n_inputs)) for rng in starts]) / task.n_inputs**0.5,
            "decoder": np.stack([rng.standard_normal((1, width)) / np.sqrt(width) for rng in starts]),
        }
        # Baselines first, then the same networks with a trained mask.
        twice = {name: _twice(array, where) for name, array in arrays.items()}
        data = _twice(inputs, where), _twice(labels, where)
        with threads(1):
            fit = fit_all_weights(
                twice,
                *data,
                activation=Softplus(task.sharpness),
                trained_mask=torch.arange(2 * len(seeds), device=where) >= len(seeds),
                steps=steps,
            )
            found["fit_losses"][:, :, k] = _by_seed(fit.losses) / (np.square(labels).mean(1)[:, None] / 2)
            found["fit_gradients"][:, :, k] = _by_seed(fit.gradient_norms)
            found["fit_growth"][:, :, k] = _by_seed(_norms(fit.parameters) / _norms(twice))
            for seed, model in np.argwhere(found["fit_losses"][:, :, k] > FITTED):
                found["fit_lowest"][seed, model, k] = _lowest(fit, model * len(seeds) + seed, data, task, model == 1)
    return found


def relu_failures(draws: int, *, n_samples: int, width: int, n_inputs: int) -> float:
    """Return how often bias-free ReLU features of random samples and weights miss full rank."""
    rng = stream(0, "ReLU features")
    inputs = rng.standard_normal((draws, n_samples, n_inputs))
    hidden = rng.standard_normal((draws, width, n_inputs))
    features = np.maximum(inputs @ hidden.transpose(0, 2, 1), 0.0)
    return float((np.linalg.matrix_rank(features) < min(n_samples, width)).mean())


def claims(
    task: Task, arrays: dict[str, np.ndarray], residual_widths: tuple[int, ...], fit_widths: tuple[int, ...]
) -> dict[str, Measurement]:
    """Return the measurements of what the functions of this module returned, by claim id.

    Args:
        task: Samples and activation.
        arrays: :data:`ARRAYS`.
        residual_widths: Widths of ``residuals``.
        fit_widths: Widths of ``fits``.

    Returns:
        Measurements by claim id.
    """
    n_samples, widths = task.n_samples, np.array(residual_widths)
    found, seeds = arrays["residuals"], len(arrays["residuals"])
    enough, fewer = widths >= n_samples, widths < n_samples
    square = int(np.flatnonzero(widths == n_samples)[0])
    deviation = np.abs(found[:, fewer].mean(axis=0) - (1 - widths[fewer] / n_samples))
    losses, gradients = arrays["fit_losses"], arrays["fit_gradients"]
    trained = np.array(fit_widths)
    zero_from = (trained >= n_samples // 4) & (trained < n_samples)
    # Networks with clearly more weights than samples, the mask not counted.
    between = ((task.n_inputs + 1) * trained >= 2 * n_samples) & (trained < n_samples)
    stuck = (gradients <= STATIONARY) & (losses >= STUCK)
    mismatches = (arrays["ranks"] != np.minimum(widths, n_samples)).sum()
    return {
        "GA-T5-rank": Measurement({"largest_residual": float(found[:, enough].max())}, n_seeds=seeds),
        "GA-T5-cliff": Measurement({"largest_deviation": float(deviation.max())}, n_seeds=seeds),
        "GA-T5-generic": Measurement({"rank_mismatches": float(mismatches)}, n_seeds=seeds),
        "GA-T5-argument": Measurement(
            {
                "preactivation_rank": float(arrays["input_ranks"][:, square].max()),
                "feature_rank": float(arrays["ranks"][:, square].min()),
            },
            n_seeds=seeds,
        ),
        "GA-T5-relu": Measurement({"failure_rate": float(arrays["relu_failure_rate"][0])}),
        "GA-T5-antipodal": _antipodal(task),
        "GA-T5-degenerate": _degenerate(task, n_samples + 10),
        "GA-T5-trained": Measurement({"largest_loss": float(losses[:, :, zero_from].max())}, n_seeds=len(losses)),
        "GA-T5-stuck": Measurement(
            {
                "stuck_share": float(stuck[:, :, between].mean()),
                "stuck_share_enough_units": float(stuck[:, :, trained >= n_samples].mean()),
            },
            n_seeds=len(losses),
        ),
    }


def _by_seed(values: torch.Tensor) -> np.ndarray:
    """Values of members, baselines first, as ``(seeds, models)``."""
    return values.cpu().numpy().reshape(2, -1).T


def _norms(parameters: Parameters) -> torch.Tensor:
    return torch.cat([tensor.flatten(1) for tensor in parameters.values()], dim=1).norm(dim=1)


def _lowest(fit: Fit, member: int, data: tuple[torch.Tensor, torch.Tensor], task: Task, masked: bool) -> float:
    """Lowest eigenvalue of the Hessian over the largest, at the end of one run, in the weights that were trained."""
    mask, hidden, decoder = (fit.parameters[name][member] for name in ("mask", "hidden", "decoder"))
    inputs, labels = data
    activation = Softplus(task.sharpness)
    hessian = Hessian(
        mask if masked else None, hidden, decoder, inputs[member], labels[member][None],
        activation=activation, loss="squared",
    )  # fmt: skip
    values = torch.linalg.eigvalsh(hessian.dense())
    return float(values[0] / values[-1])


def _twice(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return to_tensor(np.concatenate([array, array]), device=device, dtype=torch.float64)


def _antipodal(task: Task) -> Measurement:
    """Rank of the features of one pair more than inputs of samples and their negatives, with a unit per sample."""
    rng = stream(0, "antipodal")
    half = rng.standard_normal((task.n_inputs + 1, task.n_inputs))
    inputs, n_samples = np.concatenate([half, -half]), 2 * len(half)
    mask, hidden = rng.random(task.n_inputs), rng.standard_normal((n_samples, task.n_inputs))
    rank = np.linalg.matrix_rank(softplus_features(inputs, mask, hidden, task.sharpness))
    return Measurement({"feature_rank": float(rank), "samples": float(n_samples)})


def _degenerate(task: Task, width: int) -> Measurement:
    """Gradient and loss at zero weights, with centred labels and more hidden units than samples."""
    rng = stream(0, "degenerate")
    inputs, labels = rng.standard_normal((task.n_samples, task.n_inputs)), rng.standard_normal(task.n_samples)
    labels = labels - labels.mean()
    point = Hessian(
        torch.ones(task.n_inputs, dtype=torch.float64),
        torch.zeros(width, task.n_inputs, dtype=torch.float64),
        torch.zeros(1, width, dtype=torch.float64),
        torch.as_tensor(inputs),
        torch.as_tensor(labels[None]),
        activation=Softplus(task.sharpness),
        loss="squared",
    )
    return Measurement({"max_gradient": float(point.gradient.abs().max()), "loss": point.loss})
