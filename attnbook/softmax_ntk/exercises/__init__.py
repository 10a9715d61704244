"""Checks of the exercises of this part, one module per chapter."""

from attnbook.softmax_ntk.exercises import (
    kernel_regression,
    lazy_training,
)

__all__ = ["CHECKS"]

CHECKS = {
    **kernel_regression.CHECKS,
    **lazy_training.CHECKS,
}
"""Id of an exercise to its check."""
