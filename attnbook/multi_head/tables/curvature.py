"""The tables of the chapter on curvature."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.core.results import Result
from attnbook.core.tables import Measured, Table
from attnbook.multi_head.experiments import curvature, eigenvalues
from attnbook.multi_head.figures.looks import LOOKS

__all__ = ["cost", "explorer_text", "heads_promised", "parts_text", "slopes", "step_sizes"]


def cost(result: Result, what: str, count: int) -> Table:
    """Return how long an experiment took.

    Args:
        result: Its result.
        what: What was computed, in the plural.
        count: How many of them.

    Returns:
        A table of one row.
    """
    p = result.provenance
    row: list[str | Measured] = [
        f"{count}",
        Measured(f"{p.wall_seconds:.1f} s"),
        Measured(f"{p.peak_memory_mib:.0f} MiB"),
        Measured(p.device),
    ]
    return Table([what, "time", "peak memory of the process", "device"], [row], "Computed in float64, on one thread.")


def slopes(result: curvature.Curvature) -> Table:
    """Return how fast curvature falls with the number of heads, at each kind of point."""
    quantities = {
        "relative to the loss": result.slopes,
        "not divided by the loss": result.slopes_of(-result.smallest),
    }
    if np.isfinite(result.typical_head).all():
        quantities["the typical head's own, relative to the loss"] = result.slopes_of(result.typical_head / result.loss)
    lone = curvature.POINTS.index("lone")
    rows: list[list[str | Measured]] = [
        [
            name,
            *(
                "–" if i == lone and "typical" in name else Measured(_range(values[:, i]))
                for i in range(len(curvature.POINTS))
            ),
        ]
        for name, values in quantities.items()
    ]
    caption = (
        f"Slope of the logarithm of the most negative curvature in log H, over H = {result.settings.heads[0]} to "
        f"{result.settings.heads[-1]}: median over {len(result.loss)} seeds [smallest, largest]."
    )
    return Table(["most negative curvature", *(LOOKS[point].label for point in curvature.POINTS)], rows, caption)


def step_sizes(result: curvature.Curvature) -> Table:
    """Return the step size that the smoothness bound asks for beside the one that the true curvature allows."""
    smoothness, largest = result.constants("smoothness"), result.largest
    rows: list[list[str | Measured]] = [
        [
            LOOKS[point].label,
            Measured(f"{1 / np.median(smoothness[:, i]):.1g}"),
            Measured(f"{1 / np.median(largest[:, i]):.2g}"),
        ]
        for i, point in enumerate(curvature.POINTS[:2])
    ]
    caption = (
        "One over the median, over seeds and numbers of heads. "
        f"Training here used step size {result.settings.step_size:g}."
    )
    return Table(["at", "1 / β₂, from the bound", "1 / largest eigenvalue"], rows, caption)


def heads_promised(result: curvature.Curvature) -> Table:
    """Return for how many heads each bound promises what trained networks with one head have."""
    at = curvature.POINTS.index("trained")
    measured = result.relative[:, at, 0]
    rows: list[list[str | Measured]] = []
    for name in ("curvature", "dimension_free_curvature"):
        heads = (result.constants(name)[:, at, 0] / measured) ** 2
        middle, low, high = (_words(float(value)) for value in (np.median(heads), heads.min(), heads.max()))
        rows.append([LOOKS[name].label, Measured(f"{middle} [{low}, {high}]")])
    caption = (
        "Heads at which the bound would promise the curvature, relative to the loss, that one trained head has, "
        f"if heads kept the norm of that one: median over {len(measured)} seeds [smallest, largest], one digit each."
    )
    return Table(["bound", "heads"], rows, caption)


def explorer_text(result: eigenvalues.Eigenvalues, point: str, n_heads: int) -> str:
    """Return the numbers behind one picture of the sliders."""
    i, j = eigenvalues.SHOWN.index(point), result.settings.heads.index(n_heads)
    total = n_heads * result.settings.n_parameters
    smallest, negative = result.smallest[0, i, j], result.negative[0, i, j]
    return (
        f"{LOOKS[point].label}, H = {n_heads}: smallest eigenvalue {smallest:.2g} times the loss; times the root of "
        f"H, {smallest * np.sqrt(n_heads):.2g}. {negative:.0f} of {total} eigenvalues are below minus a thousandth of "
        "the loss."
    )


def parts_text(
    bowl: Float[np.ndarray, "size size"], rest: Float[np.ndarray, "size size"], loss: float, n_heads: int
) -> str:
    """Return the numbers behind one picture of the two parts of the Hessian.

    Args:
        bowl: The part that is never negative.
        rest: The part that may be negative.
        loss: The loss at that point.
        n_heads: Number of heads.

    Returns:
        A sentence with the share of entries that are not zero and the extreme eigenvalues, relative to the loss.
    """
    filled = (np.abs(rest) > 1e-12).mean()
    largest, smallest = np.linalg.eigvalsh(bowl)[-1] / loss, np.linalg.eigvalsh(rest)[0] / loss
    return (
        f"H = {n_heads}: {filled:.1%} of the entries of the rest are not zero. Largest eigenvalue of the bowl: "
        f"{largest:.2g} times the loss. Smallest of the rest: {smallest:.2g} times the loss; times the root of H, "
        f"{smallest * np.sqrt(n_heads):.2g}."
    )


def _words(number: float) -> str:
    """Write a large number with one significant digit, in groups of three."""
    return f"{float(f'{number:.0e}'):,.0f}".replace(",", "\u202f")


def _range(values: np.ndarray) -> str:
    return f"{np.median(values):.2f} [{values.min():.2f}, {values.max():.2f}]"
