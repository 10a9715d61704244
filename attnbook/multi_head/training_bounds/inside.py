"""Theorem 1 inside its own hypotheses: a problem so small that the printed constants can be met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import head_groups, layer, network, starts
from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.data import double_device
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import tangent_margin
from attnbook.multi_head.training_bounds import wide


@dataclass(frozen=True, kw_only=True)
class InsideTheorem(Experiment):
    r"""Theorem 1 inside its own hypotheses, with the constants of Section 6.1.

    Two tokens in the plane: one is the label times the first unit vector, the other a random multiple of the second.
    Step size $1/\rho$; the target lies along the direction of largest tangent-kernel margin, where the sketch's heads
    are not more than there are, and has the smallest bound (4) after all steps.
    """

    id = "multi_head.inside_theorem"
    summary = "Theorem 1 inside its own hypotheses: two tokens, constants as printed, two hundred thousand steps"
    budget_seconds = 60
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 300, "seeds": (0, 1)}

    n_samples: int = 20
    n_heads: float = 1e12
    largest_other: float = 0.5  # largest norm of the token that says nothing
    steps: int = 210_000
    targets: int = 200  # distances of a target that are tried
    records: int = 30  # log-spaced steps to keep

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in {"n_samples": 2, "steps": 1, "targets": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if not 0 <= self.largest_other <= 1:
            raise ValueError(f"largest_other: expected a number between 0 and 1, got {self.largest_other}")

    def coordinates(self) -> dict[str, Any]:
        """Name steps."""
        return {"step": list(log_spaced(self.steps, self.records))}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Choose the target and train."""
        where = double_device(device)
        drawn = [_two_tokens(self, seed) for seed in seeds]
        tokens, labels = (torch.tensor(np.stack(part), device=where) for part in zip(*drawn, strict=True))
        start = starts.first_phase(tokens, labels)
        with threads(1):
            counts = tokens.new_full((len(seeds), 2), self.n_heads / 2)
            facts, target = _chosen_targets(self, tokens, labels, start, counts)
            history = _followed(self, (tokens, labels), start, counts, target, facts["step_size"], progress)
        return {name: (("seed",), values) for name, values in facts.items()} | {
            name: (("seed", "step"), values) for name, values in history.items()
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold averages, distances, descent and smoothness against what is stated."""
        later = data.isel(step=slice(1, None))
        bound = 2 * data.target_loss + 5 * data.target_distance**2 / (4 * data.step_size * later.step)
        return {
            "MH-T1.1-regret": {
                "largest_ratio": highest(later.average / bound),
                "largest_last": highest(later.loss / later.average),
                "bound_at_the_end": highest(bound.isel(step=-1)),
                "smallest_descent": lowest(data.descent),
                "smallest_rho_over_beta_2": lowest(1 / (data.smoothness * data.step_size)),
            },
            "MH-T1.2": {
                "largest_ratio": highest(data.distance / (4 * data.target_distance)),
                "largest_from_target": highest(data.from_target / (3 * data.target_distance)),
            },
        }


def _two_tokens(settings: InsideTheorem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels of one seed."""
    rng, n = stream(seed, "two tokens"), settings.n_samples
    labels = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
    tokens = np.zeros((n, 2, 2))
    relevant = rng.integers(0, 2, n)
    tokens[np.arange(n), relevant, 0] = labels
    tokens[np.arange(n), 1 - relevant, 1] = settings.largest_other * rng.uniform(-1, 1, n)
    return tokens, labels


def _chosen_targets(
    settings: InsideTheorem, tokens: Tensor, labels: Tensor, start: Parameters, counts: Tensor
) -> tuple[dict[str, np.ndarray], Parameters]:
    """Step size, distance and loss of the best allowed target of each seed, and these targets."""
    direction = tangent_margin(start, tokens, labels, counts=counts).direction

    def loss(parameters: Parameters) -> np.ndarray:
        return np.asarray(logistic(labels)(layer.outputs(parameters, tokens, counts=counts))[0].cpu())

    def at(distance: Tensor) -> Parameters:
        return {n: start[n] + distance[:, None, None, None] * direction[n] for n in start}

    tried, found = np.geomspace(0.1, 10, settings.targets), []
    for distance in tried.tolist():
        target = at(torch.full((len(tokens),), distance).to(tokens))
        sizes = [{"n_tokens": 2, "dimension": 2, "token_norm": 1.0, "head_norm": norm, "distance": distance}
                 for norm in network.largest_head_norm(target).tolist()]  # fmt: skip
        enough = [theory.sketch_heads(**one) <= settings.n_heads for one in sizes]
        eta = np.array([min(1.0, 1 / theory.smoothness(**one, n_heads=settings.n_heads)) for one in sizes])
        losses = loss(target)
        fits = (eta * settings.steps * losses <= distance**2) & (eta * loss(start) <= distance**2) & enough
        bound = 2 * losses + 5 * distance**2 / (4 * eta * settings.steps)
        found.append((np.where(fits, bound, np.inf), eta, losses))
    bound, eta, losses = (np.array(part) for part in zip(*found, strict=True))
    if not np.isfinite(bound.min(0)).all():
        raise ValueError(
            f"n_heads, steps: no target meets the hypotheses for {settings.n_heads:g} and {settings.steps}"
        )
    best, seed = bound.argmin(0), np.arange(len(tokens))
    facts = {"step_size": eta[best, seed], "target_loss": losses[best, seed], "target_distance": tried[best]}
    return facts, at(torch.tensor(tried[best]).to(tokens))


def _followed(
    settings: InsideTheorem, batch: tuple[Tensor, Tensor], start: Parameters, counts: Tensor,
    target: Parameters, step_size: np.ndarray, progress: Progress | None,
) -> dict[str, np.ndarray]:  # fmt: skip
    r"""Train and record losses, distances, descent over what (13) states, and $\beta_2$ of Corollary 1."""
    (tokens, labels), kept = batch, set(settings.coordinates()["step"])
    rate = torch.tensor(step_size).to(tokens)[:, None, None, None]
    losses, records, now = [], [], start
    for step in range(settings.steps + 2):
        value, gradient = layer.value_and_gradient(now, tokens, logistic(labels), counts=counts)
        losses.append(value)
        if step in kept:
            away, apart = ({n: now[n] - other[n] for n in now} for other in (start, target))
            norms = [head_groups.norm(one, counts=counts) for one in (away, apart, gradient)]
            records.append(torch.stack([*norms, network.largest_head_norm(now)]).cpu().numpy())
        now = {n: now[n] - rate * gradient[n] for n in now}
        if progress and step % 1000 == 0:
            progress(min(step, settings.steps), settings.steps)
    if progress:
        progress(settings.steps, settings.steps)
    loss, steps = torch.stack(losses).cpu().numpy(), sorted(kept)
    distance, from_target, slope, head_norm = np.moveaxis(np.array(records), 0, 2)
    fell = (loss[:-1] - loss[1:])[steps].T / (step_size[:, None] / 2 * slope**2)
    sizes: dict[str, Any] = {"n_tokens": 2, "dimension": 2, "n_heads": settings.n_heads, "token_norm": 1.0}
    beta_2 = np.vectorize(lambda norm: loss_constants(**sizes, largest_head_norm=norm).smoothness)(head_norm)
    return {"loss": loss[steps].T, "average": wide.averages(loss)[steps].T, "distance": distance,
            "from_target": from_target, "descent": fell, "smoothness": beta_2}  # fmt: skip
