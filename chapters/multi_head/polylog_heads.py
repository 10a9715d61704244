"""Training and test loss with polylog heads: the experiments of the chapter, its claims, pictures and exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.ensemble import History, Parameters
from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Seeds, device, experiment, highest, slope, sweep
from attnbook.multi_head import layer, starts
from attnbook.multi_head.data import Drawn, Mixture, draw
from attnbook.multi_head.generalisation_bounds import target_distance
from attnbook.multi_head.measures import relevant_mass
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.realizability import nearest_targets
from attnbook.multi_head.tangent_kernel import tangent_margin
from attnbook.show import INK, Look, band, log_axis, own_lines, style
from attnbook.train import SGD, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

PAGE = Mixture(10, 10, 4, 1.0, 0.2, 0.05, 0.05, 0.3)  # the data of the page
HEADS: dict[str, Callable[[float], float]] = {
    "4": lambda n: 4.0,
    "16": lambda n: 16.0,
    "64": lambda n: 64.0,
    "256": lambda n: 256.0,
    "log^4 n": lambda n: math.log(n) ** 4,
    "log^6 n": lambda n: math.log(n) ** 6,
}  # numbers of heads, by what they are called
PRINTED, TRACKED, FEW = "log^6 n", "log^4 n", "4"
LAST = slice(-3, None)  # sizes whose slopes count: with fewer samples so few steps leave the loss near log 2
NO_GAP = 1e-12  # what counts as the mean gap where there is none


class Wide(NamedTuple):
    """Samples, and networks of two groups of equal heads as the first phase leaves them; a member for each seed."""

    start: Parameters
    counts: Tensor
    tokens: Tensor
    labels: Tensor

    def loss(self, networks: Parameters, on: Drawn | None = None) -> Tensor:
        """Return the loss of one network of each member, on its own samples or on others."""
        tokens, labels = on[:2] if on else (self.tokens, self.labels)
        return logistic(labels)(layer.outputs(networks, tokens, counts=self.counts))[0]

    def train(self, step_size: Any, steps: int, record: Callable[..., Any], at: Sequence[int] | None = None) -> History:
        """Train by gradient descent."""
        objective = logistic(self.labels)
        return train(
            lambda now, batch: layer.value_and_gradient(now, self.tokens, objective, counts=self.counts),
            self.start,
            optimizer=SGD(step_size),
            steps=steps,
            record=record,
            record_at=at,
        )


def wide(data: Mixture, n: int, seeds: Seeds, heads: Any, purpose: str = "samples", first_samples: int = 1000) -> Wide:
    """Draw samples and take the first phase; half of the heads have each sign, or as many as a row for each seed says."""
    first = draw(data, first_samples, seeds, purpose="first phase", device=device())
    tokens, labels, _ = draw(data, n, seeds, purpose=purpose, device=device())
    counts = torch.as_tensor(heads, dtype=tokens.dtype, device=tokens.device)
    if not counts.ndim:
        counts = (counts / 2).expand(len(tokens), 2)
    return Wide(starts.first_phase(first.tokens, first.labels), counts, tokens, labels)


@experiment(
    "multi_head.polylog_heads",
    group=3,
    budget=150,
    needs="float64",
    smoke={"sizes": (5, 10, 20), "test_samples": 40, "seeds": (0, 1)},
)
def polylog_heads(
    seeds: Seeds = tuple(range(6)),
    sizes: Counts = (20, 40, 80, 160, 320),  # numbers of training samples, and of steps
    step_size: PositiveFloat = 0.5,  # practical: neither made for the theorem nor tuned
    test_samples: PositiveInt = 2000,  # that the test loss is measured on
    first_samples: PositiveInt = 1000,  # of the first phase
) -> xr.Dataset:
    """Training and test loss after n steps on n samples, for numbers of heads that grow with n and some that do not."""
    test = draw(PAGE, test_samples, seeds, purpose="test", device=device())
    some = test.tokens[:, :200], test.relevant[:, :200]

    def drawn(n: float, rule: str) -> Wide:
        return wide(PAGE, int(n), seeds, HEADS[rule](n), f"samples {int(n)}", first_samples)

    def trained(rule: str, n: float) -> dict[str, Any]:
        nets = drawn(n, rule)
        last = nets.train(step_size, int(n), lambda now: {"loss": nets.loss(now)}, (int(n),)).parameters
        moved = (relevant_mass(last, *some) - PAGE.relevant_fraction).abs().amax(1)
        found = {"train_loss": nets.loss(last), "test_loss": nets.loss(last, test), "moved": moved}
        return {name: ("seed", tensor.cpu().numpy()) for name, tensor in found.items()}

    def target(n: float) -> dict[str, Any]:
        start, counts, *samples = drawn(n, PRINTED)
        near = nearest_targets(start, *samples, counts=counts, penalties=tuple(np.geomspace(0.1, 1e-6, 11)))
        return {
            "margin": ("seed", tangent_margin(start, *samples, counts=counts).margin),
            "needed": ("seed", near.distance_for(1 / n)),
        }

    return xr.merge([sweep(trained, rule=HEADS, n=sizes), sweep(target, n=sizes)])


@polylog_heads.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    eta, many, few = data.attrs["settings"]["step_size"], data.sel(rule=PRINTED), data.sel(rule=FEW)
    gap = (many.test_loss - many.train_loss).mean("seed").clip(min=NO_GAP)
    second = 17 * target_distance(steps=data.n, margin=data.margin) ** 2 / (eta * data.n)
    fourth = 4 / data.n * (2 + 9 * data.needed**2 / (4 * eta))
    apart = abs(data.sel(rule=TRACKED) / many - 1)
    slopes = {
        f"slope_{name}{end}": slope(one[f"{name}_loss"].mean("seed").isel(n=LAST), "n")
        for one, end in ((many, ""), (few, "_few"))
        for name in ("train", "test")
    }
    return {
        "MH-HEAD-rate": {name: slopes[name] for name in ("slope_train", "slope_test")},
        "MH-HEAD-few": {
            **{name: slopes[name] for name in ("slope_train_few", "slope_test_few")},
            "moved_few": few.moved.isel(n=-1),
            "moved_many": highest(many.moved),
            "apart_log4": highest(np.maximum(apart.train_loss, apart.test_loss)),
        },
        "MH-T2.1": {"slope_gap": slope(gap, "n"), "gap_smallest_n": gap[0], "gap_largest_n": gap[-1]},
        "MH-T2.2": {
            "smallest_slack": np.log10(second.min("seed") / gap).min(),
            "bound_smallest_n": second.isel(n=0),
            "bound_largest_n": second.isel(n=-1),
        },
        "MH-C4": {
            "smallest_slack": np.log10(fourth.mean("seed") / gap).min(),
            "smallest_bound": fourth.min("seed").min(),
        },
    }


TRAIN, TEST = "training loss", "test loss"
BY_HEADS = {
    PRINTED: Look("$\\log^6n$ heads", "#0b5cad", "-", "o"),
    TRACKED: Look("$\\log^4n$ heads", "#15803d", (0, (5, 1)), "v"),
    FEW: Look("4 heads", "#c2410c", "-.", "^"),
}
N, HEADS_LABEL, LOSS = "training samples n, and steps", "number of heads", "loss"


def losses(data: xr.Dataset, yours: Mapping[str, Mapping[float, float]] | None = None) -> Figure:
    """Draw losses against the number of samples for many and for few heads, and how many heads there are.

    Args:
        data: What :func:`polylog_heads` gave.
        yours: Name of a line of the reader's own to number of samples to loss; default none.

    Returns:
        The figure.
    """
    import matplotlib.pyplot as plt

    n = data.n.values
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), width_ratios=(1.35, 1))
        for rule in (PRINTED, FEW):
            look = BY_HEADS[rule]
            for name, text in (("train_loss", TRAIN), ("test_loss", TEST)):
                own = look if name == "train_loss" else replace(look, marker="s", hollow=True)
                values = data[name].sel(rule=rule).transpose("seed", "n").values
                band(left, n, values, replace(own, label=f"{text}, {look.label}"))
        left.plot(n, 16 / n, color=INK, linewidth=1, linestyle=":")
        left.annotate("slope of 1/n", (n[-2], 16 / n[-2]), xytext=(-4, 10), textcoords="offset points", fontsize=10)
        own_lines(left, yours)
        left.set(yscale="log", ylabel=LOSS)
        left.set_yticks([0.01, 0.03, 0.1, 0.3], ["0.01", "0.03", "0.1", "0.3"])
        left.minorticks_off()
        for rule, look in BY_HEADS.items():
            right.plot(n, [HEADS[rule](size) for size in n], **look.line_style())
        right.set(yscale="log", ylabel=HEADS_LABEL)
        right.legend(fontsize=9.5, loc="center left", bbox_to_anchor=(0, 0.36))
        for ax in (left, right):
            log_axis(ax, n, N)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=9.5)
    return figure


def heads_frame(data: xr.Dataset, rule: str) -> Figure:
    """Draw the losses of one number of heads, one picture of the slider."""
    import matplotlib.pyplot as plt

    n, one = data.n.values, data.sel(rule=rule)
    looks = {"train_loss": Look(TRAIN, "#0b5cad", "-", "o"), "test_loss": Look(TEST, "#c2410c", "-.", "s", hollow=True)}
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.3))
        for name, look in looks.items():
            band(ax, n, one[name].transpose("seed", "n").values, look)
        ax.plot(n, 10.7 / n, color=INK, linewidth=1, linestyle=":", label="10.7/n")
        ax.set(yscale="log", ylabel=LOSS, ylim=(8e-3, 0.6))
        log_axis(ax, n, N)
        ax.legend(fontsize=9.5)
    return figure


def heads_text(data: xr.Dataset, rule: str) -> str:
    """Say how fast the losses of one picture of the slider fall, and how far attention has moved."""
    one = data.sel(rule=rule)
    found = [float(slope(one[name].mean("seed").isel(n=LAST), "n")) for name in ("train_loss", "test_loss")]
    moved = float(one.moved.median("seed")[-1])
    return (
        f"{rule} heads: over the last three sizes the training loss has slope {found[0]:.2f}, the test loss {found[1]:.2f}; "
        f"attention on relevant tokens has moved by up to {moved:.4f}."
    )


def step_of_groups(answer: Callable[..., Any]) -> str | None:
    """Check one step of gradient descent on groups of equal linear heads."""
    rng = stream(1, "exercise", "MH-TB2")
    u, x = rng.standard_normal((3, 4)), rng.standard_normal((7, 4))
    y, counts, eta = rng.choice([-1.0, 1.0], 7), np.array([2.0, 5.0, 9.0]), 0.7
    root = counts.sum() ** 0.5

    def step(outputs: np.ndarray, factor: np.ndarray | float) -> np.ndarray:
        slopes = -y / (1 + np.exp(y * outputs)) / len(y)
        return u - eta * factor * np.broadcast_to(slopes @ x, u.shape)

    outputs = counts @ (u @ x.T) / root
    right = step(outputs, 1 / root)
    likely = {
        "a group moves like ONE of its heads: no factor m_g": step(outputs, counts[:, None] / root),
        "the gradient of a head carries 1/sqrt(H) too": step(outputs, 1.0),
        "each group counts as often as it has heads in the output": step(u.sum(0) @ x.T / root, 1 / root),
        "the loss is a mean over the samples": u - len(y) * (u - right),
        "the sign: descent subtracts the gradient": 2 * u - right,
    }
    got = answer(u.copy(), counts.copy(), x.copy(), y.copy(), eta)
    return verdict(got, right, likely, "an array of the new groups, like u,")


def left_out_gap(answer: Callable[..., Any]) -> str | None:
    """Check the estimate of the gap from the networks without one sample."""
    rng = stream(1, "exercise", "MH-GEN-1")
    full, reduced = rng.exponential(size=7), rng.exponential(size=(7, 7))
    own = np.diag(reduced)
    right, others = own.mean() - full.mean(), (reduced.sum() - own.sum()) / 42
    likely = {
        "left-out minus training loss, not the other way round": -right,
        "a network has not seen its own sample only: take the diagonal, not all samples": reduced.mean() - full.mean(),
        "those are the samples that the networks have seen": others - full.mean(),
        "this is the left-out loss; the training loss is to be subtracted": own.mean(),
        "signs cancel here: the gap is a mean of differences, not of their sizes": np.abs(own - full).mean(),
    }
    return verdict(float(answer(full.copy(), reduced.copy())), right, likely, "one number")


CHECKS = {"MH-TB2": step_of_groups, "MH-GEN-1": left_out_gap}
