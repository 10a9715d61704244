"""Figure 3: the 100 largest Hessian eigenvalues of a 576-16-10 network where training ends, with and without a mask.

The paper does not say how the two minima it compares were matched. Here they are matched in two ways: after equal
numbers of steps, and at equal training loss (attention stops when its loss has come down to the baseline's).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import Parameters
from attnbook.core.lanczos import leading_eigenvalues
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.datasets import digits, mnist
from attnbook.global_attention.models.classifiers import Classifier, Schedule, one_hot, train_classifiers
from attnbook.global_attention.models.two_layer import Hessian, Softplus
from attnbook.global_attention.noisy_digits import NoisyDigits, Scene, draw_noisy_digits

__all__ = ["NETWORKS", "SPECTRA", "HessianSpectrum", "Settings", "run"]

NETWORKS = ("baseline", "attention", "l1_attention", "baseline_decay", "attention_decay", "equal_loss")
"""Trained networks; ``equal_loss`` is attention stopped at the baseline's training loss."""

SPECTRA = ("baseline", "attention", "attention_folded", "equal_loss", "equal_loss_folded", "l1_attention")
"""Hessians; ``folded`` is in diag(mask) hidden and decoder. The baseline's mask is fixed: its two are the same."""


# Height and width of a digit.
DIGIT_SIZE = 8


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        images: Where the digits come from, ``digits`` (scikit-learn's) or ``mnist``.
        n_train: Training samples.
        n_test: Test samples.
        side: Side of the images; 24 gives the paper's 576 inputs.
        width: Hidden units.
        sharpness: Sharpness of softplus.
        step_sizes: Step sizes of SGD; the claims are judged at the first.
        momentum: Momentum of SGD.
        batch_size: Samples per step.
        steps: Steps.
        record_every: Steps between looks at the training loss when attention is stopped early.
        penalty: L1 weight on the mask of ``l1_attention``.
        weight_decay: L2 weight of the two ``decay`` networks.
        n_eigenvalues: How many eigenvalues.
        tolerance: Largest residual of an eigenvalue, relative to it.
        seeds: Seeds.
        chunk: Seeds trained together as one program.
    """

    images: Literal["digits", "mnist"] = "digits"
    n_train: int = 1300
    n_test: int = 360
    side: int = 24
    width: int = 16
    sharpness: float = 10.0
    step_sizes: tuple[float, ...] = (0.1,)
    momentum: float = 0.9
    batch_size: int = 64
    steps: int = 600
    record_every: int = 5
    penalty: float = 1e-3
    weight_decay: float = 1e-3
    n_eigenvalues: int = 100
    tolerance: float = 1e-2
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if self.images not in ("digits", "mnist"):
            raise ValueError(f"images: expected digits or mnist, got {self.images!r}")
        if not self.step_sizes:
            raise ValueError("step_sizes: expected at least one")
        if self.n_eigenvalues < 2:
            raise ValueError(f"n_eigenvalues: expected at least 2, got {self.n_eigenvalues}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(n_train=53, n_test=47, side=9, width=3, steps=20, n_eigenvalues=7, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a run on MNIST at three step sizes; the paper does not state its settings."""
        return cls(images="mnist", n_train=4000, n_test=5000, steps=1800, step_sizes=(0.1, 0.05, 0.02), chunk=1)

    def members(self, seeds: tuple[int, ...]) -> list[Classifier]:
        """Return the networks trained for all steps, ordered by seed, step size and network."""
        return [
            Classifier(
                "l1_attention" if "l1" in name else "attention" if "attention" in name else "baseline",
                seed,
                step_size,
                penalty=self.penalty if "l1" in name else 0.0,
                weight_decay=self.weight_decay if "decay" in name else 0.0,
            )
            for seed in seeds
            for step_size in self.step_sizes
            for name in NETWORKS[:-1]
        ]


@dataclass(frozen=True)
class HessianSpectrum(Result):
    """Eigenvalues, losses and accuracies of every network.

    Attributes:
        eigenvalues: The largest eigenvalues, the largest first, ``(seeds, step sizes, spectra, rank)``.
        residuals: Largest residual of an eigenvalue, relative to it, ``(seeds, step sizes, spectra)``.
        lowest: Upper bound on the smallest eigenvalue, ``(seeds, step sizes, spectra)``.
        gradient_norm: Norm of the gradient there, ``(seeds, step sizes, spectra)``.
        train_loss: Training loss, ``(seeds, step sizes, networks)``.
        accuracy: Share of test images recognised, ``(seeds, step sizes, networks)``.
        stopped_at: Step at which attention reached the baseline's final training loss, ``(seeds, step sizes)``.
    """

    experiment: ClassVar[str] = "global_attention.hessian_spectrum"
    settings_type: ClassVar[type] = Settings

    eigenvalues: Float[np.ndarray, "seeds step_sizes spectra rank"]
    residuals: Float[np.ndarray, "seeds step_sizes spectra"]
    lowest: Float[np.ndarray, "seeds step_sizes spectra"]
    gradient_norm: Float[np.ndarray, "seeds step_sizes spectra"]
    train_loss: Float[np.ndarray, "seeds step_sizes networks"]
    accuracy: Float[np.ndarray, "seeds step_sizes networks"]
    stopped_at: Float[np.ndarray, "seeds step_sizes"]

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

    def measurements(self) -> dict[str, Measurement]:
        """Return the ratios at the first step size, by claim id."""
        return {
            "GA-F3-bulk": over_seeds(rank_50_ratio=self.ratio("attention", "middle")),
            "GA-F3-top": over_seeds(top_ratio=self.ratio("attention", "top")),
            "GA-F3-equal-loss": over_seeds(
                top_ratio=self.ratio("equal_loss", "top"),
                folded_sum_ratio=self.ratio("equal_loss_folded", "sum"),
                train_loss_ratio=self.loss_ratio("equal_loss"),
            ),
            "GA-F3-equal-loss-accuracy": over_seeds(
                accuracy_gain=self.gain("equal_loss"), train_loss_ratio=self.loss_ratio("equal_loss")
            ),
            "GA-F3-l1": over_seeds(
                sum_l1_over_baseline=self.ratio("l1_attention", "sum"),
                accuracy_gain=self.gain("l1_attention"),
                train_loss_ratio=self.loss_ratio("l1_attention"),
            ),
            "GA-G1-l2-accuracy": over_seeds(
                gain_baseline=self.gain("baseline_decay"),
                gain_attention=self.gain("attention_decay", over="attention"),
            ),
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
    whole = train_classifiers(
        settings.members(seeds), data, _schedule(settings, settings.steps), device=device, progress=progress
    )
    final = {name: whole.records[name][-1].reshape(*grid, -1) for name in ("train_loss", "test_accuracy")}
    stopped = train_classifiers(
        [Classifier("attention", seed, step_size) for seed in seeds for step_size in settings.step_sizes],
        data,
        _schedule(settings, settings.record_every),
        device=device,
        stop_below=final["train_loss"][:, :, 0].ravel(),
    )
    reached = (stopped.steps[:, None] == stopped.stopped_at).argmax(axis=0)
    at_stop = {name: stopped.records[name][reached, np.arange(len(reached))].reshape(*grid, 1) for name in final}
    both = {name: np.concatenate([final[name], at_stop[name]], axis=2) for name in final}
    networks = {
        name: {key: tensor.unflatten(0, (*grid, -1))[:, :, i] for key, tensor in whole.parameters.items()}
        for i, name in enumerate(NETWORKS[:-1])
    }
    networks["equal_loss"] = {key: tensor.unflatten(0, grid) for key, tensor in stopped.parameters.items()}
    spectra = _spectra(settings, [data[seed] for seed in seeds], networks, device)
    return {
        "train_loss": both["train_loss"],
        "accuracy": both["test_accuracy"],
        "stopped_at": stopped.stopped_at.reshape(grid),
        **spectra,
    }


def _schedule(settings: Settings, every: int) -> Schedule:
    record_at = tuple(sorted({*range(0, settings.steps, every), settings.steps}))
    s = settings
    return Schedule(s.width, s.steps, s.batch_size, s.momentum, s.sharpness, record_at)


def _spectra(
    settings: Settings, data: list[NoisyDigits], networks: dict[str, Parameters], device: torch.device
) -> dict[str, np.ndarray]:
    """All spectra of all seeds and step sizes."""
    shape = (len(data), len(settings.step_sizes), len(SPECTRA))
    found: dict[str, np.ndarray] = {name: np.empty(shape) for name in ("residuals", "lowest", "gradient_norm")}
    found["eigenvalues"] = np.empty((*shape, settings.n_eigenvalues))
    for at in np.ndindex(shape):
        seed, step_size, number = at
        name = SPECTRA[number]
        network = {key: tensor[seed, step_size] for key, tensor in networks[name.removesuffix("_folded")].items()}
        folded = name.endswith("_folded") or name == "baseline"
        inputs = to_tensor(data[seed].train, device=device)
        labels = one_hot(data[seed].train_labels, device=device).T.contiguous()
        hessian = Hessian(
            None if folded else network["mask"],
            network["hidden"] * network["mask"] if folded else network["hidden"],
            network["decoder"],
            inputs,
            labels,
            activation=Softplus(settings.sharpness),
            loss="cross_entropy",
        )
        with threads(1):
            leading = leading_eigenvalues(
                hessian,
                hessian.size,
                settings.n_eigenvalues,
                tolerance=settings.tolerance,
                device=device,
                dtype=inputs.dtype,
            )
        found["eigenvalues"][at] = leading.values
        found["residuals"][at] = (leading.residuals / leading.values).max()
        found["lowest"][at] = leading.lowest
        found["gradient_norm"][at] = float(hessian.gradient.norm())
    return found
