"""The pictures of the chapter on token selection. Each function takes a result; medians and curves are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from attnbook.core.figures import BACKGROUND, INK, Look, band, style
from attnbook.mirror_descent.data import plane_tokens
from attnbook.mirror_descent.experiments import objective, regularisation_path, rivals, token_selection
from attnbook.mirror_descent.figures.looks import LOOKS
from attnbook.mirror_descent.holding import TwoRivals
from attnbook.mirror_descent.objective import share_of_choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "NAMES", "capacity", "explorer_frame", "far_enough", "fate", "holding_frame", "path_far", "rounding", "walks",
]  # fmt: skip

NAMES = "ABCDEF"
"""What the six tokens of the plane are called."""

MARK = "#c2410c"
OUTWARDS = Look("outwards, from small radii", "#a3123a", "--", "s")
INWARDS = Look("inwards, knowing the best tokens", "#0b4f6c", "-", "o")
LOWER = Look("the walk of lower loss", "#b45309", "-.", "D", hollow=True)
STARTED = Look("one random start", "#5b5b5b", ":", "^")
AS_IT_READS = Look("formula as it reads", "#a3123a", "--", "s")
CAREFUL = Look("as the package computes it", "#0b4f6c", "-", "o")


def fate(result: token_selection.TokenSelection) -> Figure:
    """Draw the six tokens with the solution for token B, for two exponents, and where training from it ends."""
    with style():
        figure, axes = plt.subplots(2, 1, figsize=(5.6, 7.0))
        for ax, p in zip(axes, (1.5, 3.0), strict=True):
            at = result.of(p)
            _tokens(ax, result.plane[at, 1], 1, result.plane_support[at, 1], size=12)
            local = "locally optimal" if result.plane_local[at, 1] else "not locally optimal"
            end = int(result.plane_attention[at, 1, -1].argmax())
            ax.set_title(f"p = {p:g}: B is {local},\ntraining {'keeps B' if end == 1 else f'moves to {NAMES[end]}'}")
            if end != 1:
                start, goal = plane_tokens().tokens[0, 0, [1, end]]
                curve = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.35", "color": INK, "linewidth": 2.2,
                         "shrinkA": 14, "shrinkB": 14}  # fmt: skip
                ax.annotate("", goal, start, arrowprops=curve)
    return figure


def _tokens(ax: Axes, solution: np.ndarray, chosen: int, support: np.ndarray, *, size: float = 10) -> None:
    """Tokens by score, the solution as an arrow, and the lines of margin one and zero."""
    problem = plane_tokens()
    tokens, scores = problem.tokens[0, 0], problem.token_scores[0, 0]
    ax.scatter(tokens[:, 0], tokens[:, 1], c=scores, cmap="Greys", edgecolors=INK, s=150, vmin=-1.4, vmax=1.1, zorder=3)
    for name, token, score in zip(NAMES, tokens, scores, strict=True):
        ax.annotate(
            f"{name} {score:+.2f}", token, xytext=(12, 9), textcoords="offset points", fontsize=size, zorder=5,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": BACKGROUND, "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip
    for token in tokens[support > 0]:
        ax.plot(*token, marker="s", markersize=19, color=MARK, markerfacecolor="none", markeredgewidth=2)
    ax.plot(*tokens[chosen], marker="o", markersize=19, color=MARK, markerfacecolor="none", markeredgewidth=2.5)
    unit = solution / np.linalg.norm(solution)
    along = np.array([unit[1], -unit[0]])
    for place, dash in ((tokens[chosen], "-"), (tokens[chosen] - solution / (solution @ solution), "--")):
        ends = place + np.array([[-5.0], [5.0]]) * along
        ax.plot(*ends.T, color=MARK, linestyle=dash, linewidth=1.3)
    ax.annotate(
        "", tokens[chosen] + unit, tokens[chosen],
        arrowprops={"arrowstyle": "-|>", "color": MARK, "linewidth": 2.5, "shrinkA": 10, "mutation_scale": 18},
        zorder=4,
    )  # fmt: skip
    ax.set(xlim=(-2.4, 2.4), ylim=(-1.6, 1.6), aspect="equal", xlabel="first coordinate", ylabel="second coordinate")


def explorer_frame(result: token_selection.TokenSelection, p: float, token: str) -> Figure:
    """Draw one token's solution, the dual ball that touches the other tokens, and attention after training."""
    at, chosen = result.of(p), NAMES.index(token)
    with style():
        figure, (plane, bars) = plt.subplots(2, 1, figsize=(5.4, 5.8), height_ratios=(1.9, 1))
        solution = result.plane[at, chosen]
        _tokens(plane, solution, chosen, result.plane_support[at, chosen])
        plane.plot(*_dual_ball(solution, p, plane_tokens().tokens[0, 0, chosen]), color=INK, linewidth=1.2)
        plane.set_title(f"p = {p:g}, solution for {token}")
        places = np.arange(len(NAMES))
        bars.bar(
            places - 0.2, result.plane_attention[at, chosen, 0], 0.4, color="#c9c4b8", edgecolor=INK, label="start"
        )
        bars.bar(places + 0.2, result.plane_attention[at, chosen, -1], 0.4, color=MARK, hatch="//", label="trained")
        bars.set(ylim=(0, 1.3), title="attention", xlabel="token")
        bars.set_xticks(places, list(NAMES))
        bars.legend(fontsize=9, loc="upper center", ncols=2)
        bars.grid(visible=False)
    return figure


def _dual_ball(solution: np.ndarray, p: float, centre: np.ndarray) -> np.ndarray:
    """The ball in the conjugate norm around a token, as large as its margin."""
    q = p / (p - 1)
    angles = np.linspace(0, 2 * np.pi, 401)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    on_sphere = np.sign(circle) * np.abs(circle) ** (2 / q)
    return np.asarray(centre[:, None] + on_sphere / (np.abs(solution) ** p).sum() ** (1 / p))


def far_enough(result: rivals.Rivals) -> Figure:
    """Draw which locally optimal tokens training keeps, against how far out it starts."""
    ahead, kept = result.ahead().ravel(), result.kept[..., 1].ravel()
    with style():
        figure, ax = plt.subplots(figsize=(6.2, 2.8))
        beside = 0.3 * np.sin(37.0 * np.argsort(np.argsort(ahead)))
        for value, marker, color in ((1, "o", INWARDS.color), (0, "X", OUTWARDS.color)):
            which = kept == value
            ax.plot(ahead[which], value + beside[which], marker, color=color, markersize=6, alpha=0.8)
        ax.axvline(rivals.AHEAD, color=INK, linewidth=1.2, linestyle=":")
        ax.annotate(f"threshold of the claims: {rivals.AHEAD:g}", (rivals.AHEAD, 0.5), xytext=(5, 0),
                    textcoords="offset points", fontsize=10, va="center")  # fmt: skip
        ax.set(xscale="log", ylim=(-0.45, 1.45), xlabel="relative norm of the start times slack")
        ax.set_yticks([0, 1], ["left", "kept"])
    return figure


def holding_frame(case: TwoRivals, paths: np.ndarray, relative_norms: tuple[float, ...], norm: float) -> Figure:
    """Draw how the extra lead over the better token drifts, and how it went along training from one relative norm.

    Args:
        case: The three tokens.
        paths: Extra lead along training, ``(relative norms, steps)``, one column per step, the start first.
        relative_norms: Relative norms of the starts.
        norm: The one to mark.

    Returns:
        The figure.
    """
    extra = np.linspace(0, 13, 200)
    here, chosen = norm * case.slack, relative_norms.index(norm)
    with style():
        figure, (drift, path) = plt.subplots(2, 1, figsize=(5.6, 5.8))
        drift.plot(extra, case.drift(extra), color=INK, linewidth=1.6)
        drift.axhline(0, color=INK, linewidth=0.8)
        drift.axvline(case.break_even, color=INK, linewidth=1.2, linestyle=":")
        drift.plot(here, case.drift(np.array(here)), "o", color=MARK, markersize=11, zorder=4)
        drift.set(ylim=(-0.6, 0.15), xlabel="extra lead of E over A", ylabel="its change per unit moved")
        drift.set_title("drift; dotted: break-even")
        for at, line in enumerate(paths):
            marked = at == chosen
            path.plot(
                line, color=MARK if marked else "#b9b6ad", linewidth=2.4 if marked else 1, zorder=3 if marked else 1
            )
        path.plot(0, here, "o", color=MARK, markersize=11, zorder=4)
        path.axhline(case.break_even, color=INK, linewidth=1.2, linestyle=":")
        path.axhline(0, color=INK, linewidth=0.8)
        path.set(ylim=(-4, 13), xlabel="steps", xlim=(-10, 400), title=f"training from {norm:g}")
        path.set_ylabel("extra lead of E over A")
    return figure


def capacity(result: token_selection.TokenSelection) -> Figure:
    """Draw the share of choices that some matrix can make against the number of samples, measured and counted."""
    settings = result.settings
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        n = np.arange(1, max(settings.pairs) + 3)
        square = settings.pair_dimension**2
        counted = [share_of_choices(int(k), settings.pair_dimension) for k in n]
        ax.plot(n, counted, color=INK, label="counted (Cover)")
        share = result.pair_share
        ax.errorbar(
            settings.pairs, share.mean(axis=0), yerr=share.std(axis=0) / np.sqrt(len(share)), fmt="o", color=MARK,
            capsize=3, label="measured, mean and standard error over seeds",
        )  # fmt: skip
        for place, name in ((square, "$d^2$"), (2 * square, "$2d^2$")):
            ax.axvline(place, color=INK, linewidth=0.8, linestyle=":")
            ax.annotate(name, (place, 1.04), xytext=(3, 0), textcoords="offset points", fontsize=10)
        ax.set(xlabel="samples, two tokens each", ylabel="share of choices\nsome matrix makes", ylim=(-0.03, 1.15))
        ax.legend(fontsize=10, loc="lower left")
    return figure


def rounding(result: objective.Objective) -> Figure:
    """Draw the relative error of two ways to compute the gradient against the norm."""
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        norms = np.array(result.settings.relative_norms)
        for at, look in enumerate((AS_IT_READS, CAREFUL)):
            band(ax, norms, result.rounding[:, at], look)
        ax.set(xscale="log", yscale="log", xlabel=r"relative norm $\|W\|/\|W_{mm}\|$", ylabel="relative error")
        ax.set_xticks(norms, [f"{norm:g}" for norm in norms])
        ax.minorticks_off()
        ax.legend(fontsize=10, loc="center left")
    return figure


def walks(result: regularisation_path.RegularisationPath) -> Figure:
    """Draw, against the radius, how often searches attend to all best tokens, and the loss of two walks and bounds."""
    with style():
        figure, (shares, loss) = plt.subplots(2, 1, figsize=(6.2, 7.2))
        norms = np.array(result.settings.relative_norms)
        right = (result.best_tokens == 1).mean(axis=(1, 2))
        shares.plot(norms, right[regularisation_path.INWARDS], **INWARDS.line_style())
        shares.plot(norms, (result.better("best_tokens") == 1).mean(axis=(0, 1)), **LOWER.line_style())
        shares.plot(norms, right[regularisation_path.OUTWARDS], **OUTWARDS.line_style())
        shares.plot(norms, (result.started_tokens == 1).mean(axis=(0, 1)), **STARTED.line_style())
        shares.set(xscale="log", ylabel="share that attends\nto every best token", ylim=(-0.04, 1.06))
        shares.set_xticks(norms, [f"{norm:g}" for norm in norms])
        shares.minorticks_off()
        shares.legend(fontsize=10, loc="upper center", bbox_to_anchor=(0.5, 1.5), ncols=1)
        at, digits = result.settings.ps.index(2.0), np.log(10)
        low, high = result.bounds[0].min(axis=0), result.bounds[1].max(axis=0)
        loss.fill_between(norms, low / digits, high / digits, color="#c9c4b8", label="bounds of the smallest excess")
        for walk, look in ((regularisation_path.OUTWARDS, OUTWARDS), (regularisation_path.INWARDS, INWARDS)):
            loss.plot(norms, result.log_excess[walk, :, at].T / digits, **look.line_style() | {"label": None})
        loss.set(ylabel=r"$\log_{10}$ of the excess loss, p = 2")
        loss.set_xlabel("radius over the norm of the max-margin solution")
        loss.legend(fontsize=10, loc="lower left")
    return figure


def path_far(result: regularisation_path.RegularisationPath) -> Figure:
    """Draw squared radius times the path's divergence to the max-margin solution; whiskers are ranges over seeds."""
    with style():
        figure, ax = plt.subplots(figsize=(6.2, 3.8))
        norms = np.array(result.settings.relative_norms)
        scaled, count = result.better("divergence") * norms**2, len(result.settings.ps)
        for at, p in enumerate(result.settings.ps):
            middle = np.median(scaled[:, at], axis=0)
            ends = np.abs(np.stack([scaled[:, at].min(axis=0), scaled[:, at].max(axis=0)]) - middle)
            aside = norms * 1.09 ** (at - (count - 1) / 2)
            ax.errorbar(aside, middle, yerr=ends, capsize=2, elinewidth=0.9, **LOOKS[p].line_style())
        ax.set(xscale="log", yscale="log", xlabel=r"radius over the norm of the max-margin solution, $\rho$")
        ax.set_ylabel(r"$\rho^2$ times divergence $D_\psi$")
        ax.set_xticks(norms, [f"{norm:g}" for norm in norms])
        ax.minorticks_off()
        ax.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
        ax.legend(fontsize=10, loc="lower right")
    return figure
