"""Checks of the exercises of this part, one module per chapter."""

from attnbook.multi_head.exercises import curvature, how_many_heads

__all__ = ["CHECKS"]

CHECKS = {**curvature.CHECKS, **how_many_heads.CHECKS}
"""Id of an exercise to its check."""
