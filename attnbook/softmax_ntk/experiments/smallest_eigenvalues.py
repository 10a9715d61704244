"""How small is the smallest eigenvalue? Infinite-width kernels by samples, inputs and weight scale; rank of pairs.

The paper assumes that it is positive; the measurements are this book's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.conditioning import rank
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments.perturbed import Start
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, over_runs, place
from attnbook.softmax_ntk.experiments.summaries import range_of
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.stability_bounds import rank_bound, rank_bound_of_signs

__all__ = ["Settings", "SmallestEigenvalues", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        sizes: Numbers of samples, increasing; each is drawn anew.
        inputs: Numbers of inputs, increasing.
        scales: Standard deviations of the initial weights; one and two among them.
        scale_size: Number of samples where the scale varies, with the smallest number of inputs.
        rank_widths: Numbers of neurons of the networks whose rank is counted; 16 and 32 among them.
        rank_size: Number of their samples.
        rank_inputs: Number of their inputs.
        rank_outputs: Number of their outputs.
        seeds: Seeds of data and weights.
        chunk: Seeds kept together.
    """

    sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    inputs: tuple[int, ...] = (4, 16)
    scales: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0)
    scale_size: int = 32
    rank_widths: tuple[int, ...] = (8, 12, 16, 20, 24, 28, 32, 40, 48)
    rank_size: int = 24
    rank_inputs: int = 4
    rank_outputs: int = 2
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        for name, needed in {"scales": (1.0, 2.0), "rank_widths": (16, 32)}.items():
            if not set(needed) <= set(getattr(self, name)):
                raise ValueError(f"{name}: the rules need {needed} among them, got {getattr(self, name)}")
        for name in ("sizes", "inputs", "scales", "rank_widths"):
            values = getattr(self, name)
            if len(values) < 2 or sorted(set(values)) != list(values):
                raise ValueError(f"{name}: expected at least two increasing numbers, got {values}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(3, 5), inputs=(2, 7), scales=(1.0, 2.0), scale_size=5, rank_widths=(16, 32), rank_size=11,
                   rank_inputs=3, seeds=(0, 1), chunk=1)  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(sizes=(4, 8, 16, 32, 64, 128, 256), inputs=(4, 16, 64))


@dataclass(frozen=True)
class SmallestEigenvalues(Result):
    r"""Eigenvalues of kernels at infinite width, and ranks of kernels of paired networks.

    Attributes:
        smallest: Smallest eigenvalue by number of inputs, of samples and network.
        largest: Largest eigenvalue of the same kernels.
        inverse_condition: Smallest over largest eigenvalue by scale.
        ranks: Rank of the softmax kernel at the start, by width.
        sign_bound: Bound on it that knows the signs.
    """

    experiment: ClassVar[str] = "softmax_ntk.smallest_eigenvalues"
    settings_type: ClassVar[type] = Settings
    digits: ClassVar[int | None] = None

    smallest: Float[np.ndarray, "seeds inputs sizes networks"]
    largest: Float[np.ndarray, "seeds inputs sizes networks"]
    inverse_condition: Float[np.ndarray, "seeds scales networks"]
    ranks: Float[np.ndarray, "seeds rank_widths"]
    sign_bound: Float[np.ndarray, "seeds rank_widths"]

    def condition(self) -> Float[np.ndarray, "seeds inputs sizes networks"]:
        """Return largest over smallest eigenvalue."""
        return self.largest / self.smallest

    def counting_bound(self) -> Float[np.ndarray, " rank_widths"]:
        """Return the bound on the rank that counts features."""
        s = self.settings
        sizes = {"n_samples": s.rank_size, "n_outputs": s.rank_outputs, "n_inputs": s.rank_inputs}
        return np.array([rank_bound(**sizes, width=m) for m in s.rank_widths], dtype=float)

    def measurements(self) -> dict[str, Measurement]:
        """Return eigenvalues, condition numbers and ranks, by claim id."""
        s, n = self.settings, len(self.settings.seeds)
        condition, inverse = self.condition()[:, 0, -1], self.inverse_condition
        rising = (np.diff(inverse[..., 0], axis=1) > 0).all(axis=1).astype(float)
        one, two = s.scales.index(1.0), s.scales.index(2.0)
        rows = s.rank_size * s.rank_outputs
        deficits = {f"rank_deficit_at_m{m}": rows - self.ranks[:, s.rank_widths.index(m)] for m in (16, 32)}
        conditions = over_seeds(
            inverse_condition_softmax_sigma1=inverse[:, one, 0],
            inverse_condition_softmax_sigma2=inverse[:, two, 0],
            inverse_condition_relu=inverse[:, one, 2],
        )
        return {
            "SN-LAM-positive": over_runs(n, np.min, min_smallest_eigenvalue=self.smallest),
            "SN-LAM": over_runs(n, np.max, max_ratio_n64_to_n4=self.smallest[:, :, -1] / self.smallest[:, :, 0]),
            "SN-LAM-dimension": over_seeds(condition_softmax=condition[:, 0], condition_relu=condition[:, 2]),
            "SN-LAMS": Measurement(
                {"share_increasing": float(rising.mean()), **conditions.values},
                {"share_increasing": range_of(rising), **conditions.spread},
                n,
            ),
            "SN-RANK": over_runs(n, np.max, max_rank_minus_bound=self.ranks - self.counting_bound()),
            "SN-RANK-full": over_seeds(**deficits),
            "SN-RANK-signs": over_runs(n, np.max, max_distance_to_bound=np.abs(self.ranks - self.sign_bound)),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> SmallestEigenvalues:
    """Compute eigenvalues of closed-form kernels and ranks of kernels of narrow networks.

    Args:
        settings: Sizes and seeds.
        device: Checked and named in the provenance; the eigenvalues are computed on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    place(device)
    arrays = seed_by_seed(
        settings, lambda seed: _one_seed(settings, seed), clock=clock, workdir=workdir, progress=progress
    )
    return SmallestEigenvalues(settings=settings, provenance=clock.provenance(torch.device("cpu")), **arrays)


def _one_seed(s: Settings, seed: int) -> dict[str, np.ndarray]:
    ends = np.array([[_ends(_inputs(n, d, seed), 1.0) for n in s.sizes] for d in s.inputs])
    scaled = np.array([_ends(_inputs(s.scale_size, s.inputs[0], seed), scale) for scale in s.scales])
    starts = [
        Start(Problem("softmax", m, s.rank_size, s.rank_inputs, s.rank_outputs), (seed,), torch.device("cpu"))
        for m in s.rank_widths
    ]
    bounds = [
        rank_bound_of_signs(start.networks.signs[0].numpy(), n_samples=s.rank_size, n_inputs=s.rank_inputs)
        for start in starts
    ]
    return {
        "smallest": ends[..., 0],
        "largest": ends[..., 1],
        "inverse_condition": scaled[..., 0] / scaled[..., 1],
        "ranks": np.array([rank(start.kernel).item() for start in starts]),
        "sign_bound": np.array(bounds),
    }


def _inputs(n_samples: int, n_inputs: int, seed: int) -> np.ndarray:
    return draw_sample(n_samples, n_inputs, 1, seed=seed).inputs


def _ends(inputs: np.ndarray, scale: float) -> list[list[float]]:
    """Smallest and largest eigenvalue of each network's kernel at infinite width."""
    spectra = [np.linalg.eigvalsh(infinite_width_kernel(name, inputs, scale=scale)) for name in ACTIVATIONS]
    return [[float(spectrum[0]), float(spectrum[-1])] for spectrum in spectra]
