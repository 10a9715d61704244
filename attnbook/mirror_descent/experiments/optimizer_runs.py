"""The common part of all comparisons of optimisers on reviews and images: settings, and how results are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnbook.core.results import Measurement, Result
from attnbook.core.resuming import check_seeds
from attnbook.mirror_descent import comparison
from attnbook.mirror_descent.comparison import OPTIMIZERS, Rates

__all__ = ["FIXED", "MIRROR", "OptimizerRuns", "OptimizerSettings", "gain"]

MIRROR = ("p1_1", "p2", "p3")
"""The optimisers that are mirror descent, by rising exponent."""

FIXED = (0.001, 0.03, 0.03, 0.003)
"""One step size of Adam and of mirror descent with p = 1.1, 2 and 3; the last three make comparable progress."""


@dataclass(frozen=True)
class OptimizerSettings:
    """Step sizes, length and seeds of a comparison.

    Attributes:
        rates: Step sizes of each optimiser; equal places of mirror descent make comparable progress.
        compared: One of them for each optimiser, at which weights and attention are compared.
        steps: Steps.
        batch_size: Samples per step.
        seeds: Seeds of starts and batches.
        chunk: Seeds trained together.
    """

    rates: Rates
    compared: tuple[float, ...]
    steps: int
    batch_size: int
    seeds: tuple[int, ...]
    chunk: int

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        comparison.configurations(self.rates)
        if len(self.compared) != len(self.rates) or any(
            rate not in own for rate, own in zip(self.compared, self.rates, strict=True)
        ):
            raise ValueError(f"compared: expected one of the step sizes {self.rates} each, got {self.compared}")
        check_seeds(self.seeds, self.chunk)

    @property
    def configurations(self) -> tuple[tuple[str, float], ...]:
        """All pairs of optimiser and step size."""
        return comparison.configurations(self.rates)


@dataclass(frozen=True)
class OptimizerRuns(Result):
    """What all configurations of optimiser and step size reached.

    Attributes:
        test_accuracy: Share of the test samples, ``(configurations, seeds)``.
        validation_accuracy: Share of the samples on which step sizes are chosen, likewise.
        train_accuracy: Share of some of the training samples, likewise.
    """

    test_accuracy: Float[np.ndarray, "configurations seeds"]
    validation_accuracy: Float[np.ndarray, "configurations seeds"]
    train_accuracy: Float[np.ndarray, "configurations seeds"]

    def at(self, optimizer: str, rate: float) -> int:
        """Return the number of a configuration.

        Args:
            optimizer: One of ``adam``, ``p1_1``, ``p2`` and ``p3``.
            rate: One of its step sizes.

        Returns:
            Its place on the first axis.
        """
        return int(self.settings.configurations.index((optimizer, rate)))

    def of(self, optimizer: str) -> list[int]:
        """Return the numbers of the configurations of an optimiser, by increasing step size."""
        return [k for k, (name, _) in enumerate(self.settings.configurations) if name == optimizer]

    @property
    def compared(self) -> dict[str, int]:
        """Optimiser to its configuration at which weights and attention are compared."""
        return {name: self.at(name, rate) for name, rate in zip(OPTIMIZERS, self.settings.compared, strict=True)}

    def chosen(self, seeds: slice | list[int] = slice(None)) -> dict[str, int]:
        """Return the configuration of each optimiser with the highest validation accuracy.

        Args:
            seeds: Seeds over which the validation accuracy is averaged; default all.

        Returns:
            Optimiser to configuration.
        """
        mean = self.validation_accuracy[:, seeds].mean(axis=1)
        return {name: max(self.of(name), key=lambda number: mean[number]) for name in OPTIMIZERS}

    def rising(self, values: Float[np.ndarray, "configurations seeds"]) -> Float[np.ndarray, "places seeds"]:
        """Return whether values rise strictly with p, at step sizes in equal places.

        Args:
            values: One number of each run.

        Returns:
            1 or 0; as many places as every optimiser has.
        """
        places = zip(*(self.of(name) for name in MIRROR), strict=False)
        rises = [(np.diff(values[list(place)], axis=0) > 0).all(axis=0) for place in places]
        return np.array(rises, dtype=float)


def gain(first: Float[np.ndarray, " seeds"], second: Float[np.ndarray, " seeds"], name: str) -> Measurement:
    """Summarise a paired difference: mean, range, standard deviation and error over seeds.

    Args:
        first: Values of one run per seed.
        second: Values of another, of the same seeds.
        name: Name of their difference.

    Returns:
        The measurement, with values ``name``, ``standard_deviation`` and ``standard_error``.
    """
    difference = first - second
    deviation = float(difference.std(ddof=1)) if len(difference) > 1 else 0.0
    return Measurement(
        {
            name: float(difference.mean()),
            "standard_deviation": deviation,
            "standard_error": deviation / len(difference) ** 0.5,
        },
        {name: (float(difference.min()), float(difference.max()))},
        len(difference),
    )
