"""Checks of the exercises of this part, one module per chapter."""

from attnbook.global_attention.exercises import (
    noisy_mnist,
    self_attention,
)

__all__ = ["CHECKS"]

CHECKS = {
    **noisy_mnist.CHECKS,
    **self_attention.CHECKS,
}
"""Id of an exercise to its check."""
