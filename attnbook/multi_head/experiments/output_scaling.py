r"""The tokenised mixture: heads summed with $H^{-c}$ in the place of $H^{-1/2}$, with the step size that goes with it.

With step size $\eta H^{2c-1}$ the decoders change the output by the same amount for every $H$ and $c$. What differs is
the step of $W_h$, which is $\eta H^{2c-2}$ (see :mod:`attnbook.multi_head.one_head`): with
$c=1/2$ it shrinks as heads are added, with $c=1$ it does not. So $H$ and $c$ enter by $H^{2(1-c)}$ alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate, share
from attnbook.core.runtime import Progress
from attnbook.multi_head.experiments import groups, samples
from attnbook.multi_head.experiments.groups import Cell, MixtureSettings

__all__ = ["OutputScaling", "Settings", "run"]


@dataclass(frozen=True)
class Settings(MixtureSettings):
    r"""Sizes of the experiment: those of the data, and training from the first-phase start with even signs.

    Attributes:
        heads: Numbers of heads, even: so that signs sum to zero; 16 and 256 among them.
        exponents: Exponents $c$ of the scaling $H^{-c}$; the paper's 1/2, and 3/4 and 1 among them.
        step_size: The $\eta$ in the step size $\eta H^{2c-1}$; not tuned.
        steps: Number of steps $K$.
    """

    heads: tuple[int, ...] = (2, 16, 256, 4096)
    exponents: tuple[float, ...] = (0.5, 0.75, 1.0)
    step_size: float = 0.5
    steps: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(h % 2 for h in self.heads):
            raise ValueError(f"heads: expected even numbers, so that signs sum to zero, got {self.heads}")
        if not {16, 256} <= set(self.heads):
            raise ValueError(f"heads: expected 16 and 256 among them, got {self.heads}")
        if not {0.5, 0.75, 1.0} <= set(self.exponents):
            raise ValueError(f"exponents: expected 0.5, 0.75 and 1 among them, got {self.exponents}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=8, n_first_phase=20, n_test=20, steps=10, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more exponents, seeds and steps; the paper has no such experiment."""
        return cls(exponents=(0.5, 0.625, 0.75, 0.875, 1.0), steps=600, seeds=tuple(range(10)), chunk=1)


@dataclass(frozen=True)
class OutputScaling(Result):
    """What training left behind.

    Attributes:
        train_loss: Training loss after the last step.
        test_error: Share of wrong test samples.
        mass: Attention mass on relevant tokens, the mean over all heads.
    """

    experiment: ClassVar[str] = "multi_head.output_scaling"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds exponents heads"]
    test_error: Float[np.ndarray, "seeds exponents heads"]
    mass: Float[np.ndarray, "seeds exponents heads"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        half, one = (self.settings.exponents.index(c) for c in (0.5, 1.0))
        most = self.settings.heads.index(max(self.settings.heads))
        loss = self.train_loss[:, one]
        between, few, many = (self.settings.exponents.index(0.75), *map(self.settings.heads.index, (16, 256)))
        effective = self.train_loss[:, between, many] / self.train_loss[:, half, few] - 1
        return {
            "MH-H.6": over_seeds(relative_loss_spread_mean_field=np.ptp(loss, axis=1) / loss.min(1)),
            "MH-H.6-effective": extremes_over_seeds(largest_relative_difference=abs(effective)),
            "MH-H.6-features": extremes_over_seeds(
                smallest_mass_mean_field=self.mass[:, one], largest_error_mean_field=self.test_error[:, one]
            ),
            "MH-H.6-lazy": over_seeds(
                mass_half_4096=self.mass[:, half, most], error_half_4096=self.test_error[:, half, most]
            ),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> OutputScaling:
    """Train networks whose heads are summed with one scaling or another.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished seeds, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a member diverges.
    """
    clock, where = Clock(), samples.double_device(device)

    def measure(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        data = groups.draw_data(settings, seeds, device=where)
        found = []
        for number, c in enumerate(settings.exponents):
            cells = [Cell(h, settings.step_size * float(h) ** (2 * c - 1)) for h in settings.heads]
            told = share(inner, number, len(settings.exponents))
            records = groups.train_cells(
                data,
                cells,
                "first_phase",
                steps=settings.steps,
                record_at=(settings.steps,),
                exponent=c,
                progress=told,
            )
            found.append({name: array[:, :, -1] for name, array in records.items()})
        arrays = {name: np.stack([one[name] for one in found], axis=1) for name in ("train_loss", "test_error", "mass")}
        return arrays | {"mass": arrays["mass"].mean(3)}

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return OutputScaling(settings=settings, provenance=clock.provenance(where), **arrays)
