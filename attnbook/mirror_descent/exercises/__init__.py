"""Checks of the exercises of this part, one module per chapter."""

from attnbook.mirror_descent.exercises import (
    joint_training,
    mirror_descent,
    rates,
    real_text_and_images,
    token_selection,
)

__all__ = ["CHECKS"]

CHECKS = {
    **joint_training.CHECKS,
    **mirror_descent.CHECKS,
    **rates.CHECKS,
    **real_text_and_images.CHECKS,
    **token_selection.CHECKS,
}
"""Id of an exercise to its check."""
