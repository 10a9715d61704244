"""The tables of the chapter on joint training."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.attention_svm import SUPPORT_TOLERANCE
from attnbook.mirror_descent.experiments import joint_one_step_size, joint_toy, joint_training
from attnbook.mirror_descent.figures.joint_training import asked_for, shown_seed

__all__ = ["easy_text", "excesses", "explorer_text", "far_out", "limits", "spreads", "targets", "toy"]


def toy(result: joint_toy.JointToy) -> Table:
    """Return where the runs of the plane end, by exponent."""
    rows: list[list[str | Measured]] = []
    for p, selected, cosines in zip(result.settings.ps, result.selected, result.cosines(), strict=True):
        tokens = ", ".join("first" if token == 0 else "second" for token in selected)
        rows.append([f"{p:g}", tokens, *(Measured(f"{c:.4f}") for c in cosines)])
    caption = "Cosines are with the max-margin solutions for the second tokens."
    return Table(["p", "tokens attended last", "cosine of the matrix", "cosine of the head"], rows, caption)


def excesses(result: joint_training.JointTraining) -> Table:
    """Return how many samples of all runs at p = 2 are off the head's margin, and how far from the corrected line."""
    ratio = result.kappa[:, :, result.settings.ps.index(joint_training.SCANNED), -1]
    excess = ratio[..., None] * (result.margins - 1)
    off = result.margins > 1 + SUPPORT_TOLERANCE
    falling = off & (excess < 1)
    away = (result.gaps - (1 - excess))[falling]
    row: list[str | Measured] = [Measured(f"{n}") for n in (off.size, off.sum(), falling.sum(), (off & ~falling).sum())]
    row.append(Measured(f"{away.min():+.3f} to {away.max():+.3f}" if away.size else "none"))
    heads = ["samples in all runs", "off the margin", "line falling", "line at zero", "gap minus falling line"]
    settings = result.settings
    caption = (
        f"The samples of the picture: {len(settings.seeds)} seeds, {len(settings.head_paces)} lengths of the head's "
        f"steps, {settings.steps} steps; a stored run."
    )
    return Table(heads, [row], caption)


def targets(result: joint_training.JointTraining) -> Table:
    """Return, by exponent, cosines with all targets at the end of runs with separate steps of equal length."""
    off = result.off_margin()[:, 0]
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        some = off[:, at]
        smallest = [_smallest(result.cosine_head[:, 0, at, -1]), _smallest(result.cosine_plain[~some, 0, at, -1])]
        smallest += [_smallest(a[some, 0, at, -1]) for a in (result.cosine_plain, result.cosine_corrected)]
        ratio = _ends(result.kappa[:, 0, at, -1], 1)
        rows.append([f"{p:g}", *smallest, Measured(f"{some.sum()}"), ratio])
    heads = ["p", "head", "on", "off: plain", "off: corr.", "runs off", "κ"]
    caption = (
        f"Smallest cosine over {len(result.settings.seeds)} seeds, steps of equal length: of the head, and of the "
        "matrix with the plain target in runs with all samples on the margin (on), with the plain and the corrected "
        "target in runs with some off; how many these are; range of the ratio over all runs."
    )
    return Table(heads, rows, caption)


def _smallest(values: np.ndarray) -> Measured:
    return Measured(f"{values.min():.4f}" if values.size else "none")


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
        "interpolated between records."
    )
    return Table(heads, rows, caption)


def limits(result: joint_one_step_size.JointOneStepSize) -> Table:
    """Return, by exponent, how many runs with samples off the margin end nearer to the limit, and where they are."""
    off = result.all_support[:, :, -1] == 0
    nearer = (result.cosine_limit > result.cosine_plain)[:, :, -1]
    rows: list[list[str | Measured]] = []
    for at, p in enumerate(result.settings.ps):
        some = off[:, at]
        counts = Measured(f"{(nearer[:, at] & some).sum()} of {some.sum()}")
        rows.append([f"{p:g}", counts, *(_ends(a[some, at, -1], d) for a, d in (
            (result.kappa, 0), (result.relative_norm, 0), (result.cosine_corrected, 2)))])  # fmt: skip
    heads = ["p", "nearer to the limit", "ratio κ", "norm ρ", "cosine with W_κ"]
    caption = "Runs that end with a sample off the head's margin: counts, and ranges at the end."
    return Table(heads, rows, caption)


def _ends(values: np.ndarray, digits: int) -> Measured:
    return Measured(f"{values.min():.{digits}f} to {values.max():.{digits}f}" if values.size else "none")


def spreads(result: joint_training.JointTraining) -> Table:
    """Return how many runs of the smallest exponent are short of the threshold of the larger ones."""
    rows: list[list[str | Measured]] = []
    for name, cosine in (("head", result.cosine_head), ("matrix", result.cosine_corrected)):
        last = cosine[:, 0, 0, -1]
        rows.append([name, Measured(f"{(last < 0.995).sum()} of {last.size}"), _range(last)])
    caption = f"p = {result.settings.ps[0]:g}, steps of equal length, against the head SVM and the corrected target."
    return Table(["block", "cosine below 0.995", "smallest and median cosine"], rows, caption)


def explorer_text(result: joint_training.JointTraining, head_pace: float, ratio: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    seed, at = shown_seed(result), result.settings.head_paces.index(head_pace)
    own = result.kappa[seed, at, result.settings.ps.index(joint_training.SCANNED), -1]
    cosine = result.scanned[seed, at, result.settings.scan.index(ratio)]
    order = np.argsort(result.margins[seed, at])
    gaps, asked = result.gaps[seed, at][order], asked_for(result, seed, at, ratio)[order]
    return (
        f"The head's steps are {head_pace:g} times as long as the matrix's. With ratio {ratio:g} in the right-hand "
        f"sides the solution has cosine {cosine:.4f} with the trained matrix; the run's own ratio is {own:.2f}. "
        f"By growing head margin, this asks for {', '.join(f'{side:.2f}' for side in asked)}; the run's smallest gaps "
        f"are {', '.join(f'{gap:.2f}' for gap in gaps)}."
    )


def easy_text(rows: np.ndarray, asked: np.ndarray, plain: np.ndarray, solution: np.ndarray) -> str:
    """Return the numbers behind one picture of the slider with one easy sample; arguments as the picture's."""
    turn = np.degrees(np.arctan2(solution[1], solution[0]) - np.arctan2(plain[1], plain[0]))
    length = np.linalg.norm(solution) / np.linalg.norm(plain)
    sides = ", ".join(f"{right:g}" for right in asked)
    gaps = ", ".join(f"{gap:.2f}" for gap in np.abs(rows @ solution))
    return (
        f"Asked for: {sides}. The smallest column turns by {np.round(turn, 1) + 0.0:.1f} degrees and has {length:.2f} "
        f"times the plain one's length; its gaps are {gaps}."
    )
