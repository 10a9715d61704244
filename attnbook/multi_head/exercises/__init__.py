"""Checks of the exercises of this part, one module per chapter."""

from attnbook.multi_head.exercises import curvature, generalisation

__all__ = ["CHECKS"]

CHECKS = {**curvature.CHECKS, **generalisation.CHECKS}
"""Id of an exercise to its check."""
