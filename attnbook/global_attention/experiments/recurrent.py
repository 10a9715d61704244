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
    attention_apart,
    count_errors,
    delay_errors,
    ratio_extremes,
    weights_shown,
)
from attnbook.global_attention.experiments.second_look import SECOND_LOOK, train_second_look
from attnbook.global_attention.experiments.step_sizes import chosen_step_sizes
from attnbook.global_attention.masks import Training
from attnbook.global_attention.recurrent_bounds import order_blind_floor
from attnbook.global_attention.word_training import (
    Task,
    Trained,
    WordMember,
    WordSetup,
    train_reader,
)

__all__ = ["LADDER", "OTHERS", "Recurrent", "Settings", "run"]

LADDER = ("flat", "mean", "one_step", "two_steps", "three_steps", "known")
"""Models on the attention teacher, from too simple to too complex, and the control that knows the weights."""
OTHERS = ("flat", "mean", "one_step")
"""Models on the teacher of places and on the one that weighs all words the same."""
PROGRAMS = len(LADDER) + 1 + 2 * len(OTHERS) + len(SECOND_LOOK)
"""Programs in which a group of seeds is trained."""


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
        ladder_step_sizes: Step sizes of Adam, falling to zero along a cosine, for the models of :data:`LADDER`; each
            the best of six on seeds of their own, see :mod:`attnbook.global_attention.experiments.step_sizes`.
        position_step_sizes: The same for :data:`OTHERS` on the teacher of places.
        equal_step_sizes: The same for :data:`OTHERS` on the teacher that weighs all words the same.
        batch_size: Sentences per step.
        steps: Number of steps.
        long_steps: Number of steps of the flat network that is trained for longer, as a control.
        long_step_size: Its step size: not tuned for the test error, but large enough to fit.
        second_size: Training sentences of the teacher that looks twice.
        second_steps: Number of steps there.
        second_step_size: Step size there, the best of three on other seeds for the model with three steps.
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
    ladder_step_sizes: tuple[float, ...] = chosen_step_sizes("attention", LADDER)
    position_step_sizes: tuple[float, ...] = chosen_step_sizes("position", OTHERS)
    equal_step_sizes: tuple[float, ...] = chosen_step_sizes("equal", OTHERS)
    batch_size: int = 32
    steps: int = 600
    long_steps: int = 3000
    long_step_size: float = 0.01
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
        for name, models in {"ladder": LADDER, "position": OTHERS, "equal": OTHERS}.items():
            if len(getattr(self, f"{name}_step_sizes")) != len(models):
                got = getattr(self, f"{name}_step_sizes")
                raise ValueError(f"{name}_step_sizes: expected one for each of {', '.join(models)}, got {got}")
        if self.restarts < 1:
            raise ValueError(f"restarts: expected at least 1, got {self.restarts}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            sizes=(20, 30), judged_size=30, n_test=40, steps=4, long_steps=8, second_size=30, second_steps=4,
            restarts=2, shuffles=2, seeds=(0, 1), chunk=1,
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
            long_steps=20_000,
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
        train_loss: Errors on all training sentences at the end.
        long_loss: Errors of the flat network that trains for longer: on new sentences after a quarter of its steps and
            at the end, and on its training sentences; at the judged and the largest size, ``(seeds, 2, 3)``.
        position_loss: Errors on the teacher of places, ``(seeds, sizes, others)``.
        position_floor: What no order-blind model can get below on it, ``(seeds,)``.
        equal_loss: Errors on the teacher that weighs all words the same.
        second_loss: Errors on the teacher that looks twice, ``(seeds, restarts, second look)``.
        second_train_loss: Errors on its training sentences.
        second_overlaps: How much two looks overlap (the sum over words of the smaller weight), mean over the test
            sentences, for the three-step model with the smallest training error of its first group of seeds and
            its teacher: the teacher's two looks; step 1 and look 1; step 3 and look 2; step 3 and look 1, ``(4,)``.
        second_shown: The same in the sentence shown, which is the test sentence whose four overlaps are closest
            to these means, ``(4,)``.
        second_looks: Weights of that model there, step by step, ``(steps, words)``.
        second_truth: The teacher's first and second look there, ``(2, words)``.
        shown_weights: Weights of the one-step model on a few test sentences, first seed,
            ``(tasks, sizes, sentences, words)``; tasks are attention, position, equal.
        shown_truth: The teachers' weights there, ``(tasks, sentences, words)``.
        apart: Share of the attention of one-step models that lies on other words than the teacher's, mean over the
            test sentences, ``(seeds, tasks, sizes)``.
        ratio_extremes: Smallest and largest ratio weight and smallest softmax weight of the two-step model at the
            judged size, ``(seeds, 3)``.
        felt: Directions in weight space that the answers of the models in
            :data:`~attnbook.global_attention.experiments.recurrent_details.CHECKED` feel, for each threshold in
            :data:`~attnbook.global_attention.experiments.recurrent_details.SHARES`, ``(seeds, checked, shares)``.
    """

    experiment: ClassVar[str] = "global_attention.recurrent"
    settings_type: ClassVar[type] = Settings

    test_loss: Float[np.ndarray, "seeds sizes ladder"]
    train_loss: Float[np.ndarray, "seeds sizes ladder"]
    long_loss: Float[np.ndarray, "seeds 2 3"]
    position_loss: Float[np.ndarray, "seeds sizes others"]
    position_floor: Float[np.ndarray, " seeds"]
    equal_loss: Float[np.ndarray, "seeds sizes others"]
    second_loss: Float[np.ndarray, "seeds restarts models"]
    second_train_loss: Float[np.ndarray, "seeds restarts models"]
    second_overlaps: Float[np.ndarray, " 4"]
    second_shown: Float[np.ndarray, " 4"]
    second_looks: Float[np.ndarray, "steps words"]
    second_truth: Float[np.ndarray, "2 words"]
    shown_weights: Float[np.ndarray, "tasks sizes sentences words"]
    shown_truth: Float[np.ndarray, "tasks sentences words"]
    apart: Float[np.ndarray, "seeds tasks sizes"]
    ratio_extremes: Float[np.ndarray, "seeds 3"]
    felt: Float[np.ndarray, "seeds checked shares"]

    def of(self, model: str, size: int | None = None) -> Float[np.ndarray, " seeds"]:
        """Return the errors of a model on the attention teacher at a size; default the judged one."""
        at = self.settings.sizes.index(self.settings.judged_size if size is None else size)
        return self.test_loss[:, at, LADDER.index(model)]

    @property
    def n_networks(self) -> int:
        """Number of networks that were trained."""
        losses = (self.test_loss, self.long_loss[..., 0], self.position_loss, self.equal_loss, self.second_loss)
        return sum(loss.size for loss in losses)

    @property
    def n_programs(self) -> int:
        """Number of batched programs they were trained in, for one group of seeds."""
        return PROGRAMS

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
        early, late, fit = np.moveaxis(self.long_loss[:, 0], -1, 0)
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
            "GA-X-recurrent-few": self._few(few),
            "GA-X-recurrent-size": self._sizes(),
            "GA-X-memorised": over_seeds(train=fit, test=late, early=early),
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

    def _few(self, size: int) -> Measurement:
        """Errors of the middle and the largest model, and the share of seeds in which the largest is worse."""
        two, three = self.of("two_steps", size), self.of("three_steps", size)
        found = over_seeds(recurrent_2=two, recurrent_3=three)
        return Measurement({**found.values, "worse": float((three > two).mean())}, found.spread, found.n_seeds)

    def _sizes(self) -> Measurement:
        """Directions that the answers of the largest model feel over those of the middle one, for each threshold."""
        middle, largest = (self.felt[:, CHECKED.index(name)] for name in ("two_steps", "three_steps"))
        names = ("coarse", "middle", "fine")
        return over_seeds(**{name: (largest / middle)[:, k] for k, name in enumerate(names)})


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
_ONCE = ("second_overlaps", "second_shown", "second_looks", "second_truth", "shown_weights", "shown_truth")


def _train(
    settings: Settings, device: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> dict[str, np.ndarray]:
    s, setup = settings, settings.setup
    told = (share(progress, i, PROGRAMS) for i in range(PROGRAMS))

    def train(name: str, task: str, step_size: float) -> Trained:
        training = Training(s.steps, s.batch_size, step_size, (s.steps,), decay=True)
        members = [WordMember(s.tasks[task], seed, n) for seed in seeds for n in s.sizes]
        return train_reader(name, members, setup, training, device=device, progress=next(told))

    def stack(found: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([values.reshape(len(seeds), len(s.sizes)) for values in found], axis=-1)

    ladder = {name: train(name, "attention", size) for name, size in zip(LADDER, s.ladder_step_sizes, strict=True)}
    others = {
        task: {name: train(name, task, size) for name, size in zip(OTHERS, step_sizes, strict=True)}
        for task, step_sizes in (("position", s.position_step_sizes), ("equal", s.equal_step_sizes))
    }
    single = {"attention": ladder["one_step"]} | {task: found["one_step"] for task, found in others.items()}
    judged = [i * len(s.sizes) + s.sizes.index(s.judged_size) for i in range(len(seeds))]
    sentences = [setup.sentences(seed, "test", s.n_test) for seed in seeds]
    arrays = {
        "test_loss": stack([t.test_loss[-1] for t in ladder.values()]),
        "train_loss": stack([t.train_loss for t in ladder.values()]),
        **{f"{task}_loss": stack([t.test_loss[-1] for t in found.values()]) for task, found in others.items()},
        "long_loss": _train_longer(s, device, seeds, next(told)),
        "position_floor": np.array([_floor(s, seed) for seed in seeds]),
        "ratio_extremes": ratio_extremes(ladder["two_steps"].parameters, judged, sentences),
        "felt": answers_felt([ladder[name].parameters for name in CHECKED], judged, s.judged_size, seeds, setup),
        "apart": attention_apart([t.parameters for t in single.values()], [s.tasks[t] for t in single], seeds, setup),
        **weights_shown(
            [t.parameters for t in single.values()], [s.tasks[t] for t in single], seeds[0], s.sizes, setup
        ),
    }
    twice = Training(s.second_steps, s.batch_size, s.second_step_size, (s.second_steps,), decay=True)
    second = train_second_look(
        s.tasks["two_looks"], s.second_size, seeds, s.restarts, setup, twice, device=device, progress=list(told)
    )
    return arrays | second


def _floor(s: Settings, seed: int) -> float:
    sentences = s.setup.sentences(seed, "test", s.n_test)
    teacher = s.setup.teacher(s.tasks["position"], seed)
    return order_blind_floor(teacher, sentences, shuffles=s.shuffles, rng=stream(seed, "orders"))


def _train_longer(
    s: Settings, device: torch.device, seeds: tuple[int, ...], progress: Progress | None
) -> Float[np.ndarray, "seeds 2 3"]:
    """The flat network with more steps: does it fail because it does not fit?"""
    training = Training(s.long_steps, s.batch_size, s.long_step_size, (s.long_steps // 4, s.long_steps), decay=True)
    members = [WordMember(s.tasks["attention"], seed, n) for seed in seeds for n in (s.judged_size, s.sizes[-1])]
    trained = train_reader("flat", members, s.setup, training, device=device, progress=progress)
    return np.stack([*trained.test_loss, trained.train_loss], axis=-1).reshape(len(seeds), 2, 3)
