"""The loss between two networks: Proposition 4 at its condition and far outside it, and the sign in eq. (14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr

from attnbook.core.ensemble import Parameters
from attnbook.core.experiment import Arrays, highest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import derivatives, network
from attnbook.multi_head.checks import increasing
from attnbook.multi_head.curvature_bounds import allowed_distance
from attnbook.multi_head.on_mixture import OnMixture

FACTOR = 4 / 3  # of Proposition 4
POSITIONS = 21  # points on each segment, ends included


@dataclass(frozen=True, kw_only=True)
class Segments(OnMixture):
    """Pairs across a ridge: on both sides of a random network.

    They lie in the direction of most negative curvature among those in which the loss has no slope.
    """

    id = "multi_head.segments"
    summary = "Proposition 4: the loss between two networks"
    budget_seconds = 30
    smoke: ClassVar[Mapping[str, Any]] = {"seeds": (0, 1), "multiples": (1.0, 300.0)}
    axes: ClassVar[Mapping[str, str]] = {"multiple": "multiples"}

    n_samples: int = 40  # training samples
    n_heads: int = 2  # few, as whole Hessians are computed
    scale: float = 0.5  # standard deviation of the entries of the random network
    multiples: tuple[float, ...] = (1.0, 10.0, 100.0, 300.0)  # distances, in units of the allowed one
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing(1, count=2, multiples=self.multiples)
        if self.multiples[0] != 1:
            raise ValueError(f"multiples: expected to begin with 1, got {self.multiples}")

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Measure the loss on segments of each seed; one network at a time, on the CPU."""
        sizes = self.n_heads, self.n_tokens, self.dimension

        def one_seed(seed: int) -> Arrays:
            batch = self.draw((seed,), self.n_samples, "samples", torch.device("cpu"))[:2]
            drawn = network.draw_parameters(*sizes, scale=self.scale, rng=stream(seed, "random point"))
            pairs = self._pairs({name: torch.tensor(entries)[None] for name, entries in drawn.items()}, batch)
            one, other = pairs[-1]
            return {
                "hill": (("multiple",), [_hill(_between(*pair), batch) for pair in pairs]),
                "lower_violation": (("end",), [_violation(one, other, batch), _violation(other, one, batch)]),
            }

        with threads(1):
            return self.grid(("seed",), one_seed, also={"seed": seeds}, progress=progress)

    def _pairs(self, random: Parameters, batch: network.Batch) -> list[tuple[Parameters, Parameters]]:
        """Networks on both sides of this one, for each multiple of the allowed distance."""
        slope = _flat(network.loss_and_gradient(random, batch)[1]).numpy()
        across = np.eye(len(slope)) - np.outer(slope, slope) / (slope @ slope)
        steepest = np.linalg.eigh(across @ _hessian(random, batch) @ across)[1][:, 0]
        rows = torch.tensor(steepest).view(1, self.n_heads, -1, self.dimension)
        direction = {"decoder": rows[:, :, : self.n_tokens], "key_query": rows[:, :, self.n_tokens :]}

        def pair(distance: float) -> tuple[Parameters, Parameters]:
            one, other = (
                {n: random[n] + half * direction[n] for n in random} for half in (-distance / 2, distance / 2)
            )
            return one, other

        sizes = {"n_tokens": self.n_tokens, "dimension": self.dimension, "n_heads": self.n_heads}
        token_norm, allowed = max(1.0, float(batch[0].norm(dim=3).max())), 0.0
        for _ in range(20):  # the norms of the ends, on which it depends, depend on it
            largest = max(float(network.largest_head_norm(end)) for end in pair(allowed))
            allowed = allowed_distance(**sizes, token_norm=token_norm, head_norm=largest)
        return [pair(multiple * allowed) for multiple in self.multiples]

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how far the loss rises above the larger end, and on which side of the Taylor bound it is."""
        allowed, far = data.hill.isel(multiple=0), data.hill.isel(multiple=-1)
        return {
            "MH-P4.1": {
                "largest_ratio": highest(allowed), "largest_rise": highest(allowed - 1),
                "share_far": (far > FACTOR).mean(), "ratio_far": far,
            },
            "MH-B13.4": {
                "largest_lower_bound_violation": highest(data.lower_violation),
                "printed_violations": (data.lower_violation < 0).sum("end"),
            },
        }  # fmt: skip


def _between(one: Parameters, other: Parameters) -> Parameters:
    share = torch.linspace(0, 1, POSITIONS, dtype=torch.float64)[:, None, None, None]
    return {name: (1 - share) * one[name] + share * other[name] for name in one}


def _hill(points: Parameters, batch: network.Batch) -> float:
    """Largest loss on a segment over that of the larger end."""
    tokens, labels = (tensor.expand(POSITIONS, *tensor.shape[1:]) for tensor in batch)
    loss = network.losses(points, (tokens, labels))
    return float(loss.max() / max(loss[0], loss[-1]))


def _violation(one: Parameters, other: Parameters, batch: network.Batch) -> float:
    """Right side of eq. (14) minus its left side."""
    (loss, gradient), points = network.loss_and_gradient(one, batch), _between(one, other)
    step = _flat({name: other[name] - one[name] for name in one})
    each = ({name: tensor[i : i + 1] for name, tensor in points.items()} for i in range(POSITIONS))
    smallest = min(np.linalg.eigvalsh(_hessian(point, batch))[0] for point in each)
    return float(loss + _flat(gradient) @ step + smallest / 2 * step @ step - network.losses(other, batch))


def _hessian(parameters: Parameters, batch: network.Batch) -> np.ndarray:
    own = {name: tensor[0] for name, tensor in parameters.items()}
    return derivatives.loss_hessian(own, batch[0][0], batch[1][0]).dense()


def _flat(parameters: Parameters) -> torch.Tensor:
    """All entries in the order of the Hessian: head by head, the decoder first."""
    return torch.cat([parameters[name][0].flatten(1) for name in ("decoder", "key_query")], dim=1).flatten()
