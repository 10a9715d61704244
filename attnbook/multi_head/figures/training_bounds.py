"""The pictures of the chapter on training bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import INK, Look, band, style
from attnbook.multi_head.experiments import promises, segments
from attnbook.multi_head.experiments.certificates import Certificates
from attnbook.multi_head.experiments.training_bounds import TrainingBounds
from attnbook.multi_head.readings import STEP_SIZES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "LOOKS",
    "between_networks",
    "certified",
    "demand_frame",
    "heads_asked",
    "lazy",
    "promise",
    "width_frame",
]

LOOKS = {
    "few": Look("measured, 4 heads", "#0b5cad", "-", "o"),
    "many": Look("measured, $10^{12}$ heads", "#7c3aed", (0, (6, 2, 1, 2)), "s"),
    "practical": Look("Corollary 2, practical step", "#5b5f66", "--", "^"),
    "corollary": Look("Cor. 2, constant 1", "#c2410c", "-.", "D"),
    "theorem": Look("Thm 1, constant 1", "#0e7490", (0, (4, 1, 1, 1, 1, 1)), "<"),
    "reconstructed": Look("reconstructed ρ", "#111111", (0, (1, 1)), "X"),
    "chain": Look("our four steps", "#854d0e", (0, (3, 2)), "*"),
    "tracked": Look("heads tracked", "#15803d", (0, (5, 1)), "v"),
    "plus": Look("heads of sign +", "#4d7c0f", (0, (8, 2)), ">"),
    "minus": Look("heads of sign −", "#9d174d", ":", "P"),
}
# Three numbers of heads are asked for; some readings share them.
HEADS = {
    "chain": "our four steps,\nreconstructed ρ",
    "corollary": "Cor. 2 and Thm 1,\nconstant 1",
    "tracked": "heads tracked",
}


def promise(result: TrainingBounds, certificates: Certificates) -> Figure:
    """Draw measured average losses and what is promised for them, over many decades of steps."""
    recorded, eta = np.array(result.settings.recorded[1:]), f"η = {result.settings.step_size:g}"
    steps = np.geomspace(10, 1e13, 40)
    stated = promises.bounds(result, steps)
    allowed = np.array([np.median(stated[name], axis=0) for name in STEP_SIZES])
    certified = np.array(certificates.settings.recorded)
    shown = np.isfinite(certificates.bound[:, -1]).all(axis=0)
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 6.2))
        band(ax, recorded, result.average[:, 0, 1:], _named("few", f"measured, 4 heads, {eta}"))
        band(ax, recorded, result.average[:, -1, 1:], _named("many", f"measured, $10^{{12}}$ heads, {eta}"))
        average = certificates.average[:, -1, 1:]
        band(ax, certified[1:], average, _named("plus", "measured, $10^{12}$ heads, certified step, η ≈ 0.1"))
        band(ax, certified[shown], certificates.bound[:, -1, shown], _named("tracked", "our certificate for these"))
        band(ax, steps, stated["practical"], _named("practical", f"Corollary 2 at {eta}, hypotheses not met", ""))
        edges = (allowed.min(axis=0), allowed.max(axis=0))
        text = "Corollary 2 at the step size allowed, four readings"
        ax.fill_between(steps, *edges, facecolor="#9ca3af", edgecolor=INK, alpha=0.5, hatch="//", label=text)
        ax.axhline(np.log(2), color=INK, linewidth=1)
        ax.annotate("log 2", (1e13, np.log(2)), ha="right", va="bottom", fontsize=9.5)
        ax.set(xscale="log", yscale="log", xlim=(1, 1e13), ylim=(3e-3, 3e3))
        ax.set(xlabel="number of steps K", ylabel="average training loss")
        figure.legend(loc="outside lower center", fontsize=9.5)
    return figure


def heads_asked(result: TrainingBounds) -> Figure:
    """Draw how many heads each reading of the conditions asks for, against the number of steps."""
    steps = np.geomspace(10, 1e9, 17)
    rows = [
        [promises.heads(row[0], k, start_head_norm=float(norm)) for k in steps]
        for row, norm in zip(result.starts, result.head_norm, strict=True)
    ]
    with style():
        figure, ax = plt.subplots(figsize=(5.4, 4.0))
        for reading, name in HEADS.items():
            band(ax, steps, np.array([[at[reading] for at in row] for row in rows]), _named(reading, name))
        ax.axhline(result.settings.heads[0], color=INK, linewidth=1)
        text = f"{result.settings.heads[0]:g} heads: trained here without trouble"
        ax.annotate(text, (steps[-1], result.settings.heads[0]), ha="right", va="bottom", fontsize=9.5)
        ax.set(xscale="log", yscale="log", ylim=(1, None), xlabel="number of steps K", ylabel="heads asked for")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 0.1), fontsize=9)
    return figure


def certified(result: Certificates) -> Figure:
    """Draw certificates beside what was measured at the certified step size, and from which width they say anything."""
    heads = np.array(result.settings.heads)
    recorded = np.array(result.settings.recorded)
    trained = np.flatnonzero(heads >= result.settings.trained)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.4, 7.2))
        at = trained[0]
        shown = np.isfinite(result.bound[:, at]).all(axis=0)
        band(upper, recorded[shown], result.bound[:, at, shown], _named("tracked", "certificate"))
        band(upper, recorded[1:], result.average[:, 0, 1:], _named("plus", "measured average"))
        band(upper, recorded[1:], result.last[:, 0, 1:], Look("measured last loss", INK, ":", "."))
        upper.axhline(np.log(2), color=INK, linewidth=1)
        upper.annotate("log 2", (recorded[-1], np.log(2)), ha="right", va="bottom", fontsize=9.5)
        upper.set(xscale="log", yscale="log", xlabel="number of steps K", ylabel="training loss")
        upper.set_title(f"{_power(heads[at])} heads, certified step size")
        upper.legend(loc="lower left", fontsize=9)
        few = heads <= result.settings.trained
        band(lower, heads[few], result.ever[:, few], _named("tracked", "best certificate"))
        lower.axhline(np.log(2), color=INK, linewidth=1)
        lower.annotate("log 2", (heads[0], np.log(2)), va="bottom", fontsize=9.5)
        lower.set(xscale="log", xlabel="number of heads H", ylabel="best certificate, any K", ylim=(0, None))
        lower.set_title("from which width on it says something")
    return figure


def lazy(result: TrainingBounds) -> Figure:
    """Draw how far heads move, how far from linear training is and where attention ends, against the width."""
    heads = np.array(result.settings.heads)
    above = result.linear_gap.min(axis=0) > 1e-9
    with style():
        figure, axes = plt.subplots(3, 1, figsize=(5.4, 9.0), sharex=True)
        plain = Look("", INK, "-", "o")
        band(axes[0], heads, result.largest_move[..., -1], plain)
        _slope(axes[0], heads, np.median(result.largest_move[:, 0, -1]) * 2.5, -0.5, "slope −1/2")
        axes[0].set(yscale="log", ylabel="movement of one head", title="each head moves less ...")
        band(axes[1], heads[above], result.linear_gap[:, above], plain)
        _slope(axes[1], heads[above], np.median(result.linear_gap[:, 0]) * 8, -1, "slope −1")
        at = (heads[above][-1], np.median(result.linear_gap[:, above][:, -1]))
        axes[1].annotate("beyond: rounding", at, xytext=(8, 0), textcoords="offset points", fontsize=9.5)
        axes[1].set(yscale="log", ylabel="gap of outputs", title="... training becomes linear ...")
        band(axes[2], heads, result.attention[..., 0], LOOKS["plus"])
        band(axes[2], heads, result.attention[..., 1], LOOKS["minus"])
        axes[2].axhline(result.settings.relevant_fraction, color=INK, linewidth=1)
        at = (heads[0], result.settings.relevant_fraction)
        axes[2].annotate("uniform", at, va="top", xytext=(0, -3), textcoords="offset points", fontsize=9.5)
        axes[2].set(ylabel="attention on relevant", title="... and attention stays uniform", ylim=(0.4, 0.8))
        axes[2].legend(loc="upper right", fontsize=9)
        axes[2].set(xscale="log", xlabel="number of heads H")
    return figure


def between_networks(result: segments.Segments) -> Figure:
    """Draw the loss between permuted copies, and how far from a network a hill is found."""
    shares = np.linspace(0, 1, result.permuted.shape[2])
    multiples = np.array(result.settings.multiples)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(5.4, 7.0))
        for i, name in zip((0, len(result.settings.heads) - 1), ("theorem", "minus"), strict=True):
            relative = result.permuted[:, i] / result.permuted[:, i, :1]
            band(upper, shares, relative, _named(name, f"H = {result.settings.heads[i]}"))
        upper.axhline(4 / 3, color=INK, linewidth=1)
        upper.annotate("4/3", (0, 4 / 3), va="bottom")
        upper.set(xlabel="position between the two copies", ylabel="loss / loss of the copies")
        upper.set_title("a trained network and its permuted copy")
        upper.legend(loc="upper right", fontsize=9)
        band(lower, multiples, result.hill - 1, Look("", INK, "-", "o"))
        for level, text in ((1 / 3, "4/3, Proposition 4"), (1 / 15, "16/15, nearer end (ours)")):
            lower.axhline(level, color=INK, linewidth=1)
            lower.annotate(text, (1, level), va="bottom", fontsize=9.5)
        lower.axvline(1, color=INK, linewidth=1, linestyle=":")
        _slope(lower, multiples, np.median(result.hill[:, 0] - 1) / 3, 2, "slope 2")
        lower.set(xscale="log", yscale="log", xlabel="distance, in units of the allowed one")
        lower.set(
            ylabel="rise above the larger end", title=f"two sides of a random network, H = {result.settings.heads[0]}"
        )
    return figure


def demand_frame(demands: dict[str, dict[str, float]]) -> Figure:
    """Draw what the readings ask for, as bars on log axes: heads, then steps."""
    every = {name: LOOKS[name].label for name in demands}
    panels = {"heads": ("heads", HEADS), "steps": ("steps until below log 2", every)}
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(4.2, 4.8), sharex=True, height_ratios=(3, 5))
        for ax, (name, (title, names)) in zip(axes, panels.items(), strict=True):
            for height, reading in enumerate(reversed(names)):
                look, value = LOOKS[reading], demands[reading][name]
                ax.plot([1, value], [height, height], color=look.color, linestyle=look.line, linewidth=3)
                ax.plot(value, height, color=look.color, marker=look.marker, markersize=8)
            ax.set_yticks(range(len(names)), list(reversed(names.values())), fontsize=10.5)
            ax.set(xscale="log", xlim=(1, 1e25), ylim=(-0.6, len(names) - 0.4), title=title)
        axes[-1].set(xlabel="asked for", xticks=[1, 1e6, 1e12, 1e18, 1e24])
    return figure


def width_frame(result: TrainingBounds, n_heads: float) -> Figure:
    """Draw the training loss at one width among all, and where attention of its heads ends."""
    at = result.settings.heads.index(n_heads)
    recorded = np.array(result.settings.recorded)
    with style():
        figure, (left, right) = plt.subplots(2, 1, figsize=(5.4, 6.0))
        for width in range(len(result.settings.heads)):
            left.plot(recorded[1:], np.median(result.loss[:, width, 1:], axis=0), color="#c4c7cc", linewidth=1)
        band(left, recorded[1:], result.loss[:, at, 1:], LOOKS["few"])
        left.set(xscale="log", yscale="log", xlabel="step", ylabel="training loss", ylim=(1e-3, 1.2))
        signs = result.attention[:, at]
        for x, (name, sign) in enumerate((("few", "+"), ("minus", "−"))):
            look, values = LOOKS[name], signs[:, x]
            right.plot([x] * len(values), values, color=look.color, marker=look.marker, linestyle="none", alpha=0.7)
            right.annotate(f"sign {sign}", (x, 0.42), ha="center")
        right.axhline(result.settings.relevant_fraction, color=INK, linewidth=1)
        right.annotate("uniform attention", (0.5, result.settings.relevant_fraction), ha="center", va="top", fontsize=9)
        right.set(xlim=(-0.5, 1.5), ylim=(0.4, 0.8), ylabel="attention on relevant", xlabel="heads, one dot per seed")
        right.set_xticks([])
        figure.suptitle(f"H = {_power(n_heads)}", fontsize=12)
    return figure


def _named(name: str, label: str, marker: str | None = None) -> Look:
    """A look under another name."""
    look = LOOKS[name]
    return Look(label, look.color, look.line, look.marker if marker is None else marker)


def _power(number: float) -> str:
    exponent = round(np.log10(number))
    return f"$10^{{{exponent}}}$" if number == 10.0**exponent and exponent > 3 else f"{number:g}"


def _slope(ax: Axes, x: np.ndarray, start: float, power: float, text: str) -> None:
    """Draw a reference slope and name it."""
    ax.plot(x, start * (x / x[0]) ** power, color=INK, linewidth=1, linestyle=":", marker="")
    middle = len(x) // 2
    at = (x[middle], start * (x[middle] / x[0]) ** power)
    ax.annotate(text, at, xytext=(6, 4), textcoords="offset points", fontsize=10)
