"""The tables on conditioning, rates and balance near the minima."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments import balance, conditioning, convergence
from attnbook.preconditioning.figures.convergence import KINDS

__all__ = ["arrivals", "curvature_text", "slopes"]


def slopes(result: convergence.Convergence) -> Table:
    """Return fitted slopes of the log excess beside the predicted ones, by number of outputs and step size."""
    fitted, _ = result.fit(result.excess)
    s = result.settings
    rows: list[list[str | Measured]] = []
    for number, outputs in enumerate(s.outputs):
        for k, size in enumerate(s.step_sizes):
            rows.append([f"{outputs}", f"{size:g}", f"{result.predicted[number, k]:.4f}",
                         Measured(_spread(fitted[:, number, k], ".4f"))])  # fmt: skip
    caption = f"Per step; median over {len(s.seeds)} seeds [smallest, largest]; d = {s.dimension}."
    return Table(["outputs m", "step size η", "predicted", "fitted on the second half"], rows, caption)


def arrivals(result: balance.Balance) -> Table:
    """Return how many steps a descent takes from a scaled minimum, without and with the regulariser."""
    s = result.settings
    rows: list[list[str | Measured]] = []
    for number, outputs in enumerate(s.outputs):
        for at, scale in enumerate(s.scales):
            steps = (result.iterations[:, number, weight, at] for weight in range(2))
            name = f"1/{1 / scale:.0f}" if scale < 1 else f"{scale:g}"
            rows.append([f"{outputs}", name, *(Measured(_spread(one, ".0f")) for one in steps)])
    caption = (
        f"Steps to an excess of {balance.ARRIVED:g}; median over {len(s.seeds)} seeds [smallest, largest], at most "
        f"{s.steps}; d = {s.dimension}; each scale has one step size, the same without and with."
    )
    return Table(["outputs m", "scale c", "without regulariser", "with"], rows, caption)


def curvature_text(result: conditioning.Conditioning, condition_number: float) -> str:
    """Return the numbers behind one picture of the slider."""
    at = result.settings.condition_numbers.index(condition_number)
    shown = []
    for number, look in enumerate(KINDS.values()):
        condition, steps = (np.median(values[:, number, at]) for values in (result.condition, result.steps))
        shown.append(f"{look.label} {condition:.3g} and {_number(float(steps), '.0f')} steps")
    head = f"Condition number {condition_number:g} of the covariance; condition number of the Hessian and steps, median"
    return f"{head}: {'; '.join(shown)}."


def _spread(samples: np.ndarray, form: str) -> str:
    if np.isinf(samples).all():
        return _number(np.inf, form)
    low, middle, high = (_number(float(pick(samples)), form) for pick in (np.min, np.median, np.max))
    return f"{middle} [{low}, {high}]"


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if np.isfinite(value) else "not reached"
