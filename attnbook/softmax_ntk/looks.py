"""How networks and starts look in all pictures of this part."""

from __future__ import annotations

from collections.abc import Mapping

from attnbook.core.figures import Look

__all__ = ["LOOKS", "STARTS"]

LOOKS: Mapping[str, Look] = {
    "softmax": Look("softmax", "#0b5cad", "-", "o"),
    "exp": Look("exp", "#c2410c", "-.", "^"),
    "relu": Look("ReLU", "#5b5f66", "--", "s"),
}
STARTS: Mapping[str, Look] = {
    "paired": Look("pairs", "#15803d", "-", "v"),
    "opposite_signs": Look("opposite signs only", "#7c3aed", "-.", "D"),
    "independent": Look("independent", "#8a5a00", "--", "P"),
}
