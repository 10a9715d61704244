"""Lazy training: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Seeds, device, experiment, highest, lowest, slope, sweep, track
from attnbook.show import INK, Look, curves, log_axis, own_lines, style
from attnbook.softmax_ntk.data import Sample
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation
from attnbook.softmax_ntk.lazy_bounds import required
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.one_step import loss_terms
from attnbook.softmax_ntk.training import Problem, Trained, starting_networks, train
from attnbook.softmax_ntk.two_layer import loss_and_gradient, predict

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Values: TypeAlias = dict[str, Any]
ZERO = 1e-24  # of the first loss: where training ends
WEAKEST = "softmax, slowest labels"  # along the weakest eigenvector of the kernel; all others are random
NETWORKS = {"softmax": "softmax", WEAKEST: "softmax", "exp": "exp", "relu": "relu"}
TERMS = ["denominator", "progress", "curvature", "square", "sum"]  # C0 to C3 of Lemma E.1
TINY = {"samples": 5, "inputs": 7, "seeds": (0, 1)}  # for tests
FIVE, FEW, LARGE = tuple(range(5)), {"sizes": (4, 8), "outputs": (1, 2)}, {"samples": 64, "inputs": 64}


@experiment(
    "softmax_ntk.to_zero_loss",
    needs="float64",
    smoke={**TINY, "widths": (4, 8, 16, 32), "sizes": (2, 4), "width": 16, "max_steps": 30},
    full={**LARGE, "widths": (2, 8, 64, 512, 4096, 16384), "sizes": (16, 32, 64, 128), "seeds": FIVE},
)
def to_zero_loss(
    seeds: Seeds = tuple(range(20)),
    widths: Counts = (2, 8, 64, 512, 4096),  # numbers of neurons, in pairs
    samples: PositiveInt = 16,  # on the unit sphere, with labels 1 and -1
    inputs: PositiveInt = 16,
    max_steps: PositiveInt = 1000,  # after which to give up
    sizes: Counts = (4, 8, 16, 32, 48),  # other numbers of samples, at one width
    width: PositiveInt = 1024,  # of these
) -> xr.Dataset:
    """Theorem 4.2 and Table 1: networks trained to 1e-24 of the first loss, beside their linear models."""
    how: Values = {"device": device(), "max_steps": max_steps, "target": ZERO}
    kept = sorted({*range(min(max_steps, 20)), *range(0, max_steps + 1, 10)})

    def by_width(network: str, m: float) -> Values:
        problem = Problem(NETWORKS[network], int(m), samples, inputs)
        run = train(problem, seeds, **how, samples=slowest(problem, seeds) if network == WEAKEST else None)
        losses, last = run.descent.loss / run.descent.loss[0], run.descent.steps
        missing = (0, max_steps + 1 - len(losses)), (0, 0)  # a network that has stopped has no loss any more
        mu, parts = spectrum(run.kernel.cpu().numpy(), run.labels.cpu().numpy())  # pairs start at zero
        rate = np.maximum(mu[:, 0] / mu[:, -1], 1e-12)  # where a kernel has no inverse
        late, early = (losses[step, range(len(seeds))] for step in (last // 2, last // 4))
        found = {
            "steps": last, "reached": run.descent.reached, "drift": run.drift(),
            "movement": (run.movement() ** 2).mean(1) ** 0.5, "over_linear": late / at_rest(mu, parts, last // 2),
            "over_envelope": np.nanmax((losses / envelope(rate, np.arange(len(losses))[:, None]))[1:], axis=0),
            "exponent": np.log(late / early) / np.log(envelope(rate, last // 2 - last // 4)),
            "eigenvalues": mu, "parts": parts,
        }  # fmt: skip
        return by_seed(found, "row") | {
            "loss": (("seed", "step"), np.pad(losses, missing, constant_values=np.nan)[kept].T)
        }

    def by_size(network: Activation, n: float) -> Values:
        run = train(Problem(network, width, int(n), inputs), seeds, **how)
        return {"size_steps": ("seed", run.descent.steps)}

    sweeps = (by_width, {"network": NETWORKS, "width": widths}), (by_size, {"activation": ACTIVATIONS, "size": sizes})
    found, others = (sweep(one, **axes) for one, axes in track(sweeps))
    return found.assign_coords(step=kept).merge(others)


@to_zero_loss.measures
def _(data: xr.Dataset) -> Values:
    both, wide = data.sel(network=["softmax", WEAKEST]), data.isel(width=slice(2, None))
    enough, last = both.isel(width=slice(1, None)), data.sel(network=ACTIVATIONS).isel(width=-1)
    steps, growth = last.steps.median("seed"), slope(data.size_steps.median("seed"), "size")
    moved, weakest = slope(wide.movement.median("seed"), "width"), both.exponent.isel(width=-1).sel(network=WEAKEST)
    return {
        "SN-T4.2": {
            "share_arrived": enough.reached.mean(), "share_arrived_narrowest": both.reached.isel(width=0).mean(),
            "gap_to_linear": highest(abs(both.over_linear.isel(width=-1) - 1)),
            "left_by_theorem": highest(of_theorem(data).left),
        },
        "SN-5.3L": {
            "largest_over_envelope": highest(enough.over_envelope),
            "least_exponent_ratio": lowest(weakest), "largest_exponent_ratio": highest(weakest),
        },
        "SN-5.3W": {f"slope_{name}": moved.sel(network=name) for name in ACTIVATIONS},
        "SN-TAB1": {
            "ratio": steps.max() / steps.min(), **{f"growth_{name}": growth.sel(activation=name) for name in ACTIVATIONS},
        },
    }  # fmt: skip


def slowest(problem: Problem, seeds: Seeds) -> list[Sample]:
    """Give the inputs of each network labels along the weakest eigenvector of its kernel, as long as all others."""
    networks, inputs, _ = starting_networks(problem, seeds, device=device())
    labels = problem.n_samples**0.5 * torch.linalg.eigh(ntk_gram(networks, inputs))[1][:, None, :, 0]
    return [Sample(*both) for both in zip(inputs.cpu().numpy(), labels.cpu().numpy(), strict=True)]


def by_seed(found: Values, second: str) -> Values:
    """Name the dimensions of arrays whose first one runs over the seeds."""
    return {name: (("seed", second)[: np.ndim(value)], value) for name, value in found.items()}


def spectrum(kernels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of kernels, and the square of the labels along each eigenvector."""
    mu, vectors = np.linalg.eigh(kernels)
    return mu, np.einsum("sij,si->sj", vectors, labels.reshape(mu.shape)) ** 2


def at_rest(mu: np.ndarray, parts: np.ndarray, steps: Any, length: float = 1.0) -> np.ndarray:
    """Return the loss over the first one for a kernel that stays at rest; length is the step size times m mu_max."""
    rates = np.minimum(length * mu / mu[..., -1:], 1 - 1e-16)  # at length one the fastest is learned at once
    left = parts * np.exp(2 * np.asarray(steps)[..., None] * np.log1p(-rates))
    return left.sum(-1) / parts.sum(-1)


def envelope(rate: Any, steps: Any) -> Any:
    """Return Lemma 5.3's bound on the loss over the first one; rate is the step size times m times lambda."""
    return (1 - rate / 2) ** steps


def of_theorem(data: xr.Dataset, error: float = 1e-3) -> xr.Dataset:
    """Ask Theorem 4.2 for width, step size and number of steps, and the widest kernel, at rest, what they leave."""
    widest = data.sel(network="softmax").isel(width=-1)

    def one(seed: int) -> Values:
        mu, parts = (of.sel(seed=seed).values for of in (widest.eigenvalues, widest.parts))
        width, step_size, steps = required(mu[0], len(mu), error=error * len(mu))
        length = step_size * mu[-1]
        return {"width": width, "length": length, "steps": steps, "left": at_rest(mu, parts, steps, length)}

    return sweep(one, seed=data.seed.values)


@experiment(
    "softmax_ntk.lemmas",
    group=10,
    needs="float64",
    smoke={**TINY, "widths": (16, 32), "steps": 3},
    full={**LARGE, "widths": (64, 256, 1024, 4096, 16384)},
)
def lemmas(
    seeds: Seeds = tuple(range(10)),
    widths: Counts = (64, 256, 1024, 4096),  # numbers of neurons
    length: PositiveFloat = 0.5,  # of a step, times m lambda_max
    short: PositiveFloat = 0.001,  # of a short step
    steps: PositiveInt = 20,  # that are taken apart
    samples: PositiveInt = 16,
    inputs: PositiveInt = 16,
    outputs: PositiveInt = 2,
) -> xr.Dataset:
    """Lemmas 5.3 (gradient), E.2 to E.4 and Claims E.6, E.7: what each of the first steps does to the squared error."""

    def one(by: float, width: float) -> Values:
        problem = Problem("softmax", int(width), samples, inputs, outputs)
        return account(train(problem, seeds, device=device(), max_steps=1, fraction=by), steps)

    return sweep(one, length=(short, length), width=widths).assign_coords(term=TERMS)


@lemmas.measures
def _(data: xr.Dataset) -> Values:
    short, usual = (data.isel(length=i) for i in (0, 1))
    worst = {name: highest(usual.terms.sel(term=name)) for name in TERMS}
    return {
        "SN-5.3G": {"longest_short": highest(short.longest), "longest_usual": highest(usual.longest)},
        "SN-E2": {"largest_sum": worst["sum"]},
        "SN-E3": {"largest": worst["denominator"]},
        "SN-E4": {"least_over_leading": lowest(usual.leading), "largest_in_the_unit": worst["progress"]},
        "SN-E6": {"largest": worst["curvature"]},
        "SN-E7": {"largest_short": highest(short.terms.sel(term="square")), "largest_usual": worst["square"]},
    }  # fmt: skip


def account(run: Trained, steps: int) -> Values:
    """Take steps apart: the largest value of each term in the unit of the proof, and of what else the lemmas bound."""
    now, x, y, eta, seen = run.start, run.inputs, run.labels, run.step_size, []
    unit = 2 * now.width * eta * torch.as_tensor(run.eigenvalues[:, 0], device=x.device)
    for _ in range(steps):
        loss, gradient = loss_and_gradient(now, x, y)
        after = replace(now, first_layer=now.first_layer - eta[:, None, None] * gradient)
        terms = loss_terms(now, after, x, y)
        c0, c1, c2, c3 = (terms / (unit * loss)[:, None]).T
        # With the Jacobian J the gradient is J'e, and mH is JJ'.
        leading, longest = terms[:, 1] / (2 * eta * gradient.square().sum((1, 2))), eta * gradient.norm(dim=1).amax(1)
        seen.append(torch.stack([c0.abs(), c1, c2.abs(), c3, c0 + c1 + c2 + c3, leading, longest], dim=1))
        now = after
    worst = torch.stack(seen).amax(0).cpu().numpy()
    return by_seed({"terms": worst[:, :5], "leading": -worst[:, 5], "longest": worst[:, 6]}, "term")


@experiment("softmax_ntk.wide_enough", needs="float64", smoke={**TINY, **FEW, "ladder": (4, 16), "target": 0.9})
def wide_enough(
    seeds: Seeds = FIVE,
    sizes: Counts = (8, 16, 32, 64),  # numbers of samples, with one output
    outputs: Counts = (1, 2, 4, 8),  # numbers of outputs
    samples: PositiveInt = 16,  # where the number of outputs is varied
    inputs: PositiveInt = 8,
    ladder: Counts = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192),  # widths to try, from below
    target: PositiveFloat = 0.01,  # of the first loss
    max_steps: PositiveInt = 3000,  # in which it must arrive
) -> xr.Dataset:
    """How wide is wide enough: the smallest number of neurons that trains, by samples and by outputs."""

    def smallest(n: int, d: int) -> tuple[str, np.ndarray]:
        found = np.full(len(seeds), np.inf)
        for m in ladder:
            if np.isinf(found).any():
                problem = Problem("softmax", m, n, inputs, d)
                run = train(problem, seeds, device=device(), max_steps=max_steps, target=target)
                found = np.minimum(found, np.where(run.descent.reached, m, np.inf))
        return "seed", found

    runs = {
        "size": lambda: sweep(lambda n: {"by_samples": smallest(n, 1)}, size=sizes),
        "output": lambda: sweep(lambda d: {"by_outputs": smallest(samples, d)}, output=outputs),
    }
    return xr.merge([runs[axis]() for axis in track(["size", "output"])])


@wide_enough.measures
def _(data: xr.Dataset) -> Values:
    fitted = data.attrs["settings"]["samples"] * data.output
    over = np.maximum((data.by_samples / data["size"] ** 2).max("size"), (data.by_outputs / fitted**2).max("output"))
    slopes = (slope(width.median("seed"), width.dims[0]) for width in (data.by_samples, data.by_outputs))
    found = dict(zip(("slope_samples", "slope_outputs"), slopes, strict=True))
    return {"SN-WIDTH": {**found, "largest_over_square": highest(over)}}


@experiment("softmax_ntk.curvature", group=1, needs="float64", smoke={"samples": 4, "widths": (4, 8), "seeds": (0, 1)})
def curvature(
    seeds: Seeds = FIVE,
    widths: Counts = (16, 32, 64, 128),  # numbers of neurons
    samples: PositiveInt = 8,  # with as many inputs
) -> xr.Dataset:
    """Is the loss convex at the paired start? Its Hessian, with a denominator and without."""

    def one(seed: int, network: Activation, width: float) -> dict[str, float]:
        run = train(Problem(network, int(width), samples, samples), (seed,), device=device(), max_steps=1)
        start = run.start

        def loss(weights: Tensor) -> Tensor:
            z = run.inputs[0] @ weights
            neurons = z.exp() if network == "exp" else start.width * z.softmax(1)
            return (neurons @ start.signs[0].T - run.labels[0].T).square().sum() / 2

        hessian = torch.autograd.functional.hessian(loss, start.first_layer[0], vectorize=True)
        mu = torch.linalg.eigvalsh(hessian.flatten(2).flatten(0, 1))
        first, gradient = loss_and_gradient(start, run.inputs, run.labels)
        needed = width * run.eigenvalues[0, 0] * first.item()
        negative = (mu < -1e-9 * mu[-1]).double().mean()
        return {"negative": negative, "lowest": mu[0] / mu[-1], "gradient": gradient.square().sum() / needed}

    return sweep(one, seed=seeds, network=("softmax", "exp"), width=widths)


@curvature.measures
def _(data: xr.Dataset) -> Values:
    softmax, exp = (data.sel(network=name) for name in ("softmax", "exp"))
    ratio = (exp.lowest / softmax.lowest).median("width")
    found = {"exp_over_softmax": ratio, "least_gradient": lowest(data.gradient)}
    return {"SN-CONVEX": {"least_share_negative": lowest(softmax.negative), **found}}


COLORS = ("#5b5f66", "#8a5a00", "#c2410c", "#7c3aed", "#15803d", "#0b5cad")  # by width, the widest last
ALT = {
    "zero": "Loss to 1e-24: straight lines on top of linear models for wide networks; 2 neurons stay near the top.",
    "slow": "The slowest labels: loss and linear model fall four times as steeply as the guarantee.",
    "alike": "Two inputs almost alike: both losses fall a little, then hardly at all.",
    "width": "Smallest width that trains: far below the theorem's square.",
}
CIRCLE, AROUND = np.array([0.5, 2.1, 3.5, 5.3]), np.linspace(0, 2 * np.pi, 200)  # angles: four inputs, and all


def to_zero(data: xr.Dataset, yours: Values | None = None, *, slowest: bool = False) -> Figure:
    """Draw the loss of a typical draw on its linear model: at every width, or the widest on its slowest labels."""
    import matplotlib.pyplot as plt

    steps, t = data.steps.sel(network="softmax"), np.arange(501)
    typical = int(abs(np.log(steps / steps.median("seed"))).sum("width").argmin("seed"))
    one_draw = data.isel(seed=typical, width=slice(-1 if slowest else 0, None))
    with style():
        figure, ax = plt.subplots(figsize=(7.4, 3.5))
        for color, m in zip(COLORS[-len(one_draw.width) :], one_draw.width.values, strict=True):
            one = one_draw.sel(width=m, network=WEAKEST if slowest else "softmax")
            ax.plot(one.step, one.loss, color=color, label=f"{m:g} neurons")
            ax.plot(t, at_rest(one.eigenvalues.values, one.parts.values, t), ":", color=INK, lw=1.2)
        ax.plot([], [], ":", color=INK, label="linear model")
        if slowest:
            rate = float(one.eigenvalues[0] / one.eigenvalues[-1])
            ax.plot(t, envelope(rate, t), "--", color=COLORS[0], label="guaranteed by the lemma")
        own_lines(ax, {name: dict([*enumerate(map(float, loss))][::10]) for name, loss in (yours or {}).items()})
        ax.set(yscale="log", xlim=(0, 500), ylim=(1e-25, 100), xlabel="steps", ylabel="loss / first loss")
        figure.legend(loc="outside upper left", ncols=4, fontsize=9.5)
    return figure


@cache
def planar(neurons: int) -> tuple[Trained, np.ndarray, np.ndarray]:
    """Train a network with two inputs on four points of the circle; return it, and both answers around the circle."""
    around = np.concatenate([CIRCLE, AROUND])
    points, labels = np.stack([np.cos(around), np.sin(around)], axis=1), np.array([[1.0, 1.0, -1.0, 1.0]])
    problem, drawn = Problem("softmax", neurons, 4, 2, scale=0.3), [Sample(points[:4], labels)]
    run = train(problem, [0], device="cpu", max_steps=2000, target=1e-12, samples=drawn)
    grid = torch.tensor(points)[None]
    linear = ntk_gram(run.start, grid, run.inputs)[0] @ torch.linalg.solve(run.kernel[0], run.labels[0, 0])
    return run, predict(run.descent.networks, grid)[0, 0].numpy(), linear.numpy()


def trails(neurons: int) -> Figure:
    """Draw how each neuron has moved in the plane, and network and linear model around the circle."""
    import matplotlib.pyplot as plt

    run, network, linear = planar(neurons)
    ends = torch.stack([run.start.first_layer[0], run.descent.networks.first_layer[0]], dim=1)
    size = min(7, 60 / neurons**0.5)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0))
        left.plot(*ends, color=COLORS[2])
        left.plot(*ends[:, 0], "o", color=COLORS[2], fillstyle="none", markersize=size)
        left.plot(*ends[:, 1], "o", color=COLORS[5], markersize=size / 2)
        left.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal", xlabel="first weight", ylabel="second weight")
        right.plot(AROUND, network[4:], color=COLORS[5], label="network, trained")
        right.plot(AROUND, linear[4:], "--", color=INK, label="linear model")
        right.plot(CIRCLE, run.labels[0, 0], "s", color=COLORS[2], label="labels")
        right.set(ylim=(-3.3, 2.9), xlabel="angle of the input", ylabel="output")
        right.legend(loc="lower left", fontsize=9)
    return figure


def trail_text(neurons: int) -> str:
    """Say how long a typical trail is, and how far network and linear model are apart."""
    run, network, linear = planar(neurons)
    trail = (run.movement() ** 2).mean() ** 0.5
    return f"{neurons} neurons: typical trail {trail:.2g}, largest gap {abs(network - linear).max():.1g}."


def enough(data: xr.Dataset) -> Figure:
    """Draw the smallest width that trains, with more samples and with more outputs, beside the theorem's square."""
    import matplotlib.pyplot as plt

    fitted = data.attrs["settings"]["samples"] * data.output
    outputs = data.by_outputs.assign_coords(output=fitted.values)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        curves(ax, data.by_samples, "size", label="more samples, one output")
        curves(ax, outputs, "output", known={"": Look("more outputs, 16 samples", "#c2410c", "-.", "^")})
        rows = np.union1d(data["size"], fitted)
        ax.plot(rows, rows**2, ":", color=INK, label="square of the horizontal axis")
        log_axis(ax, rows, "numbers to fit: samples times outputs")
        ax.set(yscale="log", ylabel="smallest number of neurons")
        figure.legend(loc="outside upper left", ncols=3, fontsize=9.5)
    return figure


def softmax_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the softmax network with one output (Claim 3.4)."""
    rng = stream(1, "exercise", "SN-1")
    weights, signs = rng.standard_normal((3, 8)), rng.choice([-1.0, 1.0], 8)
    x, y = rng.standard_normal((5, 3)), rng.standard_normal(5)
    neurons = 8 * np.exp(x @ weights) / np.exp(x @ weights).sum(1, keepdims=True)
    outputs = neurons @ signs
    parts = (outputs - y)[:, None] * neurons
    right = x.T @ (parts * (signs - outputs[:, None] / 8))
    likely = {
        "the centring is missing: through the denominator every neuron also lowers all others": x.T @ (parts * signs),
        "the loss has 1/2 in front: a factor 2 too many": 2 * right,
        "it is the sum over samples, not the mean": right / 5,
        "the sign is reversed: the residual is output minus label": -right,
        "the factor m is missing: the network is m times a softmax average": right / 8,
    }
    return verdict(answer(*(a.copy() for a in (weights, signs, x, y))), right, likely, "one number per weight")


def linear_loss(answer: Callable[..., Any]) -> str | None:
    """Check the loss of a linear model after some steps."""
    rng = stream(1, "exercise", "SN-21")
    features, y = rng.standard_normal((6, 4)), rng.standard_normal(4)
    kernel, rate = features.T @ features / 6, 0.1
    left, more = (np.linalg.matrix_power(np.eye(4) - rate * kernel, steps) @ y for steps in (7, 8))
    likely = {
        "the loss is half the squared length": left @ left,
        "these are residuals, not the loss": left,
        "the power belongs to the residual; the loss has twice as many factors": y @ left / 2,
        "one step too many": more @ more / 2,
    }
    return verdict(answer(kernel.copy(), y.copy(), rate, 7), left @ left / 2, likely, "one number")


CHECKS = {"SN-1": softmax_gradient, "SN-21": linear_loss}
