r"""The networks of Figures 2 and 4 to 6: digits in noise, told apart behind one mask.

A two-layer network with biases, $z = w^{(2)}\phi(w^{(1)}(x\odot a) + b^{(1)}) + b^{(2)}$ with $\phi=\mathrm{ReLU}$,
ends in ten scores and is trained by gradient descent with momentum on the cross-entropy. The models differ in their
mask $a$:

================  =============================================================================
model             mask
================  =============================================================================
``baseline``      fixed at ones: no attention
``attention``     trained from ones
``l1_attention``  trained from ones, penalty $\lambda\sum_k|a_k|$ added to the loss
================  =============================================================================

Networks of one seed start as the same function and see the same images in the same order, whatever their model, step
size or penalty. Weights follow torch's convention ``(to, from)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.datasets import Images
from attnbook.global_attention.masks import effective_weights
from attnbook.global_attention.noisy_digits import NoisyDigits, Scene, draw_noisy_digits
from attnbook.global_attention.shrinkage import group_shrinkage, span

__all__ = ["CLASSES", "Member", "Model", "Training", "loss_and_gradient", "scores", "train_members"]

Model: TypeAlias = Literal["baseline", "attention", "l1_attention"]
Batch: TypeAlias = tuple[Float[Tensor, "groups samples pixels"], Int[Tensor, "groups samples"]]

CLASSES = 10
# Images on which the training loss is recorded, at most.
N_TRAIN_RECORDED = 200


@dataclass(frozen=True)
class Member:
    r"""One network of an ensemble.

    Attributes:
        model: What happens to its mask.
        seed: Seed of images, noise, batches and initial weights.
        scene: Sizes of image and digit, and the kind of noise.
        step_size: Step size of gradient descent, constant.
        penalty: L1 weight on the mask; used by ``l1_attention`` only.
        decay: Weight of the L2 penalty $\frac12\|w\|^2$ on both layers, without the biases.
        group_lasso: Weight of $\sum_k\|w^{(1)}_k\|$, the norms of the first-layer weights of each pixel; by proximal
            steps, which set whole pixels to zero.
    """

    model: Model
    seed: int
    scene: Scene
    step_size: float
    penalty: float = 0.0
    decay: float = 0.0
    group_lasso: float = 0.0

    def __post_init__(self) -> None:
        if self.model not in get_args(Model):
            raise ValueError(f"model: expected one of {', '.join(get_args(Model))}, got {self.model!r}")
        if not 0 < self.step_size < float("inf"):
            raise ValueError(f"step_size: expected a positive number, got {self.step_size}")
        for name in ("penalty", "decay", "group_lasso"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: expected a number of at least 0, got {getattr(self, name)}")

    def __str__(self) -> str:
        what = f"{self.scene.digit_size} in {self.scene.image_size}, step size {self.step_size:g}"
        return f"{self.model} (seed {self.seed}, {what})"


@dataclass(frozen=True)
class Training:
    """How the networks are trained: gradient descent on batches drawn with replacement.

    Attributes:
        steps: Number of steps.
        batch_size: Images per step.
        momentum: Heavy-ball momentum, in [0, 1); 0 is plain gradient descent.
        width: Hidden units.
        n_train: Training images, drawn without replacement from the data set.
        n_test: Test images, drawn likewise.
        record_at: Steps at which losses, accuracy and weights are recorded.
    """

    steps: int
    batch_size: int
    momentum: float
    width: int
    n_train: int
    n_test: int
    record_at: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "width", "n_train", "n_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")


def scores(
    parameters: Parameters, inputs: Float[Tensor, "groups samples pixels"]
) -> Float[Tensor, "members classes samples"]:
    r"""Return the scores $w^{(2)}\phi(w^{(1)}(x\odot a) + b^{(1)}) + b^{(2)}$ of each member.

    Args:
        parameters: ``mask (members, pixels)``, ``hidden (members, width, pixels)``, ``hidden_bias (members, width)``,
            ``decoder (members, classes, width)`` and ``decoder_bias (members, classes)``.
        inputs: Images. Neighbouring members share images where there are fewer groups than members.

    Returns:
        Scores before the softmax.
    """
    folded = parameters["hidden"] * parameters["mask"].unsqueeze(1)
    return _decode(parameters, _activation(parameters, folded, inputs))


def loss_and_gradient(
    parameters: Parameters,
    batch: Batch,
    *,
    factor: Float[Tensor, " members"] | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the cross-entropy of each member and its gradient, in closed form.

    With $u = \mathrm{softmax}(z) - \text{one-hot}(y)$, $h=\phi(\cdot)$ and $G = (w^{(2)\top}u\odot h')x^\top$, the
    gradient of the folded weights $w^{(1)}\mathrm{diag}(a)$: $\nabla w^{(2)} = uh^\top$,
    $\nabla w^{(1)} = G\,\mathrm{diag}(a)$, $\nabla a = \sum_j G_{j\cdot}\odot w^{(1)}_{j\cdot}$. The mask costs no
    matrix product of its own.

    Args:
        parameters: As for :func:`scores`.
        batch: Images and their classes. Neighbouring members share them where there are fewer groups than members;
            their first layers then enter one matrix product, side by side.
        factor: What to multiply the gradients of each member by, at no cost; default nothing.
        buffers: Two tensors of the size of ``hidden`` that the call may use again, one of which becomes the gradient;
            an empty dictionary is filled. Default none: new memory at each call.

    Returns:
        The losses (mean over the batch), and the gradients of the losses times the factors.
    """
    inputs, labels = batch
    mask, hidden, decoder = parameters["mask"].unsqueeze(1), parameters["hidden"], parameters["decoder"]
    buffers = {} if buffers is None else buffers
    folded, gradient = (buffers.setdefault(name, torch.empty_like(hidden)) for name in ("folded", "gradient"))
    activation = _activation(parameters, torch.mul(hidden, mask, out=folded), inputs)
    log_share = _decode(parameters, activation).log_softmax(1)
    which = labels.repeat_interleave(len(hidden) // len(labels), 0).unsqueeze(1)
    losses = -log_share.gather(1, which).mean((1, 2))
    samples = labels.shape[1]
    right = log_share.new_ones(()).expand(which.shape)
    residual = log_share.exp_().scatter_add_(1, which, -right).div_(samples)
    if factor is not None:
        residual.mul_(factor.view(-1, 1, 1))
    # sign(activation) is the derivative of ReLU, 0 at 0.
    backward = torch.bmm(decoder.mT, residual).mul_(activation.sign())
    side_by_side = gradient.view(len(inputs), -1, inputs.shape[2])
    torch.bmm(backward.view(len(inputs), -1, samples), inputs, out=side_by_side)
    mask_gradient = torch.mul(gradient, hidden, out=folded).sum(1)
    return losses, {
        "mask": mask_gradient,
        "hidden": gradient.mul_(mask),
        "hidden_bias": backward.sum(2),
        "decoder": torch.bmm(residual, activation.mT),
        "decoder_bias": residual.sum(2),
    }


def train_members(
    members: Sequence[Member],
    images: Images,
    training: Training,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> History:
    """Train networks of any mix of models, seeds, noises, digit sizes, step sizes and penalties as one program.

    Members of one seed and scene look at the same images: put them next to each other, and equally many for each.

    Args:
        members: The networks; all images must be of one size.
        images: The digits.
        training: Steps, momentum, sizes.
        device: Where to compute.
        dtype: Type of the computation; default float32.
        progress: Told (steps done, steps in all).

    Returns:
        History with the records ``test_loss``, ``train_loss`` and ``accuracy`` ``(records, members)`` and
        ``effective_weights`` ``(records, members, pixels)``. Members that diverge are listed in it, and their losses
        are infinite from then on.

    Raises:
        ValueError: If there are no members, their images differ in size, or the data set is too small.
    """
    data = _Data(members, images, training, device, dtype)
    gradient, parameters = _Rule(members, data), _initial_parameters(members, training.width, data)
    # With momentum a constant gradient moves the weights this many steps' way.
    lengths = [m.step_size * m.group_lasso / (1 - training.momentum) for m in members]

    def record(parameters: Parameters) -> dict[str, Tensor]:
        test_loss, accuracy = data.measure(parameters, data.test)
        train_loss, _ = data.measure(parameters, data.seen)
        return {
            "test_loss": test_loss,
            "train_loss": train_loss,
            "accuracy": accuracy,
            "effective_weights": effective_weights(parameters),
        }

    with threads(1):
        return ensemble.train(
            gradient,
            parameters,
            data.batch,
            optimizer=update_rules.SGD(1.0, momentum=training.momentum),  # step sizes are in the gradients
            steps=training.steps,
            record=record,
            record_at=training.record_at,
            project=group_shrinkage(lengths, parameters["hidden"]),
            on_divergence="record",
            names=[str(m) for m in members],
            progress=progress,
        )


class _Rule:
    """The gradient, times the step size, with the mask of each member frozen, free or penalised, and penalised weights.

    A constant step size may multiply the gradient instead of the velocity: then members of all step sizes are one
    tensor for the optimiser. The L1 penalty enters by a subgradient, 0 at its kink.
    """

    def __init__(self, members: Sequence[Member], data: _Data) -> None:
        self.step_size = data.to([m.step_size for m in members])
        self.trained = data.to([float(m.model != "baseline") for m in members]).unsqueeze(1)
        penalties = [m.step_size * m.penalty * (m.model == "l1_attention") for m in members]
        self.penalty = data.to(penalties).unsqueeze(1)
        decay = [m.step_size * m.decay for m in members]
        self.decaying = span(decay)  # decay costs time, so that it visits few others
        self.decay = data.to(decay[self.decaying]).view(-1, 1, 1)
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Parameters]:
        losses, gradients = loss_and_gradient(parameters, batch, factor=self.step_size, buffers=self.buffers)
        gradients["mask"].addcmul_(parameters["mask"].sign(), self.penalty).mul_(self.trained)
        for name in ("hidden", "decoder") if len(self.decay) else ():
            gradients[name][self.decaying].addcmul_(parameters[name][self.decaying], self.decay)
        return losses, gradients


class _Data:
    """Images of all members, each drawn once and shared by the members of a seed and scene."""

    def __init__(
        self,
        members: Sequence[Member],
        images: Images,
        training: Training,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.training, self.device, self.dtype = training, device, dtype
        runs = [(key, len(list(run))) for key, run in groupby(members, key=lambda m: (m.seed, m.scene))]
        self.keys = [key for key, _ in runs]
        if len({length for _, length in runs}) != 1 or len(set(self.keys)) != len(runs):
            raise ValueError(
                "members: expected those of one seed and scene next to each other and equally many for each, at least "
                f"one; got runs of {[length for _, length in runs]}"
            )
        if len({scene.n_pixels for _, scene in self.keys}) != 1:
            raise ValueError("members: expected images of one size")
        sizes = {"n_train": training.n_train, "n_test": training.n_test}
        drawn = [draw_noisy_digits(images, scene, seed=seed, **sizes) for seed, scene in self.keys]
        self.inputs, self.labels = self._stack(drawn, "train")
        self.test = self._stack(drawn, "test")
        self.seen = self.inputs[:, :N_TRAIN_RECORDED], self.labels[:, :N_TRAIN_RECORDED]

    def to(self, values: Sequence[float] | np.ndarray) -> Tensor:
        return to_tensor(values, device=self.device, dtype=self.dtype)

    def batch(self, step: int) -> Batch:
        rows = self.rows[:, step]
        flat = (rows + self.first_row).flatten()
        inputs = self.inputs.flatten(0, 1).index_select(0, flat)
        return inputs.unflatten(0, rows.shape), self.labels.gather(1, rows)

    @cached_property
    def rows(self) -> Tensor:
        """Images of each step, ``(groups, steps, batch)``; the same for all scenes of a seed."""
        shape = (self.training.steps, self.training.batch_size)
        drawn = {seed: stream(seed, "batches").integers(self.training.n_train, size=shape) for seed, _ in self.keys}
        return torch.as_tensor(np.stack([drawn[seed] for seed, _ in self.keys]), device=self.device)

    @cached_property
    def first_row(self) -> Tensor:
        return torch.arange(len(self.keys), device=self.device).unsqueeze(1) * self.training.n_train

    def measure(self, parameters: Parameters, on: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy and the accuracy of each member."""
        inputs, labels = on
        share = len(parameters["mask"]) // len(inputs)
        losses, right = [], []
        for i in range(len(inputs)):
            mine = {name: tensor[i * share : (i + 1) * share] for name, tensor in parameters.items()}
            found = scores(mine, inputs[i : i + 1])
            which = labels[i].expand(share, 1, -1)
            losses.append(-found.log_softmax(1).gather(1, which).mean((1, 2)))
            best = found.max(1).indices  # on a CPU ten times faster than argmax
            right.append((best == labels[i]).to(found).mean(1))
        return torch.cat(losses), torch.cat(right)

    def _stack(self, drawn: Sequence[NoisyDigits], part: Literal["train", "test"]) -> Batch:
        """Images and classes of each group."""
        inputs = torch.stack([self.to(getattr(samples, part)) for samples in drawn])
        classes = np.stack([getattr(samples, f"{part}_labels") for samples in drawn])
        return inputs, torch.as_tensor(classes, device=self.device)


def _activation(parameters: Parameters, folded: Tensor, inputs: Tensor) -> Tensor:
    members, width, pixels = folded.shape
    before = torch.bmm(folded.view(len(inputs), -1, pixels), inputs.mT).view(members, width, -1)
    return before.add_(parameters["hidden_bias"].unsqueeze(2)).relu_()


def _decode(parameters: Parameters, activation: Tensor) -> Tensor:
    return torch.baddbmm(parameters["decoder_bias"].unsqueeze(2), parameters["decoder"], activation)


def _initial_parameters(members: Sequence[Member], width: int, data: _Data) -> Parameters:
    """Weights with variance 1 / fan-in, the same for all networks of a seed; masks of ones, no biases."""
    pixels = members[0].scene.n_pixels
    drawn = {}
    for seed in {m.seed for m in members}:
        rng = stream(seed, "initial weights")
        hidden = rng.standard_normal((width, pixels)) / np.sqrt(pixels)
        drawn[seed] = data.to(hidden), data.to(rng.standard_normal((CLASSES, width)) / np.sqrt(width))
    zeros = torch.zeros(len(members), 1, device=data.device, dtype=data.dtype)
    return {
        "mask": torch.ones_like(zeros).repeat(1, pixels),
        "hidden": torch.stack([drawn[m.seed][0] for m in members]),
        "hidden_bias": zeros.repeat(1, width),
        "decoder": torch.stack([drawn[m.seed][1] for m in members]),
        "decoder_bias": zeros.repeat(1, CLASSES),
    }
