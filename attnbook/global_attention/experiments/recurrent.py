"""Theorem 6: test error against sample size for recurrent attention and its baselines, on four kinds of teacher.

The paper has no experiment on this theorem; all of this is the book's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate, share
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.global_attention.experiments.recurrent_details import (
    CHECKED,
    answers_felt,
    count_errors,
    delay_errors,
    ratio_extremes,
    weights_shown,
)
from attnbook.global_attention.experiments.second_look import SECOND_LOOK, train_second_look
from attnbook.global_attention.models.masks import Training
from attnbook.global_attention.models.word_training import (
    RECURRENCES,
    Task,
    Trained,
    WordMember,
    WordSetup,
    train_reader,
)
from attnbook.global_attention.theory.recurrent import order_blind_floor, weight_counts

__all__ = ["LADDER", "OTHERS", "Recurrent", "Settings", "run"]

LADDER = ("flat", "mean", "one_step", "two_steps", "three_steps", "known")
"""Models on the attention teacher, from too simple to too complex, and the control that knows the weights."""
OTHERS = ("flat", "mean", "one_step")
"""Models on the teacher of places and on the one that weighs all words the same."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_words: Words of a sentence.
        dimension: Entries of a word.
        sharpness: Standard deviation of the teachers' scores.
        teacher_width: Hidden units of the teachers.
        width: Hidden units of the two layers of every model.
        sizes: Training sentences, increasing.
        judged_size: The size at which the models are compared, one of ``sizes``.
        n_test: Held-out sentences.
        step_size: Step size of Adam, falling to zero along a cosine; chosen on other seeds, the same for all models.
        batch_size: Sentences per step.
        steps: Number of steps.
        second_size: Training sentences of the teacher that looks twice.
        second_steps: Number of steps there.
        second_step_size: Step size there.
        restarts: Initial weights tried there; the smallest training error counts.
        shuffles: Orders of each test sentence from which the floor of order-blind models is computed.
        seeds: Seeds.
        chunk: Seeds trained together as one program.
    """

    n_words: int = 10
    dimension: int = 6
    sharpness: float = 2.5
    teacher_width: int = 8
    width: int = 32
    sizes: tuple[int, ...] = (100, 200, 300, 1000, 3000)
    judged_size: int = 300
    n_test: int = 1000
    step_size: float = 0.03
    batch_size: int = 32
    steps: int = 600
    second_size: int = 3000
    second_steps: int = 1200
    second_step_size: float = 0.01
    restarts: int = 3
    shuffles: int = 8
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 5

    def __post_init__(self) -> None:
        if sorted(set(self.sizes)) != list(self.sizes) or not self.sizes or self.sizes[0] < 1:
            raise ValueError(f"sizes: expected increasing positive numbers, got {self.sizes}")
        if self.judged_size not in self.sizes:
            raise ValueError(f"judged_size: expected one of sizes {self.sizes}, got {self.judged_size}")
        if self.restarts < 1:
            raise ValueError(f"restarts: expected at least 1, got {self.restarts}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            sizes=(20, 30), judged_size=30, n_test=40, steps=4, second_size=30, second_steps=4, restarts=2,
            shuffles=2, seeds=(0, 1), chunk=1,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        return cls(
            n_words=20,
            dimension=12,
            width=64,
            sizes=(300, 1000, 3000, 10_000, 30_000),
            n_test=4000,
            steps=4000,
            second_size=30_000,
            second_steps=6000,
            restarts=5,
            seeds=tuple(range(10)),
            chunk=1,
        )

    @property
    def tasks(self) -> dict[str, Task]:
        """The teachers, by the name that figures give them."""
        return {
            "attention": Task("attention", self.sharpness),
            "position": Task("position", self.sharpness),
            "equal": Task("attention", 0.0),
            "two_looks": Task("two_looks", self.sharpness),
        }

    @property
    def setup(self) -> WordSetup:
        """Sizes of sentences, teachers and models."""
        return WordSetup(self.n_words, self.dimension, self.teacher_width, self.width, self.n_test)


@dataclass(frozen=True)
class Recurrent(Result):
    """Errors, in units of the label variance, and attention weights.

    Attributes:
        test_loss: Errors on the attention teacher, ``(seeds, sizes, ladder)``.
        early_loss: The same after a quarter of the steps.
        train_loss: Errors on all training sentences at the end.
        position_loss: Errors on the teacher of places, ``(seeds, sizes, others)``.
        position_floor: What no order-blind model can get below on it, ``(seeds,)``.
        equal_loss: Errors on the teacher that weighs all words the same.
        second_loss: Errors on the teacher that looks twice, ``(seeds, restarts, second look)``.
        second_train_loss: Errors on its training sentences.
        second_looks: Weights of the step, step by step, of the three-step model with the smallest training error of its
            first group of seeds, on one test sentence, ``(steps, words)``.
        second_truth: The teacher's first and second look at that sentence, ``(2, words)``.
        shown_weights: Weights of the one-step model on a few test sentences, first seed,
            ``(tasks, sizes, sentences, words)``; tasks are attention, position, equal.
        shown_truth: The teachers' weights there, ``(tasks, sentences, words)``.
        ratio_extremes: Smallest and largest ratio weight and smallest softmax weight of the two-step model at the
            judged size, ``(seeds, 3)``.
        felt: Directions in weight space that the answers feel, one to three steps, ``(seeds, 3)``.
    """

    experiment: ClassVar[str] = "global_attention.recurrent"
    settings_type: ClassVar[type] = Settings

    test_loss: Float[np.ndarray, "seeds sizes ladder"]
    early_loss: Float[np.ndarray, "seeds sizes ladder"]
    train_loss: Float[np.ndarray, "seeds sizes ladder"]
    position_loss: Float[np.ndarray, "seeds sizes others"]
    position_floor: Float[np.ndarray, " seeds"]
    equal_loss: Float[np.ndarray, "seeds sizes others"]
    second_loss: Float[np.ndarray, "seeds restarts models"]
    second_train_loss: Float[np.ndarray, "seeds restarts models"]
    second_looks: Float[np.ndarray, "steps words"]
    second_truth: Float[np.ndarray, "2 words"]
    shown_weights: Float[np.ndarray, "tasks sizes sentences words"]
    shown_truth: Float[np.ndarray, "tasks sentences words"]
    ratio_extremes: Float[np.ndarray, "seeds 3"]
    felt: Float[np.ndarray, "seeds 3"]

    def of(self, model: str, size: int | None = None) -> Float[np.ndarray, " seeds"]:
        """Return the errors of a model on the attention teacher at a size; default the judged one."""
        at = self.settings.sizes.index(self.settings.judged_size if size is None else size)
        return self.test_loss[:, at, LADDER.index(model)]

    @property
    def second_best(self) -> Float[np.ndarray, "seeds models"]:
        """Errors on the teacher that looks twice, of the restart with the smallest training error."""
        chosen = self.second_train_loss.argmin(1)[:, None]
        return np.take_along_axis(self.second_loss, chosen, axis=1)[:, 0]

    def measurements(self) -> dict[str, Measurement]:
        """Return the order of the models and what the controls say, by claim id."""
        few, one, two, three = self.settings.sizes[0], *map(self.of, ("one_step", "two_steps", "three_steps"))
        last, known = self.settings.sizes[-1], self.of("known")
        second = self.second_best
        at_judged = self.settings.sizes.index(self.settings.judged_size)
        flat_fit = self.train_loss[:, at_judged, 0]
        moved = delay_errors()
        return {
            "GA-T6-order": over_seeds(flat=self.of("flat"), recurrent_1=one, recurrent_2=two, recurrent_3=three),
            "GA-T6-simple": over_seeds(mean_pooling=self.of("mean"), recurrent_2=two),
            "GA-T6-complex": over_seeds(recurrent_2=two, recurrent_3=three),
            "GA-T6-dimension": Measurement({"parameter_count_error": float(count_errors())}),
            "GA-T6-weights": over_seeds(
                smallest_ratio_weight=self.ratio_extremes[:, 0], smallest_softmax_weight=self.ratio_extremes[:, 2]
            ),
            "GA-X-right-pooling": over_seeds(known=known, recurrent_1=one, mean_pooling=self.of("mean")),
            "GA-X-recurrent-few": over_seeds(
                recurrent_2=self.of("two_steps", few), recurrent_3=self.of("three_steps", few)
            ),
            "GA-X-recurrent-size": self._sizes(),
            "GA-X-memorised": over_seeds(train=flat_fit, test=self.of("flat"), early=self.early_loss[:, at_judged, 0]),
            "GA-X-order-blind": over_seeds(
                flat=self.position_loss[:, -1, 0],
                recurrent_1=self.position_loss[:, -1, OTHERS.index("one_step")],
                floor=self.position_floor,
            ),
            "GA-X-attention-unneeded": over_seeds(
                mean_pooling=self.equal_loss[:, 0, OTHERS.index("mean")],
                recurrent_1=self.equal_loss[:, 0, OTHERS.index("one_step")],
            ),
            "GA-X-delay": Measurement(moved),
            "GA-X-second-look": over_seeds(two_steps=second[:, 0], three_steps=second[:, 1]),
            "GA-X-steps-unneeded": over_seeds(
                recurrent_1=self.of("one_step", last), recurrent_2=self.of("two_steps", last)
            ),
        }

    def _sizes(self) -> Measurement:
        """Weights of the middle and the largest model, and the directions that their answers feel."""
        s, felt = self.settings, over_seeds(felt_2=self.felt[:, 1], felt_3=self.felt[:, 2])
        weights = {
            f"weights_{name}": float(sum(weight_counts(recurrence, s.dimension, s.width).values()))
            for name, recurrence in (("2", RECURRENCES["two_steps"]), ("3", RECURRENCES["three_steps"]))
        }
        return Measurement({**felt.values, **weights}, felt.spread, felt.n_seeds)


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Recurrent:
    """Train all models on all teachers.

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
    parts = by_seeds(settings, partial(_train, settings, where), clock=clock, workdir=workdir, progress=progress)
    whole = concatenate([{k: v for k, v in part.items() if k not in _ONCE} for part in parts])
    once = {name: parts[0][name] for name in _ONCE}
    return Recurrent(settings=settings, provenance=clock.provenance(where), **whole, **once)


# Arrays of the first group of seeds alone.
_ONCE = ("second_looks", "second_truth", "shown_weights", "shown_truth")


def _train(
    settings: Settings, device: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    s, setup = settings, settings.setup
    programs = len(LADDER) + 2 * len(OTHERS) + len(SECOND_LOOK)
    done = iter(range(programs))

    def train(name: str, task: str) -> Trained:
        training = Training(s.steps, s.batch_size, s.step_size, _early_and_last(s.steps), decay=True)
        members = [WordMember(s.tasks[task], seed, n) for seed in seeds for n in s.sizes]
        return train_reader(
            name, members, setup, training, device=device, progress=share(progress, next(done), programs)
        )

    def stack(found: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([values.reshape(len(seeds), len(s.sizes)) for values in found], axis=-1)

    ladder = {name: train(name, "attention") for name in LADDER}
    others = {task: {name: train(name, task) for name in OTHERS} for task in ("position", "equal")}
    single = {"attention": ladder["one_step"]} | {task: found["one_step"] for task, found in others.items()}
    judged = [i * len(s.sizes) + s.sizes.index(s.judged_size) for i in range(len(seeds))]
    sentences = [setup.sentences(seed, "test", s.n_test) for seed in seeds]
    arrays = {
        "test_loss": stack([t.test_loss[-1] for t in ladder.values()]),
        "early_loss": stack([t.test_loss[0] for t in ladder.values()]),
        "train_loss": stack([t.train_loss for t in ladder.values()]),
        **{f"{task}_loss": stack([t.test_loss[-1] for t in found.values()]) for task, found in others.items()},
        "position_floor": np.array([_floor(s, seed) for seed in seeds]),
        "ratio_extremes": ratio_extremes(ladder["two_steps"].parameters, judged, sentences),
        "felt": answers_felt([ladder[name].parameters for name in CHECKED], judged, s.judged_size, seeds, setup),
        **weights_shown(
            [t.parameters for t in single.values()], [s.tasks[t] for t in single], seeds[0], s.sizes, setup
        ),
    }
    twice = Training(s.second_steps, s.batch_size, s.second_step_size, (s.second_steps,), decay=True)
    told = [share(progress, next(done), programs) for _ in SECOND_LOOK]
    second = train_second_look(
        s.tasks["two_looks"], s.second_size, seeds, s.restarts, setup, twice, device=device, progress=told
    )
    return arrays | second


def _floor(s: Settings, seed: int) -> float:
    sentences = s.setup.sentences(seed, "test", s.n_test)
    teacher = s.setup.teacher(s.tasks["position"], seed)
    return order_blind_floor(teacher, sentences, shuffles=s.shuffles, rng=stream(seed, "orders"))


def _early_and_last(steps: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, steps // 4), steps}))
