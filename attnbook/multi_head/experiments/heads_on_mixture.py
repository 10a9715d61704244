"""The tokenised mixture: what more heads do to loss, error and attention while the step size stays the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import by_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.multi_head import head_groups, one_head
from attnbook.multi_head.experiments import groups, samples
from attnbook.multi_head.experiments.groups import Cell, Data, MixtureSettings
from attnbook.multi_head.experiments.summaries import means_over_seeds
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.one_head import step_sizes

__all__ = ["HeadsOnMixture", "Settings", "run"]

# Steps between two looks at the loss, where training stops at a given one.
LOOK_EVERY = 5
# From how many heads on their number is large, and up to how many it is small, in the claims on attention.
MANY, FEW = 64, 8
_FROZEN = {"loss": "train_loss", "error": "test_error"}


@dataclass(frozen=True)
class Settings(MixtureSettings):
    r"""Sizes of the experiment: those of the data, and training from the first-phase start.

    Attributes:
        heads: Numbers of heads, increasing.
        step_size: Step size $\eta$ for every number of heads; not tuned.
        steps: Number of steps $K$.
        records: Log-spaced records to aim for.
        equal_heads: Numbers of heads that are compared at equal loss, some of ``heads``.
        equal_loss: Training loss at which these stop.
    """

    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 64, 256, 4096)
    step_size: float = 0.5
    steps: int = 600
    records: int = 14
    equal_heads: tuple[int, ...] = (1, 2, 4, 8)
    equal_loss: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(np.diff(self.heads) <= 0) or not {1, 64, 256, 4096} <= set(self.heads):
            raise ValueError(f"heads: expected increasing numbers with 1, 64, 256, 4096 among them, got {self.heads}")
        if not {1, 8} <= set(self.equal_heads) <= set(self.heads):
            raise ValueError(f"equal_heads: expected some of {self.heads}, 1 and 8 among them, got {self.equal_heads}")
        if not 0 < self.equal_loss < math.log(2):
            raise ValueError(f"equal_loss: expected a number between 0 and log 2, got {self.equal_loss}")

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show little."""
        return cls(n_samples=8, n_first_phase=20, n_test=20, steps=12, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return larger networks, trained longer; the paper's own sizes are not in the text available to us."""
        return cls(
            dimension=50,
            n_patterns=20,
            n_samples=100,
            heads=(1, 4, 8, 16, 64, 256, 1024, 4096),
            equal_heads=(1, 4, 8),
            steps=1000,
            chunk=1,
        )

    @property
    def at(self) -> tuple[int, ...]:
        """Steps of the records."""
        return log_spaced(self.steps, self.records)


@dataclass(frozen=True)
class HeadsOnMixture(Result):
    """What training left behind, first axes ``(seeds, heads)``.

    Attributes:
        train_loss: Training loss at each record.
        test_loss: Loss on test samples.
        test_error: Share of wrong test samples.
        mass: Attention mass on relevant tokens of the plus and the minus heads; uniform attention gives their share.
        equal_error: Test error at the equal loss, infinite where it was not reached, ``(seeds, equal_heads)``.
        equal_steps: Steps to the equal loss.
        frozen_loss: Training loss after the last step of a head whose attention stays uniform, ``(seeds,)``.
        frozen_error: Its test error.
    """

    experiment: ClassVar[str] = "multi_head.heads_on_mixture"
    settings_type: ClassVar[type] = Settings

    train_loss: Float[np.ndarray, "seeds heads records"]
    test_loss: Float[np.ndarray, "seeds heads records"]
    test_error: Float[np.ndarray, "seeds heads records"]
    mass: Float[np.ndarray, "seeds heads records 2"]
    equal_error: Float[np.ndarray, "seeds equal_heads"]
    equal_steps: Float[np.ndarray, "seeds equal_heads"]
    frozen_loss: Float[np.ndarray, " seeds"]
    frozen_error: Float[np.ndarray, " seeds"]

    @property
    def mean_mass(self) -> Float[np.ndarray, "seeds heads records"]:
        """Attention mass on relevant tokens, the mean over all heads; a single head is a plus head."""
        heads = np.array(self.settings.heads)[:, None]
        minus = (heads // 2) / heads
        return (1 - minus) * self.mass[..., 0] + minus * self.mass[..., 1]

    def final(self, name: str, n_heads: int) -> Float[np.ndarray, " seeds"]:
        """Return an array of this result after the last step for one number of heads."""
        return np.asarray(getattr(self, name)[:, self.settings.heads.index(n_heads), -1])

    def measurements(self) -> dict[str, Measurement]:
        """Return what was found, by claim id."""
        mass = {f"mass_{h}": self.final("mean_mass", h) for h in (1, 256)}
        apart = abs(self.final("test_error", 4096) - self.frozen_error)
        at_equal = {f"mean_error_{h}": self.equal_error[:, self.settings.equal_heads.index(h)] for h in (1, 8)}
        found = {
            "MH-H.1": self._rise("train_loss", "loss"),
            "MH-H.2": self._rise("test_error", "error"),
            "MH-H.3": over_seeds(**mass),
            "MH-H.3-frozen": extremes_over_seeds(largest_error_difference=apart),
            "MH-H.3-split": self._powers(),
            "MH-H.4": means_over_seeds(**at_equal),
            "MH-X.4-main": self._minus_heads(),
        }
        if 1024 in self.settings.heads:
            errors = {f"error_{h}": self.final("test_error", h) for h in (1, 1024)}
            found["MH-H.2-full-size"] = over_seeds(**errors)
        return found

    def _powers(self) -> Measurement:
        """Powers of H by which types of heads differ in attention, and by which the mean over heads leaves uniform."""
        many = [i for i, h in enumerate(self.settings.heads) if h >= MANY]
        log_heads = np.log([self.settings.heads[i] for i in many])
        final = self.mass[:, many, -1]
        departures = {
            "power_of_difference": final[..., 0] - final[..., 1],
            "power_of_mean": self.mean_mass[:, many, -1] - self.settings.relevant_fraction,
        }
        # Smallest numbers keep logarithms finite where nothing was learnt.
        logs = {name: np.log(np.maximum(array, np.finfo(float).tiny)) for name, array in departures.items()}
        return over_seeds(**{name: np.polyfit(log_heads, array.T, 1)[0] for name, array in logs.items()})

    def _minus_heads(self) -> Measurement:
        """Attention of minus heads at the end, and how much larger that of plus heads is, with few heads."""
        few = [i for i, h in enumerate(self.settings.heads) if 2 <= h <= FEW]
        plus, minus = np.moveaxis(self.mass[:, few, -1], -1, 0)
        return extremes_over_seeds(smallest_mass_minus=minus, smallest_difference=plus - minus)

    def _rise(self, array: str, name: str) -> Measurement:
        """Means over seeds for one and 64 heads, and their smallest increase between successive numbers of heads."""
        ends = means_over_seeds(**{f"mean_{name}_{h}": self.final(array, h) for h in (1, 64)})
        means = getattr(self, array)[:, :, -1].mean(0)
        values = {**ends.values, "smallest_mean_increase": float(np.diff(means).min())}
        return Measurement(values, ends.spread, ends.n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> HeadsOnMixture:
    """Train networks with few and many heads on the mixture, with one step size.

    Args:
        settings: Sizes and seeds.
        device: Where to train, in float64; default cuda where there is one, else the CPU.
        progress: Told (steps done, steps in all) of the runs with a fixed number of steps.
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
        cells = [Cell(h, settings.step_size) for h in settings.heads]
        equal = [_to_equal_loss(settings, data, h) for h in settings.equal_heads]
        found = groups.train_cells(
            data, cells, "first_phase", steps=settings.steps, record_at=settings.at, progress=inner
        )
        frozen = _frozen(settings, data)
        return found | frozen | {name: np.stack([one[name] for one in equal], axis=1) for name in equal[0]}

    arrays = concatenate(by_seeds(settings, measure, clock=clock, workdir=workdir, progress=progress))
    return HeadsOnMixture(settings=settings, provenance=clock.provenance(where), **arrays)


def _frozen(settings: Settings, data: Data) -> dict[str, np.ndarray]:
    """Train one head whose attention does not move: the limit of many heads."""
    start, counts = groups.start_of("zero", data, [1] * len(data.train.tokens))
    rates = step_sizes(settings.step_size, math.inf)
    objective = logistic(data.train.labels)
    last = one_head.gradient_descent(start, data.train.tokens, objective, rates=rates, steps=settings.steps)
    found = groups.statistics(last, data, counts)
    return {f"frozen_{name}": found[array].cpu().numpy() for name, array in _FROZEN.items()}


def _to_equal_loss(settings: Settings, data: Data, n_heads: int) -> dict[str, np.ndarray]:
    """Train one number of heads to the equal loss, with at most as many steps as all others take."""
    seeds = len(data.train.tokens)
    parameters, counts = groups.start_of("first_phase", data, [n_heads] * seeds)
    history = head_groups.gradient_descent(
        parameters,
        data.train.tokens,
        logistic(data.train.labels),
        counts=counts,
        step_size=settings.step_size,
        steps=settings.steps,
        record=lambda p: groups.train_loss(p, data, counts),
        record_at=(*range(0, settings.steps, LOOK_EVERY), settings.steps),
        stop=lambda records: records["train_loss"] <= settings.equal_loss,
    )
    errors = groups.statistics(history.parameters, data, counts)["test_error"].cpu().numpy()
    reached = history.records["train_loss"][-1] <= settings.equal_loss
    return {
        "equal_error": np.where(reached, errors, np.inf),
        "equal_steps": np.where(reached, history.stopped_at, np.inf),
    }
