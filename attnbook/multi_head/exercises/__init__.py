"""Checks of the exercises of this part, one module per chapter."""

from attnbook.multi_head.exercises import one_good_step

__all__ = ["CHECKS"]

CHECKS = {**one_good_step.CHECKS}
"""Id of an exercise to its check."""
