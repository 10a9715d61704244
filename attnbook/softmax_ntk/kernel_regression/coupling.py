r"""A network in training beside its kernel machine: at every step, on training and on unseen inputs.

The machine is gradient descent on the kernel of the network at its start, with the same step size and labels, and
starts at the outputs of the network: $F_0(x)+K_0(x,X)\,u$ with $u=H^{*-1}(I-(I-\eta mH^*)^\tau)\mathrm{vec}(Y)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import sphere
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.linearised import change_of_weights, outputs_and_change
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.regression_bounds import coupling_bound, coupling_bound_of_theorem
from attnbook.softmax_ntk.sweeps import ROUNDING
from attnbook.softmax_ntk.training import Trained
from attnbook.softmax_ntk.two_layer import predict


def unseen(n_points: int, n_inputs: int, *, seed: int) -> np.ndarray:
    """Draw the inputs of a seed at which predictions are compared, uniform on the unit sphere."""
    return sphere(n_points, n_inputs, rng=stream(seed, "unseen inputs", n_inputs))


@torch.no_grad()
def couple(begun: Trained, points: Tensor, *, steps: int, record: Sequence[int]) -> dict[str, np.ndarray]:
    """Return gaps, drifts, factors of the bounds above the gap and losses of networks in training and their machines.

    Of the run only the start is used. Kernels are computed at the steps in `record`; a network that diverges raises
    FloatingPointError.
    """
    way = _Way(begun, points, steps)
    for step in range(steps + 1):
        way.go(step, recorded=step in record)
    return way.summary()


class _Way:
    """Networks on their way, and what has been seen of them and of their machines so far."""

    def __init__(self, begun: Trained, points: Tensor, steps: int) -> None:
        self.begun, self.points = begun, points
        self.now = replace(begun.start, first_layer=begun.start.first_layer.clone())
        self.eta = begun.step_size * begun.start.width
        labels = (begun.labels - begun.first_outputs()).flatten(1)
        self.label_norm, self.cross = labels.norm(dim=1), ntk_gram(begun.start, points, begun.inputs)
        learn = partial(kernel_gradient_flow, begun.kernel, labels, self.eta, range(steps + 1))
        self.fit = learn() - labels  # residuals of the machines
        self.machine = learn(cross=self.cross) + predict(begun.start, points).flatten(1)
        self.loss: list[Tensor] = []
        self.drift, self.residuals, self.differences = (torch.zeros_like(self.eta) for _ in range(3))
        self.point_drift, self.gap, self.directed = (torch.zeros_like(self.machine[0]) for _ in range(3))

    def go(self, step: int, *, recorded: bool) -> None:
        """Compare networks and machines where they are, add to the sums of Duhamel's formula, and take one step."""
        residual = predict(self.now, self.begun.inputs) - self.begun.labels
        gradient = change_of_weights(self.now, self.begun.inputs, residual)
        if not torch.isfinite(gradient).all():
            member = int((~torch.isfinite(gradient)).flatten(1).any(1).nonzero()[0, 0])
            size = float(self.begun.step_size[member])
            raise FloatingPointError(f"training diverged at step {step}, member {member}, step size {size:g}")
        outputs, pushed = (t.flatten(1) for t in outputs_and_change(self.now, self.points, gradient))
        self.gap = torch.maximum(self.gap, (outputs - self.machine[step]).abs())
        if recorded:
            self._record_drift()
        flat = residual.flatten(1)
        difference = flat - self.fit[step]
        drifted = pushed - (self.cross @ flat.unsqueeze(2)).squeeze(2)  # K_t - K_0, on the residual
        trailing = (self.cross @ difference.unsqueeze(2)).squeeze(2)
        self.directed += self.eta[:, None] * (drifted.abs() + trailing.abs())
        self.residuals += self.eta * flat.norm(dim=1)
        self.differences += self.eta * difference.norm(dim=1)
        self.loss.append(flat.square().sum(1) / 2)
        self.now.first_layer.sub_(gradient.mul_(self.eta[:, None, None]))

    def _record_drift(self) -> None:
        moved = ntk_gram(self.now, self.begun.inputs) - self.begun.kernel
        self.drift = torch.maximum(self.drift, moved.norm(dim=(1, 2)))
        moved = ntk_gram(self.now, self.points, self.begun.inputs) - self.cross
        self.point_drift = torch.maximum(self.point_drift, moved.norm(dim=2))

    def summary(self) -> dict[str, np.ndarray]:
        """Return what is kept of the way."""
        smallest, norms = torch.from_numpy(self.begun.eigenvalues[:, 0]).to(self.eta), self.cross.norm(dim=2)
        bound = coupling_bound(
            smallest[:, None], label_norm=self.label_norm[:, None], cross_norm=norms,
            kernel_drift=self.drift[:, None], point_drift=self.point_drift,
        )  # fmt: skip
        summed = self.point_drift * self.residuals[:, None] + norms * self.differences[:, None]
        stages = {"bound": bound, "summed": summed, "directed": self.directed}
        over = {name: _numpy(stage / self.gap.clamp(min=ROUNDING)) for name, stage in stages.items()}
        _, n_outputs, n_samples = self.begun.labels.shape
        point_drift = self.point_drift.amax(1)
        form = coupling_bound_of_theorem(
            smallest, n_samples=n_samples, n_outputs=n_outputs, width=self.now.width, kernel_drift=self.drift,
            point_drift=point_drift,
        )  # fmt: skip
        loss, machine_loss = torch.stack(self.loss), self.fit.square().sum(2) / 2
        found = {
            "gap": self.gap.amax(1), "kernel_drift": self.drift, "point_drift": point_drift,
            "smallest_eigenvalue": smallest, "form": form, "curve": (loss / loss[0]).T,
            "machine_curve": (machine_loss / machine_loss[0]).T,
        }  # fmt: skip
        return {name: _numpy(tensor) for name, tensor in found.items()} | {
            "smallest_bound_over_gap": over["bound"].min(axis=1),
            **{f"{name}_over_gap": np.median(ratio, axis=1) for name, ratio in over.items()},
        }


@torch.no_grad()
def learned(begun: Trained, watched: Tensor, times: Sequence[int]) -> np.ndarray:
    """Return what the first network and its machine have learned at some inputs after increasing numbers of steps.

    Of the first output less its start: ``(2, times, points)``.
    """
    start, inputs, labels = begun.start.subset(np.array([0])), begun.inputs[:1], begun.labels[:1]
    step_size = begun.step_size[:1]
    points, first = watched[None], predict(start, watched[None])[0, 0]
    goal, cross = (labels - predict(start, inputs)).flatten(1), ntk_gram(start, points, inputs)
    machine = kernel_gradient_flow(begun.kernel[:1], goal, step_size * start.width, times, cross=cross)
    now, network = start, []
    for before, after in pairwise((0, *times)):
        if after > before:
            now = gradient_descent(now, inputs, labels, step_size, max_steps=after - before).networks
        network.append(predict(now, points)[0, 0] - first)
    return _numpy(torch.stack([torch.stack(network), machine[:, 0, : len(watched)]]))


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().double().numpy()
