"""What keeps the kernel still: the experiments of the chapter, what its claims read off them, its pictures and exercise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch.linalg import eigvalsh, matrix_norm

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import (
    Counts,
    Increasing,
    Seeds,
    device,
    experiment,
    highest,
    lowest,
    slope,
    sweep,
    track,
)
from attnbook.show import INK, curves, log_axis, own_lines, style
from attnbook.softmax_ntk.kernels import ACTIVATIONS
from attnbook.softmax_ntk.looks import LOOKS
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import DIRECTIONS, displaced
from attnbook.softmax_ntk.training import Problem, starting_networks, train
from attnbook.softmax_ntk.two_layer import logits, predict

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Values: TypeAlias = dict[str, Any]
MOVES = *DIRECTIONS, "gradient"
SHOWN = ["softmax", "exp"]
LEMMA, SMALL = slice(None, 0.0099), slice(None, 0.3)  # radii of the lemma, and those at which slopes are taken


@experiment(
    "softmax_ntk.kernel_movement",
    group=4,
    needs="float64",
    smoke={"width": 32, "widths": (16, 32), "radii": (0.003, 0.01, 0.3), "target": 0.1, "seeds": (0, 1)},
    full={"sizes": (32, 64, 128), "width": 8192, "seeds": tuple(range(20, 28))},
)
def kernel_movement(
    seeds: Seeds = tuple(range(10, 18)),
    sizes: Counts = (8, 16, 32),  # numbers of samples, the last one where nothing else is said, and
    outputs: Counts = (1, 2, 4),  # of outputs, there the first one: parts of one network with the most of both
    n_inputs: PositiveInt = 16,  # entries of an input; training has twice as many samples
    width: PositiveInt = 1024,  # neurons
    widths: Counts = (128, 256, 512, 1024, 2048, 4096, 8192),  # numbers of neurons
    radii: Increasing = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0),  # how far the farthest neuron moves
    radius: PositiveFloat = 0.01,  # where sizes and widths vary
    target: PositiveFloat = 1e-6,  # of the first loss, where training on coin flips ends
) -> xr.Dataset:
    """How far does the kernel move if every neuron moves by a radius, and if the network is trained?"""

    def one(network: Any, start: Any) -> xr.Dataset:
        def moved(
            direction: Any = "random", radius: float = radius, width: int = width, size: int = sizes[-1],
            output: int = outputs[0],
        ) -> Values:  # fmt: skip
            problem = Problem(network, width, sizes[-1], n_inputs, outputs[-1], start=start)
            drawn, x, y = starting_networks(problem, seeds, device=device())
            networks, x = replace(drawn, signs=drawn.signs[:, :output]), x[:, :size]
            sample = x, predict(networks, x) + y[:, :output, :size].sign()
            there = displaced(networks, direction, radius, seeds=seeds, sample=sample)
            before, after = ntk_gram(networks, x), ntk_gram(there, x)
            return {
                "change": matrix_norm(after - before), "norm": matrix_norm(before),
                "entry": (after - before).abs().amax((1, 2)), "smallest": eigvalsh(before)[:, 0],
                "left": eigvalsh(after)[:, 0] / eigvalsh(before)[:, 0],
                "exponent": logits(networks, x).abs().amax((1, 2)).clamp(min=1),
            }  # fmt: skip

        def trained(width: int) -> Values:
            problem = Problem(network, width, 2 * n_inputs, n_inputs, start=start)
            run = train(problem, seeds, device=device(), max_steps=3000, target=target)
            w, end = run.start.first_layer, run.descent.networks.first_layer
            shared = (end - w).mean(2, keepdim=True)
            without = ntk_gram(replace(run.start, first_layer=end - shared), run.inputs) - run.kernel
            return {
                "without": matrix_norm(without) / matrix_norm(run.kernel), "farthest": (end - w).norm(dim=1).amax(1),
                "part": width**0.5 * matrix_norm(shared) / matrix_norm(end - w), "drift": w.new_tensor(run.drift()),
            }  # fmt: skip

        grids = [
            (moved, {"direction": MOVES, "radius": radii}), (moved, {"direction": MOVES, "width": widths}),
            (moved, {"size": sizes, "output": outputs}), (trained, {"width": widths}),
        ]  # fmt: skip

        def measured(*at: Any, run: Any, names: Any) -> Values:
            return {name: ("seed", x.cpu()) for name, x in run(**dict(zip(names, at, strict=True))).items()}

        found, wide, many, ends = (sweep(partial(measured, run=run, names=of), **of) for run, of in track(grids))
        return found.assign(ends.assign(by_width=wide.change / wide.norm, by_size=many.change))

    return sweep(one, network=ACTIVATIONS, start=["independent", "paired"])


@kernel_movement.measures
def _(data: xr.Dataset) -> Values:
    s, relative = data.attrs["settings"], data.change / data.norm
    free = data.sel(start="independent")  # as in the lemma
    wide, size = slope(free.by_width, "width"), free.by_size.sel(network="softmax")
    lemma, rows = free.sel(network="softmax", radius=LEMMA), s["sizes"][-1] * s["outputs"][0]
    bound = lemma.radius * np.exp(10 * lemma.exponent)  # of one entry
    random = free.change.sel(direction="random", radius=SMALL)
    relu = random.sel(network="relu")
    orders = slope(relative.sel(radius=SMALL), "radius")
    ends, at = data.sel(width=s["width"], method="nearest"), relative.sel(radius=s["radius"])
    exp = ends.sel(network="exp")
    both = {to: at.sel(direction=to) for to in ("random", "gradient")} | {"trained": ends.drift}
    over = {k: v.sel(network="exp") / v.sel(network="softmax") for k, v in both.items()}
    over |= {"part": exp.part, "due_to_it": abs(1 - exp.without / exp.drift)}
    twins = ends.drift.sel(start="independent") / ends.drift.sel(start="paired")
    slopes = {"slope": orders.sel(direction="gradient"), "width": slope(data.drift, "width")}
    starts = ("independent", "paired")

    return {
        "SN-PERT": {
            "shared_softmax": highest(at.sel(network="softmax", direction="shared")),
            **{f"{k}_{of}": v.sel(start=of) for k, v in over.items() for of in starts},
        },
        "SN-L5.1": {"least_slack": lowest(rows * bound / lemma.change)},
        "SN-LAM-positive": {"smallest": lowest(lemma.smallest)},
        "SN-B2": {"least_slack": lowest(bound / lemma.entry)},
        "SN-E5": {
            "least_left": lowest(lemma.left), "radius_over_certified": lowest(2 * rows * bound / lemma.smallest)
        },
        "SN-L5.1-order": {
            **{f"radius_{to}": orders.sel(network="softmax", start="independent", direction=to) for to in ("random", "spread")},
            "samples": slope(size.isel(output=-1), "size"), "outputs": slope(size.isel(size=-1), "output"),
        },
        "SN-L5.1m-worst": {
            **{f"slope_{to}": wide.sel(network="softmax", direction=to) for to in ("random", "spread")},
            "slope_common_exp": wide.sel(network="exp", direction="shared"),
        },
        "SN-L5.1-relu": {
            "bound_over_change": lowest(2 * rows * relu.radius / relu),
            "softmax_over_relu": (random.sel(network="softmax") / relu).sel(radius=s["radius"]),
        },
        "SN-L5.1R-gdlike": {
            **{f"twins_{k}": twins.sel(network=k) for k in ACTIVATIONS},
            **{f"{k}_{n}_{of}": v.sel(network=n, start=of) for k, v in slopes.items() for n in SHOWN for of in starts},
        },
    }  # fmt: skip


ALT = {
    "trained": "Change of the kernel by training against the number of neurons, log axes. All lines fall. Softmax and exp "
    "are close to each other; pairs are far below independent neurons, and fall faster.",
    "movement": "Change of the kernel against the distance moved, log axes. Random moves: softmax and exp almost "
    "together, on a line of slope one. Shared moves: exp higher, softmax zero. Gradient: both far below, on lines of "
    "slope two, exp above softmax.",
    "yours": "Your networks as crosses, next to the lines of the book's; a move of your own has a panel of its own.",
}


def after_training(data: xr.Dataset, yours: Values | None = None) -> Figure:
    """Draw how much training changes the kernel against the number of neurons: a line for each network and start."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.4, 2.6))
        for start, label, line in (("independent", "independent", "--"), ("paired", "pairs", "-")):
            looks = {name: replace(LOOKS[name], label=f"{name}, {label}", line=line) for name in SHOWN}
            curves(ax, data.drift.sel(network=SHOWN, start=start), "width", "network", looks)
        own_lines(ax, yours)
        log_axis(ax, data.width.values, "neurons")
        ax.set(yscale="log", ylabel="change of the kernel")
        figure.legend(loc="outside right upper")
    return figure


def movement(data: xr.Dataset, yours: Values | None = None) -> Figure:
    """Draw the change of the kernel against the distance: a panel for each kind of move, those of yours among them."""
    import matplotlib.pyplot as plt

    yours = yours or {}
    kinds = list(dict.fromkeys(["random", "shared", "gradient", *(kind for lines in yours.values() for kind in lines)]))
    change = (data.change / data.norm).sel(network=SHOWN, start="paired", radius=SMALL)
    with style():
        figure, axes = plt.subplots(1, len(kinds), figsize=(2.5 * len(kinds), 2.9), sharex=True, sharey=True)
        for ax, kind in zip(axes, kinds, strict=True):
            if kind in MOVES:
                curves(ax, change.sel(direction=kind), "radius", "network", LOOKS)
            own_lines(ax, {name: lines.get(kind, {}) for name, lines in yours.items()})
            ax.set(xscale="log", yscale="log", ylim=(3e-8, 1), xlabel="distance moved", title=kind)
        axes[0].set_ylabel("change of the kernel")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def plane(move: str, distance: float) -> Figure:
    """Draw a picture of the slider: neurons in the plane, and kernels of the input (1, 0) with inputs on a circle."""
    import matplotlib.pyplot as plt

    angles = torch.arange(0.0, 361, 2, dtype=torch.float64)
    circle = torch.view_as_real(torch.exp(1j * angles.deg2rad()))[None]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0))
        for name, thick in {"softmax": 0.011, "exp": 0.004}.items():
            networks, x, y = starting_networks(Problem(name, 12, 3, 2), (4,))
            after = displaced(networks, move, distance, seeds=(4,), sample=(x, y))
            w, end = networks.first_layer[0], after.first_layer[0]
            color = LOOKS[name].color
            left.quiver(*w, *(end - w), angles="xy", scale_units="xy", scale=1, width=thick, color=color)
            old, new = (ntk_gram(one, circle[:, :1], circle)[0, 0] for one in (networks, after))
            right.plot(angles, old / old[0], ":", color=color)
            right.plot(
                angles, new / old[0], color=color, label=f"{name} changes by {(new - old).norm() / old.norm():.1%}"
            )
        left.plot(*w, ".", color=INK)
        left.axis([-1.5, 1.2, -1.9, 1.2])
        left.set(aspect="equal", xlabel="first weight", ylabel="second weight")
        right.set(
            xlabel="angle of the other input (degrees)", ylabel="kernel", ylim=(-1.5, 3), xticks=range(0, 361, 90)
        )
        right.legend(title="dotted: before the move", loc="upper center")
    return figure


def change_of_shares(answer: Callable[..., Any]) -> str | None:
    """Check the change of the shares of a softmax, to first order."""
    weights, move = stream(1, "exercise", "SN-8").standard_normal((2, 3, 7))
    x, along = weights[:, 0], weights[:, 0] @ move
    shares = np.exp(x @ weights) / np.exp(x @ weights).sum()
    likely = {
        "the denominator moves as well, and takes from each neuron what a shared move would give": shares * along,
        "subtract the mean weighted by the shares, not the plain one": shares * (along - along.mean()),
    }
    return verdict(answer(shares, move, x), shares * (along - shares @ along), likely, "one number per neuron")


def largest_product(answer: Callable[..., Any]) -> str | None:
    """Check the union bound on all products of weights and inputs."""
    likely = {
        "a product can be large with either sign, so count it twice": np.sqrt(2 * np.log(110_000))
    }  # 11 * 300 / 0.03
    return verdict(answer(11, 300, 0.03), np.sqrt(2 * np.log(220_000)), likely, "one number")


CHECKS = {"SN-8": change_of_shares, "SN-22": largest_product}
