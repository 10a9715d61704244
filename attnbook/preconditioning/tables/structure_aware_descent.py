"""The tables of this part, as notebooks show them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.experiments import ablation, optimizer_race, structure_aware_descent
from attnbook.preconditioning.experiments.curves import NEAR
from attnbook.preconditioning.figures.structure_aware_descent import LOOKS, PARTS, RACERS

__all__ = [
    "conditioning_start",
    "conditioning_text",
    "distances",
    "equal_step_size",
    "factorisations",
    "keys_text",
    "loss_along_training",
    "problems",
    "race",
    "without_regulariser",
]


def problems(settings: structure_aware_descent.Settings) -> Table:
    """Return the sizes of the problems, one row each."""
    rows: list[list[str | Measured]] = []
    for p, kappa in enumerate(settings.condition_numbers):
        setup = settings.setup(p)
        numbers = (kappa, setup.largest, setup.smallest, setup.noise, setup.best_loss, setup.n_samples)
        run = (settings.batch_size, settings.step_sizes[p], settings.steps[p])
        rows.append([f"{p + 1}", *(f"{number:.3g}" if number < 1000 else f"{number:.0f}" for number in numbers + run)])
    columns = ["problem", "κ", "s_1", "s_d", "noise σ", "L*", "samples n", "batch b", "step size η", "steps"]
    return Table(columns, rows, "s_1 and s_d: largest and smallest singular value of the map on whitened inputs.")


def loss_along_training(result: structure_aware_descent.StructureAwareDescent, problem: int = 0) -> Table:
    r"""Return $L/L^*$ at a few steps, one row each: median over seeds and range."""
    last = int(result.steps[problem, -1])
    names = ("spectral", "algorithm_1", "sgd")
    rows: list[list[str | Measured]] = []
    for step in (0, last // 20, last // 4, last // 2, last):
        at = result.at(problem, step)
        rows.append([f"{step}", *(Measured(_spread(result.ratio(problem, name)[at])) for name in names)])
    seeds = len(result.settings.seeds)
    caption = f"Population loss divided by the best one; median over seeds [smallest, largest], {seeds} in all."
    return Table(["step", *(LOOKS[name].label for name in names)], rows, caption)


def distances(result: structure_aware_descent.StructureAwareDescent) -> Table:
    r"""Return the final $L/L^*$ of the worst seed of Algorithm 1 and of the best seed of SGD, one problem per row."""
    rows: list[list[str | Measured]] = []
    for problem, kappa in enumerate(result.settings.condition_numbers):
        worst = float(result.ratio(problem, "algorithm_1")[-1].max())
        best = float(result.ratio(problem, "sgd")[-1].min())
        rows.append([f"{problem + 1}, κ = {kappa:g}", *(Measured(f"{value:.4f}") for value in (worst, best))])
    columns = ["problem", "Algorithm 1, worst seed", "SGD, best seed"]
    return Table(columns, rows, f"Final L/L* from the same random starts, {len(result.settings.seeds)} seeds.")


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
                Measured(f"{_steps(float(np.median(times)))} ({reached} of {len(times)})"),
            ]
        )
    lowest = min(optimizer_race.METHODS, key=lambda n: float(np.median(result.ends(problem, n))))
    soonest = min(optimizer_race.METHODS, key=lambda n: float(np.median(result.times(problem, n))))
    caption = Measured(
        f"{_racer(lowest)}; first: {_racer(soonest)}.",
        before=f"Tuned on {len(result.settings.tuning_seeds)} seeds, reported on {len(result.settings.seeds)} others; "
        "an edge is the smallest or largest step size of the grid. Lowest: ",
    )
    columns = ["method", "tuned for the end", "final L/L*", "tuned for speed", f"steps to {NEAR:g} L* (seeds there)"]
    return Table(columns, rows, caption)


def equal_step_size(result: optimizer_race.OptimizerRace) -> Table:
    """Return all methods at the constant step size that tuning chose for Algorithm 1, on the tuning seeds."""
    problems = range(len(result.settings.condition_numbers))
    sizes = [result.chosen(p, "lowest", "algorithm_1")[1] for p in problems]
    found = {
        name: [result.at_step_size(p, name, size) for p, size in zip(problems, sizes, strict=True)]
        for name in optimizer_race.METHODS
    }
    rows: list[list[str | Measured]] = [[_racer(name), *map(_one_size, each)] for name, each in found.items()]
    lowest = [min(found, key=lambda name: (found[name][p] or (np.inf,))[0]) for p in problems]
    seeds = len(result.settings.tuning_seeds)
    caption = Measured(
        f"{', '.join(map(_racer, lowest))}.",
        before=f"Final L/L* (seeds diverged); step at which {NEAR:g} L* is reached. Medians over the {seeds} tuning "
        "seeds, constant step size. Lowest on each problem: ",
    )
    columns = ["method", *(f"problem {p + 1}, step size {size:.2g}" for p, size in zip(problems, sizes, strict=True))]
    return Table(columns, rows, caption)


def without_regulariser(result: optimizer_race.OptimizerRace) -> Table:
    """Return how low three rivals without the regulariser come on the first problem, on tuning and on fresh seeds."""
    rows: list[list[str | Measured]] = []
    for name in ("sgd", "adam", "shampoo"):
        at = list(optimizer_race.METHODS).index(name)
        tuning = float(result.tuned_lowest[0, at].min())
        fresh = float(np.median(result.curves[0, :, :, at], axis=-1).min())
        rows.append([_racer(name), Measured(_number(tuning)), Measured(_number(fresh))])
    s = result.settings
    columns = ["method", f"{len(s.tuning_seeds)} tuning seeds, best setting", f"{len(s.seeds)} fresh seeds, as tuned"]
    return Table(columns, rows, "Problem 1: lowest median of L/L* at any recorded step.")


def keys_text(result: structure_aware_descent.StructureAwareDescent, step: int) -> str:
    """Return the numbers behind one picture of the film."""
    bins, at = result.settings.key_bins, result.at(-1, step)
    middle = len(bins) // 2
    shown = []
    for name, shares in zip(structure_aware_descent.FILM, result.key_shares(step), strict=True):
        keys = np.median(result.effective_keys[-1, at, structure_aware_descent.DESCENTS.index(name)])
        ratio = float(np.median(result.ratio(-1, name)[at]))
        few = f"{100 * shares[:middle].sum():.0f} % of the queries to fewer than {bins[middle]:g}"
        shown.append(f"{LOOKS[name].label} {keys:.1f}, {few}, L/L* {_number(ratio)}")
    return f"Step {step}: keys per query, mean over queries: " + "; ".join(shown) + " (medians over seeds)."


def conditioning_text(result: ablation.Ablation, condition_number: float, step_size: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    s = result.settings
    curves = result.strong[s.strong_conditions.index(condition_number), -1, s.strong_step_sizes.index(step_size)]
    shown = []
    for part, name in enumerate(PARTS):
        median, lost = float(np.median(curves[part])), int((~np.isfinite(curves[part])).sum())
        alive = curves[part][np.isfinite(curves[part])]
        number = f"{median:.3g}" if np.isfinite(median) else "diverged"
        around = f" [{alive.min():.3g}, {alive.max():.3g}]" if alive.size and np.isfinite(median) else ""
        gone = f" ({lost} of {len(s.seeds)} seeds diverged)" if lost else ""
        shown.append(f"{LOOKS[name].label} {number}{around}{gone}")
    head = f"Condition number {condition_number:g}, step size {step_size:g}: final L/L*, median "
    return head + "[range of the seeds that did not diverge]: " + "; ".join(shown) + "."


def conditioning_start(result: ablation.Ablation) -> dict[str, float]:
    """Return where the sliders start: the hard problem, at the step size that suits Algorithm 1 there."""
    s = result.settings
    curves = result.strong[s.strong_conditions.index(s.hard_condition)]
    return {"condition_number": s.hard_condition, "step_size": s.strong_step_sizes[int(result.best(curves)[-1])]}


def factorisations(
    trained: Mapping[str, tuple[Tensor, Tensor]], target: Float[Tensor, "seeds outputs dimension"], best_loss: float
) -> Table:
    r"""Return where descents on the population loss in whitened coordinates have come to.

    Args:
        trained: Name of a descent to its layers $\tilde U$, $\tilde V$, one per seed.
        target: $\tilde A$ of each seed.
        best_loss: $L^*$.

    Returns:
        Excess loss over $L^*$ and the smallest singular values of both layers, as median over seeds and range.
    """
    rows: list[list[str | Measured]] = []
    for name, (value, key_query) in trained.items():
        lost = ~(value.isfinite().flatten(1).all(1) & key_query.isfinite().flatten(1).all(1))
        value, key_query = value[~lost], key_query[~lost]
        excess = (value @ key_query - target[~lost]).square().sum((-2, -1)) / (2 * best_loss)
        smallest = [torch.linalg.svdvals(layer)[:, -1] for layer in (value, key_query)]
        shown: list[str | Measured] = [Measured(_spread(v.numpy())) for v in (excess, *smallest)]
        rows.append([name, *shown, Measured(f"{int(lost.sum())} of {len(lost)}")])
    columns = ["", "excess / L*", "smallest singular value, outer layer", "the same, key-query layer", "diverged"]
    return Table(columns, rows, "Median over the seeds that did not diverge [smallest, largest].")


def _one_size(found: tuple[float, float, int] | None) -> Measured:
    """The cell of one method at one step size."""
    if found is None:
        return Measured("not tried")
    end, time, lost = found
    return Measured(f"{_number(end)}{f' ({lost})' if lost else ''}; {_steps(time)}")


def _steps(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "not reached"


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
