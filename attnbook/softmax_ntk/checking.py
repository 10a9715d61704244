"""How the exercises of this part compare an answer with the right one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from attnbook.core.feedback import likely_mistake

__all__ = ["compared"]


def compared(got: ArrayLike, right: ArrayLike, what: str, likely: Mapping[str, ArrayLike]) -> str | None:
    """Return None for a right answer, else the shape it should have (`what` is wanted), or the likely mistake."""
    found, wanted = np.asarray(got, dtype=float), np.asarray(right, dtype=float)
    if found.shape != wanted.shape:
        return f"{what} is wanted, shape {wanted.shape}, got {found.shape}"
    return None if np.allclose(found, wanted) else likely_mistake(found, wanted, likely)
