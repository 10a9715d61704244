"""Recurrent attention: the experiments of the chapter, what its claims read off them, pictures and exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.feedback import verdict
from attnbook.core.rng import stream, to_tensor
from attnbook.global_attention.recurrent_networks import Recurrence, initial_parameters, looks, read
from attnbook.global_attention.sample_sizes import recurrent_samples
from attnbook.global_attention.word_teachers import Mechanism, WordTeacher, draw_word_teacher, order_blind_floor
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, lowest, sweep, track
from attnbook.show import INK, Look, curves, own_lines, style
from attnbook.train import Adam, autograd, cosine, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS, DIMENSION, TEACHER_WIDTH, WIDTH = 10, 6, 8, 32  # of sentences, words, teachers, models
NOISE, FOCUS = 0.5, 2.5  # standard deviations of label noise (clean labels have 1) and of a teacher's scores
BATCH, STEP_SIZES = 32, (0.01, 0.03, 0.1)  # each network is read at the best of them on validation sentences
RECURRENT = {
    "one_step": Recurrence(1, 4, 8),
    "two_steps": Recurrence(2, 8, 8),
    "three_steps": Recurrence(3, 32, 64),
    "product_two": Recurrence(2, 8, 0),
    "product_three": Recurrence(3, 8, 0),
}
LADDER = ("flat", "mean", "one_step", "two_steps", "three_steps", "known")
PLAIN = ("flat", "mean", "one_step")
ERROR = 0.05  # at which samples are compared


class Member(NamedTuple):
    """One network: seed of everything, training sentences, step size, initial weights, L2 and entropy penalties."""

    seed: int
    n: int
    step_size: float = 0.03
    restart: int = 0
    l2: float = 0.0
    entropy: float = 0.0


SMALL = {"n_test": 40, "steps": 4, "seeds": (0, 1)}  # for tests


@experiment("global_attention.recurrent", budget=60, smoke=SMALL)
def ladder(
    seeds: Seeds = (0, 1, 2, 3, 4),
    sizes: Counts = (100, 300, 1000, 3000, 10_000),  # training sentences
    steps: PositiveInt = 600,  # of Adam
    noise: NonNegativeFloat = NOISE,  # of labels
    n_test: PositiveInt = 1000,  # test sentences, and validation sentences
) -> xr.Dataset:
    """Error against training sentences where words decide, from models too simple to models too complex."""
    one = lambda model: best(model, "attention", FOCUS, seeds, sizes, steps, n_test, noise)  # noqa: E731
    return sweep(one, model=LADDER)


@ladder.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    def at(model: str, size: int) -> xr.DataArray:
        return data.test_error.sel(model=model, size=size)

    right, large = ({n: at(model, n) for n in (300, 1000)} for model in ("one_step", "three_steps"))
    steps = {f"recurrent_{i}": at(model, 1000) for i, model in enumerate(LADDER[2:5], 1)}
    return {
        "GA-T6-order": {"flat": at("flat", 1000), **steps},
        "GA-T6-simple": {"mean_pooling_10000": at("mean", 10_000), "recurrent_1": right[1000]},
        "GA-T6-complex": {f"{name}_{n}": error for name, found in (("right", right), ("large", large))
                          for n, error in found.items()},
        "GA-P1-known-weights": {"known": at("known", 300), "trained": right[300]},
    }  # fmt: skip


@experiment("global_attention.focus", budget=60, smoke=SMALL | {"focus": (0.0, 2.0)})
def focus(
    seeds: Seeds = (0, 1, 2, 3, 4),
    focus: Increasing = (0.0, 0.25, 0.5, 1.0, 2.5),  # standard deviation of the teacher's scores
    sizes: Counts = (100, 300, 1000, 3000, 10_000),  # training sentences
    steps: PositiveInt = 600,  # of Adam
    n_test: PositiveInt = 1000,  # test sentences, and validation sentences
) -> xr.Dataset:
    """Error against training sentences, where all words weigh the same and where a few decide."""

    def one(model: str, at: float) -> xr.Dataset:
        top = [teacher("attention", at, seed).weights(sentences(seed, "test", n_test)).max(1).mean() for seed in seeds]
        found = best(model, "attention", at, seeds, sizes, steps, n_test)
        return found.assign(top=("seed", top))

    return sweep(one, model=PLAIN, focus=focus)


@focus.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    few, names = data.test_error.sel(focus=0), {"mean_pooling": "mean", "recurrent_1": "one_step"}
    found = {f"{name}_{n}": few.sel(model=names[name], size=n) for name in names for n in (100, 300)}
    return {"GA-X-attention-unneeded": found}


@experiment("global_attention.place", budget=30, smoke=SMALL | {"shuffles": 2})
def place(
    seeds: Seeds = (0, 1, 2, 3, 4),
    sizes: Counts = (100, 300, 1000, 3000, 10_000),  # training sentences
    steps: PositiveInt = 600,  # of Adam
    n_test: PositiveInt = 1000,  # test sentences, and validation sentences
    shuffles: PositiveInt = 8,  # orders of a test sentence from which the floor is estimated
) -> xr.Dataset:
    """Error where the place of a word decides, and the floor of models that are blind to the order."""
    found = sweep(lambda model: best(model, "position", FOCUS, seeds, sizes, steps, n_test), model=PLAIN)
    words = {seed: sentences(seed, "test", n_test) for seed in seeds}
    own = {seed: teacher("position", FOCUS, seed) for seed in seeds}
    floors = [order_blind_floor(own[s], words[s], shuffles, stream(s, "orders")) for s in seeds]
    return found.assign(floor=("seed", floors))


@place.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    last = data.test_error.sel(size=10_000)
    named = {"flat": last.sel(model="flat"), "recurrent_1": last.sel(model="one_step"), "floor": data.floor}
    return {"GA-G1-inconsistent": named}


@experiment("global_attention.second_look", budget=30, smoke=SMALL | {"n": 30, "restarts": 2})
def second_look(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n: PositiveInt = 3000,  # training sentences
    restarts: PositiveInt = 3,  # initial weights, for each of two step sizes
    steps: PositiveInt = 1200,  # of Adam
    n_test: PositiveInt = 1000,  # test sentences, and validation sentences
) -> xr.Dataset:
    """Error with two and with three steps where the teacher looks twice, of all runs."""

    def one(model: str) -> dict[str, Any]:
        members = [Member(*case) for case in product(seeds, [n], STEP_SIZES[:2], range(restarts))]
        found = fit(model, "two_looks", FOCUS, members, steps, n_test)
        return {name: (("seed", "run"), found[name].reshape(len(seeds), -1)) for name in ("test", "validation")}

    return sweep(one, model=("product_two", "product_three"))


@second_look.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    two, three = (best_runs(data).sel(model=name) for name in ("product_two", "product_three"))
    smallest = lowest(data.test.sel(model="product_two").min("run"))
    return {"GA-T6-looks": {"found": (three <= 0.5 * two).mean("seed"), "smallest_two_steps": smallest}}


@experiment("global_attention.penalties", budget=30, smoke=SMALL | {"n": 30})
def penalties(
    seeds: Seeds = (0, 1, 2, 3, 4),
    l2: Increasing = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),  # penalty on all weights
    entropy: Increasing = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0),  # penalty on the entropy of attention
    n: PositiveInt = 300,  # training sentences
    steps: PositiveInt = 600,  # of Adam
    n_test: PositiveInt = 1000,  # test sentences
) -> xr.Dataset:
    """Error of attention with one step, where words decide, against the strength of two penalties."""

    def path(name: str, strengths: Sequence[float]) -> dict[str, Any]:
        members = [Member(seed, n)._replace(**{name: one}) for seed, one in product(seeds, strengths)]
        found = fit("one_step", "attention", FOCUS, members, steps, n_test)
        kept = {which: found[which].reshape(len(seeds), -1) for which in ("test", "train")}
        return {f"{name}_{which}": (("seed", name), errors) for which, errors in kept.items()}

    free, *paths = (path(*one) for one in track((("l2", (0.0,)), ("l2", l2), ("entropy", entropy))))
    named = paths[0] | paths[1] | {"free": ("seed", free["l2_test"][1][:, 0])}
    return xr.Dataset(named, {"l2": list(l2), "entropy": list(entropy)})


@penalties.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    fits, picked = data.l2_train.min("l2") <= NOISE**2, data.l2_test.isel(l2=chosen(data.l2_train))
    over = {"over_best": picked / data.l2_test.min("l2"), "over_free": picked / data.free}
    ratios = data.entropy_test / data.free
    best = ratios.isel(entropy=ratios.median("seed").argmin("entropy"))
    fitted = {name: ratio.where(fits).median("seed").fillna(np.inf) for name, ratio in over.items()}
    return {
        "GA-G1-l2-attention": fitted | {"fitted": fits.mean("seed")},
        "GA-G1-sparse-attention": {"best_entropy": best, "helped_entropy": (best < 1).mean("seed")},
    }


def chosen(train_error: xr.DataArray) -> xr.DataArray:
    """Return the place of the largest L2 weight whose training error is at most the noise; of the first where none is."""
    places = xr.DataArray(np.arange(train_error.sizes["l2"]), dims="l2")
    return places.where(train_error <= NOISE**2, 0).max("l2").astype(int)


def best_runs(data: xr.Dataset) -> xr.DataArray:
    """Return each seed's test error of the run with the smallest error on validation sentences."""
    return data.test.isel(run=data.validation.argmin("run"))


def best(
    model: str, mechanism: Mechanism, focus: float, seeds: Sequence[int], sizes: Sequence[int], steps: int, n_test: int,
    noise: float = NOISE,
) -> xr.Dataset:  # fmt: skip
    """Return test errors, ``(size, seed)``, each at the step size with the smallest error on validation sentences."""
    members = [Member(*case) for case in product(seeds, sizes, STEP_SIZES)]
    found = fit(model, mechanism, focus, members, steps, n_test, noise)
    test, validation = (found[name].reshape(len(seeds), len(sizes), -1) for name in ("test", "validation"))
    picked = np.take_along_axis(test, validation.argmin(-1)[..., None], -1)[..., 0]
    return xr.Dataset({"test_error": (("size", "seed"), picked.T)}, {"size": list(sizes)})


def fit(
    model: str, mechanism: Mechanism, focus: float, members: Sequence[Member], steps: int, n_test: int,
    noise: float = NOISE,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Train networks of one kind as one program; return mean squared errors on clean test and noisy other labels."""
    where, seeds, recurrence = device(), list(dict.fromkeys(m.seed for m in members)), RECURRENT.get(model)

    def draw(purpose: str, count: int) -> tuple[Tensor, Tensor]:
        sets = [labelled(model, teacher(mechanism, focus, seed), seed, purpose, count, noise) for seed in seeds]
        sentences, labels = (to_tensor(np.stack(arrays), device=where) for arrays in zip(*sets, strict=True))
        return sentences, labels

    def look(parameters: Parameters, given: Tensor) -> tuple[Tensor, Tensor]:
        if recurrence is None:
            return read(parameters, given), given.new_zeros(len(given))
        last = looks(parameters, given, recurrence.n_steps)[-1]
        return read(parameters, last.context), torch.special.entr(last.weights).sum(2).mean(1)

    def losses(parameters: Parameters, batch: tuple[Tensor, Tensor]) -> Tensor:
        answers, spread_out = look(parameters, batch[0])
        loss = (answers - batch[1]).square().mean(1)
        if l2.any():
            loss = loss + l2 * torch.stack([p.square().flatten(1).sum(1) for p in parameters.values()]).sum(0)
        return loss + entropy * spread_out if entropy.any() else loss

    l2, entropy = (to_tensor([getattr(m, name) for m in members], device=where) for name in ("l2", "entropy"))
    own = torch.tensor([seeds.index(m.seed) for m in members], device=where)
    x, y = draw("train", max(m.n for m in members))
    drawn = [stream(m.seed, "batches", m.n).integers(m.n, size=(steps, BATCH)) for m in members]
    rows = torch.as_tensor(np.stack(drawn, axis=1), device=where)
    rngs = [stream(m.seed, "initial weights", m.restart) for m in members]
    starts = [initial_parameters(recurrence, x.shape[-1], WIDTH, rng=rng) for rng in rngs]
    trained = train(
        autograd(losses),
        {name: to_tensor(np.stack([start[name] for start in starts]), device=where) for name in starts[0]},
        lambda step: (x[own[:, None], rows[step]], y[own[:, None], rows[step]]),
        optimizer=Adam([m.step_size for m in members]),
        steps=steps,
        record=lambda parameters: {"size": parameters["decoder"].abs().amax(1)},
        record_at=(steps,),
        schedule=cosine(steps),
    ).parameters

    def measured(inputs: Tensor, labels: Tensor, counts: Sequence[int]) -> np.ndarray:
        alone = ({name: tensor[i : i + 1] for name, tensor in trained.items()} for i in range(len(members)))
        asked = zip(alone, own.tolist(), counts, strict=True)
        found = [(look(p, inputs[k : k + 1, :n])[0] - labels[k : k + 1, :n]).square().mean() for p, k, n in asked]
        return torch.stack(found).double().cpu().numpy()

    test = {name: measured(*draw(name, n_test), [n_test] * len(members)) for name in ("test", "validation")}
    return test | {"train": measured(x, y, [m.n for m in members])}


def labelled(
    model: str, own: WordTeacher, seed: int, purpose: str, count: int, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return what a model reads of sentences, and their labels, clean for the test."""
    words = sentences(seed, purpose, count)
    labels = own(words) + (purpose != "test") * noise * stream(seed, purpose, "label noise").standard_normal(count)
    if model == "flat":
        words = words.reshape(count, -1)
    elif model == "mean":
        words = words.mean(1)
    elif model == "known":
        words = np.einsum("sw,swd->sd", own.weights(words), words)
    return words, labels


@lru_cache(maxsize=256)  # all models of a seed ask for its teacher
def teacher(mechanism: Mechanism, focus: float, seed: int) -> WordTeacher:
    """Return the teacher of a seed."""
    sizes = {"n_words": WORDS, "dimension": DIMENSION, "width": TEACHER_WIDTH}
    return draw_word_teacher(mechanism, seed, focus=focus, **sizes)


def sentences(seed: int, purpose: str, count: int) -> np.ndarray:
    """Return sentences of standard normal words; fewer sentences are the first of more."""
    return stream(seed, purpose, "sentences").standard_normal((count, WORDS, DIMENSION))


READ = {
    "flat": Look("flat network", "#5b5f66", "--", "s"),
    "mean": Look("mean pooling", "#be185d", ":", "D"),
    "one_step": Look("attention, 1 step", "#0b5cad", "-", "o"),
    "two_steps": Look("attention, 2 steps", "#c2410c", "-.", "^"),
    "three_steps": Look("attention, 3 steps, large", "#1f2937", (0, (3, 1, 1, 1)), "P"),
    "known": Look("weights known", "#15803d", (0, (5, 1)), "v"),
}
SENTENCES, LOSS = "training sentences", "test error (label variances)"


def errors(data: xr.Dataset, yours: Mapping[str, Mapping[float, float]] | None = None) -> Figure:
    """Draw the error against training sentences, a line for each model, the floor if there is one, and own lines."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        _against_size(ax, data)
        if "floor" in data:
            ax.axhline(float(data.floor.median()), color=INK, linestyle=(0, (1, 1)), label="floor without order")
        own_lines(ax, yours)
        ax.legend(fontsize=10, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def bounds(data: xr.Dataset) -> Figure:
    """Draw, for each model with attention, the sentences at which it reaches the error, and those of the bound."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.2))
        models, needed, bound, _ = zip(*needs(data), strict=True)
        rows = range(len(models))
        ax.hlines(rows, needed, bound, color="#b8b8b8")
        ax.plot(needed, rows, "o", color=READ["one_step"].color, label="needed in training")
        ax.plot(bound, rows, "|", color="#b00020", markersize=16, label="required by the bound")
        ax.set_yticks(rows, [READ[model].label for model in models])
        ax.set(xscale="log", xlabel=f"{SENTENCES} for an error of {ERROR:g}", ylim=(2.6, -0.6), xlim=(100, 1e6))
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def needs(data: xr.Dataset) -> list[tuple[str, float, float, int]]:
    """Return for each model with attention the sentences that it needs, those of the bound, and its weights."""
    found = []
    for model in LADDER[2:5]:
        sizes = initial_parameters(RECURRENT[model], DIMENSION, WIDTH, rng=stream(0, "count")).values()
        weights = sum(array.size for array in sizes)
        median = np.log(data.test_error.sel(model=model).median("seed").values)
        # The curve falls; np.interp wants an increasing one.
        needed = float(np.exp(np.interp(-np.log(ERROR), -median, np.log(data.size.values))))
        found.append((model, needed, recurrent_samples(ERROR, weights), weights))
    return found


def focus_frame(data: xr.Dataset, focus: float) -> Figure:
    """Draw the error against training sentences for one focus."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.4))
        _against_size(ax, data.sel(focus=focus))
        ax.set(ylim=(3e-3, 3))
        ax.legend(loc="lower left", fontsize=9.5)
    return figure


def focus_text(data: xr.Dataset, focus: float) -> str:
    """Say how sharply a teacher looks, and who is ahead at 300 sentences."""
    top = float(data.top.sel(focus=focus).isel(model=0).median())
    at = data.test_error.sel(focus=focus).isel(size=1).median("seed")
    ahead, behind = ("mean", "one_step") if at.sel(model="mean") < at.sel(model="one_step") else ("one_step", "mean")
    ratio = float(at.sel(model=behind) / at.sel(model=ahead))
    found = f"the error of {READ[behind].label} is {ratio:.1f} times the error of {READ[ahead].label}"
    return f"Focus {focus:g}: the top word has {top:.0%} of the weight. With {int(data.size[1])} sentences {found}."


def advice(data: xr.Dataset) -> Figure:
    """Draw the error against the strength of two penalties, over the error without."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.0))
        for ax, name, label in zip(axes, ("l2", "entropy"), ("L2 penalty", "entropy penalty"), strict=True):
            curves(ax, data[f"{name}_test"] / data.free, name)
            ax.axhline(1.0, color=INK, linewidth=1, linestyle=":")
            ax.set(xscale="log", yscale="log", xlabel=f"strength of the {label}")
        axes[0].set_ylabel("test error over that without")
    return figure


def _against_size(ax: Axes, data: xr.Dataset) -> None:
    curves(ax, data.test_error, "size", "model", READ)
    ax.set(xscale="log", yscale="log", xlabel=SENTENCES, ylabel=LOSS)


def count_weights(answer: Callable[..., Any]) -> str | None:
    """Check the dimension in the bound of Theorem 6 for the additive score."""
    n_steps, state, units, dimension, width = 3, 5, 7, 11, 13
    layers, score = width * dimension + width, units * (state + dimension + 1)
    recurrence = state * (state + dimension)
    right = layers + score + recurrence
    likely = {
        "the recurrence is missing": layers + score,
        "the score is missing": layers + recurrence,
        "the vector v of the score is missing": right - units,
        "the two layers are missing": score + recurrence,
        "weights are shared between steps: count them once": layers + n_steps * (score + recurrence),
    }
    return verdict(answer(state, units, dimension, width), right, likely, "one number")


def newest_context(answer: Callable[..., Any]) -> str | None:
    """Check the first step whose weights depend on what was found, for a state that lags behind by some steps."""
    right = np.array([2, 3, 4])
    likely = {"by that step the state has seen c_1; the next step reads it": right - 1, "one step too many": right + 1}
    return verdict([float(answer(lag)) for lag in range(3)], right, likely, "for each lag one step number")


CHECKS = {"GA-R2": count_weights, "GA-R3": newest_context}
