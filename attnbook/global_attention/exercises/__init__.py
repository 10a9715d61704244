"""Checks of the exercises of this part, one module per chapter."""

from attnbook.global_attention.exercises import (
    noisy_mnist,
)

__all__ = ["CHECKS"]

CHECKS = {
    **noisy_mnist.CHECKS,
}
"""Id of an exercise to its check."""
