"""The tables of the chapter on generalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from attnbook.core.tables import Measured, Table
from attnbook.multi_head.experiments.generalisation_gap import GeneralisationGap
from attnbook.multi_head.experiments.leave_one_out_paths import LeaveOneOutPaths
from attnbook.multi_head.experiments.stability import INSIDE, Stability

__all__ = ["conditions", "explorer_text", "facts", "gaps", "ladder", "rate_text", "vacuous"]

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def ladder(result: Stability) -> Table:
    """Return how the gap grows into its bounds, step by step, at the largest number of samples."""
    at = len(result.settings.sizes) - 1
    values = {
        "test − training loss, measured": result.gap,
        "left-out − training loss": result.left_out_gap,
        "Lemma 3: β₁ times the measured distances, twice": result.lemma_3,
        "the same with recursion (22) for the distances": None,
        "Corollary 2": result.corollary_2,
    }
    gap = np.log10(result.gap[..., at].mean(0))
    rows: list[list[str | Measured]] = []
    for name, found in values.items():
        each = result.log_unrolled[..., at] if found is None else np.log10(found[..., at])
        mean = each.mean(0) if found is None else np.log10(found[..., at].mean(0))
        cells = [
            text
            for i in (0, 1)
            for text in (
                f"{_power(mean[i])} [{_power(each[:, i].min())}, {_power(each[:, i].max())}]",
                _power(mean[i] - gap[i]),
            )
        ]
        rows.append([name, *(Measured(cell) for cell in cells)])
    few, many = result.settings.heads
    caption = (
        f"n = {result.settings.sizes[at]}, K = {result.settings.steps} steps: means over {len(result.gap)} seeds (of "
        "logarithms in the row with the recursion), in brackets the range of single seeds, and how many times the mean "
        "gap the mean is. log 2 is 0.69."
    )
    groups = [("", 1), (f"{few} heads", 2), (f"{many:,} heads".replace(",", "\u202f"), 2)]
    return Table(["", "value", "× gap", "value", "× gap"], rows, caption, groups)


def gaps(result: GeneralisationGap) -> Table:
    """Return losses, error and gap at every size."""
    root = math.sqrt(len(result.gap))
    rows: list[list[str | Measured]] = []
    for a, steps in enumerate(result.steps):
        for j, n in enumerate(result.settings.sizes):
            gap = result.gap[:, a, j]
            means = (result.train_loss[:, a, j].mean(), result.test_loss[:, a, j].mean())
            error = f"{100 * result.test_error[:, a, j].mean():.2g} %"
            of_gap = f"{gap.mean():.4f} ± {gap.std(ddof=1) / root:.4f}"
            texts = [*(f"{mean:.3f}" for mean in means), error, of_gap, f"{n * gap.mean():.2f}"]
            rows.append([f"{n}", f"{steps[j]}", *(Measured(text) for text in texts)])
    caption = f"Means over {len(result.gap)} seeds; after ± the standard error of the mean."
    return Table(["n", "K", "training loss", "test loss", "test error", "gap", "n × gap"], rows, caption)


def vacuous(result: GeneralisationGap) -> Table:
    """Return how far above log 2 the bounds are and how many samples they would ask for."""
    sizes = np.array(result.settings.sizes)[[0, -1]]
    bound, target = (np.median(values[:, 0], axis=0)[[0, -1]] for values in (result.corollary_2, result.theorem_2))
    gap = result.gap[:, 0].mean(0)[[0, -1]]
    found = {
        "mean gap": [f"{value:.3g}" for value in gap],
        "Theorem 2": [f"{value:.3g}" for value in target],
        "Corollary 2": [f"{value:.3g}" for value in bound],
        "Corollary 2 / gap": [_power(value) for value in np.log10(bound / gap)],
        "n for log 2": [_power(value) for value in np.log10(sizes * bound / math.log(2))],
    }
    rows: list[list[str | Measured]] = [[name, *(Measured(text) for text in texts)] for name, texts in found.items()]
    caption = (
        "K = n. Bounds: median over seeds. Last row: samples at which Corollary 2 would be log 2 if margin "
        "and number of steps stayed what they are, which they do not."
    )
    return Table(["", *(f"n = {n}" for n in sizes)], rows, caption)


def facts(found: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Table:
    """Return what was measured beside what is said about it.

    Args:
        found: What it is to the values and whether the statement holds for each of them.

    Returns:
        A row for each, with the smallest and the largest value.
    """
    rows: list[list[str | Measured]] = []
    for name, (values, holds) in found.items():
        ends = dict.fromkeys(_short(end) for end in (np.min(values), np.max(values)))
        rows.append([name, Measured(" to ".join(ends)), "yes" if np.all(holds) else "no"])
    return Table(["", "measured", "holds"], rows, "Smallest to largest over what the row is about.")


def conditions(result: Stability) -> Table:
    """Return whether the conditions of the recursion's proof hold, at the practical step size and at the small one."""
    chosen = result.settings
    rows: list[list[str | Measured]] = []
    for i, n_heads in enumerate(chosen.heads):
        values = (result.step_smoothness[:, i].max(), result.segment_condition[:, i].max())
        heads = f"{n_heads:,}".replace(",", "\u202f")
        rows.append([heads, f"{chosen.step_size:g}", *(Measured(_power(math.log10(value))) for value in values)])
    inside = [result.inside[:, at].max() for at in map(INSIDE.index, ("step_smoothness", "segment_condition"))]
    heads = f"{chosen.heads[-1]:,}".replace(",", "\u202f")
    rows.append([heads, f"{chosen.inside_step_size:g}", *(Measured(_power(math.log10(value))) for value in inside)])
    caption = (
        "The largest value over steps, samples, seeds and sizes (last row: another step size, "
        f"n = {chosen.inside_size}, {chosen.inside_steps} steps). The proof of recursion (22) needs at most 1."
    )
    return Table(["heads", "step size η", "η β₂", "eq. (18): 2 β₃ δ² / √H"], rows, caption)


def rate_text(
    sizes: Float[np.ndarray, " sizes"], bounds: Mapping[str, Float[np.ndarray, " sizes"]], rate: float
) -> str:
    """Return what Corollary 2 promises if the margin falls at a given rate.

    Args:
        sizes: Samples $n$, growing.
        bounds: ``corollary_2`` (as many steps as samples) and ``fixed_steps`` to the bound.
        rate: The margin falls like $n$ to the power of minus this.

    Returns:
        Two sentences that say, for either number of steps, by which factor the bound changes and where it gets below
        log 2.
    """
    says = []
    for name, steps in (("corollary_2", "As many steps as samples"), ("fixed_steps", "Fixed number of steps")):
        values = bounds[name]
        below = sizes[values < math.log(2)]
        reached = f"below log 2 from about {_rough(below[0])} samples on" if len(below) else "nowhere below log 2"
        says.append(f"{steps}: last value {_rough(values[-1] / values[0])} times the first, {reached}.")
    margin = f"falls like n to the power −{rate:g}" if rate else "stays as it is"
    return f"The margin {margin}, up to {_rough(sizes[-1])} samples. {' '.join(says)}"


def _rough(value: float) -> str:
    """Write a number with one significant digit."""
    rounded = float(f"{value:.0e}")
    return f"{rounded:,.0f}".replace(",", "\u202f") if rounded >= 10 else f"{rounded:g}"


def explorer_text(result: LeaveOneOutPaths, n_heads: int, rank: int) -> str:
    """Return the numbers behind one picture of the sliders."""
    head, sample = result.settings.heads.index(n_heads), rank - 1
    distance = result.distance[-1, head, sample]
    excess = np.log10(result.recursion[-1, head, sample]) - np.log10(distance)
    printed = result.printed[-1, head, sample] / distance
    times = f"{_power(excess)} times" if excess < 4 else f"ten to the power of {excess:.0f} times"
    fits = "below the truth: it cannot be meant" if printed < 1 else "above the truth here too"
    heads = f"{n_heads:,}".replace(",", "\u202f")
    return (
        f"H = {heads}, sample {rank}: after the last step the networks are {distance:.2g} apart and recursion (22) "
        f"allows {times} that. With the bracket as shown, (21) ends {fits}. The sample's loss is "
        f"{result.sample_loss[-1, head, sample]:.2g} for the network that has seen it and "
        f"{result.left_out_loss[-1, head, sample]:.2g} for the one that has not."
    )


def _short(value: float) -> str:
    """Write a number with two digits, or from 100 000 on as a power of ten."""
    return _power(math.log10(value)) if value >= 10 else f"{value:.2g}"


def _power(logarithm: float) -> str:
    """Write a positive number given by its logarithm to base ten: with two digits, or as a power of ten."""
    if logarithm >= 5:
        return "10" + f"{logarithm:.0f}".translate(SUPERSCRIPT)
    rounded = float(f"{10**logarithm:.2g}")
    return f"{rounded:,.0f}".replace(",", "\u202f") if rounded >= 10 else f"{rounded:.2g}"
