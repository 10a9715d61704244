"""Training of recurrent attention and its baselines on sentences that a teacher has labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.global_attention.batches import Batches, check_sizes, check_weights, rows_of
from attnbook.global_attention.masks import Training
from attnbook.global_attention.recurrent_networks import (
    Penalty,
    Recurrence,
    attention_penalty,
    initial_parameters,
    looks,
    predict,
    read,
)
from attnbook.global_attention.word_teachers import Mechanism, WordTeacher, draw_word_teacher

__all__ = ["READERS", "Task", "Trained", "WordMember", "WordSetup", "train_reader"]

Features: TypeAlias = Literal["flat", "mean", "known", "words"]

READERS: Mapping[str, Recurrence | Features] = {
    "flat": "flat",
    "mean": "mean",
    "known": "known",
    "one_step": Recurrence(1, 4, 8),
    "two_steps": Recurrence(2, 8, 8),
    "three_steps": Recurrence(3, 32, 64),
    "product_two": Recurrence(2, 8, 0),
    "product_three": Recurrence(3, 8, 0),
}
"""Models of sentences by what the two layers read, which is all words side by side, their mean, the words pooled with
the teacher's own weights, or the context of recurrent attention, with additive or product scores."""


@dataclass(frozen=True)
class Task:
    """What a teacher does, and how noisy its labels are.

    Attributes:
        mechanism: What decides the teacher's weights.
        sharpness: Standard deviation of its scores; 0 weighs all words the same.
        noise: Standard deviation of the noise on training labels; the clean labels have 1. Default none.
    """

    mechanism: Mechanism
    sharpness: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_weights(self, "noise")


@dataclass(frozen=True)
class WordSetup:
    """Sizes of sentences, teachers and models.

    Attributes:
        n_words: Words $p$ of a sentence.
        dimension: Entries $t$ of a word.
        teacher_width: Hidden units of the teacher.
        width: Hidden units of the two layers of every model.
        n_test: Held-out sentences, with clean labels.
    """

    n_words: int
    dimension: int
    teacher_width: int
    width: int
    n_test: int

    @lru_cache(maxsize=64)  # all models of a seed ask for its teacher  # noqa: B019
    def teacher(self, task: Task, seed: int) -> WordTeacher:
        """Return the teacher of a task and a seed."""
        return draw_word_teacher(task.mechanism, seed, n_words=self.n_words, dimension=self.dimension,
                                 width=self.teacher_width, sharpness=task.sharpness)  # fmt: skip

    def sentences(self, seed: int, purpose: str, count: int) -> Float[np.ndarray, "samples words dimension"]:
        """Return sentences of independent standard normal words; fewer sentences are the first of more."""
        return stream(seed, purpose, "sentences").standard_normal((count, self.n_words, self.dimension))


@dataclass(frozen=True)
class WordMember:
    """One network of an ensemble.

    Attributes:
        task: Its teacher.
        seed: Seed of teacher, sentences, batches and initial weights.
        n_samples: Training sentences.
        strength: Weight of the penalty on its attention; default none.
        weight_penalty: L2 weight on all that it trains; default none.
        restart: Number of its initial weights; default the first.
    """

    task: Task
    seed: int
    n_samples: int
    strength: float = 0.0
    weight_penalty: float = 0.0
    restart: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "n_samples")
        check_weights(self, "strength", "weight_penalty")


class Trained(NamedTuple):
    """What training leaves behind.

    Attributes:
        test_loss: Mean squared error on clean held-out labels at each recorded step, ``(records, members)``.
        train_loss: Final mean squared error on all training labels, ``(members,)``.
        parameters: Final parameters.
    """

    test_loss: Float[np.ndarray, "records members"]
    train_loss: Float[np.ndarray, " members"]
    parameters: Parameters


def train_reader(
    name: str,
    members: Sequence[WordMember],
    setup: WordSetup,
    training: Training,
    *,
    device: torch.device,
    penalty: Penalty = "entropy",
    progress: Progress | None = None,
) -> Trained:
    """Train networks of one model as one program.

    Args:
        name: One of :data:`READERS`.
        members: The networks.
        setup: Sizes.
        training: Steps, batches and step size.
        device: Where to compute, in float32.
        penalty: Which penalty the strengths of the members weigh.
        progress: Told (steps done, steps in all).

    Returns:
        Errors and parameters.

    Raises:
        ValueError: If ``members`` is empty or the name is unknown.
        FloatingPointError: If a member diverges.
    """
    if not members:
        raise ValueError("members: expected at least one network, got none")
    if name not in READERS:
        raise ValueError(f"name: expected one of {', '.join(READERS)}, got {name!r}")
    reader = READERS[name]
    recurrence = reader if isinstance(reader, Recurrence) else None
    n_features = setup.dimension * (setup.n_words if reader == "flat" else 1)
    drawn = [
        initial_parameters(recurrence, n_features, setup.width, rng=stream(m.seed, "initial weights", m.restart))
        for m in members
    ]
    with threads(1):
        samples = _Samples(reader, members, setup, training.batch_size, device)
        history = ensemble.train(
            _gradient(recurrence, members, penalty, device),
            {key: to_tensor(np.stack([d[key] for d in drawn]), device=device) for key in drawn[0]},
            samples.batch,
            optimizer=update_rules.Adam(training.step_size),
            steps=training.steps,
            record=lambda parameters: {"test_loss": samples.losses(parameters, "test")},
            record_at=training.record_at,
            schedule=update_rules.cosine(training.steps) if training.decay else None,
            names=[f"{name}, {m}" for m in members],
            progress=progress,
        )
        train_loss = samples.losses(history.parameters, "train").cpu().double().numpy()
    return Trained(history.records["test_loss"], train_loss, history.parameters)


def _gradient(
    recurrence: Recurrence | None, members: Sequence[WordMember], penalty: Penalty, device: torch.device
) -> ensemble.Gradient:
    strengths, shrink = ([getattr(m, name) for m in members] for name in ("strength", "weight_penalty"))
    strength, decay = (to_tensor(weights, device=device) for weights in (strengths, shrink))

    def losses(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, added = batch[0], torch.zeros_like(strength)
        if recurrence is not None:
            last = looks(parameters, features, recurrence.n_steps)[-1]
            features = last.context
            added = strength * attention_penalty(penalty, last.logits) if any(strengths) else added
        if any(shrink):
            added = added + decay * torch.stack([p.square().flatten(1).sum(1) for p in parameters.values()]).sum(0)
        return (read(parameters, features) - batch[1]).square().mean(1) + added

    return ensemble.autograd(losses)


class _Samples:
    """Features and labels of all members, drawn once per teacher and seed; members of a seed and size share batches."""

    def __init__(
        self,
        reader: Recurrence | Features,
        members: Sequence[WordMember],
        setup: WordSetup,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.reader, self.members, self.setup, self.device = reader, members, setup, device
        pools, largest = dict.fromkeys((m.task, m.seed) for m in members), max(m.n_samples for m in members)
        counts = {"train": largest, "test": setup.n_test}
        self.stored = {what: {pool: self._draw(*pool, what, n) for pool in pools} for what, n in counts.items()}
        self.inputs, self.labels = (torch.cat(parts) for parts in zip(*self.stored["train"].values(), strict=True))
        first = {pool: i * largest for i, pool in enumerate(pools)}
        sizes, starts = [m.n_samples for m in members], [first[m.task, m.seed] for m in members]
        self.rows = Batches([(m.seed, m.n_samples) for m in members], sizes, starts, batch_size, device)

    def _draw(self, task: Task, seed: int, what: str, count: int) -> tuple[Tensor, Tensor]:
        teacher, features = self.setup.teacher(task, seed), self.setup.sentences(seed, what, count)
        noise = task.noise if what == "train" else 0.0
        labels = teacher(features) + noise * stream(seed, "label noise").standard_normal(count)
        if self.reader == "flat":
            features = features.reshape(count, -1)
        elif self.reader == "mean":
            features = features.mean(1)
        elif self.reader == "known":
            features = np.einsum("sw,swd->sd", teacher.weights(features), features)
        return to_tensor(features, device=self.device), to_tensor(labels, device=self.device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.rows(step)
        return rows_of(self.inputs, rows), self.labels[rows]

    def losses(self, parameters: Parameters, what: Literal["train", "test"]) -> Tensor:
        """Mean squared error of each member on its test set, or on its training sentences."""
        found = []
        for at, member in enumerate(self.members):
            inputs, labels = self.stored[what][member.task, member.seed]
            count = member.n_samples if what == "train" else len(inputs)
            own = {name: tensor[at : at + 1] for name, tensor in parameters.items()}
            given, reader = inputs[None, :count], self.reader
            answers = predict(own, given, reader.n_steps) if isinstance(reader, Recurrence) else read(own, given)
            found.append((answers[0] - labels[:count]).square().mean())
        return torch.stack(found)
