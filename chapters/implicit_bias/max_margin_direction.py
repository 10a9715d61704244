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
from attnbook.implicit_bias.logistic import descend_growing, draw_samples, expansion, value_and_gradient
from attnbook.lab import Increasing, Seeds, device, experiment, share_of_seeds
from attnbook.show import INK, Look, Measured, Table, own_lines, style
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
    pace: PositiveFloat = 0.2,  # of growing steps: one is this over step size and loss ordinary ones
) -> xr.Dataset:
    """Direction, length and loss of logistic regression on separable data, and what theory says of them."""
    samples = np.array([[draw_samples(n_samples, c, seed) for seed in seeds] for c in clearances])
    flat = samples.reshape(-1, n_samples, 2)
    best, fixed = expansion(flat, step_size)
    z = torch.tensor(flat, device=device())
    history = train(
        lambda parameters, batch: value_and_gradient(parameters, z),
        {"w": z.new_zeros(len(z), 2)},
        optimizer=SGD(step_size),
        steps=steps,
        record=lambda now: {"w": now["w"], "loss": value_and_gradient(now, z)[0]},
        record_at=(recorded := recorded_steps(steps)),
    )
    weights, (far, reached) = history.records["w"], descend_growing(flat, step_size, [float(t) for t in late], pace)
    said = partial(expanded, best, fixed)
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


def expanded(best: np.ndarray, fixed: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the weights that theory predicts after so many steps, of each problem."""
    return best * np.log(steps)[..., None] + fixed


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
    turned, fallen = abs(last.angle / last.predicted - 1) <= TENTH, abs(constant - 1) <= HUNDREDTHS
    return {
        "direction": turned,
        "norm": abs(grown - 1) <= TENTH,
        "loss": fallen,
        "both": turned & fallen,
        "late": abs(data.late_angle / data.late_predicted - 1) <= TENTH,
    }


@direction.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    clear, crowded = ({n: share_of_seeds(x.isel(clearance=i)) for n, x in judged(data).items()} for i in (0, 1))
    same = abs(data.late_angle.isel(late=0) / data.angle.isel(step=-1) - 1) <= TWENTIETH
    late = {"early": crowded["late"].isel(late=0), "late": crowded["late"].isel(late=-2)}
    return {
        "IB-DIR": {"share": clear["direction"]},
        "IB-CROWDED": {"share": crowded["both"], **{name: crowded[name] for name in ("direction", "loss")}},
        "IB-LATE": late | {"same_path": same.astype(float).mean()},
        "IB-NORM": {"clear": clear["norm"], "crowded": crowded["norm"]},
        "IB-LOSS": {"share": clear["loss"]},
    }


KINDS = (Look("clear", "#0b5cad", "-", "o"), Look("crowded", "#c2410c", "-.", "^"))
FAR = 1000  # steps from which on the prediction is drawn
STEPS, ANGLE = "steps", "angle (degrees)"
ALT = {
    "training": "Two panels against steps, on log axes. The loss falls a thousandfold and more, along a straight line "
    "that is known beforehand. The angle to the max-margin line falls from 14 to 2 degrees, along a prediction.",
    "angles": "Angle to the max-margin line against steps, with your runs on top of the book's.",
    "problems": "Measured against predicted angle. The points of clear problems are on the diagonal, all but one; "
    "those of crowded problems are scattered around it.",
}


def training(data: xr.Dataset) -> Figure:
    """Draw loss and angle of the clear problems against steps, one of them thick, with what theory says of it."""
    import matplotlib.pyplot as plt

    clear, far = data.isel(clearance=0), data.step >= FAR
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.0))
        thin_and_thick(axes[0], clear.loss)
        said = 1 / (data.attrs["settings"]["step_size"] * clear.margin.isel(seed=SHOWN) ** 2 * data.step[far])
        axes[0].plot(data.step[far], said, color=INK, linestyle=":", linewidth=2.4)
        axes[0].set(xscale="log", yscale="log", xlabel=STEPS, ylabel="loss")
        angle_panel(axes[1], data)
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9.5)
    return figure


def angles(data: xr.Dataset, yours: Mapping[str, Mapping[int, Any]], best: Any = None, fixed: Any = None) -> Figure:
    """Draw the reader's runs beside the book's: angle to the line of the largest margin against steps.

    Args:
        data: What :func:`direction` gave.
        yours: Name of a run to number of steps to weights, two numbers.
        best: Direction of the largest margin of the reader's samples; default the one of the problem that is shown.
        fixed: Fixed part for them, for a prediction of their own; default none, and the prediction is the book's.

    Returns:
        The figure.
    """
    import matplotlib.pyplot as plt

    best = data.best.isel(clearance=0, seed=SHOWN).values if best is None else np.asarray(best)
    said = None if fixed is None else degrees(expanded(best, np.asarray(fixed), data.step.values), best)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        angle_panel(ax, data, said)
        lines = {name: angles_of(path, best) for name, path in yours.items()}
        own_lines(ax, lines)
        smallest = min((angle for line in lines.values() for angle in line.values()), default=1.0)
        ax.set_ylim(bottom=max(1e-3, min(ax.get_ylim()[0], 0.8 * smallest)))  # zero is below the picture
        figure.legend(*ax.get_legend_handles_labels(), loc="outside right upper", fontsize=9.5)
    return figure


def angles_of(path: Mapping[int, Any], best: np.ndarray) -> dict[int, float]:
    """Return the angles along a run, where the book records its own."""
    steps = [step for step in recorded_steps(max(path)) if step in path]
    weights = torch.stack([torch.as_tensor(path[step]).detach() for step in steps]).numpy()
    return dict(zip(steps, abs(degrees(weights, best)).tolist(), strict=True))


def angle_panel(ax: Axes, data: xr.Dataset, said: np.ndarray | None = None) -> None:
    """Draw the angles of the clear problems, and a prediction; default that of one of them."""
    clear, far = data.isel(clearance=0), data.step.values >= FAR
    thin_and_thick(ax, abs(clear.angle))
    said = clear.predicted.isel(seed=SHOWN).values if said is None else said
    ax.plot(data.step.values[far], abs(said)[far], color=INK, linestyle=":", linewidth=2.4, label="prediction")
    ax.set(xscale="log", yscale="log", xlabel=STEPS, ylabel=ANGLE, ylim=(0.05, 60))
    ax.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])


def thin_and_thick(ax: Axes, values: xr.DataArray) -> None:
    """Draw a line for each problem, one of them thick."""
    color, steps, values = KINDS[0].color, values.step, values.transpose("step", "seed")
    others = np.delete(values.values, SHOWN, axis=1)
    ax.plot(steps, others, color=color, alpha=0.3, linewidth=0.8, label=["the other 19"] + [""] * (others.shape[1] - 1))
    ax.plot(steps, values.isel(seed=SHOWN), color=color, linewidth=2.6, label="one problem of the book")


def problems(data: xr.Dataset) -> Figure:
    """Draw measured against predicted angle after the last step, a point for each problem."""
    import matplotlib.pyplot as plt

    last = data.isel(step=-1)
    angles = abs(np.stack([last.predicted, last.angle]))
    ends = np.array([0.7 * angles.min(), 1.4 * angles.max()])
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.6))
        ax.fill_between(ends, (1 - TENTH) * ends, (1 + TENTH) * ends, color=INK, alpha=0.15, linewidth=0)
        ax.plot(ends, ends, color=INK, linewidth=0.8)
        for kind, look in enumerate(KINDS):
            said, found = (last[name].isel(clearance=kind).values for name in ("predicted", "angle"))
            same = np.sign(said) == np.sign(found)
            ax.plot(abs(said)[same], abs(found)[same], look.marker, color=look.color, label=look.label)
            if not same.all():
                wrong = {"color": look.color, "label": f"{look.label}, other side"}
                ax.plot(abs(said)[~same], abs(found)[~same], "x", **wrong)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted angle", ylabel="measured angle")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks([0.1, 1, 10], ["0.1°", "1°", "10°"])
        figure.legend(loc="outside right upper", fontsize=9.5)
    return figure


def lines_frame(data: xr.Dataset, steps: int, samples: str = "clear") -> Figure:
    """Draw the samples of one problem with the best line and the one of gradient descent."""
    import matplotlib.pyplot as plt

    one, labels = shown(data, steps, samples), np.resize([1, -1], data.sizes["sample"])
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 4.2))
        for label, marker, color in ((1, "o", "#15803d"), (-1, "s", "#7c3aed")):
            points = label * one.samples.values[labels == label].T
            ax.plot(*points, marker, color=color, label=f"label {label:+d}")
        (x, y), (u, v), margin = one.best.values, one.weights.values, float(one.margin)
        ax.axline((0, 0), (-y, x), color=INK, linestyle=":", label="max-margin line")
        for side, name in ((margin**2, "its margin"), (-(margin**2), "")):
            point = side * one.best.values
            ax.axline(point, (point[0] - y, point[1] + x), color="#5b5f66", linewidth=0.8, label=name)
        ax.axline((0, 0), (-v, u), color=INK, label="gradient descent")
        ax.set(xlim=(-5, 5), ylim=(-4, 4), aspect="equal", xlabel="first input", ylabel="second input")
        ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=9.5)
    return figure


def lines_text(data: xr.Dataset, steps: int, samples: str = "clear") -> str:
    """Return the numbers behind one picture."""
    one = shown(data, steps, samples)
    said = f"Angle to the max-margin line: {abs(float(one.angle)):.1f} degrees"
    return f"Steps: {steps:,}. {said}; length of the weights {float(one.norm):.1f}; loss {float(one.loss):.2g}."


def shown(data: xr.Dataset, steps: int, samples: str) -> xr.Dataset:
    """Return the problem that the chapter looks at, after so many steps."""
    return data.isel(seed=SHOWN, clearance=[look.label for look in KINDS].index(samples)).sel(step=steps)


def counts(data: xr.Dataset) -> Table:
    """Count the problems of each kind that are where theory says after the last step."""
    passed = judged(data)
    rows = [
        [look.label, *(_count(passed[name].isel(clearance=kind)) for name in ("direction", "norm", "loss"))]
        for kind, look in enumerate(KINDS)
    ]
    heads = ["problems", "angle within 10 %", "growth of the length within 10 %", "loss within 2 %"]
    return Table(heads, rows, f"Problems that are where theory says after {int(data.step[-1]):,} steps.")


def late_counts(data: xr.Dataset) -> Table:
    """Count the problems of each kind whose angle is the predicted one after numbers of steps beyond reach."""
    passed = judged(data)["late"]
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    powers = [f"{np.log10(steps):.0f}".translate(raised) for steps in data.late.values]
    rows = [[f"10{power}", *map(_count, passed.isel(late=i))] for i, power in enumerate(powers)]
    heads = ["steps", *(look.label for look in KINDS)]
    near = abs(data.late_angle.isel(late=0) / data.angle.isel(step=-1) - 1) <= TWENTIETH
    path = f"After {int(data.late[0]):,} steps {int(near.sum())} of {near.size} have the angle of ordinary steps, within 5 %."
    return Table(heads, rows, f"Growing steps: problems whose angle is within 10 % of the prediction. {path}")


def _count(passed: xr.DataArray) -> Measured:
    return Measured(f"{int(passed.sum())} of {passed.size}")


def steps_needed(answer: Callable[..., Any]) -> str | None:
    r"""Check the number of steps after which an angle like $1/\log t$ is a given fraction of what it is."""
    steps, fraction = np.array([100.0, 1000.0, 50.0]), np.array([0.5, 0.8, 0.25])
    got, right = np.array([float(answer(*case)) for case in zip(steps, fraction, strict=True)]), steps ** (1 / fraction)
    likely = {
        "that many would do if the angle fell like 1/t": steps / fraction,
        "the logarithm is divided by the fraction, not multiplied": steps**fraction,
        "this is the logarithm of the number of steps": np.log(right),
    }
    return None if np.allclose(got, right) else likely_mistake(got, right, likely)


def fixed_part(answer: Callable[..., Any]) -> str | None:
    """Check the fixed part of the weights of two samples that both support the max-margin line."""
    cases = [(np.array([[1.0, 0.2], [-0.3, 2.0]]), 0.5), (np.array([[1.0, 2.0], [1.5, -1.0]]), 0.3)]

    def found(form: Callable[[np.ndarray, float], np.ndarray]) -> np.ndarray:
        alphas = [np.linalg.solve(z.T, np.linalg.solve(z, np.ones(2))) for z, _ in cases]
        return np.array([np.linalg.solve(z, form(a, eta)) for (z, eta), a in zip(cases, alphas, strict=True)])

    likely = {
        "the loss is a mean: divide by the number of samples, 2": found(lambda a, eta: np.log(eta / a)),
        "the sign: a sample that must pull harder has the smaller w z": found(lambda a, eta: np.log(2 * a / eta)),
        "each sample has its own alpha": found(lambda a, eta: np.log(eta / 2) * np.ones(2)),
        "the step size is missing": found(lambda a, eta: -np.log(2 * a)),
    }
    right = found(lambda a, eta: np.log(eta / (2 * a)))
    return verdict([answer(z.copy(), eta) for z, eta in cases], right, likely, "for each case two weights")


CHECKS = {"IB-1": steps_needed, "IB-2": fixed_part}
