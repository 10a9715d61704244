r"""Is $\gamma_{attn}\ge\gamma_\star\ge\gamma_{lin}$? Margins of a network and of its linearisation.

The tangent-kernel margin of the direction $\tilde\theta_\star=(\bar U_\star,\bar W_\star)$ after the first phase is
measured from gradients of the network at $U^{(1)}=c\,\frac\zeta4\,\mathbb 1_Tu_\star^\top$, $W^{(1)}=0$, with a factor
$c$ on the step that is 1 in the paper. One head is enough: the margin does not depend on how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import oracle
from attnbook.multi_head.data import Mixture, draw_patterns, draw_samples
from attnbook.multi_head.tangent_kernel import tangent_features

__all__ = ["MarginOrder", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Number $M$ of patterns that say nothing.
        pattern_norms: Values of $S$, increasing.
        relevant_fractions: Values of $\zeta$.
        steps: Values of the factor $c$, 1 among them.
        noisy_norm: $S$ of the three cells in which $\gamma_\star$ is compared with $\gamma_{lin}$.
        noisy_fraction: $\zeta$ there.
        noise_share: $\bar Z/S^2$ in the second of them; in the others it is 0.
        residual: Residual $P$ in the third.
        free_noise: Norm of the noise orthogonal to all patterns in the third.
        n_samples: Samples of each cell.
        seeds: Seeds.
        chunk: Seeds in one part of a resumable run.
    """

    n_tokens: int = 10
    dimension: int = 12
    n_patterns: int = 4
    pattern_norms: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)
    relevant_fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)
    steps: tuple[float, ...] = (0.25, 1.0, 4.0)
    noisy_norm: float = 2.0
    noisy_fraction: float = 0.4
    noise_share: float = 0.1
    residual: float = 0.001
    free_noise: float = 0.5
    n_samples: int = 60
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if list(self.pattern_norms) != sorted(set(self.pattern_norms)) or not self.pattern_norms:
            raise ValueError(f"pattern_norms: expected increasing numbers, got {self.pattern_norms}")
        if 1.0 not in self.steps or min(self.steps) <= 0:
            raise ValueError(f"steps: expected positive numbers, 1 among them, got {self.steps}")
        if self.n_samples < 1:
            raise ValueError(f"n_samples: expected at least 1, got {self.n_samples}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(pattern_norms=(1.0, 2.0, 3.0, 6.0), n_samples=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return many more samples."""
        return cls(n_samples=1000)

    @property
    def mixture(self) -> Mixture:
        """Sizes of the data without noise; pattern norm and share of relevant tokens vary."""
        return Mixture(self.n_tokens, self.dimension, self.n_patterns, relevant_fraction=self.relevant_fractions[0])

    def cells(self) -> list[list[Mixture]]:
        """Return the data of each cell, by share of relevant tokens and pattern norm."""
        return [
            [replace(self.mixture, relevant_fraction=zeta, pattern_norm=s) for s in self.pattern_norms]
            for zeta in self.relevant_fractions
        ]

    def noisy_cells(self) -> tuple[Mixture, Mixture, Mixture]:
        """Return the data of the three cells: quiet, noisy, and with the residual."""
        quiet = replace(self.mixture, relevant_fraction=self.noisy_fraction, pattern_norm=self.noisy_norm)
        noise = self.noise_share * self.noisy_norm**2
        noisy = replace(quiet, label_noise=noise, other_noise=noise)
        return quiet, noisy, replace(quiet, free_noise=self.free_noise)


@dataclass(frozen=True)
class MarginOrder(Result):
    r"""Measured margins of the direction $\tilde\theta_\star$ in the tangent kernel.

    Attributes:
        tangent: Without noise, ``(seeds, fractions, norms, steps)``.
        noisy_tangent: In three cells (no noise; noise; residual), ``(seeds, 3)``.
        noisy_uniform: Margin of uniform attention in the same cells, ``(seeds, 3)``.
    """

    experiment: ClassVar[str] = "multi_head.margin_order"
    settings_type: ClassVar[type] = Settings

    tangent: Float[np.ndarray, "seeds fractions norms steps"]
    noisy_tangent: Float[np.ndarray, "seeds 3"]
    noisy_uniform: Float[np.ndarray, "seeds 3"]

    @property
    def of_network(self) -> Float[np.ndarray, "fractions norms"]:
        r"""The margin $\gamma_{attn}$ of each cell."""
        return np.array([[oracle.attention_margin(m) for m in row] for row in self.settings.cells()])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for the order of the margins, by claim id."""
        s, one = self.settings, self.settings.steps.index(1.0)
        beyond = np.array([[m.pattern_norm > oracle.crossing(m) for m in row] for row in s.cells()])
        violated = self.tangent > self.of_network[:, :, None]
        longer = np.array([[[c > oracle.step_crossing(m) for c in s.steps] for m in row] for row in s.cells()])
        return {
            "MH-ORD": Measurement(
                {
                    "cells_against_threshold": float((violated[..., one] != beyond).sum()),
                    "cells_violating": float(violated[..., one].all(axis=0).sum()),
                },
                n_seeds=len(violated),
            ),
            "MH-ORD-step": Measurement(
                {
                    "cells_against_threshold": float((violated != longer).sum()),
                    "cells_with_both_orders": float((longer.any(axis=2) & ~longer.all(axis=2)).sum()),
                },
                n_seeds=len(violated),
            ),
            "MH-ORD-linear": self._bounds(),
            "MH-ORD-linear-true": extremes_over_seeds(
                smallest_difference_noisy=(self.noisy_tangent - self.noisy_uniform)[:, 1],
                smallest_difference_small_residual=(self.noisy_tangent - self.noisy_uniform)[:, 2],
            ),
        }

    def _bounds(self) -> Measurement:
        r"""The formula for $\gamma_\star$ minus that for $\gamma_{lin}$ in the three cells."""
        quiet, noisy, free = self.settings.noisy_cells()
        of_residual = oracle.first_phase_margin(free, residual=self.settings.residual)
        return Measurement(
            {
                "difference_noise_free": oracle.first_phase_margin(quiet) - oracle.linear_margin(quiet),
                "difference_noisy": oracle.first_phase_margin(noisy) - oracle.linear_margin(noisy),
                "difference_small_residual": of_residual - oracle.linear_margin(free),
            }
        )


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> MarginOrder:
    """Measure the margins of a network and of its linearisation.

    Args:
        settings: Sizes and seeds.
        device: Checked, but nothing is trained: all of it is float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)

    with threads(1):
        arrays = seed_by_seed(
            settings, lambda seed: _measure_seed(settings, seed), clock=clock, workdir=workdir, progress=progress
        )
    return MarginOrder(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _measure_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    n, steps = settings.n_samples, settings.steps
    quiet, noisy, free = settings.noisy_cells()
    three = [
        _margins(quiet, seed, n, (1.0,)),
        _margins(noisy, seed, n, (1.0,)),
        _margins(free, seed, n, (1.0,), settings.residual),
    ]
    return {
        "tangent": np.array([[_margins(m, seed, n, steps)[:-1] for m in row] for row in settings.cells()]),
        "noisy_tangent": np.array([found[0] for found in three]),
        "noisy_uniform": np.array([found[-1] for found in three]),
    }


def _margins(mixture: Mixture, seed: int, n: int, steps: tuple[float, ...], residual: float = 0.0) -> np.ndarray:
    r"""Margins of $\tilde\theta_\star$ for each step of the first phase, and with uniform attention."""
    patterns = draw_patterns(mixture, rng=stream(seed, "patterns"))
    drawn = draw_samples(mixture, patterns, n, rng=stream(seed, "order"))
    u, w = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
    direction = np.concatenate([(u / np.linalg.norm(u)).ravel(), (w / np.linalg.norm(w)).ravel()])
    off = stream(seed, "residual").standard_normal(mixture.dimension)
    rows = mixture.relevant_fraction / 4 * u + residual * off / np.linalg.norm(off)
    starts = torch.from_numpy(np.stack([c * rows for c in steps]))[:, None]
    d = mixture.dimension
    parameters = {"decoder": starts, "key_query": torch.zeros((len(steps), 1, d, d), dtype=torch.float64)}
    tokens = torch.from_numpy(drawn.tokens).expand(len(steps), -1, -1, -1)
    features = tangent_features(parameters, tokens).numpy()
    tangent = (drawn.labels * (features @ direction)).min(axis=1)
    uniform = (drawn.labels * (features[0, :, : u.size] @ direction[: u.size])).min()
    return np.append(tangent, uniform)
