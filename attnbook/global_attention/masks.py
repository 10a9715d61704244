r"""The teachers and networks of Section 5.1, and how the networks are trained.

All models are one network, $f(x) = w^{(2)}\phi(w^{(1)}(x \odot a))$ with $\phi=\mathrm{ReLU}$ and no biases; they
differ in what happens to the mask $a$:

=================  ============================================================================
model              mask
=================  ============================================================================
``baseline``       fixed at ones: no attention
``group_penalty``  fixed at ones; $\lambda\sum_k\|w^{(1)}_k\|$ over the columns of the first
                   layer is added to the loss
``attention``      trained from ones
``l1_attention``   trained from ones, penalty $\lambda\sum_k|a_k|$ added to the loss
``limited``        trained from ones with at most $s_0$ entries, all between 0 and 1 (assumption
                   A4); the limit falls from $p$ to $s_0$ in the first half of training
``sum_to_one``     trained, renormalised after each step (non-negative, mean 1: assumption A7
                   with the inputs multiplied by $p$)
``oracle``         fixed at the truth $a^*$ (Proposition 1)
=================  ============================================================================

At step 0 all but the last are the same function, and models of the same seed and sample size see the same
batches, so that every difference comes from the mask. Weights follow torch's convention ``(to, from)``.

A teacher looks at a few of its inputs. The paper's $p$ is ``n_inputs``, its $k$ or $s_0$ is ``n_relevant``, and the
teacher's $a^*$ is ``mask``, $w^{(1)*}$ is ``hidden`` and $w^{(2)*}$ is ``decoder``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.settings import check_sizes, check_weights
from attnbook.global_attention.batches import Batches, initial_network, rows_of
from attnbook.global_attention.two_layer import predict
from attnbook.lab import listening
from attnbook.train import SGD, Adam, cosine, train

__all__ = [
    "Member",
    "Model",
    "Setup",
    "Teacher",
    "Training",
    "allowance",
    "effective_weights",
    "loss_and_gradient",
    "train_members",
]

Model: TypeAlias = Literal["baseline", "group_penalty", "attention", "l1_attention", "limited", "sum_to_one", "oracle"]


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
    penalty: float = 0.0  #: Weight of the penalty; used by ``l1_attention`` and ``group_penalty`` only
    limit: int | None = None  #: Entries that a mask of ``limited`` may keep, $s_0$; default ``n_relevant``

    def __post_init__(self) -> None:
        if self.model not in get_args(Model):
            raise ValueError(f"model: expected one of {', '.join(get_args(Model))}, got {self.model!r}")
        check_sizes(self, "n_samples", "n_relevant", *([] if self.limit is None else ["limit"]))
        check_weights(self, "penalty")

    def __str__(self) -> str:
        return f"{self.model} (seed {self.seed}, {self.n_samples} samples, {self.n_relevant} relevant inputs)"


@dataclass(frozen=True)
class Training:
    """How the networks are trained: Adam, or plain gradient descent, on batches drawn with replacement."""

    steps: int  #: Number of steps
    batch_size: int  #: Samples per step
    step_size: float  #: Step size of the rule
    record_at: tuple[int, ...]  #: Steps at which the test loss is recorded
    decay: bool = False  #: Whether the step size falls to zero along a cosine
    rule: Literal["Adam", "SGD"] = "Adam"  #: The optimiser

    def __post_init__(self) -> None:
        check_sizes(self, "steps", "batch_size")
        if self.rule not in ("Adam", "SGD"):
            raise ValueError(f"rule: expected Adam or SGD, got {self.rule!r}")


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


def allowance(step: int, steps: int, n_inputs: int, limit: int) -> int:
    """Return how many entries a limited mask may keep after a step.

    All in the first tenth of training, ``limit`` in its second half, and a falling power in between.

    Args:
        step: Number of the step, from 0 on.
        steps: Steps of training.
        n_inputs: Number of inputs.
        limit: Entries that may be kept in the end.

    Returns:
        A number between ``limit`` and ``n_inputs``.

    Example:
        >>> [allowance(step, 1000, 32, 4) for step in (100, 300, 500, 999)]
        [32, 11, 4, 4]
    """
    share = min(max(step / steps - 0.1, 0.0) / 0.4, 1.0)
    return round(n_inputs * (limit / n_inputs) ** share)


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
        progress: Told (steps done, steps in all); default whoever listens to the experiment.

    Returns:
        History with the records ``test_loss (records, members)``, the mean squared error on clean held-out labels,
        ``bias (records, members)``, the part of its root that is a constant (zero for a network whose mean output is
        right), and ``effective_weights (records, members, inputs)``.

    Raises:
        ValueError: If ``members`` is empty, or a teacher has more relevant inputs, or a mask a larger limit, than there
            are inputs.
        FloatingPointError: If a member diverges.
    """
    if not members:
        raise ValueError("members: expected at least one network, got none")
    if over := [m for m in members if (m.limit or 1) > setup.n_inputs]:
        raise ValueError(f"limit: expected at most n_inputs = {setup.n_inputs}, got {over[0].limit}")
    to = partial(to_tensor, device=device, dtype=dtype)
    data = _Data(members, setup, training.batch_size, to)
    trained, penalties = _mask_rule(members, to)
    start = initial_network([m.seed for m in members], setup.n_inputs, setup.width, setup.outputs)
    for mask, member in zip(start["mask"], members, strict=True):
        if member.model == "oracle":
            mask[:] = data.teachers[member.seed, member.n_relevant].mask

    def gradient(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Parameters]:
        losses, gradients = loss_and_gradient(parameters, batch)
        gradients["mask"].addcmul_(parameters["mask"].sign(), penalties["l1_attention"]).mul_(trained)
        if (weight := penalties["group_penalty"]).any():
            columns = parameters["hidden"]
            norms = columns.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
            gradients["hidden"].addcmul_(columns / norms, weight.unsqueeze(1))
        return losses, gradients

    if progress:
        progress(0, training.steps)
    # A second thread gains less than half for matrices this small, and costs several times as much where another
    # process wants the core: chapters, tests and seeds run side by side instead.
    with threads(1), listening(partial(_tell, progress, training.steps)) if progress else nullcontext():
        return train(
            gradient,
            {name: to(start[name]) for name in ("mask", "hidden", "decoder")},
            data.batch,
            optimizer={"Adam": Adam, "SGD": SGD}[training.rule](training.step_size),
            steps=training.steps,
            record=lambda p: data.errors(p) | {"effective_weights": effective_weights(p)},
            record_at=training.record_at,
            project=_constraints(members, training.steps, setup.n_inputs, device),
            schedule=cosine(training.steps) if training.decay else lambda step: 1.0,
            names=[str(m) for m in members],
        )


def _tell(progress: Progress, steps: int, share: float) -> None:
    progress(round(share * steps), steps)


def _mask_rule(members: Sequence[Member], to: Callable[..., Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return which masks are trained, and the penalties by model: a name that the red tests take hold of."""
    fixed = ("baseline", "group_penalty", "oracle")
    penalties = {
        name: to([m.penalty * (m.model == name) for m in members]).unsqueeze(1)
        for name in ("l1_attention", "group_penalty")
    }
    return to([m.model not in fixed for m in members]).unsqueeze(1), penalties


def _constraints(
    members: Sequence[Member], steps: int, n_inputs: int, device: torch.device
) -> Callable[[Parameters], None] | None:
    """Return what brings masks back to where they may be after a step; None where all may be anywhere."""
    rows = {
        name: torch.tensor([i for i, m in enumerate(members) if m.model == name], device=device, dtype=torch.int64)
        for name in ("sum_to_one", "limited")
    }
    limits = [m.limit or m.n_relevant for m in members if m.model == "limited"]
    numbers = count()

    def project(parameters: Parameters) -> None:
        mask, step = parameters["mask"], next(numbers)
        if len(simplex := rows["sum_to_one"]):
            positive = mask[simplex].clamp(min=0.0)
            mask[simplex] = positive / positive.mean(1, keepdim=True)
        if len(limited := rows["limited"]):
            allowed = torch.tensor([allowance(step, steps, n_inputs, limit) for limit in limits], device=device)
            strength = effective_weights({name: parameters[name][limited] for name in ("mask", "hidden")})
            least = strength.sort(1, descending=True).values.gather(1, allowed.unsqueeze(1) - 1)
            mask[limited] = mask[limited].clamp(0.0, 1.0) * (strength >= least)

    return project if any(map(len, rows.values())) else None


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

    def errors(self, parameters: Parameters) -> dict[str, Tensor]:
        found = {name: parameters["mask"].new_empty(len(parameters["mask"])) for name in ("test_loss", "bias")}
        for mine, (inputs, labels) in zip(self.pools.values(), self.tests, strict=True):
            chosen = {name: tensor[mine] for name, tensor in parameters.items()}
            # To the CPU: not every device has float64.
            total = torch.zeros(len(mine), device="cpu", dtype=torch.float64)
            shift = torch.zeros(len(mine), labels.shape[1], device="cpu", dtype=torch.float64)
            # So few at a time that the hidden units stay in cache; one product for all members of a pool.
            for x, y in zip(inputs.split(512), labels.split(512), strict=True):
                residuals = predict(chosen, x.unsqueeze(0), torch.relu_) - y.T
                total += residuals.square().sum((1, 2)).cpu().double()
                shift += residuals.sum(2).cpu().double()
            found["test_loss"][mine] = (total / labels.numel()).to(found["test_loss"])
            found["bias"][mine] = ((shift / len(labels)).square().mean(1).sqrt()).to(found["bias"])
        return found

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
