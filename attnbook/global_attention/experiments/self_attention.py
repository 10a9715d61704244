"""Theorem 2 and its remark: samples from a self-attention teacher, three students of the same width, and a control.

The paper has no experiment of this kind; this one is ours. The objective is not convex: every student has the same
number of restarts, and the one with the smallest training loss counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, runtime, update_rules
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.global_attention.attended_teachers import AttendedTeacher, draw_attended_teacher
from attnbook.global_attention.attention_bounds import bound_after_moving_a_factor, l1_gradient_of_softmax
from attnbook.global_attention.token_networks import MODELS, TokenModel, initial_parameters, predict

__all__ = ["AttendedTeachers", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_tokens: Tokens $p$ of a sample.
        dimension: Entries $t$ of a token.
        n_query: Entries of a query, in teacher and student.
        n_value: Entries of a value, in teacher and student.
        teacher_width: Hidden units of the teacher.
        width: Hidden units of every student.
        sizes: Training samples.
        n_test: Test samples.
        step_size: Step size of Adam, falling to zero along a cosine; the same for all students.
        batch_size: Samples per step.
        steps: Number of steps.
        restarts: Initial weights tried per student; the smallest training loss counts.
        seeds: Seeds of teacher, samples, batches and weights.
        chunk: Seeds trained together as one program.
    """

    n_tokens: int = 6
    dimension: int = 5
    n_query: int = 4
    n_value: int = 4
    teacher_width: int = 8
    width: int = 32
    sizes: tuple[int, ...] = (1000, 8000)
    n_test: int = 4000
    step_size: float = 5e-3
    batch_size: int = 64
    steps: int = 800
    restarts: int = 3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if not self.sizes or sorted(set(self.sizes)) != list(self.sizes) or self.sizes[0] < 1:
            raise ValueError(f"sizes: expected increasing positive numbers, got {self.sizes}")
        if self.restarts < 1:
            raise ValueError(f"restarts: expected at least 1, got {self.restarts}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(sizes=(20, 30), n_test=50, steps=5, restarts=2, seeds=(0, 1), chunk=1)

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(
            n_tokens=20, dimension=16, n_query=8, n_value=8, width=64, sizes=(2000, 8000, 32_000), steps=4000, chunk=1
        )

    def teacher(self, seed: int) -> AttendedTeacher:
        """Return the teacher of a seed."""
        return draw_attended_teacher(
            self.n_tokens,
            self.dimension,
            n_query=self.n_query,
            n_value=self.n_value,
            width=self.teacher_width,
            rng=stream(seed, "teacher"),
        )


@dataclass(frozen=True)
class AttendedTeachers(Result):
    """Errors of every student.

    Attributes:
        test_loss: Mean squared error in units of the label variance, ``(seeds, sizes, models, restarts)``.
        train_loss: The same on all training samples.
    """

    experiment: ClassVar[str] = "global_attention.self_attention"
    settings_type: ClassVar[type] = Settings

    test_loss: Float[np.ndarray, "seeds sizes models restarts"]
    train_loss: Float[np.ndarray, "seeds sizes models restarts"]

    def best(self, model: TokenModel) -> Float[np.ndarray, "seeds sizes"]:
        """Return the test errors of the restart with the smallest training loss."""
        j = MODELS.index(model)
        chosen = self.train_loss[:, :, j].argmin(-1)[..., None]
        return np.take_along_axis(self.test_loss[:, :, j], chosen, axis=-1)[..., 0]

    def measurements(self) -> dict[str, Measurement]:
        """Return the order of the students, and the two closed forms, by claim id."""
        baseline, global_mask, attention, uniform = (self.best(model)[:, -1] for model in MODELS)
        flat = over_seeds(baseline=baseline, global_attention=global_mask)
        return {
            "GA-T2-self": over_seeds(baseline=baseline, global_attention=global_mask, self_attention=attention),
            "GA-T2-tie": flat,
            "GA-T2-floor": flat,
            "GA-X-attention-needed": over_seeds(uniform_attention=uniform, self_attention=attention),
            "GA-T2-factors": Measurement(bound_after_moving_a_factor(2.0)),
            "GA-G1-l1-softmax": Measurement({"max_gradient": l1_gradient_of_softmax(stream(0, "logits"), 11)}),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> AttendedTeachers:
    """Train all students.

    Args:
        settings: Sizes, seeds and steps.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (steps done, steps in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
        FloatingPointError: If a student diverges.
    """
    clock, where = Clock(), runtime.device(device)

    def train(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        samples = _Samples(settings, seeds, where)
        with threads(1):
            found = [_train_model(model, settings, seeds, samples, _part(inner, j)) for j, model in enumerate(MODELS)]
        return {name: np.stack([losses[name] for losses in found], axis=2) for name in ("test_loss", "train_loss")}

    parts = by_seeds(settings, train, clock=clock, workdir=workdir, progress=progress)
    return AttendedTeachers(
        settings=settings,
        provenance=clock.provenance(where),
        **concatenate(parts),
    )


def _part(progress: Progress | None, number: int) -> Progress | None:
    return None if progress is None else lambda done, total: progress(number * total + done, len(MODELS) * total)


class _Samples:
    """Training and test samples of a few seeds; all models, sizes and restarts of a seed share them."""

    def __init__(self, settings: Settings, seeds: Sequence[int], device: torch.device) -> None:
        self.settings, self.seeds, self.device = settings, seeds, device
        self.train = [self._draw(seed, "inputs", settings.sizes[-1]) for seed in seeds]
        self.test = [self._draw(seed, "test inputs", settings.n_test) for seed in seeds]
        self.inputs = torch.stack([inputs for inputs, _ in self.train])
        self.labels = torch.stack([labels for _, labels in self.train])

    def _draw(self, seed: int, what: str, count: int) -> tuple[Tensor, Tensor]:
        s = self.settings
        inputs = stream(seed, what).standard_normal((count, s.n_tokens, s.dimension))
        return to_tensor(inputs, device=self.device), to_tensor(s.teacher(seed)(inputs), device=self.device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """One batch per member: seeds, then sizes, then restarts, which share it."""
        s = self.settings
        shape = len(s.sizes), s.batch_size
        share = np.stack([stream(seed, "batches", step).random(shape) for seed in self.seeds])
        rows = torch.as_tensor((share * np.array(s.sizes)[:, None]).astype(np.int64), device=self.device)
        at = torch.arange(len(self.seeds), device=self.device)[:, None, None]
        inputs, labels = self.inputs[at, rows], self.labels[at, rows]
        inputs, labels = (x.flatten(0, 1).repeat_interleave(s.restarts, 0) for x in (inputs, labels))
        return inputs, labels


def _train_model(
    model: TokenModel, settings: Settings, seeds: Sequence[int], samples: _Samples, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Train one model for all seeds, sizes and restarts together; the first axis counts seeds."""
    s = settings
    sizes = {name: getattr(s, name) for name in ("n_tokens", "dimension", "n_query", "n_value", "width")}
    drawn = [initial_parameters(model, seed, r, **sizes) for seed in seeds for _ in s.sizes for r in range(s.restarts)]
    names = [
        f"{model} (seed {seed}, {n} samples, restart {r})" for seed in seeds for n in s.sizes for r in range(s.restarts)
    ]
    history = ensemble.train(
        ensemble.autograd(lambda p, batch: (predict(model, p, batch[0]) - batch[1]).square().mean(1)),
        {name: to_tensor(np.stack([d[name] for d in drawn]), device=samples.device) for name in drawn[0]},
        samples.batch,
        optimizer=update_rules.Adam(s.step_size),
        steps=s.steps,
        record=lambda p: _losses(model, p, s, samples),
        record_at=(s.steps,),
        schedule=update_rules.cosine(s.steps),
        names=names,
        progress=progress,
    )
    shape = len(seeds), len(s.sizes), s.restarts
    return {name: losses[-1].reshape(shape) for name, losses in history.records.items()}


def _losses(
    model: TokenModel, parameters: ensemble.Parameters, settings: Settings, samples: _Samples
) -> dict[str, Tensor]:
    """Mean squared error of each member on its training samples and on the test samples of its seed."""
    found: dict[str, list[Tensor]] = {"train_loss": [], "test_loss": []}
    for member in range(len(parameters["decoder"])):
        seed, size = divmod(member // settings.restarts, len(settings.sizes))
        own = {name: tensor[member : member + 1] for name, tensor in parameters.items()}
        n = settings.sizes[size]
        for name, (inputs, labels) in (
            ("train_loss", (samples.train[seed][0][:n], samples.train[seed][1][:n])),
            ("test_loss", samples.test[seed]),
        ):
            found[name].append((predict(model, own, inputs.unsqueeze(0))[0] - labels).square().mean())
    return {name: torch.stack(losses) for name, losses in found.items()}
