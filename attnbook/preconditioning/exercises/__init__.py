"""Checks of the exercises of this part, one module per chapter."""

from attnbook.preconditioning.exercises import (
    population_loss,
    scaling_law,
    structure_aware_descent,
)

__all__ = ["CHECKS"]

CHECKS = {
    **population_loss.CHECKS,
    **scaling_law.CHECKS,
    **structure_aware_descent.CHECKS,
}
"""Id of an exercise to its check."""
