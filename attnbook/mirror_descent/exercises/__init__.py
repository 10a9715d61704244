"""Checks of the exercises of this part, one module per chapter."""

from attnbook.mirror_descent.exercises import mirror_descent, token_selection

__all__ = ["CHECKS"]

CHECKS = {**token_selection.CHECKS, **mirror_descent.CHECKS}
"""Id of an exercise to its check."""
