"""A softmax network: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, highest, lowest, sweep
from attnbook.show import INK, Look, Table, band, curves, own_lines, spread, style
from attnbook.softmax_ntk.data import sphere
from attnbook.softmax_ntk.descent import gradient_descent
from attnbook.softmax_ntk.kernels import ACTIVATIONS, Activation, infinite_width_kernel
from attnbook.softmax_ntk.looks import LOOKS
from attnbook.softmax_ntk.ntk import ntk_gram
from attnbook.softmax_ntk.two_layer import Networks, Weights, draw_weights

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Values: TypeAlias = dict[str, Any]
ALIKE, DIFFERENT = 1.0, 0.5  # length of the shortest possible input; the longest has length 1


@experiment(
    "softmax_ntk.competition",
    group=1,
    budget=15,
    needs="cpu",
    smoke={"widths": (16, 64), "points": 3, "shown": 8, "seeds": (0, 1)},
)
def competition(
    seeds: Seeds = tuple(range(20)),  # with fewer a single heavy neuron decides
    widths: Counts = (256, 4096, 65536),  # even
    scales: Increasing = (0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 6, 8),  # standard deviation of initial weights
    points: PositiveInt = 32,  # unit inputs, over which the number at work is averaged
    inputs: PositiveInt = 6,  # their dimension
    shown: PositiveInt = 64,  # neurons of the network whose shares are kept, of one input
) -> xr.Dataset:
    """How the softmax shares its attention among random neurons, and how many of them that leaves at work."""

    def one(seed: int) -> xr.Dataset:
        x = sphere(points, inputs, rng=stream(seed, "points", points, inputs))

        def logits(width: float) -> np.ndarray:
            return x @ draw_weights(int(width), inputs, 1, rng=stream(seed, "weights", int(width))).first_layer

        drawn, few = {width: logits(width) for width in widths}, logits(shown)[0]
        sorted_shares = [np.sort(shares(scale * few))[::-1] for scale in scales]
        found = sweep(lambda m, s: {"at_work": at_work(s * drawn[m]).mean()}, width=widths, scale=scales)
        return found.assign(share=(("scale", "neuron"), sorted_shares))

    return sweep(one, seed=seeds)


@competition.measures
def _(data: xr.Dataset) -> Values:
    tail = np.sqrt(np.log(data.width / 2) / 2)  # where the formula has to fail
    ratio = data.at_work / expected(data.width, data.scale)
    first = data.scale.where(data.scale > tail).min("scale")
    frozen = data.at_work.isel(scale=-1)
    return {
        "SN-EFF": {
            "largest_deviation_below": highest(abs(ratio.where(data.scale <= tail / 2, 1) - 1)),
            "smallest_ratio_beyond": lowest(ratio.sel(scale=first)),
            "wide_over_narrow_frozen": frozen.isel(width=-1) / frozen.isel(width=0),
        },
    }


@experiment(
    "softmax_ntk.three_networks",
    group=5,
    budget=40,
    needs="float64",
    smoke={"samples": 5, "widths": (22, 64), "shown": 3, "most": 7, "seeds": (0, 1)},
)
def three_networks(
    seeds: Seeds = tuple(range(10)),
    widths: Counts = (64, 512, 4096),  # even
    scales: Increasing = (1.0, 2.0),  # standard deviation of initial weights; networks are trained at the first
    samples: PositiveInt = 16,  # with as many inputs, and coin flips as labels
    target: PositiveFloat = 1e-6,  # loss at which a network has arrived, over its first loss
    shown: PositiveInt = 100,  # steps whose losses are kept
    most: PositiveInt = 2000,  # steps after which it gives up
) -> xr.Dataset:
    """Softmax, exp and ReLU networks with the same weights: condition numbers, and steps of gradient descent."""

    def at(shortest: float, width: float, network: Activation) -> Values:
        drawn = [draw(seed, samples, int(width), shortest) for seed in seeds]
        x, y = (torch.as_tensor(np.stack(part), device=device()) for part in list(zip(*drawn, strict=True))[:2])
        start = Networks.stack(network, [weights for _, _, weights in drawn], device=device())
        kernels = [ntk_gram(replace(start, first_layer=scale * start.first_layer), x) for scale in scales]
        spectra = torch.linalg.eigvalsh(torch.stack(kernels)).cpu().numpy()
        losses, steps = descend(start, x, y, 1 / (width * spectra[0, :, -1]), target, shown, most)
        return {
            "condition": (("scale", "seed"), spectra[..., -1] / spectra[..., 0]),
            "loss": (("step", "seed"), losses), "steps": ("seed", steps),
        }  # fmt: skip

    found = sweep(at, shortest=(ALIKE, DIFFERENT), width=widths, network=ACTIVATIONS)
    return found.assign_coords(seed=list(seeds), scale=list(scales), step=range(shown + 1))


@three_networks.measures
def _(data: xr.Dataset) -> Values:
    over = (data.steps / data.steps.sel(network="softmax")).median("seed")  # of each width, median over seeds
    alike, different = (over.sel(shortest=shortest) for shortest in (ALIKE, DIFFERENT))
    condition = data.condition.sel(shortest=DIFFERENT).isel(width=-1)
    worse = condition.sel(network="exp") / condition.sel(network="softmax")
    return {
        "SN-SUPERIOR": {
            "least_exp_over_softmax": different.sel(network="exp").min(),
            "most_relu_over_softmax": different.sel(network="relu").max(),
            "least_relu_over_softmax_alike": alike.sel(network="relu").min(),
            "most_relu_over_softmax_alike": alike.sel(network="relu").max(),
            "exp_condition_over_softmax": worse.isel(scale=0),
            "exp_condition_over_softmax_heavy": worse.isel(scale=-1),
        },
    }


def draw(seed: int, samples: int, width: int, shortest: float) -> tuple[np.ndarray, np.ndarray, Weights]:
    """Draw inputs of uniform length up to 1, coin flips as labels, and weights in pairs."""
    rng = stream(seed, "three networks", samples)
    units, uniform = sphere(samples, samples, rng=rng), rng.uniform(size=(samples, 1))
    labels = rng.choice([-1.0, 1.0], (1, samples))
    weights = draw_weights(width, samples, 1, rng=stream(seed, "weights", width))
    return (shortest + (1 - shortest) * uniform) * units, labels, weights


def descend(
    networks: Networks, x: Any, y: Any, step_sizes: np.ndarray, target: float, shown: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first losses of gradient descent over the very first, and how many steps each network takes."""
    problem = networks, x, y, torch.as_tensor(step_sizes, device=x.device)
    first = gradient_descent(*problem, max_steps=shown).loss
    return first / first[0], gradient_descent(*problem, max_steps=most, target=target).steps


def at_work(logits: np.ndarray) -> np.ndarray:
    """Return the number of neurons at work, one over the sum of squared shares."""
    return 1 / np.square(shares(logits)).sum(-1)


def shares(logits: np.ndarray) -> np.ndarray:
    """Return the shares of the softmax over the last axis."""
    from scipy.special import softmax  # here, because a machine that only trains needs no scipy

    return softmax(logits, axis=-1)


def expected(width: Any, scale: Any) -> Any:
    """Return the number at work for unit inputs, as long as many neurons carry the sums."""
    return width * np.exp(-(scale**2))


WIDTHS = (Look("", "#7fb2e5", "-", "v"), Look("", "#0b5cad", "-", "o"), Look("", "#082c52", "-", "D"))
ALT = {
    "losses": "Loss over steps on a log axis, inputs of different lengths: ReLU falls fastest, then softmax, then exp.",
    "yours": "The same with your networks, each near its own line.",
    "surprise": "The absolute value falls faster than ReLU; softmax with weights twice as large is about as slow as exp.",
    "work": "Number of neurons at work by weight scale, for three widths: each falls along its formula, then bends; at "
    "scale eight all three are between two and ten.",
}


def losses(data: xr.Dataset, yours: Values | None = None) -> Figure:
    """Draw the losses of the three networks on inputs of different lengths, and losses of the reader's own."""
    import matplotlib.pyplot as plt

    loss = data.loss.sel(shortest=DIFFERENT).isel(width=1)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.9))
        curves(ax, loss.isel(step=slice(None, None, 5)), "step", "network", LOOKS)
        own_lines(ax, {name: dict(list(enumerate(line))[::5]) for name, line in (yours or {}).items()})
        ax.set(yscale="log", ylim=(1e-6, 3), xlabel="steps of gradient descent", ylabel="loss / first loss")
        figure.legend(loc="outside upper left", ncols=3)
    return figure


def share_frame(data: xr.Dataset, scale: float) -> Figure:
    """Draw the share of each neuron for one input, sorted."""
    import matplotlib.pyplot as plt

    share = 100 * data.share.isel(seed=0).sel(scale=scale)
    with style():
        figure, ax = plt.subplots(figsize=(6.4, 2.9))
        ax.bar(share.neuron + 1, share, width=0.8, color=LOOKS["softmax"].color)
        ax.axhline(100 / share.size, color=INK, linewidth=1.2, linestyle="--", label="equal shares")
        ax.set(ylim=(0, 50), xlim=(0, share.size + 1), xlabel="neurons, sorted by share", ylabel="share (%)")
        figure.legend(loc="outside upper left")
    return figure


def share_text(data: xr.Dataset, scale: float) -> str:
    """Return the numbers behind one picture of the slider."""
    share = data.share.isel(seed=0).sel(scale=scale)
    pair, number = 100 * float(share[:2].sum()), 1 / float((share**2).sum())
    said = f"the first pair has {pair:.2g} % of the attention; at work: {number:.3g} of {share.size} neurons"
    return f"Weight scale {scale:g}, this input: {said}."


def neurons_at_work(data: xr.Dataset) -> Figure:
    """Draw the number at work against the weight scale, with its formula."""
    import matplotlib.pyplot as plt

    fine = np.linspace(data.scale.values[0], 4, 60)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        for width, look in zip(data.width.values, WIDTHS, strict=False):
            look = replace(look, label=f"{width:g} neurons")
            band(ax, data.scale.values, data.at_work.sel(width=width).transpose("seed", "scale").values, look)
            ax.plot(fine, expected(width, fine), color=look.color, linestyle=":", linewidth=1.2)
            ax.plot(np.sqrt(2 * np.log(width / 2)), 1, "x", color=look.color, markersize=9, clip_on=False)
        ax.set(yscale="log", ylim=(1, 1.5e5), xlabel="weight scale", ylabel="neurons at work")
        figure.legend(loc="outside upper left", ncols=3)
    return figure


def race(data: xr.Dataset) -> Table:
    """Return condition numbers and steps of the three networks, for inputs of equal and of different length."""
    rows: list[list[Any]] = []
    for shortest, said in ((ALIKE, "all 1"), (DIFFERENT, "0.5 to 1")):
        for width in data.width.values:
            one = data.sel(shortest=shortest, width=width)
            cells = [spread(one.condition.isel(scale=0).sel(network=name), ".0f") for name in LOOKS]
            rows.append([said, f"{width:g}", *cells, *(spread(one.steps.sel(network=name), ".0f") for name in LOOKS)])
    labels = [look.label for look in LOOKS.values()]
    caption = f"{data.sizes['seed']} seeds: median [smallest, largest]."
    heads = [("", 2), ("condition number", 3), ("steps to a millionth of the first loss", 3)]
    return Table(["lengths", "neurons", *labels, *labels], rows, caption, heads)


def kernel_at_infinite_width(answer: Callable[..., Any]) -> str | None:
    """Check the kernel of the softmax network at infinite width."""
    x, s = stream(1, "exercise", "SN-5").standard_normal((5, 3)), 0.7  # inputs and scale
    products = x @ x.T
    exp, right = (infinite_width_kernel(name, x, scale=s) for name in ("exp", "softmax"))
    likely = {
        "this is the kernel of exp: the denominators are still to be divided out": exp,
        "the inner product in front is missing: every derivative is a number times x": np.exp(s**2 * products),
        "the variance of a logit is the square of the scale": products * np.exp(s * products),
        "the exponent has no 1/2: the squares of the norms cancel, twice half the product is left": products
        * np.exp(s**2 * products / 2),
        "the exponent is positive: inputs that agree share their neurons": products * np.exp(-(s**2) * products),
    }
    return verdict(answer(x.copy(), s), right, likely, "one number per pair of samples")


def counted_neurons(answer: Callable[..., Any]) -> str | None:
    """Check the number of neurons at work, also for logits that overflow."""
    logits = 2 * stream(1, "exercise", "SN-6").standard_normal((5, 7))
    right, found = at_work(logits), shares(logits)
    likely = {
        "this is its inverse": 1 / right,
        "this is the number over the width": right / 7,
        "this is the exponential of the entropy, another way to count": np.exp(-(found * np.log(found)).sum(1)),
        "this is one over the largest share, another way to count": 1 / found.max(1),
        "the shares have to sum to one first": 1 / np.square(np.exp(logits)).sum(1),
    }
    mistake = verdict(answer(logits.copy()), right, likely, "one number per row")
    if mistake:
        return mistake
    with np.errstate(all="ignore"):
        large = np.asarray(answer(1000 + 500 * logits), dtype=float)
    if np.allclose(large, at_work(1000 + 500 * logits)):
        return None
    return "right for small logits, but exp overflows at large ones: subtract the largest of each row first"


CHECKS = {"SN-5": kernel_at_infinite_width, "SN-6": counted_neurons}
