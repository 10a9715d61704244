"""Checks of the exercises of this part, one module per chapter."""

from attnbook.preconditioning.population_loss import exercises as population_loss
from attnbook.preconditioning.scaling_law import exercises as scaling_law
from attnbook.preconditioning.structure_aware_descent import exercises as structure_aware_descent

__all__ = ["CHECKS"]

CHECKS = {
    **population_loss.CHECKS,
    **scaling_law.CHECKS,
    **structure_aware_descent.CHECKS,
}
"""Id of an exercise to its check."""
