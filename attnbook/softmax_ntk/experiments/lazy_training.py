"""Theorem 4.2, Corollary 4.3, Lemma 5.3 and Table 1: gradient descent on networks of many widths.

The paper has no experiments; this one is the book's. Each network trains until its loss has fallen to a thousandth, so
that movements and drifts are compared at equal residual.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, over_seeds
from attnbook.core.resuming import by_seeds, check_seeds, concatenate
from attnbook.core.runtime import Progress
from attnbook.softmax_ntk.data import draw_sample
from attnbook.softmax_ntk.experiments.runs import (
    ACTIVATIONS,
    ROUNDING,
    Problem,
    Run,
    over_runs,
    place,
    slopes,
    train,
)
from attnbook.softmax_ntk.kernels import Activation, infinite_width_kernel
from attnbook.softmax_ntk.lazy_bounds import loss_envelope, movement_bound
from attnbook.softmax_ntk.ntk import kernel_gradient_flow
from attnbook.softmax_ntk.two_layer import neuron_derivatives

__all__ = ["LazyTraining", "Settings", "run"]

# What is kept of every run, one number each.
KEPT = (
    "steps",
    "reached",
    "monotone",
    "bound_ratio",
    "exponent_ratio",
    "rms_movement",
    "largest_movement",
    "movement_bound",
    "longest_step",
    "drift",
    "smallest_eigenvalue",
    "largest_eigenvalue",
    "largest_diagonal",
    "heaviest_pair",
)
# Kernels whose smallest eigenvalue is below this part of the largest count as singular: the theorem excludes them.
SINGULAR = 1e-9  # fmt: skip
# Stands for the loss of a network that diverged.
BLOWN_UP = 1e30


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        n_samples: Number of samples.
        n_inputs: Number of inputs; equal to the number of samples, so that all three kernels are well conditioned.
        outputs: Numbers of outputs; the first one is that of Corollary 4.3 and Table 1.
        widths: Numbers of neurons, increasing.
        small_widths: Smaller ones, trained with one output in search of the smallest that works.
        trained_from: Width from which on every softmax network must reach the target.
        flat_from: Width from which on the number of steps should no longer depend on it.
        lazy_from: Smallest width in the slopes of movement and drift.
        short_steps_from: Smallest width at which single steps must be short.
        target: Fraction of the first loss to stop at.
        max_steps: Steps after which to give up.
        curve_width: Width of the loss curves.
        curve_steps: Steps of the loss curves.
        seeds: Seeds of data and weights; twenty, since with five a single heavy neuron decides a mean or a slope.
        chunk: Seeds trained together.
    """

    n_samples: int = 16
    n_inputs: int = 16
    outputs: tuple[int, ...] = (1, 2)
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)
    small_widths: tuple[int, ...] = (2, 4, 8)
    trained_from: int = 32
    flat_from: int = 256
    lazy_from: int = 128
    short_steps_from: int = 1024
    target: float = 1e-3
    max_steps: int = 3000
    curve_width: int = 512
    curve_steps: int = 40
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def __post_init__(self) -> None:
        if sorted(set(self.widths)) != list(self.widths) or any(m % 2 for m in self.widths):
            raise ValueError(f"widths: expected even numbers, increasing, got {self.widths}")
        last = self.widths[-2] if len(self.widths) > 1 else 0
        for name in ("trained_from", "flat_from", "lazy_from", "short_steps_from"):
            if getattr(self, name) > last:
                raise ValueError(f"{name}: expected at least two widths from there on, got {getattr(self, name)}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            n_samples=5, n_inputs=7, outputs=(1,), widths=(16, 32, 64), small_widths=(2,), seeds=(0, 1), chunk=1,
            target=0.1, max_steps=300, curve_width=32, curve_steps=5,
            flat_from=32, lazy_from=16, short_steps_from=32,
        )  # fmt: skip

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger run of this book's experiment; the paper has none."""
        widths = (*cls.widths, 4096, 8192, 16384, 32768, 65536)
        return cls(
            n_samples=128, n_inputs=128, outputs=(1, 4), widths=widths, curve_width=4096, seeds=(0, 1, 2, 3, 4), chunk=1
        )

    def problem(self, activation: Activation, width: int, n_outputs: int) -> Problem:
        """Return the problem of these networks."""
        return Problem(activation, width, self.n_samples, self.n_inputs, n_outputs)


@dataclass(frozen=True)
class LazyTraining(Result):
    r"""What training did to every network; arrays ``(seeds, outputs, widths, networks)`` unless stated.

    Attributes:
        steps: Steps to the target.
        reached: 1 where the target was reached, else 0.
        monotone: 1 where the loss never rose, else 0.
        bound_ratio: Largest ratio of the loss to the envelope of Lemma 5.3, from the first step on.
        exponent_ratio: Exponent of the loss over the second half of the steps, over that of the envelope; 0 where the
            kernel at the start is singular.
        rms_movement: Root mean square over neurons of $\|w_r(T)-w_r(0)\|$.
        largest_movement: Largest of these.
        movement_bound: The bound $D$ of Lemma 5.3, with the largest $|\langle w_r,x_i\rangle|$ as $B$.
        longest_step: Longest single step of a single neuron.
        drift: $\|H(T)-H(0)\|_F/\|H(0)\|_F$.
        smallest_eigenvalue: $\lambda$ of $H(0)$.
        largest_eigenvalue: Largest eigenvalue of $H(0)$.
        largest_diagonal: Largest diagonal entry of $H(0)$: the sample that the heaviest neurons answer to.
        heaviest_pair: Largest share of one pair of neurons in a sample's sum of squared derivatives, at the start.
        curve: Loss over its first value at one width, one output, ``(seeds, networks, steps + 1)``.
        kernel_curve: The same for gradient descent on the kernel at the start.
        envelope: The envelope of Lemma 5.3 for the same networks.
        small_reached: 1 where a smaller network reached the target, ``(seeds, small widths, networks)``.
        infinite_eigenvalue: Smallest eigenvalue of the kernel at infinite width, same data, ``(seeds, networks)``.
    """

    experiment: ClassVar[str] = "softmax_ntk.lazy_training"
    settings_type: ClassVar[type] = Settings

    steps: Float[np.ndarray, "seeds outputs widths networks"]
    reached: Float[np.ndarray, "seeds outputs widths networks"]
    monotone: Float[np.ndarray, "seeds outputs widths networks"]
    bound_ratio: Float[np.ndarray, "seeds outputs widths networks"]
    exponent_ratio: Float[np.ndarray, "seeds outputs widths networks"]
    rms_movement: Float[np.ndarray, "seeds outputs widths networks"]
    largest_movement: Float[np.ndarray, "seeds outputs widths networks"]
    movement_bound: Float[np.ndarray, "seeds outputs widths networks"]
    longest_step: Float[np.ndarray, "seeds outputs widths networks"]
    drift: Float[np.ndarray, "seeds outputs widths networks"]
    smallest_eigenvalue: Float[np.ndarray, "seeds outputs widths networks"]
    largest_eigenvalue: Float[np.ndarray, "seeds outputs widths networks"]
    largest_diagonal: Float[np.ndarray, "seeds outputs widths networks"]
    heaviest_pair: Float[np.ndarray, "seeds outputs widths networks"]
    curve: Float[np.ndarray, "seeds networks records"]
    kernel_curve: Float[np.ndarray, "seeds networks records"]
    envelope: Float[np.ndarray, "seeds networks records"]
    small_reached: Float[np.ndarray, "seeds small_widths networks"]
    infinite_eigenvalue: Float[np.ndarray, "seeds networks"]

    def smallest_working_width(self) -> Float[np.ndarray, " networks"]:
        """Return, for one output, the smallest width from which on every seed reached the target; infinite if none."""
        works = (np.concatenate([self.small_reached, self.reached[:, 0]], axis=1) == 1).all(axis=0)
        failed = [np.flatnonzero(~column) for column in works.T]
        widths = np.array([*self.settings.small_widths, *self.settings.widths, np.inf])
        return np.array([widths[at[-1] + 1] if len(at) else widths[0] for at in failed])

    def some_seeds(self, which: slice) -> Self:
        """Return the result that a part of the seeds alone would have given."""
        arrays = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.type.startswith("Float")}
        return replace(self, settings=replace(self.settings, seeds=self.settings.seeds[which]), **arrays)

    def exponential_of_bound(self) -> Float[np.ndarray, "seeds outputs widths"]:
        """Return the factor $e^{3B}$ in the bound $D$ of the softmax networks, with the measured $B$."""
        s = self.settings
        count = s.n_samples * np.sqrt(np.array(s.outputs, dtype=float))[:, None]
        width = np.array(s.widths, dtype=float)
        return (self.movement_bound * self.smallest_eigenvalue)[..., 0] * width / (8 * count)

    def measurements(self) -> dict[str, Measurement]:
        """Return convergence, envelope, steps, movement and drift, by claim id."""
        return self._theorem() | self._lemma() | self._steps() | self._slopes()

    def _from(self, width: int) -> slice:
        return slice(next(i for i, m in enumerate(self.settings.widths) if m >= width), None)

    def _theorem(self) -> dict[str, Measurement]:
        s, n = self.settings, len(self.settings.seeds)
        trained = self._from(s.trained_from)
        reached = self.reached[:, :, trained, 0]
        unit = np.eye(1, s.n_inputs)
        diagonal = np.array([infinite_width_kernel(name, unit)[0, 0] for name in ACTIVATIONS])
        raw, scaled = (
            e.max(axis=1) / e.min(axis=1) for e in (self.infinite_eigenvalue, self.infinite_eigenvalue / diagonal)
        )
        return {
            "SN-T4.2": over_runs(n, np.mean, share_converged_softmax=reached),
            "SN-T4.2-monotone": over_runs(n, np.mean, share_monotone_softmax=self.monotone[..., 0]),
            "SN-C4.3": over_runs(n, np.mean, share_converged_softmax_one_output=reached[:, 0]),
            "SN-TAB1-lambda": over_seeds(
                median_max_over_min_eigenvalue=raw, median_max_over_min_eigenvalue_over_diagonal=scaled
            ),
        }

    def _lemma(self) -> dict[str, Measurement]:
        s, n = self.settings, len(self.settings.seeds)
        wide = self._from(s.short_steps_from)
        slack = (self.movement_bound / np.maximum(self.largest_movement, ROUNDING))[..., 0]
        exponents = np.where(self.exponent_ratio > 0, self.exponent_ratio, np.inf)
        return {
            "SN-5.3L": over_runs(n, np.max, max_ratio_to_bound_all_networks=self.bound_ratio),
            "SN-5.3L-slack": over_runs(n, np.min, min_exponent_ratio_all_networks=exponents),
            "SN-5.3W": over_runs(n, np.min, min_bound_over_movement_softmax=slack),
            "SN-5.3W-size": over_runs(n, np.min, min_bound_over_movement_softmax=slack),
            "SN-5.3G": over_runs(n, np.max, max_step_length_softmax=self.longest_step[:, :, wide, 0]),
        }

    def _steps(self) -> dict[str, Measurement]:
        flat = self.steps[:, 0, self._from(self.settings.flat_from)]
        smallest = self.steps[:, 0, 0]
        found = {}
        for j, name in enumerate(ACTIVATIONS):
            each = flat[:, :, j].max(axis=1) / flat[:, :, j].min(axis=1)
            means = flat[:, :, j].mean(axis=0)
            found[f"SN-TM-{name}"] = _ratio(f"max_over_min_of_mean_steps_{name}", means.max() / means.min(), each)
        found["SN-TM-small"] = Measurement(
            {f"mean_steps_{name}": float(smallest[:, j].mean()) for j, name in enumerate(ACTIVATIONS)},
            {
                f"mean_steps_{name}": (float(c.min()), float(c.max()))
                for name, c in zip(ACTIVATIONS, smallest.T, strict=True)
            },
            len(smallest),
        )
        widest = flat[:, -1]
        medians = np.median(widest, axis=0)
        each = widest.max(axis=1) / widest.min(axis=1)
        return found | {"SN-TAB1": _ratio("max_over_min_of_median_steps", medians.max() / medians.min(), each)}

    def _slopes(self) -> dict[str, Measurement]:
        part = self._from(self.settings.lazy_from)
        widths = self.settings.widths[part]

        def of(values: np.ndarray, *names: Activation) -> Measurement:
            return slopes(widths, **{name: values[:, 0, part, ACTIVATIONS.index(name)] for name in names})

        return {
            "SN-LAZY": of(self.rms_movement, *ACTIVATIONS),
            "SN-LAZY-max": of(self.largest_movement, "softmax", "exp"),
            "SN-DH": of(self.drift, "softmax", "exp"),
            "SN-DH-relu": of(self.drift, "relu"),
        }


def _ratio(name: str, value: float, each: np.ndarray) -> Measurement:
    return Measurement({name: float(value)}, {name: (float(each.min()), float(each.max()))}, len(each))


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> LazyTraining:
    """Train networks of all widths, activations and numbers of outputs.

    Args:
        settings: Sizes and seeds.
        device: Where to train; default the first of cuda, mps and cpu.
        progress: Told (groups of networks done, groups in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), place(device)

    def part(seeds: tuple[int, ...], inner: Progress | None) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            return _sweep(settings, seeds, where, inner) | _curves(settings, seeds, where)

    parts = by_seeds(settings, part, clock=clock, workdir=workdir, progress=progress)
    arrays = concatenate(parts)
    return LazyTraining(settings=settings, provenance=clock.provenance(where), **arrays)


def _sweep(
    s: Settings, seeds: tuple[int, ...], device: torch.device, progress: Progress | None
) -> dict[str, np.ndarray]:
    small = [(s.outputs[0], m, a) for m in s.small_widths for a in ACTIVATIONS]
    groups = [(d, m, a) for d in s.outputs for m in s.widths for a in ACTIVATIONS]
    found = []
    for done, (n_outputs, width, activation) in enumerate(small + groups, 1):
        problem = s.problem(activation, width, n_outputs)
        trained = train(problem, seeds, device=device, max_steps=s.max_steps, target=s.target)
        found.append(_statistics(trained, n_outputs))
        if progress:
            progress(done, len(small + groups))
    shape = (len(seeds), len(s.outputs), len(s.widths), len(ACTIVATIONS))
    kept = {name: np.stack([f[name] for f in found[len(small) :]], axis=1).reshape(shape) for name in KEPT}
    reached = np.stack([f["reached"] for f in found[: len(small)]], axis=1)
    return kept | {"small_reached": reached.reshape(len(seeds), -1, len(ACTIVATIONS))}


def _statistics(run: Run, n_outputs: int) -> dict[str, np.ndarray]:
    descent, movement, width = run.descent, run.movement(), run.start.width
    n_samples, smallest = run.inputs.shape[1], run.eigenvalues[:, 0]
    found = {name: np.zeros(len(smallest)) for name in ("monotone", "bound_ratio", "exponent_ratio", "movement_bound")}
    exponents = torch.bmm(run.inputs, run.start.first_layer).abs().amax((1, 2)).cpu().double().numpy()
    for k, (eigenvalue, eta) in enumerate(zip(smallest, run.step_size.tolist(), strict=True)):
        steps = descent.steps[k]
        loss = np.nan_to_num(descent.loss[: steps + 1, k] / descent.loss[0, k], nan=BLOWN_UP, posinf=BLOWN_UP)
        singular = eigenvalue < SINGULAR * run.eigenvalues[k, -1]
        eigenvalue = SINGULAR * run.eigenvalues[k, -1] if singular else eigenvalue
        envelope = loss_envelope(np.arange(steps + 1.0), smallest_eigenvalue=eigenvalue, step_size=eta, width=width)
        half = steps // 2
        found["monotone"][k] = (np.diff(loss) <= 0).all()
        found["bound_ratio"][k] = (loss / envelope)[1:].max()
        if not singular:
            found["exponent_ratio"][k] = np.log(loss[-1] / loss[half]) / np.log(envelope[-1] / envelope[half])
        found["movement_bound"][k] = movement_bound(
            eigenvalue, n_samples=n_samples, n_outputs=n_outputs, width=width,
            exponent=max(exponents[k], 1.0), residual=float(np.sqrt(2 * descent.loss[0, k])),
        )  # fmt: skip
    return found | {
        "steps": descent.steps.astype(float),
        "reached": descent.reached.astype(float),
        "rms_movement": np.sqrt((movement**2).mean(axis=1)),
        "largest_movement": movement.max(axis=1),
        "longest_step": descent.longest_step,
        "drift": run.drift(),
        "smallest_eigenvalue": smallest,
        "largest_eigenvalue": run.eigenvalues[:, -1],
        "largest_diagonal": run.kernel.diagonal(dim1=1, dim2=2).amax(1).cpu().double().numpy(),
        "heaviest_pair": _heaviest_pair(run),
    }


def _heaviest_pair(run: Run) -> np.ndarray:
    squares = neuron_derivatives(run.start, run.inputs).square().unflatten(2, (-1, 2)).sum(3)
    shares = squares / squares.sum(2, keepdim=True).clamp(min=ROUNDING)
    return shares.amax((1, 2)).cpu().double().numpy()


def _curves(s: Settings, seeds: tuple[int, ...], device: torch.device) -> dict[str, np.ndarray]:
    curves, kernel_curves, envelopes, infinite = [], [], [], []
    times = range(s.curve_steps + 1)
    for activation in ACTIVATIONS:
        run = train(s.problem(activation, s.curve_width, s.outputs[0]), seeds, device=device, max_steps=s.curve_steps)
        labels = run.labels.flatten(1)
        linear = kernel_gradient_flow(run.kernel, labels, run.step_size * s.curve_width, times) - labels
        missing = len(times) - len(run.descent.loss)  # after divergence of all
        curves.append(np.pad(run.descent.loss / run.descent.loss[0], ((0, missing), (0, 0)), mode="edge").T)
        kernel_curves.append((linear.square().sum(2) / labels.square().sum(1)).T.cpu().double().numpy())
        rates = run.eigenvalues[:, 0] / run.eigenvalues[:, -1]
        envelopes.append((1 - rates[:, None] / 2) ** np.array(times))
        inputs = [draw_sample(s.n_samples, s.n_inputs, s.outputs[0], seed=seed).inputs for seed in seeds]
        infinite.append([np.linalg.eigvalsh(infinite_width_kernel(activation, x))[0] for x in inputs])
    return {
        "curve": np.stack(curves, axis=1),
        "kernel_curve": np.stack(kernel_curves, axis=1),
        "envelope": np.stack(envelopes, axis=1),
        "infinite_eigenvalue": np.array(infinite).T,
    }
