"""Training of recurrent attention and its baselines on sentences that a teacher has labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.settings import check_sizes, check_weights
from attnbook.global_attention.batches import Batches, own_errors, rows_of
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
    """What a teacher does, and how noisy its labels are."""

    mechanism: Mechanism  #: What decides the teacher's weights
    sharpness: float  #: Standard deviation of its scores; 0 weighs all words the same
    noise: float = 0.0  #: Standard deviation of the noise on training labels; the clean labels have 1. Default none.

    def __post_init__(self) -> None:
        check_weights(self, "noise")


@dataclass(frozen=True)
class WordSetup:
    """Sizes of sentences, teachers and models."""

    n_words: int  #: Words $p$ of a sentence
    dimension: int  #: Entries $t$ of a word
    teacher_width: int  #: Hidden units of the teacher
    width: int  #: Hidden units of the two layers of every model
    n_test: int  #: Held-out sentences, with clean labels

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
    """One network of an ensemble."""

    task: Task  #: Its teacher
    seed: int  #: Seed of teacher, sentences, batches and initial weights
    n_samples: int  #: Training sentences
    strength: float = 0.0  #: Weight of the penalty on its attention; default none
    weight_penalty: float = 0.0  #: L2 weight on all that it trains; default none
    restart: int = 0  #: Number of its initial weights; default the first

    def __post_init__(self) -> None:
        check_sizes(self, "n_samples")
        check_weights(self, "strength", "weight_penalty")


class Trained(NamedTuple):
    """What training leaves behind."""

    #: Mean squared error on clean held-out labels at each recorded step, ``(records, members)``
    test_loss: Float[np.ndarray, "records members"]
    train_loss: Float[np.ndarray, " members"]  #: Final mean squared error on all training labels, ``(members,)``
    parameters: Parameters  #: Final parameters


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
    """Train networks of one of the :data:`READERS` as one program; the members' strengths weigh the penalty."""
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
    if recurrence is None and not any(m.weight_penalty for m in members):
        return _of_two_layers
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


def _of_two_layers(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
    """The mean squared error of what :func:`read` answers, and its gradient, in closed form."""
    features, labels = batch
    active = torch.bmm(features, parameters["hidden"].mT).relu_()
    residual = torch.bmm(active, parameters["decoder"].unsqueeze(2)).sub_(labels.unsqueeze(2))
    losses = residual.square().mean((1, 2))
    decoder = torch.bmm(active.mT, residual.mul_(2 / labels.shape[1])).squeeze(2)
    backward = (residual * parameters["decoder"].unsqueeze(1)).mul_(active.sign_())
    return losses, {"hidden": torch.bmm(backward.mT, features), "decoder": decoder}


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
        reader = self.reader
        answer = partial(predict, n_steps=reader.n_steps) if isinstance(reader, Recurrence) else read
        counts = [m.n_samples if what == "train" else self.setup.n_test for m in self.members]
        drawn = (self.stored[what][m.task, m.seed] for m in self.members)
        samples = ((x[:n], y[:n]) for (x, y), n in zip(drawn, counts, strict=True))
        return own_errors(answer, parameters, samples)
