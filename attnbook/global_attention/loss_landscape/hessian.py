r"""Figure 3: the 100 largest Hessian eigenvalues of a 576-16-10 network where training ends, with and without a mask.

The paper does not say how the two minima it compares were matched. Here they are matched in two ways: after equal
numbers of steps, and at equal training loss (attention stops when its loss has come down to the baseline's). They are
$f(x)=w^{(2)}\phi(w^{(1)}(x\odot a))$ with softplus, without biases, by SGD with momentum on the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.lanczos import leading_eigenvalues
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.data import digits, mnist
from attnbook.global_attention.batches import Batches, initial_network, rows_of
from attnbook.global_attention.digit_training import CLASSES, Member, Model, Training
from attnbook.global_attention.noisy_digits import NoisyDigits, Scene, draw_noisy_digits
from attnbook.global_attention.two_layer import Activation, Hessian, Softplus, mean_loss, predict

__all__ = ["DIGIT_SIZE", "OUTLIERS", "HessianSpectrum", "allowed_decay", "over_baseline"]

MODELS: tuple[Model, ...] = ("baseline", "attention")
NETWORKS = (*MODELS, "equal_loss")  # the last one is attention stopped at the baseline's training loss
# Hessians; folded is in diag(mask) hidden and decoder. The baseline has one only, as its mask is fixed.
SPECTRA = ("baseline", "attention", "attention_folded", "equal_loss", "equal_loss_folded")
OUTLIERS = 9  # leading eigenvalues that stand apart from the bulk, one less than there are classes
DIGIT_SIZE = 8  # height and width of a digit
IN_SAMPLE_COST = 0.01  # in-sample accuracy that a weight decay may cost


@dataclass(frozen=True, kw_only=True)
class HessianSpectrum(Experiment):
    """Eigenvalues, losses and accuracies at the ends of training, and by weight decay."""

    id = "global_attention.hessian_spectrum"
    summary = "Figure 3: leading Hessian eigenvalues at equal steps and at equal training loss"
    budget_seconds = 50
    smoke: ClassVar[Mapping[str, Any]] = {
        "n_train": 53, "n_test": 47, "side": 9, "width": 3, "steps": 20, "n_eigenvalues": 7, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip
    full: ClassVar[Mapping[str, Any]] = {
        "images": "mnist", "n_train": 4000, "n_test": 5000, "steps": 1800, "step_sizes": (0.1, 0.05, 0.02), "chunk": 1,
        "weight_decays": (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    }  # fmt: skip

    images: Literal["digits", "mnist"] = "digits"  # scikit-learn's digits, or MNIST shrunk to their size
    n_train: int = 1300  # training samples
    n_test: int = 360  # test samples
    side: int = 24  # of the images; 24 gives the paper's 576 inputs
    width: int = 16  # hidden units
    sharpness: float = 10.0  # of softplus
    step_sizes: tuple[float, ...] = (0.1,)  # of SGD; the claims are judged at the first
    momentum: float = 0.9  # of SGD
    batch_size: int = 64  # samples per step
    steps: int = 600  # of SGD
    record_every: int = 5  # steps between looks at the training loss when attention is stopped early
    weight_decays: tuple[float, ...] = (0.0, 1e-3, 3e-3, 1e-2)  # of both layers, from 0 on, at the first step size
    n_eigenvalues: int = 100  # leading ones
    tolerance: float = 1e-2  # largest residual of an eigenvalue, relative to it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_sizes:
            raise ValueError("step_sizes: expected at least one")
        if self.n_eigenvalues < 2:
            raise ValueError(f"n_eigenvalues: expected at least 2, got {self.n_eigenvalues}")
        decays = self.weight_decays
        if len(decays) < 2 or decays[0] != 0 or list(decays) != sorted(set(decays)):
            raise ValueError(f"weight_decays: expected 0 and then increasing numbers, got {self.weight_decays}")

    @property
    def scene(self) -> Scene:
        """What an image looks like."""
        return Scene(self.side, DIGIT_SIZE)

    def training(self, *record_at: int) -> Training:
        """Return how networks are trained, and when they are looked at."""
        sizes = self.width, self.n_train, self.n_test
        return Training(self.steps, self.batch_size, self.momentum, *sizes, record_at)

    def coordinates(self) -> dict[str, Any]:
        """Name step sizes, networks, Hessians and ranks."""
        return {
            "step_size": list(self.step_sizes),
            "network": list(NETWORKS),
            "spectrum": list(SPECTRA),
            "rank": np.arange(1, self.n_eigenvalues + 1),
            "model": list(MODELS),
            "decay": list(self.weight_decays),
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks, attention once more until it is as low as the baseline, and take the spectra."""
        images, scene = digits() if self.images == "digits" else mnist(stand_in=False), self.scene
        sizes, grid = {"n_train": self.n_train, "n_test": self.n_test}, (len(seeds), len(self.step_sizes))
        data = {seed: draw_noisy_digits(images, scene, seed=seed, **sizes) for seed in seeds}
        members = [Member(m, s, scene, eta) for s in seeds for eta in self.step_sizes for m in MODELS]
        options: dict[str, Any] = {"sharpness": self.sharpness, "device": device}
        whole = train_classifiers(members, data, self.training(self.steps), progress=progress, **options)
        final = {name: whole.records[name][-1].reshape(*grid, -1) for name in ("train_loss", "test_accuracy")}
        stopped = train_classifiers(
            [Member("attention", seed, scene, step_size) for seed in seeds for step_size in self.step_sizes], data,
            self.training(*range(0, self.steps, self.record_every), self.steps),
            stop_below=final["train_loss"][:, :, 0].ravel(), **options,
        )  # fmt: skip
        reached = (stopped.steps[:, None] == stopped.stopped_at).argmax(axis=0), np.arange(grid[0] * grid[1])
        for name, at_end in final.items():
            final[name] = np.concatenate([at_end, stopped.records[name][reached].reshape(*grid, 1)], axis=2)
        ends = [
            {name: tensor.unflatten(0, (*grid, -1)) for name, tensor in h.parameters.items()} for h in (whole, stopped)
        ]
        shape, axes = (*grid, len(SPECTRA)), ("seed", "step_size")
        values, lowest = np.empty((*shape, self.n_eigenvalues)), np.empty(shape)
        for at in np.ndindex(shape):
            spectrum = SPECTRA[at[2]]
            of, network = ends["equal" in spectrum], int("attention" in spectrum)
            weights = {name: tensor[(*at[:2], network)] for name, tensor in of.items()}
            hessian = self._hessian(weights, data[seeds[at[0]]], folded="folded" in spectrum or spectrum == "baseline")
            with threads(1):
                leading = leading_eigenvalues(
                    hessian, hessian.size, self.n_eigenvalues, block=16, tolerance=self.tolerance,
                    device=device, dtype=hessian.gradient.dtype,
                )  # fmt: skip
            values[at], lowest[at] = leading.values, leading.lowest
        return {
            "train_loss": ((*axes, "network"), final["train_loss"]),
            "accuracy": ((*axes, "network"), final["test_accuracy"]),
            "stopped_at": (axes, stopped.stopped_at.reshape(grid)),
            "eigenvalues": ((*axes, "spectrum", "rank"), values),
            "lowest": ((*axes, "spectrum"), lowest),  # a bound from above on the smallest eigenvalue
            **self._decays(seeds, data, whole, device),
        }

    def _decays(
        self, seeds: tuple[int, ...], data: dict[int, NoisyDigits], whole: History, device: torch.device
    ) -> Arrays:
        """Losses and accuracies by weight decay; without one, those of the networks trained already."""
        members = [
            Member(model, seed, self.scene, self.step_sizes[0], decay=decay)
            for seed in seeds for model in MODELS for decay in self.weight_decays[1:]
        ]  # fmt: skip
        trained = train_classifiers(members, data, self.training(self.steps), sharpness=self.sharpness, device=device)
        found: Arrays = {}
        for record in ("train_loss", "train_accuracy", "test_accuracy"):
            without = whole.records[record][-1].reshape(len(seeds), len(self.step_sizes), -1)[:, 0, :, None]
            with_decay = trained.records[record][-1].reshape(len(seeds), 2, -1)
            found[f"decay_{record}"] = (("seed", "model", "decay"), np.concatenate([without, with_decay], axis=2))
        return found

    def _hessian(self, weights: Parameters, data: NoisyDigits, *, folded: bool) -> Hessian:
        mask, hidden, decoder = (weights[name] for name in ("mask", "hidden", "decoder"))
        inputs, labels = to_tensor(data.train, device=mask.device), one_hot(data.train_labels, device=mask.device)
        return Hessian(
            None if folded else mask, hidden * mask if folded else hidden, decoder, inputs, labels.T.contiguous(),
            activation=Softplus(self.sharpness), loss="cross_entropy",
        )  # fmt: skip

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Judge Figure 3 at the first step size, and the weight decay that in-sample accuracy allows."""
        chosen = data.decay_test_accuracy.isel(decay=allowed_decay(data))
        decayed = chosen - data.decay_test_accuracy.isel(decay=0)
        first = data.isel(step_size=0)
        ratio, loss = over_baseline(first.eigenvalues, "spectrum"), over_baseline(first.train_loss, "network")
        top, gain = ratio.sel(rank=1), first.accuracy - first.accuracy.sel(network="baseline")
        return {
            "GA-F3-bulk": {"rank_50_ratio": ratio.sel(spectrum="attention", rank=self.n_eigenvalues // 2)},
            "GA-F3-top": {
                "top_ratio": top.sel(spectrum="attention"),
                "folded_top_ratio": top.sel(spectrum="attention_folded"),
            },
            "GA-F3-equal-loss": {
                "top_ratio": top.sel(spectrum="equal_loss"),
                "folded_top_ratio": top.sel(spectrum="equal_loss_folded"),
                "accuracy_gain": gain.sel(network="equal_loss"),
                "train_loss_ratio": loss.sel(network="equal_loss"),
            },
            "GA-G1-l2-accuracy": {f"gain_{model}": decayed.sel(model=model) for model in MODELS},
        }


def over_baseline(values: xr.DataArray, dimension: str) -> xr.DataArray:
    """Return values over the baseline's, seed by seed."""
    return values / values.sel({dimension: "baseline"}, drop=True)


def allowed_decay(data: xr.Dataset) -> xr.DataArray:
    """Return the position of the last weight decay before one costs more than a point of in-sample accuracy."""
    accuracy = data.decay_train_accuracy
    good = (accuracy >= accuracy.isel(decay=0) - IN_SAMPLE_COST).astype(int)
    return good.cumprod("decay").sum("decay") - 1


def train_classifiers(
    members: Sequence[Member],
    data: Mapping[int, NoisyDigits],
    training: Training,
    *,
    sharpness: float,
    device: torch.device,
    stop_below: np.ndarray | None = None,
    progress: Progress | None = None,
) -> History:
    """Train members, ordered by seed, as one program; each stops at a record whose loss is below ``stop_below``."""
    seeds = list(dict.fromkeys(m.seed for m in members))
    if not members or [m.seed for m in members] != list(np.repeat(seeds, len(members) // len(seeds))):
        raise ValueError("members: expected networks ordered by seed, equally many for each")
    if stop_below is not None and np.shape(stop_below) != (len(members),):
        raise ValueError(f"stop_below: expected one loss per member, got shape {np.shape(stop_below)}")
    limit = to_tensor(-np.ones(len(members)) if stop_below is None else stop_below, device=device)
    samples = _Samples({seed: data[seed] for seed in seeds}, training.batch_size, Softplus(sharpness), device)
    start = initial_network([m.seed for m in members], samples.train.shape[2], training.width, CLASSES)

    with threads(1):
        return ensemble.train(
            _gradient_of(members, samples.activation, device),
            {name: to_tensor(start[name], device=device) for name in ("mask", "hidden", "decoder")},
            samples.batch,
            optimizer=update_rules.SGD([m.step_size for m in members], momentum=training.momentum),
            steps=training.steps,
            record=samples.statistics,
            record_at=training.record_at,
            stop=lambda statistics: statistics["train_loss"] <= limit,
            names=[str(m) for m in members],
            progress=progress,
        )


def one_hot(labels: Int[np.ndarray, " samples"], *, device: torch.device) -> Float[Tensor, "samples classes"]:
    """Return digits as rows with a single one."""
    return to_tensor(np.eye(CLASSES)[labels], device=device)


def _gradient_of(members: Sequence[Member], activation: Activation, device: torch.device) -> ensemble.Gradient:
    """The loss with what each member adds to it: a decay of both layers; the mask of the baseline stays at ones."""
    trained = torch.tensor([m.model == "attention" for m in members], device=device)[:, None]
    decay = to_tensor([m.decay / 2 for m in members], device=device)

    def losses(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        masked = parameters | {"mask": torch.where(trained, parameters["mask"], 1.0)}
        wanted = labels.repeat_interleave(len(members) // len(labels), 0)
        squares = parameters["hidden"].square().sum((1, 2)) + parameters["decoder"].square().sum((1, 2))
        return mean_loss(predict(masked, inputs, activation), wanted, "cross_entropy") + decay * squares

    return ensemble.autograd(losses)


class _Samples:
    """Samples, labels and batches of all seeds; the members of a seed share them."""

    def __init__(
        self, data: Mapping[int, NoisyDigits], batch_size: int, activation: Softplus, device: torch.device
    ) -> None:
        self.activation, drawn = activation, data.values()
        self.train, self.test = (
            to_tensor(np.stack([getattr(d, part) for d in drawn]), device=device) for part in ("train", "test")
        )
        self.train_labels = torch.stack([one_hot(d.train_labels, device=device) for d in drawn])
        self.test_labels = torch.as_tensor(np.stack([d.test_labels for d in drawn]), device=device)
        n_seeds, n_train = self.train.shape[:2]
        purposes, starts = [(seed,) for seed in data], range(0, n_seeds * n_train, n_train)
        self.rows = Batches(purposes, [n_train] * n_seeds, starts, batch_size, device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.rows(step)
        return rows_of(self.train.flatten(0, 1), rows), rows_of(self.train_labels.flatten(0, 1), rows).mT

    def statistics(self, parameters: Parameters) -> dict[str, Tensor]:
        each = len(parameters["mask"]) // len(self.train)
        outputs = predict(parameters, self.train, self.activation)
        wanted = self.train_labels.mT.repeat_interleave(each, 0)
        guesses = predict(parameters, self.test, self.activation).argmax(1)
        truth = self.test_labels.repeat_interleave(each, 0)
        return {
            "train_loss": mean_loss(outputs, wanted, "cross_entropy"),
            "train_accuracy": (outputs.argmax(1) == wanted.argmax(1)).float().mean(1),
            "test_accuracy": (guesses == truth).float().mean(1),
        }
