"""Both readings of the preconditioner on an ill-conditioned covariance: curvature at the minima, and steps needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.preconditioning.data import Problem, draw_problem
from attnbook.preconditioning.experiments.curves import first_time
from attnbook.preconditioning.models.factorisation import Factorisation
from attnbook.preconditioning.optimizer import StructureAwareGD
from attnbook.preconditioning.theory.manifold import minimum, stack, unstack
from attnbook.preconditioning.theory.metric import POWERS, condition_number, preconditioned_spectrum
from attnbook.preconditioning.theory.population import Preconditioner, excess_loss, square_roots

__all__ = ["ACCURACY", "Conditioning", "Settings", "predicted_steps", "run"]

ACCURACY = 1e-6
"""Share of the initial excess loss that counts as arrived."""
COMPARED = 10.0
"""Condition number at which two programs are compared, and from which slopes are fitted."""


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$, more than inputs.
        largest: Largest singular value $s_1$ of $A\Sigma^{1/2}$; the smallest, $s_d$, is half of it.
        condition_numbers: $\kappa(\Sigma)$ for the Hessians, increasing; 10 among them.
        descended: How many of them, from the first, are descended on as well; 100 the last.
        displacement: Standard deviation of a start's entries around a minimum, in whitened coordinates.
        max_steps: Where a descent gives up.
        records: Losses kept per descent, the start included.
        compared: Steps over which two programs are compared.
        compared_displacement: As ``displacement``, there, at $\kappa=10$.
        seeds: One problem and one start per seed.
        chunk: Seeds descended on together.
    """

    dimension: int = 4
    n_outputs: int = 6
    largest: float = 0.3
    condition_numbers: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
    descended: int = 5
    displacement: float = 0.02
    max_steps: int = 30_000
    records: int = 25
    compared: int = 200
    compared_displacement: float = 0.3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if self.n_outputs <= self.dimension:
            raise ValueError(f"n_outputs: expected more than the dimension, {self.dimension}, got {self.n_outputs}")
        kappas = self.condition_numbers
        if list(kappas) != sorted(set(kappas)) or COMPARED not in kappas or kappas[-1] == COMPARED:
            raise ValueError(
                f"condition_numbers: expected increasing numbers, 10 among them and not last, got {kappas}"
            )
        if not kappas.index(COMPARED) + 2 <= self.descended <= len(kappas):
            raise ValueError(f"descended: expected to reach beyond 10 and at most {len(kappas)}, got {self.descended}")
        if self.records < 2 or self.max_steps < self.records or self.compared < 1:
            raise ValueError(
                f"records, max_steps, compared: expected at least 2, as many steps as records, and 1; "
                f"got {self.records}, {self.max_steps}, {self.compared}"
            )
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(dimension=2, n_outputs=3, condition_numbers=(1.0, 10.0, 20.0), descended=3, max_steps=200,
                   records=5, compared=20, seeds=(0, 1), chunk=1)  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger problem and more seeds; the paper has a proof in their place."""
        return cls(dimension=10, n_outputs=15, max_steps=60_000, seeds=tuple(range(20)))

    @property
    def singular_values(self) -> Float[np.ndarray, " dimension"]:
        """Those of the map on whitened inputs, largest first."""
        return np.linspace(self.largest, self.largest / 2, self.dimension)

    @property
    def two_sided(self) -> float:
        r"""The condition number $2s_1/s_d$ that the two-sided preconditioner is to have."""
        return float(2 * self.singular_values[0] / self.singular_values[-1])

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which losses are kept, the start, then evenly spaced on a log axis."""
        spaced = np.geomspace(1, self.max_steps, self.records - 1)
        return (0, *(int(step) for step in np.unique(np.round(spaced))))

    def problem(self, seed: int, condition_number: float) -> Problem:
        """Return the problem of a seed; all condition numbers share its axes."""
        return draw_problem(self.dimension, self.n_outputs, condition_number=condition_number, noise=0.0,
                            singular_values=self.singular_values, rng=stream(seed, "problem"))  # fmt: skip


@dataclass(frozen=True)
class Conditioning(Result):
    r"""What was found; the axis of preconditioners is in the order two-sided, one-sided, none.

    Attributes:
        spectrum: Eigenvalues of the Hessian at a minimum in the metric of the preconditioner, smallest first,
            ``(seeds, preconditioners, condition_numbers, eigenvalues)``.
        steps: Steps until the excess is a millionth of the initial one, ``(seeds, preconditioners, descended)``;
            infinite where ``max_steps`` do not suffice.
        excess: Excess loss along the descent over the initial one, ``(seeds, preconditioners, descended, records)``.
        difference: Largest difference between the optimiser in the original coordinates and descent in whitened ones,
            over a whole run, ``(seeds, preconditioners)``.
    """

    digits: ClassVar[int | None] = None
    experiment: ClassVar[str] = "preconditioning.conditioning"
    settings_type: ClassVar[type] = Settings

    spectrum: Float[np.ndarray, "seeds preconditioners condition_numbers eigenvalues"]
    steps: Float[np.ndarray, "seeds preconditioners descended"]
    excess: Float[np.ndarray, "seeds preconditioners descended records"]
    difference: Float[np.ndarray, "seeds preconditioners"]

    @property
    def condition(self) -> Float[np.ndarray, "seeds preconditioners condition_numbers"]:
        """Condition number of the Hessian, without the directions along the set of minima."""
        return condition_number(torch.tensor(self.spectrum), self.settings.dimension).numpy()

    @property
    def descended(self) -> Float[np.ndarray, " descended"]:
        """Condition numbers of the covariances that were descended on."""
        return np.array(self.settings.condition_numbers[: self.settings.descended])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was measured, by claim id."""
        two, left, none = np.moveaxis(self.condition, 1, 0)
        kappas = np.array(self.settings.condition_numbers)
        from_ten, late = kappas >= COMPARED, self.descended >= COMPARED
        bounds = [two * kappas**power for power in POWERS.values()]
        share = self.steps / predicted_steps(self.condition[..., : self.settings.descended])
        steps_two = self.steps[:, 0]
        return {
            "PC-A7": extremes_over_seeds(largest_trajectory_difference=self.difference[:, 0]),
            "PC-A7-metric": extremes_over_seeds(largest_trajectory_difference=self.difference[:, 1:]),
            "PC-C1": extremes_over_seeds(largest_error=np.abs(two - self.settings.two_sided)),
            "PC-C1-left": over_seeds(slope_left=_slope(kappas, left)),
            "PC-C1-none": over_seeds(slope_none=_slope(kappas[from_ten], none[:, from_ten])),
            "PC-C1-bound": extremes_over_seeds(
                largest_share_left=left / bounds[1], largest_share_none=none / bounds[2]
            ),
            "PC-C2": extremes_over_seeds(largest_iterations_two=steps_two, smallest_iterations_two=steps_two),
            "PC-C2-left": over_seeds(slope_iterations_left=_slope(self.descended[late], self.steps[:, 1, late])),
            "PC-C2-predicted": extremes_over_seeds(smallest_share=share, largest_share=share),
        }


def predicted_steps(condition: Float[np.ndarray, "*batch"]) -> Float[np.ndarray, "*batch"]:
    r"""Return the steps that the slowest direction needs at step size $1/\lambda_{\max}$.

    Per step the loss in that direction shrinks by $(1-1/c)^2$, $c$ the condition number of the Hessian, so that
    $\log10^{-6}/(2\log(1-1/c))$ steps are needed.

    Args:
        condition: $c$, above 1.

    Returns:
        Numbers of steps.

    Example:
        >>> predicted_steps(np.array([4.0, 40.0])).round()
        array([ 24., 273.])
    """
    return np.log(ACCURACY) / (2 * np.log1p(-1 / condition))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Conditioning:
    """Compute all Hessians, descend from near the minima, and compare the two programs.

    Args:
        settings: Sizes, problems and seeds.
        device: Where to compute; default the first of cuda, mps and cpu. Always in float64, which mps lacks.
        progress: Told (preconditioners done, all of them).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)
    where = torch.device("cpu") if where.type == "mps" else where
    with threads(1):
        parts = by_seeds(settings, partial(_measure, settings, where), clock=clock, workdir=workdir, progress=progress)
    return Conditioning(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _measure(
    settings: Settings, where: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    """Everything about a few seeds, one preconditioner after the other."""
    to = partial(to_tensor, device=where, dtype=torch.float64)
    problems = [[settings.problem(seed, kappa) for kappa in settings.condition_numbers] for seed in seeds]
    covariance = to(np.array([[p.covariance for p in row] for row in problems]))
    whitened_map = to(np.array([[p.true_map for p in row] for row in problems])) @ square_roots(covariance)[0]
    base = minimum(whitened_map)
    draws = to(np.array([stream(seed, "start").standard_normal(base.shape[-2:]) for seed in seeds]))
    near = base + settings.displacement * draws.unsqueeze(1)
    at = settings.condition_numbers.index(COMPARED)
    far = base[:, at] + settings.compared_displacement * draws
    found: dict[str, list[np.ndarray]] = {"spectrum": [], "steps": [], "excess": [], "difference": []}
    for number, kind in enumerate(POWERS, 1):
        spectrum = preconditioned_spectrum(base, whitened_map, covariance=covariance, kind=kind)
        runs = [
            _descend(settings, Factorisation.preconditioned(maps, 1 / largest, sigma, kind), start)
            for maps, largest, sigma, start in zip(
                *(t.unbind(1)[: settings.descended] for t in (whitened_map, spectrum[..., -1], covariance, near)),
                strict=True,
            )
        ]
        steps, excess = (np.stack(values, axis=1) for values in zip(*runs, strict=True))
        step_size = 0.5 / float(spectrum[:, at, -1].max())
        error = _difference(far, whitened_map[:, at], covariance[:, at], kind, step_size, settings.compared)
        for name, values in zip(found, (spectrum.cpu().numpy(), steps, excess, error), strict=True):
            found[name].append(values)
        if progress:
            progress(number, len(POWERS))
    return {name: np.stack(values, axis=1) for name, values in found.items()}


def _descend(settings: Settings, descent: Factorisation, start: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Steps to the accuracy, and the curve at the records; NaN where all had arrived before."""
    initial, _ = descent.step(start)
    losses, _ = descent.descend(start, settings.max_steps, until=ACCURACY * initial)
    shares = (losses / initial).cpu().numpy()
    curve = np.full((len(start), len(settings.record_at)), np.nan)
    reached = [step for step in settings.record_at if step < len(shares)]
    curve[:, : len(reached)] = shares[reached].T
    return first_time(np.arange(len(shares)), shares, ACCURACY), curve


def _difference(
    start: Tensor, whitened_map: Tensor, covariance: Tensor, kind: Preconditioner, step_size: float, steps: int
) -> np.ndarray:
    """Largest difference along a run, infinite if one diverges: the optimiser, and descent in whitened coordinates."""
    one = torch.full(start.shape[:1], step_size, dtype=start.dtype, device=start.device)
    _, path = Factorisation.preconditioned(whitened_map, one, covariance, kind).descend(
        start, steps, keep=range(steps + 1)
    )
    value, key_query = (layer.clone().requires_grad_() for layer in unstack(start, covariance=covariance))
    true_map = whitened_map @ square_roots(covariance)[1]
    optimizer = StructureAwareGD(value, key_query, covariance=covariance, step_size=step_size, preconditioner=kind)
    largest = torch.zeros_like(one)
    for point in path:
        at = stack(value.detach(), key_query.detach(), covariance=covariance)
        largest = torch.maximum(largest, (at - point).abs().amax((-2, -1)))
        optimizer.zero_grad()
        excess_loss(value, key_query, covariance=covariance, true_map=true_map).sum().backward()
        optimizer.step()
    return largest.nan_to_num(nan=torch.inf).cpu().numpy()


def _slope(condition_numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Slopes on log axes, one per seed; infinite where a value is."""
    slopes = np.full(len(values), np.inf)
    finite = np.isfinite(values).all(axis=1)
    if finite.any():
        slopes[finite] = np.polyfit(np.log(condition_numbers), np.log(values[finite]).T, 1)[0]
    return slopes
