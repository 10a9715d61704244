"""The experiments of the chapter: the theorem with its own steps, runs from zero, paths in the plane, inequalities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core import runtime
from attnbook.core.ensemble import log_spaced
from attnbook.core.experiment import Arrays, Experiment, highest, lowest, share_of_seeds
from attnbook.core.runtime import Progress, share
from attnbook.core.settings import check_increasing
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, attention_weights, descend, train_loss
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.cone_probes import cone_starts
from attnbook.mirror_descent.data import draw_problems, joined, plane_toy
from attnbook.mirror_descent.mirror import direction_divergence as divergence
from attnbook.mirror_descent.mirror_descent import lemmas

CHOICES = ["best", "other"]
CROSSED = [1.75, 2.0, 3.0]  # exponents of the paper's figures
SETTLED = [1.25, 1.5, *CROSSED]  # those at which tokens settled in a trial


@dataclass(frozen=True, kw_only=True)
class ByExponent(Experiment):
    """Base: exponents increase from above 1 on."""

    ps: tuple[float, ...] = (1.1, *SETTLED)  # exponents, increasing

    def __post_init__(self) -> None:
        super().__post_init__()
        check_increasing(self, "ps", above=1)


@dataclass(frozen=True, kw_only=True)
class MainTheorem(ByExponent):
    """Plain steps of one size from starts in the cone, for the best tokens and for others that are locally optimal.

    A start lowers one gap of a selected token as much as any of its norm. Beside each plain run goes a scale-free one
    from the same start, to be compared at equal norm.
    """

    id = "mirror_descent.main_theorem"
    summary = "The main theorem with constant steps in the cone, and plain against scale-free steps at equal norm"
    needs = "float64"
    smoke = {"steps": 30, "free_steps": 30, "records": 4, "seeds": (0, 1)}
    full = {"steps": 200_000, "seeds": tuple(range(100))}

    ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)  # exponents, increasing
    divergence: float = 0.02  # of the starts from the max-margin direction
    relative_norm: float = 10.0  # of the starts, over the norm of the max-margin solution
    step_size: float = 100.0  # constant; with ten times as much some runs jump
    steps: int = 20_000
    free_step_size: float = 0.1  # of the scale-free steps, times p - 1, so that all move equally far
    free_steps: int = 3000
    records: int = 12  # of each plain run, about; of each scale-free one three times as many
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def coordinates(self) -> dict[str, Any]:
        """Name exponents, choices of tokens, and recorded steps of plain and of scale-free runs."""
        plain, free = log_spaced(self.steps, self.records), log_spaced(self.free_steps, 3 * self.records)
        return {"p": list(self.ps), "choice": CHOICES, "step": list(plain), "free_step": list(free)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train one member for each exponent, choice and seed, twice."""
        starts = cone_starts(self.ps, seeds, [(self.divergence, self.relative_norm)], largest=True)
        names, slack, ps, shape = self.coordinates(), starts.slack, starts.ps, (-1, 2, len(seeds))
        batch = Batch.of(starts.problems)
        found: Arrays = {"slack": (("p", "choice", "seed"), slack.reshape(shape))}
        runs = {"": ("step", self.step_size + 0 * ps), "free_": ("free_step", self.free_step_size * (ps - 1))}
        for number, (kind, (step, size)) in enumerate(runs.items()):
            history = descend(
                starts.problems, ps, steps=names[step][-1], step_size=size.tolist(), normalized=kind == "free_",
                start=starts.start, record_at=names[step], device=device, progress=share(progress, number, 2),
            )  # fmt: skip
            path = history.records["key_query"]
            losses = [train_loss({"key_query": torch.from_numpy(w)}, batch).numpy() for w in path]
            arrays = {
                "divergence": starts.divergence(path),
                "norm": starts.relative_norm(path),
                "kept": starts.kept(path[-1]),
                "rise": np.diff(losses, axis=0).max(0),  # of the loss from record to record, largest
            }
            for name, array in arrays.items():
                dims = (*[step] * (array.ndim - 1), "p", "choice", "seed")
                exists = np.where(np.isnan(slack), np.nan, array)
                found[kind + name] = (dims, exists.reshape(*array.shape[:-1], len(self.ps), 2, len(seeds)))
        return found

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how many runs keep their tokens and turn, and what plain and scale-free steps differ by."""
        start, ratio = data.divergence.isel(step=0), self.at_equal_norm(data)
        ends = {"": data.divergence.isel(step=-1) / start, "far_": data.free_divergence.isel(free_step=-1) / start}
        turns = (data.kept == 1) & (ends[""] < 0.7) & (data.norm.diff("step") > 0).all("step")
        passed = turns.where(data.kept.notnull())
        near = (np.abs(np.log(ratio)) < np.log(1.1)).where(ratio.notnull())
        theorem: dict[str, xr.DataArray] = {"loss_rise": highest(data.rise.sel(choice="best"))}
        left = data.free_kept.sel(choice="other") == 0
        theorem |= {"other_runs": data.kept.sel(choice="other").count(), "other_left_far": left.sum()}
        equal = {"low_within_a_tenth": share_of_seeds(near, -1).min()}
        for choice in CHOICES:
            runs = passed.sel(choice=choice)
            theorem |= {f"share_{choice}": share_of_seeds(runs).min(), f"low_{choice}": share_of_seeds(runs, -1).min()}
        for p, name in ((self.ps[0], "smallest_p"), (2.0, "p2")):
            at = {"p": p, "choice": "best"}
            theorem |= {f"{far}fallen_to_{name}": end.sel(at) for far, end in ends.items()}
            equal |= {f"ratio_{name}": ratio.sel(at), f"norm_{name}": data.norm.sel(at).isel(step=-1)}
        return {"MD-theorem": theorem, "MD-equal-norm": equal}

    def at_equal_norm(self, data: xr.Dataset) -> xr.DataArray:
        """Return the divergence where plain steps end over that of scale-free ones at that norm; NaN off the tokens."""

        def interpolated(at: float, norm: np.ndarray, divergence: np.ndarray) -> float:
            return float(np.exp(np.interp(np.log(at), np.log(norm), np.log(divergence))))

        along, end = [["free_step"], ["free_step"]], data.isel(step=-1)
        arguments = end.norm, data.free_norm, data.free_divergence
        free = xr.apply_ufunc(interpolated, *arguments, input_core_dims=[[], *along], vectorize=True)
        return (end.divergence / free).where((data.kept == 1) & (data.free_kept == 1))


@dataclass(frozen=True, kw_only=True)
class Direction(ByExponent):
    """Scale-free runs from zero, to norms out of reach of plain steps: where they end, at which tokens, how sparse."""

    id = "mirror_descent.direction"
    summary = "Direction, tokens and sparsity of runs from zero with several p"
    needs = "float64"
    smoke = {"steps": 20, "records": 4, "seeds": (0, 1)}
    full = {"ps": (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0), "steps": 12_000, "seeds": tuple(range(60))}

    step_size: float = 0.2  # far from zero such a step moves the weights by about step_size / (p - 1)
    steps: int = 4000  # ours; the authors' code has 1,500 to 20,000, by p
    records: int = 24  # steps that are recorded, about
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def coordinates(self) -> dict[str, Any]:
        """Name exponents of runs and targets, recorded steps, and whose density is measured."""
        steps, of = log_spaced(self.steps, self.records)[1:], ["trained", "solution", "solution for the best"]
        return {"p": list(self.ps), "target": list(self.ps), "of": of, "step": list(steps)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every seed with every exponent, and solve the attention SVM of the tokens attended last."""
        one = draw_problems(seeds)  # sizes of an early state of the first author's code
        problems, ps = joined([one] * len(self.ps)), np.repeat(self.ps, len(seeds))
        history = descend(
            problems, ps, steps=self.steps, step_size=self.step_size, normalized=True,
            record_at=self.coordinates()["step"], device=device, progress=progress,
        )  # fmt: skip
        path, tokens, best = history.records["key_query"], (problems.tokens, problems.queries), problems.best_tokens
        last, selected = path[-1], attended(path[-1], Batch.of(problems))
        with runtime.threads(1):
            svm, for_best = attention_svm(*tokens, selected, ps), attention_svm(*tokens, best, ps)
            # Its own tokens: so a run is not far away for the reason alone that the target's run selects others.
            targets = {p: attention_svm(*tokens, selected, p).weight for p in self.ps}
        density = np.stack([last, svm.weight, for_best.weight])
        found = {
            "divergence": (("step",), divergence(svm.weight, path, ps)),
            "norm": (("step",), mirror.entrywise_norm(path, ps) / svm.norm),
            "cross": (("target",), np.stack([divergence(target, last, p) for p, target in targets.items()])),
            "cosine": (("target",), 1 - np.stack([divergence(target, last, 2.0) for target in targets.values()])),
            "local": ((), locally_optimal(problems.token_scores, selected, svm.support)),
            "best": ((), (selected == best).all(-1)),
            "dimension": (("of",), mirror.effective_dimension(density)),
            "share": (("of",), mirror.share_above(density)),
        }
        shape = len(self.ps), len(seeds)
        return {name: ((*dims, "p", "seed"), a.reshape(*a.shape[:-1], *shape)) for name, (dims, a) in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off directions, tokens and sparsity as shares of seeds."""
        ends, own, settled = data.divergence.isel(step=-1), own_cosine(data), data.sel(p=SETTLED)
        turned = ((ends < 5e-3) & (own > 0.99)).sel(p=CROSSED).all("p")
        crossed = data.cross.sel(p=CROSSED, target=CROSSED)
        same = crossed.p == crossed.target
        ratio = (crossed.where(same).min("p") / crossed.where(~same).min("p")).rename(target="p")
        place = xr.DataArray(np.arange(len(self.ps)), {"p": data.p})
        target, run = data.cosine.argmax("target") == place, data.cross.argmin("p") == place.rename(p="target")
        rising = own.sel(p=[1.1, 1.25, 1.5, 1.75]).diff("p") > 0
        denser = data.dimension.sel(of=["trained", "solution for the best"], p=slice(None, 3)).diff("p") > 0
        fuller = data.share.sel(of="trained", p=[1.1, 1.5, 3.0]).diff("p") > 0
        local, best = settled.local.all("p"), settled.best.all("p")
        trained, beside = data.dimension.sel(of="trained"), data.dimension.sel(of="solution")
        return {
            "MD-dir": {"low": share_of_seeds(turned, -1)} | by_p("divergence", ends, CROSSED),
            "MD-cross": {"low": share_of_seeds((ratio < 0.5).all("p"), -1)} | by_p("ratio", ratio, CROSSED),
            "MD-sparse": {"low": share_of_seeds(denser.all(["p", "of"]) & fuller.all("p"), -1)}
            | by_p("dimension", trained, [1.1, 2.0, 3.0]),
            "MD-local": {
                "low_local": share_of_seeds(local, -1), "share_local": share_of_seeds(local),
                "share_best": share_of_seeds(best), "high_best": share_of_seeds(best, 1),
            },
            "MD-memory": {"low": share_of_seeds(rising.all("p"), -1)} | by_p("cosine", own, [1.1, 1.25, 1.5])
            | by_p("density_over_solution", trained / beside, [1.1, 2.0]),
            "MD-cross-nearest": {
                "low_target": share_of_seeds(target.sel(p=SETTLED).all("p"), -1),
                "low_run": share_of_seeds(run.sel(target=SETTLED).all("target"), -1),
                "high_run_p1_1": share_of_seeds(run.sel(target=1.1), 1), "share_target": target.mean("p"),
            },
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Trajectories(ByExponent):
    """Paths of the plane toy from the unit circle, a start for each seed, with scale-free and with plain steps."""

    id = "mirror_descent.trajectories"
    summary = "Paths in the plane that turn to their max-margin ray"
    needs = "float64"
    smoke = {"steps": 20, "records": 4, "seeds": (0, 1)}

    steps: int = 3000
    step_size: float = 0.2  # of the scale-free steps; far from zero they move the weights by about this over p - 1
    plain_step_size: float = 0.1  # of the plain paths, which take as many steps
    records: int = 80  # points kept of each path, about
    seeds: tuple[int, ...] = tuple(range(8))
    chunk: int = 8

    def coordinates(self) -> dict[str, Any]:
        """Name exponents, kinds of step, recorded steps and the two weights."""
        steps = list(log_spaced(self.steps, self.records))
        return {"p": list(self.ps), "kind": ["scale-free", "plain"], "step": steps, "weight": [1, 2]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Follow the first column of the matrix, the only one that moves."""
        ps, steps, paths = np.repeat(self.ps, len(seeds)), self.coordinates()["step"], []
        angles = 2.399963 * np.array(seeds)  # the golden angle: seeds in a row lie all around
        start = np.zeros((len(ps), 2, 2))
        start[:, :, 0] = np.tile(np.stack([np.cos(angles), np.sin(angles)], axis=1), (len(self.ps), 1))
        for number, size in enumerate((self.step_size, self.plain_step_size)):
            history = descend(
                plane_toy().repeated(len(ps)), ps, steps=steps[-1], step_size=size, normalized=number == 0, start=start,
                record_at=steps, device=device, progress=share(progress, number, 2),
            )  # fmt: skip
            paths.append(history.records["key_query"][..., 0].reshape(-1, len(self.ps), len(seeds), 2))
        return {"path": (("kind", "step", "p", "seed", "weight"), np.stack(paths))}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the largest angle to the ray at the end of the paths."""
        ends = angles_to_ray(data).sel(kind="scale-free").isel(step=-1)
        return {"MD-2d": {f"angle_p{p:g}".replace(".", "_"): highest(ends.sel(p=p)) for p in self.ps}}


@dataclass(frozen=True, kw_only=True)
class Inequalities(ByExponent):
    """How close each lemma comes to failing; no network is trained."""

    id = "mirror_descent.inequalities"
    summary = "Lemmas 12 to 15 and 26 on random and worst-case matrices"
    needs = "cpu"
    smoke = {"ps": (1.25, 2.0, 3.0), "dimension": 3, "pairs": 30, "scalars": 50, "seeds": (0, 1)}

    ps: tuple[float, ...] = (1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)  # exponents, increasing
    dimension: int = 10  # rows and columns of the matrices
    pairs: int = 1000  # of unit matrices, for each exponent and seed
    scalars: int = 50_000  # pairs of numbers for Lemmas 14 and 15
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def coordinates(self) -> dict[str, Any]:
        """Name exponents, sides of an inequality, forms of Lemma 13 and the lemmas on numbers."""
        return {"p": list(self.ps), "end": ["low", "high"], "form": ["lemma", "sharp"], "lemma": [14, 15]}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Look for violations, a seed and an exponent at a time."""
        rows, cells = [], list(product(seeds, self.ps))
        for number, (seed, p) in enumerate(cells, 1):
            rows.append(lemmas.closest(self, seed, p))
            if progress:
                progress(number, len(cells))
        found = {name: np.array([row[name] for row in rows]) for name in lemmas.DIMS}
        shape = len(seeds), len(self.ps)
        return {name: (("seed", "p", *lemmas.DIMS[name]), a.reshape(*shape, *a.shape[1:])) for name, a in found.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how close each inequality comes to failing."""
        lemma, sharp = (data.ratio.sel(form=form) for form in ("lemma", "sharp"))
        cubic = {"least_ratio_p3": lowest(lemma.sel(p=[3.0]))} if 3.0 in self.ps else {}
        return {
            "MD-L12": {"least_slack": lowest(data.norm_slack), "largest_least_slack": highest(data.norm_slack)},
            "MD-L13": {"least_ratio": lowest(lemma)} | cubic,
            "MD-L14": {"least_ratio": lowest(data.sides.sel(lemma=14))},
            "MD-L15": {"least_ratio": lowest(data.sides.sel(lemma=15))},
            "MD-L26": {"largest_error": highest(data.identity)},
            "MD-L13+": {"least_ratio": lowest(sharp), "largest_least_ratio": highest(sharp)},
        }


def attended(key_query: np.ndarray, batch: Batch) -> np.ndarray:
    """Return the token that each sample attends to most, ``(members, samples)``."""
    return attention_weights(torch.from_numpy(key_query), batch).numpy().argmax(-1)


def own_cosine(data: xr.Dataset) -> xr.DataArray:
    """Return the cosine of each run with the solution for its own exponent."""
    return data.cosine.where(data.p == data.target).max("target")


def by_p(name: str, values: xr.DataArray, ps: list[float]) -> dict[str, xr.DataArray]:
    """Return the values at some exponents by name."""
    return {f"{name}_p{p:g}".replace(".", "_"): values.sel(p=p) for p in ps}


def toy_rays(ps: Sequence[float]) -> np.ndarray:
    """Return the max-margin solutions of the toy in closed form, ``(ps, 2)``."""
    tokens = plane_toy().tokens[0, 0]
    constraint = np.repeat((tokens[0] - tokens[1])[None, :, None], len(ps), axis=0)
    return mirror.single_constraint(constraint, np.asarray(ps))[..., 0]


def angles_to_ray(data: xr.Dataset) -> xr.DataArray:
    """Return the angle between each point of the paths and the max-margin ray, in degrees."""
    ray = xr.DataArray(toy_rays(data.p.values), {"p": data.p, "weight": data.weight})
    turned = xr.DataArray(ray.values[:, ::-1] * [-1, 1], ray.coords)
    return np.degrees(np.abs(np.arctan2((data.path * turned).sum("weight"), (data.path * ray).sum("weight"))))
