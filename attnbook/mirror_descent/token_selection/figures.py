"""The pictures and tables of the chapter. Each function takes a data set; medians and curves are computed."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import BACKGROUND, INK, Look, log_axis, style
from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.data import plane_tokens
from attnbook.mirror_descent.token_selection.experiments import AHEAD, ahead, rivals

NAMES = "ABCDEF"  # what the six tokens of the plane are called
MARK = "#c2410c"
OUTWARDS = Look("walk outwards", "#a3123a", "--", "s")
INWARDS = Look("walk inwards", "#0b4f6c", "-", "o")
STARTED = Look("one random start", "#5b5b5b", ":", "^")


def fate(data: xr.Dataset) -> Figure:
    """Draw the six tokens with the solution for token B, for two exponents, and where training from it ends."""
    tokens = plane_tokens().tokens[0, 0]
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.4, 2.8), sharey=True)
        for ax, p in zip(axes, (1.1, 3.0), strict=True):
            end = _draw(ax, data, p, "B", fontsize=8.5)
            kept = "training keeps B" if end == "B" else f"training moves to {end}"
            local = bool(data.plane_local.sel(official_p=p, token="B"))
            ax.set_title(f"p = {p:g}: B is {'' if local else 'not '}locally\noptimal, {kept}", fontsize=11)
            if end != "B":
                curve = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.35", "color": INK, "linewidth": 2,
                         "shrinkA": 9, "shrinkB": 9}  # fmt: skip
                ax.annotate("", tokens[NAMES.index(end)], tokens[1], arrowprops=curve)
            ax.set(xlabel="first coordinate", ylim=(-1.2, 1.3))
        axes[0].set_ylabel("second coordinate")
    return figure


def _draw(ax: Axes, data: xr.Dataset, p: float, chosen: str, *, fontsize: float) -> str:
    """Tokens by score, the solution as an arrow, and the lines of margin one and zero; returns where training ends."""
    here: dict[str, float | str] = {"official_p": p, "token": chosen}
    problem = plane_tokens()
    tokens, scores = problem.tokens[0, 0], problem.token_scores[0, 0]
    solution, support = data.plane.sel(here).values, data.plane_support.sel(here).values
    own, unit = tokens[NAMES.index(chosen)], solution / np.linalg.norm(solution)
    ax.scatter(tokens[:, 0], tokens[:, 1], c=scores, cmap="Greys", edgecolors=INK, s=45, vmin=-1.4, vmax=1.1, zorder=3)
    box = {"boxstyle": "round,pad=0.1", "facecolor": BACKGROUND, "edgecolor": "none", "alpha": 0.85}
    for name, token, score in zip(NAMES, tokens, scores, strict=True):
        ax.annotate(f"{name} {score:+.2f}", token, xytext=(9, 6), textcoords="offset points", zorder=5,
                    fontsize=fontsize, bbox=box)  # fmt: skip
    rings: dict[str, Any] = {"markerfacecolor": "none", "color": MARK, "linestyle": "none"}
    ax.plot(*tokens[support > 0].T, marker="s", markersize=14, markeredgewidth=1.8, **rings)
    ax.plot(*own, marker="o", markersize=14, markeredgewidth=2.2, **rings)
    for place, dash in ((own, "-"), (own - solution / (solution @ solution), "--")):
        ax.plot(*(place + np.array([[-5.0], [5.0]]) * [unit[1], -unit[0]]).T, color=MARK, linestyle=dash, linewidth=1.2)
    arrow = {"arrowstyle": "-|>", "color": MARK, "linewidth": 2.2, "shrinkA": 8, "mutation_scale": 15}
    ax.annotate("", own + 0.65 * unit, own, arrowprops=arrow, zorder=4)
    ax.set(xlim=(-2.1, 2.2), ylim=(-1.65, 1.45), aspect="equal")
    return _end(data, here)


def _end(data: xr.Dataset, here: dict[str, float | str]) -> str:
    """The token that training ends at."""
    return str(data.plane_attention.sel(here).isel(record=-1).idxmax("other").item())


def explorer_frame(data: xr.Dataset, p: float, token: str) -> Figure:
    """Draw one token's solution, the dual ball that touches the other tokens, and attention after training."""
    attended = data.plane_attention.sel(official_p=p, token=token)
    with style():
        figure, (plane, bars) = plt.subplots(1, 2, figsize=(7.4, 3.3), width_ratios=(1.75, 1))
        _draw(plane, data, p, token, fontsize=9)
        plane.plot(*_dual_ball(data.plane.sel(official_p=p, token=token).values, p, token), color=INK, linewidth=1.2)
        plane.set_title(f"p = {p:g}, solution for {token}")
        places = np.arange(len(NAMES))
        bars.bar(places - 0.2, attended[0], 0.4, color="#c9c4b8", edgecolor=INK, label="start")
        bars.bar(places + 0.2, attended[-1], 0.4, color=MARK, hatch="//", label="trained")
        bars.set(ylim=(0, 1.35), title="attention", xlabel="token")
        bars.set_xticks(places, list(NAMES))
        bars.legend(fontsize=9, loc="upper center", ncols=2)
        bars.grid(visible=False)
    return figure


def _dual_ball(solution: np.ndarray, p: float, token: str) -> np.ndarray:
    """The ball in the conjugate norm around a token, as large as its margin."""
    angles, centre = np.linspace(0, 2 * np.pi, 401), plane_tokens().tokens[0, 0, NAMES.index(token)]
    circle = np.stack([np.cos(angles), np.sin(angles)])
    on_sphere = np.sign(circle) * np.abs(circle) ** (2 - 2 / p)
    return np.asarray(centre[:, None] + on_sphere / (np.abs(solution) ** p).sum() ** (1 / p))


def explorer_text(data: xr.Dataset, p: float, token: str) -> str:
    """Return the numbers behind one picture of the slider."""
    here: dict[str, float | str] = {"official_p": p, "token": token}
    chosen, problem = NAMES.index(token), plane_tokens()
    solution, scores = data.plane.sel(here).values, problem.token_scores[0, 0]
    support = [name for name in NAMES if data.plane_support.sel({**here, "other": name}) > 0]
    better_ones = [name for name in support if scores[NAMES.index(name)] > scores[chosen]]
    reason = f"not locally optimal: {', '.join(better_ones)} {'beats' if len(better_ones) == 1 else 'beat'} it"
    far, leads = float(data.relative_norm[-1]), (problem.tokens[0, 0, chosen] - problem.tokens[0, 0]) @ solution
    slack = (leads[scores > scores[chosen]] - 1).min(initial=np.inf)
    near = f" Slack of the nearest token of higher score: {slack:.2f}; times {far:g}: {far * slack:.1f}."
    return (
        f"p = {p:g}: margin {(np.abs(solution) ** p).sum() ** (-1 / p):.2f}; support tokens of {token}: "
        f"{', '.join(support)}; {token} is {reason if better_ones else 'locally optimal'}. Training from {far:g} times "
        f"this solution ends at {_end(data, here)}."
    ) + (near if not better_ones and np.isfinite(slack) else "")


def far_enough(data: xr.Dataset) -> Figure:
    """Draw which locally optimal choices that are not the best training keeps, against how far out it starts."""
    which = (data.local > 0) & rivals(data)
    pairs = [values.where(which).values.ravel() for values in xr.broadcast(ahead(data), data.kept.isel(when=-1))]
    x, kept = (values[~np.isnan(pairs[0])] for values in pairs)
    beside = 0.3 * np.sin(37.0 * np.argsort(np.argsort(x)))
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.4))
        for value, marker, color in ((1, "o", INWARDS.color), (0, "X", OUTWARDS.color)):
            ax.plot(x[kept == value], (value + beside)[kept == value], marker, color=color, markersize=6, alpha=0.8)
        ax.axvline(AHEAD, color=INK, linewidth=1.2, linestyle=":")
        ax.annotate(f"threshold of the claim: {AHEAD:g}", (AHEAD, 0.5), xytext=(5, 0), textcoords="offset points",
                    fontsize=10, va="center")  # fmt: skip
        ax.set(xscale="log", ylim=(-0.45, 1.45), xlabel="relative norm of the start times slack")
        ax.set_yticks([0, 1], ["left", "kept"])
    return figure


def fates(data: xr.Dataset) -> Table:
    """Return which choices of the small problems are locally optimal, and which of them training keeps."""
    local, others, last = data.local > 0, rivals(data), data.kept.isel(when=-1)
    kinds = {"best tokens": local & ~others, "other, locally optimal": local & others, "not locally optimal": ~local}
    rows: list[list[str | Measured]] = []
    for name, which in kinds.items():
        cells = [f"{int(which.sum())}", f"{float(data.margin.where(which).median()):.2f}"]
        cells += [f"{int(last.sel(relative_norm=norm).where(which).sum())}" for norm in data.relative_norm]
        rows.append([name, *map(Measured, cells)])
    heads = ["choice", "number", "margin", *(f"kept from {norm:g}" for norm in data.relative_norm.values)]
    count, ps = data.sizes["seed"], ", ".join(f"{p:g}" for p in data.p.values)
    return Table(heads, rows, f"All choices of {count} problems, p = {ps} together; median margin at unit norm.")


def walks(data: xr.Dataset) -> Figure:
    """Draw, against the radius, how often searches attend to all best tokens, and the loss of two walks and bounds."""
    norms, digits = data.relative_norm.values, np.log(10)
    right = (data.best_tokens == 1).mean(("seed", "p"))
    with style():
        figure, (shares, loss) = plt.subplots(1, 2, figsize=(7.4, 3.5))
        for name, look in (("inwards", INWARDS), ("outwards", OUTWARDS)):
            shares.plot(norms, right.sel(walk=name), **look.line_style())
            lines = data.log_excess.sel(walk=name, p=2.0).T / digits
            thin = look.line_style() | {"label": None, "marker": "", "linewidth": 0.9}
            loss.plot(norms, lines.transpose("relative_norm", "seed"), **thin)
        shares.plot(norms, (data.started_tokens == 1).mean(("seed", "start")), **STARTED.line_style())
        shares.set(ylabel="share with all best tokens", ylim=(-0.04, 1.5), yticks=(0, 0.25, 0.5, 0.75, 1))
        shares.legend(fontsize=9, loc="upper left")
        low, high = data.bounds.min("seed").sel(bound="lower"), data.bounds.max("seed").sel(bound="upper")
        loss.fill_between(norms, low / digits, high / digits, color="#c9c4b8", label="bounds of the smallest")
        loss.set_ylabel(r"$\log_{10}$ of the excess loss, p = 2")
        loss.legend(fontsize=9, loc="lower left")
        for ax in (shares, loss):
            log_axis(ax, norms, r"radius over $\|W_{mm}\|$")
    return figure
