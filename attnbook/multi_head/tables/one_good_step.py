"""The tables of the chapter on one good step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.multi_head import oracle
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Mixture
from attnbook.multi_head.experiments import after_start, first_phase, good_start, start_margin

__all__ = [
    "coin_text",
    "cost",
    "explorer_text",
    "properties",
    "residuals",
    "samples_required",
    "steps",
    "turning_points",
    "whole_bound",
    "zero_or_step",
]

Rows = list[list[str | Measured]]


def cost(results: Sequence[Result]) -> Table:
    """Return how long the experiments took.

    Args:
        results: Their results.

    Returns:
        A table with one row for each.
    """
    rows: Rows = [
        [
            type(result).experiment.removeprefix("multi_head."),
            f"{len(result.settings.seeds)}",
            Measured(f"{result.provenance.wall_seconds:.1f} s"),
            Measured(f"{result.provenance.peak_memory_mib:.0f} MiB"),
            Measured(result.provenance.device),
        ]
        for result in results
    ]
    columns = ["experiment", "seeds", "time", "peak memory of the process", "device"]
    return Table(columns, rows, "Computed in float64, on one thread.")


def residuals(result: first_phase.FirstPhase) -> Table:
    """Return the coefficient and the residual for each size of the first phase."""
    rows: Rows = [
        [
            _count(size),
            Measured(_range(result.coefficient[:, i], 4)),
            Measured(_range(result.residual[:, i], 3)),
            f"{result.size[i]:.3f}",
            Measured(_range(result.residual_half[:, i], 3)),
            f"{result.bound[i]:.2f}",
        ]
        for i, size in enumerate(result.settings.n_first)
    ]
    caption = f"Median over {len(result.residual)} seeds [smallest, largest]; the exact size is a root mean square."
    columns = ["n₁", "coefficient / ζ", "‖p‖ with ζ/4", "exact size (ours)", "‖p‖ with ζ/2", "Lemma 2's bound, C = 1"]
    return Table(columns, rows, caption)


def properties(result: good_start.GoodStart) -> Table:
    """Return what was measured for P1, P2 and P3 beside what is stated, and this book's bounds."""
    s, residual = result.settings, result.residual[:, -1]
    mixture, p = s.mixture, float(result.residual[:, -1].max())
    ours = (
        f"{theory.our_head_norm_bound(mixture, p):.2f}",
        f"{theory.our_output_bound(mixture, p, failure=s.failure):.0f}",
    )
    stated = oracle.first_phase_margin(mixture) - theory.stated_residual_price(mixture) * residual
    bound = [theory.margin_bound(mixture, residual=float(each)) for each in residual]
    rows: Rows = [
        [
            "P1: norm of a head",
            Measured(_range(result.head_norm[:, -1], 2)),
            f"at most {result.head_norm_bound[:, -1].max():.2f}",
            f"at most {ours[0]}",
        ],
        [
            "P2: largest output, over all draws of signs",
            Measured(_range(result.outputs[:, -1].max((1, 2)), 1)),
            f"at most {result.output_bound[:, -1].max():.0f}",
            f"at most {ours[1]}",
        ],
        [
            "P3: margin of the target",
            Measured(_range(result.margin[:, -1].min((1, 2)), 2)),
            Measured(f"at least {np.median(stated) / 2:.2f}", "half of (7): "),
            Measured(f"at least {np.median(bound):.2f}"),
        ],
        ["heads needed for P3", "1", _asked(result, stated), "1"],
    ]
    caption = (
        f"n₁ = {_count(s.n_first[-1])}, H = {', '.join(map(str, s.heads))}, δ = {s.failure:g}: median over "
        f"{len(residual)} seeds [smallest, largest], bounds with the measured residual (the largest; P3: median)."
    )
    return Table(["property", "measured", "Proposition 2", "ours"], rows, caption)


def _asked(result: good_start.GoodStart, stated: np.ndarray) -> str | Measured:
    """The heads that Proposition 2 asks for at the margin it states, and if there were no residual."""
    s = result.settings
    sizes = {"n_samples": s.n_samples, "failure": s.failure, "residual": 0.0}
    quiet = theory.heads_required(s.mixture, margin=oracle.first_phase_margin(s.mixture), **sizes)
    now = "no number helps: (7) is negative; " if (stated <= 0).all() else ""
    return Measured(f"{now}if P were 0: {_rounded(quiet)}, with constant 1")


def turning_points(result: start_margin.StartMargin) -> Table:
    """Return the noise at which each bound turns negative, and the margin at the most noise tried."""
    s, rows = result.settings, []
    for i, share in enumerate(s.shares):
        for j, norm in enumerate(s.pattern_norms):
            row: list[str | Measured] = [f"{share:g}", f"{norm:g}"]
            for formula in (oracle.first_phase_margin, theory.margin_bound):
                row.append(_turns(s.mixture(i, j, 0), formula))
            row += [f"{result.of_cells('stated')[i, j, -1]:.2f}", f"{result.of_cells('ours')[i, j, -1]:.2f}"]
            row += [Measured(_range(one[:, i, j], 2)) for one in (result.worst, result.margin[..., -1])]
            rows.append(row)
    columns = ["ζ", "S", "(7) negative from", "ours negative from", "(7)", "ours", "worst noise found", "noise drawn"]
    caption = (
        f"Noise in units of S²; never: not up to 0.125. Last four columns at {s.noises[-1]:g}: both bounds, the "
        "smallest margin that a search over all allowed noise found, and the smallest of "
        f"{_count(s.n_samples)} samples drawn; median over {len(result.margin)} seeds [smallest, largest]."
    )
    return Table(columns, rows, caption)


def whole_bound(result: start_margin.StartMargin) -> Table:
    """Return both bounds with the measured residual, for each size of the first phase."""
    rows: Rows = [
        [
            _count(size),
            Measured(_range(result.residual[:, i], 3)),
            Measured(_range(result.stated_step[:, i], 1)),
            Measured(_range(result.our_step[:, i], 2)),
            Measured(_range(result.step_margin[:, i], 2)),
        ]
        for i, size in enumerate(result.settings.n_first)
    ]
    mixture = result.settings.step_mixture
    caption = (
        f"A residual of norm one costs {theory.stated_residual_price(mixture):.0f} in eq. (7), "
        f"{theory.residual_price(mixture):.0f} in ours (T = {mixture.n_tokens}, S = {mixture.pattern_norm:g}, "
        f"Z = {mixture.noise_norm:.3f}, R = {mixture.token_norm:.3f}). "
        f"Median over {len(result.residual)} seeds [smallest, largest]."
    )
    return Table(["n₁", "residual P", "the whole of eq. (7)", "ours", "smallest margin"], rows, caption)


def samples_required(result: start_margin.StartMargin) -> Table:
    """Return from how many first-phase samples on each bound is positive, for two sizes of the residual."""
    s = result.settings
    sizes = {
        "lemma": f"Lemma 2's bound, C = 1 (probability {1 - s.failure:g})",
        "likely": f"exact size with Chebyshev's inequality (ours, probability {1 - s.failure:g})",
        "exact": "exact size (ours, typical draw)",
    }
    rows: Rows = [
        [words, *(_rounded(result.required[size, bound]) for bound in ("stated", "ours"))]
        for size, words in sizes.items()
    ]
    caption = f"T = {s.n_tokens}, S = {s.step_norm:g}, ζ = {s.shares[0]:g}, noise along patterns {s.step_noise:g}."
    return Table(["residual", "eq. (7) positive from n₁ =", "our bound positive from n₁ ="], rows, caption)


def zero_or_step(result: start_margin.StartMargin) -> Table:
    """Return margins at zero and after the step: of the paper's target and of the best one."""
    s, rows = result.settings, []
    for k in (0, len(s.noises) - 1):
        for j, norm in enumerate(s.pattern_norms):
            values = (getattr(result, name)[:, 0, j, k] for name in ("zero_margin", "margin", "best_zero", "best"))
            row: list[str | Measured] = [f"{norm:g}", f"{s.noises[k]:g}"]
            rows.append([*row, *(Measured(_range(value, 2)) for value in values)])
    caption = (
        f"ζ = {s.shares[0]:g}. Target: smallest of {_count(s.n_samples)} samples; best: for {s.n_best} samples; all "
        f"targets have norm √2. Median over {len(result.margin)} seeds [smallest, largest]."
    )
    columns = ["S", "noise / S²", "target, at zero", "target, after the step", "best, at zero", "best, after the step"]
    return Table(columns, rows, caption)


def steps(result: after_start.AfterStart) -> Table:
    """Return steps to the judged loss, for each start and step size."""
    s = result.settings
    names = dict(
        zip(after_start.STARTS, ("zero", "balanced signs", "three quarters plus", "three quarters minus"), strict=True)
    )
    rows: Rows = [
        [
            names[name],
            *(Measured(_steps(result.steps_needed[:, i, j], s.steps)) for j in range(len(s.step_sizes))),
            Measured(_range(result.first_loss[:, i], 2)),
        ]
        for i, name in enumerate(after_start.STARTS)
    ]
    rows.append(["largest loss on the way", *(Measured(_range(worst, 2)) for worst in _largest(result)), ""])
    caption = (
        f"Steps until the training loss is {s.reached:g} or less, of at most {s.steps}: median over "
        f"{len(result.first_loss)} seeds [smallest, largest]; last row: over all starts too. H = {s.n_heads}."
    )
    return Table(["start", *(f"η = {eta:g}" for eta in s.step_sizes), "loss at the start"], rows, caption)


def _largest(result: after_start.AfterStart) -> Float[np.ndarray, "step_sizes runs"]:
    return np.moveaxis(result.largest_loss, 2, 0).reshape(len(result.settings.step_sizes), -1)


def coin_text(
    values: Float[np.ndarray, " values"],
    probabilities: Float[np.ndarray, " values"],
    limits: Mapping[str, float],
    n_heads: int,
) -> str:
    r"""Return how likely each outcome of the coin toss at the start is.

    Args:
        values: Those of $\frac1{\sqrt H}\sum_h\alpha_h$, in ascending order.
        probabilities: Of each.
        limits: ``ours`` and ``stated`` to what the sum stays below with high probability.
        n_heads: $H$.

    Returns:
        Two sentences.
    """
    wrong, tie = probabilities[values < 0].sum(), probabilities[values == 0].sum()
    outside = {name: probabilities[np.abs(values) > limit].sum() for name, limit in limits.items()}
    return (
        f"H = {n_heads}: every sample wrong with probability {wrong:.2f}, a tie {tie:.2f}. Beyond our limit "
        f"{limits['ours']:.1f}: {outside['ours']:.1g}; beyond the stated {limits['stated']:.1f}: "
        f"{outside['stated']:.1g}. If all signs were equal the sum would be {n_heads**0.5:.3g}."
    )


def explorer_text(result: start_margin.StartMargin, share: float, norm: float, noise: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    s = result.settings
    at = s.shares.index(share), s.pattern_norms.index(norm), s.noises.index(noise)
    unit = result.unit(at[0], at[1])
    before, after = result.zero_margin[:, *at].min() / unit, result.margin[:, *at].min() / unit
    stated, ours = (result.of_cells(name)[at] / unit for name in ("stated", "ours"))
    return (
        f"Smallest margin over all seeds: {before:.2f} at zero, {after:.2f} after the step. Guaranteed by eq. (7): "
        f"{_promise(stated)}; by our bound: {_promise(ours)}. (All over eq. (7) without noise, {unit:.2f}.)"
    )


def _promise(value: float) -> str:
    return f"{value:.2f}" if value > 0 else f"nothing ({value:.2f})"


def _with_noise(mixture: Mixture, noise: float) -> Mixture:
    z = noise * mixture.pattern_norm**2
    sizes = (mixture.n_tokens, mixture.dimension, mixture.n_patterns, mixture.pattern_norm, mixture.relevant_fraction)
    return Mixture(*sizes, z, z, mixture.free_noise)


def _turns(mixture: Mixture, formula: Callable[[Mixture], float]) -> str:
    """The first noise, in thousandths and up to an eighth, at which a bound is not positive."""
    for noise in np.arange(0, 0.125 + 1e-9, 0.001):
        if formula(_with_noise(mixture, float(noise))) <= 0:
            return f"{noise:.3f}"
    return "never"


def _steps(values: np.ndarray, most: int) -> str:
    def word(value: float) -> str:
        return f"{value:.0f}" if np.isfinite(value) else f"over {most}"

    low, middle, high = word(values.min()), word(float(np.median(values))), word(values.max())
    return middle if low == high else f"{middle} [{low}, {high}]"


def _range(values: np.ndarray, digits: int) -> str:
    low, middle, high = (f"{value:.{digits}f}" for value in (values.min(), np.median(values), values.max()))
    return middle if low == high else f"{middle} [{low}, {high}]"


def _count(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")


def _rounded(number: float) -> str:
    """Two significant digits, in groups of three."""
    return _count(int(float(f"{number:.2g}")))
