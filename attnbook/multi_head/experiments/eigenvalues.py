r"""All eigenvalues of the Hessian of the loss, counted exactly, for one seed and many numbers of heads.

The numbers behind the slider of the chapter on curvature; no claim rests on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import spectrum
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import derivatives, network
from attnbook.multi_head.experiments import points, samples

__all__ = ["SHOWN", "Eigenvalues", "Settings", "run"]

SHOWN = ("random", "trained", "lone")


@dataclass(frozen=True)
class Settings(points.Settings):
    """Sizes: those of the experiment on curvature, with more numbers of heads and one seed.

    Attributes:
        heads: Numbers of heads, increasing.
        seeds: Seeds; the first is shown.
        bin_width: Width of a bin, in units of the loss; zero lies in the middle of one.
        bins_below: Bins left of the one around zero.
        bins_above: Bins right of the one around zero.
    """

    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seeds: tuple[int, ...] = (0,)
    bin_width: float = 0.00625
    bins_below: int = 26
    bins_above: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bin_width > 0:
            raise ValueError(f"bin_width: expected a positive number, got {self.bin_width}")
        if self.bins_below < 1 or self.bins_above < 1:
            raise ValueError(f"bins_below, bins_above: expected at least 1, got {self.bins_below}, {self.bins_above}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(heads=(1, 4), steps=10, bins_below=2, bins_above=5)

    @classmethod
    def paper(cls) -> Self:
        """Return more heads; the paper shows no eigenvalues."""
        return cls(heads=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), seeds=(0, 1, 2, 3, 4))

    @property
    def edges(self) -> Float[np.ndarray, " edges"]:
        """Ends of the bins, in units of the loss; never zero, which is an eigenvalue and cannot be counted at."""
        return self.bin_width * (np.arange(-self.bins_below, self.bins_above + 2) - 0.5)


@dataclass(frozen=True)
class Eigenvalues(Result):
    """How many eigenvalues lie where, with the points of :data:`SHOWN`.

    Attributes:
        counts: Eigenvalues in each bin, ``(seeds, points, heads, bins)``; the first and the last bin also hold what
            lies beyond.
        negative: Eigenvalues below minus a thousandth of the loss, ``(seeds, points, heads)``.
        smallest: Smallest eigenvalue in units of the loss, ``(seeds, points, heads)``.
    """

    experiment: ClassVar[str] = "multi_head.eigenvalues"
    settings_type: ClassVar[type] = Settings

    counts: Float[np.ndarray, "seeds points heads bins"]
    negative: Float[np.ndarray, "seeds points heads"]
    smallest: Float[np.ndarray, "seeds points heads"]

    def measurements(self) -> dict[str, Measurement]:
        """Return nothing: no claim rests on this experiment."""
        return {}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Eigenvalues:
    """Count the eigenvalues of the Hessian at random, trained and lone points.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU. Counting is done on the CPU.
        progress: Told (head counts done, head counts in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        batch = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)[:2]
        rows = []
        for number, n_heads in enumerate(settings.heads, 1):
            found = points.draw_points(settings, n_heads, seeds, batch)
            rows.append([[_count(settings, found[name], batch, member) for name in SHOWN]
                         for member in range(len(seeds))])  # fmt: skip
            if inner:
                inner(number, len(settings.heads))
        names = rows[0][0][0]
        stacked = {name: np.array([[[p[name] for p in seed] for seed in row] for row in rows]) for name in names}
        return {name: np.moveaxis(array, 0, 2) for name, array in stacked.items()}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return Eigenvalues(settings=settings, provenance=clock.provenance(where), **arrays)


def _count(
    settings: Settings, parameters: dict[str, torch.Tensor], batch: network.Batch, member: int
) -> dict[str, np.ndarray]:
    own = {name: tensor[member] for name, tensor in parameters.items()}
    hessian = derivatives.loss_hessian(own, batch[0][member], batch[1][member])
    loss = float(network.losses(parameters, batch)[member])
    below = hessian.count_below(loss * np.append(settings.edges[1:-1], -1e-3))
    counts = np.diff(below[:-1], prepend=0, append=hessian.size)
    smallest, _ = spectrum.extreme_eigenvalues(hessian.product, hessian.size, dense_below=300, tolerance=1e-3)
    return {"counts": counts, "negative": below[-1], "smallest": np.array(smallest / loss)}
