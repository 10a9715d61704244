"""Paths in the plane that turn to their max-margin ray, and a case in which the direction is exact at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.data import draw_problems, joined, plane_toy

__all__ = ["Settings", "Trajectories", "run"]

# The claims of the trajectory figure, by exponent.
CLAIMED = (3.0, 2.0, 1.75, 1.5)


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the toy and its starts are this book's.

    Attributes:
        ps: Exponents, increasing.
        starts: Number of starts, evenly spaced on a circle.
        start_norm: Euclidean norm of the starts.
        steps: Steps of each path.
        step_size: Step size of the scale-free steps, the same for every exponent; far from zero such a step moves the
            weights by about ``step_size / (p - 1)``.
        plain_step_size: Step size of the plain paths, which take as many steps.
        records: Points kept of each path, about.
        exact_steps: Steps of the runs with one constraint.
        exact_step_size: Their step size.
        seeds: Seeds of the runs with one constraint.
    """

    ps: tuple[float, ...] = (1.1, 1.25, 1.5, 1.75, 2.0, 3.0)
    starts: int = 6
    start_norm: float = 1.0
    steps: int = 3000
    step_size: float = 0.2
    plain_step_size: float = 0.1
    records: int = 80
    exact_steps: int = 200
    exact_step_size: float = 0.1
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def __post_init__(self) -> None:
        needed = {*CLAIMED, 1.1}
        if needed - set(self.ps) or list(self.ps) != sorted(set(self.ps)) or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1 with {sorted(needed)} among them, got {self.ps}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(starts=2, steps=20, records=4, exact_steps=5, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return longer paths from more starts; the sizes of the paper's figure are not known."""
        return cls(starts=24, steps=30_000, seeds=tuple(range(20)))


@dataclass(frozen=True)
class Trajectories(Result):
    r"""Paths of the plane toy and the divergences of the one-constraint runs.

    Attributes:
        path: First column of $W$ along scale-free steps, ``(ps, starts, points, 2)``.
        plain: The same along plain steps, ``(ps, starts, points, 2)``.
        target: The max-margin solution of the toy in closed form, ``(ps, 2)``.
        exact: Largest divergence over all steps of the runs with one constraint, ``(seeds, ps)``.
    """

    experiment: ClassVar[str] = "mirror_descent.trajectories"
    settings_type: ClassVar[type] = Settings

    path: Float[np.ndarray, "ps starts points 2"]
    plain: Float[np.ndarray, "ps starts points 2"]
    target: Float[np.ndarray, "ps 2"]
    exact: Float[np.ndarray, "seeds ps"]

    def angle_errors(self, path: Float[np.ndarray, "ps starts points 2"]) -> Float[np.ndarray, "ps starts points"]:
        """Return the angle between each point of these paths and the max-margin ray, in degrees.

        Args:
            path: ``path`` or ``plain`` of this result.

        Returns:
            Angles from 0 to 180.
        """
        ray = self.target[:, None, None]
        cross = path[..., 0] * ray[..., 1] - path[..., 1] * ray[..., 0]
        return np.degrees(np.abs(np.arctan2(cross, (path * ray).sum(axis=-1))))

    def measurements(self) -> dict[str, Measurement]:
        """Return the largest angle errors at the end of the paths and the divergence, by claim id."""
        ends = self.angle_errors(self.path)[:, :, -1]
        worst = dict(zip(self.settings.ps, ends.max(axis=1), strict=True))
        found = {f"MD-2d-p{p:g}": Measurement({"max_angle_error_degrees": float(worst[p])}) for p in CLAIMED}
        order = {f"max_angle_error_p{p:g}".replace(".", "_"): float(worst[p]) for p in (3.0, 2.0, 1.5, 1.1)}
        exact = Measurement({"max_divergence": float(self.exact.max())}, n_seeds=len(self.exact))
        return found | {"MD-2d-memory": Measurement(order), "MD-exact": exact}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Trajectories:
    """Follow mirror descent in the plane from all starts, for all exponents, and the one-constraint runs.

    Args:
        settings: Sizes and exponents.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)
    paths = {}
    for part, (name, normalized) in enumerate((("path", True), ("plain", False))):
        paths[name] = _paths(settings, where, normalized, _half(progress, part))
    toy = plane_toy()
    constraint = (toy.tokens[:, 0, 0] - toy.tokens[:, 0, 1])[:, :, None]
    ps = np.array(settings.ps)
    return Trajectories(
        settings=settings,
        target=mirror.single_constraint(np.repeat(constraint, len(ps), axis=0), ps)[..., 0],
        exact=_one_constraint(settings, where),
        provenance=clock.provenance(where),
        **paths,
    )


def _paths(settings: Settings, device: torch.device, normalized: bool, progress: Progress | None) -> np.ndarray:
    """Return the first column along the way, ``(ps, starts, points, 2)``."""
    angles = 2 * np.pi * (np.arange(settings.starts) + 0.5) / settings.starts
    ps = np.repeat(settings.ps, settings.starts)
    start = np.zeros((len(ps), 2, 2))
    circle = settings.start_norm * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    start[:, :, 0] = np.tile(circle, (len(settings.ps), 1))
    history = descend(
        plane_toy().repeated(len(ps)),
        ps,
        steps=settings.steps,
        step_size=settings.step_size if normalized else settings.plain_step_size,
        normalized=normalized,
        start=start,
        record_at=log_spaced(settings.steps, settings.records),
        device=device,
        progress=progress,
    )
    columns = history.records["key_query"][..., 0]
    return np.moveaxis(columns.reshape(-1, len(settings.ps), settings.starts, 2), 0, 2)


def _one_constraint(settings: Settings, device: torch.device) -> Float[np.ndarray, "seeds ps"]:
    """Largest divergence over the steps of runs with one sample of two tokens, started at zero."""
    one = draw_problems(settings.seeds, n_samples=1, n_tokens=2)
    seeds = len(settings.seeds)
    problems, ps = joined([one] * len(settings.ps)), np.repeat(settings.ps, seeds)
    history = descend(
        problems,
        ps,
        steps=settings.exact_steps,
        step_size=settings.exact_step_size,
        record_at=range(1, settings.exact_steps + 1),
        device=device,
    )
    best = problems.best_tokens[:, 0]
    rows = np.arange(len(ps))
    difference = problems.tokens[rows, 0, best] - problems.tokens[rows, 0, 1 - best]
    solution = mirror.single_constraint(difference[:, :, None] * problems.queries[:, 0, None, :], ps)
    iterates = mirror.normalised(history.records["key_query"], ps)
    divergence = mirror.bregman_divergence(
        np.broadcast_to(mirror.normalised(solution, ps), iterates.shape), iterates, ps
    )
    return divergence.max(axis=0).reshape(len(settings.ps), seeds).T


def _half(progress: Progress | None, part: int) -> Progress | None:
    return None if progress is None else lambda done, total: progress(part * total + done, 2 * total)
