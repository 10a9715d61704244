"""How the checks of all exercises of this room end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnbook.core.feedback import likely_mistake

__all__ = ["verdict"]


def verdict(
    got: Any, right: ArrayLike, likely: Mapping[str, ArrayLike], wanted: str, *, rtol: float = 1e-5
) -> str | None:
    """Return None for a right answer, what is wanted for one of another shape, else the likely mistake."""
    found, right = np.asarray(got, dtype=float), np.asarray(right, dtype=float)
    if found.shape != right.shape:
        return f"{wanted} is wanted, shape {right.shape}, got {found.shape}"
    return None if np.allclose(found, right, rtol=rtol) else likely_mistake(found, right, likely, rtol=rtol)
