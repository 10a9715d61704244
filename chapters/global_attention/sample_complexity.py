"""How many samples attention saves: experiments of the chapter, what its claims read, its pictures and exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.global_attention.batches import initial_network
from attnbook.global_attention.masks import Member, Model, Setup, Training, train_members
from attnbook.lab import Counts, Seeds, device, experiment, slope, sweep
from attnbook.show import Look, curves, own_lines, style
from attnbook.train import History

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

MODELS: dict[str, Model] = {
    "no mask": "baseline",
    "free mask": "attention",
    "L1 mask": "l1_attention",
    "group penalty": "group_penalty",
    "limited mask": "limited",
    "told": "oracle",
    "mask with sum one": "sum_to_one",
}  # names of the chapter, and of the library
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
INPUTS, OUTPUTS, GOAL = 32, 10, 0.05  # of the clean experiment; an error of 5 % of the variance of the labels
SMALL = {"sizes": (20, 40, 80, 160), "n_test": 64, "steps": 20, "seeds": (0, 1)}  # for tests


def trained(axes: Mapping[str, Sequence[Any]], member: Callable[..., Member], setup: Setup, how: Training) -> History:
    """Train a network at every point of a grid as one program; records have the grid's shape."""
    history = train_members([member(*point) for point in product(*axes.values())], setup, how, device=device())
    shape = tuple(map(len, axes.values()))
    for name, array in history.records.items():
        history.records[name] = array.reshape(len(array), *shape, *array.shape[2:])
    return history


def at_the_end(
    axes: Mapping[str, Sequence[Any]], member: Callable[..., Member], setup: Setup, steps: int, step_size: float
) -> dict[str, Any]:
    """Train with a step size that falls to zero, and return what is left."""
    how = Training(steps, 64, step_size, (steps,), decay=True)
    records = trained(axes, member, setup, how).records
    strength = {"strength": ((*axes, "input"), records["effective_weights"][-1])}
    return strength | {name: (tuple(axes), records[name][-1]) for name in ("test_loss", "bias")}


@experiment(
    "global_attention.error_rate",
    budget=30,
    smoke=SMALL | {"steps": 60, "step_size": 0.05},
    full={"steps": 10_000, "n_test": 20_000},
)
def error_rate(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_relevant: PositiveInt = 4,  # of 32 inputs
    noise: NonNegativeFloat = 0.5,  # standard deviation of the label noise; clean labels have 1
    penalty: NonNegativeFloat = 0.05,  # of the L1 mask and of the group penalty; the best for both on other seeds
    sizes: Counts = SIZES,  # training samples
    n_test: PositiveInt = 4096,  # held-out samples, with clean labels
    step_size: PositiveFloat = 0.01,  # of Adam; it falls to zero
    steps: PositiveInt = 1000,
) -> xr.Dataset:
    """Error against samples for seven students that differ in their mask; a teacher looks at four inputs of 32."""
    setup = Setup(INPUTS, OUTPUTS, 16, 32, noise, n_test)
    axes = {"seed": seeds, "size": sizes, "model": list(MODELS)}

    def member(seed: int, n: int, model: str) -> Member:
        return Member(MODELS[model], seed, n, n_relevant, penalty)

    truth = [setup.teacher(seed, n_relevant).mask for seed in seeds]
    found = at_the_end(axes, member, setup, steps, step_size) | {"truth": (("seed", "input"), truth)}
    return xr.Dataset(found, {"size": list(sizes), "model": list(MODELS)})


@error_rate.measures
def _(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    error, relevant = data.test_loss, data.truth == 1
    of = {name: error.sel(model=name, drop=True) for name in MODELS}
    some, middle, most = data["size"][1:], data["size"][2:6], data["size"][-3]
    limited, rate = of["limited mask"].sel(size=some), slope(of["limited mask"].sel(size=middle), "size")
    samples = needed(error).clip(max=error["size"][-1].item())  # where no size brings it there: the largest
    saved = samples.sel(model="no mask", drop=True) / samples
    off, on = (data.strength.sel(size=most).where(side).median("input") for side in (~relevant, relevant))
    kept = (data.strength.sel(model="limited mask") > 0) & relevant
    bias = data.bias.sel(model="limited mask") / of["limited mask"] ** 0.5
    n_relevant = data.attrs["settings"]["n_relevant"]
    return {
        "GA-T1-rate": {"slope_limited": rate},
        "GA-T1-tight": {"slope_limited": rate},
        "GA-T1-order": {"limited_over_no_mask": (limited / of["no mask"]).max("size")},
        "GA-C1-order": {"sum_to_one_over_no_mask": mean_ratio(of["mask with sum one"], of["no mask"])},
        "GA-C1-free": {"sum_to_one_over_free_mask": mean_ratio(of["mask with sum one"], of["free mask"])},
        "GA-P1-order": {
            f"told_over_{name.split()[0]}": mean_ratio(of["told"], of[name].sel(size=some))
            for name in ("limited mask", "free mask")
        },
        "GA-P1-gain": {
            "limited_over_told": mean_ratio(limited, of["told"]),
            "share_found": (kept.sel(size=some).sum("input") == n_relevant).mean("size"),
        },
        "GA-A6": {"bias_over_bound": n_relevant**0.5 * bias.isel(size=-1, drop=True)},
        "GA-X-support": {f"off_over_on_{n.split()[0]}": (off / on).sel(model=n) for n in ("free mask", "L1 mask")},
        "GA-X-group": {
            "saving_group": saved.sel(model="group penalty", drop=True),
            "saving_l1": saved.sel(model="L1 mask", drop=True),
        },
    }


def mean_ratio(one: xr.DataArray, other: xr.DataArray) -> xr.DataArray:
    """Return the geometric mean over sample sizes of a ratio of errors."""
    return (one / other).reduce(lambda x, axis: np.exp(np.log(x).mean(axis)), "size")


def needed(error: xr.DataArray, goal: float = GOAL) -> xr.DataArray:
    """Return the samples that bring an error to the goal, interpolated on log axes; infinite where none do."""

    def one(curve: np.ndarray) -> float:
        falling, logs = np.log(np.minimum.accumulate(curve)), np.log(error["size"].values)
        return float(np.exp(np.interp(-np.log(goal), -falling, logs))) if falling[-1] <= np.log(goal) else np.inf

    return xr.apply_ufunc(one, error, input_core_dims=[["size"]], vectorize=True)


@experiment("global_attention.sparsity", budget=40, smoke=SMALL)
def sparsity(
    seeds: Seeds = (0, 1, 2, 3, 4),
    relevant: Counts = (2, 4, 8, 16, 32),  # inputs of 32 that matter; the limit is the same
    noise: NonNegativeFloat = 0.5,  # standard deviation of the label noise; clean labels have 1
    sizes: Counts = SIZES,  # training samples
    n_test: PositiveInt = 4096,  # held-out samples, with clean labels
    step_size: PositiveFloat = 0.01,  # of Adam; it falls to zero
    steps: PositiveInt = 1000,
) -> xr.Dataset:
    """Error against samples for teachers that look at few, many or all inputs: no mask, a limited one, told."""
    names = ["no mask", "limited mask", "told"]
    axes = {"seed": seeds, "relevant": relevant, "size": sizes, "model": names}

    def member(seed: int, k: int, n: int, model: str) -> Member:
        return Member(MODELS[model], seed, n, k)

    found = at_the_end(axes, member, Setup(INPUTS, OUTPUTS, 16, 32, noise, n_test), steps, step_size)
    return xr.Dataset({"test_loss": found["test_loss"]}, {name: list(axis) for name, axis in axes.items()})


def saving(data: xr.Dataset) -> xr.DataArray:
    """Return how many times fewer samples a limited mask needs than no mask, for each seed."""
    samples = needed(data.test_loss).clip(max=data["size"][-1].item())
    return samples.sel(model="no mask", drop=True) / samples.sel(model="limited mask", drop=True)


@sparsity.measures
def _(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    found = saving(data)
    each = {f"saving_{int(k)}": found.sel(relevant=k, drop=True) for k in data.relevant.values}
    law = (found * data.relevant / INPUTS).where(data.relevant < INPUTS, drop=True)
    over = {"least_over_law": law.median("seed").min("relevant"), "most_over_law": law.median("seed").max("relevant")}
    return {"GA-X-phase": each, "GA-X-law": over}


@experiment("global_attention.wrong_limit", budget=20, smoke=SMALL | {"sizes": (20, 40)})
def wrong_limit(
    seeds: Seeds = (0, 1, 2, 3, 4),
    relevant: Counts = (4, 32),  # inputs of 32 that matter
    limits: tuple[int, ...] = (0, 2, 3, 4, 8, 16, 32),  # entries that the mask may keep; 0 is a network without a mask
    noise: NonNegativeFloat = 0.5,  # standard deviation of the label noise; clean labels have 1
    sizes: Counts = (256, 4096),  # training samples
    n_test: PositiveInt = 4096,  # held-out samples, with clean labels
    step_size: PositiveFloat = 0.01,  # of Adam; it falls to zero
    steps: PositiveInt = 1000,
) -> xr.Dataset:
    """What a limit does that is not the number of inputs that matter."""
    axes = {"seed": seeds, "relevant": relevant, "size": sizes, "limit": limits}

    def member(seed: int, k: int, n: int, limit: int) -> Member:
        return Member("limited" if limit else "baseline", seed, n, k, limit=limit or None)

    found = at_the_end(axes, member, Setup(INPUTS, OUTPUTS, 16, 32, noise, n_test), steps, step_size)
    return xr.Dataset({"test_loss": found["test_loss"]}, {name: list(axis) for name, axis in axes.items()})


@wrong_limit.measures
def _(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    dense = data.test_loss.sel(relevant=32, drop=True)
    ratio = dense.sel(limit=16, drop=True) / dense.sel(limit=0, drop=True)
    fall = dense.sel(limit=16).isel(size=0, drop=True) / dense.sel(limit=16).isel(size=-1, drop=True)
    return {"GA-G1-dense-l1": {"half_over_no_mask": ratio.isel(size=-1, drop=True), "fall_half": fall}}


@experiment("global_attention.silencing", budget=20, smoke={"n_samples": 40, "steps": 20, "seeds": (0, 1)})
def silencing(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_samples: PositiveInt = 1024,
    n_relevant: PositiveInt = 4,  # of 32 inputs
    noise: NonNegativeFloat = 0.5,  # standard deviation of the label noise; clean labels have 1
    steps: PositiveInt = 3000,
) -> xr.Dataset:
    """A free mask under gradient descent and under Adam: its entries, and the quantity that descent conserves."""
    setup, start = Setup(INPUTS, OUTPUTS, 16, 32, noise, 1024), initial_network(seeds, INPUTS, 32, OUTPUTS)
    truth = np.stack([setup.teacher(seed, n_relevant).mask for seed in seeds])

    def one(rule: Literal["SGD", "Adam"]) -> dict[str, Any]:
        how = Training(steps, 64, {"SGD": 0.2, "Adam": 0.01}[rule], (0, steps), decay=True, rule=rule)
        history = trained({"seed": seeds}, lambda seed: Member("attention", seed, n_samples, n_relevant), setup, how)
        mask, hidden = (history.parameters[name].cpu().numpy() for name in ("mask", "hidden"))
        moved = mask**2 - (hidden**2).sum(1) - start["mask"] ** 2 + (start["hidden"] ** 2).sum(1)
        parts = {"on": np.ma.array(mask, mask=truth == 0), "off": np.ma.array(mask, mask=truth == 1)}
        found = {name: ("seed", np.ma.median(part, 1).data) for name, part in parts.items()}
        error = history.records["test_loss"][-1]
        return found | {"moved": ("seed", np.abs(moved).max(1)), "error": ("seed", error)}

    return sweep(one, rule=["SGD", "Adam"])


PAPER_SIZES = (10_000, 14_000, 16_000, 18_000, 20_000, 50_000)  # rows of Table 1
THREE = {"no mask": "baseline", "free mask": "attention", "L1 mask": "l1"}  # its columns, and names of measured values
LEVELS = (0.1, 0.01, 0.001, 0.0003)  # losses, the time to which is compared
LONG = {
    "n_inputs": 256, "n_relevant": 64, "teacher_width": 64, "width": 128, "sizes": PAPER_SIZES, "n_test": 150_000,
    "penalty": 2e-4, "step_size": 2e-3, "batch_size": 128, "snapshot": 400_000, "steps": 400_000, "seeds": (0,),
}  # fmt: skip


@experiment(
    "global_attention.sample_complexity",
    group=1,
    smoke={"sizes": (30, 40, 50, 60, 70, 80), "n_test": 64, "snapshot": 20, "steps": 30, "seeds": (0, 1)},
    full=LONG,
    paper_size=True,
)
def table_1(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_inputs: PositiveInt = 32,  # 256 in the paper
    outputs: PositiveInt = OUTPUTS,  # labels per sample
    n_relevant: PositiveInt = 8,  # inputs that matter; the paper does not say
    teacher_width: PositiveInt = 32,  # hidden units of the teacher; the paper does not say
    width: PositiveInt = 64,  # hidden units of the networks; the paper does not say
    sizes: Counts = tuple(n // 16 for n in PAPER_SIZES),  # one for each row of Table 1
    n_test: PositiveInt = 4096,  # held-out samples
    penalty: NonNegativeFloat = 1e-3,  # L1 weight on the mask; the paper does not say
    step_size: PositiveFloat = 5e-3,  # of Adam; the paper names neither optimiser nor step size
    batch_size: PositiveInt = 64,  # samples per step
    snapshot: PositiveInt = 2500,  # step at which the rules of Table 1 are read; 400 000 in the paper
    steps: PositiveInt = 6000,
) -> xr.Dataset:
    """Table 1 and Figure 7: test loss of three students for six sample sizes, at every step at which one may stop."""
    if len(sizes) != len(PAPER_SIZES):
        raise ValueError(f"sizes: expected {len(PAPER_SIZES)}, one for each row of Table 1, got {sizes}")
    if not 5 <= snapshot <= steps:
        raise ValueError(f"snapshot: expected between 5 and steps = {steps}, got {snapshot}")
    if n_relevant >= n_inputs:
        raise ValueError(f"n_relevant: expected below n_inputs = {n_inputs}, got {n_relevant}")
    at = recorded(steps, snapshot)
    axes = {"seed": seeds, "size": sizes, "model": list(THREE)}

    def member(seed: int, n: int, model: str) -> Member:
        return Member(MODELS[model], seed, n, n_relevant, penalty)

    setup = Setup(n_inputs, outputs, teacher_width, width, 0.0, n_test)
    losses = trained(axes, member, setup, Training(steps, batch_size, step_size, at)).records["test_loss"]
    rows = {"size": list(PAPER_SIZES), "model": list(THREE), "step": list(at)}
    return xr.Dataset({"test_loss": (("step", "seed", "size", "model"), losses)}, rows)


def recorded(steps: int, snapshot: int) -> tuple[int, ...]:
    """Return steps on a log grid that does not depend on their number; fifths of the snapshot and the last as well."""
    grid = {round(10 ** (k / 8)) for k in range(8 * len(str(steps)))}
    fifths = {snapshot * fifth // 5 for fifth in (1, 2, 3, 4, 5)}
    return tuple(sorted({0, steps} | {step for step in grid | fifths if step <= steps}))


def time_to(losses: xr.DataArray) -> xr.DataArray:
    """Return the first recorded step at which a loss is at most each level; infinite where it never is."""
    there = losses <= xr.DataArray(list(LEVELS), dims="level", coords={"level": list(LEVELS)})
    return losses.step[there.argmax("step")].drop_vars("step").where(there.any("step"), np.inf)


@table_1.measures
def _(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    snapshot = data.attrs["settings"]["snapshot"]
    read = data.test_loss.sel(step=snapshot)
    cells = {f"{name}_{n}": read.sel(model=m, size=n, drop=True) for n in PAPER_SIZES for m, name in THREE.items()}
    cells["thousand_steps"] = xr.DataArray(snapshot / 1000)

    def some(*names: str) -> dict[str, Any]:
        return {name: cells[name] for name in (*names, "thousand_steps")}

    times = time_to(data.test_loss)
    no_mask, free, l1 = (times.sel(model=model, drop=True) for model in THREE)

    def held(one: xr.DataArray, other: xr.DataArray) -> dict[str, Any]:
        reached = np.isfinite(one) | np.isfinite(other)
        return {"fraction_held": (one <= other).where(reached).mean(("size", "level")).fillna(0.0)}

    return {
        "GA-TAB1": cells,
        "GA-TAB1-headline": some("attention_14000", "baseline_20000"),
        "GA-TAB1-l1": some("l1_10000", "attention_10000", "l1_20000"),
        "GA-F7-attention": held(free, no_mask),
        "GA-F7-l1": held(l1, free),
    }


@experiment(
    "global_attention.width",
    smoke={"sizes": (20, 24, 28, 32, 36, 80), "widths": (4, 8), "n_test": 64, "steps": 20, "seeds": (0, 1)},
)
def width(
    seeds: Seeds = (0, 1, 2, 3, 4),
    widths: Counts = (16, 32, 64, 128),  # hidden units of the students; 16 inputs of which 4 matter, a teacher with 16
    sizes: Counts = tuple(n // 64 for n in PAPER_SIZES),  # one for each row of Table 1
    n_test: PositiveInt = 2048,  # held-out samples
    step_size: PositiveFloat = 5e-3,  # of Adam; it falls to zero
    steps: PositiveInt = 5000,
) -> xr.Dataset:
    """Table 1 at the end of training, without noise, for students of several widths."""
    axes = {"seed": seeds, "size": sizes, "model": ["no mask", "free mask"]}

    def member(seed: int, n: int, model: str) -> Member:
        return Member(MODELS[model], seed, n, 4)

    def one(units: int) -> dict[str, Any]:
        how = Training(steps, 64, step_size, (steps // 2, steps), decay=True)
        losses = trained(axes, member, Setup(16, OUTPUTS, 16, units, 0.0, n_test), how).records["test_loss"]
        return {"test_loss": (("part", *axes), losses)}

    found = sweep(one, width=[int(units) for units in widths])
    return found.assign_coords(part=["half", "end"], size=list(PAPER_SIZES), model=axes["model"])


@width.measures
def _(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    losses = data.test_loss.sel(model="no mask", drop=True)
    end = losses.sel(part="end", drop=True)
    narrow, wide = end.isel(width=0, drop=True), end.isel(width=-1, drop=True)
    moved = losses.sel(part="half", drop=True).isel(width=-1, drop=True) / wide
    mask = data.test_loss.sel(part="end", model="free mask", drop=True).isel(width=-1, drop=True)
    return {
        "GA-TAB1-race": {
            "loss_wide": wide.sel(size=10_000, drop=True),
            "fall_wide": wide.sel(size=10_000, drop=True) / wide.sel(size=20_000, drop=True),
            "moved_wide": moved.sel(size=10_000, drop=True),
            "loss_narrow": narrow.sel(size=10_000, drop=True),
            "fall_narrow": narrow.sel(size=10_000, drop=True) / narrow.sel(size=20_000, drop=True),
            "mask_over_no_mask_wide": (mask / wide).max("size"),
        }
    }


LOOKS = {
    "no mask": Look("no mask", "#5b5f66", "--", "s"),
    "free mask": Look("free mask", "#0b5cad", "-", "o"),
    "L1 mask": Look("L1 mask", "#c2410c", "-.", "^"),
    "group penalty": Look("no mask, group penalty", "#8a5a00", ":", "x"),
    "limited mask": Look("limited mask", "#7c3aed", "-", "D"),
    "told": Look("told which inputs", "#15803d", (0, (1, 1)), "v"),
}
FOUR = ("no mask", "free mask", "limited mask", "told")


def errors(
    data: xr.Dataset, students: Sequence[str] = FOUR, yours: Mapping[str, Mapping[float, float]] | None = None
) -> Figure:
    """Draw the error of some students against the number of samples, and lines of the reader's own."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.5))
        curves(ax, data.test_loss.sel(model=list(students)), "size", "model", LOOKS)
        own_lines(ax, yours)
        ax.axhline(GOAL, color="#9ca3af", linewidth=1)
        ax.set(xscale="log", yscale="log", ylim=(1e-3, 3), xlabel="training samples", ylabel="prediction error")
        ax.set_xticks(data["size"].values, [f"{n}" for n in data["size"].values])
        ax.minorticks_off()
        figure.legend(loc="outside upper left", ncols=3, fontsize=10)
    return figure


def by_relevant(data: xr.Dataset, relevant: int) -> Figure:
    """Draw the picture of the slider: three students of teachers that look at so many inputs."""
    return errors(data.sel(relevant=relevant), ("no mask", "limited mask", "told"))


def samples_text(data: xr.Dataset, relevant: int) -> str:
    """Say how many samples an error of 5 % takes."""
    found = needed(data.test_loss.sel(relevant=relevant)).median("seed")
    no_mask, limited, told = (f"{float(found.sel(model=m)):.0f}" for m in ("no mask", "limited mask", "told"))
    return (
        f"{relevant} of 32 inputs matter. Samples for an error of 5 %: "
        f"no mask {no_mask}, limited mask {limited}, told {told}."
    )


def saving_picture(data: xr.Dataset) -> Figure:
    """Draw the saving against the inputs per input that is kept, with the two laws."""
    import matplotlib.pyplot as plt

    found = saving(data).assign_coords(relevant=INPUTS / data.relevant).rename(relevant="ratio").sortby("ratio")
    ratio = found.ratio.values
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        for power, line, label in ((1, "--", "$p/s_0$"), (2, ":", "$(p/s_0)^2$")):
            ax.plot(ratio, ratio**power, color="#5b5f66", linestyle=line, marker="", label=label)
        curves(ax, found, "ratio", known={"": Look("measured", "#7c3aed", "-", "D")})
        ax.set(xscale="log", yscale="log", xlabel="all inputs / inputs that the mask may keep", ylabel="saving")
        ax.set_xticks(ratio, [f"{r:g}" for r in ratio])
        ax.set_yticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
        ax.minorticks_off()
        ax.legend(loc="upper left")
    return figure


def paper_table() -> xr.DataArray:
    """Return the two columns of the paper's Table 1 that stand for no mask and a free mask, from the ledger."""
    from attnbook import ledger

    cells = ledger.claim("GA-TAB1").paper_value
    table = [[cells[f"{name}_{n}"] for name in ("baseline", "attention")] for n in PAPER_SIZES]
    return xr.DataArray(table, {"size": list(PAPER_SIZES), "model": ["no mask", "free mask"]}, ("size", "model"))


def by_width(data: xr.Dataset, units: int) -> Figure:
    """Draw the paper's Table 1 and, at the end of training, that of students with so many hidden units."""
    import matplotlib.pyplot as plt

    ours, rows = data.test_loss.sel(part="end", width=units), [f"{n // 1000},000" for n in PAPER_SIZES]
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4))
        for ax, losses in zip(axes, (paper_table(), ours), strict=True):
            place = losses.assign_coords(size=range(len(rows)))
            curves(ax, place, "size", "model", LOOKS)
            ax.set_xticks(range(len(rows)), rows, rotation=35)
            ax.set(yscale="log", xlabel="samples, row of Table 1", ylabel="test loss")
            ax.minorticks_off()
        axes[0].set(title="the paper", ylim=(1e-3, 10))
        axes[1].set(title=f"ours, {units} hidden units", ylim=(5e-5, 0.5))
        axes[0].legend(loc="upper right")
    return figure


def width_text(data: xr.Dataset, units: int) -> str:
    """Say how many weights meet how many labels, and what the steep fall of the table has become."""
    rows = data.test_loss.sel(part="end", width=units).median("seed")
    first, fifth = (rows.sel(size=n) for n in (10_000, 20_000))
    return (
        f"{units} hidden units: {units * (16 + OUTPUTS)} weights, {156 * OUTPUTS} labels in the first row. Loss in the "
        f"rows 10,000 and 20,000: no mask {first.sel(model='no mask'):.2g} and {fifth.sel(model='no mask'):.2g}, "
        f"free mask {first.sel(model='free mask'):.2g} and {fifth.sel(model='free mask'):.2g}."
    )


def mask_gradient(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the mean squared error over two with respect to the mask."""
    rng = stream(1, "exercise", "GA-1")
    x, y = rng.standard_normal((7, 5)), rng.standard_normal(7)
    mask, hidden, decoder = rng.random(5) + 0.5, rng.standard_normal((3, 5)), rng.standard_normal(3)
    pre = (x * mask) @ hidden.T
    residual = np.maximum(pre, 0) @ decoder - y
    terms = residual[:, None] * x * (((pre > 0) * decoder) @ hidden)
    right = terms.mean(0)
    likely = {
        "it is the sum over samples, divide by their number": terms.sum(0),
        "a factor 2 too many: the loss has 1/2 in front": 2 * right,
        "the derivative of ReLU is missing: units that are off pass nothing back": (
            residual[:, None] * x * (decoder @ hidden)
        ).mean(0),
        "the weights of the second layer are missing": (residual[:, None] * x * ((pre > 0) @ hidden)).mean(0),
        "the inputs are masked once too often: x enters, not x times a": right * mask,
        "the sign is reversed: the residual is prediction minus label": -right,
    }
    got = answer(*(a.copy() for a in (x, y, mask, hidden, decoder)))
    return verdict(got, right, likely, "one number per input")


def on_the_simplex(answer: Callable[..., Any]) -> str | None:
    """Check a network rewritten so that its mask sums to one."""
    rng = stream(1, "exercise", "GA-2")
    mask, hidden, decoder = rng.random(5) + 0.5, rng.standard_normal((3, 5)), rng.standard_normal(3)
    inputs = rng.standard_normal((20, 5))

    def function(a: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.maximum((inputs * a) @ w.T, 0) @ v

    parts = answer(mask.copy(), hidden.copy(), decoder.copy())
    shapes = [np.shape(part) for part in parts]
    if shapes != [(5,), (3, 5), (3,)]:
        return f"mask, hidden and decoder are wanted, of shapes (5,), (3, 5), (3,), got {shapes}"
    new_mask, new_hidden, new_decoder = (np.asarray(part, dtype=float) for part in parts)
    if not np.isclose(new_mask.sum(), 1.0):
        return f"the new mask sums to {new_mask.sum():.3g}, not to 1"
    before, after = function(mask, hidden, decoder), function(new_mask, new_hidden, new_decoder)
    if np.allclose(before, after):
        return None
    ratio = np.linalg.norm(after) / np.linalg.norm(before)
    return f"the function changed: its values are now {ratio:.3g} times what they were; some layer must make up for it"


CHECKS = {"GA-1": mask_gradient, "GA-2": on_the_simplex}
