"""The pictures of the chapter on the number of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head.experiments import head_types, heads_on_mixture, output_scaling, planted_teacher, step_size_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BY_EXPONENT",
    "BY_HEADS",
    "LOOKS",
    "error_at_loss",
    "explorer_frame",
    "help_and_hurt",
    "root_law",
    "scalings",
    "step_map",
    "two_number_paths",
    "types_of_heads",
]

HEADS = "number of heads H"
LOOKS = {
    "train_loss": Look("training loss", "#1f2937", "--", "s"),
    "test_error": Look("test error", "#c2410c", "-", "o"),
    "relevant_mass": Look("attention on relevant tokens", "#0b5cad", "-.", "^"),
    "plus": Look("plus heads", "#6d28d9", (0, (5, 1)), "D"),
    "minus": Look("minus heads", "#a16207", ":", "v"),
}
"""How each quantity looks."""
BY_HEADS = {
    1: Look("H = 1", "#7fbf3f", "-", "o"),
    2: Look("H = 2", "#5fae46", (0, (6, 2, 1, 2)), "<"),
    4: Look("H = 4", "#3f9d4d", (0, (5, 1)), "v"),
    8: Look("H = 8", "#2a8a54", "--", "P"),
    16: Look("H = 16", "#1c7558", "-.", "^"),
    64: Look("H = 64", "#145f55", (0, (3, 1, 1, 1, 1, 1)), "X"),
    256: Look("H = 256", "#0d4849", ":", "D"),
    4096: Look("H = 4096", "#06303a", (0, (1, 1)), "s"),
}
"""Looks by number of heads; the more heads, the darker."""
BY_EXPONENT = {
    0.5: Look("c = 1/2, the paper's", "#9d174d", "-.", "^"),
    0.75: Look("c = 3/4", "#c2528b", "--", "s"),
    1.0: Look("c = 1", "#3b0a24", "-", "o"),
}


def help_and_hurt(teacher: planted_teacher.PlantedTeacher, mixture: heads_on_mixture.HeadsOnMixture) -> Figure:
    """Draw loss and error against the number of heads where heads help and where they harm, and attention there."""
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.4, 6.8))
        heads = np.array(teacher.settings.heads)
        band(above, heads, teacher.train_loss[:, :, -1], LOOKS["train_loss"])
        band(above, heads, teacher.test_error, LOOKS["test_error"])
        above.axhline(0.5, color=INK, linewidth=1, linestyle=":")
        above.annotate("a coin", (heads[-1], 0.5), ha="right", va="bottom", xytext=(0, 2), textcoords="offset points")
        above.set_title("planted teacher: heads help")
        _head_axis(above, heads)
        heads = np.array(mixture.settings.heads)
        for name, array in {
            "train_loss": mixture.train_loss,
            "test_error": mixture.test_error,
            "relevant_mass": mixture.mean_mass,
        }.items():
            band(below, heads, array[:, :, -1], LOOKS[name])
        share = mixture.settings.relevant_fraction
        below.axhline(share, color=INK, linewidth=1, linestyle=":")
        below.annotate("uniform attention", (heads[0], share), xytext=(0, -4), textcoords="offset points", va="top")
        below.set_title("mixture: heads harm")
        _head_axis(below, heads)
        above.set(yscale="log", ylim=(0.018, 0.7))
        above.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
        above.minorticks_off()
        below.set(ylim=(0, 0.5))
        above.set_ylabel("loss, or share (log axis)")
        below.set_ylabel("loss, or share")
        above.legend(loc="center right", bbox_to_anchor=(1, 0.52), fontsize=10.5)
        below.legend(loc="upper right", fontsize=10.5)
    return figure


def error_at_loss(result: heads_on_mixture.HeadsOnMixture) -> Figure:
    """Draw the test error against the training loss along the training, one line for each number of heads."""
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 4.2))
        for i, n_heads in enumerate(result.settings.heads):
            if n_heads in (2, 16, 256):
                continue  # they lie between their neighbours
            loss, error = np.median(result.train_loss[:, i, 1:], axis=0), result.test_error[:, i, 1:]
            if n_heads in (1, 8, 4096):
                band(ax, loss, error, BY_HEADS[n_heads])
            else:
                ax.plot(loss, np.median(error, axis=0), **BY_HEADS[n_heads].line_style())
        ax.axvline(result.settings.equal_loss, color=INK, linewidth=1, linestyle=":")
        ax.annotate("equal loss", (result.settings.equal_loss, 0.46), ha="right")
        ax.set(xscale="log", xlabel="training loss, falling to the right", ylabel="test error", ylim=(-0.01, 0.5))
        ax.invert_xaxis()
        ax.legend(fontsize=10.5)
    return figure


def step_map(result: step_size_map.StepSizeMap) -> Figure:
    r"""Draw the test error over numbers of heads and step sizes, with the lines of two laws."""
    s = result.settings
    errors = np.median(result.test_error, axis=0).T
    worst = result.test_error.max(axis=0).T
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 5.2))
        image = ax.imshow(errors, origin="lower", aspect="auto", cmap=plt.get_cmap("cividis_r", 10), vmin=0, vmax=0.2)
        for i, j in np.ndindex(errors.shape):
            color = "white" if errors[i, j] > 0.07 else INK
            box = {"facecolor": image.cmap(image.norm(errors[i, j])), "edgecolor": "none", "pad": 1.5}
            text = f"{errors[i, j]:.3f}\n({worst[i, j]:.2f})"
            ax.text(j, i, text, ha="center", va="center", color=color, fontsize=10, linespacing=1.1, bbox=box, zorder=4)
        ax.set_xticks(range(len(s.heads)), [f"{h}" for h in s.heads])
        ax.set_yticks(range(len(s.step_sizes)), [f"{eta:g}" for eta in s.step_sizes])
        ax.set(xlabel=HEADS, ylabel="step size η")
        ax.grid(visible=False)
        limits = ax.get_xlim(), ax.get_ylim()
        for power, line, name in ((1.0, "--", "η = H / 2"), (0.5, ":", "η = 8√H")):
            y = _row(s, 0.5 if power == 1 else 8.0) + power * np.log(s.heads) / np.log(
                s.step_sizes[1] / s.step_sizes[0]
            )
            ax.plot(range(len(s.heads)), y - 0.42, color="#b00020", linestyle=line, linewidth=1.8, marker="")
            ax.plot([], [], color="#b00020", linestyle=line, label=name, marker="")
        ax.set(xlim=limits[0], ylim=limits[1])
        figure.legend(loc="outside upper left", ncols=2)
        figure.colorbar(image, ax=ax, label="test error, median over seeds")
    return figure


def _row(settings: step_size_map.Settings, step_size: float) -> float:
    """Where a step size lies on the axis of the map, whose step sizes grow by one factor."""
    first, second = settings.step_sizes[:2]
    return float(np.log(step_size / first) / np.log(second / first))


def root_law(result: step_size_map.StepSizeMap) -> Figure:
    """Draw the attention mass against the step size over the number of heads, and over its root."""
    s = result.settings
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.4, 6.6), sharey=True)
        for ax, power, label in zip(axes, (1.0, 0.5), ("η / H", "η / √H"), strict=True):
            for i, n_heads in enumerate(s.heads):
                band(ax, np.array(s.step_sizes) / n_heads**power, result.mass[:, i], BY_HEADS[n_heads])
            ax.axhline(s.relevant_fraction, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", xlabel=label, ylabel="attention on relevant tokens", ylim=(0, 1))
        axes[0].legend(loc="upper left", fontsize=10.5)
    return figure


def scalings(result: output_scaling.OutputScaling) -> Figure:
    """Draw test error and attention against the number of heads, for each scaling of their sum."""
    heads = np.array(result.settings.heads)
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.4, 6.0))
        for i, c in enumerate(result.settings.exponents):
            if c in BY_EXPONENT:
                band(above, heads, result.test_error[:, i], BY_EXPONENT[c])
                band(below, heads, result.mass[:, i], BY_EXPONENT[c])
        below.axhline(result.settings.relevant_fraction, color=INK, linewidth=1, linestyle=":")
        above.set(ylabel="test error", ylim=(-0.01, None))
        below.set(ylabel="attention on relevant tokens", ylim=(0, None))
        for ax in (above, below):
            _head_axis(ax, heads)
        above.legend(loc="upper left", fontsize=10.5)
    return figure


def types_of_heads(result: head_types.HeadTypes) -> Figure:
    """Draw what plus and minus heads attend to and on which side they read, along the training."""
    steps = np.array(result.settings.at)
    marks: dict[int, tuple[str | tuple[int, tuple[int, ...]], str]] = {
        2: ("-", "o"),
        8: ((0, (5, 1)), "^"),
        64: (":", "s"),
    }
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.4, 6.6), sharex=True)
        for i, n_heads in enumerate(result.settings.heads):
            if n_heads not in marks:
                continue
            for kind, name in enumerate(("plus", "minus")):
                look = LOOKS[name]
                shown = Look(f"{look.label}, H = {n_heads}", look.color, *marks[n_heads], hollow=name == "minus")
                options = {**shown.line_style(), "markevery": 0.14}
                above.plot(steps[1:], np.median(result.mass[:, i, 1:, kind], axis=0), **options)
                below.plot(steps[1:], np.median(result.value[:, i, 1:, kind], axis=0), **options)
        above.axhline(result.settings.relevant_fraction, color=INK, linewidth=1, linestyle=":")
        below.axhline(0, color=INK, linewidth=1, linestyle=":")
        above.set(ylabel="attention on relevant tokens", ylim=(0, 1), xscale="log")
        below.set(ylabel="alignment of the decoder", xlabel="step", ylim=(-1.1, 1.1))
        above.legend(fontsize=10, loc="upper left")
    return figure


def explorer_frame(result: heads_on_mixture.HeadsOnMixture, n_heads: int) -> Figure:
    """Draw loss, error and attention of plus and minus heads along the training, for one number of heads."""
    i, steps = result.settings.heads.index(n_heads), np.array(result.settings.at)[1:]
    with style():
        figure, (above, below) = plt.subplots(2, 1, figsize=(5.4, 5.2), sharex=True)
        band(above, steps, result.train_loss[:, i, 1:], LOOKS["train_loss"])
        band(above, steps, result.test_error[:, i, 1:], LOOKS["test_error"])
        for kind, name in enumerate(("plus", "minus")[: n_heads if n_heads < 2 else 2]):
            band(below, steps, result.mass[:, i, 1:, kind], LOOKS[name])
        below.axhline(result.settings.relevant_fraction, color=INK, linewidth=1, linestyle=":")
        above.set(xscale="log", ylim=(0, 0.8), ylabel="loss, or share", title=f"H = {n_heads}")
        below.set(ylim=(0, 0.5), xlabel="step", ylabel="attention on\nrelevant tokens")
        for ax in (above, below):
            ax.legend(loc="upper left" if ax is below else "upper right", fontsize=10.5)
    return figure


def two_number_paths(
    paths: Mapping[int, tuple[Float[np.ndarray, " records"], Float[np.ndarray, " records"]]], n_heads: int
) -> Figure:
    """Draw how the head of two numbers gets from high to low loss: by its decoder or by its attention.

    Args:
        paths: Number of heads to decoder and attention after each step.
        n_heads: The one to draw in colour; the others are grey.

    Returns:
        The picture, with lines of equal loss.
    """
    decoder, attention = np.meshgrid(np.linspace(0, 12, 161), np.linspace(0, 1, 101))
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 3.7))
        levels = (0.02, 0.05, 0.1, 0.2, 0.4)
        contour = ax.contour(decoder, attention, np.logaddexp(0, -decoder * attention), levels, colors="#9aa0a8")
        ax.clabel(contour, fmt="loss %g", fontsize=8.5)
        for v, s in paths.values():
            ax.plot(v, s, color="#c9ccd1", linewidth=1.2, marker="")
        v, s = paths[n_heads]
        every = np.arange(0, len(v), 50)
        ax.plot(v, s, color=LOOKS["relevant_mass"].color, linewidth=2.2, marker="")
        ax.plot(v[every], s[every], color=LOOKS["relevant_mass"].color, linestyle="none", marker="o")
        ax.plot(v[-1], s[-1], color=INK, marker="*", markersize=13)
        ax.set(xlim=(0, 12), ylim=(0, 1), xlabel="decoder v", ylabel="attention on relevant tokens")
        ax.set_title(f"H = {n_heads}: a dot every 50 steps")
    return figure


def _head_axis(ax: Axes, heads: np.ndarray) -> None:
    ax.set(xscale="log", xlabel=HEADS)
    ax.set_xticks(heads, [f"{h}" for h in heads])
    ax.minorticks_off()
