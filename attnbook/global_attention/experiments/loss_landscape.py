"""Theorems 3, 4 and 5 and Figure 1: linear regions, rescaled minima, few samples.

Most of it is exact: identities in float64, and counts in rational arithmetic. Only small networks are trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import check_seeds, resumable
from attnbook.core.runtime import Progress
from attnbook.global_attention.experiments import landscape_regions as regions
from attnbook.global_attention.experiments import landscape_rescaling as rescaling
from attnbook.global_attention.experiments import landscape_samples as samples
from attnbook.global_attention.masked_teachers import Setup

__all__ = ["BIASES", "MODELS", "LossLandscape", "Settings", "run"]

BIASES, MODELS = regions.BIASES, regions.MODELS


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        figure_inputs: Inputs $p$ of the baseline in Figure 1.
        figure_sparsities: Inputs kept by the masks in Figure 1, increasing; the figure's own values are lost.
        segment_sparsities: Inputs kept by the masks of random networks; must hold 1, 5 and 20.
        segment_width: Hidden units of these networks.
        segment_networks: Number of these networks.
        segments: Segments per network.
        n_inputs: Inputs of the trained networks.
        n_relevant: Inputs that their teacher looks at.
        width: Hidden units of teacher times two, and of the networks.
        n_samples: Training samples.
        noise: Standard deviation of the label noise.
        penalty: L1 weight on the mask of ``l1_attention``.
        steps: Steps of Adam.
        pattern_inputs: Fresh inputs whose activation patterns are counted.
        half_width: Half the side of the square on which regions are counted.
        minimum_inputs: Inputs of the exact minimum of Theorem 4.
        minimum_width: Its hidden units.
        minimum_samples: Its samples.
        mask_factors: Factors of the mask that the slider offers.
        hidden_factors: Factors of the first layer that the slider offers.
        map_points: Points per axis of the map of the orbit.
        few_samples: Samples for Theorem 5.
        few_inputs: Inputs for Theorem 5.
        sharpness: Sharpness of softplus for Theorem 5.
        residual_widths: Hidden units when only the second layer is fitted; must hold ``few_samples``.
        draws: Random first layers per width.
        fit_widths: Hidden units when all weights are trained.
        fit_steps: Most steps of that training.
        seeds: Seeds.
    """

    figure_inputs: int = 100
    figure_sparsities: tuple[int, ...] = (5, 10, 20, 50, 80)
    segment_sparsities: tuple[int, ...] = (1, 2, 3, 5, 10, 20)
    segment_width: int = 64
    segment_networks: int = 10
    segments: int = 200
    n_inputs: int = 32
    n_relevant: int = 4
    width: int = 32
    n_samples: int = 1000
    noise: float = 0.5
    penalty: float = 1e-2
    steps: int = 2000
    pattern_inputs: int = 20_000
    half_width: float = 2.0
    minimum_inputs: int = 7
    minimum_width: int = 5
    minimum_samples: int = 43
    mask_factors: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    hidden_factors: tuple[float, ...] = (0.1, 1.0, 10.0)
    map_points: int = 41
    few_samples: int = 40
    few_inputs: int = 20
    sharpness: float = 10.0
    residual_widths: tuple[int, ...] = (5, 10, 20, 30, 39, 40, 41, 60)
    draws: int = 10
    fit_widths: tuple[int, ...] = (3, 4, 5, 7, 10, 20, 40)
    fit_steps: int = 300
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def __post_init__(self) -> None:
        if not {1, 5, 20} <= set(self.segment_sparsities):
            raise ValueError(f"segment_sparsities: expected 1, 5 and 20 among them, got {self.segment_sparsities}")
        if self.few_samples not in self.residual_widths:
            raise ValueError(f"residual_widths: expected few_samples = {self.few_samples} among them")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(
            segment_networks=2, segments=10, n_samples=50, steps=10, width=8, map_points=5, draws=2, pattern_inputs=100,
            fit_widths=(4, 10, 40), fit_steps=5, seeds=(0, 1), mask_factors=(0.1, 1.0), hidden_factors=(1.0,),
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds and longer training; the paper has no numbers to match."""
        return cls(segment_networks=100, steps=10_000, draws=100, fit_steps=1500, seeds=tuple(range(20)))


@dataclass(frozen=True)
class LossLandscape(Result):
    """Counts, identities and fits.

    Attributes:
        segment_pieces: Mean linear pieces of random networks, ``(networks, biases, sparsities)``.
        pieces: Mean linear pieces of trained networks between two fresh inputs, ``(seeds, models)``.
        ignored_pieces: The same where only inputs move that the teacher ignores.
        patterns: Different activation patterns among ``pattern_inputs`` fresh inputs.
        pieces_before: Pieces before training.
        ignored_pieces_before: Those where only ignored inputs move, before training.
        patterns_before: Patterns before training.
        plane_regions: Regions on a square of a plane, ``(seeds, models)``.
        plane_lines: Where the units switch on that plane, first seed, ``(models, width, 3)``.
        identities: The quantities of Theorem 4, ``(seeds, quantities)``.
        orbit_outputs: The function along a line, first seed, ``(mask factors, hidden factors, points)``.
        orbit_eigenvalues: Eigenvalues, largest first, first seed, ``(mask factors, hidden factors, parameters)``.
        sharpness_map: Largest eigenvalue over the orbit, first seed, ``(log mask factor, log hidden factor)``.
        least_penalty: Natural logarithm of the hidden factor at which the L2 penalty is least, by mask factor.
        triangle: Corners of the part of the orbit that the assumptions allow, in natural logarithms, first seed.
        residuals: Share of the labels that the best second layer misses, ``(draws, widths)``.
        ranks: Ranks of the features, ``(draws, widths)``.
        input_ranks: Ranks of what enters the activation, ``(draws, widths)``.
        fit_losses: Relative training loss after training all weights, ``(seeds, baseline or attention, widths)``.
        fit_gradients: Gradient norm there.
        fit_lowest: Lowest eigenvalue of the Hessian there over the largest; 0 for runs that fit.
        fit_growth: Norm of all weights there over that at the start.
        relu_failure_rate: How often three ReLU features of three samples are dependent, ``(1,)``.
    """

    experiment: ClassVar[str] = "global_attention.loss_landscape"
    settings_type: ClassVar[type] = Settings

    segment_pieces: Float[np.ndarray, "networks biases sparsities"]
    pieces: Float[np.ndarray, "seeds models"]
    ignored_pieces: Float[np.ndarray, "seeds models"]
    patterns: Float[np.ndarray, "seeds models"]
    pieces_before: Float[np.ndarray, "seeds models"]
    ignored_pieces_before: Float[np.ndarray, "seeds models"]
    patterns_before: Float[np.ndarray, "seeds models"]
    plane_regions: Float[np.ndarray, "seeds models"]
    plane_lines: Float[np.ndarray, "models width 3"]
    identities: Float[np.ndarray, "seeds quantities"]
    orbit_outputs: Float[np.ndarray, "mask_factors hidden_factors points"]
    orbit_eigenvalues: Float[np.ndarray, "mask_factors hidden_factors parameters"]
    sharpness_map: Float[np.ndarray, "map_points map_points"]
    least_penalty: Float[np.ndarray, " map_points"]
    triangle: Float[np.ndarray, "3 2"]
    residuals: Float[np.ndarray, "draws residual_widths"]
    ranks: Float[np.ndarray, "draws residual_widths"]
    input_ranks: Float[np.ndarray, "draws residual_widths"]
    fit_losses: Float[np.ndarray, "seeds 2 fit_widths"]
    fit_gradients: Float[np.ndarray, "seeds 2 fit_widths"]
    fit_lowest: Float[np.ndarray, "seeds 2 fit_widths"]
    fit_growth: Float[np.ndarray, "seeds 2 fit_widths"]
    relu_failure_rate: Float[np.ndarray, " 1"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the exact checks, the counts and the fits, by claim id."""
        s = self.settings
        at = {kept: self.segment_pieces[:, :, s.segment_sparsities.index(kept)] for kept in (1, 5, 20)}
        small = samples.claims(
            samples.Task(s.few_samples, s.few_inputs, s.sharpness),
            {name: getattr(self, name) for name in samples.ARRAYS},
            s.residual_widths,
            s.fit_widths,
        )
        return {
            **regions.exact_claims(s.figure_inputs, s.figure_sparsities),
            "GA-T3-segment": over_seeds(
                **{f"count_{kept}": counts[:, BIASES.index("variance 1")] for kept, counts in at.items()},
                **{f"without_biases_{kept}": at[kept][:, BIASES.index("none")] for kept in (1, 20)},
            ),
            **regions.trained_claims(
                {"pieces": self.pieces, "ignored_pieces": self.ignored_pieces, "patterns": self.patterns}
            ),
            **rescaling.claims(self.identities),
            **small,
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> LossLandscape:
    """Count, check and fit.

    Args:
        settings: Sizes and seeds.
        device: Where networks are trained; default the first of cuda, mps and cpu. Exact checks run on the CPU.
        progress: Told (work done, work in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    compute = {"regions": _regions, "rescaling": _rescaling, "samples": _samples}

    def part(name: str, inner: Progress | None) -> dict[str, np.ndarray]:
        arrays = compute[name](settings, where, inner)
        if inner is not None:
            inner(1, 1)
        return arrays

    parts = resumable(list(compute), part, settings=settings, clock=clock, workdir=workdir, progress=progress)
    arrays = {name: array for each in parts.values() for name, array in each.items()}
    return LossLandscape(settings=settings, provenance=clock.provenance(where), **arrays)


def _regions(s: Settings, device: torch.device, progress: Progress | None) -> dict[str, np.ndarray]:
    pieces = regions.segment_counts(
        s.segment_sparsities,
        n_inputs=max(s.segment_sparsities),
        width=s.segment_width,
        networks=s.segment_networks,
        segments=s.segments,
    )
    trained = regions.trained_counts(
        Setup(s.n_inputs, 10, max(1, s.width // 2), s.width, s.noise, 1),
        s.seeds,
        n_samples=s.n_samples,
        n_relevant=s.n_relevant,
        penalty=s.penalty,
        steps=s.steps,
        segments=s.segments,
        pattern_inputs=s.pattern_inputs,
        half_width=s.half_width,
        device=device,
        progress=progress,
    )
    return {"segment_pieces": pieces, **trained}


def _rescaling(s: Settings, device: torch.device, progress: Progress | None) -> dict[str, np.ndarray]:
    sizes = {"n_inputs": s.minimum_inputs, "width": s.minimum_width, "samples": s.minimum_samples}
    minima = {seed: rescaling.Minimum.draw(seed, **sizes) for seed in s.seeds}
    first = minima[s.seeds[0]]
    return {
        "identities": np.stack([rescaling.quantities(minimum, seed) for seed, minimum in minima.items()]),
        **rescaling.orbit(first, s.mask_factors, s.hidden_factors, points=81),
        **rescaling.orbit_map(first, s.map_points),
    }


def _samples(s: Settings, device: torch.device, progress: Progress | None) -> dict[str, np.ndarray]:
    task = samples.Task(s.few_samples, s.few_inputs, s.sharpness)
    return {
        **samples.residuals(task, s.residual_widths, tuple(range(s.draws))),
        **samples.fits(task, s.fit_widths, s.seeds, steps=s.fit_steps, device=device),
        "relu_failure_rate": np.array([samples.relu_failures(10_000, n_samples=3, width=3, n_inputs=2)]),
    }
