"""The tables of this part, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.figures import LOOKS
from attnbook.core.tables import Measured, Table
from attnbook.global_attention.experiments import sample_complexity, sparsity

__all__ = ["explorer_start", "explorer_text", "samples_to_target", "stopping_text", "table_1", "worth"]


def table_1(result: sample_complexity.SampleComplexity) -> Table:
    """Return Table 1: the paper's number, and ours times the common factor with its range over seeds."""
    ours = result.table * result.common_factor
    rows: list[list[str | Measured]] = []
    for i, size in enumerate(sample_complexity.PAPER_SIZES):
        here = result.settings.sizes[i]
        row: list[str | Measured] = [f"{size}" if size == here else f"{size} (here {here})"]
        for j in range(len(sample_complexity.MODELS)):
            losses = ours[:, i, j]
            own = f"{np.median(losses):.2g} [{losses.min():.2g}, {losses.max():.2g}]"
            row.append(Measured(own, before=f"paper {sample_complexity.paper_losses()[i, j]:.4f}, ours "))
        rows.append(row)
    caption = Measured(
        f"{result.common_factor:.3g}.",
        before=f"Test loss. Ours: median over {len(result.table)} seeds [smallest, largest], times one "
        "fitted factor, which absorbs the unknown label variance of the paper's teacher and all else that differs: ",
    )
    return Table(["samples", *(LOOKS[m].label for m in sample_complexity.MODELS)], rows, caption)


def worth(result: sample_complexity.SampleComplexity) -> Table:
    """Return how many samples the baseline needs to be as good as the others with the fewest."""
    fewest, most = sample_complexity.PAPER_SIZES[0], sample_complexity.PAPER_SIZES[-1]
    rows: list[list[str | Measured]] = [
        [
            LOOKS[model].label,
            f"{fewest}",
            Measured(f"about {round(n, -3):.0f}" if np.isfinite(n) else f"more than {most}"),
        ]
        for model, n in result.worth.items()
    ]
    caption = (
        f"Read off the medians of our table at step {result.settings.snapshot}, interpolated between sizes. "
        "The ranges over seeds overlap, and the numbers depend on the step."
    )
    return Table(["a network with", "and this many samples", "is as good as none with"], rows, caption)


def stopping_text(result: sample_complexity.SampleComplexity, step: int) -> str:
    """Return what Table 1 would say if training stopped at a recorded step: gap, fall, and the headline."""
    losses = result.at(step)
    medians = np.median(losses, axis=0)
    of_14000, of_20000 = losses[:, 1, 1], losses[:, 4, 0]
    ratio = np.median(of_14000) / np.median(of_20000)
    gap, fall = medians[0, 0] / medians[0, 1], medians[0, 0] / medians[4, 0]
    return (
        f"Stop at step {step}: with 10 000 samples the baseline's error is {gap:.1f} times that "
        f"of attention, and {fall:.1f} times its own with 20 000. Attention with 14 000 samples "
        f"(circled) has {ratio:.2f} times the error of the baseline with 20 000, and is the better one in "
        f"{(of_14000 < of_20000).sum()} of {len(losses)} seeds. All ratios are of medians."
    )


def samples_to_target(result: sparsity.Sparsity) -> Table:
    """Return the samples each model needs to reach the target error, by number of relevant inputs."""
    needed = {model: result.samples_needed(model) for model in sparsity.MODELS}
    rows = [
        [f"{k} of {result.settings.n_inputs}"]
        + [
            Measured(f"{n:.0f}" if np.isfinite(n) else f"not within {result.settings.sizes[-1]}")
            for n in (needed[m][i] for m in sparsity.MODELS)
        ]
        for i, k in enumerate(result.settings.sparsities)
    ]
    caption = f"Samples needed for a median test loss of {result.settings.target:g}, interpolated between sizes."
    return Table(["relevant inputs", "baseline", "attention", "L1-attention"], rows, caption)


def explorer_text(result: sparsity.Sparsity, n_relevant: int, n_samples: int) -> str:
    """Return the numbers behind one picture of the sliders."""
    s = result.settings
    losses = result.test_loss[:, s.sparsities.index(n_relevant), s.sizes.index(n_samples)]
    medians = np.median(losses, axis=0)
    shown = ", ".join(f"{LOOKS[m].label} {medians[j]:.2g}" for j, m in enumerate(sparsity.MODELS))
    return f"{n_relevant} relevant inputs, {n_samples} samples: test loss {shown}."


def explorer_start(result: sparsity.Sparsity) -> dict[str, int]:
    """Return where the sliders start: the most samples, and half of the inputs relevant, where L1-attention loses."""
    sparsities, sizes = result.settings.sparsities, result.settings.sizes
    return {"n_relevant": sparsities[max(len(sparsities) - 2, 0)], "n_samples": sizes[-1]}
