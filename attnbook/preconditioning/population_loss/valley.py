r"""One input and one output: the whole landscape in a picture, and gradient descent in it.

With a single input of variance $\Sigma$ both layers are numbers, and so is the signal $s=A\Sigma^{1/2}$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.population import (
    balance_penalty,
    excess_loss,
    excess_loss_gradient,
    penalty_gradient,
)

__all__ = ["Coordinates", "Valley"]

Coordinates: TypeAlias = Literal["original", "whitened"]


@dataclass(frozen=True)
class Valley:
    r"""A regularised population loss of two numbers.

    Attributes:
        variance: $\Sigma$, positive.
        coordinates: Whether points are $(U,V)$ or $(\tilde U,\tilde V)$; descent follows the gradient in these.
        penalty: Weight of the regulariser, at least 0.
        signal: $s=A\Sigma^{1/2}$, positive; default one.
    """

    variance: float
    coordinates: Coordinates = "whitened"
    penalty: float = 1.0
    signal: float = 1.0

    def __post_init__(self) -> None:
        if not self.variance > 0 or not self.signal > 0:
            raise ValueError(f"variance, signal: expected positive numbers, got {self.variance} and {self.signal}")
        if not self.penalty >= 0:
            raise ValueError(f"penalty: expected at least 0, got {self.penalty}")

    @property
    def scale(self) -> tuple[float, float]:
        """What whitened coordinates are divided by to give those of the points."""
        return (self.variance**0.5, self.variance) if self.coordinates == "original" else (1.0, 1.0)

    @property
    def minimum(self) -> tuple[float, float]:
        """The balanced minimum with positive entries."""
        u, v = self.scale
        return self.signal**0.5 / u, self.signal**0.5 / v

    @property
    def curvatures(self) -> tuple[float, float]:
        """Eigenvalues of the Hessian at the minimum, smallest first."""
        u, v = self.scale
        along, apart = np.array([u, v]), np.array([u, -v])  # product and imbalance, to first order
        hessian = self.signal * (np.outer(along, along) + self.penalty * np.outer(apart, apart))
        smallest, largest = np.linalg.eigvalsh(hessian)
        return float(max(smallest, 0.0)), float(largest)

    def loss(
        self, first: Float[np.ndarray, "*points"], second: Float[np.ndarray, "*points"]
    ) -> Float[np.ndarray, "*points"]:
        """Return the excess loss with the penalty.

        Args:
            first: Value layer.
            second: Key-query layer.

        Returns:
            The losses.
        """
        layers = self._layers(first, second)
        total = excess_loss(*layers, **self._problem) + self.penalty * balance_penalty(*layers, covariance=self._one)
        return total.numpy()

    def descend(self, start: tuple[float, float], steps: int) -> Float[np.ndarray, "steps_and_start coordinates"]:
        """Take gradient steps of half the length that is best at the minimum.

        Args:
            start: Where to begin, in whitened coordinates.
            steps: Number of steps.

        Returns:
            The path, the start included; it ends early where it would leave the picture for good.
        """
        size = 0.5 / self.curvatures[1]
        path = [np.array([start[0] / self.scale[0], start[1] / self.scale[1]])]
        for _ in range(steps):
            path.append(path[-1] - size * self._gradient(path[-1]))
        return np.array(path)

    @property
    def _one(self) -> Tensor:
        return torch.full((1, 1), self.variance if self.coordinates == "original" else 1.0, dtype=torch.float64)

    @property
    def _problem(self) -> dict[str, Tensor]:
        return {"covariance": self._one, "true_map": self.signal / self._one.sqrt()}

    def _layers(self, first: np.ndarray, second: np.ndarray) -> tuple[Tensor, Tensor]:
        value, key_query = (torch.as_tensor(x, dtype=torch.float64)[..., None, None] for x in (first, second))
        return value, key_query

    def _gradient(self, at: np.ndarray) -> np.ndarray:
        layers = self._layers(at[0], at[1])
        loss = excess_loss_gradient(*layers, **self._problem)
        penalty = penalty_gradient(*layers, covariance=self._one)
        return np.array([float(a + self.penalty * b) for a, b in zip(loss, penalty, strict=True)])
