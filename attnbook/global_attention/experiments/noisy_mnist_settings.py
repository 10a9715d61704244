"""Settings of the experiment on noisy digits: what is trained, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np

from attnbook.core.resuming import check_seeds
from attnbook.datasets import Images, digits, mnist
from attnbook.global_attention.digit_training import Member, Model, Training
from attnbook.global_attention.noisy_digits import Scene

__all__ = ["FIGURES", "MODELS", "NAMES", "PANELS", "PATHS", "PROGRAMS", "Panel", "Path", "Settings"]

MODELS: tuple[Model, ...] = get_args(Model)
MOMENTUM = 0.9


@dataclass(frozen=True)
class Panel:
    """A setting in which all models are trained with all step sizes.

    Attributes:
        scene: Sizes of image and digit, and the noise.
        momentum: Of gradient descent.
    """

    scene: Scene
    momentum: float


PANELS: Mapping[str, Panel] = {
    "figure_2": Panel(Scene(24, 8, "normal"), MOMENTUM),
    "uniform": Panel(Scene(24, 8, "uniform"), MOMENTUM),
    "plain": Panel(Scene(24, 8, "normal"), 0.0),
    "uniform_plain": Panel(Scene(24, 8, "uniform"), 0.0),
    "figure_4": Panel(Scene(48, 15, "normal"), MOMENTUM),
    "figure_5": Panel(Scene(48, 8, "normal"), MOMENTUM),
    "figure_6": Panel(Scene(48, 5, "normal"), MOMENTUM),
}
# What figures and tables call them.
NAMES: Mapping[str, str] = {
    "figure_2": "8 in 24 (Figure 2)",
    "uniform": "uniform noise",
    "plain": "no momentum",
    "uniform_plain": "uniform, no momentum",
    "figure_4": "15 in 48 (Figure 4)",
    "figure_5": "8 in 48 (Figure 5)",
    "figure_6": "5 in 48 (Figure 6)",
}
FIGURES = ("figure_4", "figure_5", "figure_6")
# What is trained as one program: panels of equal image size and momentum, as many as fit into a processor's cache.
PROGRAMS = (("figure_2", "uniform"), ("plain", "uniform_plain"), *((figure,) for figure in FIGURES))


@dataclass(frozen=True)
class Path:
    """Penalties of growing strength on one model.

    Attributes:
        model: The model.
        options: Which penalties of a :class:`~attnbook.global_attention.digit_training.Member` take the strength.
    """

    model: Model
    options: tuple[str, ...]


PATHS: Mapping[str, Path] = {
    "l1_mask": Path("l1_attention", ("penalty",)),
    "l1_mask_l2": Path("l1_attention", ("penalty", "decay")),
    "l2_baseline": Path("baseline", ("decay",)),
    "group_baseline": Path("baseline", ("group_lasso",)),
}


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the defaults are the book scale.

    Attributes:
        images: ``digits``, scikit-learn's, which need no file, or ``mnist``.
        stand_in: Whether the digits may take the place of MNIST where it cannot be read; only for a smoke test.
        n_train: Training images of each seed; ours.
        n_test: Test images of each seed; ours.
        width: Hidden units for images of 24 x 24; 128 in the paper.
        width_large: Hidden units for images of 48 x 48; 128 in the paper.
        step_sizes: Step sizes of gradient descent; of the paper's only 0.001 is known, with which no network learns
            anything within the steps of the book scale.
        read_at: Step size at which the claims on Figure 2 are read; ours, fixed before the run.
        read_large_at: Step size at which the claims on Figures 4 to 6 are read; ours, fixed before the run.
        penalty: L1 weight on the mask in images of 24 x 24; ours.
        penalty_large: The same in images of 48 x 48; ours.
        path: Strengths of the penalties along the paths, in the setting of Figure 2.
        path_step_sizes: Step sizes of the paths; the small ones are there for the baseline with a group penalty, for
            which they were the best of four tried.
        batch_size: Images per step; ours.
        steps: Number of steps; ours.
        seeds: Seeds of images, noise, batches and weights.
        chunk: Seeds trained together as one program; one seed fits into a processor's cache.
    """

    images: Literal["digits", "mnist"] = "digits"
    stand_in: bool = False
    n_train: int = 1400
    n_test: int = 360
    width: int = 32
    width_large: int = 16
    step_sizes: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    read_at: float = 0.1
    read_large_at: float = 0.05
    penalty: float = 1e-3
    penalty_large: float = 3e-4
    path: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    path_step_sizes: tuple[float, ...] = (0.03, 0.1)
    batch_size: int = 64
    steps: int = 400
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.images not in ("digits", "mnist"):
            raise ValueError(f"images: expected digits or mnist, got {self.images!r}")
        for name in ("read_at", "read_large_at"):
            if getattr(self, name) not in self.step_sizes:
                raise ValueError(f"{name}: expected one of step_sizes = {self.step_sizes}, got {getattr(self, name)}")
        if self.steps < 2:
            raise ValueError(f"steps: expected at least 2, got {self.steps}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            images="mnist",
            stand_in=True,
            n_train=30,
            n_test=20,
            width=3,
            width_large=3,
            step_sizes=(0.05, 0.1),
            path=(1e-3, 1e-2),
            batch_size=5,
            steps=8,
            seeds=(0, 1),
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop, without a file or a network."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return MNIST and the paper's hidden units; longer than at book scale."""
        return cls(
            images="mnist",
            n_train=5000,
            n_test=2000,
            width=128,
            width_large=128,
            step_sizes=(0.001, 0.01, 0.05, 0.1, 0.2),
            path=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
            path_step_sizes=(0.01, 0.03, 0.1),
            steps=1000,
        )

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which everything is recorded, evenly spaced on a log axis over the last factor of 50."""
        spaced = np.round(np.geomspace(max(1.0, self.steps / 50), self.steps, 14)).astype(int)
        return tuple(sorted({0, *spaced.tolist()}))

    def members(self, panels: tuple[str, ...], seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks of these panels and seeds, ordered by seed, panel, step size and model."""
        return [
            Member(model, seed, PANELS[panel].scene, step_size, self._penalty(panel))
            for seed in seeds
            for panel in panels
            for step_size in self.step_sizes
            for model in MODELS
        ]

    def path_members(self, seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks of the penalty paths, ordered by seed, path, step size and penalty."""
        scene = PANELS["figure_2"].scene
        return [
            Member(path.model, seed, scene, step_size, **dict.fromkeys(path.options, value))
            for seed in seeds
            for path in PATHS.values()
            for step_size in self.path_step_sizes
            for value in self.path
        ]

    @property
    def n_networks(self) -> int:
        """Number of networks that a run trains."""
        panels = sum(len(self.members(program, self.seeds)) for program in PROGRAMS)
        return panels + len(self.path_members(self.seeds))

    @property
    def n_programs(self) -> int:
        """Number of batched programs in which they are trained, counted for each group of seeds anew."""
        return (len(PROGRAMS) + 1) * -(-len(self.seeds) // self.chunk)

    def training(self, panel: str) -> Training:
        """Return how the networks of a panel are trained."""
        return Training(
            steps=self.steps,
            batch_size=self.batch_size,
            momentum=PANELS[panel].momentum,
            width=self.width_large if panel in FIGURES else self.width,
            n_train=self.n_train,
            n_test=self.n_test,
            record_at=self.record_at,
        )

    def _penalty(self, panel: str) -> float:
        return self.penalty_large if panel in FIGURES else self.penalty

    def load(self) -> Images:
        """Return the digits.

        Raises:
            DataError: If MNIST is wanted and cannot be had.
        """
        if self.images == "digits":
            return digits()
        return mnist(download=not self.stand_in, stand_in=self.stand_in)
