r"""The networks of Figures 2 and 4 to 6: digits in noise, told apart behind one mask.

A two-layer network with biases, $z = w^{(2)}\phi(w^{(1)}(x\odot a) + b^{(1)}) + b^{(2)}$ with $\phi=\mathrm{ReLU}$,
ends in ten scores and is trained on the cross-entropy. The mask $a$ starts at ones: it stays there in the model
``baseline`` and is trained in ``attention`` and, with an L1 penalty, in ``l1_attention``.

Networks of one seed start as the same function and see the same images in the same order, whatever their model, step
size or penalty. Weights follow torch's convention ``(to, from)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import threads
from attnbook.core.settings import check_positive, check_sizes, check_weights
from attnbook.data import Images
from attnbook.global_attention.batches import initial_network, rows_of
from attnbook.global_attention.noisy_digits import NoisyDigits, Scene, draw_noisy_digits
from attnbook.train import SGD, Optimizer, train

__all__ = ["CLASSES", "MODELS", "Member", "Model", "Training", "shrink_columns", "train_members"]

Model: TypeAlias = Literal["baseline", "attention", "l1_attention"]
Batch: TypeAlias = tuple[Float[Tensor, "groups samples pixels"], Int[Tensor, "groups samples"]]

MODELS: tuple[Model, ...] = get_args(Model)
CLASSES = 10
N_TRAIN_RECORDED = 200  # images on which the training loss is recorded, at most
SMALLEST_NORM = 1e-12  # below this the norm of a column counts as zero


@dataclass(frozen=True)
class Member:
    r"""One network of an ensemble."""

    model: Model  #: What happens to its mask
    seed: int  #: Seed of images, noise, batches and initial weights
    scene: Scene  #: Sizes of image and digit, and the kind of noise
    step_size: float  #: Step size, constant
    penalty: float = 0.0  #: L1 weight on the mask; used by ``l1_attention`` only
    decay: float = 0.0  #: Weight of the L2 penalty $\frac12\|w\|^2$ on both layers, without the biases
    #: Weight of $\sum_k\|w^{(1)}_k\|$, the norms of the first-layer weights of each pixel; by proximal steps, which set
    #: whole pixels to zero
    group_lasso: float = 0.0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {self.model!r}")
        check_positive(step_size=self.step_size)
        check_weights(self, "penalty", "decay", "group_lasso")

    def __str__(self) -> str:
        what = f"{self.scene.digit_size} in {self.scene.image_size}, step size {self.step_size:g}"
        return f"{self.model} (seed {self.seed}, {what})"


@dataclass(frozen=True)
class Training:
    """How the networks are trained: gradient descent on batches drawn with replacement."""

    steps: int  #: Number of steps
    batch_size: int  #: Images per step
    momentum: float  #: Heavy-ball momentum, in [0, 1); 0 is plain gradient descent
    width: int  #: Hidden units
    n_train: int  #: Training images, drawn without replacement from the data set
    n_test: int  #: Test images, drawn likewise
    record_at: tuple[int, ...]  #: Steps at which losses, accuracy and weights are recorded

    def __post_init__(self) -> None:
        check_sizes(self, "steps", "batch_size", "width", "n_train", "n_test")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected at least 0 and less than 1, got {self.momentum}")


def shrink_columns(weights: Float[Tensor, "members width inputs"], by: Float[Tensor, " members"]) -> None:
    r"""Shorten each column, the weights of one input, by a length, in place; shorter ones become zero.

    This is the proximal map of the group penalty $\lambda\sum_k\|w_k\|$ with that weight.

    Args:
        weights: First layers.
        by: The length for each member; zero leaves it as it is.

    Example:
        >>> weights = torch.tensor([[[3.0, 0.3], [4.0, 0.4]]])
        >>> shrink_columns(weights, torch.tensor([1.0]))
        >>> [round(value, 6) for value in weights.flatten().tolist()]
        [2.4, 0.0, 3.2, 0.0]
    """
    norms = weights.square().sum(1, keepdim=True).sqrt_().clamp_min_(SMALLEST_NORM)
    weights.mul_((1 - by.view(-1, 1, 1) / norms).clamp_min_(0))


def train_members(
    members: Sequence[Member],
    images: Images,
    training: Training,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    optimizer: Callable[[Sequence[float]], Optimizer] | None = None,
) -> History:
    """Train networks of any mix of models, seeds, noises, digit sizes, step sizes and penalties as one program.

    Members of one seed and scene look at the same images, and their first layers enter one matrix product, side by
    side: put them next to each other, equally many for each.

    Args:
        members: The networks; all images must be of one size.
        images: The digits.
        training: Steps, momentum, sizes.
        device: Where to compute.
        dtype: Type of the computation; default float32.
        optimizer: Step sizes of all members to an update rule, such as :class:`attnbook.train.Adam`; default gradient
            descent with the momentum of ``training``.

    Returns:
        History with the records ``test_loss``, ``train_loss`` and ``accuracy (records, members)`` and
        ``strength (records, members, pixels)``, where the strength of a pixel is the size of its mask entry times the
        norm of its weights. It lists members that diverge; their losses are infinite then.

    Raises:
        ValueError: If there are no members, they do not fit together, or the data set is too small.
    """
    data = _Data(members, images, training, device, dtype)
    network = _Network(members, data)
    start = initial_network([m.seed for m in members], members[0].scene.n_pixels, training.width, CLASSES)
    step_sizes = [m.step_size for m in members]
    # With momentum a constant gradient moves the weights this many steps' way.
    lengths = data.to([m.step_size * m.group_lasso / (1 - training.momentum) for m in members])
    with threads(1):
        return train(
            network.gradient,
            {name: data.to(array) for name, array in start.items()},
            data.batch,
            optimizer=SGD(step_sizes, training.momentum) if optimizer is None else optimizer(step_sizes),
            steps=training.steps,
            record=network.record,
            record_at=training.record_at,
            project=(lambda p: shrink_columns(p["hidden"], lengths)) if lengths.any() else None,
            on_divergence="record",
            names=[str(m) for m in members],
        )


class _Network:
    r"""Losses and their gradients in closed form.

    With $u = \mathrm{softmax}(z) - \text{one-hot}(y)$, $h=\phi(\cdot)$ and $G = (w^{(2)\top}u\odot h')x^\top$, the
    gradient of the folded weights $w^{(1)}\mathrm{diag}(a)$: $\nabla w^{(2)} = uh^\top$, $\nabla w^{(1)} =
    G\,\mathrm{diag}(a)$, $\nabla a = \sum_j G_{j\cdot}\odot w^{(1)}_{j\cdot}$. The mask costs no product of its own.
    Penalties enter by a subgradient.
    """

    def __init__(self, members: Sequence[Member], data: _Data) -> None:
        self.data = data
        self.group = torch.as_tensor([data.keys.index((m.seed, m.scene)) for m in members], device=data.device)
        self.masked = data.to([m.model != "baseline" for m in members]).unsqueeze(1)
        self.penalty = data.to([m.penalty * (m.model == "l1_attention") for m in members]).unsqueeze(1)
        self.decay = data.to([m.decay for m in members]).view(-1, 1, 1)
        self.decaying = bool(self.decay.any())
        self.folded, self.of_folded = data.inputs.new_empty(
            (2, len(members), data.training.width, data.inputs.shape[2])
        )

    def gradient(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Parameters]:
        inputs, labels = batch
        activation, scores = self._forward(parameters, inputs)
        log_share, which = scores.log_softmax(1), labels.index_select(0, self.group).unsqueeze(1)
        losses = log_share.gather(1, which).mean((1, 2)).neg_()
        residual = log_share.exp_().scatter_add_(1, which, log_share.new_full((), -1.0).expand(which.shape))
        residual.div_(inputs.shape[1])
        # sign(activation) is the derivative of ReLU, 0 at 0.
        backward = torch.bmm(parameters["decoder"].mT, residual).mul_(activation.sign())
        torch.bmm(self._by_group(backward), inputs, out=self._by_group(self.of_folded))
        pushes = torch.mul(self.of_folded, parameters["hidden"], out=self.folded).sum(1)
        found = {
            "mask": pushes.addcmul_(parameters["mask"].sign(), self.penalty).mul_(self.masked),
            "hidden": self.of_folded * parameters["mask"].unsqueeze(1),
            "decoder": torch.bmm(residual, activation.mT),
            "hidden_bias": backward.sum(2),
            "decoder_bias": residual.sum(2),
        }
        for name in ("hidden", "decoder") if self.decaying else ():
            found[name].addcmul_(parameters[name], self.decay)
        return losses, found

    def record(self, parameters: Parameters) -> dict[str, Tensor]:
        """Cross-entropy on test and training images, accuracy, and how strongly each pixel enters."""
        found = {}
        for part, (inputs, labels) in (("test", self.data.test), ("train", self.data.seen)):
            _, scores = self._forward(parameters, inputs)
            which = labels[self.group].unsqueeze(1)
            found[f"{part}_loss"] = -scores.log_softmax(1).gather(1, which).mean((1, 2))
            if part == "test":  # the index of max is on a CPU ten times faster than argmax
                found["accuracy"] = (scores.max(1).indices == labels[self.group]).to(scores).mean(1)
        return found | {"strength": parameters["mask"].abs() * parameters["hidden"].norm(dim=1)}

    def _forward(self, parameters: Parameters, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Activation and scores of each member on the images of its group."""
        hidden = parameters["hidden"]
        torch.mul(hidden, parameters["mask"].unsqueeze(1), out=self.folded)
        before = torch.bmm(self._by_group(self.folded), inputs.mT).view(*hidden.shape[:2], -1)
        activation = before.add_(parameters["hidden_bias"].unsqueeze(2)).relu_()
        scores = torch.baddbmm(parameters["decoder_bias"].unsqueeze(2), parameters["decoder"], activation)
        return activation, scores

    def _by_group(self, rows: Tensor) -> Tensor:
        """First layers of a seed and scene side by side."""
        return rows.view(len(self.data.keys), -1, rows.shape[-1])


class _Data:
    """Images of all members, each drawn once and shared by the members of a seed and scene."""

    def __init__(
        self, members: Sequence[Member], images: Images, training: Training, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.training, self.device, self.dtype = training, device, dtype
        runs = [(key, len(list(run))) for key, run in groupby(members, lambda m: (m.seed, m.scene))]
        self.keys, counts = [key for key, _ in runs], [count for _, count in runs]
        if len(set(counts)) != 1 or len(set(self.keys)) != len(runs):
            raise ValueError(
                "members: expected those of one seed and scene next to each other, equally many for each, at least "
                f"one; got runs of {counts}"
            )
        if len({scene.n_pixels for _, scene in self.keys}) != 1:
            raise ValueError("members: expected images of one size")
        sizes = {"n_train": training.n_train, "n_test": training.n_test}
        drawn = [draw_noisy_digits(images, scene, seed=seed, **sizes) for seed, scene in self.keys]
        self.inputs, self.labels = self._stack(drawn, "train")
        self.test = self._stack(drawn, "test")
        self.seen = self.inputs[:, :N_TRAIN_RECORDED], self.labels[:, :N_TRAIN_RECORDED]
        shape = (training.steps, training.batch_size)  # the same batches for all scenes of a seed
        batches = {seed: stream(seed, "batches").integers(training.n_train, size=shape) for seed, _ in self.keys}
        self.rows = torch.as_tensor(np.stack([batches[seed] for seed, _ in self.keys]), device=device)
        self.first_row = torch.arange(len(self.keys), device=device).unsqueeze(1) * training.n_train

    def to(self, values: Sequence[float] | np.ndarray) -> Tensor:
        return to_tensor(values, device=self.device, dtype=self.dtype)

    def batch(self, step: int) -> Batch:
        rows = self.rows[:, step]
        return rows_of(self.inputs.flatten(0, 1), rows + self.first_row), self.labels.gather(1, rows)

    def _stack(self, drawn: Sequence[NoisyDigits], part: Literal["train", "test"]) -> Batch:
        """Images and classes of each group."""
        inputs = torch.stack([self.to(getattr(samples, part)) for samples in drawn])
        classes = np.stack([getattr(samples, f"{part}_labels") for samples in drawn])
        return inputs, torch.as_tensor(classes, device=self.device)
