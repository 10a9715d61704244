"""The experiments of the chapter: single steps, matrices in a cone, and runs that start in one. The sizes are ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.experiment import Arrays, Experiment, highest, lowest, share_of_seeds
from attnbook.core.rng import stream, to_tensor
from attnbook.core.runtime import Progress, share
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, descend, excess_loss, loss_and_gradient
from attnbook.mirror_descent.cone_probes import ConeStarts, cone_starts, second_choice
from attnbook.mirror_descent.data import draw_problems, joined
from attnbook.mirror_descent.rates import one_step
from attnbook.mirror_descent.rates.cone_lemmas import in_the_cone

CHOICES = ["best", "second"]  # tokens: the best of each sample; one of them exchanged for the second best
TINY = 1e-10  # slack below zero that is rounding
RESOLVED = 1e-5  # steps shorter than this share of the mirror image's norm are not checked
BEYOND, GROWING = 30.0, 20.0  # relative norms from which rates are compared and slopes of the norm are fitted


@dataclass(frozen=True, kw_only=True)
class OneStep(Experiment):
    """Lemmas 4 and 22 to 25 at every step of short runs from random starts, with steps up to much too large ones."""

    id = "mirror_descent.steps"
    summary = "Lemmas 4 and 22 to 25 at every step of plain runs, by step size"
    needs = "float64"
    budget_seconds = 15
    smoke = {"ps": (1.5, 3.0), "step_sizes": (0.1, 1000.0), "steps": 3, "seeds": (0, 1)}

    ps: tuple[float, ...] = (1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0)
    step_sizes: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)  # increasing; the first counts as small
    steps: int = 60
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def coordinates(self) -> dict[str, Any]:
        """Name exponents and step sizes."""
        return {"p": list(self.ps), "step_size": list(self.step_sizes)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Take the steps, and keep the smallest slack of each lemma along each run."""
        one, sizes = draw_problems(seeds), len(self.step_sizes)
        copies = len(self.ps) * sizes
        problems, ps = joined([one] * copies), np.repeat(self.ps, sizes * len(seeds))
        step_size = np.tile(np.repeat(self.step_sizes, len(seeds)), len(self.ps))
        shape = (2, *one.tokens.shape[3:] * 2)
        drawn = np.stack([stream(s, "start and third").standard_normal(shape) for s in seeds])
        start, third = np.moveaxis(np.tile(drawn, (copies, 1, 1, 1)), 1, 0)
        options = {"step_size": step_size.tolist(), "start": start, "record_at": range(self.steps + 1)}
        path = descend(problems, ps, steps=self.steps, device=device, progress=progress, **options).records["key_query"]
        with runtime.threads(1):
            batch = Batch.of(problems)
            found = [loss_and_gradient({"key_query": to_tensor(w, dtype=torch.float64)}, batch) for w in path]
        losses, gradients = np.stack([v for v, _ in found]), np.stack([g["key_query"] for _, g in found])
        before, after, pair = path[:-1], path[1:], (losses[:-1], losses[1:])
        slacks = one_step.step_slacks(before, after, pair, step_size, ps)
        # Once attention is saturated a step is smaller than the rounding of what it moves: nothing to check there.
        moved = slacks.length > RESOLVED * mirror.entrywise_norm(before, ps) ** (ps - 1)
        error = one_step.three_point_step_error(
            before, after, np.broadcast_to(third, before.shape), pair, gradients[:-1], step_size, ps
        )
        arrays = {f"lemma_{n}": np.where(moved, getattr(slacks, f"lemma_{n}"), np.inf).min(0) for n in (4, 22, 24)}
        arrays |= {"error": np.abs(error).max(axis=0), "rise": np.diff(losses, axis=0).max(axis=0)}
        return {name: (("p", "step_size", "seed"), a.reshape(-1, sizes, len(seeds))) for name, a in arrays.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Count the problems for which each lemma holds at every step and exponent."""
        small, large = data.isel(step_size=0), data.isel(step_size=-1)
        return {
            "MD-L4": {"largest_share_of_bound": highest(1 - data.lemma_4)},
            "MD-L22": held(data.lemma_22 >= -TINY) | {"smallest_slack": lowest(data.lemma_22)},
            "MD-L23": held(small.error < TINY) | {"largest_error": highest(small.error)},
            "MD-L24": held(small.lemma_24 >= -TINY) | {"share_of_large_steps": (large.lemma_24 >= -TINY).mean()},
            "MD-L25": held(small.rise <= 1e-15) | {"share_of_large_steps": (large.rise <= 1e-15).mean()},
        }


@dataclass(frozen=True, kw_only=True)
class Cone(Experiment):
    """Lemmas 19 to 21: matrices at the boundary of cones, perturbed where it does most harm. Nothing is trained."""

    id = "mirror_descent.cone"
    summary = "Lemmas 19 to 21 in cones around max-margin solutions, and how wide these cones are"
    needs = "cpu"
    budget_seconds = 15
    smoke = {"ps": (1.25, 3.0), "directions": 6, "tested": 3, "others": 2, "seeds": (0, 1)}
    full = {"directions": 336, "tested": 100, "others": 40}

    ps: tuple[float, ...] = (1.25, 1.75, 2.0, 3.0)
    directions: int = 120  # perturbations for Lemma 19, each lowering one gap between two tokens
    tested: int = 30  # perturbations for Lemmas 20 and 21, each lowering one gap of a selected token
    others: int = 20  # second matrices V of Lemma 20, at most as many
    radii: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0)  # relative norms, increasing
    slacks: tuple[float, ...] = (1e-3, 3e-4)  # pi of Lemma 21, decreasing
    seeds: tuple[int, ...] = tuple(range(20))

    def coordinates(self) -> dict[str, Any]:
        """Name choices of tokens, exponents, norms and the parts of Lemma 19."""
        return {"choice": CHOICES, "p": list(self.ps), "radius": list(self.radii), "part": ["12a", "12b", "12c"]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Sample both choices of tokens, exponent by exponent."""
        one, columns = draw_problems(seeds), []
        with runtime.threads(1):
            for number, p in enumerate(self.ps, 1):
                selected = np.concatenate([one.best_tokens, second_choice(one, p)[0]])
                columns.append(in_the_cone(joined([one, one]), selected, (*seeds, *seeds), p, self))
                if progress:
                    progress(number, len(self.ps))
        found: Arrays = {}
        for name in columns[0]:
            array = np.stack([column[name] for column in columns])
            last = {2: (), 3: ("part",) if name.startswith("slack") else ("radius",)}[array.ndim]
            shape = (len(self.ps), len(CHOICES), len(seeds), *array.shape[2:])
            found[name] = (("p", "choice", "seed", *last), array.reshape(shape))
        return found

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Find the norms from which Lemmas 20 and 21 hold, and how wide the cone of Lemma 19 is."""
        positive = first_from(data.not_positive == 0, "radius")
        least = (data.log_least + data.radius).min(["p", "choice"])
        far = data.log_least.sel(radius=slice(20, None))
        within = [first_from(data.needed <= pi, "radius") for pi in self.slacks]
        return {
            "MD-L19": {f"slack_{part}": lowest(data.slack.sel(part=part)) for part in data.part.values},
            "MD-L19-tight": {
                "smallest_violated_over_sharper": lowest(data.violated / data.sharp),
                "smallest_slack_sharper": lowest(data.slack_sharp),
                "median_guaranteed": data.literal.median(["p", "choice"]),
                "share_below_1e_4": (data.literal < 1e-4).mean(),
            },
            "MD-L20": held(positive < np.inf) | {
                "median_radius": positive.median(["p", "choice"]),
                "decay": highest(-(far.isel(radius=-1) - far.isel(radius=0)) / float(far.radius[-1] - far.radius[0])),
            },
            "MD-L20+": {f"log_constant_r{r}": least.sel(radius=r) for r in (20, 400)},
            "MD-L21": held(within[0] < np.inf) | {
                "share_smaller": (within[-1] < np.inf).mean(),
                "median_radius_smaller": within[-1].median(["p", "choice"]),
                "largest_needed_times_norm": highest(data.needed * data.radius),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Staying(Experiment):
    r"""Lemma 28: for each problem, pairs $(\mu',R_\mu)$ from which runs stay within divergence $\mu$.

    Steps are of equal length, the same share of the initial norm for all, so that every run about triples its norm.
    """

    id = "mirror_descent.staying"
    summary = "Lemma 28: how deep and how far out a run must start so that it stays in a cone"
    needs = "float64"
    budget_seconds = 40
    smoke = {
        "ps": (1.5, 3.0), "typical_norms": (5.5, 1.5), "divergences": (0.01, 0.1), "radii": (5.0, 20.0), "steps": 6,
        "seeds": (0, 1),
    }  # fmt: skip

    ps: tuple[float, ...] = (1.5, 2.0, 3.0)
    typical_norms: tuple[float, ...] = (5.5, 3.0, 1.5)  # of max-margin solutions, one for each exponent; about
    divergences: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of the starts, and cones; increasing
    radii: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)  # relative norms of the starts, increasing
    steps: int = 800
    growth: float = 2.0  # length of all steps together, over the initial norm; about
    records: int = 30  # pairs of neighbouring steps that are looked at, about
    inner: float = 0.01  # start of the runs that Lemma 27 is judged on, one of the divergences
    slacks: tuple[float, ...] = (0.1, 0.03, 0.01)  # pi of Lemma 27
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        one_for_each("typical_norms", self.typical_norms, self.ps)

    def coordinates(self) -> dict[str, Any]:
        """Name choices of tokens, exponents and starts."""
        starts = {"start": list(self.divergences), "radius": list(self.radii)}
        return {"choice": CHOICES, "p": list(self.ps), **starts}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Start at every divergence, norm by norm, and keep the largest divergence."""
        steps, parts = log_spaced(self.steps - 1, self.records), []
        record_at = sorted({*steps, *(step + 1 for step in steps)})
        at = np.searchsorted(record_at, steps)
        for number, radius in enumerate(self.radii):
            runs = cone_starts(self.ps, seeds, [(mu, radius) for mu in self.divergences])
            norms = np.repeat(self.typical_norms, len(runs.ps) // len(self.ps))
            length, told = self.growth * radius * norms / self.steps, share(progress, number, len(self.radii))
            records = equal_steps(runs, length, self.steps, record_at, device, told)
            with runtime.threads(1):
                path, sizes = records["key_query"], np.exp(records["log_step_size"][at])
                batch, own = Batch.of(runs.problems), torch.from_numpy(runs.selected)
                losses = np.stack([excess_loss(to_tensor(w, dtype=torch.float64), batch, own).numpy() for w in path])
                ray, pair = mirror.normalised(runs.weight, runs.ps), (losses[at], losses[at + 1])
                needed = one_step.needed_slack(path[at], path[at + 1], ray, pair, sizes, runs.ps)
                parts.append(
                    {
                        "peak": runs.divergence(path).max(axis=0),
                        "kept": runs.kept(path[-1]),
                        "needed": needed.max(axis=0),
                    }
                )
        stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        return by_run(stacked, ("radius",), self.ps, seeds, {"start": len(self.divergences)})

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Find both norms for each problem."""
        stays, slack = self.cone_radius(data), self.slack_radius(data)
        found = (stays < np.inf).all("cone")
        product = (data.needed * data.radius).sel(start=self.inner, choice="best")
        return {
            "MD-L27": held((slack < np.inf).all("slack").sel(choice="best"))
            | {"largest_needed_times_norm": highest(product)},
            "MD-L28": {
                **{f"share_{choice}": found.sel(choice=choice).mean() for choice in CHOICES},
                **{f"radius_{name}": stays.sel(choice="best").isel(cone=at).median("p")
                   for name, at in (("narrowest", 0), ("widest", -1))},
            },
        }  # fmt: skip

    def slack_radius(self, data: xr.Dataset) -> xr.DataArray:
        r"""Return by slack $\pi$ the smallest tested $R_\pi$: runs from there, or farther out, need no more."""
        found = [first_from(data.needed.sel(start=self.inner) <= pi, "radius") for pi in self.slacks]
        return xr.concat(found, "slack").assign_coords(slack=list(self.slacks))

    def cone_radius(self, data: xr.Dataset) -> xr.DataArray:
        r"""By cone $\mu$ the smallest tested $R_\mu$: from a start below $\mu$, there or farther out, runs stay."""
        peak, found = data.peak.where(data.kept == 1, np.inf), []
        for mu in self.divergences[1:]:
            stays = first_from(peak.sel(start=[s for s in self.divergences if s < mu]) <= mu, "radius")
            found.append(stays.min("start"))
        return xr.concat(found, "cone").assign_coords(cone=list(self.divergences[1:]))


@dataclass(frozen=True, kw_only=True)
class Rates(Experiment):
    r"""The theorem: constant steps from the cone as far as they go, and steps of equal length far out.

    Constant steps are in units of $e^{\rho_0}$, $\rho_0$ the relative norm of the start, because gradients there are of
    order $e^{-\rho_0}$. Of steps of equal length the sum of the plain step sizes is kept as a logarithm.
    """

    id = "mirror_descent.rates"
    summary = "The theorem, Lemmas 29 and 30: constant steps from the cone, and steps of equal length far out"
    needs = "float64"
    budget_seconds = 60
    smoke = {
        "divergence": 1e-4, "radius": 35.0, "step_sizes": (1e-4,) * 4, "plain_steps": 12, "step": 1.0, "steps": 12,
        "records": 8, "seeds": (0, 1),
    }  # fmt: skip
    full = {"plain_steps": 200_000, "step": 0.1, "steps": 40_000, "records": 120}

    ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)
    divergence: float = 0.01  # of the starts
    radius: float = 10.0  # their relative norm
    step_sizes: tuple[float, ...] = (0.01, 0.015, 0.02, 0.1)  # constant, one for each exponent, over exp(radius)
    plain_steps: int = 12_000  # of these
    step: float = 0.15  # how far a step of equal length moves the weights, the same for every exponent
    steps: int = 6000  # of these
    records: int = 60
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        one_for_each("step_sizes", self.step_sizes, self.ps)

    def coordinates(self) -> dict[str, Any]:
        """Name choices of tokens, exponents and recorded steps; before the first step no time has passed."""
        plain, equal = (list(log_spaced(steps, self.records)) for steps in (self.plain_steps, self.steps))
        return {"choice": CHOICES, "p": list(self.ps), "plain_step": plain, "step": equal[1:]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Take both kinds of steps from the same starts."""
        runs, steps = cone_starts(self.ps, seeds, [(self.divergence, self.radius)]), self.coordinates()
        sizes = np.exp(self.radius) * np.repeat(self.step_sizes, len(CHOICES) * len(seeds))
        plain = descend(
            runs.problems, runs.ps, steps=self.plain_steps, step_size=sizes.tolist(), start=runs.start,
            record_at=steps["plain_step"], device=device, progress=share(progress, 0, 2),
        ).records["key_query"]  # fmt: skip
        records = equal_steps(runs, self.step, self.steps, steps["step"], device, share(progress, 1, 2))
        equal = records["key_query"]
        with runtime.threads(1):
            constant = {"plain_divergence": runs.divergence(plain), "plain_norm": runs.relative_norm(plain)}
            far = {"divergence": runs.divergence(equal), "relative_norm": runs.relative_norm(equal)}
            far["log_time"] = records["log_time"]
            ends = {"kept": runs.kept(equal[-1]), "plain_kept": runs.kept(plain[-1]), "target_norm": runs.norm}
        parts = (constant, ("plain_step",)), (far, ("step",)), (ends, ())
        return {k: v for found, axes in parts for k, v in by_run(found, axes, self.ps, seeds).items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Hold divergences against bounds, and the norm against the log of the time."""
        far, kept, left = data.where(data.relative_norm > GROWING), data.kept == 1, data.plain_kept == 1
        late = {True: late_over_early(data, in_time=True), False: late_over_early(data, in_time=False)}
        slopes = falls(data, BEYOND).where(kept)
        medians = slopes.median(["seed", "choice"])
        growth = fitted_slope(far.log_time, far.relative_norm)
        correction = fitted_slope(np.log(far.relative_norm), far.relative_norm - far.log_time) - 2 + data.p
        ratio = [over_bound(data.plain_divergence.isel(plain_step=at),
                            data.plain_norm.isel(plain_step=at) * data.target_norm) for at in (-1, 0)]  # fmt: skip
        change = (ratio[0] / ratio[1]).where(left)
        norms = data.plain_norm.isel(plain_step=[-1 - n * (data.sizes["plain_step"] // 3) for n in (2, 1, 0)])
        quotients = norms.diff("plain_step") / np.log(norms.plain_step).diff("plain_step")
        early, last = (quotients.isel(plain_step=at, drop=True) for at in (0, 1))
        grows = (last >= np.minimum(early, 1)) & (data.plain_norm.diff("plain_step") > 0).all("plain_step")
        return {
            "MD-L29": held((late[True] <= 1) & (late[False] <= 1) | ~kept)
            | {f"median_p{p:g}".replace(".", "_"): late[False].where(kept).sel(p=p).median("choice") for p in self.ps},
            "MD-L30": held(grows | ~left) | {"median_slope": last.where(left).median(["p", "choice"])},
            "MD-rate-k": {f"share_kept_{c}": left.sel(choice=c).mean() for c in CHOICES}
            | {f"change_{c}": change.sel(choice=c).median() for c in CHOICES},
            "MD-rate+": {"largest_error": abs(medians + 2 * np.minimum(1, medians.p - 1)).max()}
            | {f"slope_p{p:g}".replace(".", "_"): slopes.sel(p=p).median("choice") for p in self.ps},
            "MD-L30+": {
                "largest_slope_error": abs(growth - 1).where(kept).max(["p", "choice"]),
                "largest_correction_error": abs(correction.where(kept).median(["seed", "choice"])).max(),
            },
        }


def one_for_each(name: str, values: tuple[float, ...], ps: tuple[float, ...]) -> None:
    """Refuse settings of which there is not one for each exponent."""
    if len(values) != len(ps):
        raise ValueError(f"{name}: expected one for each of the {len(ps)} exponents, got {len(values)}")


def equal_steps(
    runs: ConeStarts,
    length: float | np.ndarray,
    steps: int,
    record_at: Sequence[int],
    device: torch.device,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Return what is recorded along runs whose steps all move the weights by a given length."""
    size = np.broadcast_to(length, runs.ps.shape) * (runs.ps - 1)
    return descend(
        runs.problems, runs.ps, steps=steps, step_size=size.tolist(), normalized=True, start=runs.start,
        record_at=record_at, log_time=True, device=device, progress=progress,
    ).records  # fmt: skip


def by_run(
    found: dict[str, np.ndarray],
    axes: tuple[str, ...],
    ps: Sequence[float],
    seeds: Sequence[int],
    starts: dict[str, int] | None = None,
) -> Arrays:
    """Name the dimensions of arrays ``(*axes, members)`` whose members are ordered by exponent, choice, start, seed."""
    sizes = {"p": len(ps), "choice": -1, **(starts or {}), "seed": len(seeds)}
    return {name: ((*axes, *sizes), np.reshape(a, (*a.shape[:-1], *sizes.values()))) for name, a in found.items()}


def held(flags: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the share of problems for which something holds throughout, and the lower end of its 95 % interval."""
    holds = flags.all([dimension for dimension in flags.dims if dimension != "seed"])
    return {"share": share_of_seeds(holds), "share_low": share_of_seeds(holds, -1)}


def first_from(holds: xr.DataArray, along: str) -> xr.DataArray:
    """Return the smallest coordinate from which on something holds to the end; infinite where the last fails."""
    on = holds.isel({along: slice(None, None, -1)}).cumprod(along).isel({along: slice(None, None, -1)})
    return xr.where(on.astype(bool), holds[along], np.inf).min(along)


def fitted_slope(x: xr.DataArray, y: xr.DataArray) -> xr.DataArray:
    """Return the least-squares slope along the steps; what is NaN does not count."""
    return xr.cov(x, y, "step", ddof=0) / x.var("step")


def falls(data: xr.Dataset, beyond: float) -> xr.DataArray:
    """Return the slope of the divergence against the norm beyond a relative norm, on log axes."""
    far = data.relative_norm.where(data.relative_norm > beyond)
    return fitted_slope(xr.DataArray(np.log(far)), xr.DataArray(np.log(data.divergence)))


def over_bound(divergence: xr.DataArray, argument: xr.DataArray) -> xr.DataArray:
    """Return the divergence over the rate of Lemma 29 at an argument: the norm, or the log of the time."""
    rates = argument.copy(deep=True)
    for p in rates.p.values:
        rates.loc[{"p": p}] = one_step.rate_bound(argument.sel(p=p).values, float(p))
    return divergence / rates


def late_over_early(data: xr.Dataset, *, in_time: bool) -> xr.DataArray:
    """Return divergence over bound at the end, over the same at the first record beyond relative norm 30."""
    both = data.isel(step=-1), data.isel(step=(data.relative_norm >= BEYOND).argmax("step"))
    arguments = (one.log_time if in_time else one.relative_norm * one.target_norm for one in both)
    late, early = (over_bound(one.divergence, argument) for one, argument in zip(both, arguments, strict=True))
    return late / early
