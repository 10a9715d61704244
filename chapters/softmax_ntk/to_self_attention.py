"""To self-attention: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream, to_tensor
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, highest, listening, lowest, sweep, track
from attnbook.show import INK, Look, band, curves, legend_above, log_axis, own_lines, style
from attnbook.softmax_ntk.self_attention import draw_layer, draw_planted, layer_loss, outputs, row_jacobian
from attnbook.train import SGD, Adam, autograd, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Values: TypeAlias = dict[str, Any]
SHOWN = 50  # labels of the kernels that the slider shows
FITTED = 1e-6  # relative loss below which a layer counts as fitted
PROBLEMS = {"plain": {}, "common_mean": {"mean_norm": 2.0}, "sharp": {"sharpness": 8.0}}
ADAM = partial(Adam, eps=1e-12)
WAYS: dict[str, tuple[str, Any]] = {
    "alternating": ("solved", SGD),
    "joint_from_zero": ("trained", SGD),
    "frozen": ("signs", SGD),
    "alternating_adam": ("solved", ADAM),
    "joint_adam": ("trained", ADAM),
}  # what is done with the values (if nothing, which they are), and the optimiser
GAINS = {
    "solving": ("joint_from_zero", "alternating"),
    "solving_adam": ("joint_adam", "alternating_adam"),
    "adam": ("alternating", "alternating_adam"),
}  # without, and with


@experiment(
    "softmax_ntk.layer_as_network",
    needs="cpu",
    smoke={"labels": (3, 11), "lengths": (4, 7), "dimension": 3, "seeds": (0, 1)},
)
def layer_as_network(
    seeds: Seeds = (0, 1, 2, 3, 4),
    labels: Counts = (5, 10, 20, 30, 50, 100, 200),  # one for each sequence, for its first token
    lengths: Counts = (8, 32, 128),  # tokens of a sequence: the neurons of a row
    dimension: PositiveInt = 5,  # entries of a token
) -> xr.Dataset:
    """How many coin flips a layer can fit by its key-query matrix, and a network whose neurons are free."""
    from scipy.optimize import least_squares

    def one(free: bool, averaged: bool, seed: int, count: float, length: float) -> Values:
        row, start = draw_rows(seed, int(count), int(length), dimension, free)
        factor = 1 / length if averaged else 1.0  # of `row`, which has the network's factor already
        target = stream(seed, "coins").choice([-1.0, 1.0], int(count)) + factor * row(start)[0]
        found = least_squares(
            lambda x: factor * row(x)[0] - target, start, lambda x: factor * row(x)[1],
            ftol=1e-15, xtol=1e-15, gtol=1e-15, max_nfev=200,
        )  # fmt: skip
        first, last = row(start)[1], row(found.x)[1]
        kernel, rank = first @ first.T, np.linalg.matrix_rank(first, rtol=1e-9)
        change = np.linalg.norm(last @ last.T - kernel) / np.linalg.norm(kernel)
        return {"left": 2 * found.cost / count, "change": change, "rank": rank}

    kinds = track([((False, False), lengths), ((True, False), lengths[-1:]), ((False, True), lengths)])
    layer, free, averaged = (sweep(partial(one, *kind), seed=seeds, labels=labels, length=some) for kind, some in kinds)
    named = {f"{name}_averaged": averaged[name] for name in ("left", "change")}
    return layer.assign(left_free=free.left.isel(length=0, drop=True), **named)


@layer_as_network.measures
def _(data: xr.Dataset) -> Values:
    most, weights = data.isel(labels=-1), data.attrs["settings"]["dimension"] ** 2
    few = data.left.where(data.labels < weights / 2)
    over = most.left / (1 - weights / most.labels)
    return {
        "SN-H-kernel": {
            "lowest_rank": lowest(most["rank"]), "highest_rank": highest(most["rank"]),
            "weights": xr.DataArray(weights), "left_few": few.max(("labels", "length")),
            "over_law_least": over.min("length"), "over_law_most": over.max("length"),
            "left_free": most.left_free,
        }
    }  # fmt: skip


def draw_rows(seed: int, count: int, length: int, dimension: int, free: bool = False) -> Any:
    """Return rows of a layer as a function of its matrix, and a matrix; with one-hot keys the neurons are free."""
    start, value = draw_layer(dimension, 1, rng=stream(seed, "layer", dimension))
    tokens = stream(seed, "kernel", count, length).standard_normal((count, length, dimension))
    if not free:
        return partial(row_jacobian, tokens[:, 0], tokens, tokens @ value[:, 0]), start.ravel()
    rng, keys = stream(seed, "free neurons", length), np.broadcast_to(np.eye(length), (count, length, length))
    return partial(row_jacobian, tokens[:, 0], keys, rng.choice([-1.0, 1.0], (1, length))), rng.standard_normal(
        dimension * length
    )


@experiment(
    "softmax_ntk.planted_attention",
    group=24,
    needs="float64",
    smoke={
        "sequences": 7, "length": 5, "dimension": 3, "answers": 2, "steps": 12,
        "tuning_seeds": (100,), "seeds": (0, 1),
    },
    full={
        "sequences": 256, "length": 16, "dimension": 11, "answers": 7, "steps": 1000,
        "tuning_seeds": tuple(range(100, 124)),
    },
)  # fmt: skip
def planted_attention(
    seeds: Seeds = tuple(range(24)),
    sequences: PositiveInt = 16,
    length: PositiveInt = 8,  # tokens of a sequence
    dimension: PositiveInt = 5,  # entries of a token
    answers: PositiveInt = 3,  # outputs of a token
    steps: PositiveInt = 200,  # gradients of the key-query matrix: the budget
    target: PositiveFloat = 1e-2,  # loss to reach, over that of the zero output
    key_query_steps: Increasing = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.2, 3.3),  # step sizes that are tried
    value_steps: Increasing = (0.25, 0.5, 1.0, 2.0),  # of the values, over the tokens' largest second moment
    adam_steps: Increasing = (0.03, 0.05, 0.1, 0.2, 0.4),  # of Adam, the same for both matrices
    tuning_seeds: Seeds = (100, 101, 102, 103),  # on which step sizes are chosen
) -> xr.Dataset:
    """A student layer looks for a teacher layer: values solved, trained or frozen, by descent and by Adam."""
    recorded = np.unique(np.geomspace(1, steps + 1, 24).round().astype(int) - 1)

    def trained(problem: str, way: str, seeds: Sequence[int], pairs: list[Any]) -> Any:
        shape = (sequences, length, dimension)
        each = [draw_planted(seed, shape, answers, **PROBLEMS[problem]) for seed in seeds for _ in pairs]
        made = {
            name: to_tensor(np.stack([one[name] for one in each]), device=device(), dtype=torch.float64)
            for name in each[0]
        }
        return made["key_query"], train_layers(made, *WAYS[way], np.array(pairs * len(seeds)), steps)

    def one(problem: str, way: str) -> Values:
        rates = adam_steps if "adam" in way else key_query_steps
        pairs = [*product(rates, value_steps if way == "joint_from_zero" else (1.0,))]
        with listening(lambda share: None):
            loss = trained(problem, way, tuning_seeds, pairs)[1].records["loss"]
        score = steps_to(loss, target) + 1e-9 * np.log(loss[-1])  # the last loss decides where counts are equal
        best = pairs[int(score.reshape(-1, len(pairs)).mean(0).argmin())]
        planted, history = trained(problem, way, seeds, [best])
        loss, off = history.records["loss"], history.parameters["key_query"] - planted
        distance = off.norm(dim=(1, 2)) / planted.norm(dim=(1, 2))
        return {
            "loss": (("seed", "step"), loss[recorded].T),
            "evaluations": ("seed", steps_to(loss, target)),
            "distance": ("seed", distance.cpu()),
        }

    return sweep(one, problem=PROBLEMS, way=WAYS).assign_coords(step=recorded)


@planted_attention.measures
def _(data: xr.Dataset) -> Values:
    counts = {problem: data.evaluations.sel(problem=problem) for problem in PROBLEMS}
    reached = {
        f"share_reached_{problem}": (count.sel(way="alternating") <= data.attrs["settings"]["steps"]).mean("seed")
        for problem, count in counts.items()
    }
    gains = {
        f"{gain}_{problem}": count.sel(way=without) / count.sel(way=having)
        for gain, (without, having) in GAINS.items()
        for problem, count in counts.items()
    }  # seed by seed; a miss counts as one more than the budget
    plain = data.sel(problem="plain").drop_sel(way="frozen")
    distance = highest(plain.distance.where(plain.loss.isel(step=-1) < FITTED, 0.0))
    return {"SN-H-alternating": {**reached, "distance_where_fitted": distance, **gains}}


def train_layers(made: Mapping[str, Tensor], values: str, rule: Any, pairs: np.ndarray, steps: int) -> Any:
    """Train layers, each with its own pair of step sizes, that of the values over the tokens' largest moment."""
    tokens, labels = made["tokens"], outputs(made["key_query"], made["value"], made["tokens"])
    flat, zero = tokens.flatten(1, 2), labels.square().sum((1, 2)) / (2 * labels.shape[1])
    largest = torch.linalg.eigvalsh(flat.mT @ flat / flat.shape[1])[:, -1]
    scale = (torch.from_numpy(pairs[:, 1] / pairs[:, 0]).to(largest) / largest) ** (0.5 if rule is SGD else 0)
    start = {"key_query": made["start"]}
    if values == "trained":
        start["value"] = 0 * made["value"]

    def loss(now: dict[str, Tensor], _: Any = None) -> Tensor:
        # in this scale descent on both matrices takes steps of its own with each
        value = scale[:, None, None] * now["value"] if "value" in now else made.get(values)
        return layer_loss(now["key_query"], value, tokens, labels)

    return train(
        autograd(loss),
        start,
        optimizer=rule(pairs[:, 0].tolist()),
        steps=steps,
        record=lambda now: {"loss": loss(now) / zero},
        record_at=range(steps + 1),
        on_divergence="record",
    )


def steps_to(loss: np.ndarray, target: float) -> np.ndarray:
    """Return the steps until each loss is first at the target; the number of records where it never is."""
    return np.cumprod(loss > target, axis=0).sum(0)


FREE = Look("network, 128 free neurons", "#5b5f66", "--", "s")
PLAIN = Look("128 keys, no factor", "#7c3aed", (0, (3, 1, 1, 1)), "D")
LOOKS = {
    "alternating": Look("alternating", "#0b5cad", "-", "o"),
    "joint_from_zero": Look("together", "#c2410c", "-.", "^"),
    "frozen": Look("values frozen at random signs", "#5b5f66", ":", "s"),
    "alternating_adam": Look("alternating, Adam", "#15803d", (0, (5, 1)), "v"),
}
ALT = {
    "labels": "Part of the loss that is left by number of labels: with the factor zero up to 20 labels for 8, 32 and "
    "128 keys, then about the same rising curve; without it a little at 20 labels and less at many; zero throughout for "
    "a network of 128 free neurons.",
    "race": "Loss by gradients: alternating is ahead of training both together, and with values frozen at random signs "
    "the loss stays near its start.",
    "rivals": "Loss by gradients: AdamW levels off, momentum ends about as low as Adam.",
}


def by_labels(data: xr.Dataset) -> Figure:
    """Draw the part of the loss that is left by the number of labels, of layers and of a network of free neurons."""
    import matplotlib.pyplot as plt

    counts, weights = data.labels.values, data.attrs["settings"]["dimension"] ** 2
    many = np.geomspace(weights, counts[-1])
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        curves(ax, data.left, "labels", "length", label="{0} keys, times {0}")
        band(ax, counts, data.left_averaged.isel(length=-1).values, PLAIN)
        band(ax, counts, data.left_free.values, FREE)
        ax.plot(many, 1 - weights / many, color=INK, linestyle=":", label=f"1 \N{MINUS SIGN} {weights} / labels")
        log_axis(ax, counts, "labels from a coin")
        ax.set(ylabel="loss left / loss at the start")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def eigenvalues(dimension: int, length: int) -> np.ndarray:
    """Return the eigenvalues of the kernel of a layer over the largest, in falling order."""
    row, start = draw_rows(0, SHOWN, length, dimension)
    slopes = row(start)[1]
    found = np.linalg.eigvalsh(slopes @ slopes.T)[::-1]
    return np.maximum(found / found[0], 1e-17)


def spectrum(dimension: int, length: int) -> Figure:
    """Draw the eigenvalues of the kernel of a layer."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(6.6, 2.9))
        ax.plot(range(1, SHOWN + 1), eigenvalues(dimension, length), "o", color=LOOKS["alternating"].color)
        ax.set(yscale="log", ylim=(1e-18, 3), xlabel="number of the eigenvalue", ylabel="eigenvalue / largest")
    return figure


def spectrum_text(dimension: int, length: int) -> str:
    """Count the eigenvalues that are not zero."""
    count = (eigenvalues(dimension, length) > 1e-12).sum()
    return f"{dimension} entries in a token, {length} keys: {count} of {SHOWN} eigenvalues are not zero."


def race(data: xr.Dataset, yours: Values | None = None, problem: str = "plain") -> Figure:
    """Draw the loss against gradients of the key-query matrix, and the reader's own lines."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        curves(ax, data.loss.sel(problem=problem, way=list(LOOKS)), "step", "way", LOOKS)
        own_lines(ax, yours)
        ax.set(yscale="log", xlabel="gradients", ylabel="loss / loss of zero")
        legend_above(ax, ncols=2, fontsize=9.5)
    return figure


def first_layer(answer: Callable[..., Any]) -> str | None:
    """Check the first layer of the network that one row of self-attention is."""
    rng = stream(1, "exercise", "SN-16")
    tokens, query, key = (rng.standard_normal(shape) for shape in ((7, 5), (5, 2), (5, 2)))
    right = query @ key.T @ tokens.T
    likely = {
        "queries and keys are exchanged: the query is the input, the keys are in the weights": key @ query.T @ tokens.T,
        "a scale is in: the paper's layer has none": right / np.sqrt(2),
    }
    return verdict(answer(tokens.copy(), query.copy(), key.copy()), right, likely, "one column per neuron")


def one_matrix(answer: Callable[..., Any]) -> str | None:
    """Check the gradient of the matrix that makes all neurons."""
    rng = stream(1, "exercise", "SN-18")
    tokens, gradients = rng.standard_normal((7, 5)), rng.standard_normal((7, 5))
    right = gradients.T @ tokens
    likely = {
        "transposed: M x has the neuron's entries as rows": right.T,
        "this is the mean over the neurons, not their sum": right / 7,
    }
    return verdict(answer(tokens.copy(), gradients.copy()), right, likely, "one matrix, as large as M")


CHECKS = {"SN-16": first_layer, "SN-18": one_matrix}
