"""How far the kernel moves: the experiments of the chapter, what its claims read off them, its pictures and exercise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
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
    share_of_seeds,
    slope,
    sweep,
    track,
)
from attnbook.show import INK, band, own_lines, style
from attnbook.softmax_ntk.kernels import ACTIVATIONS
from attnbook.softmax_ntk.looks import LOOKS
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.perturbations import DIRECTIONS, displaced
from attnbook.softmax_ntk.stability_bounds import exponent_of_definition
from attnbook.softmax_ntk.training import Problem, starting_networks
from attnbook.softmax_ntk.two_layer import logits

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

LEMMA, SMALL = slice(None, 0.0099), slice(None, 0.3)  # radii of the lemma, and those at which slopes are taken


@experiment(
    "softmax_ntk.kernel_movement",
    group=4,
    needs="float64",
    smoke={"width": 256, "widths": (8, 16, 32), "seeds": (0, 1)},
    full={"sizes": (32, 64, 128), "width": 8192, "seeds": tuple(range(20, 28))},
)
def kernel_movement(
    seeds: Seeds = tuple(range(10, 18)),
    sizes: Counts = (8, 16, 32),  # numbers of samples, the last one where nothing else is said, and
    outputs: Counts = (1, 2, 4),  # of outputs, there the first one: parts of one network with the most of both
    n_inputs: PositiveInt = 16,  # entries of an input
    width: PositiveInt = 1024,  # neurons
    widths: Counts = (128, 256, 512, 1024, 2048, 4096, 8192),  # numbers of neurons
    radii: Increasing = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0),  # how far each neuron moves
    radius: PositiveFloat = 0.01,  # where sizes and widths vary
) -> xr.Dataset:
    """Every neuron moves by a radius; how far does the kernel, and what is left of its smallest eigenvalue?"""

    def one(network: Any, start: Any) -> xr.Dataset:
        def moved(
            direction: Any = "random", radius: float = radius, width: int = width, size: int = sizes[-1],
            output: int = outputs[0],
        ) -> dict[str, Any]:  # fmt: skip
            problem = Problem(network, width, sizes[-1], n_inputs, outputs[-1], start=start)
            drawn, x, _ = starting_networks(problem, seeds, device=device())
            networks, x = replace(drawn, signs=drawn.signs[:, :output]), x[:, :size]
            before, after = ntk_gram(networks, x), ntk_gram(displaced(networks, direction, radius, seeds=seeds), x)
            found = {
                "change": matrix_norm(after - before), "norm": matrix_norm(before),
                "entry": (after - before).abs().amax((1, 2)), "smallest": eigvalsh(before)[:, 0],
                "left": eigvalsh(after)[:, 0] / eigvalsh(before)[:, 0],
                "exponent": logits(networks, x).abs().amax((1, 2)).clamp(min=1),
            }  # fmt: skip
            return {name: ("seed", value.cpu()) for name, value in found.items()}

        axes = [
            {"direction": DIRECTIONS, "radius": radii},
            {"direction": DIRECTIONS, "width": widths},
            {"size": sizes, "output": outputs},
        ]
        found, wide, many = (
            sweep(lambda *at, names=tuple(of): moved(**dict(zip(names, at, strict=True))), **of) for of in track(axes)
        )
        return found.assign(by_width=wide.change / wide.norm, by_size=many.change)

    return sweep(one, network=ACTIVATIONS, start=["independent", "paired"])


@kernel_movement.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    s, relative = data.attrs["settings"], data.change / data.norm
    free = data.sel(start="independent")  # as in the lemma
    wide = slope(free.by_width, "width")
    softmax, exp = (relative.sel(start="independent", radius=s["radius"], network=k) for k in ("softmax", "exp"))
    relu = relative.sel(network="relu", start="paired", direction="opposite", radius=SMALL).mean("seed")
    lost, size = free.left.isel(radius=-1).sel(direction="shared") < 0.5, free.by_size.sel(network="softmax")
    lemma, rows = free.sel(network="softmax", radius=LEMMA), s["sizes"][-1] * s["outputs"][0]
    bound = lemma.radius * np.exp(10 * lemma.exponent)  # of one entry

    def order(network: str, direction: str, start: str = "independent", radii: slice = SMALL) -> xr.DataArray:
        return slope(relative.sel(network=network, direction=direction, start=start, radius=radii), "radius")

    return {
        "SN-PERT": {
            "shared_softmax": highest(softmax.sel(direction="shared")),
            "slope_exp": order("exp", "random", radii=LEMMA),
            "exp_shared_over_random": exp.sel(direction="shared") / exp.sel(direction="random"),
            **{f"{to}_exp_over_softmax": (exp / softmax).sel(direction=to) for to in ("random", "spread")},
            **{f"share_lost_{k}": lost.sel(network=k).mean("seed") for k in ("softmax", "exp")},
        },
        "SN-L5.1": {"least_slack": lowest(rows * bound / lemma.change)},
        "SN-LAM-positive": {"smallest": lowest(lemma.smallest)},
        "SN-B2": {"least_slack": lowest(bound / lemma.entry)},
        "SN-E5": {
            "least_left": lowest(lemma.left), "radius_over_certified": lowest(2 * rows * bound / lemma.smallest)
        },
        "SN-L5.1-order": {
            **{f"radius_{to}": order("softmax", to) for to in ("random", "spread")},
            "samples": slope(size.isel(output=-1), "size"), "outputs": slope(size.isel(size=-1), "output"),
        },
        "SN-L5.1m-worst": {
            **{f"slope_{to}": wide.sel(network="softmax", direction=to) for to in ("random", "spread")},
            "slope_common_exp": wide.sel(network="exp", direction="shared"),
        },
        "SN-L5.1R-gdlike": {
            **{f"slope_{k}": order(k, "opposite", "paired") for k in ("softmax", "exp")},
            **{f"unpaired_{k}": order(k, "opposite") for k in ("softmax", "exp")},
            "slope_relu": slope(relu, "radius"),  # of the mean: in some networks no neuron switches at first
        },
    }  # fmt: skip


@experiment(
    "softmax_ntk.many_networks",
    group=100,
    needs="float64",
    smoke={"width": 32, "seeds": (0, 1)},
    full={"n_samples": 64, "width": 4096},
)
def many_networks(
    seeds: Seeds = tuple(range(1000, 1300)),
    n_samples: PositiveInt = 16,  # inputs
    n_inputs: PositiveInt = 16,  # entries of an input
    width: PositiveInt = 1024,  # neurons, independent
    radii: Increasing = tuple(10.0**k for k in range(-8, -1)),  # how far each neuron moves
) -> xr.Dataset:
    """What happens rarely: products that are larger than B, and ReLU kernels that change by more than 2nR."""

    def one(network: Any, r: float) -> dict[str, Any]:
        problem = Problem(network, width, n_samples, n_inputs, start="independent")
        networks, x, _ = starting_networks(problem, seeds, device=device())
        change = ntk_gram(displaced(networks, "random", r, seeds=seeds), x) - ntk_gram(networks, x)
        largest = logits(networks, x).abs().amax((1, 2))
        return {"change": ("seed", matrix_norm(change).cpu()), "largest": ("seed", largest.cpu())}

    return sweep(one, network=["softmax", "relu"], radius=radii)


@many_networks.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    n = data.attrs["settings"]["n_samples"]
    softmax, relu = data.change.transpose("network", ...)
    above = relu / (2 * n * data.radius)
    beyond = data.largest[0, 0] > exponent_of_definition(n, 1, constant=3)
    return {
        "SN-B1-1": {"upper_end_of_share": share_of_seeds(beyond, 1)},
        "SN-L5.1-relu": {
            "bound_over_change": lowest(1 / above.isel(radius=-1)),
            "highest_share_above": (above > 1).mean("seed").max("radius"),
            "softmax_over_relu": (softmax / relu).isel(radius=-1),
            **{f"share_switching_1e-{k}": (relu > 0).sel(radius=10.0**-k).mean("seed") for k in (4, 5)},
        },
    }  # fmt: skip


ALT = {
    "movement": "Change of the kernel against the distance moved, log axes. Random moves: softmax and exp almost "
    "together, on a line of slope one, ReLU above. Shared moves: exp higher, softmax zero. Opposite moves: softmax "
    "and exp far below, on a line of slope two.",
    "yours": "Crosses of your networks on the lines of the book's.",
    "gelu": "GELU is below softmax for random and opposite moves, near exp for shared ones.",
}


def movement(data: xr.Dataset, yours: Mapping[str, Any] | None = None) -> Figure:
    """Draw the relative change of the kernel against the radius: a panel for each move, a line for each network."""
    import matplotlib.pyplot as plt

    change = (data.change / data.norm).sel(start="paired", radius=SMALL)
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.9), sharey=True)
        for ax, move in zip(axes, DIRECTIONS, strict=False):
            for name, look in LOOKS.items():
                line = change.sel(network=name, direction=move).transpose("seed", "radius")
                band(ax, change.radius.values, line.values, look)
            own_lines(ax, {name: moves[move] for name, moves in (yours or {}).items() if move in moves})
            ax.axvline(0.01, color=INK, linestyle=":")
            ax.set(xscale="log", yscale="log", ylim=(1e-9, 3), xlabel="distance moved", title=move)
        axes[0].set_ylabel("change of the kernel")
        axes[1].text(0.0105, 3e-9, "softmax: zero", color=LOOKS["softmax"].color)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def plane(move: str, distance: float) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return neurons in the plane before and after, and kernels of the input (1, 0) with inputs on a circle."""
    kernels, around = {}, torch.linspace(0, 2 * torch.pi, 181, dtype=torch.float64)
    circle = torch.stack([around.cos(), around.sin()], 1)[None]
    for name in ("softmax", "exp"):
        before = starting_networks(Problem(name, 12, 3, 2), (4,))[0]
        after = displaced(before, move, distance, seeds=(4,))
        both = torch.cat([ntk_gram(one, circle[:, :1], circle)[0] for one in (before, after)])
        kernels[name] = both / both[0, 0]
    return before.first_layer[0], after.first_layer[0], kernels


def plane_frame(move: str, distance: float) -> Figure:
    """Draw one picture of the slider: the neurons, and what becomes of both kernels."""
    import matplotlib.pyplot as plt

    before, after, kernels = plane(move, distance)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0))
        left.plot(*torch.stack([before, after], 1), color="#c2410c")
        left.plot(*before, "o", color=INK)
        left.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", xlabel="first weight", ylabel="second weight")
        for name, (old, new) in kernels.items():
            right.plot(range(0, 361, 2), old, ":", color=LOOKS[name].color)
            right.plot(range(0, 361, 2), new, color=LOOKS[name].color, label=LOOKS[name].label)
        right.set(xlabel="angle of the other input", ylabel="kernel", ylim=(-1.5, 3))
        right.legend()
    return figure


def plane_text(move: str, distance: float) -> str:
    """Say by how much both kernels of one picture change."""
    ends = plane(move, distance)[2].items()
    said = ", ".join(f"{LOOKS[name].label} {float((new - old).norm() / old.norm()):.1%}" for name, (old, new) in ends)
    return f"{move} moves of length {distance:g}; change of the kernel: {said}."


def change_of_shares(answer: Callable[..., Any]) -> str | None:
    """Check the change of the shares of a softmax, to first order."""
    weights, move = stream(1, "exercise", "SN-8").standard_normal((2, 3, 7))
    x, along = weights[:, 0], weights[:, 0] @ move
    shares = np.exp(x @ weights) / np.exp(x @ weights).sum()
    likely = {
        "the denominator moves as well, and takes from each neuron what a shared move would give": shares * along,
        "subtract the mean weighted by the shares, not the plain one": shares * (along - along.mean()),
    }
    right = shares * (along - shares @ along)
    return verdict(answer(shares, move, x), right, likely, "one number per neuron")


def largest_product(answer: Callable[..., Any]) -> str | None:
    """Check the union bound on all products of weights and inputs."""
    likely = {"a product can be large with either sign, so count it twice": np.sqrt(2 * np.log(11 * 300 / 0.03))}
    return verdict(answer(11, 300, 0.03), np.sqrt(2 * np.log(2 * 11 * 300 / 0.03)), likely, "one number")


CHECKS = {"SN-8": change_of_shares, "SN-22": largest_product}
