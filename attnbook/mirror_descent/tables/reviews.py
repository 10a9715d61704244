"""The tables of the experiments on film reviews, as notebooks show them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.mirror_descent.experiments.few_reviews import FewReviews
from attnbook.mirror_descent.experiments.review_runs import ReviewRuns
from attnbook.mirror_descent.figures.looks import OPTIMIZER_LOOKS

__all__ = ["accuracies", "fair_and_unfair", "looked_at", "pair_text", "picking_text"]


def accuracies(result: ReviewRuns, numbers: Mapping[str, int]) -> Table:
    """Return step size, accuracy and paired difference of each optimiser.

    Args:
        result: The runs.
        numbers: Optimiser to the configuration to show, ``result.chosen()`` or ``result.compared``.

    Returns:
        One row per optimiser, with means and, in brackets, standard deviations over seeds.
    """
    rows: list[list[str | Measured]] = []
    for name, number in numbers.items():
        test, train = 100 * result.test_accuracy[number], 100 * result.train_accuracy[number]
        gain = test - 100 * result.test_accuracy[numbers["p2"]]
        paired = "" if name == "p2" else f"{gain.mean():+.2f} ({_deviation(gain):.2f}), {(gain > 0).sum()}"
        rows.append(
            [
                OPTIMIZER_LOOKS[name].label.split(" (")[0],
                Measured(f"{result.settings.configurations[number][1]:g}"),
                Measured(f"{test.mean():.1f} ({_deviation(test):.1f})"),
                Measured(paired),
                Measured(f"{train.mean():.1f}"),
            ]
        )
    caption = (
        f"Per cent and points; means of {len(result.settings.seeds)} seeds, in brackets standard deviations over them. "
        "Minus p = 2, gradient descent: paired, then the number of seeds in which it is ahead. "
        f"{result.settings.n_test:,} test reviews."
    )
    return Table(["method", "step size", "test", "minus p = 2", "train"], rows, caption)


def looked_at(result: ReviewRuns) -> Table:
    """Return where the class token looks, at the step sizes compared."""
    rows: list[list[str | Measured]] = []
    for name, number in result.compared.items():
        share = result.mass[number] / result.uniform_mass[0]
        cells = [f"{v.mean():.3f} ({_deviation(v):.3f})" for v in (result.mass[number], result.entropy[number])]
        top = result.top[number]
        cells += [f"{share.min():.2f} to {share.max():.2f}", f"{top.mean():.2f} ({_deviation(top):.2f})"]
        label = f"{OPTIMIZER_LOOKS[name].label.split(' (')[0]}, {result.settings.configurations[number][1]:g}"
        rows.append([label, *map(Measured, cells)])
    caption = (
        f"Means over {len(result.settings.seeds)} seeds and standard deviations. Attention of the class token in the "
        "last layer on telling words, words of praise or blame; its entropy as a share of that of uniform attention; "
        "the range over seeds of the first over uniform attention's; how often the top word, the most attended, tells."
    )
    return Table(["step size", "telling words", "entropy", "over uniform", "top word"], rows, caption)


def fair_and_unfair(result: FewReviews) -> Table:
    """Return the mean gain of p = 1.1 over p = 2 at equal step sizes, with its standard error."""
    rows: list[list[str | Measured]] = []
    for rate in result.settings.rates[1]:
        one, two = result.at("p1_1", rate), result.at("p2", rate)
        gain = 100 * (result.test_accuracy[one] - result.test_accuracy[two])
        entropy = [f"{result.entropy[number].mean():.2f}" for number in (one, two)]
        cells = [f"{100 * result.test_accuracy[number].mean():.1f}" for number in (one, two)]
        cells += [f"{gain.mean():+.2f} ({_deviation(gain) / len(gain) ** 0.5:.2f})", " and ".join(entropy)]
        rows.append([f"{rate:g}", *map(Measured, cells)])
    caption = f"Means over {len(result.settings.seeds)} seeds; in brackets the standard error of the paired difference."
    return Table(["step size of both", "p = 1.1", "p = 2", "difference in points", "entropies"], rows, caption)


def picking_text(result: FewReviews, seed: int) -> str:
    """Return the numbers behind one picture of the slider."""
    at = result.settings.seeds.index(seed)
    picked = result.chosen([at])
    rates = {name: result.settings.configurations[picked[name]][1] for name in ("p1_1", "p2")}
    gain = 100 * result.one_seed_gains()[at]
    return (
        f"Seed {seed} picks {rates['p1_1']:g} for p = 1.1 and {rates['p2']:g} for p = 2. On the other seeds p = 1.1 "
        f"then {'gains' if gain > 0 else 'loses'} {abs(gain):.2f} points on average."
    )


def pair_text(result: FewReviews, one: float, two: float) -> str:
    """Return the numbers behind one picture of the slider with a step size for each of two exponents."""
    first, second = result.at("p1_1", one), result.at("p2", two)
    gains = 100 * (result.test_accuracy[first] - result.test_accuracy[second])
    sparser = (result.whole[first] < result.whole[second]).sum()
    return (
        f"p = 1.1 at {one:g}, p = 2 at {two:g}: p = 1.1 {'gains' if gains.mean() > 0 else 'loses'} "
        f"{abs(gains.mean()):.2f} points in the mean and is ahead in {(gains > 0).sum()} of {gains.size} seeds; its "
        f"weights are the sparser ones in {sparser} of {gains.size}."
    )


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
