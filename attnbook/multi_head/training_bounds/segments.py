"""The loss between two networks: Proposition 4 at its condition and far outside it, and the sign in eq. (14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import curvature_bounds as theory
from attnbook.multi_head import derivatives, network
from attnbook.multi_head.data import Mixture, draw

FACTOR = 4 / 3  # of Proposition 4


@dataclass(frozen=True, kw_only=True)
class Segments(Experiment):
    """Pairs across a ridge, a trained network and its copy in another order, a random and a trained network.

    Across a ridge: on both sides of a random network, in the direction of most negative curvature among those in which
    the loss has no slope. The copy has the heads in another order and computes the same.
    """

    id = "multi_head.segments"
    summary = "Proposition 4: the loss between two networks"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {"heads": (2, 4), "steps": 10, "seeds": (0, 1), "multiples": (1.0, 300.0)}

    n_tokens: int = 5
    dimension: int = 8
    n_patterns: int = 3  # patterns that say nothing
    relevant_fraction: float = 0.2
    noise: float = 0.1
    free_noise: float = 0.3
    n_samples: int = 40
    heads: tuple[int, ...] = (2, 16)  # whole Hessians are computed for the fewest
    scale: float = 0.5  # standard deviation of the entries at random points, where training also starts
    step_size: float = 1.0  # not tuned
    steps: int = 100  # from a random to a trained network
    multiples: tuple[float, ...] = (1.0, 10.0, 100.0, 300.0)  # distances, in units of the allowed one
    positions: int = 21  # points on each segment, ends included
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.heads) != sorted(set(self.heads)) or self.heads[0] < 2:
            raise ValueError(f"heads: expected increasing numbers of at least 2, got {self.heads}")
        if self.multiples[:1] != (1.0,) or list(self.multiples) != sorted(set(self.multiples)):
            raise ValueError(f"multiples: expected increasing numbers from 1, got {self.multiples}")
        if self.positions < 3:
            raise ValueError(f"positions: expected at least 3, got {self.positions}")

    def coordinates(self) -> dict[str, Any]:
        """Name multiples, widths, positions and the end from which the bound is taken."""
        share = np.linspace(0, 1, self.positions)
        return {
            "multiple": list(self.multiples),
            "heads": list(self.heads),
            "share": share,
            "end": ["random", "trained"],
        }

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure the loss on segments of networks of each width; one network at a time, on the CPU."""
        found = []
        with threads(1):
            for number, seed in enumerate(seeds, 1):
                found.append(_of_one_seed(self, seed))
                if progress:
                    progress(number, len(seeds))
        dims = {
            "permuted": ("heads", "share"),
            "excess": ("heads",),
            "lower_violation": ("end",),
            "hill": ("multiple",),
        }
        return {name: (("seed", *dims[name]), [one[name] for one in found]) for name in dims}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how far the loss rises above the larger end, and on which side of the Taylor bound it is."""
        allowed, far = data.hill.isel(multiple=0), data.hill.isel(multiple=-1)
        ends = np.maximum(data.permuted.isel(share=0), data.permuted.isel(share=-1))
        copies = (data.permuted.max("share") / ends).max("heads")
        return {
            "MH-P4.1": {"largest_ratio": highest(allowed), "largest_rise": highest(allowed - 1)},
            "MH-P4.1-hill": {
                "share_far": (far > FACTOR).mean(), "ratio_far": far,
                "share_copies": (copies > FACTOR).mean(), "ratio_copies": copies,
                "smallest_condition_excess": lowest(data.excess),
            },
            "MH-B13.4": {
                "largest_lower_bound_violation": highest(data.lower_violation),
                "printed_violations": (data.lower_violation < 0).sum("end"),
            },
        }  # fmt: skip


def _of_one_seed(settings: Segments, seed: int) -> dict[str, list[Any]]:
    """Everything of one seed, as stacks of one network."""
    sizes = settings.n_tokens, settings.dimension, settings.n_patterns, 1.0, settings.relevant_fraction
    mixture = Mixture(*sizes, settings.noise, settings.noise, settings.free_noise)
    batch = draw(mixture, settings.n_samples, (seed,))[:2]
    token_norm = max(1.0, float(batch[0].norm(dim=3).max()))
    permuted, excess, ends = [], [], []
    for n_heads in settings.heads:
        drawn = network.draw_parameters(n_heads, *sizes[:2], scale=settings.scale, rng=stream(seed, "random point"))
        random = {name: torch.tensor(entries)[None] for name, entries in drawn.items()}
        history = network.gradient_descent(random, batch, step_size=settings.step_size, steps=settings.steps)
        trained = history.parameters
        copy = {name: tensor.roll(1, dims=1) for name, tensor in trained.items()}
        permuted.append(_losses_between(settings, trained, copy, batch))
        norms: dict[str, Any] = {"token_norm": token_norm, "head_norm": float(network.largest_head_norm(trained))}
        apart = float(_flat(_minus(trained, copy)).norm())
        excess.append(theory.condition_excess(**_sizes(trained), **norms, distance=apart))
        ends.append((random, trained))
    random, trained = ends[0]
    violation = [_violation(settings, *pair, batch) for pair in ((random, trained), (trained, random))]
    hill = _hill(settings, random, batch, token_norm)
    return {"permuted": permuted, "excess": excess, "lower_violation": violation, "hill": hill}


def _losses_between(settings: Segments, one: Parameters, other: Parameters, batch: network.Batch) -> np.ndarray:
    """The loss at equally spaced points from one network to the other."""
    points = _between(settings, one, other)
    repeated = (batch[0].expand(settings.positions, -1, -1, -1), batch[1].expand(settings.positions, -1))
    return network.losses(points, repeated).numpy()


def _between(settings: Segments, one: Parameters, other: Parameters) -> Parameters:
    share = torch.linspace(0, 1, settings.positions, dtype=torch.float64)[:, None, None, None]
    return {name: (1 - share) * one[name] + share * other[name] for name in one}


def _hill(settings: Segments, random: Parameters, batch: network.Batch, token_norm: float) -> list[float]:
    """Largest loss over that of the larger end, across a ridge, for each multiple of the allowed distance."""
    slope = _flat(network.loss_and_gradient(random, batch)[1]).numpy()
    across = np.eye(len(slope)) - np.outer(slope, slope) / (slope @ slope)
    steepest = np.linalg.eigh(across @ _hessian(random, batch) @ across)[1][:, 0]
    rows = torch.tensor(steepest).view(1, random["decoder"].shape[1], -1, settings.dimension)
    direction = {"decoder": rows[:, :, : settings.n_tokens], "key_query": rows[:, :, settings.n_tokens :]}

    def pair(distance: float) -> tuple[Parameters, Parameters]:
        half = {name: distance / 2 * tensor for name, tensor in direction.items()}
        return _minus(random, half), {name: random[name] + half[name] for name in half}

    allowed = 0.0
    for _ in range(20):  # the norms of the ends, on which it depends, depend on it
        largest = max(float(network.largest_head_norm(end)) for end in pair(allowed))
        allowed = theory.allowed_distance(**_sizes(random), token_norm=token_norm, head_norm=largest)
    losses = [_losses_between(settings, *pair(multiple * allowed), batch) for multiple in settings.multiples]
    return [float(loss.max() / max(loss[0], loss[-1])) for loss in losses]


def _violation(settings: Segments, one: Parameters, other: Parameters, batch: network.Batch) -> float:
    """Right side of eq. (14) minus its left side."""
    loss, gradient = network.loss_and_gradient(one, batch)
    step, points = _flat(_minus(other, one)), _between(settings, one, other)
    each = ({name: tensor[i : i + 1] for name, tensor in points.items()} for i in range(settings.positions))
    smallest = min(np.linalg.eigvalsh(_hessian(point, batch))[0] for point in each)
    bound = loss + _flat(gradient) @ step + smallest / 2 * step @ step
    return float(bound - network.losses(other, batch))


def _hessian(parameters: Parameters, batch: network.Batch) -> np.ndarray:
    own = {name: tensor[0] for name, tensor in parameters.items()}
    return derivatives.loss_hessian(own, batch[0][0], batch[1][0]).dense()


def _flat(parameters: Parameters) -> torch.Tensor:
    """All entries in the order of the Hessian: head by head, the decoder first."""
    return torch.cat([parameters[name][0].flatten(1) for name in ("decoder", "key_query")], dim=1).flatten()


def _minus(one: Parameters, other: Parameters) -> Parameters:
    return {name: one[name] - other[name] for name in one}


def _sizes(parameters: Parameters) -> dict[str, int]:
    _, n_heads, n_tokens, dimension = parameters["decoder"].shape
    return {"n_tokens": n_tokens, "dimension": dimension, "n_heads": n_heads}
