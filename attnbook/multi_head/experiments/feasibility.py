r"""Section 5.3: is there a signal strength and a number of heads for which the oracle target satisfies the theorem?

Counted on a logarithmic grid, with all hidden constants set to 1 and $\gamma_{attn}$ to $S$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.runtime import Progress
from attnbook.multi_head.feasibility import allowed_constant, largest_allowed_constant

__all__ = ["Feasibility", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the grid; no seed enters.

    Attributes:
        n_samples: Values of $n$.
        norm_decades: Largest pattern norm as a power of ten.
        head_decades: Largest number of heads as a power of ten.
        per_decade: Points of the grid in each decade.
    """

    n_samples: tuple[float, ...] = (100.0, 1e6)
    norm_decades: int = 8
    head_decades: int = 16
    per_decade: int = 20

    def __post_init__(self) -> None:
        for name in ("norm_decades", "head_decades", "per_decade"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.n_samples or min(self.n_samples) <= math.e:
            raise ValueError(f"n_samples: expected numbers above e, got {self.n_samples}")

    @classmethod
    def smoke(cls) -> Self:
        """Return a coarse grid."""
        return cls(per_decade=4)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a finer and larger grid."""
        return cls(norm_decades=12, head_decades=24, per_decade=40)

    @property
    def pattern_norms(self) -> Float[np.ndarray, " norms"]:
        """Values of $S$."""
        return np.logspace(0, self.norm_decades, self.norm_decades * self.per_decade + 1)

    @property
    def heads(self) -> Float[np.ndarray, " heads"]:
        """Values of $H$, not rounded."""
        return np.logspace(0, self.head_decades, self.head_decades * self.per_decade + 1)


@dataclass(frozen=True)
class Feasibility(Result):
    r"""What constant the head condition could have, summed up over $H$.

    Attributes:
        largest_constant: Largest constant for which some $H$ satisfies (12), ``(samples, norms)``.
        feasible: Number of $H$ that satisfy (12) with constant 1, ``(samples, norms)``.
        feasible_literal: The same if condition (3) keeps its factor below 1, ``(samples, norms)``.
    """

    experiment: ClassVar[str] = "multi_head.feasibility"
    settings_type: ClassVar[type] = Settings

    largest_constant: Float[np.ndarray, "samples norms"]
    feasible: Float[np.ndarray, "samples norms"]
    feasible_literal: Float[np.ndarray, "samples norms"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Section 5.3, by claim id."""
        s = self.settings
        law = largest_allowed_constant(s.pattern_norms, np.array(s.n_samples)[:, None])
        inside = s.pattern_norms**2 * np.log(max(s.n_samples)) ** 2 / 2 < 10.0**s.head_decades
        relative = (self.largest_constant / law)[:, inside]
        return {
            "MH-53.1": Measurement({"feasible_points": float(self.feasible.sum())}),
            "MH-53.2": Measurement({"feasible_points_literal": float(self.feasible_literal.sum(axis=1).min())}),
            "MH-53.1-constant": Measurement(
                {"smallest_of_law": float(relative.min()), "largest_of_law": float(relative.max())}
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Feasibility:
    """Count the points of the grid at which the conditions hold.

    Args:
        settings: Sizes of the grid.
        device: Checked, but nothing is trained: all of it is float64 on the CPU.
        progress: Told (sample sizes done, sample sizes in all).
        workdir: Not used: the run takes a moment.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)
    found: dict[str, list[np.ndarray]] = {"largest_constant": [], "feasible": [], "feasible_literal": []}
    s, heads = settings.pattern_norms[:, None], settings.heads[None, :]
    for number, n in enumerate(settings.n_samples, 1):
        constant = allowed_constant(s, heads, n)
        found["largest_constant"].append(constant.max(axis=1))
        found["feasible"].append((constant >= 1).sum(axis=1))
        found["feasible_literal"].append((allowed_constant(s, heads, n, literal=True) >= 1).sum(axis=1))
        if progress:
            progress(number, len(settings.n_samples))
    arrays = {name: np.array(rows, dtype=np.float64) for name, rows in found.items()}
    return Feasibility(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)
