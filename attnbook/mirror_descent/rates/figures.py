"""The pictures and tables of the chapter. Each function takes data sets and computes nothing but medians."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnbook.core.figures import INK, band, log_axis, style
from attnbook.core.tables import Measured, Table, spread
from attnbook.mirror_descent.looks import LOOKS
from attnbook.mirror_descent.rates import experiments as own

RELATIVE = r"relative norm $\rho=\|W\|/\|W_{mm}\|$"
DASHED = (0, (6, 3))


def glance(data: xr.Dataset) -> Figure:
    """Draw divergence against norm for the best tokens; rings are constant steps, dashes the slope of the bound."""
    slopes = own.falls(data, own.BEYOND).sel(choice="best").median("seed")
    with style():
        figure, ax = plt.subplots(figsize=(7.6, 2.95))
        for p in (1.5, 2.0, 3.0):
            one, color = data.sel(p=p, choice="best"), LOOKS[p].color
            norms = np.geomspace(11, float(one.relative_norm.isel(step=-1).min()), 30)
            curves = _at(one, "relative_norm", norms)
            band(ax, norms, curves, LOOKS[p])
            rings = one[["plain_norm", "plain_divergence"]].median("seed").isel(plain_step=slice(-1, None, -6))
            there = rings.plain_norm > 11
            ax.plot(rings.plain_norm[there], rings.plain_divergence[there], "o", color=color, ms=10, fillstyle="none")
            bound = np.median(curves[:, norms.searchsorted(own.BEYOND)]) * (norms / own.BEYOND) ** -min(1, p - 1)
            ax.plot(norms[norms > 20], bound[norms > 20], color=color, linewidth=1, linestyle=DASHED)
            text = f"p = {p:g}: slope {float(slopes.sel(p=p)):.1f}, bound {-min(1, p - 1):g}"
            ax.annotate(text, (norms[-1], np.median(curves[:, -1])), (6, -3), textcoords="offset points", fontsize=9.5)
        ax.set(xscale="log", yscale="log", xlabel=RELATIVE, ylabel="divergence", xlim=(9, 3e3))
        ax.plot([], [], "o", color=INK, markersize=9, fillstyle="none", label="constant steps, as far as they go")
        ax.plot([], [], color=INK, linewidth=1, linestyle=DASHED, label="slope of the bound")
        ax.legend(*(part[-2:] for part in ax.get_legend_handles_labels()), fontsize=9.5, loc="lower left")
    return figure


def time_frame(data: xr.Dataset, digits: float, since: float) -> Figure:
    """Draw by p which share of the divergence at an early time is left at a time of ten to some power."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.4))
        for place, (p, then, now) in enumerate(_left(data, digits, since)):
            beside, share, look = place + np.linspace(-0.25, 0.25, now.size), now / then, LOOKS[p]
            ax.plot(beside, share, look.marker, color=look.color, markersize=4, alpha=0.7)
            ax.plot(beside[[0, -1]], [np.median(share)] * 2, color=look.color, linewidth=2.6)
        ax.axhline(1, color=INK, linewidth=1)
        ax.set(yscale="log", ylim=(1e-3, 3), xlabel="p", ylabel=f"divergence over that at $t=10^{{{since:g}}}$")
        ax.set_xticks(range(data.sizes["p"]), [f"{p:g}" for p in data.p.values])
    return figure


def time_text(data: xr.Dataset, digits: float, since: float) -> str:
    """Return the numbers behind one picture of the slider."""
    found = _left(data, digits, since)
    left = ", ".join(f"{np.median(now / then):.2g} (p = {p:g})" for p, then, now in found)
    angle = next(np.degrees(np.arccos(1 - np.median(now))) for p, _, now in found if p == 2)
    return (
        f"Time 10 to the {digits:g}: left of the divergence at 10 to the {since:g} is {left}; medians. For p = 2 the "
        f"median angle is {angle:.2g} degrees."
    )


def radii(data: xr.Dataset) -> Figure:
    r"""Draw $R_\pi$ of Lemma 27 against $\pi$, and $R_\mu$ of Lemma 28 against $\mu$."""
    staying = own.Staying.from_data(data)
    slack, cone = staying.slack_radius(data), staying.cone_radius(data)
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.7), sharey=True)
        norms = data.radius.values
        top = 2 * norms[-1]  # where no norm was found
        for ax, found, name, letter in zip(axes, (slack, cone), ("slack", "cone"), (r"\pi", r"\mu"), strict=True):
            drawn = found.clip(max=top).transpose("p", "seed", name, "choice")
            for p, (best, second) in zip(data.p.values, np.moveaxis(drawn.values, -1, 1), strict=True):
                look, rare = LOOKS[float(p)], np.where(second > best.max(axis=0), second, np.nan)
                band(ax, found[name].values, best, look)
                ax.plot(found[name], rare.T, look.marker, color=look.color, fillstyle="none", markersize=8)
            ax.set(yscale="log", title=f"$R_{letter}$")
            log_axis(ax, found[name].values, f"${letter}$")
        axes[0].set_yticks([*norms, top], [*(f"{norm:g}" for norm in norms), "none"])
        axes[0].set_ylabel("relative norm from which on it holds")
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    return figure


def exponent(cones: xr.Dataset) -> Figure:
    r"""Draw the log of the smallest product of Lemma 20 plus the relative norm; flat where the exponent is one."""
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.2))
        for p in cones.p.values:
            worst = (cones.log_least + cones.radius).sel(p=p).min("choice")
            band(ax, cones.radius.values, worst.transpose("seed", "radius").values, LOOKS[float(p)])
        norms = np.geomspace(1, 6, 20)
        ax.plot(norms, -0.7 - (norms - 1) / 2, color=INK, linestyle=DASHED, label=r"if it were $\frac{3}{2}$")
        ax.set(xscale="log", ylim=(-2.6, 0.6), xlabel=RELATIVE)
        ax.set_ylabel(r"$\log\min\langle-\nabla\mathcal{L},V\rangle+\rho$")
        ax.legend(fontsize=9, ncols=2, loc="lower right")
    return figure


def constants(cones: xr.Dataset) -> Table:
    """Return the constants of the cone by exponent: medians over problems and both choices of tokens."""
    rows: list[list[str | Measured]] = []
    for p in cones.p.values:
        one = cones.sel(p=p)
        medians = (Measured(f"{float(one[name].median()):.1g}") for name in ("delta", "pair", "literal", "sharp"))
        norm = Measured(f"{float(one.sufficient.median()):.0f}")
        rows.append([f"{p:g}", *medians, spread(one.violated / one.sharp, ".2g"), norm])
    heads = ["p", "δ", "A⋆", "literal μ₀", "sharper μ₀", "violated / sharper", "sufficient ρ"]
    caption = (
        "Medians [and range]. Violated: the first divergence at which a sample violates Lemma 19. Last: with C = 1."
    )
    return Table(heads, rows, caption)


def _at(one: xr.Dataset, name: str, wanted: np.ndarray) -> np.ndarray:
    """Divergences of each seed where norm or time passes given values, interpolated on log axes."""
    pairs = zip(
        one[name].transpose("seed", "step").values, one.divergence.transpose("seed", "step").values, strict=True
    )
    return np.exp([np.interp(wanted, along, np.log(there)) for along, there in pairs])


def _left(data: xr.Dataset, digits: float, since: float) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Each p with the divergences of the best tokens at an early time and at a later one."""
    times = np.log(10) * np.array([since, digits])
    return [(float(p), *_at(data.sel(p=p, choice="best"), "log_time", times).T) for p in data.p]
