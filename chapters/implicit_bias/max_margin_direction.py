"""Where logistic regression goes: the experiment of the chapter, what its claims read off it, pictures, exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import xarray as xr
from annotated_types import Ge
from pydantic import PositiveFloat, PositiveInt

from attnbook.core.feedback import likely_mistake, verdict
from attnbook.core.figures import INK, Look, style
from attnbook.core.tables import Measured, Table
from attnbook.implicit_bias.logistic import descend_growing, draw_samples, expansion, value_and_gradient
from attnbook.lab import Increasing, Seeds, device, experiment, share_of_seeds
from attnbook.train import SGD, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 3  # the problem that the chapter looks at, whose line turns far
PER_DECADE = 8  # recorded steps in each power of ten
TENTH, HUNDREDTHS, TWENTIETH = 0.1, 0.02, 0.05  # how near is near enough: direction and norm, loss, two programs


@experiment(
    "implicit_bias.direction",
    group=20,
    budget=40,
    needs="float64",
    smoke={"n_samples": 5, "steps": 100, "late": (100, 1e4), "seeds": (0, 1)},
)
def direction(
    seeds: Seeds = tuple(range(20)),  # one problem each
    n_samples: PositiveInt = 10,  # of each problem
    clearances: tuple[PositiveFloat, PositiveFloat] = (2.0, 1.0),  # distance of the others, over the two nearest
    step_size: PositiveFloat = 0.5,  # below 8 over the largest eigenvalue of the mean of z z' on all our seeds
    steps: Annotated[int, Ge(100)] = 100_000,
    late: Increasing = (1e5, 1e10, 1e20, 1e40, 1e80),  # steps that only growing steps can reach
    pace: PositiveFloat = 0.2,  # of growing steps: about how much of the loss each takes
) -> xr.Dataset:
    """Direction, length and loss of logistic regression on separable data, and what theory says of them."""
    samples = np.array([[draw_samples(n_samples, c, seed) for seed in seeds] for c in clearances])
    flat = samples.reshape(-1, n_samples, 2)
    best, offset = expansion(flat, step_size)
    z = torch.tensor(flat, device=device())
    history = train(
        lambda parameters, batch: value_and_gradient(parameters, z),
        {"w": z.new_zeros(len(z), 2)},
        optimizer=SGD(step_size),
        steps=steps,
        record=lambda now: {"w": now["w"], "loss": value_and_gradient(now, z)[0]},
        record_at=(recorded := recorded_steps(steps)),
    )
    weights, (far, reached) = history.records["w"], descend_growing(flat, step_size, late, pace)
    said = partial(expanded, best, offset)
    found = {
        "samples": (("sample", "axis"), np.moveaxis(flat, 0, -1)),
        "best": (("axis",), best.T),
        "margin": ((), 1 / np.linalg.norm(best, axis=-1)),
        "weights": (("step", "axis"), np.moveaxis(weights, 1, -1)),
        "norm": (("step",), np.linalg.norm(weights, axis=-1)),
        "loss": (("step",), history.records["loss"]),
        "angle": (("step",), degrees(weights, best)),
        "predicted": (("step",), degrees(said(np.array(recorded)[:, None]), best)),
        "late_angle": (("late",), degrees(far, best)),
        "late_predicted": (("late",), degrees(said(reached), best)),
    }
    by_problem = (len(clearances), len(seeds))
    arrays = {
        name: ((*dims, "clearance", "seed"), array.reshape(*array.shape[:-1], *by_problem))
        for name, (dims, array) in found.items()
    }
    return xr.Dataset(arrays, {"step": recorded, "clearance": list(clearances), "late": list(late)})


def recorded_steps(steps: int) -> list[int]:
    """Return numbers of steps, evenly spaced on a log axis, the last one among them."""
    powers = np.arange(0, np.log10(steps) + 1e-9, 1 / PER_DECADE)
    return np.unique([*(10**powers).round().astype(int), steps]).tolist()


def expanded(best: np.ndarray, offset: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the weights that theory predicts after so many steps, of each problem."""
    return best * np.log(steps)[..., None] + offset


def degrees(weights: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Return the angle from the best direction to that of the weights, counted one way round."""
    across = best[..., 0] * weights[..., 1] - best[..., 1] * weights[..., 0]
    return np.degrees(np.arctan2(across, (best * weights).sum(-1)))


def judged(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Say for each problem whether it is where theory says: direction, growth of the norm, loss; and much later."""
    last, size = data.isel(step=-1), data.attrs["settings"]["step_size"]
    before = data.sel(step=float(last.step) / 100, method="nearest")
    grown = (last.norm - before.norm) / np.log(last.step / before.step) * data.margin
    constant = last.step * last.loss * data.margin**2 * size
    return {
        "direction": abs(last.angle / last.predicted - 1) <= TENTH,
        "norm": abs(grown - 1) <= TENTH,
        "loss": abs(constant - 1) <= HUNDREDTHS,
        "late": abs(data.late_angle / data.late_predicted - 1) <= TENTH,
    }


@direction.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    clear, crowded = ({n: share_of_seeds(x.isel(clearance=i)) for n, x in judged(data).items()} for i in (0, 1))
    same = abs(data.late_angle.isel(late=0) / data.angle.isel(step=-1) - 1) <= TWENTIETH
    late = {"early": crowded["late"].isel(late=0), "late": crowded["late"].isel(late=-2)}
    return {
        "IB-DIR": {"share": clear["direction"]},
        "IB-CROWDED": {name: crowded[name] for name in ("direction", "loss")},
        "IB-LATE": late | {"same_path": same.astype(float).mean()},
        "IB-NORM": {"clear": clear["norm"], "crowded": crowded["norm"]},
        "IB-LOSS": {"share": clear["loss"]},
    }
