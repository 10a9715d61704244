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

from attnbook.core.ensemble import History, Parameters, log_spaced
from attnbook.core.feedback import verdict
from attnbook.core.rng import stream
from attnbook.lab import Counts, Increasing, Seeds, device, experiment, highest, lowest, slope, sweep, track
from attnbook.multi_head import head_groups, layer, leave_one_out, oracle, start_bounds, starts
from attnbook.multi_head.certificate import Certificate, certify, heads_for
from attnbook.multi_head.convergence_bounds import (
    order_heads,
    regret_bound,
    sketch_heads,
    smoothness,
    target_distance,
    theorem_2,
)
from attnbook.multi_head.curvature_bounds import LossConstants, loss_constants
from attnbook.multi_head.data import Drawn, Mixture, draw
from attnbook.multi_head.leave_one_out import LeaveOneOut
from attnbook.multi_head.measures import relevant_mass
from attnbook.multi_head.network import largest_head_norm
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.realizability import PENALTIES, nearest_targets
from attnbook.multi_head.tangent_kernel import TangentMargin, tangent_margin
from attnbook.show import INK, Look, Table, band, log_axis, own_lines, spread, style
from attnbook.train import SGD, train

if TYPE_CHECKING:  # loaded only where something is drawn
    from matplotlib.figure import Figure

PAGE = Mixture(10, 10, 4, 1.0, 0.2, 0.05, 0.05, 0.3)  # the data of the page
CLEAN = Mixture(4, 6, 2, 1.0, 0.5, 0.02, 0.02, 0.2)  # small and nearly clean
NOISY = Mixture(5, 10, 4, 1.0, 0.2, 0.3, 0.3, 1.0)
TWO_TOKENS: dict[str, Any] = {"n_tokens": 2, "dimension": 2, "token_norm": 1.0}
SEGMENT = 4 / 3  # by which the loss may rise between two near networks, Proposition 4
HEADS: dict[str, Callable[[float], float]] = {
    "4": lambda n: 4.0,
    "16": lambda n: 16.0,
    "64": lambda n: 64.0,
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

    def start_and_samples(self) -> tuple[Parameters, Tensor, Tensor]:
        """Return what most functions of the library begin with."""
        return self.start, self.tokens, self.labels

    def loss(self, networks: Parameters, on: Drawn | None = None) -> Tensor:
        """Return the loss of one network of each member, on its own samples or on others."""
        tokens, labels = on[:2] if on else (self.tokens, self.labels)
        return logistic(labels)(layer.outputs(networks, tokens, counts=self.counts))[0]

    def tangent(self) -> TangentMargin:
        """Return the largest margin of the linearised network, and its direction."""
        return tangent_margin(*self.start_and_samples(), counts=self.counts)

    def towards(self, direction: Parameters, distance: np.ndarray) -> Parameters:
        """Return the networks at some distance from the start, one for each member."""
        far = torch.from_numpy(distance).to(self.tokens)[:, None, None, None]
        return {name: tensor + far * direction[name] for name, tensor in self.start.items()}

    def loss_and_gradient(self, now: Parameters, batch: None = None) -> tuple[Tensor, Parameters]:
        """Return the training loss of each member and its gradient in one head of each group."""
        return layer.value_and_gradient(now, self.tokens, logistic(self.labels), counts=self.counts)

    def train(self, step_size: Any, steps: int, record: Callable[..., Any], at: Sequence[int] | None = None) -> History:
        """Train by gradient descent."""
        options: dict[str, Any] = {"optimizer": SGD(step_size), "steps": steps, "record": record, "record_at": at}
        return train(self.loss_and_gradient, self.start, **options)


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
    budget=60,
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
        away = head_groups.norm(apart(last, nets.start), counts=nets.counts)
        found = {"train_loss": nets.loss(last), "test_loss": nets.loss(last, test), "moved": moved, "away": away}
        return {name: ("seed", tensor.cpu().numpy()) for name, tensor in found.items()}

    def target(n: float) -> dict[str, Any]:
        nets = drawn(n, PRINTED)
        penalties = tuple(np.geomspace(0.1, 1e-6, 11))
        near = nearest_targets(*nets.start_and_samples(), counts=nets.counts, penalties=penalties)
        return {"margin": ("seed", nets.tangent().margin), "needed": ("seed", near.distance_for(1 / n))}

    parts = track([(trained, {"rule": HEADS}), (target, {})])
    return xr.merge([sweep(one, **rules, n=sizes) for one, rules in parts])


@polylog_heads.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    eta, many, few = data.attrs["settings"]["step_size"], data.sel(rule=PRINTED), data.sel(rule=FEW)
    gap = (many.test_loss - many.train_loss).mean("seed").clip(min=NO_GAP)
    far = xr.DataArray(target_distance(steps=data.n, margin=data.margin))
    run: dict[str, Any] = {"target_loss": 1 / data.n, "step_size": eta, "steps": data.n}
    first, third = (data.train_loss / regret_bound(**run, distance=distance) for distance in (far, data.needed))
    second = 17 * far**2 / (eta * data.n)
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
        "MH-T1.1": {"largest_ratio": highest(first), "largest_ratio_distance": highest(data.away / (4 * far))},
        "MH-C3": {"largest_ratio": highest(third)},
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


@experiment(
    "multi_head.realizability",
    budget=30,
    needs="float64",
    smoke={"heads": (4, 64), "wanted": (10, 1000), "seeds": (0, 1)},
)
def realizability(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Increasing = (4, 64, 1e4, 1e6, 1e8, 1e10, 1e12),
    wanted: Counts = (10, 30, 100, 300, 1000, 10_000, 1_000_000),  # K, for targets of loss 1/K
) -> xr.Dataset:
    """Where the targets of Corollary 2 are on nearly clean data: losses at the stated distance, and distances needed."""

    def at(n_heads: float) -> dict[str, Any]:
        nets = wide(CLEAN, 40, seeds, random_signs(seeds, n_heads))
        tangent, near = nets.tangent(), nearest_targets(*nets.start_and_samples(), counts=nets.counts)
        largest = layer.outputs(nets.start, nets.tokens, counts=nets.counts).abs().amax(1).clamp(min=1).cpu().numpy()
        stated = [target_distance(steps=k, margin=tangent.margin, output_bound=largest) for k in wanted]

        def along(times: float) -> list[np.ndarray]:
            return [nets.loss(nets.towards(tangent.direction, times * far)).cpu().numpy() for far in stated]

        found = {
            "target": along(1.0),
            "farther": along(2**0.5),
            "least": [near.loss_at(far) for far in stated],
            "needed": [near.distance_for(1 / k) / far for k, far in zip(wanted, stated, strict=True)],
        }
        return {name: (("k", "seed"), values) for name, values in found.items()}

    return sweep(at, heads=heads).assign_coords(k=list(wanted))


@realizability.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    some, late = data.where(data.heads >= 64, drop=True), data.sel(k=1000)
    return {
        "MH-A2": {
            "largest_scaled_loss": highest(data.k * some.farther),
            "largest_needed_over_printed": highest(some.needed),
            "largest_needed_few": highest(data.needed.isel(heads=0)),
        },
        "MH-P7": {
            "share_above_last": (1000 * late.target > 1).mean("heads").mean(),
            "least_share_above_last": (1000 * late.least > 1).mean(),
            "scaled_loss_last": 1000 * late.target.median("heads"),
        },
    }


@experiment(
    "multi_head.certificates", budget=60, needs="float64", smoke={"dimensions": (8, 16), "steps": 20, "seeds": (0, 1)}
)
def certificates(
    seeds: Seeds = (0, 1, 2, 3, 4),
    dimensions: Counts = (10, 40),  # of a token
    n_samples: PositiveInt = 40,  # training samples
    heads: PositiveFloat = 1e8,  # of the networks that are trained
    steps: PositiveInt = 3000,  # of gradient descent
) -> xr.Dataset:
    """Theorem 1 with heads tracked one by one: certificates on the data of the page, and training under them."""

    def at(dimension: float) -> dict[str, Any]:
        nets = wide(replace(PAGE, dimension=int(dimension)), n_samples, seeds, heads)

        def given(i: int, n_heads: float) -> Certificate:
            start = {name: tensor[i] for name, tensor in nets.start.items()}
            return certify(nets.tokens[i], nets.labels[i], start, n_heads, targets=50)

        def record(now: Parameters) -> dict[str, Tensor]:
            return {"loss": nets.loss(now), "move": largest_head_norm(apart(now, nets.start))}

        found = [given(i, heads) for i in range(len(seeds))]
        kept = nets.train([one.step_size for one in found], steps, record, range(steps + 1)).records
        bounds = np.array([[one.bound_after(k) for k in range(1, steps + 1)] for one in found])
        values = {
            "fewest": [one.fewest_heads for one in found],
            "enough": [given(i, one.fewest_heads).bound for i, one in enumerate(found)],
            "short": [given(i, 0.99 * one.fewest_heads).bound for i, one in enumerate(found)],
            "step_size": [one.step_size for one in found],
            "bound": bounds[:, -1],
            "ratio": (averages(kept["loss"])[1:].T / bounds).max(1),
            "move": kept["move"][-1],
        }
        return {name: ("seed", np.array(value)) for name, value in values.items()}

    return sweep(at, dimension=dimensions)


@certificates.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    narrow, wide_ = data.fewest.isel(dimension=0), data.fewest.isel(dimension=-1)
    return {
        "MH-T1-tracked": {
            "largest_bound": highest(data.bound),
            "largest_ratio": highest(data.ratio),
            "largest_head_move": highest(data.move),
            "largest_enough": highest(data.enough),
            "smallest_short": lowest(data.short),
            "fewest_heads": narrow,
            "most_heads": highest(data.fewest),
            "wide_over_narrow": wide_ / narrow,
        }
    }


@experiment("multi_head.inside_theorem", budget=60, needs="float64", smoke={"steps": 300, "seeds": (0, 1)})
def inside_theorem(
    seeds: Seeds = (0, 1, 2, 3, 4),
    n_heads: PositiveFloat = 1e12,  # half of them with each sign
    distance: PositiveFloat = 2.17,  # of the target; about that of the smallest bound among those that are allowed
    steps: PositiveInt = 185_000,  # of gradient descent
    records: PositiveInt = 30,  # log-spaced steps to keep
) -> xr.Dataset:
    """Theorem 1 inside its own hypotheses: two tokens in the plane, constants as printed, about two hundred thousand steps."""
    drawn = [two_tokens(stream(seed, "two tokens")) for seed in seeds]
    tokens, labels = (torch.tensor(np.stack(part), device=device()) for part in zip(*drawn, strict=True))
    nets = Wide(starts.first_phase(tokens, labels), tokens.new_full((len(seeds), 2), n_heads / 2), tokens, labels)
    target = nets.towards(nets.tangent().direction, np.full(len(seeds), distance))
    sizes = TWO_TOKENS | {"head_norm": largest_head_norm(target).cpu().numpy(), "distance": distance}
    eta = np.minimum(1.0, 1 / smoothness(**sizes, n_heads=n_heads))
    loss, at_start = (nets.loss(one).cpu().numpy() for one in (target, nets.start))
    rate, now, total = torch.from_numpy(eta).view(-1, 1, 1, 1).to(tokens), nets.start, torch.zeros_like(labels[:, 0])
    kept, rows = [int(k) for k in log_spaced(steps, records)], []
    objective = logistic(labels)
    for first in track(range(0, steps + 1, 1000)):
        for step in range(first, min(first + 1000, steps + 1)):
            value, gradient = layer.value_and_gradient(now, tokens, objective, counts=nets.counts)
            total = total + value if step else total
            after = {name: now[name].addcmul(rate, gradient[name], value=-1) for name in now}
            if step in kept:
                sides = apart(now, nets.start), apart(now, target), gradient
                norms = [head_groups.norm(one, counts=nets.counts) for one in sides]
                rows.append(
                    torch.stack([value, nets.loss(after), total / max(step, 1), *norms, largest_head_norm(now)])
                )
            now = after
    value, following, average, away, from_target, slopes, head_norm = torch.stack(rows, 1).cpu().numpy()
    bound = regret_bound(target_loss=loss, distance=distance, step_size=eta, steps=np.maximum(kept, 1)[:, None])
    beta_2 = loss_constants(**TWO_TOKENS, n_heads=n_heads, largest_head_norm=head_norm).smoothness
    found = {
        "distance": away / (4 * distance),
        "from_target": from_target / (3 * distance),
        "descent": (value - following) / (eta / 2 * slopes**2),
        "slack": 1 / (beta_2 * eta),
        "bound": bound,
        "regret": average / bound,
        "final": value / np.where(average > 0, average, np.inf),
    }
    asked = [sketch_heads(**sizes) / n_heads, eta * steps * loss / distance**2, eta * at_start / distance**2]
    data = {name: (("step", "seed"), array) for name, array in found.items()}
    return xr.Dataset(data | {"asked": (("hypothesis", "seed"), asked)}, {"step": kept})


@inside_theorem.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    later = data.isel(step=slice(1, None))
    return {
        "MH-T1.1-regret": {
            "largest_asked": highest(data.asked),
            "largest_ratio": highest(later.regret),
            "largest_last": highest(later.final),
            "bound_at_the_end": highest(data.bound.isel(step=-1)),
            "smallest_descent": lowest(data.descent),
            "smallest_rho_over_beta_2": lowest(data.slack),
        },
        "MH-T1.2": {"largest_ratio": highest(data.distance), "largest_from_target": highest(later.from_target)},
    }


@experiment(
    "multi_head.proof_steps",
    group=1,
    budget=60,
    needs="float64",
    smoke={"sizes": (5, 10), "steps": 10, "inside": (60, 1e12, 0.06, 5), "test_samples": 50, "seeds": (0, 1)},
)
def proof_steps(
    seeds: Seeds = (0, 1, 2, 3, 4),
    heads: Increasing = (4, 1e8),  # a small and a huge number
    sizes: Counts = (10, 20, 40, 80),  # numbers of training samples
    steps: PositiveInt = 60,
    step_size: PositiveFloat = 0.5,  # practical
    inside: tuple[int, float, float, int] = (3000, 1e12, 0.06, 200),  # samples, heads, step size, steps: all holds
    left_out: PositiveInt = 2,  # samples that are left out in turn there
    test_samples: PositiveInt = 2000,
) -> xr.Dataset:
    """Theorem 2 and the steps of its proof, two sides each, from networks without one sample."""

    def one(seed: int) -> xr.Dataset:
        def usual(n_heads: float, n: float) -> dict[str, Any]:
            return two_sides(seed, NOISY, (int(n), n_heads, step_size, steps), test_samples, None)

        within = two_sides(seed, CLEAN, inside, test_samples, range(left_out))
        named = xr.Dataset({f"inside_{name}": value for name, value in within.items()})
        return sweep(usual, heads=heads, n=sizes).merge(named)

    return sweep(one, seed=seeds)


@proof_steps.measures
def _(data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
    gap, slopes = data.test_loss - data.train_loss, slope(data.distance, "n")
    own, bound = data.inside_left_out_gap, data.inside_bound
    lemma = data.lemma_3.mean("seed") / gap.mean("seed").clip(min=NO_GAP)
    inside = {"inside_largest_condition": highest(data.inside_condition)}

    def both(name: str) -> dict[str, Any]:
        return {"largest_ratio": highest(data[name]), "inside_ratio": highest(data[f"inside_{name}"])}

    return {
        "MH-ST.1": {"slope_few": slopes.isel(heads=0), "slope_wide": slopes.isel(heads=-1)},
        "MH-ST.2": both("recursion") | inside,
        "MH-ST.2-expansive": both("expansive"),
        "MH-ST.4": {
            "smallest_slack": np.log10(lemma).min(),
            "inside_slack": np.log10(data.inside_lemma_3.mean() / own.mean().clip(min=NO_GAP)),
        },
        "MH-ST.5": both("stability") | inside,
        "MH-T2.2-target": inside
        | {
            "left_out_gap": own.mean(),
            "left_out_error": own.std(ddof=1) / own.size**0.5,
            "gap_over_bound": own.mean() / bound.mean(),
            "largest_bound": highest(bound),
            "promised_test_loss": highest(data.inside_train_loss + bound),
        },
    }


def two_sides(
    seed: int, data: Mixture, run: tuple[int, float, float, int], test_samples: int, left_out: Sequence[int] | None
) -> dict[str, Any]:
    """Train the full network and those without one sample; return the two sides of each step of the proof, as ratios."""
    n, n_heads, step_size, steps = run
    nets = wide(data, n, (seed,), n_heads, f"samples {n}")
    test = draw(data, test_samples, (seed,), purpose="test", device=device())
    start, same = nets.start_and_samples(), {"counts": nets.counts}
    path = leave_one_out.train(
        *start, **same, step_size=step_size, steps=steps, record_at=range(steps + 1), left_out=left_out
    )
    near = nearest_targets(*start, **same, penalties=PENALTIES[:20] if left_out else PENALTIES)
    bounds = theorem_2(
        n_samples=n, steps=steps, step_size=step_size, target_loss=near.loss, target_distance=near.distance
    )
    allowed = step_size * steps * near.loss <= near.distance**2
    best = np.where(allowed, bounds, np.inf)[0].argmin()
    bound, loss, square = bounds[0, best], near.loss[0, best], near.distance[0, best] ** 2

    sizes: dict[str, Any] = {"n_tokens": data.n_tokens, "dimension": data.dimension, "n_heads": n_heads}
    norms = np.maximum(path.head_norm[:, :, :1], path.head_norm[:, :, 1:])
    beta = loss_constants(**sizes, token_norm=data.token_norm, largest_head_norm=norms)
    largest = LossConstants(*(np.max(constant) for constant in beta))
    distance, bent = path.distance, step_size * beta.curvature / n_heads**0.5
    forcing = step_size * beta.gradient * path.sample_loss / n
    stretch = 1 + SEGMENT * bent * (path.kept_loss + path.reduced_loss)  # eq. (22)
    expansive = np.maximum(1 + bent * np.maximum(path.kept_loss, path.reduced_loss), step_size * beta.smoothness)
    conditions = [  # what the proof needs to be at most 1
        step_size,
        step_size * largest.smoothness,
        step_size * largest.gradient**2,  # where Lemma 3 meets the stability bound
        18 * largest.curvature * square / n_heads**0.5,  # eq. (18) for a network and the target, 3 D away
        2 * largest.curvature * distance.max() ** 2 / n_heads**0.5,  # eq. (18) for a pair
        step_size * steps * loss / square,
        step_size * path.train_loss[0, 0] / square,
    ]
    last = {name: tensor[:, 0] for name, tensor in path.networks.items()}
    return {
        "distance": distance[-1].mean(),
        "train_loss": path.train_loss[-1, 0],
        "test_loss": float(nets.loss(last, test)[0]),
        "left_out_gap": (path.left_out_loss - path.sample_loss)[-1].mean(),
        "recursion": (distance[1:] / (stretch[:-1] * distance[:-1] + forcing[:-1])).max(),
        "expansive": (expansion(nets, path, step_size, left_out) / expansive[-1, 0]).max(),
        "lemma_3": 2 * beta.gradient[-1].max() * distance[-1].mean(),
        "bound": bound,
        # The end of Section 6.2: the bracket of Theorem 2 times 2 eta beta_1 / n in place of 4 / n.
        "stability": distance[-1].mean() / (step_size * largest.gradient / 2 * bound),
        "condition": max(conditions),
    }


def expansion(nets: Wide, path: LeaveOneOut, step_size: float, left_out: Sequence[int] | None) -> np.ndarray:
    """Return how much a step without sample i drives the final full and reduced networks of a set apart."""
    weights = leave_one_out.leave_one_out_weights(nets.tokens.shape[1], left_out)[1:].to(nets.tokens)
    n = len(weights)
    x, y, counts = (tensor.expand(n, *tensor.shape[1:]) for tensor in (nets.tokens, nets.labels, nets.counts))
    pair = [
        {name: models[0, where].expand(n, *models.shape[2:]) for name, models in path.networks.items()}
        for where in (slice(0, 1), slice(1, None))
    ]

    def step(networks: Parameters) -> Parameters:
        slopes = layer.value_and_gradient(networks, x, logistic(y, weights), counts=counts)[1]
        return {name: tensor - step_size * slopes[name] for name, tensor in networks.items()}

    before, after = apart(*pair), apart(*map(step, pair))
    return (head_groups.norm(after, counts=counts) / head_groups.norm(before, counts=counts)).cpu().numpy()


def two_tokens(rng: np.random.Generator, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Draw samples in the plane: one token is the label times the first unit vector, the other half of the second."""
    labels = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
    tokens, relevant = np.zeros((n, 2, 2)), rng.integers(0, 2, n)
    tokens[np.arange(n), relevant, 0] = labels
    tokens[np.arange(n), 1 - relevant, 1] = rng.uniform(-1, 1, n) / 2
    return tokens, labels


def random_signs(seeds: Sequence[int], n_heads: float) -> np.ndarray:
    """Draw how many heads have each sign, until both occur: else there would be one group."""
    found = []
    for seed in seeds:
        rng = stream(seed, "signs", f"{n_heads:g}")
        while (plus := rng.binomial(int(n_heads), 0.5)) in (0, n_heads):
            pass
        found.append([plus, n_heads - plus])
    return np.array(found, dtype=float)


def averages(loss: np.ndarray) -> np.ndarray:
    """Return the average over steps 1 to each one along the first axis; the loss itself at step 0."""
    steps = np.arange(1, len(loss)).reshape(-1, *[1] * (loss.ndim - 1))
    return np.concatenate([loss[:1], np.cumsum(loss[1:], axis=0) / steps])


def apart(one: Parameters, other: Parameters) -> Parameters:
    """Return the difference of two networks."""
    return {name: one[name] - other[name] for name in one}


BY_HEADS = {
    PRINTED: Look("$\\log^6n$ heads", "#0b5cad", "-", "o"),
    TRACKED: Look("$\\log^4n$ heads", "#15803d", (0, (5, 1)), "v"),
    FEW: Look("4 heads", "#c2410c", "-.", "^"),
    "16": Look("16 heads", "#8a5a00", ":", "D"),
    "64": Look("64 heads", "#7c3aed", "--", "P"),
}


def losses(
    data: xr.Dataset, yours: Mapping[str, Mapping[float, float]] | None = None, rules: Sequence[str] = (PRINTED, FEW)
) -> Figure:
    """Draw losses and numbers of heads against the number of samples.

    Args:
        data: What :func:`polylog_heads` gave.
        yours: Name of a line of the reader's own to number of samples to loss; default none.
        rules: Which numbers of heads; default the paper's and four.

    Returns:
        The figure.
    """
    import matplotlib.pyplot as plt

    n = data.n.values
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 4.1), width_ratios=(1.35, 1))
        for rule in rules:
            for name, text, marker in (("train_loss", "training", "o"), ("test_loss", "test", "s")):
                look = replace(
                    BY_HEADS[rule], label=f"{text}, {BY_HEADS[rule].label}", marker=marker, hollow=marker == "s"
                )
                band(left, n, data[name].sel(rule=rule).transpose("seed", "n").values, look)
        left.plot(n, 16 / n, color=INK, linewidth=1, linestyle=":", marker="", label="slope of 1/n")
        own_lines(left, yours)
        left.set(yscale="log", ylabel="loss")
        lowest, highest = left.get_ylim()
        left.set_ylim(min(8e-3, lowest), max(0.9, highest))  # the reader's own lines lie inside
        if lowest >= 5e-3:
            left.set_yticks([0.01, 0.03, 0.1, 0.3], ["0.01", "0.03", "0.1", "0.3"])
            left.minorticks_off()
        for rule in (PRINTED, TRACKED, FEW) if len(rules) > 1 else rules:
            right.plot(n, [HEADS[rule](size) for size in n], **BY_HEADS[rule].line_style())
        right.set(yscale="log", ylabel="number of heads", ylim=(2, 3e6))
        right.legend(fontsize=9.5)
        for ax in (left, right):
            log_axis(ax, n, "training samples n, and steps")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=9.5)
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


def needed(data: xr.Dataset) -> Table:
    """Return how many heads the guarantee needs for the largest number of samples, and as many steps."""
    last, rows = data.isel(n=-1), []
    limit, unit = (oracle.first_phase_margin(PAGE, residual=residual) for residual in (0.0, 1.0))
    first = (start_bounds.residual_size(PAGE, 1) * (limit - unit) / limit) ** 2  # samples: the margin is 0 there
    output = start_bounds.output_bound(PAGE, 0.0, n_samples=int(last.n))
    known: dict[str, Any] = {"n_tokens": PAGE.n_tokens, "token_norm": PAGE.token_norm}
    for name, margin, largest in (("measured", last.margin, 1.0), ("Section 5", limit / 2, output)):
        far = np.atleast_1d(target_distance(steps=last.n, margin=margin, output_bound=largest))
        sizes = known | {"dimension": PAGE.dimension, "head_norm": 1.0, "distance": far}
        for condition, heads in {
            "of Theorem 1, constant 1": order_heads(**sizes),
            "of its proof, as printed": sketch_heads(**sizes),
            "with each head tracked": heads_for(far, **known, start_head_norm=1.0),
        }.items():
            rows.append([condition, name, spread(far, ".0f"), spread(heads, ".0e")])
    caption = f"{int(last.n)} samples and steps. Measured: median [smallest, largest] of six seeds. "
    caption += f"Section 5: an endless first phase; with less than {first:,.0f} samples its margin is negative."
    return Table(["condition", "margin", "distance of the target", "heads"], rows, caption)


def gap_table(data: xr.Dataset) -> Table:
    """Return the bound of Theorem 2 inside its conditions, what it promises, and the gap."""
    own = data.inside_left_out_gap
    error = float(own.std(ddof=1)) / own.size**0.5
    rows = [
        ["training loss", spread(data.inside_train_loss, ".3f")],
        ["bound on the gap, Theorem 2", spread(data.inside_bound, ".3f")],
        ["gap, on fresh samples", spread(data.inside_test_loss - data.inside_train_loss, ".0e")],
        ["gap, by leaving samples out", f"{float(own.mean()):.1e} ± {error:.0e}"],
    ]
    return Table(
        ["", "value"], rows, "Five training sets: median [smallest, largest]; the last row mean and standard error."
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
    }
    return verdict(float(answer(full.copy(), reduced.copy())), right, likely, "one number")


CHECKS = {"MH-TB2": step_of_groups, "MH-GEN-1": left_out_gap}
