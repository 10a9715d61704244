"""The looks of the chapter on structure-aware descent; here until the chapter on the scaling law has moved."""

from attnbook.preconditioning.structure_aware_descent.figures import LOOKS

__all__ = ["LOOKS"]
