"""The experiment on what breaks lazy training: steps that are too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation
from attnbook.softmax_ntk.lazy_bounds import step_size_of_theorem
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.sweeps import Sweep, over
from attnbook.softmax_ntk.training import Trained

SMOOTH: list[Activation] = ["softmax", "exp"]
SINGULAR = 1e-9  # smallest over largest eigenvalue below which a kernel is singular: the theorem excludes it


@dataclass(frozen=True, kw_only=True)
class StepSize(Sweep):
    r"""Step sizes around the limit $2/(m\lambda_{\max}(H^*))$ of linear theory, beside that of Theorem 4.2."""

    id = "softmax_ntk.step_size"
    summary = "Usable step sizes, the catapult beyond them, and the theorem's"
    needs = "float64"
    budget_seconds = 30
    smoke = {
        "fractions": (1.0, 1.9, 2.2), "n_samples": 5, "n_inputs": 7, "width": 64, "max_steps": 100, "seeds": (0, 1),
        "chunk": 1,
    }  # fmt: skip
    full = {"n_samples": 64, "n_inputs": 64, "width": 4096, "chunk": 1}

    fractions: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 1.9, 2.2, 2.6, 3.0, 4.0, 6.0, 10.0)  # step sizes times m λ_max
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
        return {"fraction": self.fractions, "network": ACTIVATIONS}

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


def step_size_ratio(run: Trained) -> np.ndarray:
    """Theorem 4.2's step size at the smallest B it allows, over the one taken."""
    sizes = {"n_samples": run.inputs.shape[1], "n_outputs": run.labels.shape[1], "width": run.start.width}
    floor = SINGULAR * run.eigenvalues[:, -1]
    theorem = [step_size_of_theorem(float(e), **sizes) for e in np.maximum(run.eigenvalues[:, 0], floor)]
    return np.array(theorem) / run.step_size.cpu().double().numpy()


def _sharpness(run: Trained, fraction: float) -> np.ndarray:
    r"""$m\eta\lambda_{\max}(H)$ where training ended; above 2 a linear model diverges. Infinite after divergence."""
    top = torch.linalg.eigvalsh(ntk_gram(run.descent.networks, run.inputs))[:, -1].cpu().double().numpy()
    return np.where(run.descent.diverged, np.inf, fraction * top / run.eigenvalues[:, -1])
