r"""Two-layer classifiers of images, with and without a mask, trained as one program.

$f(x)=w^{(2)}\phi(w^{(1)}(x\odot a))$ with softplus and cross-entropy, no biases, SGD with momentum: the networks of
Figure 3, with the models of :mod:`.digit_training`. All models of a seed start at the same weights and see the same
batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.global_attention.batches import Batches, initial_layers, rows_of
from attnbook.global_attention.digit_training import CLASSES, Member, Training
from attnbook.global_attention.noisy_digits import NoisyDigits
from attnbook.global_attention.two_layer import Activation, Softplus, mean_loss, predict

__all__ = ["one_hot", "train_classifiers"]


def train_classifiers(
    members: Sequence[Member],
    data: Mapping[int, NoisyDigits],
    training: Training,
    *,
    sharpness: float,
    device: torch.device,
    stop_below: np.ndarray | None = None,
    progress: Progress | None = None,
) -> History:
    """Train classifiers of any mix of models, seeds and step sizes as one program.

    Args:
        members: The networks, ordered by seed, equally many for each.
        data: Seed to its samples.
        training: Width, steps, batches.
        sharpness: Sharpness of softplus.
        device: Where to compute; float32.
        stop_below: Training loss at which each member stops, looked at whenever statistics are recorded; default never.
        progress: Told (steps done, steps in all).

    Returns:
        History with the records ``train_loss``, ``train_accuracy`` and ``test_accuracy``, ``(records, members)``.

    Raises:
        ValueError: If there are no members, they are not ordered by seed, or ``stop_below`` has another length.
        FloatingPointError: If a member diverges.
    """
    seeds = list(dict.fromkeys(m.seed for m in members))
    if not members or [m.seed for m in members] != list(np.repeat(seeds, len(members) // len(seeds))):
        raise ValueError("members: expected networks ordered by seed, equally many for each")
    if stop_below is not None and np.shape(stop_below) != (len(members),):
        raise ValueError(f"stop_below: expected one loss per member, got shape {np.shape(stop_below)}")
    limit = None if stop_below is None else to_tensor(stop_below, device=device)
    samples = _Samples({seed: data[seed] for seed in seeds}, training.batch_size, Softplus(sharpness), device)
    hidden, decoder = initial_layers([m.seed for m in members], samples.train.shape[2], training.width, CLASSES)
    start = {"mask": np.ones_like(hidden[:, 0]), "hidden": hidden, "decoder": decoder}

    with threads(1):
        return ensemble.train(
            _gradient_of(members, samples.activation, device),
            {name: to_tensor(array, device=device) for name, array in start.items()},
            samples.batch,
            optimizer=update_rules.SGD([m.step_size for m in members], momentum=training.momentum),
            steps=training.steps,
            record=samples.statistics,
            record_at=training.record_at,
            stop=None if limit is None else lambda statistics: statistics["train_loss"] <= limit,
            names=[str(m) for m in members],
            progress=progress,
        )


def one_hot(labels: Int[np.ndarray, " samples"], *, device: torch.device) -> Float[Tensor, "samples classes"]:
    """Return digits as rows with a single one."""
    return to_tensor(np.eye(CLASSES)[labels], device=device)


def _gradient_of(members: Sequence[Member], activation: Activation, device: torch.device) -> ensemble.Gradient:
    """The loss with what each member adds to it: a decay of both layers; the mask of the baseline stays at ones."""
    trained = torch.tensor([m.model == "attention" for m in members], device=device)[:, None]
    decay = to_tensor([m.decay / 2 for m in members], device=device)

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
        self, data: Mapping[int, NoisyDigits], batch_size: int, activation: Softplus, device: torch.device
    ) -> None:
        self.activation, drawn = activation, data.values()
        self.train, self.test = (
            to_tensor(np.stack([getattr(d, part) for d in drawn]), device=device) for part in ("train", "test")
        )
        self.train_labels = torch.stack([one_hot(d.train_labels, device=device) for d in drawn])
        self.test_labels = torch.as_tensor(np.stack([d.test_labels for d in drawn]), device=device)
        n_seeds, n_train = self.train.shape[:2]
        purposes, starts = [(seed,) for seed in data], range(0, n_seeds * n_train, n_train)
        self.rows = Batches(purposes, [n_train] * n_seeds, starts, batch_size, device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.rows(step)
        return rows_of(self.train.flatten(0, 1), rows), rows_of(self.train_labels.flatten(0, 1), rows).mT

    def statistics(self, parameters: Parameters) -> dict[str, Tensor]:
        each = len(parameters["mask"]) // len(self.train)
        outputs = predict(parameters, self.train, self.activation)
        wanted = self.train_labels.mT.repeat_interleave(each, 0)
        guesses = predict(parameters, self.test, self.activation).argmax(1)
        truth = self.test_labels.repeat_interleave(each, 0)
        return {
            "train_loss": mean_loss(outputs, wanted, "cross_entropy"),
            "train_accuracy": (outputs.argmax(1) == wanted.argmax(1)).float().mean(1),
            "test_accuracy": (guesses == truth).float().mean(1),
        }
