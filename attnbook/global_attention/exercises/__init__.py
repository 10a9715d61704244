"""Checks of the exercises of this part, one module per chapter."""

from attnbook.global_attention.exercises import recurrent, sample_complexity

__all__ = ["CHECKS"]

CHECKS = {**sample_complexity.CHECKS, **recurrent.CHECKS}
"""Id of an exercise to its check."""
