"""Plus and minus heads after the first phase: where each looks, and when the minus heads change sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate, share
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, measures, oracle
from attnbook.multi_head.data import draw_patterns
from attnbook.multi_head.experiments import groups, samples
from attnbook.multi_head.experiments.groups import Data, MixtureSettings
from attnbook.multi_head.objectives import logistic

__all__ = ["HeadTypes", "Settings", "run"]

# The step at which the claims look at attention.
EARLY = 100


@dataclass(frozen=True)
class Settings(MixtureSettings):
    r"""Sizes of the experiment: data with longer patterns and more relevant tokens than elsewhere, and training.

    Attributes:
        dimension: Dimension of a token.
        pattern_norm: Norm of every pattern.
        relevant_fraction: Share of tokens that carry the label.
        noise: Bound on the noise along patterns.
        heads: Numbers of heads, half of them plus heads; 2, 8 and 64 among them.
        step_size: Step size $\eta$; not tuned, smaller because patterns are longer.
        steps: Number of steps.
        look_every: Steps between two records.
    """

    dimension: int = 10
    pattern_norm: float = 2.0
    relevant_fraction: float = 0.2
    noise: float = 0.5
    heads: tuple[int, ...] = (2, 8, 64)
    step_size: float = 0.05
    steps: int = 2000
    look_every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {2, 8, 64} <= set(self.heads) or any(h % 2 for h in self.heads):
            raise ValueError(f"heads: expected even numbers, with 2, 8 and 64 among them, got {self.heads}")
        if EARLY % self.look_every or self.steps % self.look_every or self.steps < EARLY:
            raise ValueError(
                f"look_every: expected a divisor of {EARLY} and of steps >= {EARLY}, got {self.look_every}"
            )

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=6, n_first_phase=20, n_test=1, steps=100, look_every=50, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more heads, seeds and steps; the paper has no such experiment."""
        return cls(heads=(2, 4, 8, 16, 32, 64), steps=10_000, look_every=20, seeds=tuple(range(10)), chunk=1)

    @property
    def at(self) -> tuple[int, ...]:
        """Steps of the records."""
        return tuple(range(0, self.steps + 1, self.look_every))


@dataclass(frozen=True)
class HeadTypes(Result):
    r"""What each type of head does along the training, the last axis for plus and minus heads.

    Attributes:
        mass: Attention mass on relevant tokens of the training samples.
        norm: Norm of the decoder of one head.
        value: The inner product $\langle U,\mathbb 1_Tu_\star^\top\rangle$ of the decoder and the oracle's, both scaled
            to norm one: positive where the head reads on the right side; zero for a decoder that is zero.
    """

    experiment: ClassVar[str] = "multi_head.head_types"
    settings_type: ClassVar[type] = Settings

    mass: Float[np.ndarray, "seeds heads records 2"]
    norm: Float[np.ndarray, "seeds heads records 2"]
    value: Float[np.ndarray, "seeds heads records 2"]

    def early(self, n_heads: int) -> Float[np.ndarray, "seeds 2"]:
        """Return attention masses at the early step of the claims."""
        return self._at(n_heads, EARLY)

    @property
    def flip_steps(self) -> Float[np.ndarray, "seeds heads"]:
        """First recorded step at which the minus heads read on the right side; the last step where they never do."""
        right = self.value[..., 1] > 0
        first = np.array(self.settings.at, dtype=float)[right.argmax(2)]
        return np.where(right.any(2), first, float(self.settings.steps))

    def norm_ratio_at_flip(self, n_heads: int) -> Float[np.ndarray, " seeds"]:
        """Norm of a minus head's decoder over that of a plus head, at the step where the minus heads change sides."""
        i = self.settings.heads.index(n_heads)
        records = [self.settings.at.index(int(step)) for step in self.flip_steps[:, i]]
        norms = self.norm[np.arange(len(records)), i, records]
        return np.asarray(norms[:, 1] / norms[:, 0])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        heads, two, eight = self.settings.heads, self.early(2), self.early(8)
        flips = {f"flip_step_{h}": self.flip_steps[:, heads.index(h)] for h in (2, 8, 64)}
        last = np.stack([self._at(h, self.settings.steps)[:, 1] for h in (2, 8)], axis=1)
        return {
            "MH-X.4": extremes_over_seeds(smallest_mass_plus=two[:, 0], largest_mass_minus=two[:, 1]),
            "MH-X.4-eight": over_seeds(mass_plus=eight[:, 0], mass_minus=eight[:, 1]),
            "MH-X.4-flip": over_seeds(**flips),
            "MH-X.4-small": extremes_over_seeds(
                largest_norm_ratio=np.stack([self.norm_ratio_at_flip(h) for h in (2, 8)], axis=1)
            ),
            "MH-X.4-stay": over_seeds(final_mass_minus=last.max(1)),
        }

    def _at(self, n_heads: int, step: int) -> np.ndarray:
        return np.asarray(self.mass[:, self.settings.heads.index(n_heads), self.settings.at.index(step)])


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> HeadTypes:
    """Train networks from the first-phase start and follow their two types of heads.

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
        for number, n_heads in enumerate(settings.heads):
            found.append(_follow(settings, data, seeds, n_heads, share(inner, number, len(settings.heads))))
        return {name: np.stack([one[name] for one in found], axis=1) for name in found[0]}

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return HeadTypes(settings=settings, provenance=clock.provenance(where), **arrays)


def _follow(
    settings: Settings, data: Data, seeds: tuple[int, ...], n_heads: int, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Records of one number of heads, each ``(seeds, records, 2)``."""
    parameters, counts = groups.start_of("first_phase", data, [n_heads] * len(seeds))
    patterns = [draw_patterns(settings.mixture, rng=stream(s, "patterns")) for s in seeds]
    oracles = np.stack([oracle.decoder(one, settings.n_tokens) for one in patterns])
    right = to_tensor(oracles, device=data.train.tokens.device, dtype=torch.float64).unsqueeze(1)

    def record(p: Parameters) -> dict[str, Tensor]:
        decoder = p["decoder"]
        norms = (decoder.norm(dim=(2, 3)) * right.norm(dim=(2, 3))).clamp(min=torch.finfo(decoder.dtype).tiny)
        return {
            "mass": measures.relevant_mass(p, data.train.tokens, data.train.relevant),
            "norm": decoder.norm(dim=(2, 3)),
            "value": (decoder * right).sum((2, 3)) / norms,
        }

    history = head_groups.gradient_descent(
        parameters,
        data.train.tokens,
        logistic(data.train.labels),
        counts=counts,
        step_size=settings.step_size,
        steps=settings.steps,
        record=record,
        record_at=settings.at,
        progress=progress,
    )
    return {name: array.swapaxes(0, 1) for name, array in history.records.items()}
