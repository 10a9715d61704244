r"""Theorem 1 with every hypothesis met, constants included: heads tracked one by one (this book).

For each width the best target in the tangent direction is looked for among those that
:mod:`~attnbook.multi_head.certificate` allows, its loss measured on the true network. Then the networks are
trained at the step size that the certificate prescribes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.ensemble import Parameters, log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head.certificate import TrackedHeads, tracked_heads
from attnbook.multi_head.convergence_bounds import regret_bound
from attnbook.multi_head.experiments import samples, wide, wide_training
from attnbook.multi_head.tangent_kernel import tangent_margin

__all__ = ["Certificates", "Settings", "run"]


@dataclass(frozen=True)
class Settings(wide.Sizes):
    r"""Sizes, and how to look for targets.

    Attributes:
        heads: Numbers of heads, increasing; certificates for the fewest are empty.
        trained: The widths from this one on are trained.
        distances: How many distances of a target are tried, log-spaced from the smallest allowed, at which
            $\eta\hat L(\tilde\theta^{(0)})=D^2$, to the largest allowed at any width.
        records: How many log-spaced numbers of steps to keep.
    """

    heads: tuple[float, ...] = (1e2, 1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e8, 1e12)
    trained: float = 1e6
    distances: int = 60
    records: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trained not in self.heads:
            raise ValueError(f"trained: expected one of the numbers of heads {self.heads}, got {self.trained}")
        if self.distances < 2:
            raise ValueError(f"distances: expected at least 2, got {self.distances}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(heads=(1e4, 1e6), steps=300, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem, trained longer."""
        return cls(n_tokens=10, dimension=50, n_patterns=20, n_samples=50, steps=10_000, trained=1e8, chunk=1)

    @property
    def recorded(self) -> tuple[int, ...]:
        """The steps that are kept."""
        return log_spaced(self.steps, self.records)


@dataclass(frozen=True)
class Certificates(Result):
    r"""What is certified, and what training at the certified step size does.

    The bound of the certificate at the last step is that of the target chosen for this step. Networks below the
    width ``settings.trained`` are not trained.

    Attributes:
        bound: Smallest certified bound on the average loss, after the recorded numbers of steps; infinite where no
            target is allowed.
        distance: Distance of the target that gives it.
        ever: Smallest certified bound for any number of steps.
        ever_steps: This number of steps.
        step_size: The certified step size.
        average: Measured average loss over steps 1 to the recorded one.
        last: Measured loss at the recorded steps.
        largest_move: Distance of the head that moved most, at the end.
    """

    experiment: ClassVar[str] = "multi_head.certificates"
    settings_type: ClassVar[type] = Settings

    bound: Float[np.ndarray, "seeds heads records"]
    distance: Float[np.ndarray, "seeds heads records"]
    ever: Float[np.ndarray, "seeds heads"]
    ever_steps: Float[np.ndarray, "seeds heads"]
    step_size: Float[np.ndarray, "seeds heads"]
    average: Float[np.ndarray, "seeds trained records"]
    last: Float[np.ndarray, "seeds trained records"]
    largest_move: Float[np.ndarray, "seeds trained"]

    @property
    def fewest_heads(self) -> Float[np.ndarray, " seeds"]:
        r"""The fewest heads on the grid whose certificate says more than $\log2$ for some number of steps."""
        heads = np.array(self.settings.heads)
        return np.where(self.ever < np.log(2), heads, np.inf).min(axis=1)

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for the certificates, by claim id."""
        trained = np.array(self.settings.heads) >= self.settings.trained
        ratio = self.average[..., 1:] / self.bound[:, trained, 1:]
        return {
            "MH-T1-tracked": extremes_over_seeds(
                largest_bound=self.bound[:, trained, -1],
                largest_ratio=ratio,
                largest_head_move=self.largest_move,
            ),
            "MH-T1-tracked-heads": extremes_over_seeds(
                largest_fewest_heads=self.fewest_heads, smallest_step_size=self.step_size[:, trained]
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Certificates:
    """Look for certificates at every width and train the wide networks at the certified step size.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available or a sample is not separable.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        stack, shape = wide.draw(settings, seeds, where), (len(seeds), len(settings.heads))
        found = _certify(settings, stack)
        found = {name: array.reshape(*shape, *array.shape[1:]) for name, array in found.items()}
        chosen = np.flatnonzero(np.tile(np.array(settings.heads) >= settings.trained, len(seeds)))
        rates = found["step_size"].ravel()[chosen].tolist()
        trained = wide_training.train(_part(stack, chosen), rates, settings.steps, settings.recorded, progress=inner)
        renamed = {"average": trained["average"], "last": trained["loss"]}
        renamed["largest_move"] = trained["largest_move"][:, -1]
        return found | {name: a.reshape(len(seeds), -1, *a.shape[1:]) for name, a in renamed.items()}

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return Certificates(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _part(stack: wide.Stack, chosen: np.ndarray) -> wide.Stack:
    start = {name: tensor[chosen] for name, tensor in stack.start.items()}
    tokens, labels, relevant, counts = (t[chosen] for t in (stack.tokens, stack.labels, stack.relevant, stack.counts))
    return wide.Stack(tokens, labels, relevant, start, counts)


def _certify(settings: Settings, stack: wide.Stack) -> dict[str, np.ndarray]:
    """The best certificates, each ``(members, ...)``."""
    tangent = tangent_margin(stack.start, stack.tokens, stack.labels, counts=stack.counts)
    norms = wide_training.norms(stack, 1)
    allowed = [
        tracked_heads(
            n_tokens=settings.n_tokens,
            dimension=settings.dimension,
            n_heads=n_heads,
            token_norm=float(norms["token_norm"][member]),
            start_head_norm=float(norms["head_norm"][member]),
        )
        for member, n_heads in enumerate(np.tile(settings.heads, len(stack.tokens) // len(settings.heads)))
    ]
    start_loss = wide.losses(stack.start, stack).cpu().numpy()
    largest = np.array([one.distance for one in allowed])
    smallest = np.sqrt([one.step_size for one in allowed] * start_loss)
    tried = np.clip(_common(smallest, largest, settings), smallest[:, None], largest[:, None])
    target_loss = np.stack([_loss_at(stack, tangent.direction, d, allowed) for d in tried.T], axis=1)
    chosen = [_best(settings, *each) for each in zip(allowed, tried, target_loss, start_loss, strict=True)]
    return {name: np.array([one[name] for one in chosen]) for name in chosen[0]}


def _common(smallest: np.ndarray, largest: np.ndarray, settings: Settings) -> Float[np.ndarray, "members distances"]:
    """The same distances at all widths of a seed, so that more heads never certify less for want of one."""
    width = len(settings.heads)
    low, high = smallest.reshape(-1, width).min(1), largest.reshape(-1, width).max(1)
    return np.repeat(np.geomspace(low, np.maximum(low, high), settings.distances, axis=1), width, axis=0)


def _loss_at(
    stack: wide.Stack, direction: Parameters, distance: np.ndarray, allowed: list[TrackedHeads]
) -> Float[np.ndarray, " members"]:
    """The loss of the targets at these distances; infinite where a head is too large."""
    target = wide.along(stack, direction, torch.tensor(distance).to(stack.tokens))
    norm = torch.stack([tensor.square().sum((2, 3)) for tensor in target.values()]).sum(0).amax(1).sqrt()
    fits = norm.cpu().numpy() <= [one.head_norm for one in allowed]
    return np.where(fits, wide.losses(target, stack).cpu().numpy(), np.inf)


def _best(
    settings: Settings, allowed: TrackedHeads, distance: np.ndarray, target_loss: np.ndarray, start_loss: float
) -> dict[str, np.ndarray | float]:
    """The best target for each number of steps, and for the best number of steps."""
    eta, square = allowed.step_size, distance**2
    target_loss = np.where(eta * start_loss <= square * (1 + 1e-12), target_loss, np.inf)
    longest = square / (eta * target_loss)  # 0 where no target is allowed
    bounds = np.full((len(settings.recorded), len(distance)), np.inf)
    for i, j in np.ndindex(bounds.shape):
        steps = settings.recorded[i]
        if 1 <= steps <= longest[j]:
            bounds[i, j] = regret_bound(
                target_loss=float(target_loss[j]), distance=float(distance[j]), step_size=eta, steps=steps
            )
    at = bounds.argmin(axis=1)
    ever = np.where(longest >= 1, 3.25 * target_loss, np.inf)  # the bound after the largest number of steps
    return {
        "bound": bounds[np.arange(len(at)), at],
        "distance": distance[at],
        "ever": float(ever.min()),
        "ever_steps": float(longest[ever.argmin()]),
        "step_size": eta,
    }
