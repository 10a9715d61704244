"""Diffusion: experiments, what the claims read off them, pictures and exercises of the chapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Seeds, device, experiment, highest, listening, lowest, slope, sweep
from attnbook.show import INK, Look, Table, band, log_axis, own_lines, spread, style
from attnbook.show import OWN as YOURS
from attnbook.softmax_ntk.denoisers import Answers, Machine, Task, function_of_class, train_on_copies
from attnbook.softmax_ntk.reverse_sde import particles_back
from attnbook.softmax_ntk.score_matching import NoisySample, Schedule, StoppingRule

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Values: TypeAlias = dict[str, Any]
SCHEDULE = Schedule()
ONE = Task(((-0.6,), (0.6,)), 0.15)  # two modes in one dimension
PLANE = Task(((0.0, 0.6), (-0.52, -0.3), (0.52, -0.3)), 0.12, radius=3.2)  # three modes in the plane
TASKS = {"one dimension": ONE, "plane": PLANE}
TERMS = ["coupling", "label mismatch", "early stopping", "approximation"]  # of Claim G.1
FRAMES = [1.5, 0.7, 0.4, 0.2, 0.1, 0.05]  # times at which particles are kept on their way back
SMALL = {"width": 32, "test": 101, "seeds": (0, 1)}  # for tests
FEW, MANY = 400, 1600  # pairs with which the network is behind the line, and ahead


@experiment(
    "softmax_ntk.fresh_noise",
    group=1,
    budget=45,
    smoke={**SMALL, "points": 23, "copies": (1, 5), "steps": 20, "particles": 40},
)
def fresh_noise(
    seeds: Seeds = (0, 1, 2, 3, 4),
    copies: Counts = (1, 8, 1000),  # of each clean point; as many as steps: always fresh noise
    points: PositiveInt = 400,  # clean points for training; half as many more are held out
    width: PositiveInt = 512,  # neurons
    scale: PositiveFloat = 6.0,  # standard deviation of initial weights
    step_size: PositiveFloat = 0.002,  # of Adam, falling linearly to zero
    steps: PositiveInt = 1000,
    test: PositiveInt = 2000,  # fresh points on which errors are measured
    particles: PositiveInt = 1000,  # of the backward process; at most 300 of them are kept
) -> xr.Dataset:
    """The network in the plane, trained by Adam on noisy copies of the same points, and its samples."""

    def one(seed: int) -> xr.Dataset:
        start = PLANE.start(width, scale, seed, device=device(), dtype=torch.float32)
        clean = PLANE.draw(points, rng=stream(seed, "train"))
        others = np.repeat(PLANE.draw(-(-points // 2), rng=stream(seed, "held out")), 8, axis=0)
        held = SCHEDULE.noised(others, rng=stream(seed, "held out", 8))
        at = PLANE.noisy(test, stream(seed, "test"))
        truth, networks = PLANE.truth(at), {}
        options: Any = {"steps": steps, "step_size": step_size, "seed": seed}
        options["errors"] = {"error": (at, truth), "held_out_loss": (held, others.T)}

        def errors(many: float) -> Values:
            networks[many], history = train_on_copies(PLANE, start, clean, int(many), **options)
            records = history.records.items()
            return {name: xr.DataArray(x[:, 0], {"step": history.steps}) for name, x in records}

        def path(name: str) -> xr.Dataset:
            way = dict(back(PLANE, answers[name], particles, seed))
            seen = np.stack([way[min(way, key=lambda at: abs(at - time))] for time in FRAMES])
            near = [PLANE.share_near(*frame) for frame in zip(FRAMES, seen, strict=True)]
            kept = {"near": ("time", near), "points": (("time", "particle", "axis"), seen[:, :300])}
            return xr.Dataset(kept, {"time": FRAMES})

        curves = sweep(errors, copies=copies)
        stopped = curves.error.isel(step=curves.held_out_loss.argmin("step")).drop_vars("step")
        network = partial(PLANE.answers, networks[copies[-1]])
        answers = {"true score": PLANE.truth, "softmax network": network, "best line": PLANE.line}
        curves = curves.assign(stopped_error=stopped, line_error=mean_square(PLANE.line(at) - truth))
        with listening(lambda share: None):  # a moment beside the training
            return curves.merge(sweep(path, sampler=list(answers)))

    return sweep(one, seed=seeds)


def back(task: Task, answers: Answers, particles: int, seed: int) -> Iterator[tuple[float, np.ndarray]]:
    """Yield times and particles of the backward process, with the same noise for all answers."""
    rng = stream(seed, "particles")
    return particles_back(task.at_time(answers), particles, dimension=task.dimension, rng=rng, schedule=SCHEDULE)


@fresh_noise.measures
def _(data: xr.Dataset) -> Values:
    over, near = data.stopped_error / data.line_error, data.near.isel(time=-1)
    once, middle, fresh = (over.isel(copies=i) for i in (0, len(data.copies) // 2, -1))
    shares = {f"near_{name.split()[-1]}": near.sel(sampler=name) for name in near.sampler.values.tolist()}
    return {
        "SN-6.FRESH": {
            "once_over_line": once, "middle_over_line": middle, "fresh_over_line": fresh,
            "share_once_below": (once < 1).mean("seed"), "share_fresh_below": (fresh < 1).mean("seed"),
            **shares, "lowest_gain": lowest(shares["near_network"] - shares["near_line"]),
        },
    }  # fmt: skip


DRAWS = {"draws": 500, "inputs": 100, "particles": 50, "seeds": (0, 1)}  # for tests


@experiment("softmax_ntk.forward_and_back", group=1, budget=15, needs="cpu", smoke=DRAWS)
def forward_and_back(
    seeds: Seeds = (0, 1, 2),
    draws: PositiveInt = 200_000,  # for the gap between the two losses
    inputs: PositiveInt = 50_000,  # whose norms are looked at
    particles: PositiveInt = 2000,  # of the backward process
) -> xr.Dataset:
    """Section 6.1 and Assumptions 6.1, 6.3, 6.4 in one dimension, before anything is learned."""
    from scipy.stats import wasserstein_distance

    models = (lambda x, t: 0 * x, lambda x, t: 0.5 * np.tanh(3 * x), lambda x, t: np.sin(2 * x) + t)
    truth, x, h = ONE.at_time(ONE.truth), np.linspace(-2.5, 2.5, 251)[:, None], 1e-5
    times = np.linspace(SCHEDULE.first, SCHEDULE.last, 300)
    slopes = [np.abs(truth(t, x + h) - truth(t, x - h)).max() / (2 * h) for t in times]

    def one(seed: int) -> Values:
        *_, (_, made) = back(ONE, ONE.truth, particles, seed)
        noisy = ONE.noisy(inputs, stream(seed, "inputs"))
        drawn = ONE.noisy(draws, stream(seed, "loss gap"))
        mapped = ONE.inputs(noisy, torch.zeros(1, device="cpu", dtype=torch.float64))
        gaps = [loss_gap(drawn, model(drawn.points.T, drawn.times)) for model in models]
        return {
            "loss_gap": ("model", gaps),
            "label_noise": mean_square(noisy.clean.T - ONE.truth(noisy)),
            "input_norm": float(mapped.norm(dim=2).max()),
            "clipped": np.mean(np.abs(noisy.points) > ONE.radius),
            "gap": np.mean(np.abs(made) < 0.25),
            "wasserstein": wasserstein_distance(made[:, 0], ONE.quantiles(SCHEDULE.first, particles)),
            "lipschitz": max(slopes),
        }

    return sweep(one, seed=seeds)


@forward_and_back.measures
def _(data: xr.Dataset) -> Values:
    gap, worst = data.loss_gap, highest(data.wasserstein)
    apart = gap.max("model") - gap.min("model")
    clipped = {"input_norm": highest(data.input_norm), "share_clipped": highest(data.clipped)}
    return {
        "SN-6.DSM": {"gap_spread": apart, "mean_gap": gap.mean("model"), "label_noise": data.label_noise},
        "SN-6.SDE": {"wasserstein_distance": worst, "gap_fraction": highest(data.gap)},
        "SN-A6.1": {**clipped, "lipschitz": data.lipschitz},
    }


def mean_square(gaps: np.ndarray) -> float:
    """Return the mean square length of vectors (outputs, samples)."""
    return float((gaps**2).sum(0).mean())


def loss_gap(drawn: NoisySample, answers: np.ndarray) -> float:
    """Return the paper's loss (6) minus the paper's loss (5), with the weight beta^2 / alpha^2 of time."""
    t, denoised = drawn.times, (answers.T, drawn.clean, ONE.truth(drawn).T)
    weight = SCHEDULE.noise(t) / SCHEDULE.signal(t)
    score, noisy, exact = (weight * SCHEDULE.score(x, t, drawn.points).T for x in denoised)
    return mean_square(score - noisy) - mean_square(score - exact)


@experiment(
    "softmax_ntk.score_learning",
    group=1,
    budget=40,
    needs="float64",
    smoke={**SMALL, "samples": 23, "held_out": 11, "class_points": 69, "last": 10_000, "budget": 20},
    full={"samples": 1600, "held_out": 800, "width": 4096, "test": 10_000, "class_points": 4800},
)
def score_learning(
    seeds: Seeds = tuple(range(10)),
    samples: PositiveInt = 400,  # training points with noisy labels
    held_out: PositiveInt = 200,  # further ones, which only the stopping rule sees
    width: PositiveInt = 1024,  # neurons
    scale: PositiveFloat = 3.0,  # standard deviation of initial weights; the kernel's bandwidth
    budget: PositiveInt = 10_000,  # steps at which it gives up in any case
    last: PositiveInt = 10_000_000,  # steps of the kernel machine
    test: PositiveInt = 2000,  # fresh points on which errors are measured
    class_points: PositiveInt = 1200,  # whose true labels define the function of the class
) -> xr.Dataset:
    """Theorem 6.6 and Claim G.1: a network on noisy labels, stopped by held-out ones, and its machine."""
    rule = StoppingRule(last, budget)

    def one(seed: int) -> xr.Dataset:
        kept: dict[str, tuple[Machine, NoisySample]] = {}

        def curves(name: str) -> Values:
            task, counts = TASKS[name], {"train": samples, "held out": held_out, "test": test}
            drawn, held, at = (task.noisy(count, stream(seed, part)) for part, count in counts.items())
            machine = Machine(task, task.start(width, scale, seed, device=device()), drawn)
            kept[name], truth = (machine, at), task.truth(at)
            coefficients = machine.after(rule.recorded, machine.labels)
            error = machine.losses(coefficients, at, truth)
            loss = machine.losses(coefficients, drawn, machine.labels)
            return {
                "error": xr.DataArray(error, {"step": rule.recorded}),
                "train_loss": xr.DataArray(loss, {"step": rule.recorded}),
                "stopped": rule.stop(machine.losses(coefficients, held, held.clean.T)),
                "line_error": mean_square(task.line(at) - truth),
                "signal": mean_square(truth),
                "train_noise": mean_square(machine.labels - task.truth(drawn)),
            }

        found = sweep(curves, task=TASKS)
        machine, at = kept["one dimension"]
        fresh = ONE.noisy(class_points, stream(seed, "function of the class"))
        member = function_of_class(Machine(ONE, machine.start, fresh))
        steps = int(found.stopped.sel(task="one dimension"))
        network = ONE.answers(machine.network(steps), at)
        terms = xr.DataArray(four_terms(machine, at, network, member, steps), {"term": TERMS})
        return found.assign(terms=terms, stopped_error=mean_square(network - ONE.truth(at)))

    return sweep(one, seed=seeds)


@score_learning.measures
def _(data: xr.Dataset) -> Values:
    one, plane = (data.sel(task=task) for task in TASKS)
    rise = one.error.isel(step=-1) / one.error.min("step")
    fits = (one.train_loss.isel(step=-1) < one.train_noise).mean("seed")
    in_plane = plane.error.sel(step=plane.stopped) / plane.signal
    return {
        "SN-6.FIT": {"relative_error": data.stopped_error / one.signal, "relative_error_plane": in_plane},
        "SN-6.ES": {"share_rising": (rise > 1.5).mean("seed"), "late_over_best": rise, "share_fitting_noise": fits},
        "SN-6.Z": {"least_ratio": lowest(4 * data.terms.sum("term") / data.stopped_error)},
    }


def four_terms(machine: Machine, at: NoisySample, network: np.ndarray, member: Answers, steps: int) -> list[float]:
    """Return the terms of Claim G.1, mean squares along the way from a network to the truth."""
    labels = machine.labels, pseudo_labels(machine.task, machine.drawn, member)
    machines = (machine.predict(machine.after([steps], y), at)[0] for y in labels)
    way = network, *machines, member(at), machine.task.truth(at)
    return [mean_square(a - b) for a, b in pairwise(way)]


def pseudo_labels(task: Task, drawn: NoisySample, member: Answers) -> np.ndarray:
    """Return the labels of Claim G.1: the same noise, around a function of the kernel's class."""
    return member(drawn) + (drawn.clean.T - task.truth(drawn))


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
    class_points: PositiveInt = 1200,  # whose true labels define the function of the class
) -> xr.Dataset:
    """Assumption 6.5, and the network against the line in one dimension: more and more samples."""
    rule = StoppingRule(last)

    def one(seed: int) -> xr.Dataset:
        start = ONE.start(width, scale, seed, device=device())
        fresh = ONE.noisy(class_points, stream(seed, "function of the class"))
        at = ONE.noisy(test, stream(seed, "test"))
        member = function_of_class(Machine(ONE, start, fresh))
        truth, target = ONE.truth(at), member(at)

        def of_size(size: float) -> dict[str, float]:
            counts = {"train": int(size), "held out": int(size) // 2}
            drawn, held = (ONE.noisy(count, stream(seed, part, int(size))) for part, count in counts.items())
            machine = Machine(ONE, start, drawn)

            def stopped_error(labels: np.ndarray, held_labels: np.ndarray, right: np.ndarray) -> float:
                coefficients = machine.after(rule.recorded, labels)
                stop = rule.stop(machine.losses(coefficients, held, held_labels))
                return float(machine.losses(coefficients, at, right)[rule.recorded.index(stop)])

            exact = stopped_error(drawn.clean.T, held.clean.T, truth)
            own, others = (pseudo_labels(ONE, part, member) for part in (drawn, held))
            return {"stopped_error": exact, "class_stopped_error": stopped_error(own, others, target)}

        return sweep(of_size, size=sizes).assign(line_error=mean_square(ONE.line(at) - truth))

    return sweep(one, seed=seeds)


@score_sizes.measures
def _(data: xr.Dataset) -> Values:
    over, learned = data.stopped_error / data.line_error, data.class_stopped_error
    slopes = {"slope_class": slope(learned, "size"), "slope": slope(data.stopped_error, "size")}
    few, most = over.sel(size=slice(None, FEW)), over.sel(size=slice(None, MANY)).isel(size=-1)
    below = {"share_below_line_few": (few < 1).mean(), "share_below_line_most": (most < 1).mean()}
    return {
        "SN-A6.5": {**slopes, "last_over_first": learned.isel(size=-1) / learned.isel(size=0)},
        "SN-6.N-line": {**below, "over_line_few": few.isel(size=-1), "over_line_most": most},
    }


BEST = Look("best straight line", "#c2410c", (0, (5, 1)), "")
NETWORK = Look("network, end of training", "#0b5cad", "-", "o")
STOPPED = Look("network, stopped by held-out pairs", "#5b5f66", ":", "s")
LINEAR = Look("linear model of the network, stopped by held-out pairs", "#5b5f66", ":", "s")
ALT = {
    "samples": "Samples: with the true score three separate clusters, with the softmax network three clusters with "
    "points between them, with the best line one round cloud.",
    "copies": "Error over that of the line by noisy copies: above ten with one, about one with eight, below one half "
    "with a thousand.",
    "yours": "Your samples, next to ours: three clusters with points between them.",
    "gelu": "With GELU the error is larger than with softmax at one copy, smaller with new noise.",
    "labels": "Error over that of the line by training pairs: it falls below one between 800 and 1600.",
}
COLORS = {"true score": INK, "softmax network": "#0b5cad", "best line": "#c2410c"}


def clouds(data: xr.Dataset, time: float, yours: Values | None = None) -> Figure:
    """Draw particles on their way back at one time, with each denoiser, and samples of the reader's own."""
    import matplotlib.pyplot as plt

    shares = data.near.sel(sampler="softmax network").isel(time=-1).values
    one = data.points.sel(time=time).isel(seed=int(np.argsort(shares)[len(shares) // 2]))  # the median seed
    shown = {str(name): one.sel(sampler=name).values for name in data.sampler.values}
    colors = dict(COLORS)
    for i, (name, points) in enumerate((yours or {}).items()):  # in the colours of own lines
        shown[f"yours: {name}"], colors[f"yours: {name}"] = np.asarray(points)[:300], YOURS[i % len(YOURS)]
    centres, reach = PLANE.modes(time)
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


def near_a_mode(data: xr.Dataset, yours: Values) -> Table:
    """Say which share of the samples is inside a circle, and of the reader's own."""
    near = data.near.isel(time=-1)
    rows = [[str(name), spread(near.sel(sampler=name), ".0%")] for name in near.sampler.values]
    for name, points in yours.items():
        share = PLANE.share_near(FRAMES[-1], np.asarray(points))
        rows.append([f"yours: {name}", spread(np.array([share]), ".0%")])
    return Table(["sampler", "inside a circle"], rows, "Five seeds: median [smallest, largest]; yours: one more.")


def by_copies(data: xr.Dataset, yours: Mapping[str, Mapping[int, float]] | None = None) -> Figure:
    """Draw the network's error in the plane over that of the best line, by the number of noisy copies."""
    errors = ((NETWORK, data.error.isel(step=-1)), (STOPPED, data.stopped_error))
    lines = [(look, data.copies.values, error / data.line_error) for look, error in errors]
    return _over_line(lines, "noisy copies of each clean point", yours)


def by_labels(sizes: xr.Dataset) -> Figure:
    """Draw the error in one dimension over that of the best line, by the number of training pairs."""
    line = (LINEAR, sizes["size"].values, sizes.stopped_error / sizes.line_error)
    return _over_line([line], "training pairs, each noised once")


def _over_line(lines: list[tuple[Look, Any, xr.DataArray]], label: str, yours: Any = None) -> Figure:
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.5))
        for look, x, over in lines:
            band(ax, x, over.values, look)
        own_lines(ax, yours)
        ax.axhline(1, **BEST.line_style())
        log_axis(ax, sorted({number for _, x, _ in lines for number in x.tolist()}), label)
        ax.set(yscale="log", ylabel="error / error of the line")
        ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(ticker.NullLocator())
        figure.legend(loc="outside upper left", ncols=2, fontsize=9.5)
    return figure


def error_over_line(denoiser: Callable[..., Any], below: float = 1.5) -> float:
    """Return the error of a denoiser in the plane, at times below one, over that of the best line.

    The denoiser is (points, times) to clean points.
    """
    at = PLANE.noisy(2000, stream(0, "check"))
    x, t = (torch.as_tensor(part, dtype=torch.float32) for part in (at.points, at.times[:, None]))
    answers, truth = torch.as_tensor(denoiser(x, t)).detach().double().numpy().T, PLANE.truth(at)
    own, line = (mean_square((one - truth)[:, at.times <= below]) for one in (answers, PLANE.line(at)))
    return own / line


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
