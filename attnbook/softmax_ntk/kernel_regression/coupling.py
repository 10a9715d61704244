r"""A network in training beside its kernel machine: at every step, on training and on unseen inputs.

The machine is gradient descent on the kernel of the network at its start, with the same step size and labels, and
starts at the outputs of the network: $F_0(x)+K_0(x,X)\,u$ with $u=H^{*-1}(I-(I-\eta mH^*)^\tau)\mathrm{vec}(Y)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attnbook.core.rng import stream
from attnbook.softmax_ntk.data import sphere
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
    """Train networks step by step and compare them with their machines; of the run only the start is used.

    Args:
        begun: Networks, samples and step sizes.
        points: Unseen inputs of each.
        steps: How many to take.
        record: Steps at which the kernels are computed, for the drifts.

    Returns:
        The largest gap, the drifts, and factors of the bounds above the gap, one number for each seed; losses of
        networks and machines, ``(seeds, steps + 1)``.

    Raises:
        FloatingPointError: If a network diverges; names step, member and step size.
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
        smallest, norms = self.begun.eigenvalues[:, 0], self.cross.norm(dim=2)
        bound = coupling_bound(
            torch.as_tensor(smallest).to(self.eta)[:, None], label_norm=self.label_norm[:, None], cross_norm=norms,
            kernel_drift=self.drift[:, None], point_drift=self.point_drift,
        )  # fmt: skip
        summed = self.point_drift * self.residuals[:, None] + norms * self.differences[:, None]
        over = {name: _numpy(b / self.gap.clamp(min=ROUNDING)) for name, b in
                {"bound": bound, "summed": summed, "directed": self.directed}.items()}  # fmt: skip
        drift, point_drift, gap = (_numpy(t) for t in (self.drift, self.point_drift.amax(1), self.gap.amax(1)))
        _, n_outputs, n_samples = self.begun.labels.shape
        sizes = {"n_samples": n_samples, "n_outputs": n_outputs, "width": self.now.width}
        form = [
            coupling_bound_of_theorem(float(e), kernel_drift=float(k), point_drift=float(p), **sizes)
            for e, k, p in zip(smallest, drift, point_drift, strict=True)
        ]
        loss, machine_loss = torch.stack(self.loss), self.fit.square().sum(2) / 2
        return {
            "gap": gap, "kernel_drift": drift, "point_drift": point_drift, "smallest_eigenvalue": smallest,
            "form": np.array(form), "smallest_bound_over_gap": over["bound"].min(axis=1),
            **{f"{name}_over_gap": np.median(ratio, axis=1) for name, ratio in over.items()},
            "curve": _numpy(loss / loss[0]).T, "machine_curve": _numpy(machine_loss / machine_loss[0]).T,
        }  # fmt: skip


@torch.no_grad()
def learned(begun: Trained, watched: Tensor, times: Sequence[int]) -> np.ndarray:
    """Return what the first network and its machine have learned at some inputs, first output less its start.

    Args:
        begun: Networks, samples and step sizes.
        watched: Inputs, ``(points, inputs)``.
        times: After how many steps, increasing.

    Returns:
        Network and machine, ``(2, times, points)``.
    """
    one = np.array([0])
    start, inputs, labels = begun.start.subset(one), begun.inputs[:1], begun.labels[:1]
    points, eta = watched[None], begun.step_size[:1] * begun.start.width
    goal = (labels - predict(start, inputs)).flatten(1)
    cross = ntk_gram(start, points, inputs)
    machine = kernel_gradient_flow(begun.kernel[:1], goal, eta, times, cross=cross)[:, 0, : len(watched)]
    now, first, network = replace(start, first_layer=start.first_layer.clone()), predict(start, points)[0, 0], []
    for step in range(times[-1] + 1):
        if step in times:
            network.append(predict(now, points)[0, 0] - first)
        residual = predict(now, inputs) - labels
        now.first_layer.sub_(change_of_weights(now, inputs, residual) * eta[:, None, None])
    return _numpy(torch.stack([torch.stack(network), machine]))


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().double().numpy()
