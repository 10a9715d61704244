"""The tables of the comparisons on images and made reviews, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.experiments.image_runs import ImageRuns
from attnbook.mirror_descent.experiments.images import CifarImages
from attnbook.mirror_descent.experiments.made_reviews import MadeReviews
from attnbook.mirror_descent.figures.looks import OPTIMIZER_LOOKS
from attnbook.mirror_descent.models.comparison import OPTIMIZERS

__all__ = ["images", "one_seed", "stand_ins"]


def images(result: CifarImages) -> Table:
    """Return, for each optimiser at its chosen step size, accuracy, paired difference and sparsity.

    Args:
        result: The runs.

    Returns:
        One row per optimiser, with means over seeds and standard deviations in brackets.
    """
    best = result.chosen()
    rows: list[list[str | Measured]] = []
    for name, number in best.items():
        gain = 100 * (result.test_accuracy[number] - result.test_accuracy[best["p2"]])
        paired = "" if name == "p2" else f"{_mean(gain, '+.1f')}, {(gain > 0).sum()}"
        cells = [
            f"{result.settings.configurations[number][1]:g}",
            _mean(100 * result.test_accuracy[number], ".1f"),
            paired,
            f"{100 * result.train_accuracy[number].mean():.1f}",
            _mean(result.effective_dimension[number], ".3f"),
            f"{100 * result.near_zero[number].mean():.1f}",
        ]
        rows.append([OPTIMIZER_LOOKS[name].label, *map(Measured, cells)])
    caption = Measured(
        f"{100 * result.sampling_error():.1f} points.",
        f"Per cent and points; means of {len(result.settings.seeds)} seeds, in brackets standard deviations. "
        "Minus p = 2: paired, then the number of seeds in which it is ahead. Step sizes: chosen on validation images, "
        "in the mean over all seeds. Near zero: entries of at most one per cent of the largest. Sampling error of the "
        f"{result.settings.n_test:,} test images: ",
    )
    heads = ["optimiser of attention", "step size", "test", "minus p = 2", "train", "effective dimension", "near zero"]
    return Table(heads, rows, caption)


def one_seed(result: ImageRuns) -> Table:
    """Return the lead of Adam over p = 1.1 on all other seeds when one seed alone picks both step sizes.

    Args:
        result: The runs.

    Returns:
        One row per picking seed, and one for all seeds together.
    """
    best, all_seeds = result.chosen(), "all"
    together = result.test_accuracy[best["adam"]] - result.test_accuracy[best["p1_1"]]
    leads = {**dict(zip(map(str, result.settings.seeds), result.one_seed_leads(), strict=True)), all_seeds: together}
    rows: list[list[str | Measured]] = []
    for place, (seed, lead) in enumerate(leads.items()):
        picked = best if seed == all_seeds else result.chosen([place])
        rates = [f"{result.settings.configurations[picked[name]][1]:g}" for name in ("adam", "p1_1")]
        # Adding zero turns a rounded -0 into 0.
        rows.append([seed, *map(Measured, [*rates, f"{round(100 * float(np.mean(lead)), 1) + 0:+.1f}"])])
    caption = "Validation images pick; the lead is the mean over the other seeds, in the last row over all, in points."
    return Table(["picked by seed", "step size of Adam", "of p = 1.1", "lead of Adam"], rows, caption)


def stand_ins(digits: ImageRuns, reviews: MadeReviews) -> Table:
    """Return accuracy and sparsity on digits and made reviews, at one step size each.

    Args:
        digits: The runs on digits.
        reviews: The runs on made reviews.

    Returns:
        One row per optimiser, with means over seeds and standard deviations in brackets.
    """
    rows: list[list[str | Measured]] = []
    for name in OPTIMIZERS:
        cells = []
        for run in (digits, reviews):
            number = run.compared[name]
            cells += [_mean(100 * run.test_accuracy[number], ".1f"), _mean(run.effective_dimension[number], ".3f")]
        over = reviews.mass[reviews.compared[name]] / reviews.uniform_mass()
        rate = f"{digits.settings.configurations[digits.compared[name]][1]:g}"
        rows.append([f"{OPTIMIZER_LOOKS[name].label}, {rate}", *map(Measured, [*cells, _mean(over, ".2f")])])
    caption = (
        f"Means of {len(digits.settings.seeds)} seeds and standard deviations. Step sizes were set beforehand, "
        "the same on both, and tuned on neither."
    )
    groups = (("", 1), ("digits", 2), ("made reviews", 3))
    heads = ["optimiser, step size", "test", "effective dim.", "test", "effective dim.", "telling words, over uniform"]
    return Table(heads, rows, caption, groups)


def _mean(values: np.ndarray, form: str) -> str:
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return f"{values.mean():{form}} ({deviation:{form.lstrip('+')}})"
