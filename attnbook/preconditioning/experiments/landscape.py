r"""Theorem 1: does the gradient point back to the minima, how strongly, and is any point worse than the bound?

Random directions see little of a worst case. So for each problem and distance a search goes down the ratio
$\langle\nabla,H\rangle/(s_d\|H\|^2)$ of (3), and another up the ratio $\|\nabla\|/(s_1\|H\|)$ of (4), over all
displacements of that length; both gradients are closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.preconditioning.experiments.one_sided import one_sided_ratio
from attnbook.preconditioning.theory import landscape
from attnbook.preconditioning.theory.manifold import minimum, sideways

__all__ = ["Landscape", "Settings", "run"]

# Points lie this much inside their distance, so that rounding cannot decide where a bound is attained.
INSIDE = 1 - 1e-9
# Just outside the radius of Theorem 1.
BEYOND = 0.81


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        outputs: Numbers of outputs $m$: one equal to the dimension, one larger.
        largest: Largest singular value $s_1$ of $A\Sigma^{1/2}$.
        spreads: $s_d/s_1$; the other singular values are drawn between.
        squared_distances: $r=\|H\|^2/s_d$, increasing, with the radius 0.8 among them, below 2.
        directions: Random directions per distance.
        starts: Searches per distance.
        search_steps: Steps of each search.
        condition_number: $\kappa(\Sigma)$ for the one-sided norm.
        seeds: One set of problems per seed.
        chunk: Seeds kept together.
    """

    dimension: int = 5
    outputs: tuple[int, ...] = (5, 8)
    largest: float = 0.4
    spreads: tuple[float, ...] = (1.0, 0.5, 0.25)
    squared_distances: tuple[float, ...] = (0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.4, 1.9)
    directions: int = 300
    starts: int = 4
    search_steps: int = 120
    condition_number: float = 10.0
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if len(self.outputs) != 2 or self.outputs[0] != self.dimension or self.outputs[1] <= self.dimension:
            raise ValueError(
                f"outputs: expected the dimension, {self.dimension}, and a larger number, got {self.outputs}"
            )
        if not all(0 < spread <= 1 for spread in self.spreads):
            raise ValueError(f"spreads: expected numbers above 0 and at most 1, got {self.spreads}")
        distances = self.squared_distances
        if landscape.RADIUS not in distances or not 0 < min(distances) <= max(distances) < landscape.SADDLE:
            raise ValueError(
                f"squared_distances: expected numbers between 0 and 2 with 0.8 among them, got {distances}"
            )
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(dimension=2, outputs=(2, 3), spreads=(1.0, 0.5), squared_distances=(0.4, 0.8), directions=20,
                   starts=2, search_steps=80, seeds=(0, 1), chunk=1)  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem, more seeds and longer searches; the paper has a proof in their place."""
        return cls(dimension=10, outputs=(10, 15), directions=2000, starts=16, search_steps=400, seeds=tuple(range(20)))


@dataclass(frozen=True)
class Landscape(Result):
    r"""Ratios of Theorem 1; arrays ``(seeds, outputs, spreads, distances)`` unless stated.

    Attributes:
        random_smallest: Smallest $\langle\nabla,H\rangle/(s_d\|H\|^2)$ over random directions.
        random_median: Median of it.
        random_largest: Largest $\|\nabla\|/(s_1\|H\|)$ over random directions.
        found_smallest: Smallest ratio of (3) that the search found.
        found_largest: Largest ratio of (4) that the search found.
        worst: Ratio of (3) in the direction that makes the bound an equality, for an output to spare.
        beyond: The same just outside the radius, ``(seeds, outputs, spreads)``.
        one_sided: Smallest ratio of (3) in the one-sided norm, ``(seeds, outputs, spreads)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "preconditioning.landscape"
    settings_type: ClassVar[type] = Settings

    random_smallest: Float[np.ndarray, "seeds outputs spreads distances"]
    random_median: Float[np.ndarray, "seeds outputs spreads distances"]
    random_largest: Float[np.ndarray, "seeds outputs spreads distances"]
    found_smallest: Float[np.ndarray, "seeds outputs spreads distances"]
    found_largest: Float[np.ndarray, "seeds outputs spreads distances"]
    worst: Float[np.ndarray, "seeds outputs spreads distances"]
    beyond: Float[np.ndarray, "seeds outputs spreads"]
    one_sided: Float[np.ndarray, "seeds outputs spreads"]

    @property
    def smallest(self) -> Float[np.ndarray, "seeds outputs spreads distances"]:
        """The smallest ratio of (3) over everything that was tried."""
        return np.minimum(np.minimum(self.random_smallest, self.found_smallest), self.worst)

    @property
    def largest(self) -> Float[np.ndarray, "seeds outputs spreads distances"]:
        """The largest ratio of (4) over everything that was tried."""
        return np.maximum(self.random_largest, self.found_largest)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        distances = np.array(self.settings.squared_distances)
        within = distances <= landscape.RADIUS
        bound = landscape.one_point_bound(torch.tensor(distances)).numpy()
        sharp = np.array([_growing(distances, spread) for spread in self.settings.spreads])
        shrinking = landscape.shrinking_ratio(torch.tensor(distances * INSIDE)).numpy()
        inside = self.smallest[..., within]
        return {
            "PC-T1.3": extremes_over_seeds(smallest_ratio=inside),
            "PC-T1.3-tight": extremes_over_seeds(smallest_ratio=inside),
            "PC-T1.3-sharp": extremes_over_seeds(
                smallest_margin=inside - bound[within],
                largest_gap=np.abs(self.worst[:, 1:, :, within] - bound[within]),
                largest_ratio_beyond=self.beyond[:, 1:],
            ),
            "PC-T1.3-square": extremes_over_seeds(
                smallest_margin=self.smallest[:, 0] - shrinking,
                largest_gap=np.abs(self.found_smallest[:, 0] - shrinking),
            ),
            "PC-T1.3-left": extremes_over_seeds(smallest_ratio=self.one_sided),
            "PC-T1.3-left-sharp": extremes_over_seeds(smallest_ratio=self.one_sided),
            "PC-T1.4": extremes_over_seeds(largest_ratio=self.largest[..., within]),
            "PC-T1.4-sharp": extremes_over_seeds(
                largest_excess=self.largest - sharp, largest_gap=np.abs(self.found_largest - sharp)
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Landscape:
    """Try random and adversarial displacements from the minima.

    Args:
        settings: Sizes, problems, searches and seeds.
        device: Where to compute; default the first of cuda, mps and cpu. Always in float64, which mps lacks.
        progress: Told (numbers of outputs done, all of them).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)
    where = torch.device("cpu") if where.type == "mps" else where
    measure = partial(_of_seeds, settings, where)
    parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return Landscape(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _of_seeds(
    settings: Settings, where: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    """All ratios of a few seeds, one number of outputs after the other."""
    found = []
    for number, outputs in enumerate(settings.outputs, 1):
        found.append(_of_outputs(settings, where, seeds, outputs))
        if progress:
            progress(number, len(settings.outputs))
    return {name: np.stack([one[name] for one in found], axis=1) for name in found[0]}


def _of_outputs(settings: Settings, where: torch.device, seeds: tuple[int, ...], outputs: int) -> dict[str, np.ndarray]:
    """All ratios for one number of outputs, ``(seeds, spreads, ...)``; displacements add ``(distances, draws)``."""
    distances = np.array(settings.squared_distances) * INSIDE
    streams = [[stream(seed, "landscape", outputs, str(spread)) for spread in settings.spreads] for seed in seeds]
    drawn = [[_draw(settings, outputs, *pair) for pair in zip(row, settings.spreads, strict=True)] for row in streams]
    values, maps, draws = (
        to_tensor(np.array([[one[i] for one in row] for row in drawn]), device=where, dtype=torch.float64)
        for i in range(3)
    )
    bases = minimum(maps)
    whitened_map, base = maps[:, :, None, None], bases[:, :, None, None]
    weakest, strongest = values[..., -1, None, None], values[..., 0, None, None]
    lengths = (to_tensor(distances, device=where, dtype=torch.float64)[:, None] * weakest).sqrt()
    ratios = partial(_ratios, base=base, whitened_map=whitened_map, weakest=weakest, strongest=strongest)
    convex, smooth = ratios(_of_length(draws[..., settings.starts :, :, :], base, lengths))
    search = partial(_search, draws[..., : settings.starts, :, :], base, lengths, whitened_map, settings.search_steps)
    reached = [*distances, BEYOND]
    directions = [torch.stack([landscape.worst_direction(one, r) for r in reached]) for one in bases.flatten(0, 1)]
    worst, _ = ratios(torch.stack(directions).unflatten(0, bases.shape[:2]).unsqueeze(3))
    pairs = zip(values.flatten(0, 1), [rng for row in streams for rng in row], strict=True)
    cost = [one_sided_ratio(v, outputs, settings.condition_number, settings.directions, rng) for v, rng in pairs]
    return {
        "random_smallest": convex.amin(-1).cpu().numpy(),
        "random_median": convex.median(-1).values.cpu().numpy(),
        "random_largest": smooth.amax(-1).cpu().numpy(),
        "found_smallest": ratios(search(convex=True))[0].amin(-1).cpu().numpy(),
        "found_largest": ratios(search(convex=False))[1].amax(-1).cpu().numpy(),
        "worst": worst[..., :-1, 0].cpu().numpy(),
        "beyond": worst[..., -1, 0].cpu().numpy(),
        "one_sided": np.reshape(cost, bases.shape[:2]),
    }


def _draw(
    settings: Settings, outputs: int, rng: np.random.Generator, spread: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular values, whitened map, and directions for searches and for chance, of one problem."""
    d = settings.dimension
    between = np.sort(rng.uniform(spread, 1, d))[::-1]
    between[0], between[-1] = 1.0, spread
    left, right = (np.linalg.qr(rng.standard_normal((size, d)))[0] for size in (outputs, d))
    count = (len(settings.squared_distances), settings.starts + settings.directions)
    singular_values = settings.largest * between
    return singular_values, (left * singular_values) @ right.T, rng.standard_normal((*count, outputs + d, d))


def _ratios(
    displacement: Tensor, *, base: Tensor, whitened_map: Tensor, weakest: Tensor, strongest: Tensor
) -> tuple[Tensor, Tensor]:
    """The ratios of (3) and of (4)."""
    slope = landscape.gradient(base + displacement, whitened_map)
    length = torch.linalg.matrix_norm(displacement)
    convex = (slope * displacement).sum((-2, -1)) / (weakest * length.square())
    return convex, torch.linalg.matrix_norm(slope) / (strongest * length)


def _of_length(direction: Tensor, base: Tensor, length: Tensor) -> Tensor:
    """Directions that lead away from the minima, as displacements of given length."""
    away = sideways(direction, base)
    return away * ((length / torch.linalg.matrix_norm(away))[..., None, None])


def _search(draws: Tensor, base: Tensor, length: Tensor, whitened_map: Tensor, steps: int, *, convex: bool) -> Tensor:
    r"""Walk over displacements of a length, down $\langle\nabla,H\rangle$ or up $\|\nabla\|$, with shrinking steps."""
    at = _of_length(draws, base, length)
    scale = length[..., None, None]
    for step in range(steps):
        point = base + at
        slope = landscape.gradient(point, whitened_map)
        if convex:
            uphill = -slope - landscape.curvature(point, at, whitened_map)
        else:
            uphill = landscape.curvature(point, slope, whitened_map)
        uphill = sideways(uphill, base)
        uphill = uphill - at * ((uphill * at).sum((-2, -1), keepdim=True) / scale.square())
        size = torch.linalg.matrix_norm(uphill)[..., None, None].clamp(min=1e-300)
        at = _of_length(at + 0.3 * (1 - step / steps) * scale * uphill / size, base, length)
    return at


def _growing(distances: np.ndarray, spread: float) -> np.ndarray:
    return landscape.growing_ratio(torch.tensor(distances * INSIDE), spread).numpy()
