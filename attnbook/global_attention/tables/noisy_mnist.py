"""The tables of the chapter on noisy digits, as the notebook shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnbook import ledger
from attnbook.core.figures import LOOKS
from attnbook.core.results import stored_measurements
from attnbook.core.tables import Measured, Table
from attnbook.datasets import Images
from attnbook.global_attention.experiments.noisy_mnist import MODELS, PANELS, NoisyMnist
from attnbook.global_attention.models.digits import Model
from attnbook.global_attention.noisy_digits import Scene

__all__ = [
    "accuracies",
    "at_best_step_size",
    "curves_text",
    "mask_entries",
    "source",
    "weights_text",
    "with_and_without_mnist",
]


def source(images: Images) -> Table:
    """Return where the digits come from, as a note that nobody can miss."""
    rows: list[list[str | Measured]] = [
        [images.source, f"{len(images.train)}", f"{len(images.test)}", "no" if images.stand_in else "yes"]
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
    """Return the typical mask entry outside the digit and the largest one inside, with their range over seeds."""
    inside = scene.patch == 1
    typical, largest = np.median(masks[..., ~inside], axis=-1), masks[..., inside].max(axis=-1)
    rows: list[list[str | Measured]] = [
        [LOOKS[model].label, *(Measured(f"{np.median(x):.2f} [{x.min():.2f}, {x.max():.2f}]") for x in columns)]
        for model, columns in zip(models, zip(typical.T, largest.T, strict=True), strict=True)
    ]
    caption = (
        f"Entries of the mask after training, which start at 1: median over {len(masks)} seeds [smallest, largest]."
    )
    return Table(["", "median outside the digit", "largest inside"], rows, caption)


def with_and_without_mnist(claims: Sequence[str]) -> Table:
    """Return the stored verdicts of some claims on scikit-learn's digits and on MNIST, side by side."""
    experiment = NoisyMnist.experiment
    rows: list[list[str | Measured]] = []
    for name in claims:
        claim, row = ledger.claim(name), [name]
        for scale in ("book", "paper"):
            measured = stored_measurements(experiment, scale).get(name)
            row.append(ledger.judge(claim, measured, scale).outcome if measured else "not measured")
        rows.append([claim.where, *row])
    caption = "Verdicts on two stored results: scikit-learn's digits at book scale, and MNIST at full size."
    return Table(["where", "claim", "scikit-learn's digits", "MNIST"], rows, caption)


def weights_text(result: NoisyMnist, step: int) -> str:
    """Return the numbers behind one picture of the growing masks: outside the digit relative to inside."""
    weights = result.weights[int(np.flatnonzero(result.steps == step)[0])]
    inside = PANELS["figure_2"].scene.patch == 1
    leaks = weights[:, ~inside].mean(axis=1) / weights[:, inside].mean(axis=1)
    shown = ", ".join(f"{LOOKS[model].label} {leaks[j]:.2f}" for j, model in enumerate(MODELS))
    return f"After {step:.0f} steps a pixel outside the digit enters, relative to one inside, on average: {shown}."


def curves_text(result: NoisyMnist, panel: str, step_size: float) -> str:
    """Return the numbers behind one picture of curves."""
    final = np.median(result.curves("accuracy", panel, step_size)[-1], axis=0)
    scene = PANELS[panel].scene
    shown = ", ".join(f"{LOOKS[model].label} {final[j]:.2f}" for j, model in enumerate(MODELS))
    return f"Digit of {scene.digit_size} in {scene.image_size}, step size {step_size:g}: final test accuracy {shown}."
