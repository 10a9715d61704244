"""The tables of this part, as notebooks show them."""

from __future__ import annotations

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments import ablation, optimizer_race, structure_aware_descent
from attnbook.preconditioning.experiments.curves import NEAR
from attnbook.preconditioning.figures import LOOKS, PARTS, RACERS

__all__ = ["conditioning_start", "conditioning_text", "loss_along_training", "race"]


def loss_along_training(result: structure_aware_descent.StructureAwareDescent, problem: int = 0) -> Table:
    r"""Return $L/L^*$ at a few steps: median over seeds and range."""
    last = int(result.steps[problem, -1])
    steps = [0, last // 20, last // 4, last // 2, last]
    rows: list[list[str | Measured]] = []
    for name in ("spectral", "algorithm_1", "sgd"):
        ratios = result.ratio(problem, name)
        row: list[str | Measured] = [LOOKS[name].label]
        row += [Measured(_spread(ratios[result.at(problem, step)])) for step in steps]
        rows.append(row)
    seeds = len(result.settings.seeds)
    caption = f"Population loss divided by the best one; median over seeds [smallest, largest], {seeds} in all."
    return Table(["", *(f"step {step}" for step in steps)], rows, caption)


def race(result: optimizer_race.OptimizerRace, problem: int) -> Table:
    """Return the race: what tuning chose, the final ratio and the time to the optimum; winners in the caption."""
    rows: list[list[str | Measured]] = []
    for name in optimizer_race.METHODS:
        decay, size = result.chosen(problem, "lowest", name)
        fast_decay, fast_size = result.chosen(problem, "fastest", name)
        ends, times = result.ends(problem, name), result.times(problem, name)
        reached = int(np.isfinite(times).sum())
        rows.append(
            [
                _racer(name),
                Measured(f"{size:.2g}{' cosine' if decay else ''}{' (edge)' if result.at_edge(problem, name) else ''}"),
                Measured(_spread(ends)),
                Measured(f"{fast_size:.2g}{' cosine' if fast_decay else ''}"),
                Measured(f"{np.median(times):.0f}" if np.isfinite(np.median(times)) else "not reached"),
                Measured(f"{reached} of {len(times)}"),
            ]
        )
    lowest = min(optimizer_race.METHODS, key=lambda n: float(np.median(result.ends(problem, n))))
    soonest = min(optimizer_race.METHODS, key=lambda n: float(np.median(result.times(problem, n))))
    caption = Measured(
        f"{_racer(lowest)}; first: {_racer(soonest)}.",
        before=f"Tuned on {len(result.settings.tuning_seeds)} seeds, reported on {len(result.settings.seeds)} others; "
        "an edge is the smallest or largest step size of the grid. Lowest: ",
    )
    columns = ["method", "tuned for the end", "final L/L*", "tuned for speed", f"steps to {NEAR:g} L*", "seeds there"]
    return Table(columns, rows, caption)


def conditioning_text(result: ablation.Ablation, condition_number: float, step_size: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    s = result.settings
    curves = result.strong[s.strong_conditions.index(condition_number), -1, s.strong_step_sizes.index(step_size)]
    shown = []
    for part, name in enumerate(PARTS):
        median, lost = float(np.median(curves[part])), int((~np.isfinite(curves[part])).sum())
        number = f"{median:.3g}" if np.isfinite(median) else "diverged"
        shown.append(f"{LOOKS[name].label} {number}" + (f" ({lost} of {len(s.seeds)} seeds diverged)" if lost else ""))
    return f"Condition number {condition_number:g}, step size {step_size:g}: final L/L* " + ", ".join(shown) + "."


def conditioning_start(result: ablation.Ablation) -> dict[str, float]:
    """Return where the sliders start: the hard problem, at the step size that suits Algorithm 1 there."""
    s = result.settings
    curves = result.strong[s.strong_conditions.index(s.hard_condition)]
    return {"condition_number": s.hard_condition, "step_size": s.strong_step_sizes[int(result.best(curves)[-1])]}


def _spread(samples: np.ndarray) -> str:
    low, middle, high = (_number(float(pick(samples))) for pick in (np.min, np.median, np.max))
    return f"{middle} [{low}, {high}]"


def _number(value: float) -> str:
    if not np.isfinite(value):
        return "diverged"
    return f"{value:.1e}" if value >= 1000 else f"{value:.3g}"


def _racer(name: str) -> str:
    regularised = name.endswith("_regularised")
    return RACERS[name.removesuffix("_regularised")] + (" + regulariser" if regularised else "")
