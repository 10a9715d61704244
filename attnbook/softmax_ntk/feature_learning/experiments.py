"""The experiment of the chapter: one network trained lazily, in large steps and in mean-field scaling, and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnbook.core.ensemble import log_spaced
from attnbook.core.experiment import Arrays, Experiment, share_of_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, share
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.kernels import infinite_width_kernel
from attnbook.softmax_ntk.ntk import kernel_gradient_flow
from attnbook.softmax_ntk.single_index import TARGETS, SingleIndex, draw_single_index, index_learnt
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights, predict

# Name to label size, as a power of the width, and step sizes in units of one over the largest eigenvalue of m K.
NETWORKS: dict[str, tuple[float, tuple[float, ...]]] = {
    "lazy": (1 / 2, (0.5, 1.0)), "large steps": (1 / 2, (2.5, 5.0)), "mean field": (1.0, (1.0, 4.0))
}  # fmt: skip
MACHINES = ["kernel", "kernel, stretched", "line"]
POWERS = (0.0, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1.0, 7 / 6)  # label sizes of the dial: from the paper's to one out of reach
LAZY, MEAN_FIELD = 2, 5  # where two of the networks stand on it
DIAL_STEPS = (1.0, 4.0)
TIMES = np.geomspace(1, 1e7, 29)  # stops of the kernel flow, in units of one over the largest eigenvalue
KERNELS = [(scale, 1.0) for scale in (0.5, 1.0, 2.0, 3.0, 4.0)]  # scale of the weights; factor along a direction
STRETCHED = [(0.25, 4.0), (0.25, 8.0), (0.5, 2.0), (0.5, 4.0), (0.5, 8.0), (1.0, 2.0)]
SHOWN = 80  # test points of the pictures of profiles

Run = tuple[str, float, float]  # target, power of the width that is the label size, step size
Drawn = tuple[list[SingleIndex], list[SingleIndex], list[Weights]]  # samples, test points and start of each seed
Kernel = tuple[np.ndarray, np.ndarray]  # of the training samples, and of test points with them


@dataclass(frozen=True, kw_only=True)
class FeatureLearning(Experiment):
    r"""Appendix H.2, which leaves the features of softmax networks to future work; the design is ours.

    The output is scaled by way of the labels: a network with output $F/s$ trained on $y$ is $F$ trained on $sy$, the
    *label size* $s$ being $\sqrt m$ for the scaling $1/\sqrt m$ and $m$ for mean field. All learners get the same
    samples, a part of which chooses step size and time, or kernel and time.
    """

    id = "softmax_ntk.feature_learning"
    summary = "Appendix H.2: does a softmax network learn a direction, lazily, in large steps, in mean-field scaling?"
    budget_seconds = 60
    smoke = {"n_inputs": 4, "width": 8, "samples": (10, 40), "steps": 6, "records": 4, "n_test": 90, "seeds": (0, 1)}
    full = {"n_inputs": 32, "width": 256, "samples": (200, 400, 800, 1600), "seeds": tuple(range(10))}

    n_inputs: int = 16  # d
    width: int = 64  # m
    noise: float = 0.1  # standard deviation of what is added to labels
    samples: tuple[int, ...] = (50, 100, 200, 400)  # with those held out, increasing
    held_out: float = 0.2  # share of them
    n_test: int = 400
    steps: int = 600
    records: int = 20  # steps, about, at which a network may be stopped
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(set(self.samples)) != list(self.samples) or 2 * self.samples[-2] > self.samples[-1]:
            raise ValueError(f"samples: expected increasing numbers, the last doubled, got {self.samples}")
        if not 1 <= self.held_out * self.samples[0] <= self.samples[0] / 2:
            raise ValueError(f"held_out: expected a share of one sample at least and 0.5, got {self.held_out}")

    def coordinates(self) -> dict[str, Any]:
        """Name targets, learners, numbers of samples and label sizes."""
        names = {"target": list(TARGETS), "network": list(NETWORKS), "learner": [*NETWORKS, *MACHINES]}
        return names | {"n": list(self.samples), "size": [self.width**power for power in POWERS]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train all networks and kernel machines for each number of samples, and turn the dial at the last."""
        tests = [draw_single_index(self.n_test, self.n_inputs, noise=0, seed=s, purpose="test") for s in seeds]
        weights = [draw_weights(self.width, self.n_inputs, 1, rng=stream(s, "weights", self.width)) for s in seeds]
        teams: list[list[Run]] = [[(t, p, c) for c in sizes] for t in TARGETS for p, sizes in NETWORKS.values()]
        split, swept, errors = len(teams), [], []
        for number, n in enumerate(self.samples):
            if n == self.samples[-1]:
                teams += [[("step", power, c) for c in DIAL_STEPS] for power in POWERS]
            data = [draw_single_index(n, self.n_inputs, noise=self.noise, seed=s) for s in seeds]
            found = self._train((data, tests, weights), teams, device, share(progress, number, len(self.samples)))
            by_target = {k: v[:split].reshape(len(TARGETS), len(NETWORKS), *v.shape[1:]) for k, v in found.items()}
            errors.append(np.concatenate([by_target["error"], self._machines(data, tests, by_target["direction"])], 1))
            swept.append(by_target)
        arrays: Arrays = {"error": (("target", "learner", "seed", "n"), np.stack(errors, -1))}
        for name in ("movement", "aligned", "cosine", "signed"):
            arrays[name] = (("target", "network", "seed", "n"), np.stack([part[name] for part in swept], -1))
        for name in ("error", "movement", "aligned", "cosine", "signed"):
            arrays[f"dial_{name}"] = (("size", "seed"), found[name][split:])
        arrays["points"] = ("seed", "point"), [test.projections[:SHOWN] for test in tests]
        return arrays | {"outputs": (("size", "seed", "point"), found["outputs"][split:])}

    def _train(
        self, drawn: Drawn, teams: list[list[Run]], device: torch.device, progress: Progress | None
    ) -> dict[str, np.ndarray]:
        """Train teams of runs as one program; keep of each team what has the smallest error on held-out samples."""
        runs = [run for team in teams for run in team]
        data, tests, weights = drawn
        fit = len(data[0].inputs) - int(self.held_out * len(data[0].inputs))
        start = Networks.stack("softmax", weights * len(runs), device=device, dtype=torch.float32)
        sizes = np.repeat([self.width**power for _, power, _ in runs], len(data))[:, None]
        tops = [np.linalg.eigvalsh(infinite_width_kernel("softmax", d.inputs[:fit]))[-1] for d in data]
        labels = np.stack([TARGETS[name](d.projections) + d.noise for name, *_ in runs for d in data])
        # Outputs of all learners are cut alike; kernels, which extrapolate like exponentials, gain most.
        limits = labels[:, :fit].min(1, keepdims=True), labels[:, :fit].max(1, keepdims=True)
        truth = np.stack([TARGETS[name](test.projections) for name, *_ in runs for test in tests])

        def repeated(values: Sequence[np.ndarray]) -> Tensor:
            return to_tensor(np.concatenate([np.stack(values)] * len(runs)), device=device)

        inputs, unseen = repeated([d.inputs for d in data]), repeated([test.inputs for test in tests])
        index = repeated([d.index for d in data])
        scaled = to_tensor(sizes * labels, device=device)[:, None, :fit]
        eta = to_tensor([c / (self.width * top) for *_, c in runs for top in tops], device=device)
        networks, looks = start, []
        records = log_spaced(self.steps, self.records)
        for number, (before, after) in enumerate(pairwise((0, *records)), 1):
            if after > before:
                networks = gradient_descent(networks, inputs[:, :fit], scaled, eta, max_steps=after - before).networks
            seen = [predict(networks, x)[:, 0].cpu().numpy() / sizes for x in (inputs[:, fit:], unseen)]
            held, outputs = (values.clip(*limits) for values in seen)
            errors = {"held": ((held - labels[:, fit:]) ** 2).mean(1), "error": unexplained(outputs, truth)}
            learnt = {name: v.cpu().double().numpy() for name, v in index_learnt(start, networks, index).items()}
            looks.append(errors | {"outputs": outputs[:, :SHOWN]} | learnt)
            if progress:
                progress(number, len(records))
        return pick({name: np.stack([look[name] for look in looks]) for name in looks[0]}, len(teams), len(data))

    def _machines(self, data: list[SingleIndex], tests: list[SingleIndex], found: np.ndarray) -> np.ndarray:
        """Errors of kernel machines, ``(targets, machines, seeds)``; `found` are directions by target and network."""
        errors = np.empty((len(TARGETS), len(MACHINES), len(data)))
        for i, target in enumerate(TARGETS.values()):
            for k, (train, test) in enumerate(zip(data, tests, strict=True)):
                direction = found[i, list(NETWORKS).index("lazy"), k]
                machines = [[kernel(train, test, direction, *one) for one in tried] for tried in (KERNELS, STRETCHED)]
                machines.append([(train.inputs @ train.inputs.T, test.inputs @ train.inputs.T)])
                labels, truth = target(train.projections) + train.noise, target(test.projections)
                errors[i, :, k] = [unexplained(self._stopped(machine, labels), truth) for machine in machines]
        return errors

    def _stopped(self, kernels: list[Kernel], labels: np.ndarray) -> np.ndarray:
        """Outputs at test points of gradient flow on the kernel, and at the time, that held-out samples choose."""
        fit, tried = len(labels) - int(self.held_out * len(labels)), []
        for gram, cross in kernels:
            fitted, aims = torch.from_numpy(gram[:fit, :fit]), torch.from_numpy(labels[:fit])
            times = (TIMES / float(torch.linalg.eigvalsh(fitted)[-1])).tolist()
            points = torch.from_numpy(np.concatenate([gram[fit:, :fit], cross[:, :fit]]))
            tried.append(kernel_gradient_flow(fitted, aims, None, times, cross=points).numpy())
        outputs = np.concatenate(tried).clip(labels[:fit].min(), labels[:fit].max())
        held = ((outputs[:, : len(labels) - fit] - labels[fit:]) ** 2).mean(1)
        return np.asarray(outputs[held.argmin(), len(labels) - fit :])

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the errors, what has moved where, and in which share of the seeds at least, with 95 % confidence."""
        last, names = data.isel(n=-1), self.coordinates()["learner"]
        of = {t: {name: last.error.sel(target=t, learner=name) for name in names} for t in TARGETS}
        step, square, mean_field = of["step"], of["square"], data.error.sel(learner="mean field")
        beyond = (mean_field.isel(n=-1) < last.error.sel(learner="large steps")).all("target")
        low, high = data.isel(size=LAZY), data.isel(size=MEAN_FIELD)
        gain = {target: error["kernel, stretched"] / error["kernel"] for target, error in of.items()}
        surely = partial(share_of_seeds, side=-1)
        return {
            "SN-H2": {
                "surely_fewer": surely(mean_field.sel(target="step").isel(n=-2) < step["kernel"]),
                "error_ratio": step["mean field"] / step["kernel"],
            },
            "SN-H2-size": {
                "error_ratio": high.dial_error / low.dial_error,
                "movement_ratio": high.dial_movement / low.dial_movement,
                "aligned_mean_field": high.dial_aligned, "aligned_lazy": low.dial_aligned, "signed": high.dial_signed,
                "surely_beyond_large_steps": surely(beyond),
            },
            "SN-H2-index": {
                "cosine": last.cosine.sel(target="step", network="lazy"), "lazy_over_line": step["lazy"] / step["line"],
                **{f"gain_{target}": ratio for target, ratio in gain.items()},
                **{f"surely_{target}": surely(ratio < 1) for target, ratio in gain.items()},
            },
            "SN-H2-square": {
                "surely_kernel": surely(square["kernel"] < square["mean field"]),
                "mean_field_over_kernel": square["mean field"] / square["kernel"],
            },
        }  # fmt: skip


def kernel(train: SingleIndex, test: SingleIndex, direction: np.ndarray, scale: float, factor: float) -> Kernel:
    """Return the kernel of the samples, and of test points with them, of inputs stretched along a direction."""
    stretch = np.eye(len(direction)) + (factor - 1) * np.outer(direction, direction)
    inputs, points = train.inputs @ stretch, test.inputs @ stretch
    cross = infinite_width_kernel("softmax", points, inputs, scale=scale)
    return infinite_width_kernel("softmax", inputs, scale=scale), cross


def pick(looks: dict[str, np.ndarray], n_teams: int, n_seeds: int) -> dict[str, np.ndarray]:
    """Of each team and seed, keep the run and the record with the smallest held-out error, ``(teams, seeds, ...)``."""
    teams, seeds = np.ogrid[:n_teams, :n_seeds]
    split = {name: v.reshape(len(v), n_teams, -1, n_seeds, *v.shape[2:]) for name, v in looks.items()}
    tried = {name: np.moveaxis(v, 2, 1).reshape(-1, n_teams, n_seeds, *v.shape[4:]) for name, v in split.items()}
    return {name: values[tried["held"].argmin(0), teams, seeds] for name, values in tried.items()}


def unexplained(outputs: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the squared error over the variance of the target: 0 is perfect, 1 what its mean has."""
    return np.asarray(((outputs - truth) ** 2).mean(-1) / truth.var(-1))
