r"""How narrow may a network be and still fit its sample? The smallest working width against the number of samples.

In a paired network two neurons share their weights at the start, so that the kernel has rank at most $\frac m2d_{in}$:
one output of $n$ samples needs $m\ge2n/d_{in}$ for a kernel that is not singular. This book's experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments.runs import ACTIVATIONS, Problem, over_runs, place, train
from attnbook.softmax_ntk.kernels import Activation, infinite_width_kernel

__all__ = ["Settings", "SmallestWidth", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        sizes: Numbers of samples, increasing.
        n_inputs: Number of inputs.
        widths: Numbers of neurons to try, increasing and even.
        target: Fraction of the first loss to reach.
        max_steps: Steps after which to give up.
        seeds: Seeds of data and weights.
        chunk: Seeds trained together.
    """

    sizes: tuple[int, ...] = (16, 32, 64)
    n_inputs: int = 8
    widths: tuple[int, ...] = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    target: float = 1e-2
    max_steps: int = 3000
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def __post_init__(self) -> None:
        for name in ("sizes", "widths"):
            if len(getattr(self, name)) < 2 or sorted(set(getattr(self, name))) != list(getattr(self, name)):
                raise ValueError(f"{name}: expected at least two increasing numbers, got {getattr(self, name)}")
        if any(m % 2 for m in self.widths):
            raise ValueError(f"widths: neurons in pairs need even widths, got {self.widths}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(3, 5), n_inputs=4, widths=(2, 4, 8), target=0.1, max_steps=100, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(sizes=(*cls.sizes, 128), widths=(*cls.widths, 96, 128, 192, 256), seeds=tuple(range(10)), chunk=10)


@dataclass(frozen=True)
class SmallestWidth(Result):
    """Smallest working widths; arrays ``(seeds, sizes, networks)``.

    Attributes:
        width: Smallest of the widths from which on every network of a seed reached the target; infinite where the
            widest did not.
        infinite_eigenvalue: Smallest eigenvalue of the kernel at infinite width, same data.
    """

    experiment: ClassVar[str] = "softmax_ntk.smallest_width"
    settings_type: ClassVar[type] = Settings

    width: Float[np.ndarray, "seeds sizes networks"]
    infinite_eigenvalue: Float[np.ndarray, "seeds sizes networks"]

    def counting_bound(self) -> Float[np.ndarray, " sizes"]:
        r"""Return $2n/d_{in}$, below which the kernel at the start is singular."""
        return 2 * np.array(self.settings.sizes) / self.settings.n_inputs

    def measurements(self) -> dict[str, Measurement]:
        """Return ratios to the counting bound and between networks, by claim id."""
        n, ratio = len(self.settings.seeds), self.width[:, :, 0] / self.counting_bound()
        low, high = over_runs(n, np.min, min_ratio_softmax=ratio), over_runs(n, np.max, max_ratio_softmax=ratio)
        return {
            "SN-MMIN": Measurement({**low.values, **high.values}, {**low.spread, **high.spread}, n),
            "SN-MMIN-order": over_runs(n, np.max, max_ratio_softmax_to_exp=self.width[:, :, 0] / self.width[:, :, 1]),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> SmallestWidth:
    """Try ever narrower networks, until every seed has failed to reach the target.

    Args:
        settings: Sizes, widths and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (groups of networks done, groups in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where, s = Clock(), place(device), settings

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        groups = [(size, activation) for size in s.sizes for activation in ACTIVATIONS]
        found = []
        with runtime.threads(1):
            for done, (size, activation) in enumerate(groups, 1):
                found.append(_smallest(s, size, activation, seeds, where))
                if inner:
                    inner(done, len(groups))
        samples = [[draw_sample(size, s.n_inputs, 1, seed=seed).inputs for size in s.sizes] for seed in seeds]
        eigenvalues = [
            [[np.linalg.eigvalsh(infinite_width_kernel(name, x))[0] for name in ACTIVATIONS] for x in row]
            for row in samples
        ]
        shape = (len(seeds), len(s.sizes), len(ACTIVATIONS))
        return {"width": np.stack(found, axis=1).reshape(shape), "infinite_eigenvalue": np.array(eigenvalues)}

    arrays = concatenate(by_seeds(s, part, clock=clock, workdir=workdir, progress=progress))
    return SmallestWidth(settings=s, provenance=clock.provenance(where), **arrays)


def _smallest(
    s: Settings, size: int, activation: Activation, seeds: tuple[int, ...], device: torch.device
) -> Float[np.ndarray, " seeds"]:
    """From the widest downwards; a seed is not tried again below a width at which it failed."""
    found, left = np.full(len(seeds), np.inf), np.arange(len(seeds))
    for width in reversed(s.widths):
        problem = Problem(activation, width, size, s.n_inputs)
        some = [seeds[k] for k in left]
        trained = train(problem, some, device=device, max_steps=s.max_steps, target=s.target)
        left = left[trained.descent.reached]
        if not len(left):
            break
        found[left] = width
    return found
