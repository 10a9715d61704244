"""Theorem 1 inside its own hypotheses: a problem so small that the printed constants can be met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head.checks import at_least, positive
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.data import double_device
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.on_mixture import Stack

SIZES: dict[str, Any] = {"n_tokens": 2, "dimension": 2, "token_norm": 1.0}


@dataclass(frozen=True, kw_only=True)
class InsideTheorem(Experiment):
    r"""Theorem 1 inside its own hypotheses, with the constants of Section 6.1 and the step size $1/\rho$.

    Two tokens in the plane: one is the label times the first unit vector, the other at most half of the second. The
    target lies along the direction of largest tangent-kernel margin.
    """

    id = "multi_head.inside_theorem"
    summary = "Theorem 1 inside its own hypotheses: two tokens, constants as printed, two hundred thousand steps"
    budget_seconds = 60
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 300, "seeds": (0, 1)}

    n_samples: int = 20  # training samples
    n_heads: float = 1e12  # half of them with each sign
    distance: float = 2.17  # of the target; of those that meet the hypotheses, about that of the smallest bound
    steps: int = 210_000  # of gradient descent
    records: int = 30  # log-spaced steps to keep

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, n_samples=self.n_samples, steps=self.steps)
        positive(distance=self.distance)

    def coordinates(self) -> dict[str, Any]:
        """Name steps and hypotheses."""
        hypotheses = ["heads", "loss of the target", "loss at the start"]
        return {"step": list(log_spaced(self.steps, self.records)), "hypothesis": hypotheses}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Hold the target against the hypotheses, and train."""
        drawn, where = zip(*map(self._two_tokens, seeds), strict=True), double_device(device)
        tokens, labels = (torch.tensor(np.stack(part), device=where) for part in drawn)
        counts = tokens.new_full((len(seeds), 2), self.n_heads / 2)
        stack, square = Stack(starts.first_phase(tokens, labels), counts, tokens, labels, tokens), self.distance**2
        with threads(1):
            target = stack.towards(stack.tangent().direction, np.full(len(seeds), self.distance))
            sizes = SIZES | {"head_norm": largest_head_norm(target).cpu().numpy(), "distance": self.distance}
            eta = np.minimum(1.0, 1 / theory.smoothness(**sizes, n_heads=self.n_heads))
            loss, at_start = (np.asarray(stack.losses(one).cpu()) for one in (target, stack.start))
            enough = theory.sketch_heads(**sizes) / self.n_heads
            history = self._followed(stack, target, eta, progress)
        asked = np.stack([enough, eta * self.steps * loss / square, eta * at_start / square], axis=1)
        return {
            "step_size": (("seed",), eta),
            "target_loss": (("seed",), loss),
            "asked": (("seed", "hypothesis"), asked),
        } | {name: (("seed", "step"), values) for name, values in history.items()}

    def _two_tokens(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples and labels of one seed."""
        rng, n = stream(seed, "two tokens"), self.n_samples
        labels = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
        tokens, relevant = np.zeros((n, 2, 2)), rng.integers(0, 2, n)
        tokens[np.arange(n), relevant, 0] = labels
        tokens[np.arange(n), 1 - relevant, 1] = rng.uniform(-1, 1, n) / 2
        return tokens, labels

    def _followed(
        self, stack: Stack, target: Parameters, step_size: np.ndarray, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        r"""Train and record losses, distances, descent over what (13) states, and $\beta_2$ of Corollary 1."""
        rate, kept = torch.tensor(step_size).to(stack.tokens)[:, None, None, None], self.coordinates()["step"]
        objective, now, losses, records = logistic(stack.labels), stack.start, [], []
        for step in range(self.steps + 2):
            value, gradient = layer.value_and_gradient(now, stack.tokens, objective, counts=stack.counts)
            losses.append(value)
            if step in kept:
                away, apart = ({n: now[n] - other[n] for n in now} for other in (stack.start, target))
                norms = [head_groups.norm(one, counts=stack.counts) for one in (away, apart, gradient)]
                records.append(torch.stack([*norms, largest_head_norm(now)]).cpu().numpy())
                if progress:
                    progress(step, self.steps)
            now = {n: now[n] - rate * gradient[n] for n in now}
        loss = torch.stack(losses).cpu().numpy()
        distance, from_target, slope, head_norm = np.moveaxis(np.array(records), 0, 2)
        fell = (loss[:-1] - loss[1:])[kept].T / (step_size[:, None] / 2 * slope**2)
        beta_2 = loss_constants(**SIZES, n_heads=self.n_heads, largest_head_norm=head_norm).smoothness
        return {"loss": loss[kept].T, "average": averages(loss)[kept].T, "distance": distance,
                "from_target": from_target, "descent": fell, "smoothness": beta_2}  # fmt: skip

    def bound(self, data: xr.Dataset) -> xr.DataArray:
        """Return eq. (4) after each recorded step but the start."""
        later = data.step.isel(step=slice(1, None))
        return theory.regret_bound(
            target_loss=data.target_loss, distance=self.distance, step_size=data.step_size, steps=later
        )

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold averages, distances, descent and smoothness against what is stated."""
        later, bound = data.isel(step=slice(1, None)), self.bound(data)
        return {
            "MH-T1.1-regret": {
                "largest_asked": highest(data.asked),
                "largest_ratio": highest(later.average / bound),
                "largest_last": highest(later.loss / later.average),
                "bound_at_the_end": highest(bound.isel(step=-1)),
                "smallest_descent": lowest(data.descent),
                "smallest_rho_over_beta_2": lowest(1 / (data.smoothness * data.step_size)),
            },
            "MH-T1.2": {
                "largest_ratio": highest(data.distance / (4 * self.distance)),
                "largest_from_target": highest(data.from_target / (3 * self.distance)),
            },
        }


def averages(loss: np.ndarray) -> np.ndarray:
    """The average over steps 1 to each one along the first axis; the loss itself at step 0."""
    steps = np.arange(1, len(loss)).reshape(-1, *[1] * (loss.ndim - 1))
    return np.concatenate([loss[:1], np.cumsum(loss[1:], axis=0) / steps])
