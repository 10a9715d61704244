"""Checks of the exercises of this part, one module per chapter."""

from attnbook.multi_head.exercises import curvature, training_bounds

__all__ = ["CHECKS"]

CHECKS = {**curvature.CHECKS, **training_bounds.CHECKS}
"""Id of an exercise to its check."""
