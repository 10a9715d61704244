"""How each quantity of this part looks in all of its chapters."""

from __future__ import annotations

from collections.abc import Mapping

from attnbook.core.figures import Look

__all__ = ["LOOKS"]

LOOKS: Mapping[str, Look] = {
    "random": Look("random points", "#c2410c", "-.", "^"),
    "trained": Look("trained points", "#0b5cad", "-", "o"),
    "equal": Look("trained to equal loss", "#9d174d", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "lone": Look("one head does the work", "#7c3aed", ":", "D"),
    "curvature": Look("the paper's bound", "#111111", (0, (1, 1)), "X"),
    "dimension_free_curvature": Look("bound without dimension", "#15803d", (0, (5, 1)), "v"),
    "typical": Look("the typical head", "#5b5f66", "--", "s"),
    "worst": Look("the worst head", "#1f2937", (0, (6, 2, 1, 2)), "<"),
}
"""How each quantity of this part looks in all of its chapters."""
