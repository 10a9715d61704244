"""The experiment of the chapter: direction, length and loss of logistic regression along very many steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.max_margin import max_margin
from attnbook.core.runtime import Progress
from attnbook.implicit_bias.logistic import descend, draw_samples

__all__ = ["Direction"]


@dataclass(frozen=True, kw_only=True)
class Direction(Experiment):
    """Gradient descent on separable samples; claims are measured where all but two keep clear of the best line."""

    id = "implicit_bias.direction"
    summary = "Direction, length and loss of logistic regression on separable data"
    needs = "float64"
    smoke = {"n_samples": 5, "powers": (0, 1, 2), "seeds": (0, 1), "chunk": 1}

    n_samples: int = 10  # of each problem
    clearances: tuple[float, float] = (2.0, 1.0)  # distance of all others from the line, over that of the two nearest
    step_size: float = 0.5  # below 8 over the largest eigenvalue of the mean of z z' on all our seeds
    powers: tuple[int, int, int] = (3, 4, 5)  # of ten: steps at which claims are measured; the last ends training
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def coordinates(self) -> dict[str, Any]:
        """Name the recorded steps, eight in each power of ten, and the two kinds of samples."""
        steps = np.logspace(0, self.powers[-1], 8 * self.powers[-1] + 1).round().astype(int)
        return {"step": np.unique(steps).tolist(), "clearance": list(self.clearances)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Descend on all problems at once, and compare with the smallest weights that give every sample at least 1."""
        samples = np.array([[draw_samples(self.n_samples, c, seed) for seed in seeds] for c in self.clearances])
        best = max_margin(samples.reshape(-1, self.n_samples, 2), p=2.0).weights.reshape(samples[..., 0, :].shape)
        weights, loss = descend(samples, self.step_size, self.coordinates()["step"], device, progress)
        across = weights[..., 0] * best[..., 1] - weights[..., 1] * best[..., 0]
        each = ("clearance", "seed")
        return {
            "samples": ((*each, "sample", "axis"), samples),
            "best": ((*each, "axis"), best),
            "margin": (each, 1 / np.linalg.norm(best, axis=-1)),
            "weights": (("step", *each, "axis"), weights),
            "angle": (("step", *each), np.degrees(np.abs(np.arctan2(across, (weights * best).sum(-1))))),
            "norm": (("step", *each), np.linalg.norm(weights, axis=-1)),
            "loss": (("step", *each), loss),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Compare two decades of steps with each other, and with what the theory says of both together."""
        data, last = data.sel(clearance=self.clearances[0]), [10**power for power in self.powers]
        logs, before, after = np.log(last[-1] / last[0]), data.sel(step=last[0]), data.sel(step=last[-1])
        gains = (1 / data.angle.sel(step=last)).diff("step")
        constant = last[-1] * after.loss * data.margin**2 * self.step_size
        return {
            "IB-DIR": {"gain_over_gain": gains[1] / gains[0], "degrees": after.angle},
            "IB-NORM": {"slope_times_margin": (after.norm - before.norm) / logs * data.margin},
            "IB-LOSS": {"exponent": np.log(after.loss / before.loss) / logs, "constant": constant},
        }
