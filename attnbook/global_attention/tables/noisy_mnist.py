"""The tables of the chapter on noisy digits, as the notebook shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnbook import ledger
from attnbook.core.figures import LOOKS
from attnbook.core.results import stored_measurements
from attnbook.core.tables import Measured, Table
from attnbook.datasets import Images
from attnbook.global_attention.experiments.noisy_mnist import MODELS, PANELS, NoisyMnist

__all__ = ["at_best_step_size", "curves_text", "source", "weights_text", "with_and_without_mnist"]


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
