"""The tables of the chapter on training bounds."""

from __future__ import annotations

import math

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.multi_head.experiments import promises
from attnbook.multi_head.experiments.training_bounds import TrainingBounds
from attnbook.multi_head.figures.training_bounds import LOOKS
from attnbook.multi_head.theory import training_bounds as theory

__all__ = ["asked", "demand_text", "outcomes", "start", "width_names", "width_text"]


def start(result: TrainingBounds) -> Table:
    """Return what the guarantee needs to know about the starts."""
    rows: list[list[str | Measured]] = [
        ["largest token, R", Measured(_range(result.token_norm))],
        ["tangent-kernel margin, γ", Measured(_range(result.margin))],
        ["largest output at the start (B_Φ is this or 1)", Measured(_range(result.start_output))],
        ["largest head at the start (B₂ is this or 1)", Measured(_range(result.head_norm))],
    ]
    caption = f"Median [smallest, largest] over {len(result.loss)} seeds and, where it matters, all widths."
    return Table(["property of the start", "measured"], rows, caption)


def outcomes(result: TrainingBounds) -> Table:
    """Return measured losses beside what is promised, at the horizons."""
    rows: list[list[str | Measured]] = []
    for steps in result.settings.horizons:
        at = result.settings.recorded.index(steps)
        stated = [[theory.final_bound(s, steps, result.settings.step_size) for s in row] for row in result.starts]
        says = "something" if np.max(stated) < math.log(2) else "nothing"
        values = (result.loss[..., at], result.average[..., at], np.array(stated))
        rows.append([f"{steps}", *(Measured(_range(v)) for v in values), says])
    caption = (
        f"Median [smallest, largest] over {len(result.loss)} seeds and {len(result.settings.heads)} widths, "
        f"step size {result.settings.step_size:g}. A bound above log 2 = {math.log(2):.3f} says nothing."
    )
    return Table(["steps K", "last loss", "average loss", "Corollary 2", "the bound says"], rows, caption)


def asked(result: TrainingBounds) -> Table:
    """Return what the hypotheses ask for, in each reading."""
    rows: list[list[str | Measured]] = []
    for steps in result.settings.horizons:
        found = [
            promises.demands(row[0], steps, start_head_norm=float(norm))
            for row, norm in zip(result.starts, result.head_norm, strict=True)
        ]
        for reading in promises.READINGS:
            cells = (np.median([one[reading][name] for one in found]) for name in ("heads", "step_size", "steps"))
            rows.append([f"{steps}", LOOKS[reading].label, *(Measured(_short(float(value))) for value in cells)])
        of_theorem = np.median([theory.theorem_step_size(row[0], steps) for row in result.starts])
        order = "the order in Theorem 1, constant 1"
        rows.append([f"{steps}", order, "as with constants set to 1", Measured(_short(float(of_theorem))), "–"])
    caption = (
        f"Median over {len(result.loss)} seeds. Step size: with as many heads as asked for. Last column: steps until "
        "the bound on the loss is below log 2, at the step size allowed for so many steps. With heads tracked, the "
        "target is taken to have loss 1/K."
    )
    return Table(["K", "reading", "heads", "step size", "steps until below log 2"], rows, caption)


def demand_text(n_tokens: int, dimension: int, margin: float, demands: dict[str, dict[str, float]]) -> str:
    """Say what each reading asks for at some sizes."""
    parts = (
        f"{LOOKS[reading].label}: {_short(found['heads'])} heads, step size {_short(found['step_size'])}, "
        f"{_short(found['steps'])} steps"
        for reading, found in demands.items()
    )
    return f"T = {n_tokens}, d = {dimension}, γ = {margin:g}. " + "; ".join(parts) + "."


def width_names(result: TrainingBounds) -> dict[str, float]:
    """Return how to write each width, to the width."""
    names = {}
    for n_heads in result.settings.heads:
        exponent = round(math.log10(n_heads))
        power = exponent > 3 and n_heads == 10.0**exponent
        names[_power(exponent) if power else f"{n_heads:g}"] = n_heads
    return names


def width_text(result: TrainingBounds, n_heads: float) -> str:
    """Say in numbers what happened at one width."""
    at = result.settings.heads.index(n_heads)
    plus, minus = np.median(result.attention[:, at], axis=0)
    loss, move = (np.median(values[:, at, -1]) for values in (result.loss, result.largest_move))
    return (
        f"{n_heads:,.0f} heads, medians over {len(result.loss)} seeds after {result.settings.steps} steps: "
        f"loss {loss:.2g}, "
        f"a single head moved at most {move:.2g}, attention on relevant tokens {plus:.3f} in heads of sign +, "
        f"{minus:.3f} in heads of sign − (uniform: {result.settings.relevant_fraction:g})."
    )


def _short(number: float) -> str:
    """Two digits; large and small numbers as a power of ten."""
    if 0.01 <= number < 10_000:
        return f"{number:.2g}" if number < 100 else f"{number:.0f}"
    mantissa, exponent = f"{number:.0e}".split("e")
    return f"{mantissa} · {_power(int(exponent))}"


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _range(values: np.ndarray) -> str:
    values = np.where(np.abs(values) < 1e-12, 0.0, values)  # rounding
    return f"{np.median(values):.3g} [{np.min(values):.3g}, {np.max(values):.3g}]"
