r"""Training from zero and from first-phase starts with different draws of the signs: what does the start change?

Each start is trained with every step size of one grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, layer, starts
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import samples
from attnbook.multi_head.objectives import logistic

__all__ = ["STARTS", "AfterStart", "Settings", "run"]

STARTS = ("zero", "even", "lucky", "unlucky")
"""Zero; the first phase with as many plus as minus signs; with three times as many; with a third as many."""


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment, which is this book's.

    Attributes:
        n_tokens: Tokens of a sample.
        dimension: Dimension of a token.
        n_patterns: Patterns that say nothing.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns, $Z_\mu=Z_\nu$.
        free_noise: Norm of the noise orthogonal to all patterns.
        n_samples: Training samples.
        n_first: Samples of the first phase.
        n_heads: Number of heads, a multiple of four.
        step_sizes: Step sizes, increasing; every start is trained with each.
        judged: The step size at which starts are compared, one of ``step_sizes``.
        steps: Steps of gradient descent.
        reached: Training loss whose first passing is timed.
        seeds: Seeds of patterns and samples.
        chunk: Seeds trained together.
    """

    n_tokens: int = 10
    dimension: int = 12
    n_patterns: int = 4
    pattern_norm: float = 2.0
    relevant_fraction: float = 0.1
    noise: float = 0.5
    free_noise: float = 0.5
    n_samples: int = 40
    n_first: int = 1000
    n_heads: int = 16
    step_sizes: tuple[float, ...] = (0.5, 1.0, 3.0, 10.0)
    judged: float = 1.0
    steps: int = 130
    reached: float = 0.01
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.n_heads < 4 or self.n_heads % 4:
            raise ValueError(f"n_heads: expected a multiple of four, got {self.n_heads}")
        if list(self.step_sizes) != sorted(set(self.step_sizes)) or not self.step_sizes or self.step_sizes[0] <= 0:
            raise ValueError(f"step_sizes: expected increasing positive numbers, got {self.step_sizes}")
        if self.judged not in self.step_sizes:
            raise ValueError(f"judged: expected one of step_sizes = {self.step_sizes}, got {self.judged}")
        for name in ("n_samples", "n_first", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)
        _ = self.mixture

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second."""
        return cls(n_samples=10, n_first=300, step_sizes=(1.0, 10.0), steps=100, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more samples, steps and seeds."""
        return cls(n_samples=200, steps=1000, seeds=tuple(range(20)))

    @property
    def mixture(self) -> Mixture:
        """The data model."""
        sizes = (self.n_tokens, self.dimension, self.n_patterns, self.pattern_norm, self.relevant_fraction)
        return Mixture(*sizes, self.noise, self.noise, self.free_noise)

    @property
    def counts(self) -> Float[np.ndarray, "starts 2"]:
        """Plus and minus heads of each of :data:`STARTS`; at zero the two halves are equal."""
        h = self.n_heads
        return np.array([[h / 2, h / 2], [h / 2, h / 2], [3 * h / 4, h / 4], [h / 4, 3 * h / 4]])


@dataclass(frozen=True)
class AfterStart(Result):
    """What training does from each start.

    Attributes:
        first_loss: Training loss at the start.
        largest_rise: Largest rise of the training loss in one step, negative if there is none.
        largest_loss: Largest training loss on the way.
        steps_needed: Steps until the loss is first at most ``reached``; infinite where it never is.
    """

    experiment: ClassVar[str] = "multi_head.after_start"
    settings_type: ClassVar[type] = Settings

    first_loss: Float[np.ndarray, "seeds starts"]
    largest_rise: Float[np.ndarray, "seeds starts step_sizes"]
    largest_loss: Float[np.ndarray, "seeds starts step_sizes"]
    steps_needed: Float[np.ndarray, "seeds starts step_sizes"]

    @property
    def needed_when_judged(self) -> dict[str, Float[np.ndarray, " seeds"]]:
        """Steps needed at the step size ``judged``, by start."""
        at = self.settings.step_sizes.index(self.settings.judged)
        return {name: self.steps_needed[:, i, at] for i, name in enumerate(STARTS)}

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        needed, at = self.needed_when_judged, self.settings.step_sizes.index(self.settings.judged)
        ratio = needed["zero"] / needed["even"]
        return {
            "MH-START-steps": extremes_over_seeds(
                smallest_zero_over_even=ratio, largest_zero_over_even=ratio, largest_rise=self.largest_rise[..., at]
            ),
            "MH-START-unlucky": extremes_over_seeds(
                smallest_first_loss_unlucky=self.first_loss[:, STARTS.index("unlucky")],
                largest_unlucky_over_zero=needed["unlucky"] / needed["zero"],
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> AfterStart:
    """Train from every start with every step size.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If training diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        batch = samples.draw(settings.mixture, settings.n_samples, seeds, device=where)
        first = samples.draw(settings.mixture, settings.n_first, seeds, purpose="first phase", device=where)
        repeats = len(STARTS) * len(settings.step_sizes)
        tokens, labels = (part.repeat_interleave(repeats, dim=0) for part in batch[:2])
        counts = torch.tensor(settings.counts, device=where).repeat_interleave(len(settings.step_sizes), dim=0)
        counts = counts.repeat(len(seeds), 1)
        objective = logistic(labels)

        def record(parameters: Parameters) -> dict[str, Tensor]:
            return {"loss": objective(layer.outputs(parameters, tokens, counts=counts))[0]}

        history = head_groups.gradient_descent(
            _starts(settings, first),
            tokens,
            objective,
            counts=counts,
            step_size=list(settings.step_sizes) * (len(STARTS) * len(seeds)),
            steps=settings.steps,
            record=record,
            record_at=range(settings.steps + 1),
            progress=inner,
        )
        loss = np.asarray(history.records["loss"])
        return _summaries(settings, loss.T.reshape(len(seeds), len(STARTS), len(settings.step_sizes), -1))

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return AfterStart(settings=settings, provenance=clock.provenance(where), **concatenate(parts))


def _summaries(
    settings: Settings, loss: Float[np.ndarray, "seeds starts step_sizes times"]
) -> dict[str, Float[np.ndarray, ...]]:
    below = loss <= settings.reached
    return {
        "first_loss": loss[:, :, 0, 0],
        "largest_rise": np.diff(loss).max(3),
        "largest_loss": loss.max(3),
        "steps_needed": np.where(below.any(3), below.argmax(3), np.inf),
    }


def _starts(settings: Settings, first: samples.Drawn) -> Parameters:
    """All starts of all seeds, once for each step size; only zero differs but for the counts."""
    one = starts.first_phase(first.tokens, first.labels)
    present = torch.tensor([float(name != "zero") for name in STARTS], dtype=torch.float64, device=first.tokens.device)
    scale = present.repeat_interleave(len(settings.step_sizes)).repeat(len(first.tokens))[:, None, None, None]
    repeats = len(STARTS) * len(settings.step_sizes)
    return {name: scale * tensor.repeat_interleave(repeats, dim=0) for name, tensor in one.items()}
