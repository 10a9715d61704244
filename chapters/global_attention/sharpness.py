"""Sharpness: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from attnbook.core.feedback import verdict
from attnbook.core.lanczos import leading_eigenvalues
from attnbook.core.rng import stream
from attnbook.data import digits, mnist
from attnbook.global_attention import masks
from attnbook.global_attention.digit_classifiers import accuracy, loss_hessian, train_classifiers, weights_at
from attnbook.global_attention.noisy_digits import NoisyDigits, Scene, draw_noisy_digits
from attnbook.global_attention.rescaling import Minimum, hessian_scaling, output
from attnbook.lab import Increasing, Seeds, device, experiment, share_of_seeds, sweep
from attnbook.show import INK, LOOKS, Look, band, log_axis, style

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

MODELS = ("baseline", "attention")
NETWORKS = (*MODELS, "equal_loss")  # the last is attention once its loss is at most the baseline's at the end
# Hessians; folded is in diag(mask) hidden and decoder. The baseline has one only, as its mask is fixed.
SPECTRA = ("baseline", "attention", "attention_folded", "equal_loss", "equal_loss_folded")
OUTLIERS = 9  # leading eigenvalues that are apart from the bulk, one less than there are classes
IN_SAMPLE_LOSS = 0.01  # in-sample accuracy that a weight decay may take away
SMALL = {"n_train": 53, "n_test": 47, "side": 9, "width": 3, "steps": 20, "seeds": (0, 1)}  # for tests
LARGE = {"images": "mnist", "n_train": 4000, "n_test": 5000, "steps": 1800}
Pictures = Literal["digits", "mnist"]


@experiment(
    "global_attention.hessian_spectrum",
    group=1,
    budget=60,
    smoke=SMALL | {"n_eigenvalues": 7},
    full=LARGE | {"step_sizes": (0.02, 0.05, 0.1)},
)
def hessian_spectrum(
    seeds: Seeds = (0, 1, 2, 3, 4),
    images: Pictures = "digits",  # scikit-learn's digits, or MNIST shrunk to their size
    n_train: PositiveInt = 1300,  # training images
    n_test: PositiveInt = 360,  # test images
    side: PositiveInt = 24,  # of the images in pixels; 24 gives the paper's 576 inputs
    width: PositiveInt = 16,  # hidden units
    step_sizes: Increasing = (0.1,),  # of SGD with momentum 0.9; the claims are judged at the last
    steps: PositiveInt = 600,  # on batches of 64 images
    record_every: PositiveInt = 5,  # steps between looks at the training loss
    n_eigenvalues: PositiveInt = 100,  # leading ones
    tolerance: PositiveFloat = 0.01,  # largest residual of an eigenvalue, relative to it
) -> xr.Dataset:
    """Figure 3: leading eigenvalues of the Hessian after equal numbers of steps and at equal training loss."""
    where = device()

    def one(seed: int, step_size: float) -> dict[str, Any]:
        data, sizes = noisy(images, n_train, n_test, side, seed), {"width": width, "steps": steps}
        training: dict[str, Any] = sizes | {"step_size": step_size, "record_every": record_every, "device": where}
        history = train_classifiers(data, seed, (False, True), (0.0, 0.0), **training)
        losses, last = history.records["train_loss"], len(history.steps) - 1
        reached = losses[:, 1] <= losses[-1, 0]
        equal = int(reached.argmax()) if reached.any() else last
        places = dict(zip(NETWORKS, ((last, 0), (last, 1), (equal, 1)), strict=True))
        networks = {name: weights_at(history, *place, device=where) for name, place in places.items()}
        leading = []
        for spectrum in SPECTRA:
            folded = spectrum == "baseline" or spectrum.endswith("_folded")
            whole = loss_hessian(networks[spectrum.removesuffix("_folded")], data, folded=folded)
            options: dict[str, Any] = {"device": where, "dtype": whole.gradient.dtype, "block": 16}
            leading.append(leading_eigenvalues(whole, whole.size, n_eigenvalues, tolerance=tolerance, **options))
        return {
            "train_loss": ("network", [losses[place] for place in places.values()]),
            "accuracy": ("network", [accuracy(one, data.test, data.test_labels) for one in networks.values()]),
            "stopped_at": history.steps[equal],
            "eigenvalues": (("spectrum", "rank"), np.array([one.values for one in leading])),
            "lowest": ("spectrum", [one.lowest for one in leading]),  # the smallest eigenvalue is at most this
        }

    found = sweep(one, seed=seeds, step_size=step_sizes)
    return found.assign_coords(network=list(NETWORKS), spectrum=list(SPECTRA), rank=range(1, n_eigenvalues + 1))


@hessian_spectrum.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    first = data.isel(step_size=-1)
    ratio, loss = over_baseline(first.eigenvalues, "spectrum"), over_baseline(first.train_loss, "network")
    top, gain = ratio.sel(rank=1), first.accuracy - first.accuracy.sel(network="baseline")
    return {
        "GA-F3-bulk": {"rank_50_ratio": ratio.sel(spectrum="attention").isel(rank=ratio.sizes["rank"] // 2 - 1)},
        "GA-F3-top": {
            "top_ratio": top.sel(spectrum="attention"),
            "folded_top_ratio": top.sel(spectrum="attention_folded"),
        },
        "GA-F3-equal-loss": {
            "top_ratio": top.sel(spectrum="equal_loss"),
            "folded_top_ratio": top.sel(spectrum="equal_loss_folded"),
            "accuracy_gain": gain.sel(network="equal_loss"),
            "train_loss_ratio": loss.sel(network="equal_loss"),
        },
    }


@experiment(
    "global_attention.weight_decay",
    group=1,
    budget=50,
    smoke=SMALL,
    full=LARGE | {"decays": (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)},
)
def weight_decay(
    seeds: Seeds = (0, 1, 2, 3, 4),
    images: Pictures = "digits",  # scikit-learn's digits, or MNIST shrunk to their size
    n_train: PositiveInt = 1300,  # training images
    n_test: PositiveInt = 360,  # test images
    side: PositiveInt = 24,  # of the images in pixels
    width: PositiveInt = 16,  # hidden units
    step_size: PositiveFloat = 0.1,  # of SGD with momentum 0.9
    steps: PositiveInt = 600,  # on batches of 64 images
    decays: Increasing = (0.0, 1e-3, 3e-3, 1e-2),  # of both layers, not of the mask; from 0 on
) -> xr.Dataset:
    """Accuracy on training and test images by weight decay, without and with a mask."""
    if decays[0] != 0 or len(decays) < 2:
        raise ValueError(f"decays: expected 0 and then increasing numbers, got {decays}")

    def one(seed: int) -> dict[str, Any]:
        data, each = noisy(images, n_train, n_test, side, seed), len(decays)
        training: dict[str, Any] = {"width": width, "steps": steps, "record_every": steps, "device": device()}
        history = train_classifiers(
            data, seed, (False,) * each + (True,) * each, decays * 2, step_size=step_size, **training
        )
        networks = [weights_at(history, -1, member, device=device()) for member in range(2 * each)]
        parts = {"train": (data.train, data.train_labels), "test": (data.test, data.test_labels)}
        found = {
            f"{part}_accuracy": np.array([accuracy(network, *samples) for network in networks])
            for part, samples in parts.items()
        } | {"train_loss": history.records["train_loss"][-1]}
        return {name: (("model", "decay"), values.reshape(2, each)) for name, values in found.items()}

    return sweep(one, seed=seeds).assign_coords(model=list(MODELS), decay=list(decays))


@weight_decay.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    gain = data.test_accuracy - data.test_accuracy.isel(decay=0)
    chosen, best = gain.isel(decay=allowed_decay(data)), gain.max("decay")
    values = {f"gain_{model}": chosen.sel(model=model) for model in MODELS}
    return {"GA-G1-l2-accuracy": values | {f"best_gain_{model}": best.sel(model=model) for model in MODELS}}


@experiment("global_attention.orbit", budget=20, needs="cpu", smoke={"points": 5, "seeds": (0, 1)})
def orbit(
    seeds: Seeds = (0, 1, 2, 3, 4),
    points: PositiveInt = 31,  # of the map, along each axis
    reach: PositiveFloat = 3.0,  # largest natural logarithm of a factor on the map
) -> xr.Dataset:
    """Theorem 4: sharpness on the orbit of exact minima, what A2 and A4 allow, and where an L2 penalty is least."""
    logs = np.linspace(-reach, reach, points)
    drawn = {seed: Minimum.draw(seed) for seed in seeds}

    def at(seed: int, log_mask: float, log_hidden: float) -> dict[str, Any]:
        factors = math.exp(log_mask), math.exp(log_hidden)
        return {"sharpness": drawn[seed].sharpness(*factors), "allowed": drawn[seed].allowed(*factors)}

    found = sweep(at, seed=seeds, log_mask=logs, log_hidden=logs)
    least = [one.sharpness(1.0, one.least_penalty_factor(1.0)) for one in drawn.values()]
    return found.assign(penalised_sharpness=("seed", least))


@orbit.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    plane = ["log_mask", "log_hidden"]
    flattest = data.sharpness.min(plane)
    return {
        "GA-T4-orbit": {
            "sharpest_allowed": data.sharpness.where(data.allowed > 0).max(plane) / flattest,
            "sharpest_mapped": data.sharpness.max(plane) / flattest,
        },
        "GA-G1-l2-sharp": {"chosen_over_flattest": data.penalised_sharpness / flattest},
    }


@experiment("global_attention.norms", budget=20, smoke={"n_samples": 50, "steps": 10, "width": 4, "seeds": (0, 1)})
def norms(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_inputs: PositiveInt = 32,
    n_relevant: PositiveInt = 4,  # inputs that the teacher looks at
    width: PositiveInt = 32,  # hidden units, twice the teacher's
    n_samples: PositiveInt = 1000,  # training samples
    noise: NonNegativeFloat = 0.5,  # standard deviation of the label noise
    steps: PositiveInt = 2000,  # of Adam
) -> xr.Dataset:
    """C.1: norms of the layers of the networks of Table 1, smaller, without and with a mask."""
    setup = masks.Setup(n_inputs, 10, max(1, width // 2), width, noise, n_samples)
    members = [masks.Member(model, seed, n_samples, n_relevant) for seed in seeds for model in MODELS]
    training = masks.Training(steps, 64, 5e-3, record_at=(steps,), decay=True)
    last = masks.train_members(members, setup, training, device=device()).parameters
    layers = {"first": last["hidden"], "masked": last["hidden"] * last["mask"][:, None], "second": last["decoder"]}
    found = np.stack([layer.flatten(1).norm(dim=1).cpu().numpy() for layer in layers.values()], -1)
    values = found.reshape(len(seeds), len(MODELS), -1)
    return xr.Dataset({"norm": (("seed", "model", "layer"), values)}, {"model": list(MODELS), "layer": list(layers)})


@norms.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    ratio = data.norm.sel(model="baseline") / data.norm.sel(model="attention")
    raw, masked = ratio.sel(layer=["first", "second"]), ratio.sel(layer="masked")
    values = {f"{name}_layer_ratio": ratio.sel(layer=name) for name in ("first", "second")}
    return {
        "GA-T1-norms": {"share_of_seeds": share_of_seeds((raw >= 1).all("layer")), **values},
        "GA-T1-norms-masked": {"share_of_seeds": share_of_seeds(masked >= 1), "masked_layer_ratio": masked},
    }


def noisy(images: str, n_train: int, n_test: int, side: int, seed: int) -> NoisyDigits:
    """Draw digits of 8 x 8 pixels amid noise."""
    pictures = digits() if images == "digits" else mnist(stand_in=False)
    return draw_noisy_digits(pictures, Scene(side, 8), n_train=n_train, n_test=n_test, seed=seed)


def over_baseline(values: xr.DataArray, dimension: str) -> xr.DataArray:
    """Return values over the baseline's, seed by seed."""
    return values / values.sel({dimension: "baseline"}, drop=True)


def allowed_decay(data: xr.Dataset) -> xr.DataArray:
    """Return the position of the last weight decay before one takes more than a point of in-sample accuracy."""
    good = (data.train_accuracy >= data.train_accuracy.isel(decay=0) - IN_SAMPLE_LOSS).astype(int)
    return good.cumprod("decay").sum("decay") - 1


RANK = "rank of the eigenvalue"
STEPS = Look("after equal numbers of steps", "#0b5cad", "-", "o")
LOSS = Look("at equal training loss", "#c2410c", "--", "s")


def ratios(data: xr.Dataset, yours: Mapping[str, float] | None = None) -> Figure:
    """Draw the eigenvalues with a mask over those without one, by rank, in two comparisons; yours at rank 1."""
    import matplotlib.pyplot as plt

    ratio = over_baseline(data.eigenvalues.isel(step_size=-1), "spectrum").transpose("seed", "spectrum", "rank")
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        for spectrum, look in (("attention", STEPS), ("equal_loss", LOSS)):
            band(ax, data["rank"].values, ratio.sel(spectrum=spectrum).values, look)
            ax.lines[-1].set_markevery(0.1)
        for (name, value), marker in zip((yours or {}).items(), "P*Xphv<>", strict=False):
            ax.plot(1, value, marker=marker, markersize=10, linestyle="none", color="#7c3aed", label=f"yours: {name}")
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        log_axis(ax, (1, 2, 5, 10, 20, 50, 100), RANK)
        ax.set(yscale="log", ylabel="eigenvalue with a mask\nover that without", ylim=(0.4, 3.2))
        ax.set_yticks((0.5, 1, 2, 3), ("0.5", "1: equal", "2", "3"))
        ax.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def spectra(data: xr.Dataset) -> Figure:
    """Draw Figure 3 twice: after equal numbers of steps, and at equal training loss."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.3))
        for ax, name, title in zip(axes, NETWORKS[1:], (STEPS.label, LOSS.label), strict=True):
            for spectrum, look in (("baseline", LOOKS["baseline"]), (name, LOOKS["attention"])):
                values = data.eigenvalues.isel(step_size=-1).sel(spectrum=spectrum)
                band(ax, data["rank"].values, values.transpose("seed", "rank").values, look)
                ax.lines[-1].set_markevery(0.1)
            ax.set(yscale="log", title=title)
            ax.axvline(OUTLIERS + 0.5, color=INK, linewidth=1, linestyle=":")
            log_axis(ax, (1, 2, 5, 10, 20, 50, 100), RANK)
        axes[0].set_ylabel("eigenvalue of the Hessian")
        axes[0].legend(loc="lower left")
    return figure


def orbit_map(data: xr.Dataset) -> Figure:
    """Draw the sharpness over the orbit of the first minimum, what A2 and A4 allow, and the least L2 penalty."""
    import matplotlib.pyplot as plt

    first, minimum = data.isel(seed=0), Minimum.draw(int(data.seed[0]))
    values = np.log10(first.sharpness.transpose("log_hidden", "log_mask").values)
    axis, levels = data.log_mask.values / np.log(10), np.arange(np.floor(2 * values.min()), 2 * values.max() + 1) / 2
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 4.0))
        bands = ax.contourf(axis, axis, values, levels, cmap="cividis")
        figure.colorbar(bands, label="log₁₀ of the largest eigenvalue")
        x, y, product = np.log10(minimum.limits)
        side = x + y - product
        ax.plot([x, x - side, x, x], [y, y, y - side, y], color="white", linewidth=2.4)
        ax.text(x, y + 0.03, "allowed by A2 and A4", color="white", ha="right", va="bottom", fontsize=9.5)
        ax.plot(0, 0, marker="o", color="white", markersize=8, markeredgecolor=INK)
        least = [np.log10(minimum.least_penalty_factor(10**x)) for x in axis]
        ax.plot(axis, least, color="white", linewidth=1.6, linestyle="--")
        ax.text(axis[-1] - 0.04, least[-1], "least L2 penalty", color="white", ha="right", va="top", fontsize=9.5)
        ax.set(xlabel="log₁₀ of the factor of the mask, α₁", ylabel="log₁₀ of the factor\nof the first layer, α₂")
        ax.set(xlim=axis[[0, -1]], ylim=axis[[0, -1]])
        ax.grid(visible=False)
    return figure


def orbit_frame(minimum: Minimum, mask_factor: float, hidden_factor: float) -> Figure:
    """Draw function and spectrum at one point of the orbit, on top of those at the start."""
    import matplotlib.pyplot as plt

    t, (direction, middle) = np.linspace(-2, 2, 81), stream(0, "line").standard_normal((2, len(minimum.mask)))
    line = t[:, None] * direction + middle / 2
    before = {"label": "before", "color": "#9ca3af", "linewidth": 6}
    after = {"label": "rescaled", "color": "#4338ca", "linestyle": "--"}
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
        for factors, look in (((1.0, 1.0), before), ((mask_factor, hidden_factor), after)):
            left.plot(t, output(minimum.network(*factors), line)[0], **look)
            right.plot(np.arange(1, 31), np.maximum(minimum.eigenvalues(*factors)[:30], 1e-9), **look)
        left.set(xlabel="position on a line of inputs", ylabel="output", title="the function")
        right.set(yscale="log", ylim=(1e-7, 1e6), xlabel=RANK, ylabel="eigenvalue", title="the curvature")
        left.legend()
    return figure


def orbit_text(minimum: Minimum, mask_factor: float, hidden_factor: float) -> str:
    """Say by how much one picture of the slider is sharper than the first."""
    ratio = minimum.sharpness(mask_factor, hidden_factor) / minimum.sharpness(1.0, 1.0)
    return (
        f"Mask times {mask_factor:g}, first layer times {hidden_factor:g}, second layer divided by both: "
        f"the largest eigenvalue is {ratio:.3g} times what it was."
    )


def decays(data: xr.Dataset) -> Figure:
    """Draw accuracy on training and test images by weight decay, a ring around the decay that the rule chooses."""
    import matplotlib.pyplot as plt

    shown, ticks = np.arange(data.sizes["decay"]), [f"{decay:g}" for decay in data.decay.values]
    chosen = allowed_decay(data).median("seed")
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.2))
        for ax, part in zip(axes, ("train", "test"), strict=True):
            for model in MODELS:
                values = 100 * data[f"{part}_accuracy"].sel(model=model).transpose("seed", "decay")
                band(ax, shown, values.values, LOOKS[model])
                at = round(float(chosen.sel(model=model)))
                ring = {"marker": "o", "markersize": 15, "color": LOOKS[model].color, "markerfacecolor": "none"}
                ax.plot(at, values.median("seed")[at], **ring)
            ax.set_xticks(shown, ticks, rotation=45)
            ax.set(title=f"{'training' if part == 'train' else 'new'} images", xlabel="weight decay")
        axes[0].set_ylabel("accuracy, %")
        axes[0].legend()
    return figure


def flattest(answer: Callable[..., Any]) -> str | None:
    """Check the smallest largest eigenvalue over the orbit of rescalings."""
    p, d, matrix = 3, 2, example(11)
    factors = np.exp(np.linspace(-1.5, 1.5, 61))
    scalings = np.array([[hessian_scaling(p, d, a, b) for b in factors] for a in factors])
    tops = np.linalg.eigvalsh(matrix * scalings[..., None] * scalings[..., None, :])[..., -1]
    middle = len(factors) // 2
    likely = {
        "this is the largest eigenvalue at the start; other points of the orbit are flatter": tops[middle, middle],
        "only the mask's factor moves; the first layer has one as well": tops[:, middle].min(),
        "only the first layer's factor moves; the mask has one as well": tops[middle].min(),
        "this is its logarithm": np.log(tops.min()),
    }
    wanted = "one number, the largest eigenvalue at the flattest point,"
    return verdict(answer(matrix.copy(), p, d), tops.min(), likely, wanted, rtol=0.01)


def relative(answer: Callable[..., Any]) -> str | None:
    """Check a sharpness that no rescaling changes."""
    matrix, weights = example(7), stream(2, "exercise", "GA-L3").standard_normal(7)

    def top(factors: np.ndarray) -> float:
        return float(np.linalg.eigvalsh(factors[:, None] * matrix * factors)[-1])

    likely = {
        "this is the largest eigenvalue itself: rescaling changes it": top(np.ones(7)),
        "divided instead of multiplied: weights that grow make the Hessian shrink": top(1 / weights),
        "each index gets its weight once, not twice": top(weights**2),
        "the norm of all weights is one factor for all, but each layer has its own": top(np.ones(7))
        * float(weights @ weights),
    }
    return verdict(answer(matrix.copy(), weights.copy()), top(weights), likely, "one number, the largest eigenvalue,")


def example(size: int) -> np.ndarray:
    """Return a Hessian for the exercises."""
    half = stream(1, "exercise", "GA-L2").standard_normal((size, size))
    return half @ half.T


CHECKS = {"GA-L2": flattest, "GA-L3": relative}
