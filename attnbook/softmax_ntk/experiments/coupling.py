r"""A network in training beside its kernel machine: at every step, on training and on unseen inputs.

The machine is gradient descent on the kernel of the network at its start, with the same step size and labels, and
starts at the outputs of the network: $F_{ntk,\tau}(x) = F_0(x) + K_0(x,X)H^{*-1}(I-(I-\eta mH^*)^\tau)\mathrm{vec}(Y)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.rng import stream, to_tensor
from attnbook.softmax_ntk.data import sphere
from attnbook.softmax_ntk.experiments.runs import ROUNDING, Problem, Run, train
from attnbook.softmax_ntk.linearised import change_of_outputs, change_of_weights, outputs_and_change
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.regression_bounds import coupling_bound
from attnbook.softmax_ntk.two_layer import Networks, predict

__all__ = ["Coupled", "couple", "linear_error", "unseen"]


@dataclass(frozen=True)
class Coupled:
    r"""What happened to networks and machines; the second axis runs over outputs and points where it is ``rows``.

    Attributes:
        gap: Largest distance of network and machine over points and outputs, ``(steps + 1, seeds)``.
        largest_gap: Largest distance over the steps, ``(seeds, rows)``.
        loss: Loss of the networks, ``(steps + 1, seeds)``.
        machine_loss: Loss of the machines.
        kernel_drift: $\epsilon_H$, largest Frobenius norm of $H(\tau)-H(0)$ over the recorded steps, ``(seeds,)``.
        point_drift: $\epsilon_{test}$, largest norm of $K_\tau(x,X)-K_0(x,X)$ over them, ``(seeds, rows)``.
        smallest_eigenvalue: $\lambda$ of $H(0)$, ``(seeds,)``.
        bound: Our form of Theorem F.2 with these measured drifts, ``(seeds, rows)``.
        summed: The same before the residuals are replaced by their envelopes: drifts times measured residuals.
        directed: The same with the drift in the direction of the residual at every step, signs dropped.
        network: First output at the watched points for the first seed, less what it was at the start,
            ``(times, watched)``.
        machine: The same of its machine.
    """

    gap: Float[np.ndarray, "steps seeds"]
    largest_gap: Float[np.ndarray, "seeds rows"]
    loss: Float[np.ndarray, "steps seeds"]
    machine_loss: Float[np.ndarray, "steps seeds"]
    kernel_drift: Float[np.ndarray, " seeds"]
    point_drift: Float[np.ndarray, "seeds rows"]
    smallest_eigenvalue: Float[np.ndarray, " seeds"]
    bound: Float[np.ndarray, "seeds rows"]
    summed: Float[np.ndarray, "seeds rows"]
    directed: Float[np.ndarray, "seeds rows"]
    network: Float[np.ndarray, "times watched"]
    machine: Float[np.ndarray, "times watched"]

    def statistics(self, record: Sequence[int]) -> dict[str, np.ndarray]:
        """Return gaps at these steps and ratios of the bounds to the gap, per seed."""

        def over_gap(bound: np.ndarray) -> np.ndarray:
            return bound / np.maximum(self.largest_gap, ROUNDING)

        return {
            "gap": self.gap.max(axis=0),
            "late_gap": self.gap[-1],
            "gap_at": self.gap[list(record)].T,
            "bound": np.median(self.bound, axis=1),
            "bound_over_gap": over_gap(self.bound).min(axis=1),
            "median_bound_over_gap": np.median(over_gap(self.bound), axis=1),
            "summed_over_gap": np.median(over_gap(self.summed), axis=1),
            "directed_over_gap": np.median(over_gap(self.directed), axis=1),
            "kernel_drift": self.kernel_drift,
            "point_drift": self.point_drift.max(axis=1),
            "smallest_eigenvalue": self.smallest_eigenvalue,
        }


def unseen(n_points: int, n_inputs: int, *, seed: int) -> Float[np.ndarray, "points inputs"]:
    """Draw the inputs of a seed at which predictions are compared, uniform on the unit sphere.

    Args:
        n_points: How many.
        n_inputs: Number of inputs.
        seed: The seed of the training set.

    Returns:
        One input per row.
    """
    return sphere(n_points, n_inputs, rng=stream(seed, "unseen inputs", n_inputs))


@torch.no_grad()
def couple(
    problem: Problem,
    seeds: Sequence[int],
    *,
    device: torch.device,
    steps: int,
    n_points: int,
    record: Sequence[int],
    watched: Float[np.ndarray, "watched inputs"],
    times: Sequence[int],
) -> Coupled:
    r"""Train networks with step size $1/(m\lambda_{\max}(H^*))$ and compare them with their machines at every step.

    Args:
        problem: What the networks have in common.
        seeds: One network for each.
        device: Where to compute.
        steps: Number of steps.
        n_points: Number of unseen inputs per seed.
        record: Steps at which the kernels are computed, for the drifts.
        watched: Inputs at which the predictions of the first seed are kept.
        times: Steps at which they are kept.

    Returns:
        Gaps, drifts and bounds.

    Raises:
        FloatingPointError: If a network diverges; names step, member and step size.
    """
    begun = train(problem, seeds, device=device, max_steps=1)  # draws and first kernel; its one step is not used
    points = torch.stack([_double(unseen(n_points, problem.n_inputs, seed=s), begun) for s in seeds])
    journey = _Journey(begun, points, steps)
    kept = _double(watched, begun)[None]
    network = []
    for step in range(steps + 1):
        if step in times:
            network.append(_first(journey.now, kept) - _first(begun.start, kept))
        journey.go(step, recorded=step in record)
    machine = _machine_of_first(begun, kept, times)[:, : len(watched)]
    return Coupled(**_numpy(journey.summary() | {"network": torch.stack(network), "machine": machine}))


class _Journey:
    """Networks on their way, and what has been seen of them and of their machines so far."""

    def __init__(self, begun: Run, points: Tensor, steps: int) -> None:
        self.begun, self.now = begun, replace(begun.start, first_layer=begun.start.first_layer.clone())
        self.eta = begun.step_size * begun.start.width
        self.points = points
        first_outputs = predict(begun.start, begun.inputs).flatten(1)
        labels = begun.labels.flatten(1) - first_outputs
        self.cross = ntk_gram(begun.start, points, begun.inputs)
        learn = partial(kernel_gradient_flow, begun.kernel, labels, self.eta, range(steps + 1))
        self.fit = learn() - labels  # residuals of the machines
        self.machine = learn(cross=self.cross) + predict(begun.start, points).flatten(1)
        self.label_norm = labels.norm(dim=1)
        self.gap: list[Tensor] = []
        self.loss: list[Tensor] = []
        per_seed, per_row = torch.zeros_like(self.eta), torch.zeros_like(self.machine[0])
        self.drift, self.residuals, self.differences = per_seed, per_seed.clone(), per_seed.clone()
        self.point_drift, self.largest, self.directed = per_row, per_row.clone(), per_row.clone()

    def go(self, step: int, *, recorded: bool) -> None:
        """Compare networks and machines where they are, add to the sums of Duhamel's formula, and take one step."""
        residual = predict(self.now, self.begun.inputs) - self.begun.labels
        gradient = change_of_weights(self.now, self.begun.inputs, residual)
        outputs, pushed = (t.flatten(1) for t in outputs_and_change(self.now, self.points, gradient))
        apart = (outputs - self.machine[step]).abs()
        self.gap.append(apart.amax(1))
        self.largest = torch.maximum(self.largest, apart)
        if recorded:
            self._record_drift()
        flat, rate = residual.flatten(1), self.eta[:, None]
        difference = flat - self.fit[step]
        drifted = pushed - (self.cross @ flat.unsqueeze(2)).squeeze(2)  # K_t - K_0, on the residual
        trailing = (self.cross @ difference.unsqueeze(2)).squeeze(2)
        self.directed += rate * (drifted.abs() + trailing.abs())
        self.residuals += self.eta * flat.norm(dim=1)
        self.differences += self.eta * difference.norm(dim=1)
        self.loss.append(flat.square().sum(1) / 2)
        if not torch.isfinite(gradient).all():
            member = int((~torch.isfinite(gradient)).flatten(1).any(1).nonzero()[0, 0])
            size = float(self.begun.step_size[member])
            raise FloatingPointError(f"training diverged at step {step}, member {member}, step size {size:g}")
        self.now.first_layer.sub_(gradient.mul_(rate.unsqueeze(2)))

    def _record_drift(self) -> None:
        moved = ntk_gram(self.now, self.begun.inputs) - self.begun.kernel
        self.drift = torch.maximum(self.drift, moved.norm(dim=(1, 2)))
        moved = ntk_gram(self.now, self.points, self.begun.inputs) - self.cross
        self.point_drift = torch.maximum(self.point_drift, moved.norm(dim=2))

    def summary(self) -> dict[str, Tensor]:
        """Return what is kept of the way."""
        smallest = torch.as_tensor(self.begun.eigenvalues[:, 0]).to(self.eta)
        norms = self.cross.norm(dim=2)
        bound = coupling_bound(
            smallest[:, None], label_norm=self.label_norm[:, None], cross_norm=norms,
            kernel_drift=self.drift[:, None], point_drift=self.point_drift,
        )  # fmt: skip
        return {
            "gap": torch.stack(self.gap),
            "largest_gap": self.largest,
            "loss": torch.stack(self.loss),
            "machine_loss": self.fit.square().sum(2) / 2,
            "kernel_drift": self.drift,
            "point_drift": self.point_drift,
            "smallest_eigenvalue": smallest,
            "bound": bound,
            "summed": self.point_drift * self.residuals[:, None] + norms * self.differences[:, None],
            "directed": self.directed,
        }


def _machine_of_first(begun: Run, watched: Tensor, times: Sequence[int]) -> Tensor:
    one = np.array([0])
    start, inputs = begun.start.subset(one), begun.inputs[one]
    labels = begun.labels[one].flatten(1) - predict(start, inputs).flatten(1)
    learned = kernel_gradient_flow(
        begun.kernel[one], labels, begun.step_size[one] * start.width, times, cross=ntk_gram(start, watched, inputs)
    )
    return learned[:, 0]


def _first(networks: Networks, watched: Tensor) -> Tensor:
    """First output of the first network at the watched points."""
    return predict(networks.subset(np.array([0])), watched)[0, 0]


def _double(array: np.ndarray, begun: Run) -> Tensor:
    return to_tensor(array, device=begun.inputs.device, dtype=begun.inputs.dtype)


def _numpy(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.cpu().double().numpy() for name, tensor in tensors.items()}


@torch.no_grad()
def linear_error(
    problem: Problem, seeds: Sequence[int], *, device: torch.device, steps: int, n_points: int
) -> Float[np.ndarray, " seeds"]:
    r"""Train linearised networks step by step in weight space and compare with the closed form of Definition F.1.

    Args:
        problem: What the networks have in common.
        seeds: One network for each.
        device: Where to compute.
        steps: Number of steps.
        n_points: Number of unseen inputs per seed.

    Returns:
        Largest difference over steps, training and unseen inputs, relative to the largest prediction.
    """
    begun = train(problem, seeds, device=device, max_steps=1)  # for its start alone
    points = torch.stack([_double(unseen(n_points, problem.n_inputs, seed=s), begun) for s in seeds])
    everywhere, eta = torch.cat([begun.inputs, points], dim=1), begun.step_size * problem.width
    labels = begun.labels - predict(begun.start, begun.inputs)
    cross = ntk_gram(begun.start, everywhere, begun.inputs)
    right = kernel_gradient_flow(begun.kernel, labels.flatten(1), eta, range(steps + 1), cross=cross)
    change, worst = torch.zeros_like(begun.start.first_layer), torch.zeros_like(eta)
    for step in range(steps + 1):
        moved = change_of_outputs(begun.start, everywhere, change)
        worst = torch.maximum(worst, (moved.flatten(1) - right[step]).abs().amax(1))
        residual = moved[:, :, : problem.n_samples] - labels
        change -= eta[:, None, None] * change_of_weights(begun.start, begun.inputs, residual)
    return (worst / right.abs().amax((0, 2))).cpu().double().numpy()
