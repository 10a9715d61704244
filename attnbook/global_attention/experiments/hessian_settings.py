"""Sizes of ``hessian_spectrum``, and the networks and Hessians that it compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from attnbook.core.resuming import check_seeds
from attnbook.global_attention.classifiers import Classifier, Model

__all__ = ["DIGIT_SIZE", "NETWORKS", "OUTLIERS", "PATHS", "SPECTRA", "Settings"]

NETWORKS = ("baseline", "attention", "l1_attention", "equal_loss")
"""Trained networks; ``equal_loss`` is attention stopped at the baseline's training loss."""

SPECTRA = ("baseline", "attention", "attention_folded", "equal_loss", "equal_loss_folded", "l1_attention")
"""Hessians; ``folded`` is in diag(mask) hidden and decoder. The baseline has one only, as its mask is fixed."""

PATHS = ("baseline", "attention", "attention_folded")
"""Hessians that are followed along the training."""

OUTLIERS = 9
"""How many leading eigenvalues stand apart from the bulk, one less than there are classes."""

DIGIT_SIZE = 8
"""Height and width of a digit."""

# Where the Hessian is looked at on the way, as shares of the steps; the end comes on top.
LOOKS_ON_THE_WAY = (0.0, 1 / 20, 3 / 20, 2 / 5)


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
        weight_decays: L2 weights on both layers, the first of them 0, increasing; run at the first step size.
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
    weight_decays: tuple[float, ...] = (0.0, 1e-3, 3e-3, 1e-2)
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
        decays = self.weight_decays
        if len(decays) < 2 or decays[0] != 0 or list(decays) != sorted(set(decays)):
            raise ValueError(f"weight_decays: expected 0 and then increasing numbers, got {self.weight_decays}")
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
        decays = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
        return cls(
            images="mnist", n_train=4000, n_test=5000, steps=1800, step_sizes=(0.1, 0.05, 0.02), weight_decays=decays,
            chunk=1,
        )  # fmt: skip

    def members(self, seeds: tuple[int, ...]) -> list[Classifier]:
        """Return the networks trained for all steps, ordered by seed, step size and network."""
        models: tuple[Model, ...] = ("baseline", "attention", "l1_attention")
        return [
            Classifier(model, seed, step_size, penalty=self.penalty)
            for seed in seeds
            for step_size in self.step_sizes
            for model in models
        ]

    def decayed(self, seeds: tuple[int, ...]) -> list[Classifier]:
        """Return the networks trained with a weight decay, ordered by seed, model and decay."""
        models: tuple[Model, ...] = ("baseline", "attention")
        return [
            Classifier(model, seed, self.step_sizes[0], weight_decay=decay)
            for seed in seeds
            for model in models
            for decay in self.weight_decays[1:]
        ]

    @property
    def looks(self) -> list[int]:
        """Steps at which the Hessian is looked at on the way, without the last."""
        return sorted({int(share * self.steps) for share in LOOKS_ON_THE_WAY})
