"""Lazy training: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Seeds, device, experiment, highest, lowest, slope, sweep, track
from attnbook.show import INK, Look, band, curves, log_axis, own_lines, style
from attnbook.softmax_ntk.data import Sample, draw_sample
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation, infinite_width_kernel
from attnbook.softmax_ntk.lazy_bounds import Theorem, loss_envelope
from attnbook.softmax_ntk.looks import LOOKS, STARTS
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.one_step import ALLOWED, loss_terms
from attnbook.softmax_ntk.training import Problem, Trained, train
from attnbook.softmax_ntk.two_layer import Networks, Start, Weights, loss_and_gradient, predict

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

ZERO = 1e-24  # of the first loss: where training ends
WEAKEST = "softmax, weakest labels"  # along the weakest eigenvector of the kernel; all others are random
NETWORKS = {"softmax": "softmax", WEAKEST: "softmax", "exp": "exp", "relu": "relu"}
TERMS = ["normaliser", "first order", "higher orders", "squared change"]  # C0 to C3 of Lemma E.1
TINY = {"samples": 5, "inputs": 7, "seeds": (0, 1)}  # for tests
FEW, LARGE = {"sizes": (4, 8), "outputs": (1, 2)}, {"samples": 64, "inputs": 64}


@experiment(
    "softmax_ntk.to_zero_loss",
    needs="float64",
    smoke={**TINY, "widths": (4, 8, 16, 32), "sizes": (2, 4), "width": 16, "max_steps": 30},
    full={**LARGE, "widths": (2, 8, 64, 512, 4096, 16384), "sizes": (16, 32, 64, 128)},
)
def to_zero_loss(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (2, 8, 64, 512, 4096),  # numbers of neurons, in pairs
    samples: PositiveInt = 16,  # on the unit sphere, with labels 1 and -1
    inputs: PositiveInt = 16,
    max_steps: PositiveInt = 1000,  # after which to give up
    sizes: Counts = (4, 8, 16, 32, 48),  # other numbers of samples, at one width
    width: PositiveInt = 1024,  # of these
) -> xr.Dataset:
    """Theorem 4.2 and Table 1: networks trained to 1e-24 of the first loss, beside their linear models."""
    kept = sorted({*range(min(max_steps, 60)), *range(0, max_steps + 1, 10)})

    def by_width(network: str, m: float) -> dict[str, Any]:
        run = trained(Problem(NETWORKS[network], int(m), samples, inputs), seeds, max_steps, network == WEAKEST)
        losses, movement = run.descent.loss / run.descent.loss[0], run.movement()
        curve = np.full((max_steps + 1, len(seeds)), np.nan)  # a network that has stopped has no loss any more
        curve[: len(losses)] = losses
        mu, parts = spectrum(run.kernel.cpu().numpy(), (run.labels - run.first_outputs()).cpu().numpy())
        last, rate = run.descent.steps, np.maximum(mu[:, 0] / mu[:, -1], 1e-12)  # where a kernel has no inverse
        late, early = (losses[step, range(len(seeds))] for step in (last // 2, last // 4))
        below = np.stack([loss_envelope(np.arange(len(losses)), rate=one) for one in rate], axis=1)
        found = {
            "steps": last, "reached": run.descent.reached, "drift": run.drift(),
            "rms_movement": (movement**2).mean(1) ** 0.5, "largest_movement": movement.max(1),
            "over_linear": late / [at_rest(*one)[0] for one in zip(mu, parts, last[:, None] // 2, strict=True)],
            "over_envelope": np.nanmax((losses / below)[1:], axis=0),
            "exponent": np.log(late / early) / ((last // 2 - last // 4) * np.log1p(-rate / 2)),  # over the envelope's
            "eigenvalues": mu, "parts": parts,
        }  # fmt: skip
        return by_seed(found, "row") | {"loss": (("seed", "step"), curve[kept].T)}

    def by_size(network: Activation, n: float) -> dict[str, Any]:
        run = trained(Problem(network, width, int(n), inputs), seeds, max_steps)
        return {"size_steps": ("seed", run.descent.steps)}

    drawn = [draw_sample(samples, inputs, 1, seed=seed) for seed in seeds]
    kernels = np.stack([infinite_width_kernel("softmax", one.inputs) for one in drawn])  # at infinite width
    mu, parts = spectrum(kernels, np.stack([one.labels for one in drawn]))
    sweeps = (by_width, {"network": NETWORKS, "width": widths}), (by_size, {"activation": ACTIVATIONS, "size": sizes})
    found, others = (sweep(one, **axes) for one, axes in track(sweeps))
    return found.assign_coords(step=kept).merge(others).assign(by_seed({"limit": mu, "limit_parts": parts}, "row"))


@to_zero_loss.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    both, wide, theorem = data.sel(network=["softmax", WEAKEST]), data.isel(width=slice(2, None)), of_theorem(data)
    enough, last = both.isel(width=slice(1, None)), data.sel(network=ACTIVATIONS).isel(width=-1)
    steps, growth = last.steps.median("seed"), slope(data.size_steps.median("seed"), "size")
    ratio = steps.max("network") / steps.min("network")
    moved, weakest = slope(wide.rms_movement.median("seed"), "width"), both.exponent.isel(width=-1).sel(network=WEAKEST)
    exponents = {"least_exponent_ratio": lowest(weakest), "largest_exponent_ratio": highest(weakest)}
    largest = slope(wide.largest_movement.sel(network="softmax").median("seed"), "width")
    return {
        "SN-T4.2": {
            "share_arrived": enough.reached.mean(), "share_arrived_narrowest": both.reached.isel(width=0).mean(),
            "gap_to_linear": highest(abs(both.over_linear.isel(width=-1) - 1)), "left_by_theorem": highest(theorem.left),
            "left_without_20": theorem.left_without_20,
        },
        "SN-5.3L": {"largest_over_envelope": highest(enough.over_envelope), **exponents},
        "SN-5.3W": {f"slope_{name}": moved.sel(network=name) for name in ACTIVATIONS} | {"slope_largest": largest},
        "SN-TAB1": {f"growth_{name}": growth.sel(activation=name) for name in ACTIVATIONS} | {"ratio": ratio},
    }  # fmt: skip


def trained(problem: Problem, seeds: Seeds, max_steps: int, weakest: bool = False, *, target: float = ZERO) -> Trained:
    """Train networks on the labels of their samples, or on labels along the weakest eigenvector of their kernel."""
    how: dict[str, Any] = {"device": device(), "target": target}
    run = train(problem, seeds, max_steps=1 if weakest else max_steps, **how)
    if weakest:
        vectors, size = torch.linalg.eigh(run.kernel)[1][:, :, 0].cpu().numpy(), problem.n_samples**0.5
        drawn = [Sample(x, size * v[None]) for x, v in zip(run.inputs.cpu().numpy(), vectors, strict=True)]
        run = train(problem, seeds, max_steps=max_steps, samples=drawn, **how)
    return run


def by_seed(found: Mapping[str, Any], second: str) -> dict[str, Any]:
    """Name the dimensions of arrays whose first one runs over the seeds."""
    return {name: (("seed", second)[: np.ndim(value)], value) for name, value in found.items()}


def spectrum(kernels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of kernels, and the square of the labels along each eigenvector."""
    mu, vectors = np.linalg.eigh(kernels)
    return mu, np.einsum("sij,si->sj", vectors, labels.reshape(mu.shape)) ** 2


def at_rest(mu: np.ndarray, parts: np.ndarray, steps: Any, length: float = 1.0) -> np.ndarray:
    """Return the loss over the first one for a kernel that stays at rest; length is the step size times m mu_max."""
    rates = np.minimum(length * mu / mu[-1], 1 - 1e-16)  # at length one the fastest direction is learned at once
    return np.exp(2 * np.outer(steps, np.log1p(-rates))) @ parts / parts.sum()


def of_theorem(data: xr.Dataset, error: float = 1e-3) -> xr.Dataset:
    """Ask Theorem 4.2 for its width, step size and number of steps, and a kernel at rest what they leave."""
    n, spectra = data.attrs["settings"]["samples"], zip(data.limit.values, data.limit_parts.values, strict=True)

    def one(mu: np.ndarray, parts: np.ndarray) -> dict[str, Any]:
        theorem = Theorem(float(mu[0]), n)
        steps, length = theorem.steps(error * n), theorem.scaled_step_size() * mu[-1]
        left, without = at_rest(mu, parts, [steps, steps / 20], length)
        return {"width": theorem.width(), "length": length, "steps": steps, "left": left, "left_without_20": without}

    return xr.concat([xr.Dataset(one(*both)) for both in spectra], data.seed)


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
    """Both sides of Lemmas 5.3, E.2 to E.4 and Claims E.6, E.7, step by step: pairs and independent neurons."""

    def one(start: Start, by: float, width: float) -> dict[str, Any]:
        problem = Problem("softmax", int(width), samples, inputs, outputs, start=start)
        return account(train(problem, seeds, device=device(), max_steps=1, fraction=by), steps)

    axes = {"start": ("paired", "independent"), "length": (short, length), "width": widths}
    return sweep(one, **axes).assign_coords(term=TERMS)


@lemmas.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    short, usual = (data.sel(start="paired").isel(length=i) for i in (0, 1))
    pairs, other = (data.terms.isel(length=1).sel(term="normaliser", start=one) for one in ("paired", "independent"))
    return {
        "SN-5.3G": {"longest_short": highest(short.longest), "longest_usual": highest(usual.longest)},
        "SN-E2": {"largest_sum": highest(usual.total)},
        "SN-E3": {"largest": highest(pairs)},
        "SN-E4": {"least_over_leading": lowest(usual.leading), "largest_in_the_unit": highest(usual.first_order)},
        "SN-E6": {"largest": highest(usual.terms.sel(term="higher orders"))},
        "SN-E7": {"largest_short": highest(short.terms[..., 3]), "largest_usual": highest(usual.terms[..., 3])},
        "SN-E3-pairs": {
            "smallest_ratio": (other / pairs).median("seed").min("width"), "share_within_pairs": (pairs <= ALLOWED).mean(),
            "share_beyond_narrowest": (other[0] > ALLOWED).mean(), "share_within_widest": (other[-1] <= ALLOWED).mean(),
            "slope_pairs": slope(pairs, "width"), "slope_independent": slope(other, "width"),
        },
    }  # fmt: skip


def account(run: Trained, steps: int) -> dict[str, Any]:
    """Take steps apart: the largest size of each term in the unit of the proof, and the two sides of the lemmas."""
    now, x, y, eta, m = run.start, run.inputs, run.labels, run.step_size, run.start.width
    smallest = torch.as_tensor(run.eigenvalues[:, 0], device=x.device)
    exponents = torch.bmm(x, now.first_layer).abs().amax((1, 2)).clamp(min=1.0)  # B, as measured
    unit, first, seen = m * eta * smallest, loss_and_gradient(now, x, y)[0], []
    for step in range(1, steps + 1):
        loss, gradient = loss_and_gradient(now, x, y)
        after = replace(now, first_layer=now.first_layer - eta[:, None, None] * gradient)
        terms = loss_terms(now, after, x, y)
        envelope = first * (1 - unit / 2) ** step
        scaled, now = terms / (2 * unit * loss)[:, None], after
        seen.append({
            "terms": scaled.abs(), "total": scaled.sum(1), "first_order": scaled[:, 1], "longest": eta * gradient.norm(dim=1).amax(1),
            # With the Jacobian J the gradient is J'e, and mH is JJ'.
            "leading": terms[:, 1] / (-2 * eta * gradient.square().sum((1, 2))),
            "over_envelope": loss_and_gradient(now, x, y)[0] / envelope,
        })  # fmt: skip
    sides = zip(smallest.tolist(), exponents.tolist(), (2 * first).sqrt().tolist(), strict=True)
    bounds = [Theorem(one, y.shape[2], y.shape[1], b).movement(m, residual) for one, b, residual in sides]
    far = (now.first_layer - run.start.first_layer).norm(dim=1).amax(1)
    found = {name: torch.stack([one[name] for one in seen]) for name in seen[0]}
    extreme = {name: part.amin(0) if name == "leading" else part.amax(0) for name, part in found.items()}
    extreme["over_movement"] = far / torch.from_numpy(np.array(bounds)).to(x.device)
    return by_seed({name: part.cpu().numpy() for name, part in extreme.items()}, "term")


@experiment("softmax_ntk.wide_enough", needs="float64", smoke={**TINY, **FEW, "ladder": (4, 16), "target": 0.9})
def wide_enough(
    seeds: Seeds = (0, 1, 2, 3, 4),
    sizes: Counts = (8, 16, 32, 64),  # numbers of samples, with one output
    outputs: Counts = (1, 2, 4, 8),  # numbers of outputs
    samples: PositiveInt = 16,  # where the number of outputs is varied
    inputs: PositiveInt = 8,
    ladder: Counts = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192),  # widths to try, from below
    target: PositiveFloat = 0.01,  # of the first loss
    max_steps: PositiveInt = 3000,  # in which it must arrive
) -> xr.Dataset:
    """How wide is wide enough: the smallest number of neurons that trains, by samples and by outputs."""

    def smallest(n: float, d: float) -> dict[str, Any]:
        found = np.full(len(seeds), np.inf)
        for m in ladder:
            waiting = np.flatnonzero(np.isinf(found))
            if len(waiting):
                some = tuple(seeds[i] for i in waiting)
                run = trained(Problem("softmax", m, int(n), inputs, int(d)), some, max_steps, target=target)
                found[waiting[run.descent.reached]] = m
        return {"width": ("seed", found)}

    sweeps = (lambda n: smallest(n, 1), {"size": sizes}), (lambda d: smallest(samples, d), {"output": outputs})
    of_samples, of_outputs = (sweep(one, **axes) for one, axes in track(sweeps))
    return of_samples.rename(width="by_samples").merge(of_outputs.rename(width="by_outputs"))


@wide_enough.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    n, samples, outputs = data.attrs["settings"]["samples"], data.by_samples, data.by_outputs
    over = (samples / data["size"] ** 2).max("size"), (outputs / (n * data.output) ** 2).max("output")
    slopes = slope(samples.median("seed"), "size"), slope(outputs.median("seed"), "output")
    square = highest(np.maximum(*over))
    return {"SN-WIDTH": {"slope_samples": slopes[0], "slope_outputs": slopes[1], "largest_over_square": square}}


@experiment("softmax_ntk.curvature", group=1, needs="float64", smoke={"samples": 4, "widths": (4, 8), "seeds": (0, 1)})
def curvature(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (16, 32, 64, 128),  # numbers of neurons
    samples: PositiveInt = 8,  # with as many inputs
) -> xr.Dataset:
    """Is the loss convex at the paired start? Its Hessian, with a denominator and without."""

    def one(seed: int, network: Activation, width: float) -> dict[str, float]:
        start = (run := trained(Problem(network, int(width), samples, samples), (seed,), 1)).start

        def loss(weights: Tensor) -> Tensor:
            z = run.inputs[0] @ weights.view(start.first_layer.shape[1:])
            neurons = z.exp() if network == "exp" else start.width * z.softmax(1)
            return (start.signs[0] @ neurons.T - run.labels[0]).square().sum() / 2

        weights = start.first_layer.flatten()
        mu = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, weights, vectorize=True))
        gradient = loss_and_gradient(start, run.inputs, run.labels)[1].square().sum().item()
        needed = width * run.eigenvalues[0, 0] * loss(weights).item()
        negative = (mu < -1e-9 * mu[-1]).double().mean().item()
        return {"negative": negative, "lowest": (mu[0] / mu[-1]).item(), "gradient": gradient / needed}

    return sweep(one, seed=seeds, network=("softmax", "exp"), width=widths)


@curvature.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    least, down = lowest(data.negative.sel(network="softmax")), data.lowest
    ratio = (down.sel(network="exp") / down.sel(network="softmax")).median("width")
    found = {"least_share_negative": least, "exp_over_softmax": ratio, "least_gradient": lowest(data.gradient)}
    return {"SN-CONVEX": found}


COLORS = ("#8a5a00", "#c2410c", "#7c3aed", "#15803d", "#0b5cad", "#0d4849")  # by width
ALT = {
    "zero": "Loss to 1e-24: straight lines on top of linear models for wide networks; 2 neurons stay near the top.",
    "lazy": "Change of the kernel against the number of neurons: it falls for all activations.",
    "damage": "Damage by the denominator: with pairs far below the limit, without above it in narrow networks only.",
    "width": "Smallest width that trains, far below the dotted line of the theorem's square.",
}
CIRCLE, AROUND = np.array([0.5, 2.1, 3.5, 5.3]), np.linspace(0, 2 * np.pi, 200)  # angles: four inputs, and all


def to_zero(data: xr.Dataset, yours: Mapping[str, Any] | None = None) -> Figure:
    """Draw the loss of one seed at every width, on its linear model, with the envelope of the lemma at the largest."""
    import matplotlib.pyplot as plt

    order, t = np.argsort(data.steps.sel(network="softmax").isel(width=-1).values), np.arange(501)
    data = data.isel(seed=int(order[len(order) // 2]))  # the median seed
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.7), sharey=True)
        for ax, network, title in zip(axes, NETWORKS, ("labels from a coin", "the slowest labels"), strict=False):
            for color, m in zip(COLORS, data.width.values, strict=False):
                one = data.sel(network=network, width=m)
                ax.plot(data.step, one.loss, color=color, label=f"{m:g} neurons")
                if m > data.width[0]:
                    ax.plot(t, at_rest(one.eigenvalues.values, one.parts.values, t), ":", color=INK, lw=1.2)
            rate = float(one.eigenvalues[0] / one.eigenvalues[-1])
            ax.plot(t, loss_envelope(t, rate=rate), "--", color="#5b5f66", lw=1.2, label="bound of the lemma")
            ax.plot([], [], ":", color=INK, label="linear model")
            ax.set(yscale="log", xlim=(0, 500), ylim=(1e-25, 10), xlabel="steps of gradient descent", title=title)
        own_lines(axes[0], {name: dict([*enumerate(map(float, loss))][::10]) for name, loss in (yours or {}).items()})
        axes[0].set_ylabel("loss / first loss")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4, fontsize=9.5)
    return figure


@cache
def planar(neurons: int) -> tuple[Trained, np.ndarray, np.ndarray, float]:
    """Train a network with two inputs on four points of the circle; return it, and both answers around the circle."""
    around = np.concatenate([CIRCLE, AROUND])
    points, labels = np.stack([np.cos(around), np.sin(around)], axis=1), np.array([[1.0, 1.0, -1.0, 1.0]])
    how: dict[str, Any] = {"device": "cpu", "max_steps": 2000, "target": 1e-9, "samples": [Sample(points[:4], labels)]}
    run, grid = train(Problem("softmax", neurons, 4, 2), [0], **how), torch.tensor(points)[None]
    linear = ntk_gram(run.start, grid, run.inputs)[0] @ torch.linalg.solve(run.kernel[0], run.labels[0, 0])
    network = predict(run.descent.networks, grid)[0, 0]
    return run, network.numpy(), linear.numpy(), float((network - linear).abs().max())


def trails(neurons: int) -> Figure:
    """Draw how each neuron has moved in the plane, and network and linear model around the circle."""
    import matplotlib.pyplot as plt

    run, network, linear, _ = planar(neurons)
    ends = torch.stack([run.start.first_layer[0], run.descent.networks.first_layer[0]], dim=1)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0))
        left.plot(*ends, color=COLORS[1])
        left.plot(*ends[:, 0], "o", color=COLORS[1], fillstyle="none", markersize=7 if neurons < 100 else 0)
        left.plot(*ends[:, 1], ".", color=COLORS[4], markersize=6 if neurons < 100 else 3)
        left.set(xlim=(-3.4, 3.4), ylim=(-3.4, 3.4), aspect="equal", xlabel="first weight", ylabel="second weight")
        right.plot(AROUND, network[4:], color=COLORS[4], label="network, trained")
        right.plot(AROUND, linear[4:], "--", color=INK, label="linear model")
        right.plot(CIRCLE, run.labels[0, 0], "s", color=COLORS[1], label="labels")
        right.set(ylim=(-3.3, 2.9), xlabel="angle of the input", ylabel="output")
        right.legend(loc="lower left", fontsize=9)
    return figure


def trail_text(neurons: int) -> str:
    """Say how long a typical trail is, and how far network and linear model are apart."""
    trail, gap = np.median(planar(neurons)[0].movement()), planar(neurons)[3]
    return f"{neurons} neurons: typical trail {trail:.2g}, largest gap to the linear model {gap:.1g}."


def laziness(data: xr.Dataset, yours: Mapping[str, Mapping[int, float]] | None = None) -> Figure:
    """Draw how much the kernel of each network has changed by the end of training, against the number of neurons."""
    drift = data.drift.sel(network=ACTIVATIONS).isel(width=slice(-3, None))
    return _against_width(drift, "network", LOOKS, "change of the kernel", yours or {})


def damage(data: xr.Dataset) -> Figure:
    """Draw the largest part of the denominator in a step, in the unit of the proof, for pairs and without."""
    return _against_width(data.terms.isel(length=1, term=0), "start", STARTS, "damage by the denominator", {}, ALLOWED)


def _against_width(of: xr.DataArray, hue: str, looks: Any, label: str, yours: Any, limit: float = 0) -> Figure:
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        curves(ax, of, "width", hue, looks)
        own_lines(ax, yours)
        if limit:
            ax.axhline(limit, ls=":", color=INK, label="allowed by the proof")
        log_axis(ax, of.width.values, "number of neurons")
        ax.set(yscale="log", ylabel=label)
        figure.legend(loc="outside upper left", ncols=4, fontsize=9.5)
    return figure


def enough(data: xr.Dataset) -> Figure:
    """Draw the smallest width that trains, with more samples and with more outputs, beside the theorem's square."""
    import matplotlib.pyplot as plt

    setting, rows = data.attrs["settings"], np.array([8, 16, 32, 64, 128])
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        more = (
            Look("more samples, one output", "#0b5cad", "-", "o"),
            Look("more outputs, 16 samples", "#c2410c", "-.", "^"),
        )
        band(ax, data["size"].values, data.by_samples.transpose("seed", "size").values, more[0])
        band(ax, setting["samples"] * data.output.values, data.by_outputs.transpose("seed", "output").values, more[1])
        ax.plot(rows, rows**2, ":", color=INK, label="$n^2d^2$")
        ax.plot(rows, 2 * rows / setting["inputs"], "--", color="#5b5f66", label="kernel of full rank")
        log_axis(ax, rows, "numbers to fit: samples times outputs")
        ax.set(yscale="log", ylabel="smallest number of neurons")
        figure.legend(loc="outside upper left", ncols=2, fontsize=9.5)
    return figure


def softmax_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the softmax network with one output (Claim 3.4)."""
    rng = stream(1, "exercise", "SN-1")
    weights, signs = rng.standard_normal((3, 8)), rng.choice([-1.0, 1.0], 8)
    x, y = rng.standard_normal((5, 3)), rng.standard_normal(5)
    network = Networks.stack("softmax", [Weights(weights, signs[None])])
    right = loss_and_gradient(network, torch.from_numpy(x[None]), torch.from_numpy(y[None, None]))[1][0].numpy()
    neurons = 8 * np.exp(x @ weights) / np.exp(x @ weights).sum(1, keepdims=True)
    uncentred = x.T @ (neurons * (neurons @ signs - y)[:, None] * signs)
    likely = {
        "the centring is missing: through the denominator every neuron also lowers all others": uncentred,
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
    kernel, rate, steps = features.T @ features / 6, 0.1, 7
    one_step, back = np.eye(4) - rate * kernel, np.eye(4) + rate * kernel
    left, more, wrong = (np.linalg.matrix_power(m, t) @ y for m, t in ((one_step, 7), (one_step, 8), (back, 7)))
    likely = {
        "the loss is half the squared length": left @ left,
        "these are residuals, not the loss": left,
        "the power belongs to the residual; the loss has twice as many factors": y @ left / 2,
        "one step too many": more @ more / 2,
        "the sign is reversed: a step makes residuals smaller": wrong @ wrong / 2,
    }
    return verdict(answer(kernel.copy(), y.copy(), rate, steps), left @ left / 2, likely, "one number")


CHECKS = {"SN-1": softmax_gradient, "SN-21": linear_loss}
