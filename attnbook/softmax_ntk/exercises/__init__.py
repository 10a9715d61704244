"""Checks of the exercises of this part, one module per chapter."""

from attnbook.softmax_ntk.exercises import (
    diffusion,
    lazy_training,
)

__all__ = ["CHECKS"]

CHECKS = {
    **diffusion.CHECKS,
    **lazy_training.CHECKS,
}
"""Id of an exercise to its check."""
