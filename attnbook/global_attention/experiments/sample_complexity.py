"""Table 1 and Figure 7: how many samples does a network need, with and without a mask?

The paper leaves out the teacher, the number of relevant inputs, the width, the optimiser and the penalty; what is
chosen here stands in :class:`Settings`. The label variance of the paper's teacher stays unknown as well, so its losses
and ours may differ by one common factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook import ledger
from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.results import Clock, Measurement, Result, over_seeds, ratio_over_seeds
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.runtime import Progress
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model, Training, train_members

__all__ = ["MODELS", "PAPER_SIZES", "SampleComplexity", "Settings", "paper_losses", "run"]

MODELS: tuple[Model, ...] = ("baseline", "attention", "l1_attention")
PAPER_SIZES = (10_000, 14_000, 16_000, 18_000, 20_000, 50_000)


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the defaults are the book scale, a faithful miniature.

    Attributes:
        n_inputs: Number of inputs; 256 in the paper.
        n_relevant: Inputs that matter; ours is a quarter of all, the paper does not say.
        outputs: Labels per sample; 10 in the paper.
        teacher_width: Hidden units of the teacher; ours.
        width: Hidden units of the networks; ours.
        sizes: Training samples, one for each row of Table 1; at book scale the paper's divided by 16, as the networks
            have 16 times fewer weights in the first layer.
        n_test: Held-out samples.
        penalty: L1 weight on the mask; the paper does not give it.
        step_size: Step size of Adam, constant; ours.
        batch_size: Samples per step; ours.
        snapshot: Step at which Table 1 is read, fixed before the run.
        steps: Steps in all; the paper trains for 400 000.
        seeds: Seeds of teacher, data, batches and weights.
        chunk: Seeds trained together as one program.
    """

    n_inputs: int = 32
    n_relevant: int = 8
    outputs: int = 10
    teacher_width: int = 32
    width: int = 64
    sizes: tuple[int, ...] = tuple(n // 16 for n in PAPER_SIZES)
    n_test: int = 4096
    penalty: float = 1e-3
    step_size: float = 5e-3
    batch_size: int = 64
    snapshot: int = 2500
    steps: int = 2500
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if len(self.sizes) != len(PAPER_SIZES):
            raise ValueError(f"sizes: expected {len(PAPER_SIZES)}, one for each row of Table 1, got {self.sizes}")
        if not 1 <= self.snapshot <= self.steps:
            raise ValueError(f"snapshot: expected between 1 and steps = {self.steps}, got {self.snapshot}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(30, 40, 50, 60, 70, 80), n_test=64, snapshot=20, steps=30, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop: everything of the paper divided by 8 or 16."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return the paper's sizes: 256 inputs and 200 000 samples, of which those not trained on are the test set."""
        return cls(
            n_inputs=256,
            n_relevant=64,
            teacher_width=64,
            width=128,
            sizes=PAPER_SIZES,
            n_test=150_000,
            penalty=2e-4,
            step_size=2e-3,
            batch_size=128,
            snapshot=3000,
            steps=10_000,
            chunk=1,
        )

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps at which the test loss is recorded; fifths of the snapshot are among them."""
        fifths = [self.snapshot * fifth // 5 for fifth in (1, 2, 3, 4, 5)]
        return log_spaced(self.steps, 12, also=fifths)

    def members(self, seeds: Sequence[int]) -> list[Member]:
        """Return the networks of these seeds, ordered by seed, size and model."""
        return [
            Member(model, seed, size, self.n_relevant, self.penalty)
            for seed in seeds
            for size in self.sizes
            for model in MODELS
        ]


@dataclass(frozen=True)
class SampleComplexity(Result):
    """Test losses and masks of every network.

    Attributes:
        steps: Steps at which losses were recorded, ``(records,)``.
        test_loss: Mean squared error on held-out samples in units of the label variance,
            ``(records, seeds, sizes, models)``.
        weights: How strongly each input enters at the snapshot, ``(seeds, sizes, models, inputs)``.
        truth: The teacher's masks, ``(seeds, inputs)``.
    """

    experiment: ClassVar[str] = "global_attention.sample_complexity"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, " records"]
    test_loss: Float[np.ndarray, "records seeds sizes models"]
    weights: Float[np.ndarray, "seeds sizes models inputs"]
    truth: Float[np.ndarray, "seeds inputs"]

    def at(self, step: int) -> Float[np.ndarray, "seeds sizes models"]:
        """Return the test losses recorded at a step.

        Raises:
            ValueError: If nothing was recorded there.
        """
        if step not in self.steps:
            raise ValueError(f"step: nothing recorded at {step}; recorded are {self.steps.astype(int).tolist()}")
        return self.test_loss[int(np.flatnonzero(self.steps == step)[0])]

    @property
    def table(self) -> Float[np.ndarray, "seeds sizes models"]:
        """The losses of Table 1."""
        return self.at(self.settings.snapshot)

    @property
    def common_factor(self) -> float:
        """The one factor that brings our median losses closest to the paper's, on a log scale."""
        return float(np.exp(np.mean(np.log(paper_losses() / np.median(self.table, axis=0)))))

    @property
    def worth(self) -> dict[str, float]:
        """Samples at which the baseline's median loss is that of another model with the fewest samples.

        Interpolated on log axes; infinite where the baseline does not get there at any size.
        """
        medians = np.median(self.table, axis=0)
        falling = np.minimum.accumulate(np.log(medians[:, 0]))
        found: dict[str, float] = {}
        for j, model in enumerate(MODELS[1:], 1):
            target = np.log(medians[0, j])
            size = np.exp(np.interp(-target, -falling, np.log(PAPER_SIZES)))
            found[model] = float(size) if falling[-1] <= target else float("inf")
        return found

    def measurements(self) -> dict[str, Measurement]:
        """Return what Table 1, Figure 7 and the recovered mask say, by claim id."""
        measured = self._cells() | self._sentences() | self._figure_7()
        if self.settings.n_relevant < self.settings.n_inputs:
            off, on = self._off_and_on_support()
            ratio = off / on
            measured["GA-X-support"] = over_seeds(off_over_on_attention=ratio[:, 1], off_over_on_l1=ratio[:, 2])
        if self.settings.steps > self.settings.snapshot:
            start, end = self.table[:, 0], self.test_loss[-1, :, 0]
            measured["GA-TAB1-race"] = over_seeds(
                baseline_recovery=end[:, 0] / start[:, 0],
                gap_to_attention_at_snapshot=start[:, 0] / start[:, 1],
                gap_to_attention_at_end=end[:, 0] / end[:, 1],
            )
        return measured

    def _cells(self) -> dict[str, Measurement]:
        return {
            f"GA-TAB1-{size}": over_seeds(**{model: self.table[:, i, j] for j, model in enumerate(MODELS)})
            for i, size in enumerate(PAPER_SIZES)
        }

    def _sentences(self) -> dict[str, Measurement]:
        baseline, attention, l1 = (dict(zip(PAPER_SIZES, self.table[:, :, j].T, strict=True)) for j in range(3))
        error = np.log(np.median(self.table, axis=0) * self.common_factor / paper_losses())
        by_column = np.log(paper_losses()) - np.log(paper_losses()).mean(axis=0)
        return {
            "GA-TAB1-headline": over_seeds(attention_14000=attention[14_000], baseline_20000=baseline[20_000]),
            "GA-TAB1-baseline-falls": ratio_over_seeds("baseline_10000_over_20000", baseline[10_000], baseline[20_000]),
            "GA-TAB1-l1-flat": ratio_over_seeds("l1_10000_over_20000", l1[10_000], l1[20_000]),
            "GA-TAB1-crossing": over_seeds(l1_50000=l1[50_000], attention_50000=attention[50_000]),
            "GA-TAB1-pattern": Measurement(
                {"rms_log_error": _rms(error), "column_constants_error": _rms(by_column)}, n_seeds=len(self.table)
            ),
        }

    def _figure_7(self) -> dict[str, Measurement]:
        early = [self.settings.snapshot * fifth // 5 for fifth in (1, 2, 3)]
        baseline, attention, l1 = np.moveaxis(np.stack([np.median(self.at(step), axis=0) for step in early]), -1, 0)
        n_seeds = len(self.settings.seeds)
        return {
            "GA-F7-attention": Measurement({"fraction_held": float((attention < baseline).mean())}, n_seeds=n_seeds),
            "GA-F7-l1": Measurement({"fraction_held": float((l1 < attention).mean())}, n_seeds=n_seeds),
        }

    def _off_and_on_support(self) -> tuple[np.ndarray, np.ndarray]:
        """Median weight off and on the true support, each ``(seeds, models)``, pooled over sizes."""
        on = self.truth[:, None, None, :] == 1
        pooled = {
            where: np.nanmedian(np.where(mask, self.weights, np.nan), axis=(1, 3))
            for where, mask in (("off", ~on), ("on", on))
        }
        return pooled["off"], pooled["on"]


def paper_losses() -> Float[np.ndarray, "sizes models"]:
    """Return the 18 numbers of Table 1, from the claims ledger."""
    cells = [ledger.claim(f"GA-TAB1-{size}").paper_value for size in PAPER_SIZES]
    return np.array([[cell[model] for model in MODELS] for cell in cells])


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> SampleComplexity:
    """Train all networks of Table 1.

    Args:
        settings: Sizes, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a network diverges.
    """
    clock, where = Clock(), runtime.device(device)
    setup = Setup(
        settings.n_inputs, settings.outputs, settings.teacher_width, settings.width, noise=0.0, n_test=settings.n_test
    )
    training = Training(settings.steps, settings.batch_size, settings.step_size, settings.record_at)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        history = train_members(settings.members(seeds), setup, training, device=where, progress=inner)
        shape = (-1, len(seeds), len(settings.sizes), len(MODELS))
        weights = history.records["effective_weights"][settings.record_at.index(settings.snapshot)]
        return {
            "test_loss": history.records["test_loss"].reshape(shape),
            "weights": weights.reshape(*shape[1:], settings.n_inputs),
        }

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return SampleComplexity(
        settings=settings,
        provenance=clock.provenance(where),
        steps=np.array(settings.record_at, dtype=np.float64),
        test_loss=np.concatenate([part["test_loss"] for part in parts], axis=1),
        weights=np.concatenate([part["weights"] for part in parts]),
        truth=np.stack([setup.teacher(seed, settings.n_relevant).mask for seed in settings.seeds]),
    )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
