"""Checks of the exercises of this part, one module per chapter."""

from attnbook.softmax_ntk.exercises import (
    lazy_training,
    softmax_network,
)

__all__ = ["CHECKS"]

CHECKS = {
    **lazy_training.CHECKS,
    **softmax_network.CHECKS,
}
"""Id of an exercise to its check."""
