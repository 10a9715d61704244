"""The tables of this chapter, as notebooks show them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnbook import ledger
from attnbook.core.figures import LOOKS
from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments.hessian_settings import NETWORKS, SPECTRA
from attnbook.global_attention.experiments.hessian_spectrum import HessianSpectrum
from attnbook.global_attention.experiments.landscape_samples import FITTED, STATIONARY
from attnbook.global_attention.experiments.loss_landscape import MODELS, LossLandscape
from attnbook.global_attention.rescaling import log_volume_factor
from attnbook.ledger.rendering import SIGNS

__all__ = [
    "by_step_size", "comparison", "decays", "orbit_text", "solver", "stuck", "trained_pieces", "verdicts",
    "where_training_ends",
]  # fmt: skip


def comparison(result: HessianSpectrum) -> Table:
    """Return attention over baseline for several measures of sharpness, raw and folded, in both comparisons."""
    names = ("attention", "attention_folded", "equal_loss", "equal_loss_folded")
    measures = {"largest eigenvalue": "top", "eigenvalue of rank 50": "middle", "sum of the leading 100": "sum"}
    rows: list[list[str | Measured]] = [
        [label, *(_spread(result.ratio(name, measure)) for name in names)] for label, measure in measures.items()
    ]
    networks = [name.removesuffix("_folded") for name in names]
    rows.append(["training loss", *(_spread(result.loss_ratio(name)) for name in networks)])
    rows.append(["test accuracy, difference in points", *(_spread(100 * result.gain(name)) for name in networks)])
    columns = ["attention over baseline", "equal steps", "equal steps, folded", "equal loss", "equal loss, folded"]
    caption = f"Median over {len(result.eigenvalues)} seeds [smallest, largest] of the ratio seed by seed."
    return Table(columns, rows, caption)


def by_step_size(result: HessianSpectrum) -> Table:
    """Return losses, stopping times and ratios for every step size that was run, one per column."""

    def row(label: str, values: Callable[[int], np.ndarray]) -> list[str | Measured]:
        return [label, *(_spread(values(i)) for i in range(len(result.settings.step_sizes)))]

    rows = [
        row("training loss of the baseline", lambda i: result.train_loss[:, i, 0]),
        row("equal steps: training loss, ratio", lambda i: result.loss_ratio("attention", i)),
        row("... largest eigenvalue, raw", lambda i: result.ratio("attention", "top", i)),
        row("... largest eigenvalue, folded", lambda i: result.ratio("attention_folded", "top", i)),
        row("... rank 50, raw", lambda i: result.ratio("attention", "middle", i)),
        row("... rank 50, folded", lambda i: result.ratio("attention_folded", "middle", i)),
        row("equal loss: attention stops at step", lambda i: result.stopped_at[:, i]),
        row("... largest eigenvalue, raw", lambda i: result.ratio("equal_loss", "top", i)),
        row("... largest eigenvalue, folded", lambda i: result.ratio("equal_loss_folded", "top", i)),
        row("... rank 50, raw", lambda i: result.ratio("equal_loss", "middle", i)),
        row("... rank 50, folded", lambda i: result.ratio("equal_loss_folded", "middle", i)),
        row("... sum of 100, folded", lambda i: result.ratio("equal_loss_folded", "sum", i)),
        row("... accuracy, points more", lambda i: 100 * result.gain("equal_loss", step_size=i)),
        row("L1, equal steps: training loss, ratio", lambda i: result.loss_ratio("l1_attention", i)),
        row("... sum of 100, raw", lambda i: result.ratio("l1_attention", "sum", i)),
        row("... rank 50, raw", lambda i: result.ratio("l1_attention", "middle", i)),
    ]
    columns = ["step size", *(f"{step_size:g}" for step_size in result.settings.step_sizes)]
    seeds, steps = len(result.eigenvalues), result.settings.steps
    caption = f"Ratios are to the baseline after {steps} steps; median over {seeds} seeds [smallest, largest]."
    return Table(columns, rows, caption)


FIGURE_3 = {
    "GA-F3-bulk": "equal steps: rank 50, raw, at most 0.9",
    "GA-F3-top": "equal steps: largest, raw, at most 0.95",
    "GA-F3-top-folded": "equal steps: largest, folded, at most 0.95",
    "GA-F3-equal-loss": "equal loss: largest, raw, at least 1.2, and more",
    "GA-F3-equal-loss-accuracy": "equal loss: gain in accuracy, at least 0.02",
    "GA-F3-l1": "L1, equal steps: sum, raw, at least 1.5, and more",
}
"""What each claim on Figure 3 is judged by."""


def verdicts(small: HessianSpectrum, large: HessianSpectrum) -> Table:
    """Return the verdict on every claim on Figure 3, with the first number of its rule, for two data sets.

    Args:
        small: Result on scikit-learn's digits.
        large: Result on MNIST; one column per step size.

    Returns:
        A table of signs and medians.
    """
    runs = [(small, 0), *((large, i) for i in range(len(large.settings.step_sizes)))]
    names = [f"{'digits' if r.settings.images == 'digits' else 'MNIST'}, {r.settings.step_sizes[i]:g}" for r, i in runs]
    rows: list[list[str | Measured]] = []
    for claim, label in FIGURE_3.items():
        judged = [ledger.judge(ledger.claim(claim), r.at_step_size(i)[claim]) for r, i in runs]
        rows.append([label, *map(_sign, judged)])
    caption = (
        "Attention over baseline: median, and whether the rule of the claim holds (✓ yes, ≈ in trend, ✗ no). "
        "Columns: data and step size."
    )
    return Table(["", *names], rows, caption)


def _sign(verdict: ledger.Verdict) -> Measured:
    assert verdict.measurement is not None  # judged a moment ago
    first = next(iter(verdict.measurement.values.values()))
    return Measured(f"{first:.2g}", before=f"{SIGNS[verdict.outcome]} ")


def solver(result: HessianSpectrum) -> Table:
    """Return what the spectra cost, and how well they are known."""
    s = result.settings
    size = s.side**2 * s.width + s.width * 10
    row: list[str | Measured] = [
        f"{size + s.side**2} ({size} folded)", f"{s.n_eigenvalues}", _whole(result.products),
        Measured(f"{result.residuals.max():.1%}"),
    ]  # fmt: skip
    columns = ["rows of the Hessian", "eigenvalues", "products with a vector", "worst residual, of the eigenvalue"]
    return Table(columns, [row], f"All {result.residuals.size} spectra: [fewest, most] products, largest residual.")


def where_training_ends(result: HessianSpectrum) -> Table:
    """Return how far from a minimum each network is where its Hessian is taken."""
    labels = {"baseline": "baseline", "attention": "attention", "equal_loss": "attention, stopped at equal loss",
              "l1_attention": "L1-attention"}  # fmt: skip
    rows: list[list[str | Measured]] = []
    for name, label in labels.items():
        at = SPECTRA.index(name)
        lowest = result.lowest[:, 0, at] / result.eigenvalues[:, 0, at, 0]
        rows.append([
            label,
            _spread(result.stopped_at[:, 0]) if name == "equal_loss" else f"{result.settings.steps}",
            _spread(result.train_loss[:, 0, NETWORKS.index(name)]),
            _spread(result.gradient_norm[:, 0, at]),
            _spread(lowest),
        ])  # fmt: skip
    columns = ["network", "steps", "training loss", "gradient", "lowest / largest"]
    caption = (
        "Median over seeds [smallest, largest]: norm of the gradient, and the lowest eigenvalue over the largest, "
        "which is at most what is shown."
    )
    return Table(columns, rows, caption)


def decays(result: HessianSpectrum) -> Table:
    """Return training loss, in-sample and test accuracy by weight decay, and with the L1 penalty."""
    rows: list[list[str | Measured]] = []
    for j, model in enumerate(("baseline", "attention")):
        for k, decay in enumerate(result.settings.weight_decays):
            chosen = np.mean(result.allowed_decay()[:, j] == k)
            rows.append([
                f"{model}, L2 {decay:g}" if decay else model,
                _spread(result.decay_loss[:, j, k]),
                _spread(100 * result.decay_train_accuracy[:, j, k], 3),
                _spread(100 * result.decay_accuracy[:, j, k]),
                Measured(f"{chosen * len(result.decay_accuracy):.0f}"),
            ])  # fmt: skip
    l1 = NETWORKS.index("l1_attention")
    rows.append([
        f"attention, L1 {result.settings.penalty:g}",
        _spread(result.train_loss[:, 0, l1]), "", _spread(100 * result.accuracy[:, 0, l1]), "",
    ])  # fmt: skip
    columns = ["network, penalty", "training loss", "in-sample accuracy, %", "test accuracy, %", "seeds"]
    caption = (
        "Median over seeds [smallest, largest], after equal numbers of steps; the loss without the penalty. Last: how "
        "many seeds choose it, the largest decay before one costs more than a point of in-sample accuracy."
    )
    return Table(columns, rows, caption)


def trained_pieces(result: LossLandscape) -> Table:
    """Return the linear pieces that trained networks have, by three counts."""
    s = result.settings
    before = (result.pieces_before[:, 0], result.ignored_pieces_before[:, 0], result.patterns_before[:, 0])
    after = zip(result.pieces.T, result.ignored_pieces.T, result.patterns.T, strict=True)
    labels = ["all, untrained", *(LOOKS[model].label for model in MODELS)]
    rows: list[list[str | Measured]] = [
        [label, _spread(pieces, 3), _spread(ignored, 3), _whole(patterns)]
        for label, (pieces, ignored, patterns) in zip(labels, [before, *after], strict=True)
    ]
    columns = [
        "network", "pieces between two inputs", "pieces when only ignored inputs move",
        f"different pieces that {s.pattern_inputs} inputs lie in",
    ]  # fmt: skip
    return Table(columns, rows, "Median over seeds [smallest, largest]; the last column [fewest, most].")


def stuck(result: LossLandscape) -> Table:
    """Return what becomes of the runs that train all weights, by width."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for k, width in enumerate(s.fit_widths):
        losses, gradients = result.fit_losses[:, :, k], result.fit_gradients[:, :, k]
        high, rest = losses > FITTED, gradients <= STATIONARY
        at = high & rest
        lowest = Measured(f"{result.fit_lowest[:, :, k][at].min():.0e}") if at.any() else "–"
        rows.append([
            f"{width}", f"{width * (s.few_inputs + 1)}",
            *(Measured(f"{int(count.sum())}") for count in (~high, at, high & ~rest)),
            lowest, Measured(f"{result.fit_growth[:, :, k].max():.2g}"),
        ])  # fmt: skip
    columns = ["d", "weights", "fit", "rest", "move", "lowest", "growth"]
    caption = (
        f"Weights: without the mask. Of {2 * len(s.seeds)} runs, with and without a mask, so many fit (relative "
        f"loss at most {FITTED:g}), rest with a positive loss (gradient norm at most {STATIONARY:g}), or still move. "
        "Lowest: the lowest eigenvalue over the largest, the worst of the runs at rest. Growth: the norm of all "
        "weights at the end over that at the start, the largest."
    )
    return Table(columns, rows, caption)


def orbit_text(result: LossLandscape, mask_factor: float, hidden_factor: float) -> str:
    """Return the numbers behind one picture of the slider on Theorem 4."""
    s = result.settings
    i, j = s.mask_factors.index(mask_factor), s.hidden_factors.index(hidden_factor)
    start = s.mask_factors.index(1.0), s.hidden_factors.index(1.0)
    change = np.abs(result.orbit_outputs[i, j] - result.orbit_outputs[start]).max()
    ratio = result.orbit_eigenvalues[i, j, 0] / result.orbit_eigenvalues[(*start, 0)]
    volume = log_volume_factor(s.minimum_inputs, s.minimum_width, mask_factor, hidden_factor) / np.log(10)
    unchanged = "to rounding" if change < 1e-10 else f"up to {change:.1e}"
    return (
        f"Mask times {mask_factor:g}, first layer times {hidden_factor:g}, second layer divided by both: "
        f"the function is the same {unchanged}, the largest eigenvalue is {ratio:.3g} times what it was, "
        f"and volumes of weights change by a factor of ten to the {volume:.3g}."
    )


def _spread(values: np.ndarray, digits: int = 2) -> Measured:
    if np.abs(values).max() >= 10**digits:
        return Measured(f"{np.median(values):.0f} [{values.min():.0f}, {values.max():.0f}]")
    return Measured(f"{np.median(values):.{digits}g} [{values.min():.{digits}g}, {values.max():.{digits}g}]")


def _whole(values: np.ndarray) -> Measured:
    return Measured(f"{np.median(values):.0f} [{values.min():.0f}, {values.max():.0f}]")
