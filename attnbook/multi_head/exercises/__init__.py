"""Checks of the exercises of this part, one module per chapter."""

from attnbook.multi_head.exercises import (
    curvature,
    generalisation,
    how_many_heads,
    margin_race,
    margins,
    one_good_step,
    reading_with_care,
    training_bounds,
)

__all__ = ["CHECKS"]

CHECKS = {
    **curvature.CHECKS,
    **generalisation.CHECKS,
    **how_many_heads.CHECKS,
    **margin_race.CHECKS,
    **margins.CHECKS,
    **one_good_step.CHECKS,
    **reading_with_care.CHECKS,
    **training_bounds.CHECKS,
}
"""Id of an exercise to its check."""
