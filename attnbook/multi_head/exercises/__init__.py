"""Checks of the exercises of this part, one module per chapter."""

from attnbook.multi_head.exercises import curvature, reading_with_care

__all__ = ["CHECKS"]

CHECKS = {**curvature.CHECKS, **reading_with_care.CHECKS}
"""Id of an exercise to its check."""
