"""Checks of the exercises of this part, one module per chapter."""

from attnbook.softmax_ntk.exercises import (
    lazy_training,
    to_self_attention,
)

__all__ = ["CHECKS"]

CHECKS = {
    **lazy_training.CHECKS,
    **to_self_attention.CHECKS,
}
"""Id of an exercise to its check."""
