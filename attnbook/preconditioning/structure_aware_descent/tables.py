"""The tables of the chapter, as the notebook shows them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnbook.core.tables import Measured, Table
from attnbook.preconditioning.curves import NEAR
from attnbook.preconditioning.structure_aware_descent.experiments import StructureAwareDescent, ratios
from attnbook.preconditioning.structure_aware_descent.figures import KINDS, LOOKS, PARTS, RACERS, key_shares
from attnbook.preconditioning.structure_aware_descent.near_minima import ARRIVED
from attnbook.preconditioning.structure_aware_descent.race import METHODS, chosen, race_ends, race_times
from attnbook.preconditioning.structure_aware_descent.reading import at_best_size, fit

__all__ = [
    "arrivals",
    "conditioning_start",
    "conditioning_text",
    "curvature_text",
    "distances",
    "equal_step_size",
    "factorisations",
    "keys_text",
    "loss_along_training",
    "problems",
    "race",
    "slopes",
    "without_regulariser",
]


def problems(run: StructureAwareDescent) -> Table:
    """Return the sizes of the problems, one row each."""
    rows: list[list[str | Measured]] = []
    for p, kappa in enumerate(run.condition_numbers):
        setup = run.setup(p)
        numbers = (kappa, setup.largest, setup.smallest, setup.noise, setup.best_loss, setup.n_samples)
        training = (run.batch_size, run.step_sizes[p], run.steps[p])
        rows.append([f"{p + 1}", *(f"{n:.3g}" if n < 1000 else f"{n:.0f}" for n in numbers + training)])
    columns = ["problem", "κ", "s_1", "s_d", "noise σ", "L*", "samples n", "batch b", "step size η", "steps"]
    return Table(columns, rows, "s_1 and s_d: largest and smallest singular value of the map on whitened inputs.")


def loss_along_training(data: xr.Dataset, problem: int = 0) -> Table:
    """Return $L/L^*$ at a few steps, one row each: median over seeds and range."""
    steps, names = data.step.values[problem], ("spectral", "algorithm_1", "sgd")
    last = int(steps[-1])
    rows: list[list[str | Measured]] = []
    for step in (0, last // 20, last // 4, last // 2, last):
        at = ratios(data)[problem, int(np.searchsorted(steps, step))]
        rows.append([f"{step}", *(Measured(_spread(at.sel(descent=name).values)) for name in names)])
    seeds = data.sizes["seed"]
    caption = f"Population loss divided by the best one; median over seeds [smallest, largest], {seeds} in all."
    return Table(["step", *(LOOKS[name].label for name in names)], rows, caption)


def distances(data: xr.Dataset) -> Table:
    """Return the final $L/L^*$ of the worst seed of Algorithm 1 and of the best seed of SGD, one problem per row."""
    ends = ratios(data).isel(record=-1)
    values = (ends.sel(descent="algorithm_1").max("seed"), ends.sel(descent="sgd").min("seed"))
    rows: list[list[str | Measured]] = [
        [f"{problem + 1}, κ = {kappa:g}", *(Measured(f"{float(value[problem]):.4f}") for value in values)]
        for problem, kappa in enumerate(data.kappa.values)
    ]
    columns = ["problem", "Algorithm 1, worst seed", "SGD, best seed"]
    return Table(columns, rows, f"Final L/L* from the same random starts, {data.sizes['seed']} seeds.")


def race(data: xr.Dataset, problem: int) -> Table:
    """Return the race: what tuning chose, the final ratio and the time to the optimum; winners in the caption."""
    ends, times = race_ends(data)[problem], race_times(data)[problem]
    rows: list[list[str | Measured]] = []
    for name in METHODS:
        lowest, fastest = (chosen(data, problem, aim, name) for aim in ("lowest", "fastest"))
        time = times.sel(racer=name).values
        edge = " (edge)" if lowest[1] in (0, data.sizes["size"] - 1) else ""
        rows.append(
            [
                _racer(name),
                Measured(_configuration(data, name, *lowest) + edge),
                Measured(_spread(ends.sel(racer=name).values)),
                Measured(_configuration(data, name, *fastest)),
                Measured(f"{_steps(float(np.median(time)))} ({int(np.isfinite(time).sum())} of {len(time)})"),
            ]
        )
    winners = [_racer(str(values.median("seed").idxmin().values)) for values in (ends, times)]
    tuning = len(data.attrs["settings"]["tuning_seeds"])
    caption = Measured(
        f"{winners[0]}; first: {winners[1]}.",
        before=f"Tuned on {tuning} seeds, reported on {data.sizes['seed']} others; "
        "an edge is the smallest or largest step size of the grid. Lowest: ",
    )
    columns = ["method", "tuned for the end", "final L/L*", "tuned for speed", f"steps to {NEAR:g} L* (seeds there)"]
    return Table(columns, rows, caption)


def equal_step_size(data: xr.Dataset) -> Table:
    """Return all methods at the constant step size that tuning chose for Algorithm 1, on the tuning seeds."""
    numbers = range(data.sizes["problem"])
    own = data.step_size.sel(racer="algorithm_1").values
    sizes = [float(own[chosen(data, problem, "lowest", "algorithm_1")[1]]) for problem in numbers]
    found = {name: [at_step_size(data, p, name, size) for p, size in enumerate(sizes)] for name in METHODS}
    rows: list[list[str | Measured]] = [[_racer(name), *map(_one_size, each)] for name, each in found.items()]
    lowest = [min(found, key=lambda name: (found[name][p] or (np.inf,))[0]) for p in numbers]
    caption = Measured(
        f"{', '.join(map(_racer, lowest))}.",
        before=f"Final L/L* (seeds diverged); step at which {NEAR:g} L* is reached. Medians over the "
        f"{len(data.attrs['settings']['tuning_seeds'])} tuning seeds, constant step size. Lowest on each problem: ",
    )
    columns = ["method", *(f"problem {p + 1}, step size {size:.2g}" for p, size in enumerate(sizes))]
    return Table(columns, rows, caption)


def at_step_size(data: xr.Dataset, problem: int, name: str, size: float) -> tuple[float, float, int] | None:
    """Return how a method did at one constant step size, on the tuning seeds; None for one that was not tried.

    Args:
        data: The race.
        problem: Position of the problem.
        name: The method.
        size: Step size.

    Returns:
        Median final ratio, median first step near the optimum and number of seeds that diverged.
    """
    (tried,) = np.nonzero(np.isclose(data.step_size.sel(racer=name).values, size))
    if not tried.size:
        return None
    at = data.isel(problem=problem, schedule=0, size=int(tried[0])).sel(racer=name)
    return float(at.tuned_end), float(at.tuned_time), int(at.tuned_lost)


def without_regulariser(data: xr.Dataset) -> Table:
    """Return how low three rivals without the regulariser come on the first problem, on tuning and on fresh seeds."""
    rows: list[list[str | Measured]] = []
    for name in ("sgd", "adam", "shampoo"):
        mine = data.isel(problem=0).sel(racer=name)
        fresh = mine.curves.sel(aim="lowest").median("seed").min()
        rows.append([_racer(name), *(Measured(_number(float(low))) for low in (mine.tuned_lowest.min(), fresh))])
    tuning = len(data.attrs["settings"]["tuning_seeds"])
    columns = ["method", f"{tuning} tuning seeds, best setting", f"{data.sizes['seed']} fresh seeds, as tuned"]
    return Table(columns, rows, "Problem 1: lowest median of L/L* at any recorded step.")


def keys_text(data: xr.Dataset, step: int) -> str:
    """Return the numbers behind one picture of the film."""
    edges, at = data.edge.values, int(np.searchsorted(data.step.values[-1], step))
    middle, shown = len(edges) // 2, []
    median, keys = (values[-1, at].median("seed") for values in (ratios(data), data.effective_keys))
    for name, shares in zip(data.filmed.values.tolist(), key_shares(data).sel(snapshot=step), strict=True):
        few = f"{100 * float(shares[:middle].sum()):.0f} % of the queries to fewer than {edges[middle]:g}"
        ratio = _number(float(median.sel(descent=name)))
        shown.append(f"{LOOKS[name].label} {float(keys.sel(descent=name)):.1f}, {few}, L/L* {ratio}")
    return f"Step {step}: keys per query, mean over queries: " + "; ".join(shown) + " (medians over seeds)."


def conditioning_text(data: xr.Dataset, condition_number: float, step_size: float) -> str:
    """Return the numbers behind one picture of the sliders."""
    ends = data.strong.sel(condition=condition_number).isel(record=-1, size=data.strong_size.values == step_size)
    shown = []
    for (penalty, kind), name in PARTS.items():
        values = ends.sel(penalty=penalty, kind=kind).values.ravel()
        median, alive = float(np.median(values)), values[np.isfinite(values)]
        number = f"{median:.3g}" if np.isfinite(median) else "diverged"
        around = f" [{alive.min():.3g}, {alive.max():.3g}]" if alive.size and np.isfinite(median) else ""
        lost = len(values) - len(alive)
        gone = f" ({lost} of {len(values)} seeds diverged)" if lost else ""
        shown.append(f"{LOOKS[name].label} {number}{around}{gone}")
    head = f"Condition number {condition_number:g}, step size {step_size:g}: final L/L*, median "
    return head + "[range of the seeds that did not diverge]: " + "; ".join(shown) + "."


def conditioning_start(data: xr.Dataset) -> dict[str, float]:
    """Return where the sliders start: the hard problem, at the step size that suits Algorithm 1 there."""
    hard = data.attrs["settings"]["hard"]
    best = at_best_size(data.strong.sel(condition=hard)).sel(penalty=1, kind="two")
    return {"condition_number": hard, "step_size": float(best.strong_size)}


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


def slopes(data: xr.Dataset) -> Table:
    """Return fitted slopes of the log excess beside the predicted ones, by number of outputs and step size."""
    fitted, _ = fit(data.excess, data.step)
    rows: list[list[str | Measured]] = [
        [f"{int(each.outputs)}", f"{float(each.step_size):g}", f"{float(each.predicted):.4f}",
         Measured(_spread(each.values, ".4f"))]
        for row in fitted.assign_coords(predicted=data.predicted) for each in row
    ]  # fmt: skip
    dimension = data.attrs["settings"]["dimension"]
    caption = f"Per step; median over {data.sizes['seed']} seeds [smallest, largest]; d = {dimension}."
    return Table(["outputs m", "step size η", "predicted", "fitted on the second half"], rows, caption)


def arrivals(data: xr.Dataset) -> Table:
    """Return how many steps a descent takes from a scaled minimum, without and with the regulariser."""
    rows: list[list[str | Measured]] = []
    for each in data.iterations.transpose("outputs", "scale", ...):
        for at in each:
            scale = float(at.scale)
            name = f"1/{1 / scale:.0f}" if scale < 1 else f"{scale:g}"
            steps = (Measured(_spread(at.sel(penalty=penalty).values, ".0f")) for penalty in (0, 1))
            rows.append([f"{int(at.outputs)}", name, *steps])
    settings = data.attrs["settings"]
    caption = (
        f"Steps to an excess of {ARRIVED:g}; median over {data.sizes['seed']} seeds [smallest, largest], at most "
        f"{settings['steps']}; d = {settings['dimension']}; each scale has one step size, the same without and with."
    )
    return Table(["outputs m", "scale c", "without regulariser", "with"], rows, caption)


def curvature_text(data: xr.Dataset, condition_number: float) -> str:
    """Return the numbers behind one picture of the slider."""
    medians = data[["condition", "steps"]].sel(kappa=condition_number, descended=condition_number).median("seed")
    shown = []
    for kind, look in KINDS.items():
        at = medians.sel(kind=kind)
        shown.append(f"{look.label} {float(at.condition):.3g} and {_steps(float(at.steps))} steps")
    head = f"Condition number {condition_number:g} of the covariance; condition number of the Hessian and steps, median"
    return f"{head}: {'; '.join(shown)}."


def _one_size(found: tuple[float, float, int] | None) -> Measured:
    """The cell of one method at one step size."""
    if found is None:
        return Measured("not tried")
    end, time, lost = found
    return Measured(f"{_number(end)}{f' ({lost})' if lost else ''}; {_steps(time)}")


def _configuration(data: xr.Dataset, name: str, schedule: int, size: int) -> str:
    step_size = float(data.step_size.sel(racer=name)[size])
    return f"{step_size:.2g}{' cosine' if data.decay.values[schedule] else ''}"


def _steps(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "not reached"


def _spread(samples: np.ndarray, form: str = "") -> str:
    """Median and range; with a format, those of steps or slopes that may be missing."""
    numbers = [float(pick(samples)) for pick in (np.min, np.median, np.max)]
    if form and not np.isfinite(numbers[0]):
        return "not reached"
    low, middle, high = ((f"{n:{form}}" if np.isfinite(n) else "not reached") if form else _number(n) for n in numbers)
    return f"{middle} [{low}, {high}]"


def _number(value: float) -> str:
    if not np.isfinite(value):
        return "diverged"
    return f"{value:.1e}" if value >= 1000 else f"{value:.3g}"


def _racer(name: str) -> str:
    regularised = name.endswith("_regularised")
    return RACERS[name.removesuffix("_regularised")] + (" + regulariser" if regularised else "")
