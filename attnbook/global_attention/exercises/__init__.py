"""Checks of the exercises of this part, one module per chapter."""

from attnbook.global_attention.exercises import (
    loss_landscape,
    noisy_mnist,
    recurrent,
    sample_complexity,
)

__all__ = ["CHECKS"]

CHECKS = {
    **sample_complexity.CHECKS,
    **noisy_mnist.CHECKS,
    **loss_landscape.CHECKS,
    **recurrent.CHECKS,
}
"""Id of an exercise to its check."""
