r"""Two-layer classifiers of images, with and without a mask, trained as one program.

$f(x)=w^{(2)}\phi(w^{(1)}(x\odot a))$ with softplus and cross-entropy, no biases, SGD with momentum: the networks of
Figure 3. All models of a seed start at the same weights and see the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.global_attention.noisy_digits import NoisyDigits
from attnbook.global_attention.two_layer import Activation, Softplus, mean_loss, predict

__all__ = ["Classifier", "Model", "Schedule", "one_hot", "train_classifiers"]

Model: TypeAlias = Literal["baseline", "attention"]

CLASSES = 10
# Indices of this many batches are drawn at a time.
BLOCK = 100


@dataclass(frozen=True)
class Classifier:
    """One network of an ensemble.

    Attributes:
        model: Whether the mask stays at ones or is trained.
        seed: Seed of data, initial weights and batches.
        step_size: Step size of SGD.
        weight_decay: Factor of half the squared norm of both layers that is added to the loss; default 0.
    """

    model: Model
    seed: int
    step_size: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.model not in get_args(Model):
            raise ValueError(f"model: expected one of {', '.join(get_args(Model))}, got {self.model!r}")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay: expected a number of at least 0, got {self.weight_decay}")

    def __str__(self) -> str:
        return f"{self.model} (seed {self.seed}, step size {self.step_size:g})"


@dataclass(frozen=True)
class Schedule:
    """How the classifiers are trained.

    Attributes:
        width: Hidden units.
        steps: Steps of SGD.
        batch_size: Samples per step, drawn with replacement.
        momentum: Momentum of SGD.
        sharpness: Sharpness of softplus.
        record_at: Steps at which training loss and test accuracy are recorded.
    """

    width: int
    steps: int
    batch_size: int
    momentum: float
    sharpness: float
    record_at: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.width < 1 or self.batch_size < 1:
            raise ValueError(f"width, batch_size: expected at least 1, got {self.width}, {self.batch_size}")


def train_classifiers(
    members: Sequence[Classifier],
    data: Mapping[int, NoisyDigits],
    schedule: Schedule,
    *,
    device: torch.device,
    stop_below: np.ndarray | None = None,
    progress: Progress | None = None,
) -> History:
    """Train classifiers of any mix of models, seeds and step sizes as one program.

    Args:
        members: The networks, ordered by seed, equally many for each.
        data: Seed to its samples.
        schedule: Width, steps, batches.
        device: Where to compute; float32.
        stop_below: Training loss at which each member stops, looked at whenever statistics are recorded; default never.
        progress: Told (steps done, steps in all).

    Returns:
        History with the records ``train_loss``, ``train_accuracy`` and ``test_accuracy``, ``(records, members)``.

    Raises:
        ValueError: If there are no members, they are not ordered by seed, or ``stop_below`` has another length.
        FloatingPointError: If a member diverges.
    """
    samples = _Samples(members, data, schedule, device)
    if stop_below is not None and np.shape(stop_below) != (len(members),):
        raise ValueError(f"stop_below: expected one loss per member, got shape {np.shape(stop_below)}")
    limit = None if stop_below is None else to_tensor(stop_below, device=device)

    with threads(1):
        return ensemble.train(
            _gradient_of(members, samples.activation, device),
            _initial_parameters(members, schedule.width, samples),
            samples.batch,
            optimizer=update_rules.SGD([m.step_size for m in members], momentum=schedule.momentum),
            steps=schedule.steps,
            record=samples.statistics,
            record_at=schedule.record_at,
            stop=None if limit is None else lambda statistics: statistics["train_loss"] <= limit,
            names=[str(m) for m in members],
            progress=progress,
        )


def one_hot(labels: Int[np.ndarray, " samples"], *, device: torch.device) -> Float[Tensor, "samples classes"]:
    """Return digits as rows with a single one."""
    return to_tensor(np.eye(CLASSES)[labels], device=device)


def _gradient_of(members: Sequence[Classifier], activation: Activation, device: torch.device) -> ensemble.Gradient:
    """The loss with what each member adds to it: a decay of both layers; the mask of the baseline stays at ones."""
    trained = torch.tensor([m.model == "attention" for m in members], device=device)[:, None]
    decay = to_tensor([m.weight_decay / 2 for m in members], device=device)

    def losses(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        masked = parameters | {"mask": torch.where(trained, parameters["mask"], 1.0)}
        wanted = labels.repeat_interleave(len(members) // len(labels), 0)
        squares = parameters["hidden"].square().sum((1, 2)) + parameters["decoder"].square().sum((1, 2))
        return mean_loss(predict(masked, inputs, activation), wanted, "cross_entropy") + decay * squares

    return ensemble.autograd(losses)


class _Samples:
    """Samples, labels and batches of all seeds; the members of a seed share them."""

    def __init__(
        self,
        members: Sequence[Classifier],
        data: Mapping[int, NoisyDigits],
        schedule: Schedule,
        device: torch.device,
    ) -> None:
        self.seeds = list(dict.fromkeys(m.seed for m in members))
        if not members or [m.seed for m in members] != list(np.repeat(self.seeds, len(members) // len(self.seeds))):
            raise ValueError("members: expected networks ordered by seed, equally many for each")
        self.schedule, self.device = schedule, device
        self.activation = Softplus(schedule.sharpness)
        drawn = [data[seed] for seed in self.seeds]
        self.train, self.test = (
            to_tensor(np.stack([getattr(d, part) for d in drawn]), device=device) for part in ("train", "test")
        )
        self.train_labels = torch.stack([one_hot(d.train_labels, device=device) for d in drawn])
        self.test_labels = torch.as_tensor(np.stack([d.test_labels for d in drawn]), device=device)
        self.first_row = np.arange(len(drawn))[:, None] * self.train.shape[1]
        self.block: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        number, within = divmod(step, BLOCK)
        if number != self.block[0]:
            shape = (BLOCK, self.schedule.batch_size)
            n = self.train.shape[1]
            drawn = np.stack(
                [(stream(seed, "batches", number).random(shape) * n).astype(np.int64) for seed in self.seeds]
            )
            rows = torch.as_tensor(drawn + self.first_row[:, None], device=self.device)
            self.block = (number, rows.transpose(0, 1).contiguous())
        rows = self.block[1][within]
        return self._rows(self.train, rows), self._rows(self.train_labels, rows).mT

    @staticmethod
    def _rows(table: Tensor, rows: Tensor) -> Tensor:
        return table.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)

    def statistics(self, parameters: Parameters) -> dict[str, Tensor]:
        each = len(parameters["mask"]) // len(self.seeds)
        outputs = predict(parameters, self.train, self.activation)
        wanted = self.train_labels.mT.repeat_interleave(each, 0)
        guesses = predict(parameters, self.test, self.activation).argmax(1)
        truth = self.test_labels.repeat_interleave(each, 0)
        return {
            "train_loss": mean_loss(outputs, wanted, "cross_entropy"),
            "train_accuracy": (outputs.argmax(1) == wanted.argmax(1)).float().mean(1),
            "test_accuracy": (guesses == truth).float().mean(1),
        }


def _initial_parameters(members: Sequence[Classifier], width: int, samples: _Samples) -> Parameters:
    """Weights with variance 1 / fan-in, the same for all models of a seed; masks of ones."""
    n_inputs, classes, layers = samples.train.shape[2], samples.train_labels.shape[2], []
    for member in members:
        rng = stream(member.seed, "initial weights")
        layers.append([rng.standard_normal((to, fan_in)) / np.sqrt(fan_in)
                       for to, fan_in in ((width, n_inputs), (classes, width))])  # fmt: skip
    hidden, decoder = (np.stack(layer) for layer in zip(*layers, strict=True))
    arrays = {"mask": np.ones((len(members), n_inputs)), "hidden": hidden, "decoder": decoder}
    return {name: to_tensor(array, device=samples.device) for name, array in arrays.items()}
