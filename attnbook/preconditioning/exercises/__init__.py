"""Checks of the exercises of this part, one module per chapter."""

from attnbook.preconditioning.exercises import (
    population_loss,
    structure_aware_descent,
)

__all__ = ["CHECKS"]

CHECKS = {
    **structure_aware_descent.CHECKS,
    **population_loss.CHECKS,
}
"""Id of an exercise to its check."""
