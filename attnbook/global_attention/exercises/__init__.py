"""Checks of the exercises of this part, one module per chapter."""

from attnbook.global_attention.exercises import (
    noisy_mnist,
    recurrent,
    sample_complexity,
    self_attention,
)

__all__ = ["CHECKS"]

CHECKS = {
    **sample_complexity.CHECKS,
    **noisy_mnist.CHECKS,
    **self_attention.CHECKS,
    **recurrent.CHECKS,
}
"""Id of an exercise to its check."""
