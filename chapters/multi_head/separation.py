"""What attention can separate, and whether descent gets there: experiments, what claims read off them, pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, highest, lowest, sweep, track
from attnbook.multi_head import head_groups, layer, measures, objectives, oracle, starts
from attnbook.multi_head.data import Mixture, Patterns, Samples, draw, draw_patterns, draw_samples
from attnbook.multi_head.hard_samples import against_attention, against_linear_rules
from attnbook.multi_head.tangent_kernel import largest_margins
from attnbook.show import INK, Look, band, curves, own_lines, style
from attnbook.train import SGD, log_spaced
from attnbook.train import train as train_members

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

OBJECTIVES = {"plain": objectives.logistic, "normalised": objectives.log_sum_exp}
EIGHTH = 0.125  # of S^2: the most noise along patterns that Proposition 3 allows
FEW = Mixture(10, 8, 4, 1.0, 0.1, EIGHTH, EIGHTH, 0.3)  # the data of the race
PLAIN, NORMALISED = 10.0, 0.05  # step sizes of the race: the best of plain descent for one head; one that was not tuned
NOISE = tuple(round(0.0125 * i, 4) for i in range(11))  # up to an eighth


def of_cell(pattern_norm: float, relevant_fraction: float, noise: float) -> Mixture:
    """Return the data of Proposition 3, twenty tokens; the noise is in units of the squared pattern norm."""
    bound = noise * pattern_norm**2
    return Mixture(20, 16, 4, pattern_norm, relevant_fraction, bound, bound, 0.3)


def drawn_and_made(mixture: Mixture, seed: int, n: int, *purposes: str) -> tuple[Patterns, list[Samples]]:
    """Draw patterns, samples with noise inside its bounds and at them; make those against attention."""
    patterns, (inside, corners) = draw_patterns(mixture, rng=stream(seed, "patterns")), purposes
    return patterns, [
        draw_samples(mixture, patterns, n, rng=stream(seed, inside)),
        draw_samples(mixture, patterns, n, rng=stream(seed, corners), corners=True),
        against_attention(mixture, patterns),
    ]


def unit_oracle(patterns: Patterns, mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return decoder and key-query matrix of the oracle, each of norm one."""
    parts = oracle.decoder(patterns, mixture.n_tokens), oracle.key_query(patterns)
    return tuple(part / np.linalg.norm(part) for part in parts)


@experiment(
    "multi_head.linear_rules",
    budget=10,
    needs="cpu",
    smoke={"n_samples": 5, "noise": (0.0, 0.05, EIGHTH), "seeds": (0, 1)},
)
def linear_rules(
    seeds: Seeds = (0, 1, 2, 3, 4),
    relevant_fractions: Increasing = (0.05, 0.1, 0.3),
    noise: Increasing = NOISE,  # along patterns, at S = 1
    leak: PositiveFloat = 0.01,  # the epsilon whose scale attention has
    n_samples: PositiveInt = 40,  # of each cell with noise inside its bounds, and as many with noise at them
) -> xr.Dataset:
    """What linear rules separate and what attention does, against the noise."""

    def margins(seed: int, zeta: float, share: float) -> dict[str, Any]:
        mixture = of_cell(1.0, zeta, share)
        patterns, every = drawn_and_made(mixture, seed, n_samples, "margins", "margins")
        against = [against_linear_rules(mixture, patterns, sign=sign) for sign in (1.0, -1.0)]
        u, w = unit_oracle(patterns, mixture)
        scales = {"uniform": 0.0, "attention": oracle.stated_scale(mixture, leak)}
        found = {
            name: min(measures.leak_and_margin(one, u, scale * w)[1] for one in [*every, *against])
            for name, scale in scales.items()
        }
        features = np.concatenate([one.tokens.reshape(len(one.tokens), -1) for one in against])
        labels = np.concatenate([one.labels for one in against])
        # with weights for each position; 0 where no rule separates
        return found | {"best": largest_margins((features @ features.T)[None], labels[None])[0]}

    return sweep(margins, seed=seeds, fraction=relevant_fractions, noise=noise)


@linear_rules.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    cells = {"fraction": data.fraction.values, "noise": data.noise.values}
    stated = sweep(lambda *cell: {"margin": oracle.linear_margin(of_cell(1.0, *cell))}, **cells).margin
    return {
        "MH-A3-linear": {
            "smallest_margin_minus_bound": lowest(data.uniform - stated),
            "largest_difference": highest(abs(data.best - stated.clip(0))),
            "smallest_stated_margin": stated.min(),
            "largest_stated_margin": stated.max(),
        }
    }


@experiment("multi_head.margins", budget=10, needs="cpu", smoke={"n_samples": 20, "seeds": (0, 1)})
def scaled_attention(
    seeds: Seeds = (0, 1, 2, 3, 4),
    pattern_norms: Increasing = (1.0, 2.0),
    relevant_fractions: Increasing = (0.05, 0.1, 0.3),
    leaks: Increasing = (0.01, 0.1, 0.3),  # epsilon
    n_samples: PositiveInt = 300,  # of each cell and kind of noise
) -> xr.Dataset:
    """Proposition 3 at the largest noise: leak and margin of attention that is scaled as stated."""

    def cell(seed: int, s: float, zeta: float) -> dict[str, Any]:
        mixture = of_cell(s, zeta, EIGHTH)
        patterns, every = drawn_and_made(mixture, seed, n_samples, "random", "corners")
        u, w = unit_oracle(patterns, mixture)
        scales = [0.0, *(oracle.stated_scale(mixture, leak) for leak in leaks)]
        at = np.array([[measures.leak_and_margin(one, u, scale * w) for scale in scales] for one in every])
        # largest attention of a query on irrelevant keys, smallest margins, these with uniform attention as well
        leak, margin, uniform = at[:, 1:, 0].max(0), at[:, 1:, 1].min(0), at[:, 0, 1].min()
        return {"leak": ("epsilon", leak), "margin": ("epsilon", margin), "uniform": uniform}

    cells = sweep(cell, seed=seeds, norm=pattern_norms, fraction=relevant_fractions)
    return cells.assign_coords(epsilon=list(leaks))


@scaled_attention.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    cells = {name: data[name].values for name in ("norm", "fraction", "epsilon")}

    def stated(s: float, zeta: float, leak: float) -> dict[str, float]:
        return {"margin": oracle.attention_margin(of_cell(s, zeta, EIGHTH), leak=leak)}

    share = data.margin.isel(epsilon=0) / (data.norm * np.sqrt(of_cell(1.0, 0.1, 0.0).n_tokens / 2))
    return {
        "MH-P3.1": {"largest_leak_over_epsilon": highest(data.leak / data.epsilon)},
        "MH-P3.2": {
            "smallest_margin_minus_bound": lowest(data.margin - sweep(stated, **cells).margin),
            "smallest_share_of_limit": lowest(share),
            "largest_uniform_sparsest": highest(data.uniform.isel(fraction=0)),
        },
    }


SMALL = {"n_samples": 7, "steps": 50, "records": 5, "seeds": (0, 1)}  # for tests


@experiment("multi_head.margin_race", budget=60, needs="float64", smoke={**SMALL, "early_step": 20})
def margin_race(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Counts = (1, 16),
    plain_sizes: Increasing = (1.0, PLAIN, 30.0, 100.0, 300.0),  # step sizes of plain descent
    normalised_sizes: Increasing = (NORMALISED, 0.2, 0.8),
    steps: PositiveInt = 4000,  # the same for all
    n_samples: PositiveInt = 20,
    early_step: PositiveInt = 1000,  # recorded besides the logarithmically spaced ones
    records: PositiveInt = 48,  # how many of these there are, about
) -> xr.Dataset:
    """Section 7: does gradient descent from zero, plain or normalised by the loss, reach the attention margin?"""
    at = log_spaced(steps, records, also=(early_step,))[1:]
    sizes = {"plain": plain_sizes, "normalised": normalised_sizes}
    found = []
    for rule, each in track(list(sizes.items())):
        team = sweep(
            lambda size, h, rule=rule: raced(FEW, n_samples, seeds, h, rule, size, steps, at),
            **{f"{rule}_size": each, "heads": heads},
        )
        found.append(team.rename({name: f"{rule}_{name}" for name in team}))
    drawn = draw(FEW, n_samples, seeds)
    return xr.merge(found).assign(floor=("seed", best_average(drawn.tokens, drawn.labels) / LIMIT))


@margin_race.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    few, many = (data.sel(heads=h, normalised_size=NORMALISED) for h in (1, data.heads[-1]))
    end, early = few.isel(step=-1), data.attrs["settings"]["early_step"]
    late, plain = few.normalised_cosine.sel(step=slice(early, None)), data.plain_share.isel(step=-1)
    best = plain.isel(plain_size=plain.median("seed").argmax("plain_size"))  # of each number of heads
    shares = [highest(data[f"{rule}_share"]) for rule in OBJECTIVES]
    return {
        "MH-X.2": {
            "fraction_few": end.normalised_share,
            "fraction_many": many.normalised_share.isel(step=-1),
            "best_plain_few": best.sel(heads=1),
            "best_plain_many": best.isel(heads=-1),
            "largest_fraction": highest(xr.concat(shares, "part")),
            "cosine": end.normalised_cosine,
            "late_change": late.max("step") - late.min("step"),
            "mass_few": end.normalised_mass,
            "mass_many": many.normalised_mass.isel(step=-1),
            "norm_ratio": end.normalised_key_query_norm / end.normalised_norm,
        }
    }


@experiment("multi_head.equal_norm", group=30, budget=60, needs="float64", smoke=SMALL)
def equal_norm(
    seeds: Seeds = tuple(range(60)),
    heads: Counts = (1, 16),
    steps: PositiveInt = 4000,  # of plain descent
    normalised_steps: PositiveInt = 1200,  # enough for decoders as long
    n_samples: PositiveInt = 20,
    records: PositiveInt = 48,  # steps at which plain descent is stopped, about
    every: PositiveInt = 4,  # so often norm and margin of normalised descent are read off
) -> xr.Dataset:
    """Plain against normalised descent where the decoders are equally long, over many seeds."""
    often = list(range(1, normalised_steps + 1, every))

    def compared(h: int) -> xr.Dataset:
        ways = ("plain", PLAIN, steps, log_spaced(steps, records)[1:]), ("normalised", NORMALISED, often[-1], often)
        plain, other = (raced(FEW, n_samples, seeds, h, *way) for way in track(ways, 2))
        other = other.rename(step="record")
        there = xr.apply_ufunc(  # a straight line over the norm, which grows; beyond its ends the nearest record
            np.interp,
            plain.norm,
            other.norm,
            other.share,
            vectorize=True,
            input_core_dims=[[], ["record"], ["record"]],
        )
        return plain[["share", "norm"]].assign(normalised_share=there)

    return sweep(compared, heads=heads)


@equal_norm.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    lead = (data.share - data.normalised_share).isel(step=-1)
    found: dict[str, xr.DataArray] = {}
    for name, h in (("few", 1), ("many", data.heads[-1])):
        found |= {f"lead_{name}": lead.sel(heads=h), f"ahead_{name}": (lead.sel(heads=h) > 0).mean("seed")}
    return {"MH-X.1-equal-norm": found}


@experiment("multi_head.oracle_target", budget=60, needs="float64", smoke={"n_samples": (8, 12), "seeds": (0, 1)})
def oracle_target(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_samples: Counts = (20, 80, 320),  # n
    times: Counts = (1, 10),  # steps, in units of n
    step_size: PositiveFloat = 0.5,  # in units of 1 / S^2
) -> xr.Dataset:
    """Section 5.3: descent from zero with S = 4 log(n)^2 and H = (S log n)^2, where the paper's (3) as printed holds."""

    def one(n: int) -> dict[str, Any]:
        s = 4 * math.log(n) ** 2
        noise = EIGHTH * s**2
        mixture = Mixture(10, 8, 4, s, 0.1, noise, noise, 0.3 * s)
        heads, at = (s * math.log(n)) ** 2, [n * time for time in times]
        found = raced(mixture, n, seeds, heads, "plain", step_size / s**2, at[-1], at)
        return {name: (("time", "seed"), values.data) for name, values in found.items()}

    return sweep(one, n=n_samples).assign_coords(time=list(times))


@oracle_target.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    # of (4), the part with the distance: D^2 = 2 (log n / S)^2, in eta K steps of units of 1 / S^2
    bound = 2.5 * np.log(data.n) ** 2 / (data.attrs["settings"]["step_size"] * data.n * data.time)
    at_n, later = data.sel(time=1), data.isel(time=-1)
    return {
        "MH-53.4": {
            "largest_mass_at_n": at_n.mass.max("n"),
            "largest_mass_later": later.mass.max("n"),
            "largest_share_later": later.share.max("n"),
            "largest_loss_over_bound": (data.loss / bound).max(("n", "time")),
        }
    }


LIMIT = oracle.attention_margin(FEW)


def raced(
    mixture: Mixture,
    n_samples: int,
    seeds: Sequence[int],
    heads: float,
    rule: str,
    step_size: float,
    steps: int,
    record_at: Sequence[int],
) -> xr.Dataset:
    """Train equal heads from zero, one network for each seed, and look at them on the way."""
    drawn = draw(mixture, n_samples, seeds, device=device())
    objective, counts = OBJECTIVES[rule](drawn.labels), drawn.tokens.new_full((len(seeds), 1), heads)
    targets = [oracle.key_query(draw_patterns(mixture, rng=stream(seed, "patterns"))) for seed in seeds]
    target = torch.from_numpy(np.stack(targets)).to(drawn.tokens)

    def look(now: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = layer.outputs(now, drawn.tokens, counts=counts)
        norm = head_groups.norm({"decoder": now["decoder"]}, counts=counts)
        one = now["key_query"][:, 0]
        length = (one.norm(dim=(1, 2)) * target.norm(dim=(1, 2))).clamp(min=1e-300)
        return {
            "share": (drawn.labels * outputs).amin(1) / norm / oracle.attention_margin(mixture),
            "norm": norm,
            "key_query_norm": head_groups.norm({"key_query": now["key_query"]}, counts=counts),
            "mass": measures.relevant_mass(now, drawn.tokens, drawn.relevant)[:, 0],
            "cosine": (one * target).sum((1, 2)) / length,
            "loss": objectives.logistic(drawn.labels)(outputs)[0],
        }

    history = train_members(
        lambda now, _: layer.value_and_gradient(now, drawn.tokens, objective, counts=counts),
        starts.zero(len(seeds), mixture.n_tokens, mixture.dimension, device=drawn.tokens.device),
        optimizer=SGD(step_size),
        steps=steps,
        record=look,
        record_at=record_at,
    )
    return xr.Dataset({name: (("step", "seed"), x) for name, x in history.records.items()}, {"step": list(record_at)})


def best_average(tokens: Tensor, labels: Tensor) -> np.ndarray:
    """Return the largest margin per norm of a decoder with uniform attention, by an exact solver; 0 for none."""
    means = tokens.mean(2).cpu().numpy()
    kernels = tokens.shape[2] * means @ means.swapaxes(1, 2)
    return largest_margins(kernels, labels.cpu().numpy())


ATTENTION = Look("oracle: all attention on relevant tokens", "#0b5cad", "-", "o")
DESCENT = {
    "normalised": Look("normalised descent", "#0e7490", "-", "s"),
    "plain": Look("plain descent", "#c2410c", "-.", "^"),
}
BY_FRACTION = {
    0.05: Look("average, 5 % relevant", "#111111", ":", "D"),
    0.1: Look("average, 10 % relevant", "#5b5f66", "--", "s"),
    0.3: Look("average, 30 % relevant", "#9d174d", (0, (3, 1, 1, 1)), "P"),
}
BEST = Look("best linear rule, computed", "#111111", "none", "o", hollow=True)
SHARE = "margin, oracle = 1"
LOST = "#e5e7eb"  # where a sample is on the wrong side


def race(data: xr.Dataset, yours: Mapping[str, Mapping[int, float]] | None = None) -> Figure:
    """Draw the margins of one head during training, in units of the oracle's, between oracle and best average."""
    import matplotlib.pyplot as plt

    one = data.sel(heads=1, plain_size=PLAIN, normalised_size=NORMALISED)
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.3))
        ax.axhspan(-1, 0, color=LOST, zorder=0)
        for rule, look in DESCENT.items():
            band(ax, one.step, one[f"{rule}_share"].transpose("seed", "step"), look)
        ax.axhline(1, color=INK, linewidth=1.4, label="oracle")
        ax.axhline(float(one.floor.median()), color=INK, linestyle=":", label="best average")
        own_lines(ax, yours)
        ax.set(xscale="log", xlabel="step", ylabel=SHARE, ylim=(-0.45, 1.08), xlim=(3, None))
        figure.legend(loc="outside upper left", ncols=3 if yours else 4, fontsize=9.5)
    return figure


def separation(data: xr.Dataset) -> Figure:
    """Draw the smallest margins of averages and of the oracle against the noise."""
    import matplotlib.pyplot as plt

    limit = (of_cell(1.0, 0.1, 0.0).n_tokens / 2) ** 0.5  # the attention margin at S = 1
    with style():
        figure, ax = plt.subplots(figsize=(7.2, 3.4))
        ax.axhspan(-1, 0, color=LOST, zorder=0)
        band(ax, data.noise, data.attention.isel(fraction=0).transpose("seed", "noise") / limit, ATTENTION)
        curves(ax, data.uniform / limit, "noise", "fraction", BY_FRACTION, "average, {} relevant")
        best = data.best.median("seed") / limit
        points = best.where(best > 0).stack(point=("fraction", "noise")).dropna("point")
        ax.plot(points.noise, points, **BEST.line_style())
        ax.text(0.0, -0.17, "a sample is on the wrong side", fontsize=9.5)
        ax.set(xlabel="noise along patterns, pattern length 1", ylabel=SHARE, ylim=(-0.22, 1.06))
        figure.legend(loc="outside upper left", ncols=2)
    return figure


def equal_norms(data: xr.Dataset, step: int) -> Figure:
    """Draw the margins of one head where plain descent stops, until a step; and who is ahead there in each seed."""
    import matplotlib.pyplot as plt

    one = data.sel(heads=1, step=slice(2, step))
    lead = np.sort((one.share - one.normalised_share).isel(step=-1))
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.2), width_ratios=(1.6, 1))
        left.axhspan(-1, 0, color=LOST, zorder=0)
        for name, look in {"normalised_share": DESCENT["normalised"], "share": DESCENT["plain"]}.items():
            band(left, one.step, one[name].transpose("seed", "step"), look)
        left.set(xscale="log", xlim=(1.8, 5000), ylim=(-0.85, 1.05), ylabel=SHARE)
        left.set_xlabel("step at which plain descent stops")
        left.legend(loc="upper left", fontsize=9.5)
        right.axhline(0, color=INK, linewidth=1)
        right.plot(range(1, len(lead) + 1), lead, "o", color="#7c3aed", markersize=3)
        right.set(ylabel="lead of plain descent", xlabel="seeds, sorted by lead")
    return figure


def lead_text(data: xr.Dataset, step: int) -> str:
    """Say who is ahead at equal norm when plain descent stops at a step."""
    one = data.sel(heads=1, step=step)
    lead = one.share - one.normalised_share
    ahead = f"plain descent is ahead in {int((lead > 0).sum())} of {lead.size} seeds"
    return f"Plain descent stops at step {step}: {ahead}, median lead {float(lead.median()):+.2f}."


def sample_weights(answer: Callable[..., Any]) -> str | None:
    """Check the weight of each sample in the gradient of the normalised loss."""
    for margins in (np.array([0.3, 1.2, -0.5]), np.array([2000.0, 1001.0, 1000.0])):
        right = np.exp(margins.min() - margins)
        right /= right.sum()
        with np.errstate(all="ignore"):
            got = np.asarray(answer(margins.copy()), dtype=float)
        if not np.isfinite(got).all():
            return f"margins {margins}: 0 / 0; subtract the smallest margin before you take exponentials"
        slopes, opposite = 1 / (1 + np.exp(np.minimum(margins, 700))), np.exp(margins - margins.max())
        likely = {
            "the sign: a sample with a large margin weighs little": opposite / opposite.sum(),
            "these are the slopes of the logistic loss; divide by the loss": slopes,
            "these are shares of the logistic slopes; this loss is the exponential one": slopes / slopes.sum(),
        }
        if found := verdict(got, right, likely, "one weight for each of 3 samples", rtol=1e-6):
            return f"margins {margins}: {found}"
    return None


def scale_for_a_leak(answer: Callable[..., Any]) -> str | None:
    """Check the smallest scale that keeps one query's leak at a given share."""
    from scipy.optimize import brentq  # loaded where an equation is solved: it takes a second

    rng = stream(1, "exercise", "MH-SATURATE")
    cases = [(rng.uniform(0.5, 1.5, 5), 2, 0.1), (rng.uniform(0.1, 1.0, 9), 1, 0.01), (np.full(3, 0.5), 4, 0.3)]

    def smallest(gaps: np.ndarray, k: int, leak: float) -> float:
        return float(brentq(lambda scale: np.exp(-scale * gaps).sum() - k * leak / (1 - leak), 0, 1000))

    def scales(of: Callable[[np.ndarray, int, float], float]) -> np.ndarray:
        return np.array([float(of(gaps.copy(), k, leak)) for gaps, k, leak in cases])

    likely = {
        "the leak is a share of all attention: what is left for relevant keys is 1 - leak, not 1": scales(
            lambda gaps, k, leak: smallest(gaps, k, leak / (1 + leak))
        ),
        "each of the relevant keys gets attention, not one of them": scales(
            lambda gaps, _, leak: smallest(gaps, 1, leak)
        ),
        "this is safe but not the smallest: it treats all keys as if they had the smallest gap": scales(
            lambda gaps, k, leak: smallest(np.full(len(gaps), gaps.min()), k, leak)
        ),
    }
    return verdict(scales(answer), scales(smallest), likely, "one number", rtol=1e-4)


CHECKS = {"MH-SATURATE": scale_for_a_leak, "MH-WEIGHTS": sample_weights}
