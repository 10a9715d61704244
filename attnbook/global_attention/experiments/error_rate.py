"""Theorem 1, Corollary 1 and Proposition 1: how the error falls with the number of samples.

The paper has no figure for these; the experiment is this book's. Labels are noisy, so that the error keeps falling
with the number of samples, and it is measured against clean labels: it is the theorem's squared error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, get_args

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import by_seeds, check_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress
from attnbook.global_attention.masked_teachers import Setup
from attnbook.global_attention.masks import Member, Model, Training, predict, train_members
from attnbook.global_attention.sample_sizes import samples_needed, to_simplex

__all__ = ["MODELS", "ErrorRate", "Settings", "run"]

MODELS: tuple[Model, ...] = get_args(Model)
# Models whose slope is measured; the rule of the claim speaks of the three trained ones.
RATED: tuple[Model, ...] = ("baseline", "attention", "l1_attention", "oracle")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_inputs: Number of inputs.
        n_relevant: Inputs that matter.
        outputs: Labels per sample.
        teacher_width: Hidden units of the teacher.
        width: Hidden units of the networks.
        noise: Standard deviation of the label noise; the clean labels have 1.
        sizes: Training samples.
        n_test: Held-out samples with clean labels.
        penalty: L1 weight on the mask of ``l1_attention``.
        step_size: Step size of Adam, falling to zero along a cosine.
        batch_size: Samples per step.
        steps: Number of steps.
        seeds: Seeds.
        chunk: Seeds trained together as one program.
    """

    n_inputs: int = 32
    n_relevant: int = 4
    outputs: int = 10
    teacher_width: int = 16
    width: int = 32
    noise: float = 0.5
    sizes: tuple[int, ...] = (250, 500, 1000, 2000, 4000, 8000)
    n_test: int = 4096
    penalty: float = 1e-3
    step_size: float = 5e-3
    batch_size: int = 64
    steps: int = 3000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if len(self.sizes) < 3 or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError(f"sizes: expected at least three increasing numbers, got {self.sizes}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(30, 40, 50, 60, 70, 80), n_test=64, steps=20, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(steps=10_000, n_test=20_000, seeds=tuple(range(10)), chunk=2)

    def members(self, seeds: tuple[int, ...]) -> list[Member]:
        """Return the networks of these seeds, ordered by seed, size and model."""
        return [
            Member(model, seed, size, self.n_relevant, self.penalty)
            for seed in seeds
            for size in self.sizes
            for model in MODELS
        ]


@dataclass(frozen=True)
class ErrorRate(Result):
    """Final errors of every network.

    Attributes:
        test_loss: Mean squared error against clean labels, in units of the label variance, ``(seeds, sizes, models)``.
    """

    experiment: ClassVar[str] = "global_attention.error_rate"
    settings_type: ClassVar[type] = Settings

    test_loss: Float[np.ndarray, "seeds sizes models"]

    def of(self, model: Model) -> Float[np.ndarray, "seeds sizes"]:
        """Return the errors of one model."""
        return self.test_loss[:, :, MODELS.index(model)]

    def measurements(self) -> dict[str, Measurement]:
        """Return the rate, the order of the models and the exact identities, by claim id."""
        sizes = np.array(self.settings.sizes)
        small, large = slice(0, 3), slice(len(sizes) - 3, None)
        slopes = {f"slope_{_short(m)}": self._slope(m, large) for m in RATED}
        return {
            "GA-T1-rate": Measurement(
                {name: slope[0] for name, slope in slopes.items()},
                {name: slope[1] for name, slope in slopes.items()},
                len(self.settings.seeds),
            ),
            "GA-T1-order": self._worst_ratios({"l1": "l1_attention", "attention": "attention"}, large),
            "GA-T1-bound": Measurement({"max_error": _bound_error(self.settings)}),
            "GA-C1-function": Measurement({"max_error": _rewriting_errors(self.settings)[0]}),
            "GA-C1-free": Measurement({"norm_growth_error": _rewriting_errors(self.settings)[1]}),
            "GA-C1-order": self._worst_ratios({"sum_to_one": "sum_to_one"}, slice(2, None)),
            "GA-P1-gain": self._worst_ratios({"oracle": "oracle"}, small),
            "GA-P1-order": self._oracle_against_best(),
        }

    def _slope(self, model: Model, part: slice) -> tuple[float, tuple[float, float]]:
        log_sizes = np.log(self.settings.sizes[part])
        slopes = [np.polyfit(log_sizes, np.log(errors[part]), 1)[0] for errors in self.of(model)]
        of_medians = np.polyfit(log_sizes, np.log(np.median(self.of(model), axis=0)[part]), 1)[0]
        return float(of_medians), (float(min(slopes)), float(max(slopes)))

    def _worst_ratios(self, models: dict[str, Model], part: slice) -> Measurement:
        """Largest ratio of medians to the baseline over some sizes; spread: per-seed ratios at those sizes."""
        baseline = self.of("baseline")[:, part]
        values, spread = {}, {}
        for name, model in models.items():
            errors = self.of(model)[:, part]
            values[f"{name}_over_baseline"] = float((np.median(errors, axis=0) / np.median(baseline, axis=0)).max())
            spread[f"{name}_over_baseline"] = (float((errors / baseline).min()), float((errors / baseline).max()))
        return Measurement(values, spread, len(baseline))

    def _oracle_against_best(self) -> Measurement:
        trained = np.median(np.stack([self.of(m) for m in MODELS if m != "oracle"]), axis=1).min(axis=0)
        ratio = np.median(self.of("oracle"), axis=0) / trained
        return Measurement({"oracle_over_best_trained": float(ratio.max())}, n_seeds=len(self.settings.seeds))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> ErrorRate:
    """Train all five models on all sample sizes.

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
        settings.n_inputs, settings.outputs, settings.teacher_width, settings.width, settings.noise, settings.n_test
    )
    training = Training(settings.steps, settings.batch_size, settings.step_size, (settings.steps,), decay=True)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        history = train_members(settings.members(seeds), setup, training, device=where, progress=inner)
        return {"test_loss": history.records["test_loss"][-1].reshape(-1, len(settings.sizes), len(MODELS))}

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return ErrorRate(
        settings=settings,
        provenance=clock.provenance(where),
        test_loss=np.concatenate([part["test_loss"] for part in parts]),
    )


def _short(model: Model) -> str:
    return "l1" if model == "l1_attention" else model


def _bound_error(settings: Settings) -> float:
    r"""Relative distance between the ratio of the two bounds and $(p/s_0)^2\log(p\eta/\gamma)/\log(s_0\eta/\gamma)$."""
    p, s, error = settings.n_inputs, settings.n_relevant, 0.01
    sizes = {"n_inputs": p, "n_relevant": s, "width": settings.width}
    ratio = samples_needed("baseline", error, **sizes) / samples_needed("attention", error, **sizes)
    expected = (p / s) ** 2 * np.log(p / error**0.5) / np.log(s / error**0.5)
    return float(abs(ratio / expected - 1))


def _rewriting_errors(settings: Settings) -> tuple[float, float]:
    """Largest change of the function when its mask is put on the simplex, and relative error of the norm's growth."""
    rng = stream(0, "rewriting")
    mask = rng.random(settings.n_inputs)
    hidden = rng.standard_normal((settings.width, settings.n_inputs))
    new_mask, new_hidden = to_simplex(mask, hidden)
    inputs = to_tensor(rng.standard_normal((1, 100, settings.n_inputs)), dtype=torch.float64)
    decoder = rng.standard_normal((settings.outputs, settings.width)) / settings.width

    def outputs(a: np.ndarray, w: np.ndarray) -> torch.Tensor:
        arrays = {"mask": a[None], "hidden": w[None], "decoder": decoder[None]}
        return predict({name: to_tensor(x, dtype=torch.float64) for name, x in arrays.items()}, inputs)

    growth = np.linalg.norm(new_hidden) / np.linalg.norm(hidden)
    change = (outputs(mask, hidden) - outputs(new_mask, new_hidden)).abs().max()
    return float(change), float(abs(growth / np.abs(mask).sum() - 1))
