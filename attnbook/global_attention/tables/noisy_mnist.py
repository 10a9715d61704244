"""The tables of the chapter on noisy digits, as the notebook shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from attnbook import ledger
from attnbook.core.figures import LOOKS
from attnbook.core.results import Measurement, stored_measurements
from attnbook.core.runtime import Scale
from attnbook.core.tables import Measured, Table
from attnbook.datasets import Images
from attnbook.global_attention.agreement import Agreement
from attnbook.global_attention.digit_training import Model
from attnbook.global_attention.experiments.noisy_mnist import MODELS, NAMES, PANELS, NoisyMnist
from attnbook.global_attention.noisy_digits import Scene
from attnbook.ledger.rendering import SIGNS

__all__ = [
    "accuracies",
    "agreement",
    "at_best_step_size",
    "balance",
    "curves_text",
    "mask_entries",
    "penalty_that_trails",
    "settings_won",
    "source",
    "steps_to_losses",
    "weights_text",
    "with_and_without_mnist",
]

_RANGE = "median over {} seeds [smallest, largest]"
SCALES: tuple[Scale, ...] = ("book", "paper")


def source(images: Images) -> Table:
    """Return where the digits come from, as a note that nobody can miss."""
    rows: list[list[str | Measured]] = [
        [
            images.source.removeprefix("stand-in: "),
            f"{len(images.train)}",
            f"{len(images.test)}",
            "no" if images.stand_in else "yes",
        ]
    ]
    caption = "The digits that this page trains on when you run it. Full-size results are stored, and come from MNIST."
    return Table(["digits", "training images", "test images", "real MNIST"], rows, caption)


def at_best_step_size(result: NoisyMnist, panels: Sequence[str]) -> Table:
    """Return the final accuracy of each model at its own best step size, in points, with the range over seeds."""
    rows: list[list[str | Measured]] = []
    for panel in panels:
        scene, chosen, best = PANELS[panel].scene, result.best_step_sizes(panel), 100 * result.best(panel)
        row: list[str | Measured] = [f"{scene.digit_size} in {scene.image_size}"]
        for j, model in enumerate(MODELS):
            low, middle, high = best[:, j].min(), np.median(best[:, j]), best[:, j].max()
            row.append(Measured(f"{middle:.1f} [{low:.1f}, {high:.1f}] at {chosen[model]:g}"))
        rows.append(row)
    caption = (
        f"Final test accuracy in per cent: median over {len(result.settings.seeds)} seeds [smallest, largest], at the "
        "step size that is best for this network (chosen on the test images)."
    )
    return Table(["digit", *(LOOKS[model].label for model in MODELS)], rows, caption)


def accuracies(names: Sequence[str], accuracy: Float[np.ndarray, "seeds scenes models"]) -> Table:
    """Return final accuracies of each model in some scenes, in points, with the range over seeds."""
    points = 100 * accuracy
    rows: list[list[str | Measured]] = [
        [name, *(Measured(f"{np.median(p):.1f} [{p.min():.1f}, {p.max():.1f}]") for p in points[:, i].T)]
        for i, name in enumerate(names)
    ]
    caption = (
        f"Final test accuracy in per cent: median over {len(points)} seeds [smallest, largest]; guessing gives 10."
    )
    return Table(["digit", *(LOOKS[model].label for model in MODELS)], rows, caption)


def mask_entries(masks: Float[np.ndarray, "seeds trained pixels"], scene: Scene, models: Sequence[Model]) -> Table:
    """Return smallest, median and largest mask entry outside and inside the digit, with their range over seeds."""
    inside = scene.patch == 1
    rows: list[list[str | Measured]] = []
    for model, of_model in zip(models, np.moveaxis(masks, 1, 0), strict=True):
        for place, where in (("outside", ~inside), ("inside", inside)):
            columns = (read(of_model[:, where], axis=1) for read in (np.min, np.median, np.max))
            rows.append([f"{LOOKS[model].label}, {place} the digit", *(_over_seeds(x, 2) for x in columns)])
    caption = f"Entries of the mask after training, which start at 1: {_RANGE.format(len(masks))}."
    return Table(["", "smallest", "median", "largest"], rows, caption)


def balance(result: NoisyMnist) -> Table:
    """Return smallest and median of what gradient flow would conserve, before and after training."""
    rows: list[list[str | Measured]] = [
        [when, *(_over_seeds(read(result.balance[:, i], axis=1), 2) for read in (np.min, np.median))]
        for i, when in enumerate(("before training", "after training"))
    ]
    caption = (
        "Squared mask entry minus squared length of its weights, over the pixels of Figure 2, attention without a "
        f"penalty: {_RANGE.format(len(result.balance))}."
    )
    return Table(["", "smallest", "median"], rows, caption)


def agreement(found: Agreement, scene: Scene) -> Table:
    """Return how far hidden units agree within a batch, and how far batches agree, inside and outside the digit."""
    inside = scene.patch == 1
    named = {
        "hidden units, in one batch": (found.units, found.units_by_chance),
        "batches, over time": (found.batches, found.batches_by_chance),
    }
    rows: list[list[str | Measured]] = []
    for name, pair in named.items():
        medians = (np.nanmedian(values[:, where], axis=1) for where in (inside, ~inside) for values in pair)
        rows.append([name, *(_over_seeds(x, 2) for x in medians)])
    caption = (
        "Agreement of the pushes on a mask entry, median over the pixels that are not dark in all images: "
        f"{_RANGE.format(len(found.units))}."
    )
    return Table(["do they agree?", "inside the digit", "by chance", "outside", "by chance"], rows, caption)


def steps_to_losses(result: NoisyMnist, panels: Sequence[str]) -> Table:
    """Return after how many steps baseline and attention reach two losses, each at its own best step size."""
    rows: list[list[str | Measured]] = []
    for panel in panels:
        scene = PANELS[panel].scene
        row: list[str | Measured] = [f"{scene.digit_size} in {scene.image_size}"]
        for what in ("train_loss", "test_loss"):
            row += [_over_seeds(steps, 0) for steps in result.steps_to_loss(what, panel).T]
        rows.append(row)
    columns = [f"{what}, {LOOKS[model].label}" for what in ("training loss", "test loss") for model in MODELS[:2]]
    caption = (
        f"Steps until a network reaches a loss, at its best step size: {_RANGE.format(len(result.settings.seeds))}."
    )
    return Table(["digit", *columns], rows, caption)


def settings_won(results: Mapping[str, NoisyMnist]) -> Table:
    """Return in how many settings attention is ahead, by data set, and how many at the smallest step size."""
    rows: list[list[str | Measured]] = []
    for name, result in results.items():
        lead, every = result.lead(), result.ahead_in_every_seed()
        counted, ahead = np.isfinite(lead), lead > 0.01
        wins = f"{ahead.sum()}; {(ahead & every).sum()} of them in every seed"
        smallest = result.settings.step_sizes[0]
        first = f"at {smallest:g}: {counted[:, 0].sum()} of {len(lead)} count, {ahead[:, 0].sum()} ahead"
        rows.append([name, f"{lead.size}", *map(Measured, (f"{counted.sum()}", wins, first))])
    caption = "A setting counts where baseline or attention has a median accuracy of 30 per cent or more."
    columns = ["images", "settings", "that count", "ahead by more than a point", "smallest step size"]
    return Table(columns, rows, caption)


def penalty_that_trails(results: Mapping[str, NoisyMnist]) -> Table:
    """Return the settings in which L1-attention ends more than a point behind attention, by data set."""
    names = list(NAMES.values())
    rows: list[list[str | Measured]] = []
    for name, result in results.items():
        lead = result.lead("l1_attention", "attention")
        final = 100 * np.median(result.accuracy[-1], axis=0)
        found = [
            f"{names[i]} at {result.settings.step_sizes[k]:g}: {final[i, k, 2]:.0f} against {final[i, k, 1]:.0f}"
            for i, k in np.argwhere(lead < -0.01)
        ]
        rows.append([name, Measured("; ".join(found) or "none")])
    caption = "Settings in which the mask with a penalty ends more than a point behind the one without, in per cent."
    return Table(["images", "setting, step size, and the two accuracies"], rows, caption)


def with_and_without_mnist(claims: Sequence[str]) -> Table:
    """Return the stored verdicts of some claims on scikit-learn's digits and on MNIST, side by side."""
    experiment = NoisyMnist.experiment
    rows: list[list[str | Measured]] = []
    for name in claims:
        claim = ledger.claim(name)
        row: list[str | Measured] = [f"{name} ({claim.where})"]
        for scale in SCALES:
            measured = stored_measurements(experiment, scale).get(name)
            row.append(_verdict(claim, measured, scale) if measured else "not measured")
        rows.append(row)
    caption = (
        "Verdicts on two stored results: scikit-learn's digits at book scale, and MNIST at full size (✓ reproduced, "
        "≈ in trend, ✗ not reproduced). The numbers stand in the claims ledger."
    )
    return Table(["claim", "scikit-learn's digits", "MNIST"], rows, caption)


def _verdict(claim: ledger.Claim, measured: Measurement, scale: Scale) -> Measured:
    return Measured(SIGNS[ledger.judge(claim, measured, scale).outcome])


def _over_seeds(values: np.ndarray, digits: int) -> Measured:
    return Measured(f"{np.median(values):.{digits}f} [{values.min():.{digits}f}, {values.max():.{digits}f}]")


def weights_text(result: NoisyMnist, step: int) -> str:
    """Return the numbers behind one picture of the growing weights: mean strength outside and inside the digit."""
    weights = result.weights[int(np.flatnonzero(result.steps == step)[0])]
    inside = PANELS["figure_2"].scene.patch == 1
    means = [
        (LOOKS[model].label, of[~inside].mean(), of[inside].mean()) for model, of in zip(MODELS, weights, strict=True)
    ]
    shown = ", ".join(f"{name} {outside:.2f} and {within:.2f}" for name, outside, within in means)
    return f"After {step:.0f} steps, mean strength of a pixel outside the digit and inside: {shown}."


def curves_text(result: NoisyMnist, panel: str, step_size: float) -> str:
    """Return the numbers behind one picture of curves."""
    final = np.median(result.curves("accuracy", panel, step_size)[-1], axis=0)
    scene = PANELS[panel].scene
    shown = ", ".join(f"{LOOKS[model].label} {final[j]:.2f}" for j, model in enumerate(MODELS))
    return f"Digit of {scene.digit_size} in {scene.image_size}, step size {step_size:g}: final test accuracy {shown}."
