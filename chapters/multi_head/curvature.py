"""How non-convex is attention? The experiments of the chapter, what its claims read off them, pictures, exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import pad

from attnbook.core import spectrum
from attnbook.core.ensemble import Parameters
from attnbook.core.feedback import verdict
from attnbook.core.rng import stream, to_tensor
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, highest, lowest, slope, sweep
from attnbook.multi_head import curvature_bounds, derivatives, network
from attnbook.multi_head.curvature_bounds import LossConstants, loss_constants
from attnbook.multi_head.data import Mixture, draw
from attnbook.show import INK, Look, Measured, Table, band, log_axis, own_lines, spread, style

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Batch = tuple[Tensor, Tensor]  # tokens and labels of one member for each seed
BOUNDS = ("gradient", "Hessian", "Hessian without dimension")
NEAR = ("equal tokens", "opposite tokens")  # points with zero weights that come near the bounds
POINTS = ("random", "trained", "lone", "equal", *NEAR)
PARTS = ("gradient", "smoothness", "curvature")
LARGEST_BLOCK = 1000  # rows: larger blocks are not put together, one of 3000 rows takes 72 MB


@experiment("multi_head.single_head", budget=10, needs="cpu", smoke={"dimensions": (2, 8), "draws": 3, "seeds": (0, 1)})
def single_head(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_tokens: PositiveInt = 6,  # of a sample; even, half of them can point one way
    dimensions: Counts = (2, 4, 8),  # of a token
    draws: PositiveInt = 60,  # of each kind, per seed and dimension
) -> xr.Dataset:
    """Proposition 1: exact norms of one head over the bounds, for random heads and for heads that come near."""
    if n_tokens % 2:
        raise ValueError(f"n_tokens: expected an even number, got {n_tokens}")
    kinds = {"random": random_head, "lopsided": lopsided_head}

    def ratios(seed: int, dimension: int, kind: str, number: int) -> dict[str, Any]:
        tokens, decoder, key_query = kinds[kind](n_tokens, dimension, stream(seed, kind, dimension, number))
        x, u, w = (to_tensor(array, dtype=torch.float64)[None] for array in (tokens, decoder, key_query))
        head = {"decoder": u, "key_query": w}
        hessian = torch.linalg.eigvalsh(derivatives.head_hessians(head, x, x.new_ones(1))[0]).abs().max()
        free = curvature_bounds.dimension_free_hessian_bound
        stated = [bound(tokens, decoder) for bound in (curvature_bounds.gradient_bound, curvature_bounds.hessian_bound)]
        found = np.array([derivatives.head_gradients(head, x).norm(), hessian, hessian])
        share = 1 - free(tokens, 0 * decoder) / free(tokens, decoder)
        return {"ratio": ("bound", found / [*stated, free(tokens, decoder)]), "decoder_share": share}

    found = sweep(ratios, seed=seeds, dimension=dimensions, kind=list(kinds), draw=range(draws))
    return found.assign_coords(bound=list(BOUNDS))


@single_head.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    largest = {bound: {"largest_ratio": highest(data.ratio.sel(bound=bound))} for bound in BOUNDS}
    near = data.sel(kind="lopsided", bound=BOUNDS[2])
    small, large = (near.ratio.where(mask, 0) for mask in (near.decoder_share < 0.05, near.decoder_share > 0.95))
    attained = {"largest_ratio_small_decoder": highest(small), "largest_ratio_large_decoder": highest(large)}
    return dict(zip(("MH-P1.1", "MH-P1.2", "MH-P1.3"), largest.values(), strict=True)) | {
        "MH-P1.3": largest[BOUNDS[2]] | attained
    }


def random_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw tokens, decoder and key-query matrix with normal entries, each at a scale between 0.1 and 10."""
    scales, rows = 10.0 ** rng.uniform(-1, 1, 3), (n_tokens, n_tokens, dimension)
    return [scale * rng.standard_normal((n, dimension)) for scale, n in zip(scales, rows, strict=True)]


def lopsided_head(n_tokens: int, dimension: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw tokens near plus or minus one direction, half each way, and a decoder of any size along it."""
    # A small decoder: uniform attention, which maximises the variance of the tokens. A large one: attention mostly to
    # tokens of the own sign, with the share of the others at which the third cumulant is largest.
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)
    away, off, size = 10.0 ** rng.uniform([-4, -4, -3], [0, 0, 3])
    signs = np.where(np.arange(n_tokens) < n_tokens // 2, 1.0, -1.0)[:, None]
    others = (1 - 1 / np.sqrt(3)) / 2
    preference = np.log(1 / others - 1) / 2 if size > 1 else 0.0
    spread = away * rng.standard_normal((n_tokens, dimension)) / np.sqrt(dimension)
    noise = off * rng.standard_normal((dimension, dimension)) / dimension
    return [
        signs * direction + spread,
        -size * signs * direction,
        preference * np.outer(direction, direction) + noise,
    ]


@experiment(
    "multi_head.curvature",
    group=1,
    needs="float64",
    smoke={"heads": (1, 4, 8), "steps": 10, "seeds": (0, 1)},
    full={
        "n_tokens": 10,
        "dimension": 50,
        "n_patterns": 20,
        "n_samples": 50,
        "heads": (1, 4, 16, 64),
        "start_scales": (0.5,),
    },
)
def curvature(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_tokens: PositiveInt = 5,  # of a sample
    dimension: PositiveInt = 8,  # of a token
    n_patterns: PositiveInt = 3,  # that say nothing
    relevant_fraction: PositiveFloat = 0.2,  # share of tokens that carry the label
    noise: NonNegativeFloat = 0.1,  # bound on the noise along patterns
    free_noise: NonNegativeFloat = 0.3,  # norm of the noise orthogonal to all patterns
    n_samples: PositiveInt = 40,
    heads: Counts = (1, 4, 16, 64, 256),
    start_scales: Increasing = (0.5, 2.0),  # standard deviations of the weights where training starts
    step_size: PositiveFloat = 1.0,
    steps: PositiveInt = 100,  # from a random to a trained point
    equal_loss: PositiveFloat = 0.2,  # at which training to an equal point stops
) -> xr.Dataset:
    """Extreme eigenvalues of true Hessians beside the bounds, by number of heads and size of the weights."""
    mixture = Mixture(n_tokens, dimension, n_patterns, 1.0, relevant_fraction, noise, noise, free_noise)
    batch = draw(mixture, n_samples, seeds, device=device())[:2]

    def measured(scale: float, n_heads: int) -> dict[str, Any]:
        def start(count: int) -> Parameters:  # heads of a smaller network are those of a larger one
            rngs, sizes = [stream(seed, "random point") for seed in seeds], (count, n_tokens, dimension)
            return network.random_networks(rngs, sizes, scale=scale, device=device())

        drawn = networks(start, int(n_heads), batch, step_size, steps, equal_loss)
        found = [at_point(*drawn[name]) for name in POINTS]
        return {name: (("point", "seed"), [one[name] for one in found]) for name in found[0]}

    return sweep(measured, scale=start_scales, heads=heads).assign_coords(point=list(POINTS))


@curvature.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    over, thinner = ratios(data, data.head_norm), ratios(data, data.decoder_norm)
    ends = relative(data).isel(heads=-1) / relative(data).isel(heads=0)
    falling = data.smallest.sel(point=["random", "trained", "equal", "lone"])
    found = {
        "MH-C1.1": {"largest_ratio": highest(over["gradient"])},
        "MH-C1.2": {"largest_ratio": highest(over["smoothness"])},
        "MH-C1.3": {
            "largest_ratio": highest(over["curvature"]),
            "largest_ratio_dimension_free": highest(over["dimension_free_curvature"]),
        },
        "MH-FN4": {f"largest_{name}": highest(thinner[name]) for name in PARTS},
        "MH-B13.12": {
            "largest_smallest_eigenvalue": highest(falling),
            "largest_widest_over_single": highest(ends.sel(point=["random", "trained", "equal"])),
        },
    }
    if 2.0 not in data.scale or not np.isfinite(data.typical_head).all():  # blocks are too large to put together
        return found
    typical, whole = slope(data.typical_head / data.loss, "heads"), slope(relative(data), "heads")
    where = {"small": {"scale": 0.5, "point": "random"}, "large": {"scale": 2.0, "point": "random"}}
    where["equal"] = {"scale": 0.5, "point": "equal"}
    follows = (-data.smallest / data.worst_head).isel(heads=-1).sel(point=["random", "equal"])
    law = {f"typical_{name}": typical.sel(where[name]) for name in ("small", "large")}
    law |= {f"flatter_{name}": (whole - typical).sel(at) for name, at in where.items()}
    return found | {"MH-C1.4": law | {"whole_over_worst": lowest(follows)}}


def networks(
    start: Callable[[int], Parameters], n_heads: int, batch: Batch, step_size: float, steps: int, equal_loss: float
) -> dict[str, tuple[Parameters, Batch]]:
    """Return the networks of all seeds at each of the points, and the samples there.

    Random weights; trained for some steps; one head doing the work of a trained single head, the others zero; trained
    to equal loss; and zero weights with tokens that are all the same, or opposite, up to the label's sign.
    """
    descend = partial(network.gradient_descent, batch=batch, step_size=step_size, steps=steps)
    random, (tokens, labels) = start(n_heads), batch
    lone = {name: pad(t, (0, 0, 0, 0, 0, n_heads - 1)) for name, t in descend(start(1)).parameters.items()}
    lone["decoder"] *= math.sqrt(n_heads)  # the same function for every number of heads
    most = 10 * max(steps, 100)
    equal = network.descend_to(random, batch, step_size=step_size, loss=equal_loss, most_steps=most)
    zero = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    weights = (random, descend(random).parameters, lone, equal)
    found = {name: (one, batch) for name, one in zip(POINTS, weights, strict=False)}
    return found | {name: (zero, (near_tokens(name, tokens, labels), labels)) for name in NEAR}


def near_tokens(point: str, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return tokens of length one, plus or minus the first axis, with the sizes of given ones."""
    found, signs = torch.zeros_like(tokens), tokens.new_ones(tokens.shape[2])
    if point == "opposite tokens":
        signs[1::2] = -1
    found[..., 0] = labels[..., None] * signs
    return found


def at_point(parameters: Parameters, batch: Batch) -> dict[str, np.ndarray]:
    """Return what is measured at one point, each ``(members,)``."""
    loss, gradients = network.loss_and_gradient(parameters, batch)
    squares = torch.stack([g.square().flatten(1).sum(1) for g in gradients.values()]).sum(0)
    found = [eigenvalues({k: t[i] for k, t in parameters.items()}, batch[0][i], batch[1][i]) for i in range(len(loss))]
    norms = {
        "loss": loss,
        "gradient_norm": squares.sqrt(),
        "head_norm": network.largest_head_norm(parameters),
        "token_norm": batch[0].norm(dim=3).amax((1, 2)).clamp(min=1),
        "decoder_norm": parameters["decoder"].square().sum((2, 3)).amax(1).sqrt(),
    }
    return {name: np.array([one[name] for one in found]) for name in found[0]} | {
        name: value.cpu().numpy() for name, value in norms.items()
    }


def eigenvalues(one: Parameters, tokens: Tensor, labels: Tensor) -> dict[str, float]:
    """Return extreme eigenvalues of one network's Hessian, and of the blocks of its heads where these are small."""
    product: spectrum.Product
    if one["decoder"][0].numel() + one["key_query"][0].numel() <= LARGEST_BLOCK:
        hessian = derivatives.loss_hessian(one, tokens, labels)
        product, size, of_heads = hessian.product, hessian.size, -np.linalg.eigvalsh(hessian.blocks)[:, 0]
    else:

        def loss(p: Parameters) -> Tensor:
            return network.losses({name: t[None] for name, t in p.items()}, (tokens[None], labels[None]))[0]

        (product, size), of_heads = spectrum.hessian_product(loss, one), np.array([np.inf])
    smallest, largest = spectrum.extreme_eigenvalues(product, size, dense_below=300, tolerance=1e-3)
    if abs(smallest) < 1e-12 * largest:  # no negative curvature: a rounding error
        smallest = 0.0
    heads = {"typical_head": float(np.median(of_heads)), "worst_head": float(of_heads.max())}
    return {"smallest": smallest, "largest": largest, **heads}


def relative(data: xr.Dataset) -> xr.DataArray:
    """Return the most negative curvature over the loss."""
    return -data.smallest / data.loss


def ratios(data: xr.Dataset, norm: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return measured over stated, by part of Corollary 1, for the largest norm of a head, or of a decoder."""
    sizes = {name: data.attrs["settings"][name] for name in ("n_tokens", "dimension")}
    beta: LossConstants = loss_constants(
        **sizes, n_heads=data.heads, token_norm=data.token_norm, largest_head_norm=norm
    )
    scaled = relative(data) * np.sqrt(data.heads)
    return {
        "gradient": data.gradient_norm / (beta.gradient * data.loss),
        "smoothness": np.maximum(-data.smallest, data.largest) / beta.smoothness,
        "curvature": scaled / beta.curvature,
        "dimension_free_curvature": scaled / beta.dimension_free_curvature,
    }


LOOKS = {
    "random": Look("random weights", "#c2410c", "-.", "^"),
    "equal": Look("trained to equal loss", "#0b5cad", "-", "o"),
}
ALT = {
    "law": "Most negative curvature over the loss against the number of heads, log axes: at random weights and at equal "
    "loss it falls almost as fast as a dotted line of slope minus one half.",
    "yours": "The first picture with your networks.",
}


def law(data: xr.Dataset, yours: Mapping[str, Mapping[float, float]] | None = None) -> Figure:
    """Draw the most negative curvature over the loss against the number of heads; lines of the reader's own on top."""
    import matplotlib.pyplot as plt

    small = relative(data).sel(scale=0.5)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.1))
        for point, look in LOOKS.items():
            band(ax, data.heads, small.sel(point=point).transpose("seed", "heads"), look)
        start = 1.5 * float(small.sel(point="random").isel(heads=0).median())
        label = "halved by four times as many heads"
        ax.plot(data.heads, start / np.sqrt(data.heads), color=INK, linewidth=1, linestyle=":", label=label)
        own_lines(ax, yours)
        ax.set(yscale="log", ylabel="negative curvature / loss")
        log_axis(ax, data.heads.values, "number of heads")
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def two_parts(n_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both parts of a small Hessian: copies of one pair of heads that cancel, so that the loss is log 2."""
    tokens, labels = stream(0, "two parts").standard_normal((5, 4, 2)), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    head = network.draw_parameters(1, 4, 2, scale=1.0, rng=stream(0, "pair of heads"))
    copies = {name: torch.from_numpy(array).repeat(n_heads, 1, 1) for name, array in head.items()}
    copies["decoder"][1::2] *= -1
    hessian = derivatives.loss_hessian(copies, torch.from_numpy(tokens), torch.from_numpy(labels))
    bowl = hessian.rows.T * hessian.weights @ hessian.rows
    return bowl, hessian.dense() - bowl


def parts_frame(n_heads: int) -> Figure:
    """Draw the sizes of the entries of both parts of a Hessian, with a line between any two heads."""
    import matplotlib.pyplot as plt

    parts = dict(zip(("the bowl", "the rest"), two_parts(n_heads), strict=True))
    top, block = max(abs(part).max() for part in two_parts(2)), len(parts["the rest"]) // n_heads
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5.4, 3.1))
        for ax, (name, part) in zip(panels, parts.items(), strict=True):
            # The cube root of the size, so that small entries are seen.
            ax.imshow(np.cbrt(np.abs(part) / top), cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
            for edge in range(block, len(part), block):
                ax.axhline(edge - 0.5, color="#c2410c", linewidth=0.5)
                ax.axvline(edge - 0.5, color="#c2410c", linewidth=0.5)
            ax.set(xticks=[], yticks=[], title=name, xlabel="parameters, head after head")
            ax.grid(visible=False)
        panels[0].set_ylabel(f"{n_heads} heads")
    return figure


def parts_text(n_heads: int) -> str:
    """Say the eigenvalues that one picture of the two parts is about."""
    largest, smallest = (np.linalg.eigvalsh(part)[i] for part, i in zip(two_parts(n_heads), (-1, 0), strict=True))
    return f"{n_heads} heads. Largest eigenvalue of the bowl: {largest:.3f}. Smallest eigenvalue of the rest: {smallest:.3f}."


def slack(data: xr.Dataset) -> Table:
    """Return how far below each bound of Corollary 1 the measured values are."""
    names = ("gradient", "smoothness", "negative curvature", "the same, without dimension")
    rows: list[list[str | Measured]] = []
    for name, ratio in zip(names, ratios(data, data.head_norm).values(), strict=True):
        plain, near = (ratio.sel(point=list(points)) for points in (POINTS[:4], NEAR))
        numbers = (f"{float(one):.1g}" for one in (plain.median(), plain.max()))
        rows.append([name, *map(Measured, numbers), Measured(f"{float(near.max()):.2f}")])
    caption = f"Measured over bound: {data.sizes['seed']} seeds, all numbers of heads, both sizes of weights."
    return Table(["bound on", "ordinary, median", "ordinary, largest", "made to come near"], rows, caption)


def slopes(data: xr.Dataset) -> Table:
    """Return with which power of the number of heads curvature falls: of the median head, the worst, the whole loss."""
    rows: list[list[str | Measured]] = []
    for name, scale, point in (
        ("0.5", 0.5, "random"),
        ("0.5, trained to equal loss", 0.5, "equal"),
        ("2", 2.0, "random"),
    ):
        at = data.sel(scale=scale, point=point)
        parts = (at.typical_head / at.loss, at.worst_head / at.loss, relative(at))
        last = (at.worst_head / at.typical_head).isel(heads=-1)
        rows.append([name, *(spread(slope(part, "heads"), ".2f") for part in parts), spread(last, ".1f")])
    caption = "Powers of the number of heads, fitted from 1 to 256 heads; five seeds: median [smallest, largest]."
    heads = ["start weights", "median head", "worst head", "whole loss", "worst over median, 256 heads"]
    return Table(heads, rows, caption)


def _attention(tokens: np.ndarray, key_query: np.ndarray) -> np.ndarray:
    weights = np.exp(tokens @ key_query @ tokens.T)
    return weights / weights.sum(1, keepdims=True)


def attention_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of one head's output with respect to its key-query matrix."""
    rng = stream(1, "exercise", "MH-1")
    x, u, w = (rng.standard_normal(shape) for shape in ((5, 3), (5, 3), (3, 3)))
    a, values = _attention(x, w), u @ x.T
    right = x.T @ (a * (values - (a * values).sum(1, keepdims=True))) @ x
    likely = {
        "it is the transpose: the query token stands on the left": right.T,
        "subtract from each row its mean under attention: softmax does not change when all logits grow": (
            x.T @ (a * values) @ x
        ),
        "the mean to subtract is weighted by attention; this one is not": (
            x.T @ (a * (values - values.mean(1, keepdims=True))) @ x
        ),
    }
    return verdict(answer(*map(torch.from_numpy, (x, u, w))), right, likely, "the gradient in W")


def equal_heads(answer: Callable[..., Any]) -> str | None:
    """Check a network of equal heads that computes what one head does."""
    rng = stream(1, "exercise", "MH-3")
    x, u, w = (rng.standard_normal(shape) for shape in ((5, 3), (5, 3), (3, 3)))
    decoders, key_queries = map(np.asarray, answer(torch.from_numpy(u), torch.from_numpy(w), 7))
    if (decoders.shape, key_queries.shape) != ((7, 5, 3), (7, 3, 3)):
        shapes = [decoders.shape, key_queries.shape]
        return f"decoders and key-query matrices are wanted, of shapes (7, 5, 3) and (7, 3, 3), got {shapes}"
    if not np.allclose(decoders, decoders[0]) or not np.allclose(key_queries, key_queries[0]):
        return "all heads should be equal"
    before = np.sum(u * (_attention(x, w) @ x))
    after = np.sqrt(7) * np.sum(decoders[0] * (_attention(x, key_queries[0]) @ x))
    if np.allclose(before, after):
        return None
    if not np.allclose(key_queries[0], w):
        return "the softmax is not linear: leave W as it is and rescale U"
    return f"the output is now {after / before:.3g} times what it was; count the heads and the factor in front of them"


CHECKS = {"MH-1": attention_gradient, "MH-3": equal_heads}
