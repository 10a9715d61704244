"""The tables of the first half of the chapter on margins."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.multi_head import oracle
from attnbook.multi_head.experiments import attention_maps, feasibility, linear_rules, margin_order, margins

__all__ = ["drawn_rules", "map_text", "noisy_cells", "order_text", "proposition_3", "room_for_constants"]


def proposition_3(result: margins.Margins) -> Table:
    """Return leak, needed scale and margin for each share of relevant tokens.

    Args:
        result: The measurements.

    Returns:
        A table with one row for each share.
    """
    settings = result.settings
    leak = result.leak / np.array(settings.leaks)
    needed, limit = result.needed / settings.per_cell(oracle.stated_scale), {}
    for zeta in settings.relevant_fractions:
        limit[zeta] = oracle.attention_margin(settings.mixture(1.0, zeta))
    rows: list[list[str | Measured]] = []
    for i, zeta in enumerate(settings.relevant_fractions):
        cells = [
            f"{leak[:, :, :, i].max():.2f}",
            *(_range(needed[:, kind, 0, i]) for kind in (0, 2)),
            f"{round(result.uniform[:, :, 0, i].min() / limit[zeta], 4) + 0.0:.4f}",
            f"{(result.margin[:, :, 0, i, -1] / limit[zeta]).min():.3f}",
        ]
        rows.append([f"{zeta:g}", *map(Measured, cells)])
    columns = [
        "ζ",
        "leak / ε",
        "Γ / Γ_ε, drawn",
        "Γ / Γ_ε, made",
        "margin, uniform",
        f"margin, ε = {settings.leaks[-1]:g}",
    ]
    caption = (
        "Worst leak; Γ needed, median [smallest, largest]; smallest margins in units of γ_attn with U⋆ and uniform or "
        f"scaled attention. Over {len(result.leak)} seeds, all samples, ε = {', '.join(map(str, settings.leaks))}, at "
        "the largest noise that Proposition 3 allows."
    )
    return Table(columns, rows, caption)


def drawn_rules(result: linear_rules.LinearRules) -> Table:
    """Return how well the best linear rules do on drawn samples at the largest noise.

    Args:
        result: The measurements.

    Returns:
        A table with one row for each share of relevant tokens and number of samples.
    """
    settings, share = result.settings, result.settings.noise_shares[-1]
    rows: list[list[str | Measured]] = []
    for i, zeta in enumerate(settings.relevant_fractions):
        mixture = settings.mixture(zeta, share)
        limit = oracle.attention_margin(mixture)
        for j, n in enumerate(settings.drawn_samples):
            found = (_range(result.best_drawn[:, i, j, rule] / limit, 3) for rule in (0, 1))
            rows.append([f"{zeta:g}", f"{oracle.linear_margin(mixture) / limit:.3f}", f"{n}", *map(Measured, found)])
    caption = (
        f"Largest margins of linear rules in units of γ_attn, on n drawn samples: median over {len(result.best)} seeds "
        f"[smallest, largest], 0 where there is none. Noise {share:g} S², T = {settings.n_tokens}, "
        f"d = {settings.dimension}, M = {settings.n_patterns}."
    )
    return Table(["ζ", "γ_lin", "n", "on the mean token", "weights per position"], rows, caption)


def noisy_cells(result: margin_order.MarginOrder) -> Table:
    r"""Return stated and measured margins where the formulas for $\gamma_\star$ and $\gamma_{lin}$ change their order.

    Args:
        result: The measurements.

    Returns:
        A table with one row for each cell.
    """
    settings = result.settings
    names = ("no noise", f"noise {settings.noise_share:g} S²", f"residual {settings.residual:g}")
    rows: list[list[str | Measured]] = []
    for i, (name, mixture) in enumerate(zip(names, settings.noisy_cells(), strict=True)):
        residual = settings.residual if i == 2 else 0.0
        stated = (oracle.linear_margin(mixture), oracle.first_phase_margin(mixture, residual=residual))
        cells = [_range(result.noisy_uniform[:, i]), _range(result.noisy_tangent[:, i])]
        rows.append([name, *(f"{value:.2f}" for value in stated), *map(Measured, cells)])
    columns = ["cell", "γ_lin, formula", "γ⋆, formula (7)", "uniform attention, measured", "tangent margin, measured"]
    caption = (
        f"S = {settings.noisy_norm:g}, ζ = {settings.noisy_fraction:g}, T = {mixture.n_tokens}, "
        f"M = {mixture.n_patterns}; noise orthogonal to the patterns of norm {mixture.free_noise:g} in the last row "
        f"only. Measured: median over {len(result.tangent)} seeds [smallest, largest] of the smallest margin of "
        f"{settings.n_samples} samples."
    )
    return Table(columns, rows, caption)


def room_for_constants(result: feasibility.Feasibility) -> Table:
    """Return how small a hidden constant would have to be.

    Args:
        result: The counts.

    Returns:
        A table with one row for each number of samples.
    """
    settings = result.settings
    rows: list[list[str | Measured]] = []
    for i, n in enumerate(settings.n_samples):
        some = result.feasible_literal[i] > 0
        first = f"{settings.pattern_norms[some.argmax()]:.0f}" if some.any() else "–"
        cells = [f"{result.feasible[i].sum():.0f}", f"{result.largest_constant[i, 0]:.1g}"]
        rows.append([f"{n:g}", *map(Measured, [*cells, f"{result.feasible_literal[i].sum():.0f}", first])])
    points = len(settings.pattern_norms) * len(settings.heads)
    columns = ["n", "points that satisfy (12)", "largest constant at S = 1", "points that satisfy (3)", "from S ="]
    return Table(columns, rows, f"Of {points} points in S and H, hidden constants set to 1.")


def order_text(
    curves: Mapping[tuple[float, float], Mapping[str, np.ndarray]],
    pattern_norms: np.ndarray,
    relevant_fraction: float,
    noise: float,
) -> str:
    """Return in words where the margins of one picture change their order.

    Args:
        curves: As for the picture.
        pattern_norms: Values of the pattern norm.
        relevant_fraction: Share of relevant tokens.
        noise: Noise share.

    Returns:
        A sentence.
    """
    found = curves[relevant_fraction, noise]
    above = found["tangent_margin"] > found["attention_margin"]
    below = found["tangent_margin"] < found["linear_margin"] - 1e-12
    first = f"from S = {pattern_norms[above.argmax()]:.3g} on" if above.any() else "nowhere here"
    second = "everywhere" if below.all() else f"from S = {pattern_norms[below.argmax()]:.3g} on"
    second = second if below.any() else "nowhere here"
    return (
        f"ζ = {relevant_fraction:g}, noise {noise:g} S²: the formula for γ⋆ is above γ_attn {first}, and below γ_lin "
        f"{second}. γ_lin is {found['linear_margin'][0] / found['attention_margin'][0]:.2f} of γ_attn."
    )


def map_text(found: attention_maps.AttentionMap) -> str:
    """Return the numbers behind one picture of the attention map.

    Args:
        found: The picture.

    Returns:
        A sentence.
    """
    worst = found.weights[:, found.n_relevant :].sum(axis=1).argmax() + 1
    return f"Worst leak {found.leak:.3f}, of query {worst}; margin {found.margin:.3f} of γ_attn."


def _range(values: np.ndarray, digits: int = 2) -> str:
    return f"{np.median(values):.{digits}f} [{values.min():.{digits}f}, {values.max():.{digits}f}]"
