"""One good step: the experiments of the chapter, what its claims read off them, its pictures and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, highest, lowest, slope, sweep, track
from attnbook.multi_head import layer, network, oracle, starts
from attnbook.multi_head import start_bounds as theory
from attnbook.multi_head.data import Drawn, Mixture, draw, draw_patterns
from attnbook.multi_head.tangent_kernel import largest_margins, tangent_features
from attnbook.show import Look, band, own_lines, style
from attnbook.train import Adam, autograd, cosine, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

Found: TypeAlias = dict[str, Any]
SMALL = {
    "start_margin": {"n_samples": 100, "noises": (0.0, 0.05, 0.1), "n_first": (100, 1000), "seeds": (0, 1)},
    "margin_order": {"norms": (1.0, 2.0, 3.0, 6.0), "n_samples": 10, "seeds": (0, 1)},
    "random_starts": {"n_samples": 11, "n_first": 100, "tries": 2, "steps": 5, "seeds": (0, 1)},
}
PHASES = ("first phase", *(f"first phase {k}" for k in range(1, 6)))  # the residual is averaged over them


def mixture(norm: float = 2.0, share: float = 0.4, noise: float = 0.05, free: float = 0.5) -> Mixture:
    """Return the data of the chapter: ten tokens of dimension 12; noise along patterns in units of norm squared."""
    return Mixture(10, 12, 4, norm, share, noise * norm**2, noise * norm**2, free)


def targets(data: Mixture, seeds: Sequence[int]) -> tuple[Tensor, ...]:
    """Return, a row for each seed, the signal u_star, and decoder and key-query matrix of the target, of norm one."""
    rows = []
    for seed in seeds:
        patterns = draw_patterns(data, rng=stream(seed, "patterns"))
        blocks = oracle.decoder(patterns, data.n_tokens), oracle.key_query(patterns)
        rows.append((oracle.value_direction(patterns), *(one / np.linalg.norm(one) for one in blocks)))
    return tuple(torch.from_numpy(np.stack(part)).to(device()) for part in zip(*rows, strict=True))


def parts(data: Mixture, seeds: Sequence[int], batch: Drawn) -> tuple[Tensor, Tensor]:
    """Return what the decoder adds to each sample's margin, and vectors whose product with m is attention's part."""
    _, decoder, key_query = targets(data, seeds)
    read = torch.einsum("bn,bnd,bd->bn", batch.labels, batch.tokens.mean(2), decoder.sum(1))
    return read, starts.key_query_pull(batch.tokens, batch.labels, key_query)


def step_on(batch: Drawn, n: int | None = None) -> Tensor:
    """Return what a step on these samples, or the first n, writes into every row of the decoder."""
    return starts.first_phase_direction(batch.tokens[:, :n], batch.labels[:, :n])


def sweeps(*several: tuple[Callable[..., Any], Found]) -> xr.Dataset:
    """Return several sweeps, functions with their axes, as one data set; for progress they count alike."""
    return xr.merge([sweep(function, **axes) for function, axes in track(several)])


@experiment("multi_head.start_margin", budget=20, needs="float64", smoke=SMALL["start_margin"])
def start_margin(
    seeds: Seeds = (0, 1, 2, 3, 4),
    shares: Increasing = (0.1, 0.4),  # of tokens that carry the label; most claims use the second
    norms: Increasing = (1.0, 2.0, 4.0),  # of patterns
    noises: Increasing = (0.0, 0.02, 0.05, 0.1, 0.125),  # along patterns over the squared norm, at most 1/8
    n_samples: PositiveInt = 2000,  # over which the smallest margin is taken
    n_first: Counts = (100, 300, 1000, 3000, 10_000),  # samples of real steps; the fewer are the first of the more
) -> xr.Dataset:
    """Lemma 2 and Proposition 2: what one step from zero writes, and what margin it leaves."""

    def cell(share: float, norm: float, noise: float) -> Found:
        data = mixture(norm, share, noise)
        read, pull = parts(data, seeds, draw(data, n_samples, seeds, device=device()))
        margin = read + share / 4 * (pull @ targets(data, seeds)[0].unsqueeze(2)).squeeze(2)
        return {"zero_margin": ("seed", read.amin(1).cpu()), "margin": ("seed", margin.amin(1).cpu())}

    def growing(large_norm: float) -> Found:
        data, n = example(large_norm)
        first = draw(data, n, seeds, purpose="growing first phase", device=device())
        read, pull = parts(data, seeds, draw(data, min(n_samples, 500), seeds, purpose="growing", device=device()))
        margin = (read + (pull @ step_on(first).unsqueeze(2)).squeeze(2)).amin(1)
        return {"gain": ("seed", margin.cpu() - oracle.linear_margin(data))}

    found = sweeps((cell, {"share": shares, "norm": norms, "noise": noises}), (growing, {"large_norm": (2, 4, 8, 16)}))
    return found.assign(real_steps(seeds, n_samples, n_first)).assign_coords(n=list(n_first))


def example(norm: float) -> tuple[Mixture, int]:
    """Return the paper's example: all noise grows like the norm of the patterns, samples of the step like its square."""
    return mixture(norm, 0.4, 0.1 / norm, norm / 4), round(48 * norm**2)


def real_steps(seeds: Sequence[int], n_samples: int, n_first: Sequence[int]) -> Found:
    """Measure residual, head norms, outputs and margins after a real step of every size."""
    data, where = mixture(), device()
    batch, signal = draw(data, n_samples, seeds, device=where), targets(data, seeds)[0][:, None]
    read, pull = parts(data, seeds, batch)
    first = [draw(data, n_first[-1], seeds, purpose=purpose, device=where) for purpose in PHASES]
    m = torch.stack([torch.stack([step_on(one, n) for n in n_first], 1) for one in first])
    residual, m = (m - signal / 10).norm(dim=3), m[0]
    found = {
        "coefficient": (m * signal).sum(2) / signal.square().sum(2) / 0.4,
        "residual": residual[0],
        "typical_residual": residual.square().mean(0).sqrt(),
        "residual_half": (m - signal / 5).norm(dim=2),  # as if the paper's half were right
        "head_norm": 10**0.5 * m.norm(dim=2),
        "output": 10 * torch.einsum("bnd,bsd->bsn", batch.tokens.mean(2), m).abs().amax(2),  # the largest
        "step_margin": (read[:, None] + torch.einsum("bnd,bsd->bsn", pull, m)).amin(2),
    }
    return {name: (("seed", "n"), tensor.cpu()) for name, tensor in found.items()}


@start_margin.measures
def _(data: xr.Dataset) -> dict[str, Found]:
    free_of, bounds, n_samples = oracle.first_phase_margin, guarantees(data), data.attrs["settings"]["n_samples"]
    step, end, root = mixture(), data.isel(n=-1, drop=True), data.n**0.5
    free, law = free_of(step), theory.residual_size(step, 1)
    price = free - free_of(step, residual=1.0)
    stated, after = free - price * end.residual, theory.margin_bound(step) - 10 * step.token_norm**3 * data.residual
    likely = data.output * (2 * np.log(40)) ** 0.5  # times what a sum of signs over its root rarely exceeds (Hoeffding)
    outputs = likely / theory.output_bound(step, 0.0, n_samples=n_samples) / (1 + data.residual / 2)
    ours = data.output / (10 * step.token_norm * (0.08**0.5 + data.residual))
    noisy, zero, needed = {"noise": data.noise > 0}, data.zero_margin, xr.DataArray((price * law / free) ** 2)

    def gain(norm: float) -> float:  # of the paper's (7) over the linear margin, in the paper's example
        wide, n = example(norm)
        return free_of(wide, residual=theory.residual_size(wide, n)) - oracle.linear_margin(wide)

    return {
        "MH-L2.2": {"coefficient": end.coefficient, "left_by_half_over_plateau": end.residual_half / 0.08**0.5},
        "MH-L2.3": {
            "slope": slope(data.typical_residual, "n"),
            "implied_constant": highest(data.residual * root / ((4 + step.noise_norm) * (12**0.5 + np.log(20) ** 0.5))),
            "rms_over_law": ((data.typical_residual * root / law) ** 2).mean() ** 0.5,
        },
        "MH-P2.1": {"largest_ratio": highest(data.head_norm / (10**0.5 * (2 + data.residual)))},
        "MH-P2.2": {"largest_ratio": highest(outputs), "largest_ratio_ours": highest(ours)},
        "MH-P2.3": {"smallest_over_half": lowest(data.step_margin / (free / 2))},
        "MH-P2.4": {"relative_error_signs": highest(abs(data.margin / bounds.stated - 1).sel(noise=0.0))},
        "MH-P2.5": {
            "smallest_margin_minus_bound": lowest((data.margin - bounds.stated).sel(noisy)),
            "share_positive": (bounds.stated > 0).mean(),
        },
        "MH-P2.6": {"bound": stated, "margin": end.step_margin, "positive_from": needed},
        "MH-P2.7": {
            "slope": slope(data.gain, "large_norm"),
            "share_of_order": xr.DataArray(gain(1e4) / attention(0.4, 1e4)),
            "overtakes": xr.DataArray(float(next(norm for norm in range(2, 10_000) if gain(norm) > 0))),
        },
        "MH-P2.5-ours": {
            "smallest_margin_minus_ours": lowest((data.margin - bounds.ours).sel(noisy)),
            "smallest_gain": (bounds.ours - bounds.stated).sel(noisy).min(),
            "smallest_ours": bounds.ours.sel(share=0.4).min(),
            "smallest_step_bound": lowest(after.isel(n=-1)),
            "smallest_step_margin_minus_ours": lowest(data.step_margin - after),
        },
        "MH-ORD-linear": {
            "formula_no_noise": xr.DataArray(attention(0.4, 2.0)),
            "formula_noise": xr.DataArray(free_of(loud := mixture(noise=0.1)) - oracle.linear_margin(loud)),
            "formula_step": stated - oracle.linear_margin(step),
            "smallest_measured": lowest((data.margin - zero).sel(share=0.4)),
            "smallest_measured_step": lowest(end.step_margin - zero.sel(share=0.4, norm=2.0, noise=0.05)),
        },
    }


def attention(share: Any, norm: Any) -> Any:
    """Return what attention adds to the margin after the step, without noise and residual."""
    return 10 * share**2 * (1 - share) * norm**4 / (4 * 10**0.5)


def guarantees(data: xr.Dataset) -> xr.Dataset:
    """Return the paper's (7) without residual, and this book's bound, in all cells."""

    def both(share: float, norm: float, noise: float) -> dict[str, float]:
        cell = mixture(norm, share, noise)
        return {"stated": oracle.first_phase_margin(cell), "ours": theory.margin_bound(cell)}

    return sweep(both, **{name: data[name].values for name in ("share", "norm", "noise")})


@experiment("multi_head.margin_order", budget=10, needs="float64", smoke=SMALL["margin_order"])
def margin_order(
    seeds: Seeds = (0, 1, 2, 3, 4),
    shares: Increasing = (0.1, 0.2, 0.3, 0.5),  # of tokens that carry the label
    norms: Increasing = tuple(1 + 0.5 * i for i in range(11)),  # of patterns
    lengths: Increasing = (0.25, 0.5, 1.0, 2.0, 4.0),  # of the first step, over the paper's; 1 is among them
    n_samples: PositiveInt = 60,  # without noise, of each cell
    n_first: PositiveInt = 1000,  # samples of real steps on the chapter's data
) -> xr.Dataset:
    """The order of the margins of a head, of its linearisation, and of averaging; with steps of several lengths."""

    def smallest(data: Mixture, n: int, m: Tensor) -> xr.Dataset:
        read, pull = parts(data, seeds, draw(data, n, seeds, purpose="order", device=device()))
        gain = (pull @ m.unsqueeze(2)).squeeze(2)
        found = sweep(lambda length: {"tangent": ("seed", (read + length * gain).amin(1).cpu())}, length=lengths)
        return found.assign(uniform=("seed", read.amin(1).cpu()))

    def quiet(share: float, norm: float) -> xr.Dataset:
        return smallest(data := mixture(norm, share, 0.0, 0.0), n_samples, share / 4 * targets(data, seeds)[0])

    def real(norm: float) -> xr.Dataset:
        first = draw(mixture(norm), n_first, seeds, purpose="first phase", device=device())
        return smallest(mixture(norm), 500, step_on(first)).rename(tangent="after_step", uniform="at_zero")

    return sweeps((quiet, {"share": shares, "norm": norms}), (real, {"norm": norms}))


@margin_order.measures
def _(data: xr.Dataset) -> dict[str, Found]:
    share, norm, cells = data.share, data.norm, ("share", "norm")
    limit, one = 5**0.5 * norm, data.tangent.sel(length=1.0)
    above, beyond = data.tangent > limit, 10**0.5 * share**2 * norm**3 > 4 * 5**0.5
    longer = data.length > (1 - share) * limit / attention(share, norm)
    return {
        "MH-ORD": {
            "cells_against_threshold": highest(((one > limit) != beyond).sum(cells)),
            "cells_violating": lowest((one > limit).sum(cells)),
            "steps_against_threshold": highest((above != longer).sum((*cells, "length"))),
            "cells_with_both_orders": lowest((above.any("length") & ~above.all("length")).sum(cells)),
        },
        "MH-ORD-gap": {  # from one share to the next larger one
            "largest_change_linear": highest((limit - data.uniform).diff("share")),
            "largest_change_tangent": highest((limit - one).diff("share")),
            "smallest_change_between": lowest((one - data.uniform).diff("share")),
        },
    }


@experiment("multi_head.random_starts", budget=40, needs="float64", group=4, smoke=SMALL["random_starts"])
def random_starts(
    seeds: Seeds = tuple(range(8)),
    heads: Counts = (1, 8, 64),
    scales: Increasing = (0.0, 0.3, 1.0),  # standard deviations of the random entries of attention
    searched: Counts = (1, 4, 16, 64, 256),  # numbers of equal heads whose largest margin is searched for
    tries: PositiveInt = 3,  # random networks that each search starts from
    steps: PositiveInt = 500,  # of each search
    n_samples: PositiveInt = 40,
    n_first: PositiveInt = 1000,  # samples of the first step
    norm: PositiveFloat = 2.0,  # of patterns
    share: PositiveFloat = 0.4,  # of tokens that carry the label
) -> xr.Dataset:
    """Section 7: margins of networks linearised at random starts, and the largest of networks of norm root two."""
    data, where = mixture(norm, share), device()
    drawn = draw(data, n_samples, seeds, device=where)
    m = step_on(draw(data, n_first, seeds, purpose="first phase", device=where))
    coins = np.array([stream(seed, "coin flips").choice([1.0, -1.0], n_samples) for seed in seeds])
    zero = starts.zero(len(seeds), 10, 12, device=where)

    def linearised(start: Mapping[str, Tensor], name: str) -> Found:
        kernel = gram(tangent_features(dict(start), drawn.tokens))
        labels = {name: drawn.labels.cpu().numpy(), f"{name}_coins": coins}
        return {kind: ("seed", 2**0.5 * largest_margins(kernel, y)) for kind, y in labels.items()}

    def random(n_heads: int, scale: float) -> Found:  # decoders as large as after the step
        entries = [network.draw_parameters(n_heads, 10, 12, scale=1.0, rng=stream(s, "random start")) for s in seeds]
        u, w = (torch.tensor(np.array([e[name] for e in entries]), device=where) for name in ("decoder", "key_query"))
        size = m.norm(dim=1)[:, None, None, None] / 12**0.5
        return linearised({"decoder": size * u, "key_query": scale * w}, "random")

    def largest(n_heads: int) -> Found:
        rngs = [stream(seed, "search", "1", str(k)) for seed in seeds for k in range(tries)]
        tokens, labels = (part.repeat_interleave(tries, 0) for part in drawn[:2])
        return {"largest": (("seed", "try"), largest_margin(rngs, tokens, labels, n_heads, steps).reshape(-1, tries))}

    found = sweeps((random, {"heads": heads, "scale": scales}), (largest, {"searched": searched}))
    after = zero | {"decoder": zero["decoder"] + m[:, None, None]}
    token = {"token": ("seed", drawn.tokens.norm(dim=3).amax((1, 2)).cpu())}  # the largest norm
    return found.assign(linearised(zero, "zero") | linearised(after, "after") | token)


def gram(features: Tensor) -> np.ndarray:
    """Return the inner products of the features of each member's samples."""
    return np.asarray((features @ features.mT).cpu().numpy())


def largest_margin(
    rngs: Sequence[np.random.Generator], tokens: Tensor, labels: Tensor, n_heads: int, steps: int
) -> np.ndarray:
    """Search for the largest margin of a network of norm root two whose heads are equal: one, with shrunk attention."""
    sizes = {"decoder": 10, "key_query": 12}
    drawn = [{name: rng.standard_normal((1, n, 12)) / n for name, n in sizes.items()} for rng in rngs]
    start = {name: torch.from_numpy(np.array([one[name] for one in drawn])).to(tokens) for name in sizes}

    def on_sphere(p: Mapping[str, Tensor]) -> dict[str, Tensor]:
        norm = torch.cat([one.flatten(1) for one in p.values()], 1).norm(dim=1)[:, None, None, None]
        return {name: (2 / n_heads ** (name == "key_query")) ** 0.5 * one / norm for name, one in p.items()}

    def smooth(p: Mapping[str, Tensor], sharpness: float) -> Tensor:  # minus the smallest margin, in the end
        return (-sharpness * labels * layer.outputs(on_sphere(p), tokens)).logsumexp(1) / sharpness

    sharpness = np.geomspace(3, 300, steps).__getitem__
    how: Found = {
        "optimizer": Adam(0.03),
        "schedule": cosine(steps),
        "record": lambda p: {"loss": smooth(p, 3)},
    }
    found = on_sphere(train(autograd(smooth), start, sharpness, steps=steps, **how).parameters)
    seen = layer.attention_weights(found, tokens) @ tokens.unsqueeze(2)  # for it, at last, the best decoder
    left = 2 - found["key_query"].square().sum((1, 2, 3)) * n_heads
    return left.sqrt().cpu().numpy() * largest_margins(gram(seen.flatten(2)), labels.cpu().numpy())


@random_starts.measures
def _(data: xr.Dataset) -> dict[str, Found]:
    best, many = data.largest.max("try"), data.random.sel(heads=64)
    bound = data.zero + (10 / 1e7) ** 0.5 * data.token**3  # on networks with ten million heads
    return {
        "MH-X.5": {
            "smallest_margin": lowest(data.random),
            "mean_after": data.after.mean("seed"),
            "mean_random": many.sel(scale=0.3).mean("seed"),
            "mean_blind": many.sel(scale=0.0).mean("seed"),
            "smallest_coins": lowest(data.random_coins.sel(scale=0.3)),
            "largest_coins_zero": highest(data.zero_coins),
        },
        "MH-X.6": {
            "zero_over_one": data.zero / best.sel(searched=1),
            "after_over_one": data.after / best.sel(searched=1),
            "many_over_one": best.isel(searched=-1) / best.sel(searched=1),
            "after_over_bound": data.after / bound,
            "disagreement": (best - data.largest.min("try")).max("searched"),
        },
    }


def sample(tokens: Tensor, relevant: Tensor, stages: Sequence[tuple[str, Tensor, Tensor]]) -> Figure:
    """Draw what the decoder reads off each token of one sample, and the attention that it gets, at some stages."""
    import matplotlib.pyplot as plt

    with style():
        figure, axes = plt.subplots(2, len(stages), figsize=(7.4, 3.2), sharex=True, sharey="row")
        colors = [(AFTER if one else ZERO).color for one in relevant]
        for (name, decoder, key_query), (top, bottom) in zip(stages, axes.T, strict=True):
            attention = torch.softmax(tokens @ key_query @ tokens.mT, dim=1).mean(0)
            top.bar(range(1, 11), tokens @ decoder[0], color=colors)
            bottom.bar(range(1, 11), attention, color=colors)
            top.set(title=name, ylabel="reading")
            bottom.set(xlabel="token", ylabel="attention")
    return figure


ZERO = Look("at zero: averaging", "#5b5f66", "--", "s")
AFTER = Look("after one step", "#0b5cad", "-", "o")
LIMIT = Look("limit of attention", "#1c7558", "-.", "^")


def margins(data: xr.Dataset, length: float = 1.0, yours: Mapping[str, Mapping[float, float]] | None = None) -> Figure:
    """Draw the margins against the norm of the patterns, after a step of some length; and a reader's own lines."""
    import matplotlib.pyplot as plt

    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.3))
        for look, line in {AFTER: data.after_step.sel(length=length), ZERO: data.at_zero}.items():
            band(ax, data.norm.values, line.transpose("seed", "norm").values, look)
        ax.plot(data.norm, 5**0.5 * data.norm, **LIMIT.line_style())
        own_lines(ax, yours)
        ax.set(yscale="log", ylim=(0.5, 500), xlabel="length of a pattern", ylabel="margin")
        ax.legend(loc="upper left")
    return figure


def crossing(data: xr.Dataset, length: float) -> str:
    """Say where the margin after a step of some length passes the limit of attention."""
    ratio = (data.after_step.sel(length=length) / data.norm / 5**0.5).median("seed")
    return f"Step of size {length:g}: the lines cross at length {np.interp(0, np.log(ratio), data.norm):.1f}."


def first_direction(answer: Callable[..., Any]) -> str | None:
    """Check what the first step writes into every row of a decoder, for any loss."""
    rng = stream(1, "exercise", "MH-7")
    tokens, labels, slope = rng.standard_normal((6, 5, 3)), np.array([1.0, -1.0, 1.0, 1.0, 1.0, -1.0]), -0.7
    right = -slope * (labels[:, None] * tokens.mean(1)).mean(0)
    likely = {
        "the half was the slope of the logistic loss; here the slope is given": right / -slope / 2,
        "the slope of the loss is missing": right / -slope,
        "descent goes against the gradient: the sign is wrong": -right,
    }
    return verdict(answer(tokens.copy(), labels.copy(), slope), right, likely, "one direction in token space")


def longest_step(answer: Callable[..., Any]) -> str | None:
    """Check the longest step that leaves the margin below the limit of attention."""
    cases = [(1.5, 2.5, 4.5), (0.9, 5.0, 2.2), (2.0, 2.5, 3.5)]
    zero, after, limit = np.array(cases).T
    likely = {
        "a longer step multiplies only what it adds to the margin at zero": limit / after,
    }
    return verdict([answer(*case) for case in cases], (limit - zero) / (after - zero), likely, "one number a case")


CHECKS = {"MH-7": first_direction, "MH-STEP": longest_step}
