r"""Lemma 2: what one step from zero writes into the decoders, and how much of it is not signal.

The step is taken by the package's gradient at zero for a network of several heads, and compared with its closed form.
Then $m=U_h^{(1)}/\alpha_h$, a mean over samples, is followed over the number of samples of the first phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import layer, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import data_checks, samples
from attnbook.multi_head.experiments.summaries import log_slopes
from attnbook.multi_head.experiments.targets import label_direction, patterns_of
from attnbook.multi_head.objectives import logistic

__all__ = ["FirstPhase", "Settings", "run"]

# Samples drawn at once: 10 000 of them take 16 MB.
MOST_AT_ONCE = 10_000


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment, which is this book's; not tuned.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_first: Samples of the first phase, increasing; the fewer are the first of the more.
        judged: The size at which the coefficient is judged, one of ``n_first``.
        dimensions: Dimensions at which the residual is measured too, with ``n_first[0]`` samples.
        wide_noise: Free noise there, large, so that it makes up most of the residual.
        n_heads: Heads of the network that takes the step by its gradient.
        n_checked: Samples on which the assumptions on the data are checked.
        failure: $\delta$ of the residual bound.
        seeds: Seeds of patterns and samples.
        chunk: Seeds computed together.
    """

    n_tokens: int = 10
    dimension: int = 20
    n_patterns: int = 4
    pattern_norm: float = 2.0
    relevant_fraction: float = 0.2
    noise: float = 0.2
    free_noise: float = 0.5
    n_first: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)
    judged: int = 1000
    dimensions: tuple[int, ...] = (20, 80, 320)
    wide_noise: float = 4.0
    n_heads: int = 4
    n_checked: int = 1000
    failure: float = 0.05
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        if len(self.n_first) < 2 or list(self.n_first) != sorted(set(self.n_first)) or self.n_first[0] < 1:
            raise ValueError(f"n_first: expected at least two increasing numbers of at least 1, got {self.n_first}")
        if self.judged not in self.n_first:
            raise ValueError(f"judged: expected one of n_first = {self.n_first}, got {self.judged}")
        for name in ("n_heads", "n_checked"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.failure < 1:
            raise ValueError(f"failure: expected a probability above 0 and below 1, got {self.failure}")
        check_seeds(self.seeds, self.chunk)
        for dimension in self.dimensions:
            _ = self.wide(dimension)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second."""
        return cls(n_first=(100, 1000), dimensions=(20, 40), n_checked=100, seeds=(0, 1), chunk=2)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return ten times as many samples, and more seeds."""
        return cls(n_first=(100, 300, 1000, 3000, 10_000, 30_000, 100_000), seeds=tuple(range(50)), chunk=5)

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = (self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction)
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    def wide(self, dimension: int) -> Mixture:
        """Return the data model at another dimension, with ``wide_noise``."""
        return replace(self.mixture, dimension=dimension, free_noise=self.wide_noise)


@dataclass(frozen=True)
class FirstPhase(Result):
    r"""What the first step wrote.

    Attributes:
        coefficient: Coefficient of $u_\star$ in $m$, over $\zeta$, ``(seeds, sizes)`` with the sizes of ``n_first``.
        residual: Norm of $p=m-\frac\zeta4u_\star$, ``(seeds, sizes)``.
        residual_half: Norm of $m-\frac\zeta2u_\star$, ``(seeds, sizes)``.
        label_value: What $m$ reads from the label patterns, $\langle m,\mu_+\rangle$ and $-\langle m,\mu_-\rangle$, the
            smaller one, over $\frac\zeta4S^2$, ``(seeds, sizes)``.
        other_value: The largest $|\langle m,\nu_\ell\rangle|$, over $\frac\zeta4S^2$, ``(seeds, sizes)``.
        residual_by_dimension: Norm of $p$ with the fewest samples, ``(seeds, dimensions)``.
        key_query_entry: Largest entry of a key-query matrix after the step, ``(seeds,)``.
        row_difference: Largest difference between rows of a decoder after the step, ``(seeds,)``.
        step_error: Largest difference between the step by the gradient and its closed form, ``(seeds,)``.
        violation: Largest excess over a bound of Assumption 3, negative if there is none, ``(seeds,)``.
        gram_error: Largest error of an inner product of two patterns, ``(seeds,)``.
        relevant_error: Largest difference between a relevant token and its pattern, ``(seeds,)``.
    """

    experiment: ClassVar[str] = "multi_head.first_phase"
    settings_type: ClassVar[type] = Settings

    coefficient: Float[np.ndarray, "seeds sizes"]
    residual: Float[np.ndarray, "seeds sizes"]
    residual_half: Float[np.ndarray, "seeds sizes"]
    label_value: Float[np.ndarray, "seeds sizes"]
    other_value: Float[np.ndarray, "seeds sizes"]
    residual_by_dimension: Float[np.ndarray, "seeds dimensions"]
    key_query_entry: Float[np.ndarray, " seeds"]
    row_difference: Float[np.ndarray, " seeds"]
    step_error: Float[np.ndarray, " seeds"]
    violation: Float[np.ndarray, " seeds"]
    gram_error: Float[np.ndarray, " seeds"]
    relevant_error: Float[np.ndarray, " seeds"]

    @property
    def expected_plateau(self) -> float:
        r"""Norm $\frac\zeta4\|u_\star\|$ of what is left if $\frac\zeta2u_\star$ is taken off $\frac\zeta4u_\star$."""
        return self.settings.relevant_fraction * self.settings.pattern_norm * 2**0.5 / 4

    @property
    def slopes(self) -> Float[np.ndarray, " seeds"]:
        r"""Slopes of $\log\|p\|$ in $\log n_1$, by least squares."""
        return log_slopes(self.settings.n_first, self.residual)

    @property
    def size(self) -> Float[np.ndarray, " sizes"]:
        r"""The exact root mean square of $\|p\|$ for each of ``n_first``."""
        return np.array([theory.residual_size(self.settings.mixture, n) for n in self.settings.n_first])

    @property
    def bound(self) -> Float[np.ndarray, " sizes"]:
        """Lemma 2's bound with constant 1 for each of ``n_first``."""
        s = self.settings
        return np.array([theory.residual_bound(s.mixture, n, failure=s.failure) for n in s.n_first])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found for Lemma 2, by claim id."""
        judged = self.settings.n_first.index(self.settings.judged)
        typical = np.sqrt((self.residual_by_dimension**2).mean(0))
        last = over_seeds(residual_half=self.residual_half[:, -1])
        plateau = {**last.values, "expected_plateau": self.expected_plateau}
        over_law = self.residual / self.size
        return {
            "MH-DATA": extremes_over_seeds(largest_violation=self.violation),
            "MH-DATA-patterns": extremes_over_seeds(
                largest_gram_error=self.gram_error, largest_relevant_token_error=self.relevant_error
            ),
            "MH-L2.1": extremes_over_seeds(
                largest_key_query_entry=self.key_query_entry,
                largest_row_difference=self.row_difference,
                largest_error_of_closed_form=self.step_error,
            ),
            "MH-L2.2": over_seeds(coefficient=self.coefficient[:, judged]),
            "MH-L2.2-plateau": Measurement(plateau, last.spread, last.n_seeds),
            "MH-L2.3": over_seeds(slope=self.slopes),
            "MH-L2.3-constant": extremes_over_seeds(largest_implied_constant=(self.residual / self.bound).max(1)),
            "MH-L2.3-exact": Measurement(
                {"rms_over_law": float(np.sqrt((over_law**2).mean()))},
                {"rms_over_law": (float(over_law.min()), float(over_law.max()))},
                len(over_law),
            ),
            "MH-L2.3-dimension": Measurement(
                {
                    "largest_over_smallest": float(typical.max() / typical.min()),
                    "root_of_dimensions": float(np.sqrt(max(self.settings.dimensions) / min(self.settings.dimensions))),
                },
                n_seeds=len(self.residual),
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> FirstPhase:
    """Take the first step and measure what it wrote.

    Args:
        settings: Sizes and seeds.
        device: Where to compute, in float64; default cuda where there is one, else the CPU.
        progress: Told (parts done, parts in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        found = {
            **data_checks.violations(settings.mixture, settings.n_checked, seeds),
            **_step(settings, seeds, where),
            **_written(settings, seeds, where),
        }
        if inner:
            inner(1, 1)
        return found

    with threads(1):
        parts = by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return FirstPhase(settings=settings, provenance=clock.provenance(where), **arrays)


def _step(settings: Settings, seeds: tuple[int, ...], where: torch.device) -> dict[str, np.ndarray]:
    """The step of all heads by the gradient at zero, with alternating signs."""
    batch = samples.draw(settings.mixture, settings.n_first[0], seeds, purpose="first phase 0", device=where)
    one = starts.zero(len(seeds), settings.n_tokens, settings.dimension, device=where)
    zero = {name: tensor.expand(-1, settings.n_heads, -1, -1) for name, tensor in one.items()}
    gradient = layer.value_and_gradient(zero, batch.tokens, logistic(batch.labels))[1]
    alpha = torch.tensor([(-1.0) ** h for h in range(settings.n_heads)], dtype=torch.float64, device=where)
    step = -alpha * settings.n_heads**0.5
    after = {name: step[None, :, None, None] * tensor for name, tensor in gradient.items()}
    formula = starts.first_phase(batch.tokens, batch.labels, coefficients=alpha)
    apart = {name: (after[name] - formula[name]).abs().amax((1, 2, 3)) for name in after}
    rows = after["decoder"] - after["decoder"][:, :, :1]
    return {
        "key_query_entry": after["key_query"].abs().amax((1, 2, 3)).cpu().numpy(),
        "row_difference": rows.abs().amax((1, 2, 3)).cpu().numpy(),
        "step_error": torch.maximum(apart["decoder"], apart["key_query"]).cpu().numpy(),
    }


def _written(settings: Settings, seeds: tuple[int, ...], where: torch.device) -> dict[str, np.ndarray]:
    """What the direction of the first phase holds, for every number of samples and at every dimension."""
    zeta, square = settings.relevant_fraction, settings.pattern_norm**2
    signal = label_direction(settings.mixture, seeds, device=where)
    m = torch.stack(_directions(settings.mixture, settings.n_first, seeds, where), dim=1)
    label, other = patterns_of(settings.mixture, seeds, device=where)
    read = torch.einsum("bsd,bpd->bsp", m, label) * m.new_tensor([1.0, -1.0])
    of_dimension = []
    for dimension in settings.dimensions:
        mixture = settings.wide(dimension)
        direction = _directions(mixture, settings.n_first[:1], seeds, where)[0]
        of_dimension.append((direction - zeta / 4 * label_direction(mixture, seeds, device=where)).norm(dim=1))
    found = {
        "coefficient": torch.einsum("bsd,bd->bs", m, signal) / (2 * square * zeta),
        "residual": (m - zeta / 4 * signal[:, None]).norm(dim=2),
        "residual_half": (m - zeta / 2 * signal[:, None]).norm(dim=2),
        "label_value": read.amin(2) / (zeta / 4 * square),
        "other_value": torch.einsum("bsd,bpd->bsp", m, other).abs().amax(2) / (zeta / 4 * square),
        "residual_by_dimension": torch.stack(of_dimension, dim=1),
    }
    return {name: tensor.cpu().numpy() for name, tensor in found.items()}


def _directions(mixture: Mixture, sizes: tuple[int, ...], seeds: tuple[int, ...], where: torch.device) -> list[Tensor]:
    """Return $m$ for each of the increasing sizes, of which the smaller are the first samples of the larger."""
    total, done, found = torch.zeros((), dtype=torch.float64, device=where), 0, []
    for size in sizes:
        while done < size:
            number = min(size - done, MOST_AT_ONCE)
            own = [samples.draw(mixture, number, [seed], purpose=f"first phase {done}", device=where) for seed in seeds]
            directions = [starts.first_phase_direction(drawn.tokens, drawn.labels) for drawn in own]
            total = total + number * torch.cat(directions)
            done += number
        found.append(total / size)
    return found
