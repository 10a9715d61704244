"""The tables of the chapter on training bounds."""

from __future__ import annotations

import math

import numpy as np

from attnbook.core.tables import Measured, Table
from attnbook.multi_head import convergence_bounds as theory
from attnbook.multi_head import readings
from attnbook.multi_head.experiments import promises
from attnbook.multi_head.experiments.training_bounds import TrainingBounds
from attnbook.multi_head.figures.training_bounds import LOOKS

__all__ = [
    "asked",
    "demand_text",
    "gains",
    "largest_ratios",
    "outcomes",
    "start",
    "width_names",
    "width_text",
]


def start(result: TrainingBounds) -> Table:
    """Return what the guarantee needs to know about the starts."""
    rows: list[list[str | Measured]] = [
        ["largest token, R", Measured(_range(result.token_norm))],
        ["tangent-kernel margin, γ", Measured(_range(result.margin))],
        [
            "largest output at the start (the bound on outputs is 1, or this if larger)",
            Measured(_range(result.start_output)),
        ],
        ["largest head at the start (B₂ is 1, or this if larger)", Measured(_range(result.head_norm))],
    ]
    caption = f"Median [smallest, largest] over {len(result.loss)} seeds and, where it matters, all widths."
    return Table(["property of the start", "measured"], rows, caption)


def outcomes(result: TrainingBounds) -> Table:
    """Return measured losses beside what is promised, at the horizons."""
    rows: list[list[str | Measured]] = []
    for steps in result.settings.horizons:
        at = result.settings.recorded.index(steps)
        stated = np.array([[theory.final_bound(s, steps, result.settings.step_size) for s in r] for r in result.starts])
        last, average = result.loss[..., at], result.average[..., at]
        values = (last, average, stated, stated / average, stated / last)
        rows.append([f"{steps}", *(Measured(_range(v)) for v in values)])
    caption = (
        f"Median [smallest, largest] over {len(result.loss)} seeds and {len(result.settings.heads)} widths, "
        f"step size {result.settings.step_size:g}. A bound above log 2 = {math.log(2):.3f} says nothing."
    )
    head = ["steps K", "last loss", "average loss", "Corollary 2", "bound / average", "bound / last"]
    return Table(head, rows, caption)


def asked(result: TrainingBounds, steps: int) -> Table:
    """Return what the hypotheses ask for, in each reading, at some number of steps."""
    found = [
        promises.demands(row[0], steps, start_head_norm=float(norm))
        for row, norm in zip(result.starts, result.head_norm, strict=True)
    ]
    columns = ("heads", "step_size", "steps")
    values = {name: [[one[name][of] for one in found] for of in columns] for name in promises.READINGS}
    caption = (
        f"K = {steps}. {_middle(values)} Step size: with as many heads as asked for. Last column: steps until the "
        "bound on the loss is below log 2, at the step size allowed for so many steps. Heads tracked (ours): target at "
        "√2 g₀, taken to have loss 1/K; all others at g₀."
    )
    rows: list[list[str | Measured]] = [[LOOKS[name].label, *cells] for name, cells in _cells(values).items()]
    return Table(["reading", "heads", "step size", "steps until below log 2"], rows, caption)


def gains(result: TrainingBounds, steps: int) -> Table:
    """Return what each of our changes to the four steps gains, at one target distance."""
    variants = {
        "four steps": {},
        "dimension-free constant": {"dimension_free": True},
        "tracked heads": {"tracked": True},
        "both": {"dimension_free": True, "tracked": True},
    }
    values = {}
    for name, changes in variants.items():
        found = [
            readings.four_steps(row[-1], theory.target_distance(row[-1], steps), **changes) for row in result.starts
        ]
        values[name] = [[one.heads for one in found], [one.step_size(one.heads) for one in found]]
    caption = (
        f"Target at g₀ for K = {steps} in every row, heads at the start of norm B₂ = 1; step size with as many heads "
        f"as asked for. {_middle(values)}"
    )
    return Table(["change", "heads", "step size"], [[name, *cells] for name, cells in _cells(values).items()], caption)


def _cells(values: dict[str, list[list[float]]]) -> dict[str, list[Measured]]:
    return {name: [Measured(_short(float(np.median(one)))) for one in of] for name, of in values.items()}


def _middle(values: dict[str, list[list[float]]]) -> str:
    """Say what the cells are, and how much they vary over seeds."""
    every = np.array(list(values.values()))
    middle = np.median(every, axis=2, keepdims=True)
    percent = math.ceil(100 * np.abs(every / middle - 1).max())
    return f"Medians over {every.shape[2]} seeds; no seed differs by more than {percent} %."


def largest_ratios(runs: dict[str, TrainingBounds]) -> Table:
    """Return the largest ratio of measured to stated for some runs, above 1 where a bound is violated."""
    names = {
        "corollary": "Corollary 2",
        "regret": "Theorem 1, loss",
        "distance": "Theorem 1, distance",
        "last": "last ≤ average",
    }
    rows: list[list[str | Measured]] = []
    for run, result in runs.items():
        found = (result.ratios[name].reshape(len(result.loss), -1).max(axis=1) for name in names)
        rows.append([run, Measured(_range(result.margin)), *(Measured(_range(ratio)) for ratio in found)])
    one = next(iter(runs.values()))
    caption = (
        f"Largest over widths {', '.join(width_names(one))} and K = {', '.join(map(str, one.settings.horizons))}; "
        f"median [smallest, largest] over {len(one.loss)} seeds. Above 1: violated."
    )
    return Table(["run", "margin γ", *names.values()], rows, caption)


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
