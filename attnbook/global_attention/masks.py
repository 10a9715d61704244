r"""The teachers and networks of Section 5.1, and how the networks are trained.

All five models are one network, $f(x) = w^{(2)}\phi(w^{(1)}(x \odot a))$ with $\phi=\mathrm{ReLU}$ and no biases; they
differ in what happens to the mask $a$:

================  =============================================================================
model             mask
================  =============================================================================
``baseline``      fixed at ones: no attention
``attention``     trained from ones
``l1_attention``  trained from ones, penalty $\lambda\sum_k|a_k|$ added to the loss
``sum_to_one``    trained, renormalised after each step (non-negative, mean 1: assumption A7
                  with the inputs multiplied by $p$)
``oracle``        fixed at the truth $a^*$ (Proposition 1)
================  =============================================================================

At step 0 the first four are the same function, and models of the same seed and sample size see the same
batches, so that every difference comes from the mask. Weights follow torch's convention ``(to, from)``.

A teacher looks at a few of its inputs. The paper's $p$ is ``n_inputs``, its $k$ or $s_0$ is ``n_relevant``, and the
teacher's $a^*$ is ``mask``, $w^{(1)*}$ is ``hidden`` and $w^{(2)*}$ is ``decoder``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.settings import check_sizes, check_weights
from attnbook.global_attention.batches import Batches, initial_network, rows_of
from attnbook.global_attention.two_layer import predict

__all__ = [
    "Member", "Model", "Setup", "Teacher", "Training", "effective_weights", "loss_and_gradient", "train_members",
]  # fmt: skip

Model: TypeAlias = Literal["baseline", "attention", "l1_attention", "sum_to_one", "oracle"]


@dataclass(frozen=True)
class Teacher:
    r"""The function that made the labels, $y = G^*(x \odot a^*)$ with a two-layer ReLU network $G^*$."""

    mask: Float[np.ndarray, " inputs"]  #: 1 for the inputs that matter, else 0, ``(n_inputs,)``
    hidden: Float[np.ndarray, "width inputs"]  #: First-layer weights, ``(width, n_inputs)``
    #: Second-layer weights, ``(outputs, width)``, scaled so that the labels have variance 1 on average over outputs
    #: when the inputs are standard normal
    decoder: Float[np.ndarray, "outputs width"]

    def __call__(self, inputs: Float[np.ndarray, "samples inputs"]) -> Float[np.ndarray, "samples outputs"]:
        """Return the clean labels of these inputs."""
        return np.maximum((inputs * self.mask) @ self.hidden.T, 0.0) @ self.decoder.T


@dataclass(frozen=True)
class Setup:
    """Sizes of teacher and network, and the noise on the labels."""

    n_inputs: int  #: Number of inputs
    outputs: int  #: Labels per sample
    teacher_width: int  #: Hidden units of the teacher
    width: int  #: Hidden units of the networks
    noise: float  #: Standard deviation of the noise on training labels (the clean labels have 1)
    n_test: int  #: Held-out samples, with clean labels

    def __post_init__(self) -> None:
        check_sizes(self, "n_inputs", "outputs", "teacher_width", "width", "n_test")
        check_weights(self, "noise")

    def teacher(self, seed: int, n_relevant: int) -> Teacher:
        r"""Return the teacher of a seed, with random relevant inputs.

        The paper leaves $G^*$ open. Here $w^{(1)*} \sim N(0, 1/k)$, $w^{(2)*} \sim N(0, 1/\text{width})$, no biases,
        and the decoder is divided by the standard deviation of the labels (known in closed form), so that a mean
        squared error of 1 means "no better than the mean".

        Args:
            seed: What it is drawn from.
            n_relevant: Number $k$ of inputs that matter, between 1 and ``n_inputs``.

        Raises:
            ValueError: If ``n_relevant`` is outside its range.

        Example:
            >>> int(Setup(5, 1, 3, 3, noise=0.0, n_test=1).teacher(0, 2).mask.sum())
            2
        """
        if not 1 <= n_relevant <= self.n_inputs:
            raise ValueError(f"n_relevant: expected between 1 and n_inputs = {self.n_inputs}, got {n_relevant}")
        rng, width = stream(seed, "teacher", n_relevant), self.teacher_width
        mask = np.zeros(self.n_inputs)
        mask[rng.choice(self.n_inputs, n_relevant, replace=False)] = 1.0
        hidden = rng.standard_normal((width, self.n_inputs)) / np.sqrt(n_relevant)
        decoder = rng.standard_normal((self.outputs, width)) / np.sqrt(width)
        visible = hidden * mask
        variance = np.einsum("ow,wv,ov->o", decoder, _relu_covariance(visible @ visible.T), decoder).mean()
        return Teacher(mask, hidden, decoder / np.sqrt(variance))


@dataclass(frozen=True)
class Member:
    """One network of an ensemble."""

    model: Model  #: What happens to its mask
    seed: int  #: Seed of teacher, inputs, batches and initial weights
    n_samples: int  #: Size of its training set
    n_relevant: int  #: Inputs the teacher looks at
    penalty: float = 0.0  #: L1 weight on the mask; used by ``l1_attention`` only

    def __post_init__(self) -> None:
        if self.model not in get_args(Model):
            raise ValueError(f"model: expected one of {', '.join(get_args(Model))}, got {self.model!r}")
        check_sizes(self, "n_samples", "n_relevant")
        check_weights(self, "penalty")

    def __str__(self) -> str:
        return f"{self.model} (seed {self.seed}, {self.n_samples} samples, {self.n_relevant} relevant inputs)"


@dataclass(frozen=True)
class Training:
    """How the networks are trained: Adam on batches drawn with replacement."""

    steps: int  #: Number of steps
    batch_size: int  #: Samples per step
    step_size: float  #: Step size of Adam
    record_at: tuple[int, ...]  #: Steps at which the test loss is recorded
    decay: bool = False  #: Whether the step size falls to zero along a cosine

    def __post_init__(self) -> None:
        check_sizes(self, "steps", "batch_size")


def loss_and_gradient(
    parameters: Parameters, batch: tuple[Float[Tensor, "groups batch inputs"], Float[Tensor, "groups outputs batch"]]
) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the mean squared error of each member, over outputs and batch, and its gradient, in closed form.

    With $u = f(x) - y$, $h = \phi(w^{(1)}(x\odot a))$ and $G = (w^{(2)\top}u\odot h')x^\top$ (the gradient of the
    folded weights $w^{(1)}\mathrm{diag}(a)$): $\nabla w^{(2)} = uh^\top$, $\nabla w^{(1)} = G\,\mathrm{diag}(a)$ and
    $\nabla a = \sum_j G_{j\cdot}\odot w^{(1)}_{j\cdot}$: the mask costs no matrix product of its own.

    Args:
        parameters: As for :func:`attnbook.global_attention.two_layer.predict`.
        batch: Inputs and labels. Neighbouring members share a batch where there are fewer batches than members; their
            first layers then enter one matrix product, side by side.
    """
    inputs, labels = batch
    mask, hidden, decoder = parameters["mask"].unsqueeze(1), parameters["hidden"], parameters["decoder"]
    members, width, n_inputs = hidden.shape
    groups, samples, _ = inputs.shape
    side_by_side = (hidden * mask).view(groups, -1, n_inputs)
    activation = torch.bmm(side_by_side, inputs.mT).relu_().view(members, width, samples)
    residual = torch.bmm(decoder, activation)
    residual.view(groups, -1, *residual.shape[1:]).sub_(labels.unsqueeze(1))
    losses = residual.square().mean((1, 2))
    residual.mul_(2.0 / (residual.shape[1] * samples))
    decoder_gradient = torch.bmm(residual, activation.mT)
    # sign(activation) is the derivative of ReLU, 0 at 0.
    backward = torch.bmm(decoder.mT, residual).mul_(activation.sign_())
    folded_gradient = torch.bmm(backward.view(groups, -1, samples), inputs).view_as(hidden)
    mask_gradient = (folded_gradient * hidden).sum(1)
    return losses, {"mask": mask_gradient, "hidden": folded_gradient.mul_(mask), "decoder": decoder_gradient}


def effective_weights(parameters: Parameters) -> Float[Tensor, "members inputs"]:
    r"""Return $|a_k|\,\|w^{(1)}_k\|$, how strongly each input enters.

    The mask alone does not say: a small $a_k$ with large weights is the same function.
    """
    # Twenty times faster on a CPU than torch's norm over a dimension in the middle.
    return parameters["mask"].abs() * parameters["hidden"].square().sum(1).sqrt()


def train_members(
    members: Sequence[Member],
    setup: Setup,
    training: Training,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> History:
    """Train networks of any mix of models, seeds, sample sizes and sparsities as one program.

    Args:
        members: The networks.
        setup: Sizes and noise.
        training: Steps, batches and step size.
        device: Where to compute.
        dtype: Type of the computation; default float32.
        progress: Told (steps done, steps in all).

    Returns:
        History with the records ``test_loss (records, members)``, the mean squared error on clean held-out labels, and
        ``effective_weights (records, members, inputs)``.

    Raises:
        ValueError: If ``members`` is empty or a teacher has more relevant inputs than inputs.
        FloatingPointError: If a member diverges.
    """
    if not members:
        raise ValueError("members: expected at least one network, got none")
    to = partial(to_tensor, device=device, dtype=dtype)
    data = _Data(members, setup, training.batch_size, to)
    trained, penalty = _mask_rule(members, to)
    projected = torch.tensor([m.model == "sum_to_one" for m in members], device=device)
    start = initial_network([m.seed for m in members], setup.n_inputs, setup.width, setup.outputs)
    for mask, member in zip(start["mask"], members, strict=True):
        if member.model == "oracle":
            mask[:] = data.teachers[member.seed, member.n_relevant].mask

    def gradient(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
        losses, gradients = loss_and_gradient(parameters, batch)
        gradients["mask"].addcmul_(parameters["mask"].sign(), penalty).mul_(trained)
        return losses, gradients

    def renormalise(parameters: Parameters) -> None:
        mask = parameters["mask"]
        positive = mask.clamp(min=0.0)
        mask.copy_(torch.where(projected.unsqueeze(1), positive / positive.mean(1, keepdim=True), mask))

    # A second thread gains less than half for matrices this small, and costs several times as much where another
    # process wants the core: chapters, tests and seeds run side by side instead.
    with threads(1):
        return ensemble.train(
            gradient,
            {name: to(start[name]) for name in ("mask", "hidden", "decoder")},
            data.batch,
            optimizer=update_rules.Adam(training.step_size),
            steps=training.steps,
            record=lambda p: {"test_loss": data.test_loss(p), "effective_weights": effective_weights(p)},
            record_at=training.record_at,
            project=renormalise if projected.any() else None,
            schedule=update_rules.cosine(training.steps) if training.decay else None,
            names=[str(m) for m in members],
            progress=progress,
        )


def _mask_rule(members: Sequence[Member], to: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Return which masks are trained, and the penalties on them: a name that the red tests take hold of."""
    trained = to([m.model not in ("baseline", "oracle") for m in members])
    penalty = to([m.penalty * (m.model == "l1_attention") for m in members])
    return trained.unsqueeze(1), penalty.unsqueeze(1)


class _Data:
    """Samples, labels and batches of all members, each drawn once and shared where equal."""

    def __init__(self, members: Sequence[Member], setup: Setup, batch_size: int, to: Callable[..., Tensor]) -> None:
        self.setup, self.to, self.largest = setup, to, max(m.n_samples for m in members)
        self.pools: dict[tuple[int, int], list[int]] = {}
        for i, member in enumerate(members):
            self.pools.setdefault((member.seed, member.n_relevant), []).append(i)
        self.teachers = {pool: setup.teacher(*pool) for pool in self.pools}
        drawn = [self._draw(*pool, "", self.largest, setup.noise) for pool in self.pools]
        self.inputs, self.labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        self.tests = [self._draw(*pool, "test ", setup.n_test, 0.0) for pool in self.pools]
        first = {pool: i * self.largest for i, pool in enumerate(self.pools)}
        # One batch for each run of neighbours if all runs are equally long and distinct, else one for each member.
        sets = [(m.seed, m.n_relevant, m.n_samples) for m in members]
        runs = [(one, len(list(run))) for one, run in groupby(sets)]
        if len({length for _, length in runs}) == 1 and len(runs) == len(set(sets)):
            sets = [one for one, _ in runs]
        purposes, starts = [(seed, n) for seed, _, n in sets], [first[seed, k] for seed, k, _ in sets]
        self.rows = Batches(purposes, [n for *_, n in sets], starts, batch_size, self.inputs.device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.rows(step)
        return rows_of(self.inputs, rows), rows_of(self.labels, rows).mT.contiguous()

    def test_loss(self, parameters: Parameters) -> Tensor:
        losses = parameters["mask"].new_empty(len(parameters["mask"]))
        for mine, (inputs, labels) in zip(self.pools.values(), self.tests, strict=True):
            chosen = {name: tensor[mine] for name, tensor in parameters.items()}
            total = torch.zeros(len(mine), device="cpu", dtype=torch.float64)  # not every device has float64
            # So few at a time that the hidden units stay in cache; one product for all members of a pool.
            for x, y in zip(inputs.split(512), labels.split(512), strict=True):
                residuals = predict(chosen, x.unsqueeze(0), torch.relu_) - y.T
                total += residuals.square().sum((1, 2)).cpu().double()
            losses[mine] = (total / labels.numel()).to(losses)
        return losses

    def _draw(self, seed: int, k: int, part: str, count: int, sd: float) -> tuple[Tensor, Tensor]:
        inputs = stream(seed, f"{part}inputs").standard_normal((count, self.setup.n_inputs))
        noise = sd * stream(seed, "noise").standard_normal((count, self.setup.outputs))
        return self.to(inputs), self.to(self.teachers[seed, k](inputs) + noise)


def _relu_covariance(covariance: Float[np.ndarray, "units units"]) -> Float[np.ndarray, "units units"]:
    r"""Return the covariance of $\max(u, 0)$ for a centred Gaussian vector $u$.

    With standard deviations $\sigma_i$ and correlation $\cos\theta_{ij}$, the mean product is
    $\sigma_i\sigma_j(\sin\theta + (\pi-\theta)\cos\theta)/2\pi$ (the arc-cosine kernel of order one) and the means are
    $\sigma_i/\sqrt{2\pi}$.
    """
    sd = np.sqrt(np.diag(covariance))
    scale = np.outer(sd, sd)
    cosine = np.clip(covariance / scale, -1.0, 1.0)
    angle = np.arccos(cosine)
    return scale * (np.sin(angle) + (np.pi - angle) * cosine - 1.0) / (2 * np.pi)
