"""Film reviews: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook import ledger
from attnbook.core.feedback import verdict
from attnbook.core.rng import stream, to_tensor
from attnbook.data import Source
from attnbook.global_attention.batches import own_errors, rows_of
from attnbook.global_attention.review_networks import NETWORKS, ReviewNetwork, ReviewShape
from attnbook.global_attention.reviews import Corpus, load_corpus
from attnbook.global_attention.token_networks import (
    Sizes,
    TokenModel,
    draw_flat_teacher,
    draw_teacher,
    initial_parameters,
    predict,
)
from attnbook.lab import Counts, Seeds, device, experiment, sweep, track
from attnbook.show import INK, Look, curves, log_axis, style
from attnbook.train import Adam, autograd, cosine, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

PAPER_SIZES = (875, 1750, 3500, 5250, 7000, 8750, 13_125, 17_500)
STUDENTS: tuple[TokenModel, ...] = ("baseline", "global_attention", "self_attention", "uniform_attention")
FRESH: dict[str, tuple[str, TokenModel, int]] = {
    "two layers of 32": ("attention", "baseline", 32),
    "two layers of 512": ("attention", "baseline", 512),
    "three layers of 256": ("attention", "three_layers", 256),
    "flat": ("flat", "baseline", 32),
    "self-attention": ("flat", "self_attention", 32),
}  # whose labels, which network learns them, units


def sizes(width: int) -> Sizes:
    """Return the sizes of networks on six tokens of five entries."""
    return Sizes(n_tokens=6, dimension=5, n_query=4, n_value=4, width=width)


def labelled(teachers: Sequence[Any], seeds: Sequence[int], count: int, *purpose: Any) -> tuple[Tensor, Tensor]:
    """Draw normal inputs of each seed and let its teacher, a model and its weights, label them."""
    inputs = np.stack([stream(seed, *purpose).standard_normal((count, 6, 5)) for seed in seeds])
    given = zip(teachers, torch.from_numpy(inputs)[:, None], strict=True)
    labels = torch.cat([predict(model, weights, x) for (model, weights), x in given])
    return to_tensor(inputs, device=device()), to_tensor(labels.numpy(), device=device())


def fit(
    model: TokenModel, drawn: Sequence[Mapping[str, Any]], batches: Any, step_size: float, steps: int, ends: Any
) -> Any:
    """Train networks from these weights with the squared error; return what ``ends`` records after the last step."""
    start = {name: to_tensor(np.stack([one[name] for one in drawn]), device=device()) for name in drawn[0]}
    loss = autograd(lambda p, batch: (predict(model, p, batch[0]) - batch[1]).square().mean(1))
    options: Any = {"steps": steps, "record": ends, "record_at": (steps,), "schedule": cosine(steps)}
    return train(loss, start, batches, optimizer=Adam(step_size), **options).records


@experiment(
    "global_attention.self_attention",
    budget=50,
    smoke={"n_samples": (20, 30), "n_test": 50, "steps": 5, "restarts": 2, "seeds": (0, 1)},
)
def teachers(
    seeds: Seeds = (0, 1, 2, 3, 4),
    teacher_width: PositiveInt = 8,  # hidden units of the teacher
    width: PositiveInt = 32,  # hidden units of every student
    n_samples: Counts = (1000, 8000),  # training samples
    n_test: PositiveInt = 4000,  # test samples
    step_size: PositiveFloat = 5e-3,  # of Adam, falling to zero along a cosine; the same for all students
    batch_size: PositiveInt = 64,  # samples per step
    steps: PositiveInt = 800,  # of training
    restarts: PositiveInt = 3,  # initial weights tried per student; the smallest training loss counts
) -> xr.Dataset:
    """Theorem 2: students with and without attention on samples of a self-attention teacher."""
    drawn = [("self_attention", draw_teacher(sizes(teacher_width), stream(seed, "teacher"))) for seed in seeds]
    inputs, labels = labelled(drawn, seeds, n_samples[-1], "inputs")
    test = labelled(drawn, seeds, n_test, "test inputs")
    members = [(i, n, restart) for i in range(len(seeds)) for n in n_samples for restart in range(restarts)]

    def batch(step: int) -> tuple[Tensor, Tensor]:  # the same for all students and restarts
        most = np.array(n_samples)[:, None]
        drawn = [stream(seed, "batches", step).random((len(n_samples), batch_size)) * most for seed in seeds]
        rows = np.array(drawn).astype(np.int64) + n_samples[-1] * np.arange(len(seeds))[:, None, None]
        chosen = torch.as_tensor(rows, device=inputs.device).flatten(0, 1).repeat_interleave(restarts, 0)
        return rows_of(inputs.flatten(0, 1), chosen), labels.flatten()[chosen]

    def student(model: TokenModel) -> dict[str, Any]:
        seen = [(inputs[i, :n], labels[i, :n]) for i, n, _ in members]
        tested = [(test[0][i], test[1][i]) for i, *_ in members]
        weights = [initial_parameters(model, seeds[i], restart, sizes(width)) for i, _, restart in members]

        def ends(p: dict[str, Tensor]) -> dict[str, Tensor]:
            answer = partial(predict, model)
            return {"train_loss": own_errors(answer, p, seen), "test_loss": own_errors(answer, p, tested)}

        found = fit(model, weights, batch, step_size, steps, ends)
        shape = len(seeds), len(n_samples), restarts
        return {name: (("seed", "n_samples", "restart"), array[-1].reshape(shape)) for name, array in found.items()}

    return sweep(student, model=STUDENTS).assign_coords(n_samples=list(n_samples))


@teachers.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    flat, mask, attention, uniform = best(data).isel(n_samples=-1).transpose("model", ...)
    known = {"baseline": flat, "global_attention": mask}
    return {
        "GA-T2-self": known | {"self_attention": attention},
        "GA-T2-floor": known,
        "GA-X-attention-needed": {"uniform_attention": uniform, "self_attention": attention},
    }


def best(data: xr.Dataset) -> xr.DataArray:
    """Return the test error of the restart with the smallest training loss."""
    return data.test_loss.isel(restart=data.train_loss.argmin("restart"))


@experiment("global_attention.larger_space", budget=60, smoke={"n_test": 50, "steps": 5, "seeds": (0, 1)})
def larger_space(
    seeds: Seeds = (0, 1, 2),
    teacher_width: PositiveInt = 8,  # hidden units of a teacher
    n_relevant: PositiveInt = 6,  # entries of a sample, of 30, that the mask of a flat teacher keeps
    n_test: PositiveInt = 4000,  # test samples
    step_size: PositiveFloat = 5e-3,  # of Adam, falling to zero along a cosine; the same for all
    batch_size: PositiveInt = 64,  # samples per step, none of them seen twice
    steps: PositiveInt = 4000,  # of training
    restarts: PositiveInt = 2,  # initial weights of self-attention; the smallest test loss counts
) -> xr.Dataset:
    """More units, more layers, and attention on labels of a flat teacher: all on samples that are never seen twice."""
    width, block = sizes(teacher_width), 100  # samples of so many steps are drawn at a time
    made: dict[str, list[Any]] = {
        "attention": [("self_attention", draw_teacher(width, stream(s, "teacher"))) for s in seeds],
        "flat": [("global_attention", draw_flat_teacher(width, stream(s, "flat teacher"), n_relevant)) for s in seeds],
    }

    def student(name: str) -> dict[str, Any]:
        of, model, units = FRESH[name]
        tries = restarts if model == "self_attention" else 1
        members = [(i, restart) for i in range(len(seeds)) for restart in range(tries)]
        test = labelled(made[of], seeds, n_test, "test inputs")
        tested = [(test[0][i], test[1][i]) for i, _ in members]
        weights = [initial_parameters(model, seeds[i], restart, sizes(units)) for i, restart in members]
        drawn: dict[int, tuple[Tensor, Tensor]] = {}

        def batch(step: int) -> tuple[Tensor, Tensor]:
            number, within = divmod(step, block)
            if number not in drawn:
                drawn.clear()
                drawn[number] = labelled(made[of], seeds, block * batch_size, "fresh inputs", number)
            here = slice(within * batch_size, (within + 1) * batch_size)
            inputs, labels = (x[:, here].repeat_interleave(tries, 0) for x in drawn[number])
            return inputs, labels

        ends = lambda p: {"test_loss": own_errors(partial(predict, model), p, tested)}  # noqa: E731
        loss = fit(model, weights, batch, step_size, steps, ends)["test_loss"][-1]
        return {"test_loss": ("seed", loss.reshape(len(seeds), tries).min(1))}

    return sweep(student, student=list(FRESH))


@larger_space.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    narrow, wide, layers, flat, attention = (data.test_loss.sel(student=name) for name in FRESH)
    return {
        "GA-T2-wider": {"narrow": narrow, "wide": wide, "three_layers": layers},
        "GA-A9-expressive": {"flat": flat, "self_attention": attention},
    }


REVIEWS_SMOKE = {
    "reviews": "synthetic", "vectors": "", "dimension": 8, "n_positions": 40, "width": 8, "sizes": (6, 12),
    "n_test": 30, "batch_size": 16, "seeds": (0, 1)
}  # fmt: skip


@experiment(
    "global_attention.imdb",
    group=1,
    smoke=REVIEWS_SMOKE | {"epochs": 1},
    full={"n_positions": 2142, "width": 256, "sizes": PAPER_SIZES, "n_test": 5000, "seeds": (0, 1, 2, 3, 4)},
    paper_size=True,
)
def imdb(
    seeds: Seeds = (0, 1, 2),
    reviews: Source = "imdb",  # or "synthetic", the reviews that come with the package
    vectors: str = "imdb_ppmi_svd_100d",  # name of the word vectors; the paper's, GloVe 6B, are glove6B_100d
    dimension: PositiveInt = 100,  # entries of a word vector; 100 in the paper
    n_positions: PositiveInt = 200,  # positions after padding, 2142 in the paper; longer reviews are cut
    width: PositiveInt = 64,  # hidden units; 256 in the paper
    sizes: Counts = (437, 875),  # training reviews
    n_test: PositiveInt = 1000,  # test reviews, the same for all networks and seeds
    epochs: PositiveInt = 5,  # the paper does not say how long it trains
    step_size: PositiveFloat = 1e-3,  # of Adam
    batch_size: PositiveInt = 64,  # reviews per step
) -> xr.Dataset:
    """Table 2 and its control, on real reviews (needs them: see `attnbook data`), at equal epochs."""
    corpus = load_corpus(reviews, vectors, dimension=dimension, n_positions=n_positions, n_test=n_test)
    shape = ReviewShape(n_positions, dimension, width)

    def cell(size: int, network: Any) -> dict[str, Any]:
        ends = [epoch * -(-size // batch_size) for epoch in range(1, epochs + 1)]
        return learned(corpus, shape, network, seeds, size, (step_size, batch_size), ends).rename(step="epoch")

    return sweep(cell, size=sizes, network=NETWORKS).assign_coords(epoch=range(1, epochs + 1))


@imdb.measures
def _(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    settings = data.attrs["settings"]
    if settings["reviews"] != "imdb" or settings["sizes"] != list(PAPER_SIZES):
        return {}  # a part of the table, or other reviews
    final = data.test_accuracy.isel(epoch=-1)
    flat, attention = final.sel(network="baseline"), final.sel(network="self_attention")
    cells = {f"{name}_{n}": final.sel(network=name, size=n) for name in NETWORKS[:2] for n in PAPER_SIZES}
    error = [abs(cells[name].median() - value) for name, value in ledger.claim("GA-TAB2").paper_value.items()]
    lead, few, many = attention - flat, attention.sel(size=875), flat.sel(size=7000)
    leads = {"smallest_lead": lead.min("size"), "smallest_lead_few": lead.sel(size=slice(None, 3500)).min("size")}
    ahead = {"seeds_ahead": (few > many).sum(), "seeds": xr.DataArray(few.sizes["seed"])}
    shown = {"self_attention_875": few, "baseline_3500": flat.sel(size=3500), "baseline_7000": many}
    largest = {"largest_error": xr.concat(error, "cell").max()}
    return {"GA-TAB2": cells | largest, "GA-TAB2-order": leads, "GA-TAB2-headline": shown | ahead}


@experiment(
    "global_attention.equal_steps",
    group=1,
    smoke=REVIEWS_SMOKE | {"read_at": (2, 3)},
    full={
        "reviews": "imdb", "vectors": "imdb_ppmi_svd_100d", "dimension": 100, "n_positions": 128, "width": 64,
        "sizes": (875, 17_500), "step_size": 3e-3, "read_at": (70, 280, 560, 1000, 1400), "seeds": (0, 1, 2),
    },
)  # fmt: skip
def equal_steps(
    seeds: Seeds = (0, 1, 2),
    reviews: Source = "synthetic",  # or "imdb", real ones
    vectors: str = "",  # name of the word vectors; those of synthetic reviews are trained on the spot
    dimension: PositiveInt = 24,  # entries of a word vector
    n_positions: PositiveInt = 256,  # positions after padding; longer reviews are cut
    width: PositiveInt = 32,  # hidden units
    sizes: Counts = (300, 1200),  # training reviews
    n_test: PositiveInt = 1000,  # test reviews, the same for all networks and seeds
    step_size: PositiveFloat = 9e-3,  # of Adam
    batch_size: PositiveInt = 32,  # reviews per step
    read_at: Counts = (10, 40, 80, 150),  # steps at which all are tested
) -> xr.Dataset:
    """Table 2 at equal numbers of steps: what follows the reviews, and what follows the steps?"""
    corpus = load_corpus(reviews, vectors, dimension=dimension, n_positions=n_positions, n_test=n_test)
    shape = ReviewShape(n_positions, dimension, width)

    def cell(size: int, network: Any) -> xr.Dataset:
        return learned(corpus, shape, network, seeds, size, (step_size, batch_size), read_at)

    return sweep(cell, size=sizes, network=NETWORKS)


@equal_steps.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    if data.attrs["settings"]["reviews"] != "imdb":
        return {}
    flat, attention, uniform = (data.test_accuracy.sel(network=name) for name in NETWORKS)
    gain, early = attention - uniform, {"step": 0}
    return {
        "GA-X-steps": {
            "largest_gain_early": abs(gain.isel(early)).max("size"),
            "smallest_lead_early": (uniform - flat).isel(early).min("size"),
            "gain_few_late": gain.isel(step=-1, size=0),
            "gain_many_late": gain.isel(step=-1, size=-1),
        }
    }


def learned(
    corpus: Corpus, shape: ReviewShape, network: Any, seeds: Seeds, size: int, how: tuple[float, int], read_at: Any
) -> xr.Dataset:
    """Train a network for each seed on its own choice of reviews; test it after some numbers of steps."""
    if size > len(corpus.train):
        raise ValueError(f"sizes: expected at most {len(corpus.train)}, the training reviews, got {size}")
    (step_size, batch_size), read_at = how, list(read_at)
    vectors, found = to_tensor(corpus.vectors, device=device()), np.empty((len(seeds), len(read_at)))
    for i, seed in enumerate(seeds):
        chosen = stream(seed, "training reviews").permutation(len(corpus.train))[:size]
        reviews, trained = corpus.train.take(chosen), ReviewNetwork(network, shape, vectors, seed=seed)
        optimizer = torch.optim.Adam(trained.groups(step_size), fused=True)
        for step, batch in enumerate(batches(size, batch_size, seed, read_at[-1]), 1):
            if not np.isfinite(trained.step(reviews, batch)):
                raise FloatingPointError(f"{network}, seed {seed}, {size} reviews: no finite loss in step {step}")
            optimizer.step()
            if step in read_at:
                found[i, read_at.index(step)] = trained.accuracy(corpus.test)
    return xr.Dataset({"test_accuracy": (("seed", "step"), found)}, {"step": read_at})


def batches(n_reviews: int, batch_size: int, seed: int, steps: int) -> Iterator[np.ndarray]:
    """Yield the reviews of each step: all once in random order, then all again, the same for every network."""
    epoch_steps = -(-n_reviews // batch_size)
    for step in track(range(steps)):
        epoch, within = divmod(step, epoch_steps)
        order = stream(seed, "batches", n_reviews, epoch).permutation(n_reviews)
        yield order[within * batch_size : (within + 1) * batch_size]


LOOKS = {
    "baseline": Look("flat", "#5b5f66", "--", "s"),
    "self_attention": Look("self-attention", "#0b5cad", "-", "o"),
    "uniform_attention": Look("uniform attention", "#a16207", "-.", "P", hollow=True),  # lies on top of self-attention
    "global_attention": Look("global mask", "#7c3aed", ":", "D"),
}
ACCURACY, REVIEWS = "test accuracy (%)", "training reviews"


def table(data: xr.Dataset) -> Figure:
    """Draw the paper's Table 2, and next to it ours with the network that cannot attend."""
    import matplotlib.pyplot as plt

    cells = ledger.claim("GA-TAB2").paper_value
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.3), sharex=True, sharey=True)
        for network in NETWORKS[:2]:
            axes[0].plot(PAPER_SIZES, [cells[f"{network}_{n}"] for n in PAPER_SIZES], **LOOKS[network].line_style())
        curves(axes[1], data.test_accuracy.isel(epoch=-1, drop=True), "size", "network", LOOKS)
        axes[0].set(title="the paper", ylabel=ACCURACY)
        axes[1].set(title="this book")
        for ax in axes:
            log_axis(ax, (875, 3500, 17_500), REVIEWS, ",")
        axes[1].legend(fontsize=9.5, loc="lower right")
    return figure


def gains(data: xr.Dataset) -> xr.DataArray:
    """Return by how much trained attention is ahead of uniform attention, and after how many steps."""
    gain = data.test_accuracy.sel(network="self_attention") - data.test_accuracy.sel(network="uniform_attention")
    per_epoch = np.ceil(data["size"] / data.attrs["settings"]["batch_size"])
    return gain.assign_coords(steps=per_epoch * data.epoch)


def gain_frame(data: xr.Dataset, epoch: int) -> Figure:
    """Draw what attention adds, up to some epoch, against the number of steps: a line for each number of reviews."""
    import matplotlib.pyplot as plt

    gain = gains(data).median("seed")
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.3))
        for n, color in zip(data["size"].values, plt.get_cmap("viridis_r")(np.linspace(0.1, 1, 8)), strict=False):
            line = gain.sel(size=n, epoch=slice(None, epoch))
            ax.plot(line.steps, line, color=color, marker="o", linestyle="-", label=f"{n:,}")
        ax.axhline(0, color=INK, linewidth=1, linestyle=":")
        ax.set(xlim=(10, 2000), ylim=(-0.6, 2.5), xscale="log", xlabel="optimiser steps", ylabel="gain (points)")
        figure.legend(*ax.get_legend_handles_labels(), title=REVIEWS, loc="outside right upper", fontsize=9.5)
    return figure


def gain_text(data: xr.Dataset, epoch: int) -> str:
    """Say the steps and the gain of one picture of the slider for a few numbers of reviews."""
    gain = gains(data).median("seed").sel(epoch=epoch)
    said = [
        f"{float(g):.1f} with {n} reviews ({float(g.steps):.0f} steps)"
        for n, g in zip(gain["size"].values, gain, strict=True)
    ]
    return f"Epoch {epoch}, gain in points: " + ", ".join(said[i] for i in (0, 2, -1)) + "."


def by_steps(data: xr.Dataset) -> Figure:
    """Draw the accuracy of the three networks against the number of steps, for few reviews and for many."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(1, data.sizes["size"], figsize=(7.2, 3.1), sharey=True)
        for ax, n in zip(axes, data["size"].values, strict=True):
            curves(ax, data.test_accuracy.sel(size=n, drop=True), "step", "network", LOOKS)
            ax.set(xscale="log", title=f"{n:,} reviews", xlabel="optimiser steps")
            ax.set_xticks(data.step.values[::2], [f"{step}" for step in data.step.values[::2]])
            ax.minorticks_off()
        axes[0].set_ylabel(ACCURACY)
        axes[-1].legend(fontsize=9.5)
    return figure


def students(data: xr.Dataset) -> Figure:
    """Draw the error of each student on each teacher, and of every restart, at the largest number of samples."""
    import matplotlib.pyplot as plt

    at, places = data.isel(n_samples=-1), np.arange(data.sizes["seed"])
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.2))
        for j, model in enumerate(STUDENTS):
            look, x = LOOKS[model], places + 0.18 * (j - 1.5)
            one, marks = at.sel(model=model), {"color": look.color, "linestyle": "none"}
            ax.plot(x, one.test_loss.transpose("seed", "restart"), marker="_", markersize=9, **marks)
            ax.plot(x, best(one), marker=look.marker, markersize=7, label=look.label, **marks)
        ax.axhline(1, color=INK, linewidth=1, linestyle=":")
        ax.set(yscale="log", xlabel="teacher", ylabel="share of the label variance")
        ax.set_xticks(places, [str(seed) for seed in data.seed.values])
        figure.legend(fontsize=10, ncols=4, loc="outside upper center")
    return figure


def padding_with_biases(answer: Callable[..., Any]) -> str | None:
    """Check the outputs at the words of a padded review when keys and values have biases."""
    rng = stream(1, "exercise", "GA-S1")
    queries, keys, values = rng.standard_normal((3, 4)), rng.standard_normal((3, 4)), rng.standard_normal((3, 2))
    key_bias, value_bias, n_positions = rng.standard_normal(4), rng.standard_normal(2), 11
    powers, pads = np.exp(queries @ keys.T), np.exp(queries @ key_bias)[:, None]

    def outputs(count: float = n_positions - 3, empty: np.ndarray = pads, bias: np.ndarray = value_bias) -> np.ndarray:
        return (powers @ values + count * empty * bias) / (powers.sum(1, keepdims=True) + count * empty)

    right, given = outputs(), (queries, keys, values, key_bias, value_bias)
    likely = {
        "padding is missing: its key is the bias of the keys, its value that of the values": outputs(count=0),
        "the score of padding is not 0 any more: it is the query times the bias of the keys": outputs(empty=pads**0),
        "padding has a value now, the bias: it belongs into the numerator as well": outputs(bias=0 * value_bias),
        "there are n_positions minus the number of words padded positions, not n_positions": outputs(count=n_positions),
        "every padded position counts, not one in all": outputs(count=1),
    }
    return verdict(answer(*(array.copy() for array in given), n_positions), right, likely, "one output per word")


def bag_of_words_step(answer: Callable[..., Any]) -> str | None:
    """Check how one step of a flattened layer moves the sum of its matrices when all its inputs are equal."""
    rng = stream(1, "exercise", "GA-S3")
    pooled, delta = rng.standard_normal((6, 4)), rng.standard_normal((6, 3))
    n_positions, step_size = 11, 0.1
    gradient = pooled.T @ delta
    alone = -step_size * np.sign(gradient)
    right = n_positions * alone
    likely = {
        "this is how one of the matrices moves; their sum moves n_positions times as far": alone,
        "the step goes against the gradient: the sign is reversed": -right,
        "the first step of Adam is the step size in every entry: take the sign of the gradient": right * abs(gradient),
        "this is the gradient of one matrix, not a step": gradient,
    }
    got = answer(pooled.copy(), delta.copy(), n_positions, step_size)
    return verdict(got, right, likely, "the change of the sum")


CHECKS = {"GA-S1": padding_with_biases, "GA-S3": bag_of_words_step}
