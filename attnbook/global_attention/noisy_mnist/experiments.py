"""The experiments of the chapter: does a mask find a small digit in a large image of noise, and does it help?

Of Figures 2, 4, 5 and 6 only captions and the sentences about them are in the text available to us, and of their step
sizes only 0.001. Noise, place of the digit, momentum, numbers of images and steps, and penalties are this book's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.runtime import Progress, share
from attnbook.data import Images, digits, mnist
from attnbook.global_attention.digit_training import CLASSES, MODELS, Member, Model, Training, train_members
from attnbook.global_attention.noisy_digits import Scene

__all__ = ["FIGURES", "PANELS", "PATHS", "NoisyMnist", "PixelPenalties", "SmallestStep"]

# Scene and momentum. Figure 2's images are those of Figure 3, with 576 inputs; its digit of 8 pixels is our choice.
PANELS: dict[str, tuple[Scene, float]] = {
    "figure_2": (Scene(24, 8, "normal"), 0.9),
    "uniform": (Scene(24, 8, "uniform"), 0.9),
    "plain": (Scene(24, 8, "normal"), 0.0),
    "uniform_plain": (Scene(24, 8, "uniform"), 0.0),
    "figure_4": (Scene(48, 15, "normal"), 0.9),
    "figure_5": (Scene(48, 8, "normal"), 0.9),
    "figure_6": (Scene(48, 5, "normal"), 0.9),
}
FIGURES = ("figure_4", "figure_5", "figure_6")
CURVES = ("accuracy", "test_loss", "train_loss")
LEARNS = 0.3  # a setting counts when one of the networks has learned: three times as good as guessing
CEILING = 1e4  # what a network that diverged is given as its loss
GUESSING = float(np.log(CLASSES))  # the loss of guessing

# Model, and which option of a member takes the strength.
PATHS: dict[str, tuple[Model, str]] = {
    "l1_mask": ("l1_attention", "penalty"),
    "l2_baseline": ("baseline", "decay"),
    "group_baseline": ("baseline", "group_lasso"),
}
Runs: TypeAlias = list[tuple[str, list[Member]]]  # panel and networks
SMOKE = {"n_train": 30, "n_test": 20, "width": 3, "batch_size": 5, "steps": 8, "seeds": (0, 1)}


@dataclass(frozen=True, kw_only=True)
class OnDigits(Experiment):
    """What the experiments share: images, and how networks are trained on them."""

    images: Literal["digits", "mnist"] = "digits"  # scikit-learn's, which need no file, or MNIST
    n_train: int = 1400  # training images of each seed
    n_test: int = 360  # test images of each seed
    width: int = 32  # hidden units for images of 24 x 24; 128 in the paper
    width_large: int = 16  # hidden units for images of 48 x 48; 128 in the paper
    batch_size: int = 64  # images per step
    steps: int = 400  # of gradient descent
    chunk: int = 1  # one seed fits into a processor's cache

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2:
            raise ValueError(f"steps: expected at least 2, got {self.steps}")

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which everything is recorded, evenly spaced on a log axis over the last factor of 50."""
        spaced = np.round(np.geomspace(max(1.0, self.steps / 50), self.steps, 14)).astype(int)
        return tuple(sorted({0, *spaced.tolist()}))

    def coordinates(self) -> dict[str, Any]:
        """Name steps and models."""
        return {"step": ("record", list(self.record_at)), "model": list(MODELS)}

    def load_images(self) -> Images:
        """Return the digits; DataError where MNIST is wanted and cannot be had."""
        return digits() if self.images == "digits" else mnist(download=True, stand_in=False)

    def training(self, panel: str) -> Training:
        """Return how the networks of a panel are trained."""
        width, momentum = self.width_large if panel in FIGURES else self.width, PANELS[panel][1]
        return Training(self.steps, self.batch_size, momentum, width, self.n_train, self.n_test, self.record_at)

    def train(self, runs: Runs, device: torch.device, progress: Progress | None) -> list[dict[str, np.ndarray]]:
        """Train networks, run by run on the images of a panel, and return their records, ``(records, members)``."""
        images, found = self.load_images(), []
        for number, (panel, members) in enumerate(runs):
            training, told = self.training(panel), share(progress, number, len(runs))
            found.append(train_members(members, images, training, device=device, progress=told).records)
        return found


@dataclass(frozen=True, kw_only=True)
class NoisyMnist(OnDigits):
    """Figures 2, 4, 5 and 6: all models at several step sizes, in other noise and without momentum, too."""

    id = "global_attention.noisy_mnist"
    summary = "Figures 2, 4, 5 and 6: small digits in large images of noise, with and without a mask"
    budget_seconds = 60
    smoke = SMOKE | {"width_large": 3, "step_sizes": (0.05, 0.1), "panels": tuple(PANELS)}
    full = {
        "images": "mnist", "n_train": 5000, "n_test": 2000, "width": 128, "width_large": 128, "steps": 1000,
        "step_sizes": (0.001, 0.01, 0.05, 0.1, 0.2), "panels": tuple(PANELS),
    }  # fmt: skip

    panels: tuple[str, ...] = ("figure_2", "uniform_plain", "figure_4", "figure_5")  # some of PANELS
    step_sizes: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)  # of gradient descent
    read_at: float = 0.1  # step size at which Figure 2 is read, fixed before the first run
    penalty: float = 1e-3  # L1 weight on the mask in images of 24 x 24
    penalty_large: float = 3e-4  # the same in images of 48 x 48

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.read_at not in self.step_sizes:
            raise ValueError(f"read_at: expected one of step_sizes = {self.step_sizes}, got {self.read_at}")
        if not self.panels or not set(self.panels) <= set(PANELS):
            raise ValueError(f"panels: expected some of {', '.join(PANELS)}, got {self.panels}")

    def coordinates(self) -> dict[str, Any]:
        """Name panels and step sizes, too."""
        return super().coordinates() | {"panel": list(self.panels), "step_size": list(self.step_sizes)}

    def members(self, panel: str, seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks of a panel, ordered by seed, step size and model."""
        scene, penalty = PANELS[panel][0], self.penalty_large if panel in FIGURES else self.penalty
        return [Member(m, s, scene, size, penalty) for s in seeds for size in self.step_sizes for m in MODELS]

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks of these seeds, a panel at a time."""
        records = self.train([(panel, self.members(panel, seeds)) for panel in self.panels], device, progress)
        axes = {"seed": len(seeds), "step_size": len(self.step_sizes), "model": len(MODELS)}
        film = records[0]["effective_weights"].reshape(len(self.record_at), *axes.values(), -1)
        film = np.round(film[:, 0, self.step_sizes.index(self.read_at)], 3)
        # Of the first seed only, for a picture: a group without it has nothing to add.
        strength = film if seeds[0] == self.seeds[0] else 0 * film
        return curves_of(records, "panel", axes) | {"strength": (("record", "model", "pixel"), strength)}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read Figure 2 at its step size, each network at its best one, and the lead in every setting."""
        first, lead = data.sel(panel="figure_2"), leads(data)
        read, tuned, counted = first.sel(step_size=self.read_at), at_best_size(first), np.isfinite(lead)
        equal = at_equal_loss(read.isel(model=[0, 1]), read.train_loss.isel(record=-1, model=0))
        figure_2 = {
            "": read.accuracy.isel(record=-1), "loss_": read.test_loss.min("record"),
            "train_steps_": steps_to(tuned.train_loss, GUESSING / 2), "test_steps_": steps_to_test_loss(tuned),
        }  # fmt: skip
        better = {
            "equal_": equal, "tuned_": tuned.accuracy.isel(record=-1),
            "uniform_": at_best_size(data.sel(panel="uniform_plain")).accuracy.isel(record=-1),
        }  # fmt: skip
        return {
            "GA-F2": _of_models(figure_2),
            "GA-F2-every": {
                "fraction_held": (lead > 0.01).sum() / np.maximum(counted.sum(), 1),
                "settings": counted.sum(),
                "not_counted": (~counted).sum(),
            },
            "GA-X-digits-equal": _of_models(better),
        }


@dataclass(frozen=True, kw_only=True)
class SmallestStep(OnDigits):
    """Figures 4 to 6 at 0.001, the one step size that the text has, until the networks have learned."""

    id = "global_attention.smallest_step"
    summary = "Figures 4 to 6 at step size 0.001, the only one in the text, trained until the networks learn"
    budget_seconds = 60
    smoke = SMOKE | {"width_large": 3}
    full = {"images": "mnist", "n_train": 20_000, "n_test": 5000, "width_large": 128, "steps": 20_000}

    step_size: float = 1e-3  # the only one in the text
    steps: int = 4000  # of gradient descent
    seeds: tuple[int, ...] = (0, 1)  # what a minute allows

    def coordinates(self) -> dict[str, Any]:
        """Name figures and the two models."""
        return super().coordinates() | {"model": list(MODELS[:2]), "panel": list(FIGURES)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train both networks of each figure."""
        models = [(model, seed) for seed in seeds for model in MODELS[:2]]
        runs = [(figure, [Member(*m, PANELS[figure][0], self.step_size) for m in models]) for figure in FIGURES]
        return curves_of(self.train(runs, device, progress), "panel", {"seed": len(seeds), "model": 2})

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read final accuracies, the steps to most of the baseline's, and the steps to a test loss, by figure."""
        found = {}
        for panel in FIGURES:
            one = data.sel(panel=panel)
            goal = 0.9 * one.accuracy.isel(record=-1).sel(model="baseline", drop=True)
            steps = {"steps_": steps_to(-one.accuracy, -goal), "loss_steps_": steps_to_test_loss(one)}
            found[f"GA-F{panel[-1]}"] = _of_models({"": one.accuracy.isel(record=-1), **steps})
        return found


@dataclass(frozen=True, kw_only=True)
class PixelPenalties(OnDigits):
    """Penalties of growing strength with and without a mask in the setting of Figure 2, all tuned on one grid."""

    id = "global_attention.pixel_penalties"
    summary = "A group penalty on pixels without a mask beside an L1 penalty on the mask, tuned alike"
    budget_seconds = 60
    smoke = SMOKE | {"step_sizes": (0.05, 0.1), "strengths": (0.0, 1e-3)}
    full = {
        "images": "mnist", "n_train": 5000, "n_test": 2000, "width": 128, "steps": 1000, "seeds": (0, 1, 2),
        "step_sizes": (0.003, 0.01, 0.03, 0.1, 0.2), "strengths": (0.0, 1e-3, 3e-3, 1e-2, 3e-2),
    }  # fmt: skip

    step_sizes: tuple[float, ...] = (0.01, 0.03, 0.1, 0.2)  # of gradient descent, the same for all
    strengths: tuple[float, ...] = (0.0, 1e-3, 3e-3, 1e-2, 3e-2)  # of the penalties, the same for all

    def coordinates(self) -> dict[str, Any]:
        """Name penalties, step sizes and strengths."""
        named = {"path": list(PATHS), "step_size": list(self.step_sizes), "strength": list(self.strengths)}
        return {"step": super().coordinates()["step"], **named}

    def members(self, path: str, seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks with one kind of penalty, ordered by seed, step size and strength."""
        (model, option), scene = PATHS[path], PANELS["figure_2"][0]
        grid = [(size, strength) for size in self.step_sizes for strength in self.strengths]
        return [Member(model, s, scene, size, **{option: strength}) for s in seeds for size, strength in grid]

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks, one kind of penalty at a time."""
        axes = {"seed": len(seeds), "step_size": len(self.step_sizes), "strength": len(self.strengths)}
        runs = [("figure_2", self.members(path, seeds)) for path in PATHS]
        return curves_of(self.train(runs, device, progress), "path", axes)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read each at its best strength and step size, the mask also among those with the group's training loss."""
        final = data.isel(record=-1)

        def best(path: str, among: xr.Dataset = final) -> xr.Dataset:
            one = among.sel(path=path)
            return one.isel(one.accuracy.median("seed").argmax(("step_size", "strength")))

        plain, loss = final.sel(strength=[0.0]), final.train_loss.median("seed")
        found = {"baseline": best("l2_baseline", plain), "attention": best("l1_mask", plain)}
        found |= {path: best(path) for path in PATHS}
        of_group = float(found["group_baseline"].train_loss.median())
        alike = final.where((loss >= of_group / 2) & (loss <= 2 * of_group), 0.0)
        found["equal_l1_mask"] = best("l1_mask", alike)
        return {"GA-X-digits-sparse": {name: one.accuracy for name, one in found.items()}}


def curves_of(records: list[dict[str, np.ndarray]], run: str, members: dict[str, int]) -> Arrays:
    """Return the curves of all runs; ``members`` gives the axes of their networks with their lengths."""
    curves = {name: np.stack([np.minimum(one[name], CEILING) for one in records]) for name in CURVES}
    axes = (run, "record", *members)
    return {name: (axes, curve.reshape(*curve.shape[:2], *members.values())) for name, curve in curves.items()}


def at_best_size(panel: xr.Dataset) -> xr.Dataset:
    """Return the curves of each model at its best step size, the one with the highest median of final accuracies."""
    chosen = panel.accuracy.isel(record=-1).median("seed").idxmax("step_size")
    return panel[list(CURVES)].sel(step_size=chosen)


def leads(data: xr.Dataset, model: str = "attention", over: str = "baseline") -> xr.DataArray:
    """Return a model's median accuracy minus another's, by panel and step size; NaN where neither has learned."""
    ahead, behind = (data.accuracy.isel(record=-1).sel(model=m, drop=True).median("seed") for m in (model, over))
    return (ahead - behind).where(np.maximum(ahead, behind) >= LEARNS)


def steps_to_test_loss(curves: xr.Dataset) -> xr.DataArray:
    """Return the steps to a test loss halfway from guessing to the lowest that baseline and attention both reach."""
    loss = curves.test_loss.isel(model=[0, 1])
    return steps_to(loss, (GUESSING + loss.min("record").max("model")) / 2)


def steps_to(loss: xr.DataArray, target: xr.DataArray | np.ndarray | float) -> xr.DataArray:
    """Return the step at which a curve first falls to a value, on the line between two records; the last if never."""

    def first(curve: np.ndarray, limit: float) -> float:
        there = np.flatnonzero(curve <= limit)
        if not there.size or not there[0]:
            return float(steps[0 if there.size else -1])
        i = there[0]
        return float(steps[i] - (steps[i] - steps[i - 1]) * (limit - curve[i]) / (curve[i - 1] - curve[i]))

    steps = loss.step.values
    return xr.apply_ufunc(first, loss, target, input_core_dims=[["record"], []], vectorize=True)


def at_equal_loss(curves: xr.Dataset, target: xr.DataArray) -> xr.DataArray:
    """Return the accuracy where the training loss first falls to a value, on lines between records (of log losses)."""
    reached = steps_to(np.log(curves.train_loss.clip(1e-12)), np.log(target.clip(1e-12)))
    dims: list[list[str]] = [["record"], []]

    def read(accuracy: np.ndarray, step: float) -> float:
        return float(np.interp(step, curves.step.values, accuracy))

    return xr.apply_ufunc(read, curves.accuracy, reached, input_core_dims=dims, vectorize=True)


def _of_models(found: dict[str, xr.DataArray]) -> dict[str, xr.DataArray]:
    """Baseline and attention of each, by name."""
    named = enumerate(MODELS[:2])
    return {prefix + m: values.isel(model=i, drop=True) for i, m in named for prefix, values in found.items()}
