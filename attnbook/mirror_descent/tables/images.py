"""The tables of the comparisons on images and made reviews, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.comparison import OPTIMIZERS
from attnbook.mirror_descent.experiments.image_runs import ImageRuns
from attnbook.mirror_descent.experiments.images import CifarImages
from attnbook.mirror_descent.experiments.made_reviews import MadeReviews
from attnbook.mirror_descent.figures.looks import OPTIMIZER_LOOKS

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
        ]
        rows.append([_short(name), *map(Measured, cells)])
    caption = Measured(
        f"{100 * result.sampling_error():.1f} points.",
        f"Per cent and points; means of {len(result.settings.seeds)} seeds, in brackets standard deviations. "
        "Minus p = 2: paired, then the number of seeds in which it is ahead. Step sizes: chosen on validation images, "
        "in the mean over all seeds. Sampling error of one accuracy on the "
        f"{result.settings.n_test:,} test images: ",
    )
    heads = ["method", "step size", "test", "minus p = 2", "train", "eff. dim."]
    return Table(heads, rows, caption)


def one_seed(result: ImageRuns) -> Table:
    """Return the lead of Adam over p = 1.1 on all seeds but one, which picks both step sizes, and at common ones.

    Args:
        result: The runs.

    Returns:
        One row per picking seed, and one for all seeds together.
    """
    best, all_seeds = result.chosen(), "all"
    together = result.test_accuracy[best["adam"]] - result.test_accuracy[best["p1_1"]]
    both = np.stack([result.one_seed_leads(), result.one_seed_leads(picks=False)], axis=1)
    leads = dict(zip(map(str, result.settings.seeds), both, strict=True)) | {all_seeds: np.full(2, together.mean())}
    rows: list[list[str | Measured]] = []
    for place, (seed, lead) in enumerate(leads.items()):
        picked = best if seed == all_seeds else result.chosen([place])
        rates = [f"{result.settings.configurations[picked[name]][1]:g}" for name in ("adam", "p1_1")]
        # Adding zero turns a rounded -0 into 0.
        rows.append([seed, *map(Measured, [*rates, *(f"{round(100 * float(own), 1) + 0:+.1f}" for own in lead)])])
    caption = (
        "Lead of Adam over p = 1.1: mean over all seeds but the one that picks, in points; in the last column at the "
        "step sizes that all seeds together pick (last row: mean over all seeds)."
    )
    return Table(["seed that picks", "Adam", "p = 1.1", "lead", "lead, common steps"], rows, caption)


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
        rows.append([f"{_short(name)}, {rate}", *map(Measured, [*cells, _mean(over, ".2f")])])
    caption = (
        f"Means of {len(digits.settings.seeds)} seeds and standard deviations. Step sizes were set beforehand, "
        "the same on both, and tuned on neither. Telling: attention on telling words over that of uniform attention."
    )
    groups = (("", 1), ("digits", 2), ("made reviews", 3))
    heads = ["step size", "test", "eff. dim.", "test", "eff. dim.", "telling"]
    return Table(heads, rows, caption, groups)


def _short(name: str) -> str:
    return OPTIMIZER_LOOKS[name].label.split(" (")[0]


def _mean(values: np.ndarray, form: str) -> str:
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return f"{values.mean():{form}} ({deviation:{form.lstrip('+')}})"
