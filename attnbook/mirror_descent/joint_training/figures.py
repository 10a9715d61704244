"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians and counts."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbook.core.figures import INK, Look, band, style
from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.joint_training import experiments as own

PLAIN = Look("plain target", "#a3123a", "none", "s", hollow=True)
LAW = Look("corrected target", "#0b4f6c", "none", "o")
BY_PACE = (("#0b4f6c", "o"), ("#c2410c", "s"), ("#6b21a8", "^"), ("#4d5a06", "D"))
BY_EXPONENT = {1.5: Look("p = 1.5", "#bb30be", "-.", "^"), 2.0: Look("p = 2", "#0e0e0e", "--", "s"),
               3.0: Look("p = 3", "#03707f", "-", "o")}  # fmt: skip
ROWS = ("first", "second", "third")
LINES = ("-", "-.", (0, (5, 1)))


def law(data: xr.Dataset) -> Figure:
    """Draw what every sample gets against how easy it is, and how far every run is from both targets."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 2.5))
        _gaps(left, data)
        judged = data.sel(p=data.p[data.p >= own.JUDGED])
        counts = ((judged.broken == 0) & (judged.on_margin == 0)).values
        for look, cosine in ((PLAIN, judged.cosine_plain), (LAW, judged.cosine)):
            named = look.line_style() | {"markersize": 5 if look.hollow else 3}
            right.plot(judged.kappa.values[counts], 1 - cosine.values[counts], **named)
        right.axhline(1 - own.NEAR, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
        right.set(xscale="log", yscale="log", xlabel=r"ratio $\kappa$ of the run", ylabel=r"$1-\cos$ to the target")
        right.set(ylim=(1e-6, 1))
        right.legend(fontsize=9, loc="lower right", markerscale=1.3, labelspacing=0.2)
    return figure


def _gaps(ax: Axes, data: xr.Dataset) -> None:
    """Smallest gap of each sample of the runs of gradient descent, over what the solution asks of the hardest."""
    runs = data.sel(p=2.0)
    excess = (runs.kappa * (runs.margins - 1)).where(runs.broken == 0)
    end = 1.3 * max(float(excess.max()), 3.0)
    ax.plot([0, 1, end], [1, 0, 0], color=INK, linewidth=1.6, label="corrected: falls to zero")
    ax.axhline(1, color=INK, linewidth=1.1, linestyle="--", label="plain: one for all")
    for (color, marker), pace in zip(BY_PACE, data.pace.values, strict=False):
        ax.plot(excess.sel(pace=pace).values.ravel(), runs.gaps.sel(pace=pace).values.ravel(), marker, color=color,
                markersize=5, markerfacecolor="none", linestyle="none", label=f"head's steps x {pace:g}")  # fmt: skip
    ax.set_xscale("symlog", linthresh=1, linscale=2.2)
    ticks = [tick for tick in (0, 0.5, 1, 2, 5, 10) if tick <= end]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set(xlabel=r"$\kappa\times$ excess of the head margin", ylabel="smallest gap")
    ax.set(xlim=(-0.05, end), ylim=(-0.06, 1.9))
    ax.legend(fontsize=8, loc="upper right", labelspacing=0.1)


def easy_frame(rows: np.ndarray, asked: np.ndarray, plain: np.ndarray, solution: np.ndarray) -> Figure:
    """Draw what three samples ask of the matrix's first column, the smallest that obeys, and it if all ask for one."""
    grid = np.stack(np.meshgrid(np.linspace(-0.4, 2.0, 200), np.linspace(-0.8, 1.2, 200)), axis=-1)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.9))
        broken = (grid @ rows.T < asked).any(axis=-1).astype(float)
        ax.contourf(grid[..., 0], grid[..., 1], broken, levels=[0.5, 1.5], colors=["#d9d7d0"])
        for name, line, (color, _), row, right in zip(ROWS, LINES, BY_PACE, rows, asked, strict=False):
            foot, along = right * row / (row @ row), np.array([-row[1], row[0]])
            ax.plot(*(foot[:, None] + along[:, None] * np.array([-3.0, 3.0])), color=color, linewidth=1.8,
                    linestyle=line, label=f"{name} sample asks for {right:.2f}")  # fmt: skip
        ax.plot([0, plain[0]], [0, plain[1]], color=INK, linestyle="--", linewidth=1.4, label="plain solution")
        ax.plot([0, solution[0]], [0, solution[1]], color="#a3123a", linewidth=2.6, marker="o", markevery=[1],
                markersize=9, label="smallest column")  # fmt: skip
        ax.set(xlim=(-0.4, 2.0), ylim=(-0.8, 1.2), aspect="equal", xlabel="first entry", ylabel="second entry")
        ax.grid(visible=False)
        figure.legend(*ax.get_legend_handles_labels(), fontsize=9.5, loc="outside right upper")
    return figure


def easy_text(rows: np.ndarray, asked: np.ndarray, plain: np.ndarray, solution: np.ndarray) -> str:
    """Return the numbers behind one picture of the slider; arguments as the picture's."""
    turn = np.degrees(np.arctan2(solution[1], solution[0]) - np.arctan2(plain[1], plain[0]))
    length = np.linalg.norm(solution) / np.linalg.norm(plain)
    sides = ", ".join(f"{right:g}" for right in asked)
    gaps = ", ".join(f"{gap:.2f}" for gap in np.abs(rows @ solution))
    return (
        f"Asked for: {sides}. The smallest column turns by {np.round(turn, 1) + 0.0:.1f} degrees and has {length:.2f} "
        f"times the plain one's length; its gaps are {gaps}."
    )


def ratio_grows(data: xr.Dataset) -> Figure:
    """Draw, with one step size, the ratio and the matrix's norm against the head's, by exponent."""
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.3), sharex=True)
        for p in data.p.values:
            run = data.sel(p=p)
            norm = run.head_norm.median("seed").values
            band(left, norm, run.kappa.transpose("seed", "record").values, BY_EXPONENT[float(p)])
            band(right, norm, run.relative_norm.transpose("seed", "record").values, BY_EXPONENT[float(p)])
            rho = np.linspace(0.4, 1.0, 50) * float(run.relative_norm.isel(record=-1).median())
            grown = np.exp(((p - 2) * np.log(rho / rho[-1]) + rho - rho[-1]) / p)
            right.plot(norm[-1] * grown, rho + 0.6, color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
        left.set(xscale="log", yscale="log", ylabel=r"ratio $\kappa=r/\rho$", xlabel="relative norm $r$ of the head")
        right.set(ylabel=r"relative norm $\rho$ of the matrix", xlabel="relative norm $r$ of the head")
        left.legend(fontsize=9.5, loc="upper left")
    return figure


def by_exponent(data: xr.Dataset) -> Table:
    """Return, by exponent, how many runs meet the condition and how many of them have found their target."""
    meets, off = data.broken == 0, data.on_margin == 0
    rows: list[list[str | Measured]] = []
    for p in data.p.values:
        run, met, easy = data.sel(p=p), meets.sel(p=p), off.sel(p=p)
        cells: list[str | Measured] = [f"{p:g}", Measured(f"{int((~met).sum())} of {met.size}")]
        for cosine, counts in ((run.cosine_head, met), (run.cosine_plain, met & ~easy), (run.cosine_plain, met & easy),
                               (run.cosine, met & easy)):  # fmt: skip
            cells.append(Measured(f"{int(((cosine > own.NEAR) & counts).sum())} of {int(counts.sum())}"))
        smallest = float(run.cosine.where(met & easy).min())
        rows.append([*cells, Measured(f"{smallest:.4f}" if np.isfinite(smallest) else "none")])
    heads = ["p", "condition broken", "head", "matrix: plain", "plain", "corrected", "smallest"]
    caption = (
        f"Runs with a cosine above {own.NEAR} to their target, {data.sizes['seed']} seeds and "
        f"{data.sizes['pace']} paces; the last column is the smallest cosine with the corrected target."
    )
    groups = [("", 2), ("condition met", 1), ("all on the margin", 1), ("some easy", 3)]
    return Table(heads, rows, caption, groups)


def by_condition(data: xr.Dataset) -> Table:
    """Return how many runs in few dimensions miss their target, by whether the condition of the law is met."""
    run = data.squeeze(["p", "pace"])
    rows: list[list[str | Measured]] = []
    for name, counts in (("met", run.broken == 0), ("broken", run.broken == 1)):
        away = (1 - run.cosine).values[counts.values]
        rows.append([
            name, Measured(f"{len(away)}"), Measured(f"{(away >= 1 - own.NEAR).sum()}"),
            Measured(f"{np.median(away):.1e}"), Measured(f"{away.max():.1e}"),
        ])  # fmt: skip
    caption = f"{data.sizes['seed']} problems; missed: cosine with the corrected target of at most {own.NEAR}."
    return Table(["condition", "runs", "missed", "median of 1 - cos", "largest"], rows, caption)
