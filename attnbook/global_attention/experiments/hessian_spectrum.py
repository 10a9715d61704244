"""Figure 3: the 100 largest Hessian eigenvalues of a 576-16-10 network where training ends, with and without a mask.

The paper does not say how the two minima it compares were matched. Here they are matched in two ways: after equal
numbers of steps, and at equal training loss (attention stops when its loss has come down to the baseline's). The
largest eigenvalues are also followed along both runs, as the loss falls. A second training sweeps the weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

from attnbook.core import runtime
from attnbook.core.ensemble import History, Parameters
from attnbook.core.lanczos import Leading, leading_eigenvalues
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.datasets import digits, mnist
from attnbook.global_attention.classifiers import Classifier, Schedule, one_hot, train_classifiers
from attnbook.global_attention.experiments.hessian_settings import (
    DIGIT_SIZE,
    NETWORKS,
    OUTLIERS,
    PATHS,
    SPECTRA,
    Settings,
)
from attnbook.global_attention.noisy_digits import NoisyDigits, Scene, draw_noisy_digits
from attnbook.global_attention.two_layer import Hessian, Softplus

__all__ = ["NETWORKS", "OUTLIERS", "PATHS", "SPECTRA", "HessianSpectrum", "Settings", "run"]

# In-sample accuracy that a weight decay may cost: beyond it, in-sample prediction is not good any more.
IN_SAMPLE_COST = 0.01


@dataclass(frozen=True)
class HessianSpectrum(Result):
    """Eigenvalues, losses and accuracies of every network.

    Attributes:
        eigenvalues: The largest eigenvalues, the largest first, ``(seeds, step sizes, spectra, rank)``.
        residuals: Largest residual of an eigenvalue, relative to it, ``(seeds, step sizes, spectra)``.
        products: Products with the Hessian that they took, ``(seeds, step sizes, spectra)``.
        lowest: Upper bound on the smallest eigenvalue, ``(seeds, step sizes, spectra)``.
        gradient_norm: Norm of the gradient there, ``(seeds, step sizes, spectra)``.
        train_loss: Training loss, ``(seeds, step sizes, networks)``.
        accuracy: Share of test images recognised, ``(seeds, step sizes, networks)``.
        stopped_at: Step at which attention reached the baseline's final training loss, ``(seeds, step sizes)``.
        path_loss: Training loss along the runs of :data:`PATHS`, ``(seeds, step sizes, paths, looks)``; the last look
            is the end.
        path_top: Largest eigenvalue there.
        path_sum: Sum of the :data:`OUTLIERS` largest eigenvalues there.
        decay_loss: Training loss, penalty not counted, of baseline and attention by weight decay, at the first step
            size, ``(seeds, models, weight decays)``.
        decay_train_accuracy: Share of training images recognised there.
        decay_accuracy: Share of test images recognised there.
    """

    experiment: ClassVar[str] = "global_attention.hessian_spectrum"
    settings_type: ClassVar[type] = Settings

    eigenvalues: Float[np.ndarray, "seeds step_sizes spectra rank"]
    residuals: Float[np.ndarray, "seeds step_sizes spectra"]
    products: Float[np.ndarray, "seeds step_sizes spectra"]
    lowest: Float[np.ndarray, "seeds step_sizes spectra"]
    gradient_norm: Float[np.ndarray, "seeds step_sizes spectra"]
    train_loss: Float[np.ndarray, "seeds step_sizes networks"]
    accuracy: Float[np.ndarray, "seeds step_sizes networks"]
    stopped_at: Float[np.ndarray, "seeds step_sizes"]
    path_loss: Float[np.ndarray, "seeds step_sizes paths looks"]
    path_top: Float[np.ndarray, "seeds step_sizes paths looks"]
    path_sum: Float[np.ndarray, "seeds step_sizes paths looks"]
    decay_loss: Float[np.ndarray, "seeds models weight_decays"]
    decay_train_accuracy: Float[np.ndarray, "seeds models weight_decays"]
    decay_accuracy: Float[np.ndarray, "seeds models weight_decays"]

    def spectrum(self, name: str, step_size: int = 0) -> Float[np.ndarray, "seeds rank"]:
        """Return the eigenvalues of one of :data:`SPECTRA`, by default at the first step size."""
        return self.eigenvalues[:, step_size, SPECTRA.index(name)]

    def ratio(self, name: str, measure: str, step_size: int = 0) -> Float[np.ndarray, " seeds"]:
        """Return a measure of one spectrum over that of the baseline, seed by seed.

        Args:
            name: One of :data:`SPECTRA`.
            measure: ``top``, ``middle`` (the eigenvalue of rank 50 of 100) or ``sum``.
            step_size: Number of the step size; default the first.

        Returns:
            One ratio per seed.
        """
        middle = self.settings.n_eigenvalues // 2 - 1
        reduce = {"top": lambda e: e[:, 0], "middle": lambda e: e[:, middle], "sum": lambda e: e.sum(axis=1)}[measure]
        return reduce(self.spectrum(name, step_size)) / reduce(self.spectrum("baseline", step_size))

    def gain(self, name: str, over: str = "baseline", step_size: int = 0) -> Float[np.ndarray, " seeds"]:
        """Return the difference of two networks' test accuracies, seed by seed."""
        accuracy = self.accuracy[:, step_size]
        return accuracy[:, NETWORKS.index(name)] - accuracy[:, NETWORKS.index(over)]

    def loss_ratio(self, name: str, step_size: int = 0) -> Float[np.ndarray, " seeds"]:
        """Return a network's training loss over the baseline's, seed by seed."""
        return self.train_loss[:, step_size, NETWORKS.index(name)] / self.train_loss[:, step_size, 0]

    def allowed_decay(self) -> Int[np.ndarray, "seeds models"]:
        """Return, seed by seed, the number of the largest weight decay that in-sample accuracy allows.

        Returns:
            The last decay before one costs more than a point of in-sample accuracy; test images are not looked at.
        """
        good = self.decay_train_accuracy >= self.decay_train_accuracy[:, :, :1] - IN_SAMPLE_COST
        return np.logical_and.accumulate(good, axis=2).sum(axis=2) - 1

    def decay_gain(self) -> Float[np.ndarray, "seeds models"]:
        """Return the gain in test accuracy at :meth:`allowed_decay` over no decay, seed by seed."""
        chosen = np.take_along_axis(self.decay_accuracy, self.allowed_decay()[:, :, None], axis=2)[:, :, 0]
        return chosen - self.decay_accuracy[:, :, 0]

    def at_step_size(self, number: int) -> dict[str, Measurement]:
        """Return what the claims on Figure 3 are judged by, at one of the step sizes, by claim id."""
        loss = self.loss_ratio("equal_loss", number)
        return {
            "GA-F3-bulk": over_seeds(rank_50_ratio=self.ratio("attention", "middle", number)),
            "GA-F3-top": over_seeds(top_ratio=self.ratio("attention", "top", number)),
            "GA-F3-top-folded": over_seeds(folded_top_ratio=self.ratio("attention_folded", "top", number)),
            "GA-F3-equal-loss": over_seeds(
                top_ratio=self.ratio("equal_loss", "top", number),
                folded_sum_ratio=self.ratio("equal_loss_folded", "sum", number),
                train_loss_ratio=loss,
            ),
            "GA-F3-equal-loss-accuracy": over_seeds(
                accuracy_gain=self.gain("equal_loss", step_size=number), train_loss_ratio=loss
            ),
            "GA-F3-l1": over_seeds(
                sum_l1_over_baseline=self.ratio("l1_attention", "sum", number),
                accuracy_gain=self.gain("l1_attention", step_size=number),
                train_loss_ratio=self.loss_ratio("l1_attention", number),
            ),
        }

    def measurements(self) -> dict[str, Measurement]:
        """Return the ratios at the first step size, and the gains by weight decay, by claim id."""
        gain = self.decay_gain()
        return {
            **self.at_step_size(0),
            "GA-G1-l2-accuracy": over_seeds(gain_baseline=gain[:, 0], gain_attention=gain[:, 1]),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> HessianSpectrum:
    """Train all networks, stop attention early once more, and compute the spectra.

    Args:
        settings: Sizes, seeds and steps.
        device: Where to compute; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all) of the longest training.
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or there are too few images.
        DataError: If MNIST is wanted and cannot be had.
        FloatingPointError: If a network diverges.
        RuntimeError: If the eigenvalues do not converge.
    """
    clock, where = Clock(), runtime.device(device)
    images = digits() if settings.images == "digits" else mnist(stand_in=False)
    scene = Scene(settings.side, DIGIT_SIZE)

    def compute(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        data = {
            seed: draw_noisy_digits(images, scene, n_train=settings.n_train, n_test=settings.n_test, seed=seed)
            for seed in seeds
        }
        return _compute(settings, seeds, data, where, inner)

    parts = by_seeds(settings, compute, clock=clock, workdir=workdir, progress=progress)
    return HessianSpectrum(
        settings=settings,
        provenance=clock.provenance(where),
        **concatenate(parts),
    )


def _compute(
    settings: Settings,
    seeds: tuple[int, ...],
    data: dict[int, NoisyDigits],
    device: torch.device,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    grid = (len(seeds), len(settings.step_sizes))
    seen: list[Parameters] = []
    whole = train_classifiers(
        settings.members(seeds),
        data,
        _schedule(settings, [*settings.looks, settings.steps]),
        device=device,
        watch=lambda parameters: seen.append({name: tensor.clone() for name, tensor in parameters.items()}),
        progress=progress,
    )
    final = {name: whole.records[name][-1].reshape(*grid, -1) for name in ("train_loss", "test_accuracy")}
    stopped = train_classifiers(
        [Classifier("attention", seed, step_size) for seed in seeds for step_size in settings.step_sizes],
        data,
        _schedule(settings, [*range(0, settings.steps, settings.record_every), settings.steps]),
        device=device,
        stop_below=final["train_loss"][:, :, 0].ravel(),
    )
    reached = (stopped.steps[:, None] == stopped.stopped_at).argmax(axis=0)
    at_stop = {name: stopped.records[name][reached, np.arange(len(reached))].reshape(*grid, 1) for name in final}
    both = {name: np.concatenate([final[name], at_stop[name]], axis=2) for name in final}
    networks = _by_name(whole.parameters, grid)
    networks["equal_loss"] = {key: tensor.unflatten(0, grid) for key, tensor in stopped.parameters.items()}
    drawn = [data[seed] for seed in seeds]
    spectra = _spectra(settings, drawn, networks, device)
    return {
        "train_loss": both["train_loss"],
        "accuracy": both["test_accuracy"],
        "stopped_at": stopped.stopped_at.reshape(grid),
        **spectra,
        **_paths(settings, drawn, [_by_name(each, grid) for each in seen[:-1]], whole, spectra["eigenvalues"], device),
        **_decays(settings, seeds, data, whole, device),
    }


def _by_name(parameters: Parameters, grid: tuple[int, int]) -> dict[str, Parameters]:
    """The networks trained for all steps, each ``(seeds, step sizes, ...)``."""
    return {
        name: {key: tensor.unflatten(0, (*grid, -1))[:, :, i] for key, tensor in parameters.items()}
        for i, name in enumerate(NETWORKS[:-1])
    }


def _schedule(settings: Settings, record_at: list[int]) -> Schedule:
    s = settings
    return Schedule(s.width, s.steps, s.batch_size, s.momentum, s.sharpness, tuple(record_at))


def _decays(
    settings: Settings, seeds: tuple[int, ...], data: dict[int, NoisyDigits], whole: History, device: torch.device
) -> dict[str, np.ndarray]:
    """Losses and accuracies by weight decay; without one, those of the networks trained already."""
    trained = train_classifiers(settings.decayed(seeds), data, _schedule(settings, [settings.steps]), device=device)
    names = {"decay_loss": "train_loss", "decay_train_accuracy": "train_accuracy", "decay_accuracy": "test_accuracy"}

    def by_decay(record: str) -> np.ndarray:
        without = whole.records[record][-1].reshape(len(seeds), len(settings.step_sizes), -1)[:, 0, :2, None]
        return np.concatenate([without, trained.records[record][-1].reshape(len(seeds), 2, -1)], axis=2)

    return {name: by_decay(record) for name, record in names.items()}


def _paths(
    settings: Settings,
    data: list[NoisyDigits],
    seen: list[dict[str, Parameters]],
    whole: History,
    eigenvalues: np.ndarray,
    device: torch.device,
) -> dict[str, np.ndarray]:
    """Loss and outlying eigenvalues along the training; those of the end are known already."""
    shape = (len(data), len(settings.step_sizes), len(PATHS), len(seen) + 1)
    outliers = min(OUTLIERS, settings.n_eigenvalues)
    found = {name: np.empty(shape) for name in ("path_loss", "path_top", "path_sum")}
    losses = whole.records["train_loss"].reshape(len(seen) + 1, *shape[:2], -1)
    for seed, step_size, path, look in np.ndindex(shape):
        at = seed, step_size, path, look
        found["path_loss"][at] = losses[look, seed, step_size, NETWORKS.index(PATHS[path].removesuffix("_folded"))]
        if look == len(seen):
            values = eigenvalues[seed, step_size, SPECTRA.index(PATHS[path])][:outliers]
        else:
            hessian = _hessian(settings, PATHS[path], seen[look], (seed, step_size), data[seed], device)
            values = _leading(hessian, outliers, 0.05, device, block=8).values
        found["path_top"][at], found["path_sum"][at] = values[0], values.sum()
    return found


def _spectra(
    settings: Settings, data: list[NoisyDigits], networks: dict[str, Parameters], device: torch.device
) -> dict[str, np.ndarray]:
    """All spectra of all seeds and step sizes."""
    shape = (len(data), len(settings.step_sizes), len(SPECTRA))
    found: dict[str, np.ndarray] = {
        name: np.empty(shape) for name in ("residuals", "products", "lowest", "gradient_norm")
    }
    found["eigenvalues"] = np.empty((*shape, settings.n_eigenvalues))
    for at in np.ndindex(shape):
        seed, step_size, number = at
        hessian = _hessian(settings, SPECTRA[number], networks, (seed, step_size), data[seed], device)
        leading = _leading(hessian, settings.n_eigenvalues, settings.tolerance, device)
        found["eigenvalues"][at] = leading.values
        found["residuals"][at] = (leading.residuals / leading.values).max()
        found["products"][at] = leading.products
        found["lowest"][at] = leading.lowest
        found["gradient_norm"][at] = float(hessian.gradient.norm())
    return found


def _hessian(
    settings: Settings,
    name: str,
    networks: dict[str, Parameters],
    at: tuple[int, int],
    data: NoisyDigits,
    device: torch.device,
) -> Hessian:
    """The Hessian that one of :data:`SPECTRA` names, of one seed and step size."""
    network = {key: tensor[at] for key, tensor in networks[name.removesuffix("_folded")].items()}
    folded = name.endswith("_folded") or name == "baseline"
    return Hessian(
        None if folded else network["mask"],
        network["hidden"] * network["mask"] if folded else network["hidden"],
        network["decoder"],
        to_tensor(data.train, device=device),
        one_hot(data.train_labels, device=device).T.contiguous(),
        activation=Softplus(settings.sharpness),
        loss="cross_entropy",
    )


def _leading(hessian: Hessian, count: int, tolerance: float, device: torch.device, block: int = 16) -> Leading:
    kind = hessian.hidden.dtype
    with threads(1):
        return leading_eigenvalues(
            hessian, hessian.size, count, block=block, tolerance=tolerance, device=device, dtype=kind
        )
