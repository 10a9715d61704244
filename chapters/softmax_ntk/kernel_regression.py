"""Kernel regression: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream, to_tensor
from attnbook.lab import Counts, Seeds, device, experiment, highest, listening, lowest, share_of_seeds, slope, sweep
from attnbook.show import OWN, curves, log_axis, own_lines, style
from attnbook.softmax_ntk.data import Sample, sphere
from attnbook.softmax_ntk.kernels import ACTIVATIONS, infinite_width_kernel
from attnbook.softmax_ntk.looks import LOOKS
from attnbook.softmax_ntk.ntk import kernel_gradient_flow, ntk_gram
from attnbook.softmax_ntk.single_index import TARGETS, draw_single_index, index_learned
from attnbook.softmax_ntk.training import Problem, starting_networks
from attnbook.softmax_ntk.two_layer import Networks, draw_weights, loss_and_gradient, predict
from attnbook.train import log_spaced

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Array: TypeAlias = np.ndarray
Values: TypeAlias = dict[str, Any]
RECORD = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 300)  # steps at which the drift of kernels is taken
FLOOR = 1e-4  # loss over its first value down to which curves are compared
FINE = 8  # steps in place of one, where the flow is followed


@experiment(
    "softmax_ntk.kernel_regression",
    budget=60,
    needs="float64",
    smoke={"widths": (16, 32), "narrow": (16,), "times": (1, 20), "n_samples": 5, "n_points": 3, "seeds": (0, 1)},
    full={"widths": (64, 128, 256, 512, 1024, 2048), "seeds": tuple(range(10))},
)
def coupling(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (64, 128, 256, 512, 1024),  # numbers of neurons, in pairs
    narrow: Counts = (64, 256),  # those with which the flow is followed, one output
    outputs: Counts = (1, 2, 4),  # of the networks
    n_samples: PositiveInt = 16,  # on the unit sphere, as are labels
    n_inputs: PositiveInt = 8,  # of each sample
    n_points: PositiveInt = 64,  # new inputs at which predictions are compared
    times: Counts = (1, 3, 10, 30, 100, 300),  # steps at which gaps are kept; all up to the last are compared
) -> xr.Dataset:
    """Theorem F.2: networks of growing width beside kernel regression, at every step and at new inputs."""
    points = np.stack([sphere(n_points, n_inputs, rng=stream(seed, "unseen inputs", n_inputs)) for seed in seeds])

    def one(outputs: float, width: float, network: Any, fine: int = 1) -> Values:
        problem = Problem(network, int(width), n_samples, n_inputs, int(outputs))
        begun = starting_networks(problem, seeds, device=device())
        return beside(*begun, points, [fine * time for time in times], 1 / fine)[0]

    found = sweep(one, outputs=outputs, width=widths, network=ACTIVATIONS).assign_coords(time=list(times))
    with listening(lambda share: None):
        flow = sweep(lambda m, network: {"flow": one(1, m, network, FINE)["gap"]}, narrow=narrow, network=ACTIVATIONS)
    return found.merge(flow)


@coupling.measures
def _(data: xr.Dataset) -> Values:
    two, softmax = data.sel(outputs=2), data.gap_at.sel(network="softmax")
    curves = two.difference.sel(width=slice(None, 512)).isel(width=-1)
    factor = data.gap.sel(outputs=1).sel(width=data.narrow) / data.flow
    return {
        "SN-CURVE": {
            "largest_difference": highest(curves.sel(network=["softmax", "exp"])),
            "largest_difference_relu": highest(curves.sel(network="relu")),
        },
        "SN-F2": {
            "flattest_slope": slope(two.gap.median("seed"), "width").max(),
            "share_with_condition": data.condition.mean(),
            "largest_constant": highest((data.gap / data.form).where((data.condition > 0) & (data.gap > 1e-12), 0)),
        },
        "SN-F2-every": {"flattest_slope": slope(softmax.median("seed"), "width").max()},
        "SN-F2-steps": {"highest_factor": highest(factor), "lowest_factor": lowest(factor)},
    }


@torch.no_grad()
def beside(
    start: Networks, x: Tensor, y: Tensor, new: Array, times: Sequence[int], length: float = 1.0
) -> tuple[Values, Array]:
    """Train networks beside kernel regression: gaps, losses, the theorem's bound; and both outputs at the end."""
    points, goal, last = to_tensor(new, device=x.device, dtype=x.dtype), y.flatten(1), times[-1] + 1
    kernel, cross = ntk_gram(start, x), ntk_gram(start, points, x)
    smallest, largest = torch.linalg.eigvalsh(kernel)[:, [0, -1]].T
    eta, now = length / largest, replace(start, first_layer=start.first_layer.clone())  # a step times the width
    fitted, regression = (kernel_gradient_flow(kernel, goal, eta, range(last), cross=rows) for rows in (kernel, cross))
    gaps, losses, drifts = [], [], []
    for step in range(last):
        outputs = predict(now, points).flatten(1)
        gaps.append((outputs - regression[step]).abs().amax(1))
        if step in RECORD:
            moved = (ntk_gram(now, points, x) - cross).norm(dim=2).amax(1)
            drifts.append(torch.stack([(ntk_gram(now, x) - kernel).norm(dim=(1, 2)), moved]))
        loss, gradient = loss_and_gradient(now, x, y)
        losses.append(torch.stack([loss, (fitted[step] - goal).square().sum(1) / 2]))
        now.first_layer.sub_(gradient * (eta / start.width)[:, None, None])
    gap, (drift, moved), fall = torch.stack(gaps), torch.stack(drifts).amax(0), torch.stack(losses) / losses[0]
    found = {
        "gap": gap.amax(0),
        "condition": drift <= smallest / 2,
        "difference": ((fall[:, 0] / fall[:, 1] - 1).abs() * (fall > FLOOR).all(1)).amax(0),
        "form": bound_of_theorem(smallest, goal.shape[1], start.width, drift, moved),
        "gap_at": gap[times].T,
    }
    kept = {name: (("seed", "time")[: one.ndim], one.cpu().numpy()) for name, one in found.items()}
    return kept, torch.stack([outputs, regression[-1]]).cpu().numpy()


def bound_of_theorem(smallest: Any, size: int, width: int, drift: Any, moved: Any) -> Any:
    """Bound the gap as Theorem F.2, as reconstructed, with hidden constants 1."""
    squared = (size / (drift.clamp(min=1e-99) * width * smallest)).log() ** 2
    return size**0.5 / smallest * (moved + squared * drift / smallest)


@experiment("softmax_ntk.on_a_circle", needs="float64", smoke={"widths": (8, 16), "steps": 20, "seeds": (0, 1)})
def on_a_circle(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (8, 32, 128, 512, 2048),  # numbers of neurons, with labels of size 1
    sizes: Counts = (1, 4, 16, 32, 64, 128),  # of labels, for a softmax of 64 neurons
    steps: PositiveInt = 300,
) -> xr.Dataset:
    """Trained networks beside kernel regression all around a circle: growing widths, growing labels."""
    plain: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    draws = [torch.rand(6, generator=torch.Generator().manual_seed(seed), **plain) for seed in seeds]  # as in the page
    labels, angles = 2 * torch.stack(draws).double().numpy() - 1, np.linspace(0, 2 * np.pi, 73)
    new = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def one(network: Any, width: float, size: float = 1.0) -> Values:
        samples, problem = [Sample(new[12::12], size * y[None]) for y in labels], Problem(network, int(width), 6, 2)
        begun = starting_networks(problem, seeds, device=device(), samples=samples)
        return {"curves": (("model", "seed", "point"), beside(*begun, np.stack([new] * len(seeds)), [steps])[1] / size)}

    found = sweep(lambda size: one("softmax", 64, size), size=sizes)
    with listening(lambda share: None):
        both = sweep(one, network=ACTIVATIONS, width=widths).curves
    return found.assign(gap=abs(both.diff("model")).max(["model", "point"]), labels=(("seed", "sample"), labels))


# Where laziness ends: label sizes as powers of the width, with step sizes in units of one over the largest eigenvalue


NETWORKS = {"lazy": (1 / 2, (0.5, 1.0)), "mean field": (1, (1.0, 4.0))}
FLOW = np.geomspace(1, 1e7, 29)  # stops of the kernel flow, in the same units
SCALES = (0.5, 1.0, 2.0, 3.0, 4.0)  # of the weights behind the kernel
NOISE = 0.1  # standard deviation of what is added to labels


@experiment(
    "softmax_ntk.feature_learning",
    smoke={"n_inputs": 4, "width": 8, "samples": (10, 40), "steps": 6, "records": 4, "n_test": 90, "seeds": (0, 1)},
    full={"n_inputs": 32, "width": 256, "samples": (200, 400, 800, 1600), "seeds": tuple(range(10))},
)
def feature_learning(
    seeds: Seeds = tuple(range(8)),
    samples: Counts = (50, 100, 200, 400),  # a fifth of them held out
    n_inputs: PositiveInt = 16,
    width: PositiveInt = 64,  # number of neurons
    n_test: PositiveInt = 400,
    steps: PositiveInt = 600,
    records: PositiveInt = 20,  # steps, about, at which a network may be stopped
) -> xr.Dataset:
    """Appendix H.2: one network lazily and in mean-field scaling, and kernels, on targets of one direction."""

    def learners(seed: int, n: int, target: str) -> Values:
        x, index, noise = draw_single_index(samples[-1], n_inputs, seed=seed)
        new, _, _ = draw_single_index(n_test, n_inputs, seed=seed, purpose="test")
        labels, truth = (TARGETS[target](np.sqrt(n_inputs) * part @ index) for part in (x[:n], new))
        fit, labels = n - int(0.2 * n), labels + NOISE * noise[:n]
        task = x[:fit], labels[:fit], np.concatenate([x[fit:n], new]), labels[fit:], truth
        weights = draw_weights(width, n_inputs, 1, rng=stream(seed, "weights", width))
        looks = log_spaced(steps, records)
        nets = [trained(weights, index, width**power, tried, looks, *task) for power, tried in NETWORKS.values()]
        errors = [one.pop("error") for one in (*nets, machine(*task))]
        return {"error": ("learner", errors), **{name: ("network", [net[name] for net in nets]) for name in nets[0]}}

    found = sweep(learners, seed=seeds, n=samples, target=TARGETS)
    return found.assign_coords(network=[*NETWORKS], learner=[*NETWORKS, "kernel"])


@feature_learning.measures
def _(data: xr.Dataset) -> Values:
    last, fewer = data.isel(n=-1), data.error.isel(n=-2).sel(learner="mean field", target="step")
    lazy, mean_field, kernel = (last.error.sel(learner=name) for name in data.learner.values)
    over, step = mean_field / kernel, last.sel(target="step")
    rich, start = (step.sel(network=name) for name in ("mean field", "lazy"))
    return {
        "SN-H2": {
            "surely_fewer": share_of_seeds(fewer < kernel.sel(target="step"), -1),
            **{f"over_kernel_{target}": over.sel(target=target) for target in TARGETS},
            "over_lazy": (mean_field / lazy).sel(target="step"),
            "aligned": rich.aligned,
            "aligned_lazy": start.aligned,
            "signed": rich.signed,
            "cosine_lazy": start.cosine,
        },
    }


def trained(weights: Any, index: Array, size: float, tried: Any, looks: Any, x: Array, y: Array, *rest: Any) -> Values:
    """Train a network on labels of a size, with each step size; keep the best step size and stopping time."""
    start = Networks.stack("softmax", [weights] * len(tried), device=device(), dtype=torch.float32)
    top = start.width * np.linalg.eigvalsh(infinite_width_kernel("softmax", x))[-1]
    alike = (np.stack([one] * len(tried)) for one in (x, size * y[None], rest[0], index))
    inputs, labels, points, u, eta = (to_tensor(one, device=device()) for one in (*alike, np.array(tried) / top))
    now, found = replace(start, first_layer=start.first_layer.clone()), []
    for step in range(looks[-1] + 1):
        if step in looks:
            found.append({"outputs": predict(now, points)[:, 0], **index_learned(start, now, u)})
        now.first_layer.sub_(loss_and_gradient(now, inputs, labels)[1] * eta[:, None, None])
    kept = {name: torch.stack([one[name] for one in found]).cpu().double().numpy() for name in found[0]}
    return best(kept.pop("outputs") / size, y, *rest[1:], **kept)


def machine(x: Array, labels: Array, rest: Array, *judged: Array) -> Values:
    """Follow gradient flow on the softmax kernel at infinite width; keep the best scale of the weights and time."""
    tried = []
    for scale in SCALES:
        kernels = (infinite_width_kernel("softmax", part, x, scale=scale) for part in (x, rest))
        gram, cross = map(torch.from_numpy, kernels)
        times = (FLOW / float(torch.linalg.eigvalsh(gram)[-1])).tolist()
        tried.append(kernel_gradient_flow(gram, torch.from_numpy(labels), None, times, cross=cross).numpy())
    return best(np.stack(tried), labels, *judged)


def best(outputs: Array, labels: Array, held_out: Array, truth: Array, **others: Array) -> Values:
    """Of outputs, cut to the range of the labels, choose by held-out samples; error over the variance of the target."""
    held, tested = np.split(outputs.clip(labels.min(), labels.max()), [len(held_out)], axis=-1)
    errors = ((held - held_out) ** 2).mean(-1)
    at = np.unravel_index(errors.argmin(), errors.shape)
    error = ((tested[at] - truth) ** 2).mean() / truth.var()
    return {"error": error, **{name: values[at] for name, values in others.items()}}


ALT = {
    "gaps": "Left: around a circle, a trained softmax network of 64 neurons is on top of kernel regression. Right: the "
    "largest gap falls steeply with the number of neurons for softmax and exp, more slowly for ReLU.",
    "yours": "Left: your GELU network is on top of its kernel regression. Right: its gaps are next to those of softmax.",
    "flat": "Left: your network on other data is on top of its kernel regression. Right: its line is steep; the line "
    "without the factor is flat.",
    "features": "Test error against samples. Step: with 200 samples or more, mean field is far below the kernel and "
    "lazy. Square: the kernel is far below both networks.",
}


def picture(yours: Values | None = None, size: float = 1, *, panels: int = 2) -> Figure:
    """Draw a network, the first of yours or the book's, and kernel regression around the circle; and gaps by width.

    Yours are, by name, gaps by width, the curves of both, and angles and labels of the samples.
    """
    import matplotlib.pyplot as plt

    data = on_a_circle.stored()
    one = data.isel(seed=0).sel(size=size)
    own = yours or {f"softmax, size {size:g}": ({}, one.curves.values, (range(60, 361, 60), one.labels))}
    name, (_, (network, regression, *_), samples) = next(iter(own.items()))
    with style():
        figure, axes = plt.subplots(1, panels, figsize=(8.4, 3.5), squeeze=False)
        for ax in axes[0, 1:]:
            curves(ax, data.gap, "width", "network", LOOKS)
            own_lines(ax, {name: one[0] for name, one in (yours or {}).items()})
            log_axis(ax, data.width.values, "number of neurons")
            ax.set(yscale="log", ylabel="largest gap")
        ax, x, color = axes[0, 0], np.linspace(0, 360, len(network)), OWN[0] if yours else LOOKS["softmax"].color
        ax.plot(x, regression, color="#c9a227", linewidth=5, alpha=0.7, label="kernel regression")
        ax.plot(x, network, color=color, label=name)
        ax.plot(*samples, "kx", markersize=9, markeredgewidth=2, label="samples")
        ax.set(xlabel="angle (degrees)", ylabel="output / size of labels", xticks=range(0, 361, 90))
        for ax in axes[0]:
            ax.legend(fontsize=8.5, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    return figure


def flow_prediction(answer: Callable[..., Any]) -> str | None:
    """Check the predictions of gradient flow on a kernel at one time."""
    rng, time = stream(1, "exercise", "SN-10"), 1.7
    root, labels, cross = rng.standard_normal((5, 5)), rng.standard_normal(5), rng.standard_normal((3, 5))
    mu, q = np.linalg.eigh(root @ root.T)
    left = np.exp(-mu * time)  # of the residual
    learned = ((1 - left) / mu, 1 / mu, 1 - left, (1 - left**2) / mu)
    right, limit, fitted, late = (cross @ q @ (one * (q.T @ labels)) for one in learned)
    likely = {
        "this is the end of the flow, for time without bound": limit,
        "this is what is still missing from the limit; subtract it": limit - right,
        "divide by the eigenvalues: the kernel has to be inverted on the way": fitted,
        "a factor 2 in the time: the loss has 1/2 in front": late,
    }
    return verdict(answer(root @ root.T, labels, cross, time), right, likely, "one number per point")


def same_path(answer: Callable[..., Any]) -> str | None:
    """Check step size and labels with which a network without an output scale takes the same path."""
    labels, s = np.array([1.0, -0.5]), 4.0
    likely = {
        "the gradient of F / s has one factor 1 / s, and the residual another": [0.3 / s, *s * labels],
        "the labels grow: F is s times the output": [0.3 / s**2, *labels / s],
    }
    step_size, scaled = answer(0.3, labels, s)
    return verdict([step_size, *scaled], [0.3 / s**2, *s * labels], likely, "one step size and the labels")


CHECKS = {"SN-10": flow_prediction, "SN-19": same_path}
