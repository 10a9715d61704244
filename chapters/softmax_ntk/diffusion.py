"""Diffusion: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Seeds, device, experiment, highest, listening, lowest, slope, sweep
from attnbook.show import INK, Look, Table, band, log_axis, own_lines, spread, style
from attnbook.show import OWN as YOURS
from attnbook.softmax_ntk import denoisers
from attnbook.softmax_ntk.denoisers import Machine, Task, draw_copies
from attnbook.softmax_ntk.mixtures import Mixture
from attnbook.softmax_ntk.reverse_sde import reverse_times, snapshots
from attnbook.softmax_ntk.score_matching import Schedule, StoppingRule

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

SCHEDULE = Schedule()
LINE = Task(Mixture(((-0.6,), (0.6,)), 0.15), radius=2.5)
PLANE = Task(Mixture(((0.0, 0.6), (-0.52, -0.3), (0.52, -0.3)), 0.12), radius=3.2)
TASKS = {"line": LINE, "plane": PLANE}
WEIGHTINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "theorem": np.ones_like,  # the score error weighted by beta^2 / alpha^2, which is plain regression
    "signal_to_noise": lambda t: SCHEDULE.signal(t) ** 2 / SCHEDULE.noise(t),  # the score error weighted by beta
}  # weight of a label at time t in the regression
SAMPLERS = ["stopped", "weighted", "line"]  # denoisers that samples are drawn with
CHECKPOINTS = [1, 5, 20, 50, 100, 200, 300, 400, 500]  # steps at which network and kernel machine are compared
FRAMES = [1.5, 0.7, 0.4, 0.2, 0.1, 0.05]  # times at which particles are kept on their way back
GRID = np.linspace(-2.5, 2.5, 251)  # where denoisers on the line are tabulated
EARLY, FEW, MANY = 0.2, 400, 1600  # times below are small; labels with which the network is behind the line, and ahead
FEW_DRAWS = {"draws": 500, "inputs": 100, "particles": 50, "seeds": (0, 1)}  # for tests


@experiment(
    "softmax_ntk.fresh_noise",
    group=1,
    budget=45,
    smoke={"points": 23, "copies": (1, 5), "steps": 20, "width": 32, "test": 31, "particles": 40, "seeds": (0, 1)},
)
def fresh_noise(
    seeds: Seeds = (0, 1, 2, 3, 4),
    copies: Counts = (1, 8, 1000),  # noisy copies of each clean point; as many as steps: always fresh noise
    points: PositiveInt = 400,  # clean points for training; half as many more are held out
    width: PositiveInt = 512,  # neurons
    scale: PositiveFloat = 6.0,  # standard deviation of initial weights
    step_size: PositiveFloat = 0.002,  # of Adam, falling linearly to zero
    steps: PositiveInt = 1000,
    test: PositiveInt = 2000,  # fresh points on which errors are measured
    particles: PositiveInt = 1000,  # of the backward process; at most 300 of them are kept
) -> xr.Dataset:
    """The network in the plane, trained by Adam on noisy copies of the same points, and samples that it draws."""

    def one(seed: int) -> xr.Dataset:
        start = PLANE.start(width, scale, seed, device(), torch.float32)
        clean, held = draw_copies(PLANE, seed, points, 1)[0].clean, draw_copies(PLANE, seed, points, 8)[1]
        at = PLANE.draw(test, stream(seed, "test"))
        truth, networks = PLANE.truth(at), {}

        def errors(many: float) -> dict[str, Any]:
            networks[many], history = denoisers.train_on_copies(
                PLANE, start, clean, copies=int(many), steps=steps, step_size=step_size, seed=seed,
                errors={"error": (at, truth), "held_out_loss": (held, held.clean.T)},
            )  # fmt: skip
            return {name: xr.DataArray(x[:, 0], {"step": history.steps}) for name, x in history.records.items()}

        def path(name: str) -> xr.Dataset:
            options: dict[str, Any] = {"dimension": 2, "schedule": SCHEDULE, "rng": stream(seed, "particles")}
            seen = snapshots(PLANE.at_time(answers[name]), FRAMES, particles, **options)
            near = [PLANE.mixture.share_near(time, points) for time, points in zip(FRAMES, seen, strict=True)]
            kept = {"near": ("time", near), "points": (("time", "particle", "axis"), seen[:, :300])}
            return xr.Dataset(kept, {"time": FRAMES})

        curves = sweep(errors, copies=copies)
        stopped = curves.error.isel(step=curves.held_out_loss.argmin("step")).drop_vars("step")
        network = partial(PLANE.answers, networks[copies[-1]])
        answers = {"true score": PLANE.truth, "softmax network": network, "best line": PLANE.line}
        curves = curves.assign(stopped_error=stopped, line_error=((PLANE.line(at) - truth) ** 2).sum(0).mean())
        with listening(lambda share: None):  # a moment beside the training
            return curves.merge(sweep(path, sampler=list(answers)))

    return sweep(one, seed=seeds)


@fresh_noise.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    over, near = data.stopped_error / data.line_error, data.near.isel(time=-1)
    once, middle, fresh = (over.isel(copies=i) for i in (0, len(data.copies) // 2, -1))
    shares = {f"near_{str(name).split()[-1]}": near.sel(sampler=name) for name in data.sampler.values}
    return {
        "SN-6.FRESH": {
            "once_over_line": once, "middle_over_line": middle, "fresh_over_line": fresh,
            "share_once_below": (once < 1).mean("seed"), "share_fresh_below": (fresh < 1).mean("seed"),
        },
        "SN-6.DRAW": {**shares, "lowest_gain": lowest(shares["near_network"] - shares["near_line"])},
    }  # fmt: skip


@experiment(
    "softmax_ntk.noisy_copies",
    group=1,
    needs="float64",
    smoke={"points": 11, "copies": (1, 3), "width": 32, "test": 31, "seeds": (0, 1)},
)
def noisy_copies(
    seeds: Seeds = (10, 11, 12, 13, 14),
    copies: Counts = (1, 2, 4, 8),  # noisy copies of each clean point
    points: PositiveInt = 400,  # clean points for training; half as many more are held out, with as many copies
    width: PositiveInt = 1024,  # neurons
    scale: PositiveFloat = 3.0,  # standard deviation of initial weights
    test: PositiveInt = 2000,  # fresh points on which errors are measured
) -> xr.Dataset:
    """Gradient descent on the line, in closed form: the same clean points with more and more noisy copies."""
    rule = StoppingRule(last=10_000)

    def one(seed: int, many: float) -> dict[str, Any]:
        start, at = LINE.start(width, scale, seed, device()), LINE.draw(test, stream(seed, "test"))
        drawn, held = draw_copies(LINE, seed, points, int(many))
        machine, truth = Machine(LINE, start, drawn), LINE.truth(at)
        coefficients = machine.after(rule.recorded, machine.labels, rank=256)
        error = ((machine.predict(coefficients, at) - truth) ** 2).mean((1, 2))
        stop = rule.stop(machine.held_out_losses(coefficients, held, held.clean.T))
        stopped, line = error[rule.recorded.index(stop)], ((LINE.line(at) - truth) ** 2).mean()
        return {"stopped": stop, "stopped_error": stopped, "best_error": error.min(), "line_error": line}

    return sweep(one, seed=seeds, copies=copies)


@noisy_copies.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    over = data.stopped_error / data.line_error
    once, most = over.isel(copies=0), over.isel(copies=-1)
    shares = {"share_once_below": (once < 1).mean("seed"), "share_most_below": (most < 1).mean("seed")}
    return {"SN-6.COPIES": {"once_over_line": once, "most_over_line": most, **shares}}


@experiment("softmax_ntk.forward_and_back", group=1, budget=15, needs="cpu", smoke=FEW_DRAWS)
def forward_and_back(
    seeds: Seeds = (0, 1, 2),
    draws: PositiveInt = 200_000,  # for the gap between the two losses
    inputs: PositiveInt = 50_000,  # whose norms are looked at
    particles: PositiveInt = 2000,  # of the backward process
) -> xr.Dataset:
    """Section 6.1 and Assumptions 6.1, 6.3, 6.4: what can be known of this data before anything is learned."""
    models = (lambda x, t: 0 * x, lambda x, t: 0.5 * np.tanh(3 * x), lambda x, t: np.sin(2 * x) + t)

    def one(seed: int) -> dict[str, Any]:
        found = denoisers.sample_quality(LINE, LINE.at_time(LINE.truth), particles, stream(seed, "particles"))
        noisy, drawn = LINE.draw(inputs, stream(seed, "inputs")), LINE.draw(draws, stream(seed, "loss gap"))
        mapped, truth = LINE.inputs(noisy, torch.zeros(1, device="cpu", dtype=torch.float64)), LINE.truth(noisy)
        return {
            "loss_gap": ("model", [denoisers.loss_gap(LINE, drawn, model(drawn.points.T, drawn.times)) for model in models]),
            "label_noise": ((noisy.clean.T - truth) ** 2).mean(), "signal": (truth**2).mean(),
            "input_norm": float(mapped.norm(dim=2).max()), "clipped": np.mean(np.abs(noisy.points) > LINE.radius),
            "lipschitz": LINE.largest_slope(GRID), **found,
        }  # fmt: skip

    return sweep(one, seed=seeds)


@forward_and_back.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    apart = data.loss_gap.max("model") - data.loss_gap.min("model")
    clipped = {"input_norm": highest(data.input_norm), "share_clipped": highest(data.clipped)}
    return {
        "SN-6.DSM": {"gap_spread": apart, "mean_gap": data.loss_gap.mean("model"), "label_noise": data.label_noise},
        "SN-6.NOISE": {"label_noise": data.label_noise, "signal": data.signal},
        "SN-6.SDE": {"wasserstein_distance": highest(data.wasserstein), "gap_fraction": highest(data.gap)},
        "SN-A6.1": {**clipped, "lipschitz": data.lipschitz},
    }


SMALL = {"width": 32, "test": 101, "seeds": (0, 1)}  # for tests
FULL = {"samples": 1600, "held_out": 800, "width": 4096, "test": 10_000, "class_points": 4800, "particles": 10_000}


@experiment(
    "softmax_ntk.score_learning",
    group=1,
    budget=40,
    needs="float64",
    smoke={**SMALL, "samples": 23, "held_out": 11, "class_points": 69, "last": 10_000, "budget": 20, "particles": 50},
    full=FULL,
)
def score_learning(
    seeds: Seeds = tuple(range(10)),
    samples: PositiveInt = 400,  # training points with noisy labels
    held_out: PositiveInt = 200,  # further ones, which only the stopping rule sees
    width: PositiveInt = 1024,  # neurons
    scale: PositiveFloat = 3.0,  # standard deviation of initial weights; large, since it is the kernel's bandwidth
    budget: PositiveInt = 10_000,  # steps at which it gives up in any case
    last: PositiveInt = 10_000_000,  # steps of the kernel machine
    test: PositiveInt = 2000,  # fresh points on which errors are measured
    class_points: PositiveInt = 1200,  # fresh points whose true labels define the function of the class
    particles: PositiveInt = 2000,  # of the backward process
) -> xr.Dataset:
    """Theorem 6.6 and Claim G.1: a network on noisy labels, stopped by held-out ones, and its kernel machine."""
    rule = StoppingRule(last, budget)

    def one(seed: int) -> xr.Dataset:
        machines, tests = {}, {}

        def curves(name: str, weighting: str) -> dict[str, Any]:
            task, counts = TASKS[name], {"train": samples, "held out": held_out, "test": test}
            drawn, held, at = (task.draw(count, stream(seed, part)) for part, count in counts.items())
            machine = Machine(task, task.start(width, scale, seed, device()), drawn, WEIGHTINGS[weighting])
            machines[name, weighting], tests[name] = machine, at
            return denoisers.learning_curves(machine, held, at, rule, early=EARLY)

        found = sweep(curves, task=TASKS, weighting=WEIGHTINGS)
        first, second = (int(stop) for stop in found.stopped.sel(task="line"))
        plain, weighted = (machines["line", weighting] for weighting in WEIGHTINGS)
        times = reverse_times(150, schedule=SCHEDULE)[:-1]
        tables = [machine.table(stop, GRID, times) for machine, stop in ((plain, first), (weighted, second))]
        line = LINE.at_time(LINE.line)
        drawn = [denoisers.sample_quality(LINE, one, particles, stream(seed, "samples")) for one in (*tables, line)]
        fresh = LINE.draw(class_points, stream(seed, "function of the class"))
        member = denoisers.function_of_class(LINE, plain.start, fresh)
        quality = {name: xr.DataArray([one[name] for one in drawn], {"sampler": SAMPLERS}) for name in drawn[0]}
        checked = denoisers.beside_network(plain, tests["line"], CHECKPOINTS, first, member)
        return found.assign(checked | quality)

    return sweep(one, seed=seeds)


@score_learning.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    plain, weighted = (data.sel(task="line", weighting=weighting) for weighting in WEIGHTINGS)
    plane, terms, error = data.sel(task="plane", weighting="theorem"), data.terms, data.stopped_error
    rise, rise_plane = (one.error.isel(step=-1) / one.error.min("step") for one in (plain, plane))
    distance = {str(name): data.wasserstein.sel(sampler=name) for name in data.sampler.values}
    return {
        "SN-6.FIT": {
            "relative_error": error / plain.signal, "relative_error_plane": at_stop(plane, "error") / plane.signal,
        },
        "SN-6.ES": {
            "share_rising": (rise > 1.5).mean("seed"), "late_over_best": rise,
            "share_fitting_noise": (plain.train_loss.isel(step=-1) < plain.train_noise).mean("seed"),
        },
        "SN-6.ES-step": {"stopped_over_best": error / plain.error.min("step"), "stopped_step": plain.stopped},
        "SN-6.ES-2d": {"late_over_best": rise, "late_over_best_plane": rise_plane},
        "SN-6.Z-order": {
            "highest_coupling": highest(data.coupling),
            "highest_label_mismatch": highest(terms.sel(term="label mismatch")),
            "lowest_share_early_stopping": lowest(terms.sel(term="early stopping") / terms.sum("term")),
        },
        "SN-6.FIT-line": {
            "share_below_line": (error < plain.line_error).mean("seed"),
            "share_below_line_plane": (at_stop(plane, "error") < plane.line_error).mean("seed"),
            "error_over_line": error / plain.line_error,
            "error_over_line_plane": at_stop(plane, "error") / plane.line_error,
            "line_by_labels_over_line": plain.line_by_labels_error / plain.line_error,
        },
        "SN-6.STOP": {
            "share_nearer_than_line": (distance["weighted"] < distance["line"]).mean("seed"),
            "share_nearer_than_stopped": (distance["weighted"] < distance["stopped"]).mean("seed"),
            "distance_over_line": distance["weighted"] / distance["line"],
            "small_error_over_line": at_stop(weighted, "small_error") / weighted.small_line_error,
            "error_over_line": at_stop(weighted, "error") / weighted.line_error,
        },
    }  # fmt: skip


def at_stop(data: xr.Dataset, name: str) -> xr.DataArray:
    """Return the values of a curve at the step at which training was stopped."""
    return data[name].sel(step=data.stopped)


@experiment(
    "softmax_ntk.score_sizes",
    group=1,
    budget=40,
    needs="float64",
    smoke={**SMALL, "sizes": (11, 23), "class_points": 31, "last": 1000},
    full={"sizes": (50, 100, 200, 400, 800, 1600, 3200), "width": 4096, "seeds": tuple(range(10, 20))},
)
def score_sizes(
    seeds: Seeds = tuple(range(10, 16)),
    sizes: Counts = (50, 100, 200, 400, 800, 1600),  # training points; half as many more are held out
    width: PositiveInt = 1024,  # neurons
    scale: PositiveFloat = 3.0,  # standard deviation of initial weights
    last: PositiveInt = 10_000_000,  # steps of the kernel machine
    test: PositiveInt = 2000,  # fresh points on which errors are measured
    class_points: PositiveInt = 1200,  # points whose true labels define the function of the class
) -> xr.Dataset:
    """Assumption 6.5 and the network against the line: more samples, stopped by held-out labels."""
    rule = StoppingRule(last)

    def one(seed: int) -> xr.Dataset:
        start, at = LINE.start(width, scale, seed, device()), LINE.draw(test, stream(seed, "test"))
        fresh, truth = LINE.draw(class_points, stream(seed, "function of the class")), LINE.truth(at)
        member = denoisers.function_of_class(LINE, start, fresh)

        def of_size(size: float) -> dict[str, float]:
            counts = {"train": int(size), "held out": int(size) // 2}
            drawn, held = (LINE.draw(count, stream(seed, part, int(size))) for part, count in counts.items())
            machine = Machine(LINE, start, drawn)

            def errors(kind: str, labels: np.ndarray, held_labels: np.ndarray, target: np.ndarray) -> dict[str, float]:
                coefficients = machine.after(rule.recorded, labels)
                error = ((machine.predict(coefficients, at) - target) ** 2).mean((1, 2))
                stop = rule.stop(machine.held_out_losses(coefficients, held, held_labels))
                stopped = error[rule.recorded.index(stop)]
                found = {"stopped": stop, "stopped_error": stopped, "best_error": error.min(), "end_error": error[-1]}
                return {f"{kind}{name}": value for name, value in found.items()}

            own, others = (denoisers.pseudo_labels(LINE, part, member) for part in (drawn, held))
            exact = errors("", drawn.clean.T, held.clean.T, truth)
            return {**exact, **errors("class_", own, others, member(at)), "smallest_eigenvalue": machine.smallest}

        return sweep(of_size, size=sizes).assign(line_error=((LINE.line(at) - truth) ** 2).mean())

    return sweep(one, seed=seeds)


@score_sizes.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    over, last = data.stopped_error / data.line_error, data.class_stopped_error.isel(size=-1)
    names = {"slope_class": "class_stopped_error", "slope": "stopped_error", "slope_end": "end_error"}
    slopes = {name: slope(data[of], "size") for name, of in names.items()}
    few, most = over.sel(size=slice(None, FEW)), over.sel(size=slice(None, MANY)).isel(size=-1)
    below = {"share_below_line_few": (few < 1).mean(), "share_below_line_most": (most < 1).mean()}
    return {
        "SN-A6.5": {**slopes, "last_over_first": last / data.class_stopped_error.isel(size=0)},
        "SN-6.N-line": {**below, "over_line_few": few.isel(size=-1), "over_line_most": most},
    }


BEST = Look("best straight line", "#c2410c", (0, (5, 1)), "")
NETWORK = Look("network, end of training", "#0b5cad", "-", "o")
STOPPED = Look("network, stopped by held-out pairs", "#5b5f66", ":", "s")
ALT = {
    "samples": "Samples: with the true score three separate clusters, with the softmax network three clusters with "
    "points between them, with the best line one round cloud.",
    "copies": "Error over that of the line by noisy copies: above ten with one, about one with eight, below one half "
    "with a thousand.",
    "yours": "Your samples, next to ours: three clusters with points between them.",
    "gelu": "With GELU the error is larger than with softmax at one copy, smaller with new noise.",
    "labels": "Error over that of the line by training pairs: it falls below one between 400 and 1600.",
}
COLORS = {"true score": INK, "softmax network": "#0b5cad", "best line": "#c2410c"}


def clouds(data: xr.Dataset, time: float, yours: Mapping[str, Any] | None = None) -> Figure:
    """Draw particles on their way back at one time, with each denoiser, and samples of the reader's own."""
    import matplotlib.pyplot as plt

    shares = data.near.sel(sampler="softmax network").isel(time=-1).values
    one = data.points.sel(time=time).isel(seed=int(np.argsort(shares)[len(shares) // 2]))  # the median seed
    shown = {str(name): one.sel(sampler=name).values for name in data.sampler.values}
    colors = dict(COLORS)
    for i, (name, points) in enumerate((yours or {}).items()):  # in the colours of own lines
        shown[f"yours: {name}"], colors[f"yours: {name}"] = np.asarray(points)[:300], YOURS[i % len(YOURS)]
    centres, reach = PLANE.mixture.modes(time)
    circle = reach * np.exp(1j * np.linspace(0, 2 * np.pi, 60))
    with style():
        figure, axes = plt.subplots(1, len(shown), figsize=(2.5 * len(shown), 2.75), sharey=True)
        for ax, (name, points) in zip(axes, shown.items(), strict=True):
            ax.plot(*points.T, ".", color=colors[name], markersize=3.5, alpha=0.7)
            for x, y in centres:
                ax.plot(x + circle.real, y + circle.imag, color="#6b7280", lw=0.9)
            ax.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), aspect="equal", title=name)
    return figure


def cloud_text(data: xr.Dataset, time: float) -> str:
    """Say which share of the particles is near a mode at one time."""
    near = data.near.sel(time=time).median("seed")
    shares = [f"{name} {100 * float(near.sel(sampler=name)):.0f} %" for name in data.sampler.values]
    return f"Time {time:g}, share of particles inside a circle, median of the seeds: {', '.join(shares)}."


def near_a_mode(data: xr.Dataset, yours: Mapping[str, Any]) -> Table:
    """Say which share of the samples is inside a circle, and of the reader's own."""
    near = data.near.isel(time=-1)
    rows = [[str(name), spread(near.sel(sampler=name), ".0%")] for name in near.sampler.values]
    for name, points in yours.items():
        share = PLANE.mixture.share_near(FRAMES[-1], np.asarray(points))
        rows.append([f"yours: {name}", spread(np.array([share]), ".0%")])
    return Table(["sampler", "inside a circle"], rows, "Five seeds: median [smallest, largest]; yours: one seed.")


def by_copies(data: xr.Dataset, yours: Mapping[str, Mapping[int, float]] | None = None) -> Figure:
    """Draw the network's error in the plane over that of the best line, by the number of noisy copies of each point."""
    errors = ((NETWORK, data.error.isel(step=-1)), (STOPPED, data.stopped_error))
    lines = [(look, data.copies.values, error / data.line_error) for look, error in errors]
    return _over_line(lines, "noisy copies of each clean point", yours or {})


def by_labels(sizes: xr.Dataset) -> Figure:
    """Draw the error in one dimension over that of the best line, by the number of training pairs."""
    line = (STOPPED, sizes["size"].values, sizes.stopped_error / sizes.line_error)
    return _over_line([line], "training pairs, each noised once", {})


def _over_line(lines: list[tuple[Look, Any, xr.DataArray]], label: str, yours: Mapping[str, Any]) -> Figure:
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.5))
        for look, x, over in lines:
            band(ax, x, over.values, look)
        own_lines(ax, yours)
        ax.axhline(1, **BEST.line_style())
        log_axis(ax, sorted({number for _, x, _ in lines for number in x.tolist()}), label)
        ax.set(yscale="log", ylabel="error / error of the line")
        ax.yaxis.set_major_formatter("{x:g}")
        figure.legend(loc="outside upper left", ncols=2, fontsize=9.5)
    return figure


def error_over_line(denoiser: Callable[..., Any], below: float = 1.5) -> float:
    """Return the error of a denoiser in the plane, at times below one, over that of the best line.

    The denoiser is (points, times) to clean points.
    """
    at = PLANE.draw(2000, stream(0, "check")).before(below)
    x, t = (torch.as_tensor(part, dtype=torch.float32) for part in (at.points, at.times[:, None]))
    answers = np.asarray(torch.as_tensor(denoiser(x, t)).detach(), dtype=float).T
    return float(((answers - PLANE.truth(at)) ** 2).mean() / ((PLANE.line(at) - PLANE.truth(at)) ** 2).mean())


def true_label(answer: Callable[..., Any]) -> str | None:
    """Check the true label of a one-dimensional mixture."""
    x, means, width, alpha = stream(1, "exercise", "SN-13").uniform(-2, 2, 7), np.array([-0.7, 0.2, 0.9]), 0.3, 0.8
    beta, offsets = 1 - alpha**2, x[:, None] - alpha * means

    def share(v: float) -> np.ndarray:
        weights = np.exp(-(offsets**2) / (2 * v))
        return weights / weights.sum(1, keepdims=True)

    def with_variance(v: float) -> np.ndarray:
        return (share(v) * (means + alpha * width**2 / v * offsets)).sum(1)

    v = alpha**2 * width**2 + beta
    centres, score = share(v) @ means, -(share(v) * offsets).sum(1) / v
    likely = {
        "only the means of the modes are averaged; in its mode the point keeps some of its offset": centres,
        "the variance of a noisy mode is alpha^2 s^2 + beta: its width is missing": with_variance(beta),
        "this is the score, not the denoised point": score,
        "this is x / alpha, which takes the noise for signal": x / alpha,
    }
    got = answer(x.copy(), alpha, means.copy(), width)
    return verdict(got, with_variance(v), likely, "one denoised point per point")


def reverse_step(answer: Callable[..., Any]) -> str | None:
    """Check one step of the backward process."""
    (y, score, noise), g, h = stream(1, "exercise", "SN-15").standard_normal((3, 5)), 3.0, 0.02  # rate and length
    kick, still = np.sqrt(g * h) * noise, y + g * h * (y / 2 + score)
    half, forward = y + g * h * (y + score) / 2, y + g * h * (score - y / 2)
    likely = {
        "the score enters with the whole rate g: half of it belongs to the equation without noise": half + kick,
        "the sign of y is that of the forward process; backward, particles move outwards": forward + kick,
        "the noise grows like the square root of the time step": still + g * h * noise,
        "the noise is missing": still,
        "the rate is missing under the square root": still + np.sqrt(h) * noise,
        "the score is missing": y + g * h * y / 2 + kick,
    }
    return verdict(answer(y.copy(), score.copy(), noise.copy(), g, h), still + kick, likely, "one particle per one")


CHECKS = {"SN-13": true_label, "SN-15": reverse_step}
