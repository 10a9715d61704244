"""How networks look in all pictures of this part."""

from __future__ import annotations

from collections.abc import Mapping

from attnbook.core.figures import Look

__all__ = ["LOOKS"]

LOOKS: Mapping[str, Look] = {
    "softmax": Look("softmax", "#0b5cad", "-", "o"),
    "exp": Look("exp", "#c2410c", "-.", "^"),
    "relu": Look("ReLU", "#5b5f66", "--", "s"),
}
