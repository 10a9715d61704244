"""How many heads? The experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, sweep
from attnbook.multi_head import head_groups, layer, measures, network, starts
from attnbook.multi_head.data import Drawn, Mixture, draw
from attnbook.multi_head.network import random_networks
from attnbook.multi_head.objectives import logistic
from attnbook.show import INK, Look, band, curves, looks_of, own_lines, style
from attnbook.train import SGD, log_spaced
from attnbook.train import train as train_members

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

SMALL_STEP, LARGE_STEPS = 0.5, {256: 128.0, 4096: 512.0}  # one that does not grow, and 8 sqrt(H)
ROOT_CELLS = ((16, 128.0), (256, 512.0), (4096, 2048.0))  # heads and step sizes on the line 32 sqrt(H)
FINISHED = 1e-18  # training loss at which no step changes a parameter any more, not even the largest
NOISE = (
    (0.125, 0.3),
    (0.125, 0.5),
    (0.125, 1.0),
    (0.3, 1.0),
)  # along patterns, which Proposition 3 bounds by 1/8; free


def mixture(noise: float = 0.3, free_noise: float = 1.0, relevant_fraction: float = 0.1) -> Mixture:
    """Return the data of the chapter: ten tokens of dimension 20, each a label's pattern or another with noise."""
    return Mixture(10, 20, 4, 1.0, relevant_fraction, noise, noise, free_noise)


def samples(data: Mixture, seeds: Sequence[int], n_samples: int, n_test: int) -> tuple[Drawn, Drawn]:
    """Draw training and test samples of each seed."""
    where = device()
    train = draw(data, n_samples, seeds, purpose="samples", device=where)
    return train, draw(data, n_test, seeds, purpose="test", device=where)


SMALL = {"n_samples": 8, "n_test": 20, "steps": 5, "seeds": (0, 1)}  # for tests


@experiment("multi_head.step_size_map", budget=50, needs="float64", smoke=SMALL)
def step_size_map(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Counts = (1, 16, 256, 4096),
    step_sizes: Increasing = (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0),  # each with every number of heads
    steps: PositiveInt = 600,
    n_samples: PositiveInt = 40,  # training samples
    n_test: PositiveInt = 1000,  # test samples
    relevant_fraction: PositiveFloat = 0.1,  # share of tokens that carry the label
    noise: NonNegativeFloat = 0.3,  # bound on the noise along patterns
    free_noise: NonNegativeFloat = 1.0,  # norm of the noise orthogonal to all patterns
) -> xr.Dataset:
    """The number of heads and the step size together, on the mixture, from zero."""
    train, test = samples(mixture(noise, free_noise, relevant_fraction), seeds, n_samples, n_test)
    return sweep(lambda h, eta: trained(train, test, h, eta, steps), heads=heads, step_size=step_sizes)


@step_size_map.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    error = data.test_error
    large = {f"error_{h}_large_step": error.sel(heads=h, step_size=step) for h, step in LARGE_STEPS.items()}
    small = {f"error_{h}_small_step": error.sel(heads=h, step_size=SMALL_STEP) for h in (1, 256)}
    root = xr.concat([data.mass.sel(heads=h, step_size=step, drop=True) for h, step in ROOT_CELLS], "cell")
    return {"MH-H.9-root": {**small, **large, "mass_gap": root.max("cell") - root.min("cell")}}


@experiment("multi_head.attention_steps", budget=50, needs="float64", smoke=SMALL)
def attention_steps(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Counts = (1, 16, 256, 4096),
    step_sizes: Increasing = tuple(0.5 * 4.0**k for k in range(-2, 9)),  # of attention, with every number of heads
    decoder_step: PositiveFloat = SMALL_STEP,
    steps: PositiveInt = 600,
    n_samples: PositiveInt = 40,  # training samples
    n_test: PositiveInt = 1000,  # test samples
) -> xr.Dataset:
    """The number of heads and the step size of attention, while the decoder keeps its own."""
    train, test = samples(mixture(), seeds, n_samples, n_test)

    def one(n_heads: float, step_size: float) -> dict[str, Any]:
        return trained(train, test, n_heads, decoder_step, steps, attention=step_size / decoder_step)

    return sweep(one, heads=heads, step_size=step_sizes)


@experiment("multi_head.noise_and_heads", budget=20, needs="float64", smoke=SMALL)
def noise_and_heads(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Counts = (1, 256),
    step_size: PositiveFloat = SMALL_STEP,
    steps: PositiveInt = 600,
    n_samples: PositiveInt = 40,  # training samples
    n_test: PositiveInt = 1000,  # test samples
) -> xr.Dataset:
    """One head and many at one step size, inside the noise that Proposition 3 allows and outside."""

    def at(level: int, n_heads: float) -> dict[str, Any]:
        train, test = samples(mixture(*NOISE[level]), seeds, n_samples, n_test)
        return trained(train, test, n_heads, step_size, steps)

    noise, free = np.array(NOISE).T
    found = sweep(at, level=range(len(NOISE)), heads=heads)
    return found.assign_coords(noise=("level", noise), free_noise=("level", free))


@noise_and_heads.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    many, names = data.test_error.sel(heads=256), ("inside_small", "inside_half", "inside_one", "outside")
    one = data.test_error.sel(heads=1).max("level")
    return {"MH-H-noise": {"error_1": one, **{f"error_{name}": many.isel(level=i) for i, name in enumerate(names)}}}


@experiment(
    "multi_head.alternating_labels", budget=20, needs="float64", smoke={"starts": 3, "steps": 20, "seeds": (0, 1)}
)
def alternating_labels(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Counts = (1, 2, 4, 16),
    starts: PositiveInt = 40,  # random starts of each seed
    scale: PositiveFloat = 1.0,  # standard deviation of their entries
    step_size: PositiveFloat = 0.5,
    steps: PositiveInt = 3000,
    spacing: PositiveFloat = 0.7,  # z = 0.7, 1.4, 2.1
) -> xr.Dataset:
    """Labels that alternate along a line: how many heads can fit three of them."""
    where = device()
    z = spacing * torch.arange(1, 4, device=where).double()
    tokens, labels = on_a_line(z.repeat(len(seeds) * starts, 1))

    def fitted(n_heads: int) -> dict[str, Any]:
        rngs = [stream(seed, "start", i) for seed in seeds for i in range(starts)]
        start = random_networks(rngs, (n_heads, 2, 1), scale=scale, device=where)
        last = network.gradient_descent(start, (tokens, labels), step_size=step_size, steps=steps).parameters
        right = (layer.outputs(last, tokens) * labels > 0).all(1).view(len(seeds), -1)
        return {"fitted": ("seed", right.double().mean(1).cpu().numpy())}

    return sweep(fitted, heads=[int(h) for h in heads])


@alternating_labels.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    few = {f"fitted_{h}": data.fitted.sel(heads=h) for h in (1, 2)}
    return {"MH-OPEN-heads": few | {"fitted_most": data.fitted.isel(heads=-1)}}


def trained(
    train: Drawn, test: Drawn, n_heads: float, step_size: float, steps: int, attention: float = 1.0
) -> dict[str, Any]:
    """Train one network of each seed from zero, until the loss is zero up to rounding; return what is left behind.

    The steps of attention are ``attention`` times those of the decoder.
    """
    objective, (members, n_samples, *sizes) = logistic(train.labels), train.tokens.shape
    counts = train.tokens.new_full((members, 1), n_heads)

    def loss(now: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"loss": objective(layer.outputs(now, train.tokens, counts=counts))[0]}

    def descent(now: dict[str, Tensor], batch: None) -> tuple[Tensor, dict[str, Tensor]]:
        value, gradient = layer.value_and_gradient(now, train.tokens, objective, counts=counts)
        return value, gradient | {"key_query": attention * gradient["key_query"]}

    history = train_members(
        descent,
        starts.zero(members, *sizes, device=train.tokens.device),
        optimizer=SGD(step_size),
        steps=steps,
        record=loss,
        record_at=sorted({*range(min(8, steps) + 1), *log_spaced(steps, 12)}),  # a step far too large shows at first
        stop=lambda records: records["loss"] <= FINISHED,
    )
    last = history.parameters
    found = {
        "train_loss": loss(last)["loss"],
        "test_error": measures.error_rate(layer.outputs(last, test.tokens, counts=counts), test.labels),
        # attention on relevant tokens, of as many samples as there are in training
        "mass": measures.relevant_mass(last, test.tokens[:, :n_samples], test.relevant[:, :n_samples])[:, 0],
        "highest_loss": torch.from_numpy(history.records["loss"].max(0)),
    }
    return {name: ("seed", tensor.cpu().numpy()) for name, tensor in found.items()}


def on_a_line(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return samples of two tokens of dimension one, zero and z > 0, increasing, with labels that alternate."""
    labels = (-1.0) ** torch.arange(z.shape[1], dtype=z.dtype, device=z.device)
    return torch.stack([torch.zeros_like(z), z], dim=-1)[..., None], labels.expand(len(z), -1)


HEADS, ERROR = "number of heads", "test error"
BY_HEADS = {
    1: Look("1 head", "#7fbf3f", "-", "o"),
    16: Look("16 heads", "#1c7558", "-.", "^"),
    256: Look("256 heads", "#0d4849", ":", "D"),
    4096: Look("4096 heads", "#06303a", (0, (5, 1)), "s"),
}  # the more heads, the darker
FIXED = Look("step size 0.5", "#c2410c", "-", "o")
GROWING = Look("the same, but 0.5 H for attention", "#0b5cad", "--", "s")


def errors(data: xr.Dataset, yours: Mapping[str, Mapping[int, float]] | None = None) -> Figure:
    """Draw the test error against the number of heads: with one step size, and with attention's growing with them.

    Args:
        data: What :func:`attention_steps` gave.
        yours: Name of a line of the reader's own to number of heads to error; default none.

    Returns:
        The figure.
    """
    import matplotlib.pyplot as plt

    heads = data.heads.values
    at = [data.test_error.sel(heads=h, step_size=SMALL_STEP * h, drop=True) for h in heads]
    growing = xr.concat(at, "heads")
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.0))
        fixed = data.test_error.sel(step_size=SMALL_STEP, drop=True)
        lines = xr.concat([fixed, growing], xr.IndexVariable("rule", ["fixed", "growing"]))
        curves(ax, lines, "heads", "rule", {"fixed": FIXED, "growing": GROWING})
        own_lines(ax, yours)
        ax.set(xscale="log", xlabel=HEADS, ylabel=ERROR)
        ax.set_xticks(heads, [f"{h:g}" for h in heads])
        ax.minorticks_off()
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def step_map(data: xr.Dataset) -> Figure:
    """Draw the test error over numbers of heads and step sizes, with the line of the law."""
    import matplotlib.pyplot as plt

    medians, worst = data.test_error.median("seed").values, data.test_error.max("seed").values
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 2.65))
        image = ax.imshow(medians, origin="lower", aspect="auto", cmap=plt.get_cmap("cividis_r", 10), vmin=0, vmax=0.2)
        for i, j in np.ndindex(medians.shape):
            color = "white" if medians[i, j] > 0.07 else INK
            box = {"facecolor": image.cmap(image.norm(medians[i, j])), "edgecolor": "none", "pad": 1.2}
            text, look = f"{medians[i, j]:.3f}\n({worst[i, j]:.2f})", {"fontsize": 10, "linespacing": 1.1, "zorder": 4}
            ax.text(j, i, text, ha="center", va="center", color=color, bbox=box, **look)
        # In these axes, both logarithmic, the law is a straight line.
        columns = np.interp(np.log(8 * data.heads**0.5), np.log(data.step_size), range(len(data.step_size)))
        ax.plot(columns, range(len(data.heads)), color="#b00020", linestyle=":", marker="")
        ax.set_xticks(range(len(data.step_size)), [f"{step:g}" for step in data.step_size.values])
        ax.set_yticks(range(len(data.heads)), [f"{h:g}" for h in data.heads.values])
        ax.set(xlabel="step size", ylabel=HEADS)
        ax.grid(visible=False)
        ax.set_title("dotted line: step size 8√H", fontsize=11)
        figure.colorbar(image, ax=ax, label=f"{ERROR}, median")
    return figure


def law_frame(data: xr.Dataset, power: float) -> Figure:
    """Draw attention against its step size over a power of the number of heads; on the law the lines coincide."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(6.4, 3.6))
        for h, look in looks_of(data.heads.values.tolist(), BY_HEADS, "{} heads").items():
            curve = data.mass.sel(heads=h).transpose("seed", "step_size")
            band(ax, data.step_size.values / float(h) ** power, curve.values, look)
        label = "step size of attention" + (rf" $/\,H^{{{power:g}}}$" if power else "")
        ax.set(xscale="log", xlabel=label, ylabel="attention on the relevant token", ylim=(0, 1), xlim=(5e-3, 5e4))
        ax.legend(loc="upper left", fontsize=9.5)
    return figure


def law_text(data: xr.Dataset, power: float) -> str:
    """Say how far the lines of one picture of the slider are apart, where all of them are drawn."""
    heads = data.heads.values.astype(float)
    steps, mass = np.log(data.step_size.values), data.mass.median("seed")
    first, last = (steps[end] - power * np.log(heads) for end in (0, -1))
    common = np.linspace(first.max(), last.min(), 100)
    lines = [np.interp(common, steps - power * np.log(h), mass.sel(heads=h)) for h in heads]
    apart = np.ptp(lines, axis=0).max()
    return f"Power {power:g}: the lines differ by at most {apart:.2f} in attention."


def two_step_sizes(answer: Callable[..., Any]) -> str | None:
    """Check the step sizes of one head that trains as many do."""
    cases = [(0.5, 16, 0.5), (0.3, 9, 1.0), (2.0, 81, 0.75)]
    right = np.array([list(head_groups.one_head_step_sizes(*case).values()) for case in cases])
    eta, heads, c = np.array(cases).T
    likely = {
        "the order is V first, then W": right[:, ::-1],
        "W's gradient is linear in U = V / H^(1-c): that is another factor": np.stack(
            [right[:, 0], eta * heads**-c], axis=1
        ),
        "V is H^(1-c) times U, so its steps are that much longer": np.stack([eta * heads**-c, right[:, 1]], axis=1),
        "right for c = 1/2 only: count the powers of H for a general c": np.stack([eta, eta / heads], axis=1),
    }
    return verdict([answer(*case) for case in cases], right, likely, "for each case the step size of V and that of W")


def two_heads(answer: Callable[..., Any]) -> str | None:
    """Check two heads that get three alternating labels right."""
    for z in (np.array([0.7, 1.4, 2.1]), np.array([0.5, 0.9, 2.3])):
        decoders, key_query = (np.asarray(part, dtype=float) for part in answer(z.copy()))
        if decoders.shape != (2, 2) or key_query.shape != (2,):
            return f"U of shape (2, 2) and W of shape (2,) are wanted, got {decoders.shape} and {key_query.shape}"
        # Of its two tokens the query 0 sees the mean, the query z a share by the softmax of 0 and W z^2.
        seen = np.stack([np.broadcast_to(z / 2, (2, 3)), z / (1 + np.exp(-key_query[:, None] * z**2))], axis=1)
        margins = np.array([1.0, -1.0, 1.0]) * np.einsum("hq,hqn->n", decoders, seen)
        if np.isclose(*key_query):
            return "both heads look at the same share of z, so that they are one; and one changes its sign once only"
        if (margins < 0).all():
            return "the sign: all three samples are on the wrong side"
        if not (margins > 0).all():
            return f"sample {margins.argmin() + 1} of z = {z} is on the wrong side"
    return None


CHECKS = {"MH-H1": two_step_sizes, "MH-H2": two_heads}
