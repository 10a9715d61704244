r"""The loss between two networks: Proposition 4 where its condition holds, far outside it, and the sign in eq. (14).

The networks are those of the chapter on curvature: random ones and trained ones. Far pairs are a trained network and
its copy with the heads in another order, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import spectrum
from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import curvature_bounds as theory
from attnbook.multi_head import derivatives, network
from attnbook.multi_head.experiments import points, samples

__all__ = ["ENDS", "Segments", "Settings", "run"]

ENDS = ("random", "trained")
Pair: TypeAlias = tuple[Parameters, Parameters]


@dataclass(frozen=True)
class Settings(points.Settings):
    """Sizes: those of the experiment on curvature.

    Attributes:
        heads: Numbers of heads; whole Hessians are computed for the fewest.
        multiples: Distances of close pairs, in units of the allowed one, increasing from 1.
        positions: Points on each segment, ends included.
    """

    heads: tuple[int, ...] = (2, 4, 16)
    multiples: tuple[float, ...] = (1.0, 10.0, 100.0, 300.0)
    positions: int = 21

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads[0] < 2:
            raise ValueError(f"heads: expected at least 2, else there is no other order, got {self.heads}")
        if self.multiples[:1] != (1.0,) or list(self.multiples) != sorted(set(self.multiples)):
            raise ValueError(f"multiples: expected increasing numbers from 1, got {self.multiples}")
        if self.positions < 3:
            raise ValueError(f"positions: expected at least 3, got {self.positions}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(heads=(2, 4), seeds=(0, 1), multiples=(1.0, 300.0))

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds and finer segments."""
        return cls(seeds=tuple(range(20)), positions=101)


@dataclass(frozen=True)
class Segments(Result):
    """The loss on segments.

    Attributes:
        close: Largest loss on the segment over that of the larger end, for random directions; ends as in :data:`ENDS`.
        hill: The same for pairs on both sides of a random network with the fewest heads, in the direction of most
            negative curvature among those in which the loss has no slope.
        nearer: Largest loss over that of the *nearer* end at the allowed distance; random directions, then the hill.
        radius: The allowed distance of the pairs in random directions.
        permuted: Loss on the segment between a trained network and its copy with permuted heads.
        excess: By how much these pairs exceed condition (18), as a factor.
        lower_violation: Taylor bound of eq. (14) with the smallest eigenvalue on the segment, minus the loss at the
            other end; at most 0 if it is a lower bound. From each of the ends to the other.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "multi_head.segments"
    settings_type: ClassVar[type] = Settings

    close: Float[np.ndarray, "seeds heads ends multiples"]
    hill: Float[np.ndarray, "seeds multiples"]
    nearer: Float[np.ndarray, "seeds pairs"]
    radius: Float[np.ndarray, "seeds heads ends"]
    permuted: Float[np.ndarray, "seeds heads positions"]
    excess: Float[np.ndarray, "seeds heads"]
    lower_violation: Float[np.ndarray, "seeds ends"]

    @property
    def rise(self) -> Float[np.ndarray, "seeds heads"]:
        """Largest loss between permuted copies, over that of the ends."""
        ends = np.maximum(self.permuted[..., 0], self.permuted[..., -1])
        return self.permuted.max(axis=2) / ends

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found on segments, by claim id."""
        shown_fails = (self.lower_violation < 0).sum(axis=1)
        both = [self.close[..., 0].reshape(len(self.close), -1), self.hill[:, :1]]
        ratios = np.concatenate(both, axis=1)
        allowed = extremes_over_seeds(largest_ratio=ratios, largest_rise=ratios - 1)
        nearer = extremes_over_seeds(largest_ratio=self.nearer, largest_rise=self.nearer - 1)
        lower = extremes_over_seeds(largest_lower_bound_violation=self.lower_violation, printed_violations=shown_fails)
        return {
            "MH-P4.1": allowed,
            "MH-P4.1-nearer": nearer,
            "MH-P4.1-hill": extremes_over_seeds(smallest_ratio_far=self.hill[:, -1]),
            "MH-P4.1-far": extremes_over_seeds(largest_ratio_far=self.close[..., -1]),
            "MH-P4.2": extremes_over_seeds(largest_ratio=self.rise, smallest_condition_excess=self.excess),
            "MH-B13.4": lower,
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Segments:
    """Measure the loss on segments between networks.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU. Eigenvalues are computed on
            the CPU.
        progress: Told (head counts done, head counts in all).
        workdir: Unused: the run takes seconds.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where, found = Clock(), samples.double_device(device), []
    with threads(1):
        batch = samples.draw(settings.mixture, settings.n_samples, settings.seeds, device=where)[:2]
        token_norm = batch[0].norm(dim=3).amax((1, 2)).clamp(min=1).cpu().numpy()
        for number, n_heads in enumerate(settings.heads, 1):
            random = points.random_start(settings, n_heads, settings.seeds, where)
            training = network.gradient_descent(random, batch, step_size=settings.step_size, steps=settings.steps)
            ends = {"random": random, "trained": training.parameters}
            found.append(_at_heads(settings, ends, batch, token_norm))
            if number == 1:
                pairs = ((random, ends["trained"]), (ends["trained"], random))
                hill = _hill(settings, random, batch, token_norm)
                violations = [_violation(settings, one, other, batch) for one, other in pairs]
            if progress:
                progress(number, len(settings.heads))
    arrays = {name: np.stack([one[name] for one in found], axis=1) for name in found[0]}
    nearer = arrays.pop("nearer")
    return Segments(
        settings=settings,
        provenance=clock.provenance(where),
        lower_violation=np.stack(violations, axis=1),
        hill=hill[:, :-1],
        nearer=np.concatenate([nearer.reshape(len(nearer), -1), hill[:, -1:]], axis=1),
        **arrays,
    )


def _at_heads(
    settings: Settings, ends: dict[str, Parameters], batch: network.Batch, token_norm: np.ndarray
) -> dict[str, np.ndarray]:
    """Close pairs from every end, and permuted copies of the trained one, each ``(members, ...)``."""
    close, radius = [], []
    for name, parameters in ends.items():
        direction = _direction(settings, parameters, name)
        pair = partial(_pair, parameters, direction, 0.0)
        radius.append(_allowed(settings, pair, token_norm))
        close.append(_ratios(settings, pair, radius[-1], batch))
    trained = ends["trained"]
    permuted = {name: tensor.roll(1, dims=1) for name, tensor in trained.items()}
    distance = torch.stack([(trained[n] - permuted[n]).square().flatten(1).sum(1) for n in trained]).sum(0).sqrt()
    head_norm = network.largest_head_norm(trained).cpu().numpy()
    sizes = _sizes(settings, trained)
    excess = [
        theory.condition_excess(**sizes, token_norm=float(r), head_norm=float(b), distance=float(far))
        for r, b, far in zip(token_norm, head_norm, distance.cpu().numpy(), strict=True)
    ]
    return {
        "close": np.stack(close, axis=1)[..., :-1],
        "nearer": np.stack(close, axis=1)[..., -1],
        "radius": np.array(radius).T,
        "permuted": _profile(settings, trained, permuted, batch),
        "excess": np.array(excess),
    }


def _sizes(settings: Settings, parameters: Parameters) -> dict[str, int]:
    n_heads = parameters["decoder"].shape[1]
    return {"n_tokens": settings.n_tokens, "dimension": settings.dimension, "n_heads": n_heads}


def _direction(settings: Settings, parameters: Parameters, name: str) -> Parameters:
    """Random directions of length 1, one for each seed."""
    n_heads, device = parameters["decoder"].shape[1], parameters["decoder"].device
    rngs = [stream(seed, "direction", name, n_heads) for seed in settings.seeds]
    drawn = [
        network.draw_parameters(n_heads, settings.n_tokens, settings.dimension, scale=1.0, rng=rng) for rng in rngs
    ]
    stacked = {
        key: to_tensor(np.stack([one[key] for one in drawn]), device=device, dtype=torch.float64) for key in drawn[0]
    }
    length = torch.stack([tensor.square().flatten(1).sum(1) for tensor in stacked.values()]).sum(0).sqrt()
    return {key: tensor / length[:, None, None, None] for key, tensor in stacked.items()}


def _pair(parameters: Parameters, direction: Parameters, behind: float, distance: np.ndarray) -> Pair:
    """Two networks at some distance from each other, the first a share of it behind the given one."""
    far = torch.tensor(distance).to(parameters["decoder"])[:, None, None, None]
    one = {name: tensor - behind * far * direction[name] for name, tensor in parameters.items()}
    return one, {name: tensor + far * direction[name] for name, tensor in one.items()}


def _allowed(settings: Settings, pair: Callable[[np.ndarray], Pair], token_norm: np.ndarray) -> np.ndarray:
    """The distance at which condition (18) holds with equality; the norms of the ends depend on it."""
    distance = np.zeros(len(token_norm))
    for _ in range(20):
        ends = pair(distance)
        larger = torch.maximum(*(network.largest_head_norm(end) for end in ends)).cpu().numpy()
        distance = np.array(
            [
                theory.allowed_distance(**_sizes(settings, ends[0]), token_norm=float(r), head_norm=float(b))
                for r, b in zip(token_norm, larger, strict=True)
            ]
        )
    return distance


def _ratios(
    settings: Settings, pair: Callable[[np.ndarray], Pair], allowed: np.ndarray, batch: network.Batch
) -> np.ndarray:
    """Largest loss on the segment over that of the larger end, ``(members, multiples)``; at last of the nearer one."""
    losses = [_profile(settings, *pair(multiple * allowed), batch) for multiple in settings.multiples]
    larger = [loss.max(1) / np.maximum(loss[:, 0], loss[:, -1]) for loss in losses]
    return np.stack([*larger, _over_nearer_end(losses[0])], axis=1)


def _over_nearer_end(loss: Float[np.ndarray, "members positions"]) -> Float[np.ndarray, " members"]:
    """The largest loss over that of the end nearer to it; in the middle, of the smaller end."""
    offset, first, last = 2 * loss.argmax(1) - (loss.shape[1] - 1), loss[:, 0], loss[:, -1]
    nearer = np.where(offset < 0, first, np.where(offset > 0, last, np.minimum(first, last)))
    return np.asarray(loss.max(1) / nearer)


def _hill(settings: Settings, random: Parameters, batch: network.Batch, token_norm: np.ndarray) -> np.ndarray:
    """The same ratios for pairs on both sides of a point, where the loss between them is highest."""
    _, gradient = network.loss_and_gradient(random, batch)
    found = []
    for member in range(len(token_norm)):
        own = {name: tensor[member] for name, tensor in random.items()}
        hessian = derivatives.loss_hessian(own, batch[0][member], batch[1][member])
        slope = torch.cat([gradient[name][member].flatten(1) for name in ("decoder", "key_query")], dim=1)
        found.append(_steepest(hessian, slope.flatten().cpu().numpy()))
    stacked = to_tensor(np.stack(found), device=random["decoder"].device, dtype=torch.float64)
    members, n_heads, n_tokens, dimension = random["decoder"].shape
    by_head = stacked.view(members, n_heads, -1, dimension)
    direction = {"decoder": by_head[:, :, :n_tokens], "key_query": by_head[:, :, n_tokens:]}
    pair = partial(_pair, random, direction, 0.5)
    return _ratios(settings, pair, _allowed(settings, pair, token_norm), batch)


def _steepest(hessian: spectrum.BlocksPlusLowRank, slope: np.ndarray) -> np.ndarray:
    """The direction of most negative curvature orthogonal to the gradient."""
    whole = np.stack([hessian.product(column) for column in np.eye(hessian.size)])
    across = np.eye(len(slope)) - np.outer(slope, slope) / (slope @ slope)
    return np.asarray(np.linalg.eigh(across @ whole @ across)[1][:, 0])


def _profile(settings: Settings, one: Parameters, other: Parameters, batch: network.Batch) -> np.ndarray:
    """The loss at equally spaced points from one network to the other, ``(members, positions)``."""
    shares = np.linspace(0, 1, settings.positions)
    between = [{name: (1 - s) * one[name] + s * other[name] for name in one} for s in shares]
    return torch.stack([network.losses(p, batch) for p in between], dim=1).cpu().numpy()


def _violation(settings: Settings, one: Parameters, other: Parameters, batch: network.Batch) -> np.ndarray:
    """Right side of eq. (14) minus its left side, ``(members,)``."""
    loss, gradient = network.loss_and_gradient(one, batch)
    step = {name: other[name] - one[name] for name in one}
    linear = loss + torch.stack([(gradient[n] * step[n]).flatten(1).sum(1) for n in step]).sum(0)
    square = torch.stack([tensor.square().flatten(1).sum(1) for tensor in step.values()]).sum(0)
    smallest = np.full(len(loss), np.inf)
    for share in np.linspace(0, 1, settings.positions):
        at = {name: one[name] + share * step[name] for name in one}
        for member in range(len(loss)):
            own = {name: tensor[member] for name, tensor in at.items()}
            hessian = derivatives.loss_hessian(own, batch[0][member], batch[1][member])
            value = spectrum.extreme_eigenvalues(hessian.product, hessian.size, dense_below=300, tolerance=1e-3)[0]
            smallest[member] = min(smallest[member], value)
    bound = linear.cpu().numpy() + smallest * square.cpu().numpy() / 2
    return np.asarray(bound - network.losses(other, batch).cpu().numpy())
