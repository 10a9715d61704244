"""Counting: bad minima, linear pieces, exact fits. The experiments of the chapter, its pictures and its exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.masks import Member, Setup, Training, train_members
from attnbook.global_attention.population import (
    label_variance,
    mean_products,
    mean_relu,
    minus_teacher,
    population_gradient,
    population_loss,
)
from attnbook.global_attention.regions import region_bound
from attnbook.global_attention.two_layer import Hessian, Softplus
from attnbook.lab import Counts, Seeds, device, experiment, lowest, sweep
from attnbook.show import LOOKS, log_axis, looks_of, style
from attnbook.train import SGD, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

TEACHER = 8  # inputs, and units of the teacher that adds up the positive parts of its inputs
BAD, FOUND = 0.005, 1e-6  # errors over the variance of labels: from which an end is bad, up to which it is exact
AT_REST = 1e-6  # norm of a gradient up to which a network counts as at rest
STUCK, FITTED = 1e-4, 1e-12  # relative losses from which a fit counts as stuck, and up to which as exact
DESCENT = SGD(0.02, momentum=0.9)
WAYS = ("no mask", "mask")
NETWORKS = ("baseline", "attention", "l1_attention")


SMALL = {"starts": 3, "steps": 20, "polish": 10, "widths": (8, 9), "seeds": (0, 1)}  # for tests


@experiment("global_attention.bad_minima", budget=60, needs="float64", smoke=SMALL)
def bad_minima(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (8, 9, 10, 12),  # of the student; the teacher has 8 units
    starts: PositiveInt = 36,  # random starts of each seed
    steps: PositiveInt = 1500,  # of gradient descent
    polish: PositiveInt = 1000,  # most steps of L-BFGS behind it
) -> xr.Dataset:
    """Where training of a network of the teacher's own size ends, on the population loss in closed form."""

    def at(width: float, way: str) -> dict[str, Any]:
        return ends(seeds, int(width), way, starts, steps, polish, max(widths))

    return sweep(at, width=widths, way=WAYS)


def ends(
    seeds: Sequence[int], width: int, way: str, starts: int, steps: int, polish: int, widest: int
) -> dict[str, Any]:
    """Train from all starts; look closely at the worst end of each seed."""
    masked = way == "mask"
    drawn = [stream(seed, "start", i) for seed in seeds for i in range(starts)]
    start = {
        "hidden": np.stack([rng.standard_normal((width, TEACHER)) / TEACHER**0.5 for rng in drawn]),
        "decoder": np.stack([rng.standard_normal(width) / width**0.5 for rng in drawn]),
        "mask": np.ones((len(drawn), TEACHER)),
    }

    def descent(now: dict[str, Tensor], batch: None) -> tuple[Tensor, dict[str, Tensor]]:
        rows, mask = now["hidden"] * now["mask"][:, None], now["mask"][:, None]
        for_rows, for_decoder = population_gradient(rows, now["decoder"])
        for_mask = (for_rows * now["hidden"]).sum(1) * masked
        gradient = {"hidden": for_rows * mask, "decoder": for_decoder, "mask": for_mask}
        return sum(part.flatten(1).square().sum(1) for part in gradient.values()).sqrt(), gradient

    now = {name: to_tensor(array, device=device(), dtype=torch.float64) for name, array in start.items()}
    options: Any = {"record": lambda p: {"slope": descent(p, None)[0]}, "record_at": (steps,)}
    now = train(descent, now, optimizer=DESCENT, steps=steps, **options).parameters
    rows, decoder = (now["hidden"] * now["mask"][:, None]).cpu(), now["decoder"].cpu()
    last = [settled(*each, polish) for each in zip(rows, decoder, strict=True)]
    error, gradient = (np.reshape([one[i] for one in last], (len(seeds), starts)) for i in (2, 3))
    worst = [look_at(*last[starts * i + int(at)][:2], widest) for i, at in enumerate(error.argmax(1))]
    seen = {name: np.array([one[name] for one in worst]) for name in worst[0]}
    found = {name: (("seed", "unit", "input")[: array.ndim], array) for name, array in seen.items()}
    return found | {"error": (("seed", "start"), error), "gradient": (("seed", "start"), gradient)}


def settled(rows: Tensor, decoder: Tensor, polish: int) -> tuple[Tensor, Tensor, float, float]:
    """Follow a network that has not found the teacher to where it is at rest, by L-BFGS."""
    from scipy.optimize import minimize

    shape = rows.shape

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        now = torch.from_numpy(flat)
        here = now[: shape.numel()].view(shape), now[shape.numel() :]
        return float(population_loss(*here)), torch.cat([part.flatten() for part in population_gradient(*here)]).numpy()

    def enough(intermediate_result: Any) -> None:
        if intermediate_result.fun < FOUND * label_variance(TEACHER):
            raise StopIteration

    flat = torch.cat([rows.flatten(), decoder]).numpy()
    if value(flat)[0] > BAD / 2 * label_variance(TEACHER):
        options = {"maxiter": polish, "maxfun": 2 * polish, "ftol": 0.0, "gtol": 1e-8, "maxcor": 30}
        flat = minimize(value, flat, jac=True, method="L-BFGS-B", options=options, callback=enough).x
    loss, gradient = value(flat)
    last = torch.from_numpy(flat)
    rows, decoder = last[: shape.numel()].view(shape), last[shape.numel() :]
    return rows, decoder, loss / label_variance(TEACHER), float(np.linalg.norm(gradient))


def look_at(rows: Tensor, decoder: Tensor, widest: int) -> dict[str, Any]:
    """Return what A5 and A6 ask of a network, its curvature and its directions, all in closed form."""
    units, weights = minus_teacher(rows, decoder)
    mean = float((mean_relu(units) * weights).sum())  # of the error u
    spread = math.sqrt(max(1e-30, float(population_loss(rows, decoder)) - mean**2))
    unit = rows / rows.norm(dim=1, keepdim=True)
    sizes = rows.shape.numel()
    flat = torch.cat([rows.flatten(), decoder])
    hessian = torch.autograd.functional.hessian(lambda v: population_loss(v[:sizes].view(rows.shape), v[sizes:]), flat)
    curvature = torch.linalg.eigvalsh(hessian)
    # The mean of x_k where a.x > 0 is a_k / |a| times that of relu(x_1); the derivative in a row is 2 u E(error h).
    average = unit * mean_relu(unit)[:, None]
    deviation = (0.5 - average.square()).sqrt()
    product = population_gradient(rows, decoder)[0] / (2 * decoder[:, None])
    features = mean_products(unit, unit)[0] - mean_relu(unit)[:, None] * mean_relu(unit)
    return {
        # directions are cosines to the units of the teacher; NaN fills up narrow networks
        "directions": np.pad(unit.numpy(), ((0, widest - len(unit)), (0, 0)), constant_values=np.nan),
        "lowest_curvature": float(curvature[0]),
        "first_curvature": float(curvature[len(rows)]),  # behind the zeros of rescaling, one for each unit
        "mean_error": abs(mean) / spread,
        "correlation": float(((product - mean * average) / (spread * deviation)).abs().max()),
        "correlation_centred": float((product / (spread * deviation)).abs().max()),
        "least_variance": float(torch.linalg.eigvalsh(features)[0]),
    }


@bad_minima.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    small = data.sel(width=TEACHER)
    bad = (small.error >= BAD) & (small.gradient <= AT_REST)
    worst = small.where(bad.any("start") & (small.error.max("start") == small.error.where(bad).max("start")))
    extremes = {
        "largest_gradient": small.gradient.where(bad).max(),
        "lowest_curvature": worst.lowest_curvature.min(),
        "first_curvature": worst.first_curvature.min(),
        "least_variance": worst.least_variance.min(),
        "largest_correlation": worst.correlation.max(),
        "largest_mean": worst.mean_error.max(),
    }
    return {
        "GA-A5": {"bad_share": bad.mean(), **{name: value.fillna(0) for name, value in extremes.items()}},
        "GA-B-init": {
            "bad_share": bad.sel(way="no mask").mean("start"),
            "bad_share_mask": bad.sel(way="mask").mean("start"),
        },
    }


FEW = {"samples": (50, 70), "steps": 10, "fresh": 100, "seeds": (0, 1)}  # for tests


@experiment("global_attention.trained_networks", budget=60, smoke=FEW)
def trained_networks(
    seeds: Seeds = (0, 1, 2, 3, 4),
    samples: Counts = (1000, 10_000, 200_000),  # the last ones without label noise, trained three times as long
    n_inputs: PositiveInt = 32,
    n_relevant: PositiveInt = 4,  # inputs that the teacher looks at
    width: PositiveInt = 32,  # hidden units, twice the teacher's
    noise: NonNegativeFloat = 0.5,  # standard deviation of the label noise
    penalty: NonNegativeFloat = 1e-2,  # L1 weight on the mask of l1_attention
    steps: PositiveInt = 2000,  # of Adam
    fresh: PositiveInt = 20_000,  # inputs on which the networks are looked at
) -> xr.Dataset:
    """Networks trained on samples: in how many pieces do new inputs lie, and are their features independent?"""

    def at(n: float) -> dict[str, Any]:
        sd, many = (0.0, 3 * steps) if n == samples[-1] else (noise, steps)
        setup = Setup(n_inputs, 10, max(1, width // 2), width, sd, fresh)
        members = [Member(model, seed, int(n), n_relevant, penalty) for seed in seeds for model in NETWORKS]
        training = Training(many, 64, 5e-3, (many,), decay=True)
        history = train_members(members, setup, training, device=device())
        pieces, variance = [], []
        for i, member in enumerate(members):
            mask, hidden = (history.parameters[name][i].cpu().double().numpy() for name in ("mask", "hidden"))
            before = stream(member.seed, "pattern inputs").standard_normal((fresh, n_inputs)) @ (hidden * mask).T
            pieces.append(len(np.unique(np.packbits(before > 0, axis=1), axis=0)))
            variance.append(np.linalg.eigvalsh(np.cov(np.maximum(before, 0).T))[0])
        found = {"patterns": pieces, "least_variance": variance, "error": history.records["test_loss"][-1]}
        return {name: (("seed", "network"), np.reshape(one, (len(seeds), -1))) for name, one in found.items()}

    return sweep(at, samples=samples).assign_coords(network=list(NETWORKS))


@trained_networks.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    few, variance = data.isel(samples=0), data.least_variance.sel(network=["baseline", "attention"])
    patterns, error = (each / each.sel(network="baseline") for each in (few.patterns, few.error))
    return {
        "GA-A5-covariance": {"smallest_variance": lowest(variance)},
        "GA-T3-patterns": {
            "l1_over_baseline": patterns.sel(network="l1_attention"),
            "error_l1_over_baseline": error.sel(network="l1_attention"),
            "attention_over_baseline": patterns.sel(network="attention"),
        },
    }


NARROW = {"n_samples": 11, "n_inputs": 5, "widths": (2, 5, 11), "steps": 5, "seeds": (0, 1)}  # for tests


@experiment("global_attention.exact_fits", budget=30, needs="float64", smoke=NARROW)
def exact_fits(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (3, 4, 5, 7, 10, 20, 40),
    n_samples: PositiveInt = 40,
    n_inputs: PositiveInt = 20,
    sharpness: PositiveFloat = 10.0,  # of softplus
    steps: PositiveInt = 300,  # at most, of Levenberg-Marquardt
) -> xr.Dataset:
    """All weights of a softplus network fitted to random labels, without and with a mask."""
    activation, where = Softplus(sharpness), device()
    drawn = [stream(seed, "small samples") for seed in seeds]
    x = np.stack([rng.standard_normal((n_samples, n_inputs)) for rng in drawn])
    y = np.stack([rng.standard_normal(n_samples) for rng in drawn])
    inputs, labels = (to_tensor(np.concatenate([a, a]), device=where, dtype=torch.float64) for a in (x, y))
    masked = torch.arange(2 * len(seeds), device=where) >= len(seeds)

    def at(width: float) -> dict[str, Any]:
        starts = [stream(seed, "initial weights", int(width)) for seed in seeds]
        hidden = np.stack([rng.standard_normal((int(width), n_inputs)) / n_inputs**0.5 for rng in starts])
        decoder = np.stack([rng.standard_normal((1, int(width))) / np.sqrt(width) for rng in starts])
        one = np.concatenate([np.ones((len(seeds), n_inputs)), hidden.reshape(len(seeds), -1), decoder[:, 0]], 1)
        start = to_tensor(np.concatenate([one, one]), device=where, dtype=torch.float64)
        weights, gradients = fit(start, inputs, labels, masked, activation, steps)
        found = np.zeros((2, len(weights)))  # loss; lowest curvature over the highest, left at 0 where the fit is exact
        for i, (flat, free) in enumerate(zip(weights, masked, strict=True)):
            mask, first, last = flat.split([n_inputs, n_inputs * int(width), int(width)])
            parts = first.view(-1, n_inputs), last[None], inputs[i], labels[i][None]
            point = Hessian(mask if free else None, *parts, activation=activation, loss="squared")
            found[0, i] = point.loss / float(labels[i].square().mean() / 2)
            if found[0, i] > FITTED:
                values = torch.linalg.eigvalsh(point.dense())
                found[1, i] = float(values[0] / values[-1])
        named = {"loss": found[0], "lowest_curvature": found[1], "gradient": gradients.cpu().numpy()}
        return {name: (("model", "seed"), np.reshape(one, (2, len(seeds)))) for name, one in named.items()}

    return sweep(at, width=widths).assign_coords(model=["baseline", "attention"])


@exact_fits.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    n, p = (data.attrs["settings"][name] for name in ("n_samples", "n_inputs"))
    between = ((p + 1) * data.width >= 2 * n) & (data.width < n)  # the mask not counted
    stuck = (data.gradient <= AT_REST) & (data.loss >= STUCK) & between
    return {
        "GA-T5-stuck": {
            "stuck_share": stuck.where(between).mean(["model", "width"]).mean(),
            "lowest_curvature": data.lowest_curvature.where(stuck, 0).min(),
            "largest_loss_from_a_quarter": data.loss.where((data.width >= n // 4) & (data.width < n)).max(),
        }
    }


def fit(
    flat: Tensor, inputs: Tensor, labels: Tensor, masked: Tensor, activation: Softplus, steps: int
) -> tuple[Tensor, Tensor]:
    """Minimise the squared error by Levenberg-Marquardt, all networks together; return weights and gradient norms."""
    n_samples, n_inputs = inputs.shape[1:]

    def residual(weights: Tensor, x: Tensor, y: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        mask, rest = torch.where(free, weights[:n_inputs], 1.0), weights[n_inputs:]
        width = len(rest) // (n_inputs + 1)
        hidden, decoder = rest[: width * n_inputs].view(width, n_inputs), rest[width * n_inputs :]
        error = activation((x * mask) @ hidden.T) @ decoder - y
        return error, error

    linearised = torch.func.vmap(torch.func.jacrev(residual, has_aux=True))
    jacobian, error = linearised(flat, inputs, labels, masked)
    damping, identity = torch.full_like(flat[:, 0], 1e-2), torch.eye(n_samples, dtype=flat.dtype, device=flat.device)
    for _ in range(steps):
        if ((jacobian.mT @ error[..., None]).norm(dim=(1, 2)) / n_samples <= 1e-13).all():
            break
        gram = jacobian @ jacobian.mT
        scale = gram.diagonal(dim1=1, dim2=2).mean(1) * damping  # falls while the loss does
        weights = torch.linalg.solve(gram + scale[:, None, None] * identity, error[..., None])
        moved = flat - (jacobian.mT @ weights)[..., 0]
        trial, after = linearised(moved, inputs, labels, masked)
        better = after.square().sum(1) < error.square().sum(1)
        flat = torch.where(better[:, None], moved, flat)
        error = torch.where(better[:, None], after, error)
        jacobian = torch.where(better[:, None, None], trial, jacobian)
        damping = torch.where(better, damping * 0.3, damping * 4).clamp(1e-14, 1e6)
    return flat, (jacobian.mT @ error[..., None]).norm(dim=(1, 2)) / n_samples


def arrows(ends: Mapping[str, Any]) -> Figure:
    """Draw the units of networks as arrows: up is the unit of the teacher that the network is farthest from."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(len(ends), 1, figsize=(7.2, 1.75 * len(ends)), squeeze=False)
        for ax, (name, rows) in zip(axes[:, 0], ends.items(), strict=True):
            cosines = np.asarray(rows, dtype=float)
            cosines = cosines[~np.isnan(cosines).any(1)]
            cosines = cosines / np.linalg.norm(cosines, axis=1, keepdims=True)
            missing = int(cosines.max(0).argmin())
            for place, unit in enumerate(cosines[cosines[:, missing].argsort()[::-1]]):
                up, color = unit[missing], "#0b5cad" if unit.max() > 0.8 else "#c2410c"
                ax.annotate("", (place + 0.8 * math.sqrt(max(0, 1 - up**2)), 0.8 * up), (place, 0.0),
                            arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 2.2})  # fmt: skip
                ax.text(place + 0.3, -1.25, f"{unit.max():.2f}", color=color, ha="center", fontsize=10)
            ax.set(xlim=(-0.4, len(cosines) + 0.1), ylim=(-1.35, 0.95), xticks=[], yticks=[], title=name)
            ax.set_ylabel("one unit of\nthe teacher →", rotation=90)
            ax.grid(visible=False)
    return figure


def by_width(data: xr.Dataset, width: int) -> Figure:
    """Draw where all starts end for one width of the student, sorted by their error."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.3))
        for way, look in looks_of(WAYS).items():
            errors = np.sort(data.error.sel(width=width, way=way).values.ravel())[::-1]
            ax.plot(np.arange(1, len(errors) + 1), np.maximum(errors, FOUND), **look.line_style(), markevery=6)
        ax.axhline(BAD, color="#5b5f66", linewidth=1, linestyle=":")
        ax.set(yscale="log", ylim=(FOUND / 2, 1), xlim=(0, data.error[0, 0].size + 1))
        ax.set(xlabel="random starts, the worst first", ylabel="error over label variance")
        ax.legend(loc="upper left")
    return figure


def by_width_text(data: xr.Dataset, width: int) -> str:
    """Say how many starts end badly for one width."""
    bad = (data.error >= BAD) & (data.gradient <= AT_REST)
    counts = [int(bad.sel(width=width, way=way).sum()) for way in WAYS]
    total = data.error[0, 0].size
    return f"{width} units: {counts[0]} of {total} starts end badly without a mask, {counts[1]} with one."


def region_bounds(n_inputs: int = 100, kept: Sequence[int] = (5, 10, 20, 50, 80)) -> Figure:
    """Draw Figure 1: the bound of Theorem 3 against the width, one curve for each number of inputs kept."""
    import matplotlib.pyplot as plt

    widths = np.unique(np.geomspace(100, 5000, 300).astype(int))
    known = {n_inputs: replace(LOOKS["baseline"], label=f"baseline, {n_inputs}")}
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.6), width_ratios=(1, 1.25))
        for ax, ticks in zip(axes, ((100, 200, 300, 400), (100, 300, 1000, 5000)), strict=True):
            for i, (size, look) in enumerate(looks_of([*kept, n_inputs], known, "mask keeps {}").items()):
                bound = [math.log10(max(1, region_bound(int(n), size))) for n in widths]
                ax.plot(widths, bound, **look.line_style(), markevery=(8 * i, 50))
            log_axis(ax, ticks, "hidden units")
        axes[0].set(xlim=(100, 400), ylim=(-1, 36), ylabel="log₁₀ of the bound", title="narrow")
        axes[1].set_title("all widths")
        axes[1].legend(fontsize=9.5)
    return figure


def first_failure(answer: Callable[..., Any]) -> str | None:
    """Check the smallest width at which Theorem 3's bound exceeds what is possible without biases."""
    sizes, widths = (2, 3, 4, 5), np.arange(1, 400)
    # Hyperplanes through the origin in general position; the others cut one of them as if it were shifted off it.
    most = [[2 * sum(math.comb(int(n) - 1, k) for k in range(s)) for n in widths] for s in sizes]
    excess = np.array([[region_bound(int(n), s) if n > s else 0 for n in widths] for s in sizes]) - most
    right = widths[(excess > 0).argmax(1)]
    likely = {
        "equal is no failure: the bound must be larger": widths[(excess >= 0).argmax(1)],
        "from there it always fails; it fails for the first time earlier": 400 - (excess[:, ::-1] <= 0).argmax(1),
        "this is the width before": right - 1,
    }
    return verdict([answer(size) for size in sizes], right, likely, "a width for each number of inputs")


def rank_of_pairs(answer: Callable[..., Any]) -> str | None:
    """Check the rank of softplus features of pairs of opposite samples."""
    cases = [(3, 5, 40), (9, 5, 40), (9, 5, 8), (20, 2, 40)]
    m, p, d = np.array(cases).T
    right = np.minimum(d, m + np.minimum(m, p))
    likely = {
        "all samples: but a pair adds only x itself to what one of its samples gives": np.minimum(d, 2 * m),
        "each pair adds a direction of the inputs, of which there are p": np.minimum(d, m),
        "there are no more columns than units": m + np.minimum(m, p),
    }
    return verdict([answer(*case) for case in cases], right, likely, "a rank for each case")


CHECKS = {"GA-L1": first_failure, "GA-L4": rank_of_pairs}
