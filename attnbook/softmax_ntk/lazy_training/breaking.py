"""The experiments on what breaks lazy training: steps that are too long, networks that are too narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, highest, lowest
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.kernels import Activation
from attnbook.softmax_ntk.lazy_bounds import step_size_of_theorem
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.sweeps import Sweep, over
from attnbook.softmax_ntk.training import ACTIVATIONS, Problem, Trained

NETWORKS = list(ACTIVATIONS)
SMOOTH: list[Activation] = ["softmax", "exp"]
SINGULAR = 1e-9  # smallest over largest eigenvalue below which a kernel is singular: the theorem excludes it


@dataclass(frozen=True, kw_only=True)
class StepSize(Sweep):
    r"""Step sizes around the limit $2/(m\lambda_{\max}(H^*))$ of linear theory, beside that of Theorem 4.2."""

    id = "softmax_ntk.step_size"
    summary = "Usable step sizes, the catapult beyond them, and the theorem's"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {
        "fractions": (1.0, 1.9, 2.2), "n_samples": 5, "n_inputs": 7, "width": 64, "max_steps": 100, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip
    large: ClassVar[Mapping[str, Any]] = {"n_samples": 64, "n_inputs": 64, "width": 4096, "chunk": 1}

    fractions: tuple[float, ...] = (
        0.25,
        0.5,
        1.0,
        1.5,
        1.9,
        2.2,
        2.6,
        3.0,
        4.0,
        6.0,
        10.0,
    )  # step sizes, times m λ_max
    usable: float = 1.9  # the largest that the claim calls usable
    beyond: float = 2.2  # the one just beyond the limit
    n_outputs: int = 2  # of the networks
    width: int = 512  # number of neurons
    max_steps: int = 600  # after which to give up
    seeds: tuple[int, ...] = tuple(range(10, 20))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {self.usable, self.beyond} <= set(self.fractions):
            raise ValueError(f"usable, beyond: expected some of fractions {self.fractions}")

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Vary step sizes and networks."""
        return {"fraction": self.fractions, "network": NETWORKS}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train with every step size."""

        def one(fraction: float, activation: Activation) -> dict[str, np.ndarray]:
            problem = self.problem(activation, self.width, n_outputs=self.n_outputs)
            run = self.trained(problem, seeds, device, fraction=fraction)
            rises = [np.diff(run.descent.loss[: n + 1, k]).max() > 0 for k, n in enumerate(run.descent.steps)]
            return {
                "steps": run.descent.steps.astype(float), "reached": run.descent.reached.astype(float),
                "diverged": run.descent.diverged.astype(float), "rises": (rises | run.descent.diverged).astype(float),
                "sharpness": _sharpness(run, fraction), "ratio_to_theorem": 1 / (fraction * step_size_ratio(run)),
            }  # fmt: skip

        return over(["fraction", "network"], self.axes(), one, seeds, progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off usable step sizes, the catapult, and the theorem's step size."""
        below, beyond = data.sel(fraction=slice(self.usable)), data.sel(fraction=self.beyond, network=SMOOTH)
        caught = beyond.rises * beyond.reached * (beyond.sharpness < 2)
        return {
            "SN-ETA": {
                "share_usable": ((1 - below.rises) * below.reached).mean(),
                "share_caught": caught.mean(),
                "ratio_to_theorem": data.ratio_to_theorem.sel(fraction=1.0, network="softmax"),
            }
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SmallestWidth(Sweep):
    r"""The smallest width that still fits, beside $2n/d_{in}$, below which a paired kernel is singular."""

    id = "softmax_ntk.smallest_width"
    summary = "The smallest working width against the number of samples, beside a counting bound"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {
        "sizes": (3, 5), "n_inputs": 4, "widths": (2, 4, 8), "target": 0.1, "max_steps": 100, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip
    large: ClassVar[Mapping[str, Any]] = {
        "sizes": (16, 32, 64, 128), "widths": (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
        "seeds": tuple(range(10)), "chunk": 10,
    }  # fmt: skip

    n_inputs: int = 8  # few, so that there is something to count
    sizes: tuple[int, ...] = (16, 32, 64)  # numbers of samples
    widths: tuple[int, ...] = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # to try, increasing
    target: float = 1e-2  # part of the first loss to reach
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 3

    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Vary numbers of samples and networks."""
        return {"size": self.sizes, "network": NETWORKS}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Try ever narrower networks; a seed that has failed is not tried again."""

        def one(size: int, activation: Activation) -> dict[str, np.ndarray]:
            found, left = np.full(len(seeds), np.inf), np.arange(len(seeds))
            for width in reversed(self.widths):
                problem = Problem(activation, width, size, self.n_inputs)
                left = left[self.trained(problem, tuple(seeds[k] for k in left), device).descent.reached]
                if not len(left):
                    break
                found[left] = width
            return {"smallest": found}

        return over(["size", "network"], self.axes(), one, seeds, progress)

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold the smallest widths against the counting bound, and softmax against exp."""
        ratio = data.smallest * self.n_inputs / (2 * data["size"])
        softmax, exp = (ratio.sel(network=name) for name in SMOOTH)
        within = (softmax >= 0.4) & (softmax <= 4)
        return {"SN-MMIN": {
            "share_near": within.mean(), "smallest": lowest(softmax), "largest": highest(softmax),
            "largest_any": highest(ratio), "share_below_exp": (softmax <= exp).mean(),
        }}  # fmt: skip


def step_size_ratio(run: Trained) -> np.ndarray:
    """Theorem 4.2's step size at the smallest B it allows, over the one taken."""
    sizes = {"n_samples": run.inputs.shape[1], "n_outputs": run.labels.shape[1], "width": run.start.width}
    floor = SINGULAR * run.eigenvalues[:, -1]
    theorem = [step_size_of_theorem(float(e), **sizes) for e in np.maximum(run.eigenvalues[:, 0], floor)]
    return np.array(theorem) / run.step_size.cpu().double().numpy()


def _sharpness(run: Trained, fraction: float) -> np.ndarray:
    r"""$m\eta\lambda_{\max}(H)$ where training ended; above 2 a linear model diverges. Infinite after divergence."""
    found, kept = np.full(len(run.eigenvalues), np.inf), np.flatnonzero(~run.descent.diverged)
    if len(kept):
        kernel = ntk_gram(run.descent.networks.subset(kept), run.inputs[kept])
        found[kept] = fraction * torch.linalg.eigvalsh(kernel)[:, -1].cpu().double().numpy() / run.eigenvalues[kept, -1]
    return found
