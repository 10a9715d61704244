"""The experiments of the chapter: what holds before anything is learned, learning, more samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core.experiment import Arrays, Experiment, highest, lowest
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.core.settings import check_increasing
from attnbook.softmax_ntk.diffusion import tasks
from attnbook.softmax_ntk.diffusion.tasks import GRID, ON_A_LINE, SCHEDULE, TASKS, WEIGHTINGS, Machine
from attnbook.softmax_ntk.reverse_sde import reverse_times
from attnbook.softmax_ntk.score_matching import NoisySample, held_out_stop
from attnbook.softmax_ntk.sweeps import each

TERMS = ("coupling", "label mismatch", "early stopping", "approximation")
SAMPLERS = ("stopped", "longer", "weighted", "line")  # denoisers that samples are drawn with
SHOWN = (1.5, 1.0, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)  # times at which the network's answers are kept
EARLY = 0.2  # times below are small times
FEW = 400  # labels with which the network is still behind the best straight line
CHECKPOINTS = (1, 5, 20, 50, 100, 200, 300, 400, 500)  # steps at which network and kernel machine are compared


@dataclass(frozen=True, kw_only=True)
class ForwardAndBack(Experiment):
    """Section 6.1 and Assumptions 6.1, 6.3, 6.4: what can be known of this data before anything is learned."""

    id = "softmax_ntk.forward_and_back"
    summary = "Forward and backward process, the two losses of score matching, and what the assumptions ask of data"
    needs = "cpu"
    budget_seconds = 15
    smoke = {"draws": 500, "inputs": 100, "particles": 50, "sde_steps": 20, "seeds": (0, 1)}

    draws: int = 200_000  # for the gap between the two losses
    inputs: int = 50_000  # whose norms are looked at
    particles: int = 2000  # of the backward process
    sde_steps: int = 150  # of the backward process
    seeds: tuple[int, ...] = (0, 1, 2)
    chunk: int = 1

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Run forward and back, and compare the losses of three models."""
        return each(seeds, "seed", self._one, progress)

    def _one(self, seed: int) -> Arrays:
        samples = tasks.sample_quality([tasks.exact_denoiser], self.particles, self.sde_steps, seed, "particles")
        noisy = ON_A_LINE.draw(self.inputs, rng=stream(seed, "inputs"))
        mapped = ON_A_LINE.inputs(noisy.times, noisy.points, torch.zeros(1, device="cpu", dtype=torch.float64))
        return {
            "loss_gap": (("model",), self._loss_gap(seed)),
            "label_noise": ((), ((noisy.clean.T - ON_A_LINE.truth(noisy)) ** 2).mean()),
            "signal": ((), (ON_A_LINE.truth(noisy) ** 2).mean()),
            "input_norm": ((), float(mapped.norm(dim=2).max())),
            "clipped": ((), np.mean(np.abs(noisy.points) > ON_A_LINE.radius)),
            "wasserstein": ((), samples["wasserstein"][0]),
            "gap": ((), samples["gap"][0]),
            "lipschitz": ((), largest_slope()),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off errors, gaps between the losses, and what the assumptions ask."""
        spread = data.loss_gap.max("model") - data.loss_gap.min("model")
        return {
            "SN-6.DSM": {
                "gap_spread": spread, "mean_gap": data.loss_gap.mean("model"), "label_noise": data.label_noise,
                "signal": data.signal,
            },
            "SN-6.SDE": {"wasserstein_distance": highest(data.wasserstein), "gap_fraction": highest(data.gap)},
            "SN-A6.1": {
                "input_norm": highest(data.input_norm), "share_clipped": highest(data.clipped),
                "lipschitz": data.lipschitz,
            },
        }  # fmt: skip

    def _loss_gap(self, seed: int) -> np.ndarray:
        r"""Return (6) minus (5), both weighted by $\beta^2/\alpha^2$, for three denoisers as models."""
        drawn = ON_A_LINE.draw(self.draws, rng=stream(seed, "loss gap"))
        t, x = drawn.times, drawn.points
        weight = (SCHEDULE.noise(t) / SCHEDULE.signal(t)) ** 2
        targets, gaps = [SCHEDULE.score(denoised, t, x) for denoised in (drawn.clean, ON_A_LINE.truth(drawn).T)], []
        for model in (np.zeros_like(x), 0.5 * np.tanh(3 * x), np.sin(2 * x) + t[:, None]):
            answer = SCHEDULE.score(model, t, x)
            losses = [(weight * ((answer - target) ** 2)[:, 0]).mean() for target in targets]
            gaps.append(losses[0] - losses[1])
        return np.array(gaps)


@dataclass(frozen=True, kw_only=True)
class Stopped(Experiment):
    """Settings that the next two share: networks, their kernel machines, and the rule that stops both."""

    width: int = 1024  # neurons
    scale: float = 3.0  # standard deviation of initial weights; large, since it is the kernel's bandwidth
    patience: float = 4.0  # the rule gives up when so many times the steps of the best have brought nothing better
    budget: int = 10_000  # steps at which it gives up in any case
    last: int = 10_000_000  # steps of the kernel machine
    per_decade: int = 8  # recorded steps per factor of ten
    test: int = 2000  # fresh points on which errors are measured
    ridge: float = 1e-4  # of the fit of true labels that defines the function of the class
    chunk: int = 1

    @property
    def recorded(self) -> list[int]:
        """Steps from 1 to the last, evenly spaced on a log axis."""
        count = round(self.per_decade * np.log10(self.last)) + 1
        return np.unique(np.round(np.geomspace(1, self.last, count)).astype(int)).tolist()

    def stop(self, losses: np.ndarray) -> int:
        """Return the step that held-out losses at the recorded steps choose within the budget."""
        within = [step for step in self.recorded if step <= self.budget]
        return within[held_out_stop(losses[: len(within)], within, patience=self.patience)]

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train the machines and networks of each seed."""
        return each(seeds, "seed", lambda seed: self._one(seed, device), progress)

    def _one(self, seed: int, device: torch.device) -> Arrays:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ScoreLearning(Stopped):
    """Theorem 6.6 and Claim G.1: a network on noisy labels, stopped by held-out ones, and its kernel machine."""

    id = "softmax_ntk.score_learning"
    summary = "Early stopping by held-out noisy labels, the four terms of the error, two weights of time"
    needs = "float64"
    budget_seconds = 40
    smoke = {
        "samples": 23, "held_out": 11, "width": 32, "last": 10_000, "per_decade": 2, "budget": 20, "test": 101,
        "particles": 50, "sde_steps": 20, "seeds": (0, 1),
    }  # fmt: skip
    full = {"samples": 1600, "held_out": 800, "width": 4096, "test": 10_000, "particles": 10_000}

    samples: int = 400  # training points with noisy labels
    held_out: int = 200  # further ones, which only the stopping rule sees
    longer: int = 1000  # times more steps than the rule's: training far too long for the error
    class_factor: int = 3  # fresh points, in units of samples, whose true labels define the function of the class
    particles: int = 2000  # of the backward process
    sde_steps: int = 150  # of the backward process
    seeds: tuple[int, ...] = tuple(range(10))

    def coordinates(self) -> dict[str, Any]:
        """Name tasks, weightings, steps, terms, samplers and times."""
        return {
            "task": list(TASKS), "weighting": list(WEIGHTINGS), "step": self.recorded,
            "checkpoint": list(CHECKPOINTS), "term": list(TERMS), "sampler": list(SAMPLERS), "time": list(SHOWN),
        }  # fmt: skip

    def _one(self, seed: int, device: torch.device) -> Arrays:
        """Train machines on both mixtures with both weights, and the network on the line."""
        machines, curves, tests = [], [], []
        for task in TASKS.values():
            start = task.start(self.width, self.scale, seed, device)
            sizes = {"train": self.samples, "held out": self.held_out, "test": self.test}
            drawn, held, test = (task.draw(count, rng=stream(seed, name)) for name, count in sizes.items())
            for weighting in WEIGHTINGS:
                machines.append(Machine(task, start, drawn, weighting))
                curves.append(self._curves(machines[-1], held, test))
            tests.append(test)
        arrays: Arrays = {}
        for name in curves[0]:
            stacked = np.reshape(
                [one[name] for one in curves], (len(TASKS), len(WEIGHTINGS), *np.shape(curves[0][name]))
            )
            arrays[name] = ("task", "weighting", "step")[: stacked.ndim], stacked
        stops = [int(stop) for stop in arrays["stopped"][1][0]]
        return arrays | self._network(seed, machines[0], tests[0], stops[0]) | self._samples(seed, machines[:2], stops)

    def _curves(self, machine: Machine, held: NoisySample, test: NoisySample) -> dict[str, Any]:
        """Return errors and losses of a kernel machine at all steps, where held-out labels stop it, and the lines'."""
        task, labels = machine.task, machine.labels
        coefficients, truth = machine.after(self.recorded, labels), task.truth(test)
        squares = ((machine.predict(coefficients, test) - truth) ** 2).sum(1)
        held_out = machine.held_out_losses(coefficients, held, held.clean.T)
        line, by_labels = (
            ((task.line(test, known) - truth) ** 2).sum(0) for known in (None, float(np.mean(labels**2)))
        )
        small = test.times < EARLY
        return {
            "error": squares.mean(1),
            "small_error": squares[:, small].mean(1),  # at small times only
            "train_loss": ((machine.predict(coefficients, machine.drawn) - labels) ** 2).sum(1).mean(1),
            "held_out_loss": held_out,
            "stopped": self.stop(held_out),
            "line_error": line.mean(),
            "small_line_error": line[small].mean(),
            "line_by_labels_error": by_labels.mean(),  # with the second moment of the labels in place of the data's
            "signal": (truth**2).sum(0).mean(),
            "train_noise": ((labels - task.truth(machine.drawn)) ** 2).sum(0).mean(),  # the loss of the true labels
        }

    def _network(self, seed: int, machine: Machine, test: NoisySample, stop: int) -> Arrays:
        """Train the network on the line, compare it with its machine, and split its error where it was stopped."""
        task, checkpoints = machine.task, sorted({*CHECKPOINTS, stop})
        networks = machine.network(checkpoints)
        answers = np.stack([task.answers(network, test)[0] for network in networks])
        along = machine.predict(machine.after(checkpoints, machine.labels), test)[:, 0]
        error, coupling = ((answers - other) ** 2 for other in (task.truth(test)[0], along))
        at, end = [checkpoints.index(c) for c in CHECKPOINTS], checkpoints.index(stop)
        fresh = task.draw(self.class_factor * self.samples, rng=stream(seed, "function of the class"))
        member = tasks.in_class(task, machine.start, fresh, self.ridge)
        table = tasks.network_table(task, networks[end], np.array(SHOWN))
        shown = np.array([table(t, GRID[:, None])[:, 0] for t in SHOWN])
        return {
            "network_error": (("checkpoint",), error.mean(1)[at]),
            "coupling": (("checkpoint",), coupling.mean(1)[at]),
            "stopped_error": ((), error.mean(1)[end]),
            "terms": (("term",), tasks.four_terms(machine, test, answers[end], member, stop)),
            "answers": (("time", "point"), shown[:, ::4]),
            "slope": (("time",), np.abs(np.diff(shown) / np.diff(GRID)).max(1)),  # largest of its answers on the grid
        }

    def _samples(self, seed: int, machines: list[Machine], stops: list[int]) -> Arrays:
        """Draw samples with the machines where they were stopped, with one that trains on, and with the line."""
        times = reverse_times(self.sde_steps, schedule=SCHEDULE)[:-1]
        (plain, weighted), (first, second) = machines, stops
        asked = ((plain, first), (plain, self.longer * first), (weighted, second))
        tables = [machine.table(machine.after([steps], machine.labels)[0], times) for machine, steps in asked]
        denoisers = [*tables, tasks.line_denoiser]
        found = tasks.sample_quality(denoisers, self.particles, self.sde_steps, seed, "samples")
        return {name: (("sampler", "bin")[: array.ndim], array) for name, array in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off errors, terms and samples at the step that held-out labels choose."""
        plain, weighted = (data.sel(task="line", weighting=weighting) for weighting in WEIGHTINGS)
        plane = data.sel(task="plane", weighting="theorem")
        rise, rise_plane = (one.error.isel(step=-1) / one.error.min("step") for one in (plain, plane))
        distance, between = (data[name].sel(sampler="weighted") for name in ("wasserstein", "gap"))
        early = data.terms.sel(term="early stopping") / data.terms.sum("term")
        return {
            "SN-6.FIT": {
                "relative_error": data.stopped_error / plain.signal,
                "relative_error_plane": at_stop(plane, "error") / plane.signal,
            },
            "SN-6.ES": {
                "share_rising": (rise > 1.5).mean("seed"), "late_over_best": rise, "late_over_best_plane": rise_plane,
                "share_fitting_noise": (plain.train_loss.isel(step=-1) < plain.train_noise).mean("seed"),
                "stopped_over_best": data.stopped_error / plain.error.min("step"), "stopped_step": plain.stopped,
            },
            "SN-6.Z": {
                "highest_coupling": highest(data.coupling),
                "highest_label_mismatch": highest(data.terms.sel(term="label mismatch")),
                "lowest_share_early_stopping": lowest(early),
            },
            "SN-6.FIT-line": {
                "share_below_line": (data.stopped_error < plain.line_error).mean("seed"),
                "share_below_line_plane": (at_stop(plane, "error") < plane.line_error).mean("seed"),
                "error_over_line": data.stopped_error / plain.line_error,
                "line_by_labels_over_line": plain.line_by_labels_error / plain.line_error,
                "distance_over_line": data.wasserstein.sel(sampler="stopped") / data.wasserstein.sel(sampler="line"),
            },
            "SN-6.STOP": {
                "share_nearer_than_line": (distance < data.wasserstein.sel(sampler="line")).mean("seed"),
                "share_nearer_than_stopped": (distance < data.wasserstein.sel(sampler="stopped")).mean("seed"),
                "distance_over_line": distance / data.wasserstein.sel(sampler="line"),
                "between_modes_over_line": between / data.gap.sel(sampler="line"),
                "small_error_over_line": at_stop(weighted, "small_error") / weighted.small_line_error,
                "error_over_line": at_stop(weighted, "error") / weighted.line_error,
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScoreSizes(Stopped):
    """Assumption 6.5 and the network against the line: more samples, stopped by held-out labels."""

    id = "softmax_ntk.score_sizes"
    summary = "Error at the held-out stop against the number of samples, beside the best linear denoiser"
    needs = "float64"
    budget_seconds = 40
    smoke = {
        "sizes": (11, 23), "class_points": 31, "width": 32, "last": 1000, "per_decade": 2, "test": 101, "seeds": (0, 1),
    }  # fmt: skip
    full = {"sizes": (50, 100, 200, 400, 800, 1600, 3200), "width": 4096, "seeds": tuple(range(10, 20))}

    sizes: tuple[int, ...] = (50, 100, 200, 400, 800, 1600)  # training points; half as many more are held out
    class_points: int = 1200  # points whose true labels define the function of the class
    seeds: tuple[int, ...] = tuple(range(10, 16))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "sizes", least=2)

    def coordinates(self) -> dict[str, Any]:
        """Name sizes."""
        return {"size": list(self.sizes)}

    def _one(self, seed: int, device: torch.device) -> Arrays:
        """Train machines on samples of several sizes, with noisy labels and with pseudo-labels of the class."""
        task, start = ON_A_LINE, ON_A_LINE.start(self.width, self.scale, seed, device)
        test, fresh = (
            task.draw(count, rng=stream(seed, name))
            for name, count in (("test", self.test), ("function of the class", self.class_points))
        )
        member = tasks.in_class(task, start, fresh, self.ridge)
        found = []
        for size in self.sizes:
            counts = {"train": size, "held out": size // 2}
            drawn, held = (task.draw(count, rng=stream(seed, name, size)) for name, count in counts.items())
            machine = Machine(task, start, drawn)
            error = self._errors(machine, (drawn.clean.T, held.clean.T, task.truth(test)), (held, test))
            pseudo = (tasks.pseudo_labels(task, drawn, member), tasks.pseudo_labels(task, held, member), member(test))
            in_class = {f"class_{name}": value for name, value in self._errors(machine, pseudo, (held, test)).items()}
            found.append({**error, **in_class, "smallest_eigenvalue": machine.smallest})
        line = ((task.line(test) - task.truth(test)) ** 2).mean()
        return {name: (("size",), [f[name] for f in found]) for name in found[0]} | {"line_error": ((), line)}

    def _errors(
        self, machine: Machine, labels: tuple[np.ndarray, ...], at: tuple[NoisySample, NoisySample]
    ) -> dict[str, float]:
        """Return errors against a target, at the best step, the last and that which held-out labels choose."""
        coefficients, steps = machine.after(self.recorded, labels[0]), self.recorded
        error = ((machine.predict(coefficients, at[1]) - labels[2]) ** 2).mean((1, 2))
        held_out = machine.held_out_losses(coefficients, at[0], labels[1])
        stop, best = self.stop(held_out), int(error.argmin())
        return {
            "best_error": error[best], "end_error": error[-1], "best_step": steps[best],
            "stopped_error": error[steps.index(stop)], "stopped": stop,
        }  # fmt: skip

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off slopes against the number of samples, and shares of seeds below the line."""
        first, last, over_line = self.sizes[0], self.sizes[-1], data.stopped_error / data.line_error
        slopes = {
            name: xr.DataArray(np.polyfit(np.log(self.sizes), np.log(data[name].values.T), 1)[0], {"seed": data.seed})
            for name in ("class_stopped_error", "stopped_error", "end_error")
        }
        return {
            "SN-A6.5": {
                "slope_class": slopes["class_stopped_error"], "slope": slopes["stopped_error"],
                "slope_end": slopes["end_error"],
                "last_over_first": data.class_stopped_error.sel(size=last) / data.class_stopped_error.sel(size=first),
            },
            "SN-6.N-line": {
                "share_below_line_few": (over_line.sel(size=slice(None, FEW)) < 1).mean(),
                "share_below_line_most": (over_line.sel(size=last) < 1).mean(),
                "over_line_most": over_line.sel(size=last),
            },
        }  # fmt: skip


def at_stop(data: xr.Dataset, name: str) -> xr.DataArray:
    """Return the values of a curve at the step at which training was stopped."""
    return data[name].sel(step=data.stopped)


def largest_slope() -> float:
    """Return the Lipschitz constant of the true labels in x on the line, over all times that are used."""
    grid, step = GRID[:, None], 1e-5
    return max(
        float(np.abs(np.subtract(*(tasks.exact_denoiser(t, grid + d) for d in (step, -step)))).max()) / (2 * step)
        for t in np.linspace(SCHEDULE.first, SCHEDULE.last, 300)
    )
