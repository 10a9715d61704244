"""The tables of the chapter on joint training."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.experiments import joint_one_step_size, joint_toy, joint_training
from attnbook.mirror_descent.figures.joint_training import shown_seed

__all__ = ["explorer_text", "far_out", "targets", "toy"]


def toy(result: joint_toy.JointToy) -> Table:
    """Return where the runs of the plane end, by exponent."""
    rows: list[list[str | Measured]] = []
    for p, selected, cosines in zip(result.settings.ps, result.selected, result.cosines(), strict=True):
        tokens = ", ".join("first" if token == 0 else "second" for token in selected)
        rows.append([f"{p:g}", tokens, *(Measured(f"{c:.4f}") for c in cosines)])
    caption = "Cosines are with the max-margin solutions for the second tokens."
    return Table(["p", "tokens attended last", "cosine of the matrix", "cosine of the head"], rows, caption)


def targets(result: joint_training.JointTraining) -> Table:
    """Return, by exponent, cosines with all targets at the end of runs with separate steps of equal length."""
    off = result.off_margin()[:, 0]
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        row: list[str | Measured] = [f"{p:g}", _range(result.cosine_head[:, 0, at, -1])]
        row.append(_range(result.cosine_plain[~off[:, at], 0, at, -1]))
        row += [_range(a[off[:, at], 0, at, -1]) for a in (result.cosine_plain, result.cosine_corrected)]
        rows.append([*row, Measured(f"{off[:, at].sum()}"), _range(result.kappa[:, 0, at, -1], 2)])
    heads = [
        "p", "head", "matrix, all on the margin: plain", "matrix, some off: plain", "corrected", "runs of this kind",
        "ratio κ, all runs",
    ]  # fmt: skip
    caption = f"Smallest and median cosine over {len(result.settings.seeds)} seeds; for the ratio, its range."
    return Table(heads, rows, caption)


def _range(values: np.ndarray, digits: int = 4) -> Measured:
    if not values.size:
        return Measured("none")
    if digits == 2:
        return Measured(f"{values.min():.2f} to {values.max():.2f}")
    return Measured(f"{values.min():.{digits}f}, {np.median(values):.{digits}f}")


def far_out(result: joint_one_step_size.JointOneStepSize) -> Table:
    """Return ratio, norm and cosines at several logs of time, by exponent, with one step size."""
    times = [t for t in (5.0, 20.0, 100.0, 600.0) if t <= result.log_time[..., -1].min()]
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        for time in times:
            ratio, norm, cosine = (
                result.at_log_time(a, time)[:, at]
                for a in (result.kappa, result.relative_norm, result.cosine_corrected)
            )
            rows.append([f"{p:g}", f"{time:g}", _range(ratio, 2), Measured(f"{np.median(norm):.1f}"), _range(cosine)])
    heads = ["p", "log t", "ratio κ", "matrix: relative norm ρ", "cosine with the corrected target"]
    caption = (
        f"Over {len(result.settings.seeds)} seeds: range of the ratio, median of the norm, smallest and median cosine, "
        "interpolated between records. The last column counts all runs."
    )
    return Table(heads, rows, caption)


def explorer_text(result: joint_training.JointTraining, head_pace: float, ratio: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    seed, at = shown_seed(result), result.settings.head_paces.index(head_pace)
    own = result.kappa[seed, at, result.settings.ps.index(joint_training.SCANNED), -1]
    cosine = result.scanned[seed, at, result.settings.scan.index(ratio)]
    return (
        f"The head's steps are {head_pace:g} times as long as the matrix's. With ratio {ratio:g} in the right-hand "
        f"sides the solution has cosine {cosine:.4f} with the trained matrix; the run's own ratio is {own:.2f}."
    )
