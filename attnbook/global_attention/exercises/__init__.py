"""Checks of the exercises of this part, one module per chapter."""

from attnbook.global_attention.exercises import (
    loss_landscape,
    recurrent,
    sample_complexity,
    self_attention,
)

__all__ = ["CHECKS"]

CHECKS = {
    **sample_complexity.CHECKS,
    **loss_landscape.CHECKS,
    **self_attention.CHECKS,
    **recurrent.CHECKS,
}
"""Id of an exercise to its check."""
