"""Digits in noise: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.data import Images, digits, mnist
from attnbook.global_attention.digit_training import CLASSES, MODELS, Member, Model, Training, train_members
from attnbook.global_attention.noisy_digits import Scene
from attnbook.lab import Increasing, Seeds, device, experiment, sweep
from attnbook.show import LOOKS, Look, curves, legend_above, own_lines, style

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Panel: TypeAlias = Literal["figure_2", "uniform", "plain", "uniform_plain", "figure_4", "figure_5", "figure_6"]
Source: TypeAlias = Literal["digits", "mnist"]  # scikit-learn's, which need no file, or MNIST

# Scene and momentum. Figure 2's images are those of Figure 3, with 576 inputs; its digit of 8 pixels is our choice.
PANELS: dict[str, tuple[Scene, float]] = {
    "figure_2": (Scene(24, 8, "normal"), 0.9),
    "uniform": (Scene(24, 8, "uniform"), 0.9),
    "plain": (Scene(24, 8, "normal"), 0.0),
    "uniform_plain": (Scene(24, 8, "uniform"), 0.0),
    "figure_4": (Scene(48, 15, "normal"), 0.9),
    "figure_5": (Scene(48, 8, "normal"), 0.9),
    "figure_6": (Scene(48, 5, "normal"), 0.9),
}
FIGURES = ("figure_4", "figure_5", "figure_6")
CURVES = ("accuracy", "test_loss", "train_loss")
BATCH = 64  # images per step
LEARNS = 0.3  # a setting counts when one of the networks has learned: three times as good as guessing
CEILING = 1e4  # what a network that diverged is given as its loss
GUESSING = float(np.log(CLASSES))  # the loss of guessing
INSIDE = PANELS["figure_2"][0].patch == 1  # pixels of the digit, of 24 x 24

# The four networks of the chapter's program: model, and which option of a member takes the weight of its penalty.
NETWORKS: dict[str, tuple[Any, ...]] = {
    "no mask": ("baseline",),
    "mask": ("attention",),
    "L1 mask": ("l1_attention", "penalty"),
    "group": ("baseline", "group_lasso"),
}
STEP_SIZE = 0.03  # of all four
# Model, and which option of a member takes the strength of the penalty.
PATHS: dict[str, tuple[Model, str]] = {
    "l1_mask": ("l1_attention", "penalty"),
    "l2_baseline": ("baseline", "decay"),
    "group_baseline": ("baseline", "group_lasso"),
}
SMOKE = {"n_train": 30, "n_test": 20, "width": 3, "steps": 8, "seeds": (0, 1)}
LARGE = {"images": "mnist", "n_train": 5000, "n_test": 2000, "width": 128, "steps": 1000}


def load(images: Source) -> Images:
    """Return the digits; DataError where MNIST is wanted and cannot be had."""
    return digits() if images == "digits" else mnist(stand_in=False)


def looks(steps: int) -> tuple[int, ...]:
    """Return steps to look at: the start, and some evenly spaced on a log axis over the last factor of 50."""
    spaced = np.round(np.geomspace(max(1.0, steps / 50), steps, 14)).astype(int)
    return tuple(sorted({0, *spaced.tolist()}))


def trained(
    panel: str, members: list[Member], axes: Mapping[str, Sequence[Any]], images: Source, sizes: tuple[int, ...]
) -> xr.Dataset:
    """Train networks; return curves, and the strength of each pixel, with the members along axes.

    The sizes are the numbers of steps, hidden units, and training and test images.
    """
    steps, width, n_train, n_test = sizes
    training = Training(steps, BATCH, PANELS[panel][1], width, n_train, n_test, looks(steps))
    found = train_members(members, load(images), training, device=device()).records
    shape, dims = [len(values) for values in axes.values()], ("record", *axes)
    data = xr.Dataset({name: (dims, np.minimum(found[name], CEILING).reshape(-1, *shape)) for name in CURVES})
    data["strength"] = (*dims, "pixel"), found["strength"].reshape(-1, *shape, members[0].scene.n_pixels)
    labels = {name: list(values) for name, values in axes.items() if name != "seed"}
    return data.assign_coords(step=("record", list(looks(steps))), **labels)


@experiment("global_attention.four_networks", group=1, budget=20, smoke=SMOKE)
def four_networks(
    seeds: Seeds = (10, 11, 12, 13, 14),
    penalty: NonNegativeFloat = 0.01,  # weight of both penalties
    step_size: PositiveFloat = STEP_SIZE,  # of gradient descent with momentum
    n_train: PositiveInt = 1400,  # training images of each seed
    n_test: PositiveInt = 360,  # test images of each seed
    width: PositiveInt = 32,  # hidden units
    steps: PositiveInt = 400,
) -> xr.Dataset:
    """The networks of the chapter's program: with and without a mask, with and without a penalty."""
    members = [
        Member(model, seed, PANELS["figure_2"][0], step_size, **dict.fromkeys(option, penalty))
        for seed in seeds
        for model, *option in NETWORKS.values()
    ]
    axes = {"seed": seeds, "network": list(NETWORKS)}
    data = trained("figure_2", members, axes, "digits", (steps, width, n_train, n_test))
    # Some maps, and of one seed: what has no axis of seeds is kept of the first group.
    maps = data.strength.isel(seed=0, record=slice(None, None, 2)).swap_dims(record="shot").drop_vars("step")
    return data.drop_vars("strength").assign(strength=maps.assign_coords(shot=list(looks(steps)[::2])))


@experiment(
    "global_attention.noisy_mnist", group=1, budget=60,
    smoke=SMOKE | {"width_large": 3, "step_sizes": (0.05, 0.1), "panels": tuple(PANELS)},
    full=LARGE | {"width_large": 128, "step_sizes": (0.001, 0.01, 0.05, 0.1, 0.2), "panels": tuple(PANELS)},
)  # fmt: skip
def noisy_mnist(
    seeds: Seeds = (0, 1, 2, 3, 4),
    images: Source = "digits",  # scikit-learn's, or MNIST
    n_train: PositiveInt = 1400,  # training images of each seed
    n_test: PositiveInt = 360,  # test images of each seed
    width: PositiveInt = 32,  # hidden units for images of 24 x 24; 128 in the paper
    width_large: PositiveInt = 16,  # hidden units for images of 48 x 48; 128 in the paper
    steps: PositiveInt = 400,
    panels: tuple[Panel, ...] = ("figure_2", "uniform_plain", "figure_4", "figure_5"),
    step_sizes: Increasing = (0.01, 0.05, 0.1, 0.2),
    read_at: PositiveFloat = 0.1,  # step size at which Figure 2 is read, fixed before the first run
    penalty: NonNegativeFloat = 1e-3,  # L1 weight on the mask in images of 24 x 24
    penalty_large: NonNegativeFloat = 3e-4,  # the same in images of 48 x 48
) -> xr.Dataset:
    """Figures 2, 4, 5 and 6: small digits in large images of noise, with and without a mask."""
    if read_at not in step_sizes:
        raise ValueError(f"read_at: expected one of step_sizes = {step_sizes}, got {read_at}")
    axes = {"seed": seeds, "step_size": step_sizes, "model": MODELS}

    def one(panel: str) -> xr.Dataset:
        scene, large = PANELS[panel][0], panel in FIGURES
        weight, units = (penalty_large, width_large) if large else (penalty, width)
        members = [Member(m, s, scene, size, weight) for s in seeds for size in step_sizes for m in MODELS]
        return trained(panel, members, axes, images, (steps, units, n_train, n_test))[list(CURVES)]

    return sweep(one, panel=panels)


@noisy_mnist.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    first, lead = data.sel(panel="figure_2"), leads(data)
    read, tuned, counted = first.sel(step_size=data.attrs["settings"]["read_at"]), at_best_size(first), lead.notnull()
    figure_2 = {
        "": read.accuracy.isel(record=-1), "loss_": read.test_loss.min("record"),
        "train_steps_": steps_to(tuned.train_loss, GUESSING / 2), "test_steps_": steps_to_test_loss(tuned),
    }  # fmt: skip
    every = {"fraction_held": (lead > 0.01).sum() / np.maximum(counted.sum(), 1), "settings": counted.sum()}
    return {"GA-F2": of_models(figure_2), "GA-F2-every": {**every, "not_counted": (~counted).sum()}}


@experiment(
    "global_attention.smallest_step", group=1, budget=60, smoke=SMOKE,
    full=LARGE | {"n_train": 20_000, "n_test": 5000, "steps": 20_000, "seeds": (0, 1, 2)},
)  # fmt: skip
def smallest_step(
    seeds: Seeds = (0, 1),  # what a minute allows
    images: Source = "digits",  # scikit-learn's, or MNIST
    n_train: PositiveInt = 1400,  # training images of each seed
    n_test: PositiveInt = 360,  # test images of each seed
    width: PositiveInt = 16,  # hidden units; 128 in the paper
    steps: PositiveInt = 4000,
    step_size: PositiveFloat = 1e-3,  # the only one in the text
) -> xr.Dataset:
    """Figures 4 to 6 at step size 0.001, the only one in the text, trained until the networks learn."""
    axes = {"seed": seeds, "model": MODELS[:2]}

    def one(figure: str) -> xr.Dataset:
        members = [Member(m, s, PANELS[figure][0], step_size) for s in seeds for m in MODELS[:2]]
        return trained(figure, members, axes, images, (steps, width, n_train, n_test))[list(CURVES)]

    return sweep(one, panel=FIGURES)


@smallest_step.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    found = {}
    for panel in FIGURES:
        one = data.sel(panel=panel)
        goal = 0.9 * one.accuracy.isel(record=-1).sel(model="baseline", drop=True)
        steps = {"steps_": steps_to(-one.accuracy, -goal), "loss_steps_": steps_to_test_loss(one)}
        found[f"GA-F{panel[-1]}"] = of_models({"": one.accuracy.isel(record=-1), **steps})
    return found


@experiment(
    "global_attention.pixel_penalties", group=1, budget=60,
    smoke=SMOKE | {"step_sizes": (0.05, 0.1), "strengths": (0.0, 1e-3)},
    full=LARGE | {"step_sizes": (0.003, 0.01, 0.03, 0.1, 0.2), "seeds": (0, 1, 2, 3, 4)},
)  # fmt: skip
def pixel_penalties(
    seeds: Seeds = (10, 11, 12, 13, 14),
    images: Source = "digits",  # scikit-learn's, or MNIST
    n_train: PositiveInt = 1400,  # training images of each seed
    n_test: PositiveInt = 360,  # test images of each seed
    width: PositiveInt = 32,  # hidden units; 128 in the paper
    steps: PositiveInt = 400,
    step_sizes: Increasing = (0.01, 0.03, 0.1, 0.2),  # the same for all
    strengths: Increasing = (0.0, 1e-3, 3e-3, 1e-2, 3e-2),  # of the penalties, the same for all
) -> xr.Dataset:
    """A group penalty on pixels without a mask beside an L1 penalty on the mask, tuned alike."""
    axes = {"seed": seeds, "step_size": step_sizes, "strength": strengths}

    def along(path: str) -> xr.Dataset:
        (model, option), scene = PATHS[path], PANELS["figure_2"][0]
        grid = [((seed, scene, size), strength) for seed in seeds for size in step_sizes for strength in strengths]
        members = [Member(model, *one, **{option: strength}) for one, strength in grid]
        return trained("figure_2", members, axes, images, (steps, width, n_train, n_test))[list(CURVES)]

    return sweep(along, path=PATHS)


@pixel_penalties.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    final = data.isel(record=-1)

    def best(path: str, among: xr.Dataset = final) -> dict[str, Any]:
        return among.accuracy.sel(path=path).median("seed").argmax(("step_size", "strength"))

    plain = final.isel(strength=[0])
    places = {"baseline": ("l2_baseline", plain), "attention": ("l1_mask", plain)}
    places |= {path: (path, final) for path in PATHS}
    found = {name: final.accuracy.sel(path=path).isel(best(path, of)) for name, (path, of) in places.items()}
    # Both without a penalty, at their own best step sizes: the mask where its training loss is the other's last.
    without, masked = (data.sel(path=path).isel(best(path, plain)) for path in ("l2_baseline", "l1_mask"))
    found["equal_attention"] = at_equal_loss(masked, without.train_loss.isel(record=-1))
    return {"GA-X-digits-sparse": found}


def at_best_size(panel: xr.Dataset) -> xr.Dataset:
    """Return the curves of each model at its best step size, the one with the highest median of final accuracies."""
    chosen = panel.accuracy.isel(record=-1).median("seed").idxmax("step_size")
    return panel[list(CURVES)].sel(step_size=chosen)


def leads(data: xr.Dataset) -> xr.DataArray:
    """Return by how much the mask's median accuracy is ahead, by setting; NaN where neither network has learned."""
    ahead, behind = (data.accuracy.isel(record=-1).sel(model=m, drop=True).median("seed") for m in MODELS[1::-1])
    return (ahead - behind).where(np.maximum(ahead, behind) >= LEARNS)


def steps_to_test_loss(data: xr.Dataset) -> xr.DataArray:
    """Return the steps to a test loss halfway from guessing to the lowest that baseline and attention both reach."""
    loss = data.test_loss.isel(model=[0, 1])
    return steps_to(loss, (GUESSING + loss.min("record").max("model")) / 2)


def steps_to(loss: xr.DataArray, target: xr.DataArray | float) -> xr.DataArray:
    """Return the step at which a curve first falls to a value, on the line between two records; the last if never."""

    def first(curve: np.ndarray, limit: float) -> float:
        there = np.flatnonzero(curve <= limit)
        if not there.size or not there[0]:
            return float(steps[0 if there.size else -1])
        i = there[0]
        return float(steps[i] - (steps[i] - steps[i - 1]) * (limit - curve[i]) / (curve[i - 1] - curve[i]))

    steps = loss.step.values
    return xr.apply_ufunc(first, loss, target, input_core_dims=[["record"], []], vectorize=True)


def at_equal_loss(data: xr.Dataset, target: xr.DataArray) -> xr.DataArray:
    """Return the accuracy where the training loss first falls to a value, on lines between records (of log losses)."""
    reached = steps_to(np.log(data.train_loss.clip(1e-12)), np.log(target.clip(1e-12)))
    dims: list[list[str]] = [["record"], []]
    read = lambda accuracy, step: np.interp(step, data.step.values, accuracy)  # noqa: E731
    return xr.apply_ufunc(read, data.accuracy, reached, input_core_dims=dims, vectorize=True)


def of_models(found: dict[str, xr.DataArray]) -> dict[str, xr.DataArray]:
    """Baseline and attention of each, by name."""
    named = enumerate(MODELS[:2])
    return {prefix + m: values.isel(model=i, drop=True) for i, m in named for prefix, values in found.items()}


BY_NETWORK = {
    "no mask": replace(LOOKS["baseline"], label="no mask"),
    "mask": replace(LOOKS["attention"], label="mask"),
    "L1 mask": replace(LOOKS["l1_attention"], label="L1 mask"),
    "group": Look("group penalty, no mask", "#0f4f4a", (0, (5, 1)), "v"),
}
BY_MODEL = dict(zip(MODELS, BY_NETWORK.values(), strict=False))  # the first three
BY_PATH = {
    "l1_mask": BY_NETWORK["L1 mask"],
    "group_baseline": BY_NETWORK["group"],
    "l2_baseline": Look("L2 penalty, no mask", "#8a5a00", ":", "s"),
}
ACCURACY, STEPS = "test accuracy", "training steps"
ALT = {
    "first": "Left: an image of noise with a small digit in the middle. Right: test accuracy against training steps; "
    "without a mask it stops at 0.64, with one at 0.74, and with a penalty near 0.86, with and without a mask.",
    "penalties": "Test accuracy against the strength of a penalty: the group penalty without a mask comes close to the "
    "L1 mask and is above an unpenalised mask; an L2 penalty gains little.",
    "figure 2": "MNIST: with a mask test accuracy rises earlier and higher than without.",
    "smallest": "MNIST, step size 0.001: curves start together; a mask ends higher, most for the smallest digit.",
}


def named(panel: str) -> str:
    """Return what figures call a panel."""
    scene, momentum = PANELS[panel]
    figure = f" (Figure {panel[-1]})" if panel.startswith("figure") else f", {scene.noise} noise"
    return f"{scene.digit_size} in {scene.image_size}{figure}{'' if momentum else ', no momentum'}"


def first(data: xr.Dataset, image: Any, yours: Mapping[str, Mapping[float, float]] | None = None) -> Figure:
    """Draw an image, and the test accuracy of the four networks against steps, with a reader's own."""
    import matplotlib.pyplot as plt

    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), width_ratios=(1, 2))
        picture(left, image, "one image", "gray", -1.0, 1.5)
        lines = data.accuracy.isel(record=slice(1, None)).swap_dims(record="step")
        curves(right, lines, "step", "network", BY_NETWORK)
        own_lines(right, yours)
        right.set(xscale="log", xlabel=STEPS, ylabel=ACCURACY, ylim=(0, 1))
        figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    return figure


def picture(ax: Axes, pixels: Any, title: str, colors: str, low: float, high: float) -> AxesImage:
    """Draw a square image in few colours, so that the palette of a small file holds them all."""
    import matplotlib.pyplot as plt

    flat = np.asarray(pixels).ravel()
    square = flat.reshape(2 * [int(flat.size**0.5)])
    image = ax.imshow(square, cmap=plt.get_cmap(colors, 14), vmin=low, vmax=high)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=10.5)
    ax.grid(visible=False)
    return image


def strengths(data: xr.Dataset, step: int) -> Figure:
    """Draw how strongly each pixel enters the four networks after some steps, on one scale for all steps."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(1, len(NETWORKS), figsize=(7.2, 2.3))
        for ax, (network, look) in zip(axes, BY_NETWORK.items(), strict=True):
            pixels, most = data.strength.sel(shot=step, network=network).values, float(data.strength.quantile(0.995))
            image = picture(ax, pixels, look.label.replace(", ", ",\n"), "cividis", 0.0, most)
        figure.colorbar(image, ax=axes.tolist(), label="strength", extend="max", shrink=0.8)
    return figure


def strengths_text(data: xr.Dataset, step: int) -> str:
    """Return the mean strength of a pixel of noise in one picture of the slider."""
    noise = data.strength.sel(shot=step).values[:, ~INSIDE].mean(1)
    said = ", ".join(f"{look.label} {s:.2f}" for look, s in zip(BY_NETWORK.values(), noise, strict=True))
    return f"After {step} steps, mean strength of a pixel of noise: {said}."


def penalties(data: xr.Dataset) -> Figure:
    """Draw the final accuracy against the strength of each penalty, at its best step size; dotted lines: none."""
    import matplotlib.pyplot as plt

    final = data.accuracy.isel(record=-1)
    best = final.median("seed").max("strength").idxmax("step_size")
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.6))
        curves(ax, final.sel(step_size=best, drop=True).isel(strength=slice(1, None)), "strength", "path", BY_PATH)
        for path, name in (("l1_mask", "mask"), ("l2_baseline", "no mask")):
            level = float(final.sel(path=path).isel(strength=0).median("seed").max())
            ax.axhline(level, color=BY_NETWORK[name].color, linewidth=1.2, linestyle=":")
            place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom", "fontsize": 10}
            ax.annotate(f"{name}, no penalty", (0.99, level - (0.04 if path == "l2_baseline" else 0)), **place)
        ax.set(xscale="log", xlabel="strength of the penalty", ylabel=f"final {ACCURACY}", ylim=(0.4, 1.0))
        legend_above(ax, ncols=3)
    return figure


def by_panel(data: xr.Dataset, panels: Sequence[str]) -> Figure:
    """Draw test accuracy against steps, with a mask and without, in some settings."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(1, len(panels), figsize=(7.2, 2.9), sharey=True, squeeze=False)
        for ax, panel in zip(axes[0], panels, strict=True):
            lines = data.accuracy.sel(panel=panel).isel(record=slice(1, None)).swap_dims(record="step")
            curves(ax, lines, "step", "model", BY_MODEL)
            ax.set(xscale="log", xlabel=STEPS, ylim=(0, 1))
            ax.set_title(named(panel), fontsize=10.5)
        axes[0, 0].set_ylabel(ACCURACY)
        axes[0, -1].legend(loc="upper left")
    return figure


def softmax_residual(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the cross-entropy with respect to the scores."""
    rng = stream(1, "exercise", "GA-D1")
    scores, labels = 3 * rng.standard_normal((6, 4)) + 1000.0, np.array([0, 3, 1, 1, 2, 0])
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    right = (share - np.eye(4)[labels]) / 6
    with np.errstate(all="ignore"):
        got = np.asarray(answer(scores.copy(), labels.copy()), dtype=float)
    if np.isnan(got).any():
        return "the exponential of a large score overflows: subtract the largest score of the sample first"
    columns = np.exp(scores - scores.max(axis=0))
    over_samples = columns / columns.sum(axis=0) - np.eye(4)[labels]
    likely = {
        "it is the sum over samples, divide by their number": 6 * right,
        "the sign is reversed: share minus one-hot": -right,
        "the label is missing: subtract 1 at the right class": share / 6,
        "softmax runs over the classes of a sample, not over samples": over_samples / 6,
    }
    return verdict(got, right, likely, "one number per sample and class")


def shrunk(answer: Callable[..., Any]) -> str | None:
    """Check the weights of pixels, shortened by a length."""
    weights = stream(1, "exercise", "GA-D2").standard_normal((4, 3))
    weights[1] *= 0.1
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    right = weights * np.maximum(1 - 0.5 / norms, 0)
    likely = {
        "a pixel with less than the length must become silent, not turn around": weights * (1 - 0.5 / norms),
        "shorten by a length, not by a factor": weights * 0.5,
        "all weights of a pixel shrink together, by one factor: take the norm of its row": np.sign(weights)
        * np.maximum(abs(weights) - 0.5, 0),
        "a pixel is a row: take norms over the other axis": weights
        * np.maximum(1 - 0.5 / np.linalg.norm(weights, axis=0), 0),
    }
    return verdict(answer(weights.copy(), 0.5), right, likely, "the weights, a row for each pixel,")


CHECKS = {"GA-D1": softmax_residual, "GA-D2": shrunk}
