"""The experiments of the chapter: lemmas on the loss, the fate of every choice of tokens, the regularisation path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core import runtime
from attnbook.core.ensemble import autograd
from attnbook.core.experiment import Arrays, Experiment, highest, lowest, stacked
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.core.runtime import share as part_of
from attnbook.core.settings import check_increasing
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent.attention import Batch, descend, loss_and_gradient, train_loss
from attnbook.mirror_descent.attention_svm import attention_svm, locally_optimal
from attnbook.mirror_descent.data import Problems, draw_problems, joined, plane_tokens
from attnbook.mirror_descent.token_selection import objective as theory
from attnbook.mirror_descent.token_selection import regularisation_path as paths

AHEAD = 5.0  # relative norm times slack above which a start counts as far out
FAR = 10.0  # relative norm from which on the path's slope is measured and lost walks are to be exposed
FLAT = 1e-4  # a search whose derivative along the sphere ends below this counts as stationary
WITHIN = 20.0  # a certified relative norm of at most this is of use
CONTESTED, SELECTABLE = 1, 5  # token B of the plane; the first five of its tokens can be selected


def shares(name: str, found: Any, cases: int) -> dict[str, xr.DataArray]:
    """Return a share that was found in so many independent cases, and both ends of its 95 % interval (Wilson)."""
    share, n, z = float(found), max(1, cases), 1.96
    middle, half = share + z**2 / (2 * n), z * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    ends = {"low": max(0.0, middle - half) / (1 + z**2 / n), "high": (middle + half) / (1 + z**2 / n)}
    return {f"{key}_{name}": xr.DataArray(value) for key, value in ({"share": share} | ends).items()}


@dataclass(frozen=True, kw_only=True)
class Official(Experiment):
    """Sizes of the problem in an early public state of the first author's code."""

    n_samples: int = 6
    n_tokens: int = 8
    dimension: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in sorted({"ps", "tried", "norms", "relative_norms"} & set(vars(self))):
            check_increasing(self, name, above=int(name in ("ps", "tried")))

    def problems(self, seeds: Sequence[int]) -> Problems:
        """Draw one problem per seed."""
        return draw_problems(seeds, n_samples=self.n_samples, n_tokens=self.n_tokens, dimension=self.dimension)


@dataclass(frozen=True, kw_only=True)
class Objective(Official):
    """Lemmas 16 to 18 and the covariance lemma on random problems and matrices; nothing is trained."""

    id = "mirror_descent.objective"
    summary = "Loss and gradient: the constants of Lemmas 16 and 18, the closed form, the covariance lemma"
    needs = "cpu"
    budget_seconds = 10
    smoke = {
        "ps": (1.5, 3.0), "norms": (1.0, 10.0), "n_samples": 2, "n_tokens": 3, "dimension": 5, "draws": 20,
        "seeds": (0, 1),
    }  # fmt: skip

    ps: tuple[float, ...] = (1.1, 1.5, 2.0, 3.0, 6.0)  # exponents of the gradient bound, increasing
    norms: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)  # Euclidean norms of the random matrices
    far: float = 80.0  # relative norm at which the ends of Lemma 16 should be reached
    draws: int = 2000  # random cases of the covariance lemma per seed
    seeds: tuple[int, ...] = tuple(range(20))

    def coordinates(self) -> dict[str, Any]:
        """Name losses, sides of Lemma 16, norms and exponents."""
        return {"loss": list(theory.LOSSES), "side": ["best", "worst"], "norm": list(self.norms), "p": list(self.ps)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Try all lemmas on one problem per seed, on the CPU whatever the device."""
        one, shape = self.problems(seeds), (self.dimension, self.dimension)
        unit = mirror.normalised(np.stack([stream(seed, "matrix").standard_normal(shape) for seed in seeds]), 2.0)
        with runtime.threads(1):
            rows = [self._at(one, norm * unit) for norm in self.norms]
        if progress:
            progress(1, 1)
        violation, ratio, error = (np.stack(parts, axis=1) for parts in zip(*rows, strict=True))
        return {
            "violation": (("seed", "norm", "loss"), violation),  # how far the loss is outside of Lemma 16
            # what is missing to each side, far out on the ray of the best tokens and of the worst
            "slack": (("side", "loss", "seed"), self._slack(one)),
            "gradient_error": (("seed", "norm"), error),  # of the closed form against automatic differentiation
            "ratio": (("seed", "norm", "loss", "p"), ratio),  # of the gradient's norm to its bound
            "covariance": (("seed",), [self._covariance(seed) for seed in seeds]),  # of that lemma's sides, largest
        }

    def _at(self, problems: Problems, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lemmas 16, 18 and 17 at one matrix per problem."""
        violation, ratio = [], []
        for loss in theory.LOSSES.values():
            value, (low, high) = theory.training_loss(weights, problems, loss), theory.loss_bounds(problems, loss)
            violation.append(np.maximum(low - value, value - high))
            gradient = theory.loss_gradient(weights, problems, loss)
            norms = [mirror.entrywise_norm(gradient, float(mirror.conjugate(p))) for p in self.ps]
            bounds = [theory.gradient_bound(problems, p, loss) for p in self.ps]
            ratio.append(np.stack(norms, axis=-1) / np.stack(bounds, axis=-1))
        batch, parameters = Batch.of(problems), {"key_query": torch.from_numpy(weights)}
        closed, automatic = (f(parameters, batch)[1]["key_query"] for f in (loss_and_gradient, autograd(train_loss)))
        error = (closed - automatic).abs().amax((1, 2)) / closed.abs().amax((1, 2))
        return np.stack(violation, axis=-1), np.stack(ratio, axis=1), error.numpy()

    def _slack(self, problems: Problems) -> np.ndarray:
        losses, reached = theory.LOSSES.values(), []
        for selected in (problems.best_tokens, problems.token_scores.argmin(axis=-1)):
            far = self.far * attention_svm(problems.tokens, problems.queries, selected, 2.0).weight
            reached.append([theory.training_loss(far, problems, loss) for loss in losses])
        return np.array(reached) - np.swapaxes([theory.loss_bounds(problems, loss) for loss in losses], 0, 1)

    def _covariance(self, seed: int) -> float:
        """On attention from uniform to nearly saturated; beyond, both sides are rounding."""
        rng = stream(seed, "covariance")
        logits, a, scores = rng.standard_normal((3, self.draws, self.n_tokens))
        left, right = theory.covariance_error(logits * 10 ** rng.uniform(-1, 2, (self.draws, 1)), a, scores)
        seen = right > 1e-15
        return float((left[seen] / right[seen]).max())

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off the worst case of each lemma."""
        return {
            "MD-L16": {"largest_excess": highest(data.violation), "largest_slack": highest(abs(data.slack))},
            "MD-L17": {"largest_relative_error": highest(data.gradient_error)},
            "MD-L18": {"largest_ratio": highest(data.ratio)},
            "MD-cov": {"largest_ratio": highest(data.covariance)},
        }


@dataclass(frozen=True, kw_only=True)
class TokenSelection(Official):
    """The attention SVM at the official size; all choices of small problems; six tokens in the plane.

    Training starts on the ray of each choice's own solution, with steps that do not shrink with the gradient.
    """

    id = "mirror_descent.token_selection"
    summary = "Which choices of tokens are locally optimal, and which of them training keeps"
    needs = "float64"
    budget_seconds = 60
    smoke = {
        "n_samples": 2, "n_tokens": 3, "dimension": 5, "relative_norms": (5.0, 10.0), "steps": 20, "plane_steps": 20,
        "seeds": (0, 1),
    }  # fmt: skip
    full = {"small": (3, 4, 5), "steps": 6000, "plane_steps": 5000, "chunk": 10}

    ps: tuple[float, ...] = (1.1, 1.25, 1.5, 2.0, 3.0, 6.0)  # exponents in the plane and at the official size
    tried: tuple[float, ...] = (1.5, 2.0, 3.0)  # exponents for which every choice of tokens is trained
    small: tuple[int, int, int] = (2, 3, 5)  # samples, tokens and dimension of the problems whose choices are tried
    relative_norms: tuple[float, ...] = (5.0, 20.0, 80.0)  # of the starts, over the norm of their solution
    steps: int = 3000  # an even number; the tokens are read half-way, too
    plane_steps: int = 2500  # more than the small problems need: solutions in the plane are long
    step_size: float = 0.2  # the same for every exponent
    seeds: tuple[int, ...] = tuple(range(100))
    chunk: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2 or self.steps % 2:
            raise ValueError(f"steps: expected an even number of at least 2, got {self.steps}")

    def coordinates(self) -> dict[str, Any]:
        """Name exponents, choices (one digit per sample), starts and tokens of the plane."""
        found: dict[str, Any] = {"choice": ["".join(map(str, choice)) for choice in self._choices()]}
        found |= {"when": [self.steps // 2, self.steps], "record": list(self._plane_records())}
        found |= {"official_p": list(self.ps), "p": list(self.tried), "relative_norm": list(self.relative_norms)}
        return found | {"token": list("ABCDE"), "other": list("ABCDEF")}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Solve the attention SVM for all choices, and train from multiples of each solution."""
        official, best = self.problems(seeds), self.problems(seeds).best_tokens
        with runtime.threads(1):
            solved = [attention_svm(official.tokens, official.queries, best, p) for p in self.ps]
            parts = self._every_choice(seeds, device, part_of(progress, 0, 2)) | self._plane(device)
        if progress:
            progress(1, 1)
        margins = [svm.margins.min(axis=(1, 2)) for svm in solved]
        return parts | {
            # no matrix with these margins has a norm below one minus this, relatively
            "gap": (("seed", "official_p"), np.stack([svm.gap for svm in solved], axis=1)),
            "smallest_margin": (("seed", "official_p"), np.stack(margins, axis=1)),
        }

    def _choices(self) -> np.ndarray:
        samples, tokens, _ = self.small
        return np.array(list(product(range(tokens), repeat=samples)))

    def _plane_records(self) -> tuple[int, ...]:
        return tuple(sorted({0, *np.geomspace(1, self.plane_steps, 25).astype(int).tolist()}))

    def _every_choice(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        samples, tokens, dimension = self.small
        one, choices = draw_problems(seeds, n_samples=samples, n_tokens=tokens, dimension=dimension), self._choices()
        shape, many = (len(self.tried), len(seeds), len(choices)), len(self.tried) * len(seeds)
        problems, selected = joined([one.repeated(len(choices))] * len(self.tried)), np.tile(choices, (many, 1))
        ps = np.repeat(self.tried, len(seeds) * len(choices))
        svm = attention_svm(problems.tokens, problems.queries, selected, ps)
        kept = []
        for number, norm in enumerate(self.relative_norms):
            options = {"device": device, "progress": part_of(progress, number, len(self.relative_norms))}
            ends = self._attended(problems, ps, (self.steps // 2, self.steps), start=norm * svm.weight, **options)
            kept.append((ends.argmax(-1) == selected).all(-1))
        own = np.take_along_axis(problems.token_scores, selected[..., None], axis=2)
        # margin, above one, of the nearest token of higher score; infinite where there is none
        slack = np.where(problems.token_scores > own, svm.margins, np.inf).min(axis=(1, 2)) - 1
        local = locally_optimal(problems.token_scores, selected, svm.support)
        dims = ("p", "seed", "choice")
        found = {"margin": 1 / svm.norm, "slack": slack, "local": local}
        return {name: (dims, array.reshape(shape)) for name, array in found.items()} | {
            "kept": (("relative_norm", "when", *dims), np.reshape(kept, (len(kept), 2, *shape))),
            "best": (("seed",), (choices == one.best_tokens[:, None]).all(-1).argmax(-1)),  # number of that choice
        }

    def _plane(self, device: torch.device) -> Arrays:
        """Every token of the plane that can be selected, by exponent."""
        shape = (len(self.ps), SELECTABLE)
        problems, ps = plane_tokens().repeated(shape[0] * SELECTABLE), np.repeat(self.ps, SELECTABLE)
        selected = np.tile(np.arange(SELECTABLE), shape[0])[:, None]
        svm = attention_svm(problems.tokens, problems.queries, selected, ps)
        start = self.relative_norms[-1] * svm.weight
        attended = self._attended(problems, ps, self._plane_records(), start=start, device=device)[:, :, 0]
        local, dims = locally_optimal(problems.token_scores, selected, svm.support), ("official_p", "token")
        return {
            "plane": ((*dims, "coordinate"), svm.weight[:, :, 0].reshape(*shape, 2)),
            "plane_support": ((*dims, "other"), svm.support[:, 0].reshape(*shape, -1)),
            "plane_local": (dims, local.reshape(shape)),
            "plane_attention": (("record", *dims, "other"), attended.reshape(-1, *shape, attended.shape[-1])),
        }

    def _attended(self, problems: Problems, ps: np.ndarray, at: Sequence[int], **options: Any) -> np.ndarray:
        """Attention along scale-free mirror descent, ``(records, problems, samples, tokens)``."""
        options |= {"step_size": self.step_size, "normalized": True}
        run = descend(problems, ps, steps=at[-1], record_at=at, **options)
        return np.stack([theory.attention(weights, problems) for weights in run.records["key_query"]])

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Count choices by local optimality, and what training keeps of each kind."""
        local, others = data.local > 0, rivals(data)
        changes = (local != local.isel(p=0)).any(("p", "choice"))
        plane = data.plane_attention.isel(record=-1, token=CONTESTED, other=CONTESTED)
        count, far = data.sizes["seed"], ahead(data) > AHEAD
        kept, which = data.kept.isel(when=-1), local & others
        left = kept.isel(relative_norm=-1).where(~local).mean()
        return {
            "MD-SVM-dual": {"largest_gap": highest(data.gap), "smallest_margin": lowest(data.smallest_margin)},
            "MD-opt-local": shares("of_others", local.where(others).mean(), count)
            | shares("of_problems", which.any(("p", "choice")).mean(), count)
            | {"share_of_best": local.where(~others).mean(), "others_per_problem": which.sum(("p", "choice"))},
            "MD-local-norm": shares("of_problems", changes.mean(), count)
            | {"attention_p1_5": plane.sel(official_p=1.5), "attention_p3": plane.sel(official_p=3.0)},
            "MD-local-kept": _kept("far", kept, which & far)
            | _kept("near", kept, which & ~far)
            | shares("not_local", left, count)
            | {"share_changed": ((data.kept.isel(when=0) != kept) & which).mean() / max(float(which.mean()), 1e-9)},
        }


def rivals(data: xr.Dataset) -> xr.DataArray:
    """Return which choices are not that of the best tokens."""
    return xr.DataArray(np.arange(data.sizes["choice"]), dims="choice") != data.best


def ahead(data: xr.Dataset) -> xr.DataArray:
    """Return how far out each run starts: relative norm times slack."""
    return data.relative_norm * data.slack


def _kept(name: str, kept: xr.DataArray, which: xr.DataArray) -> dict[str, xr.DataArray]:
    """Share of runs that keep their tokens; the interval counts choices, as runs of one choice are not independent."""
    runs, choices = int(which.sum()), int(which.any("relative_norm").sum())
    found = shares(name, (kept * which).sum() / max(1, runs), choices)
    return found | {f"choices_{name}": xr.DataArray(choices)}


@dataclass(frozen=True, kw_only=True)
class RegularisationPath(Official):
    """The path walked outwards from near zero, inwards from a matrix that knows the best tokens, and from anywhere.

    All searches minimise the same loss on the same spheres; the better of both walks stands for the path.
    """

    id = "mirror_descent.regularisation_path"
    summary = "The regularisation path walked outwards and inwards, and where solvers get lost"
    needs = "cpu"
    budget_seconds = 40
    smoke = {
        "ps": (2.0,), "relative_norms": (1.0, 10.0, 20.0), "starts": 1, "n_samples": 2, "n_tokens": 3, "dimension": 5,
        "most_steps": 30, "seeds": (0, 1),
    }  # fmt: skip
    full = {
        "ps": (1.25, 1.5, 1.75, 2.0, 3.0), "relative_norms": (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 40.0, 80.0, 160.0),
        "most_steps": 3000, "seeds": tuple(range(200)),
    }  # fmt: skip

    ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)  # in a trial with 1.25 most searches ended at their last step
    relative_norms: tuple[float, ...] = (1.0, 3.0, 10.0, 20.0, 40.0, 80.0)  # radii, of the best tokens' solution
    starts: int = 3  # random starts at each radius, p = 2 only
    most_steps: int = 500  # of L-BFGS per search
    seeds: tuple[int, ...] = tuple(range(60))
    chunk: int = 10

    def coordinates(self) -> dict[str, Any]:
        """Name walks, exponents, radii and sides of the bracket."""
        sizes = {"p": list(self.ps), "relative_norm": list(self.relative_norms)}
        return {"walk": ["outwards", "inwards"], "bound": ["lower", "upper"]} | sizes

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Walk seed by seed, in float64 on the CPU whatever the device."""
        rows: list[Arrays] = []
        with runtime.threads(1):
            for number, seed in enumerate(seeds, 1):
                rows.append(self._of_seed(seed))
                if progress:
                    progress(number, len(seeds))
        return stacked("seed", rows)

    def _of_seed(self, seed: int) -> Arrays:
        problem, norms = self.problems([seed]), np.array(self.relative_norms)
        walked = [self._walks(problem, p) for p in self.ps]
        radii = norms * attention_svm(problem.tokens, problem.queries, problem.best_tokens, 2.0).norm[0]
        drawn = stream(seed, "path starts").standard_normal((self.starts, self.dimension, self.dimension))
        started = [[paths.follow(problem, 2.0, radii[at, None], start, most_steps=self.most_steps)
                    for at in range(len(norms))] for start in drawn]  # fmt: skip
        bounds = [theory.excess_bounds(problem, norm) for norm in self.relative_norms]
        dims = ("start", "relative_norm")
        return {name: (("p", "walk", "relative_norm"), [walk[name] for walk in walked]) for name in walked[0]} | {
            "started_excess": (dims, [[path.log_excess[0] for path in row] for row in started]),
            "started_tokens": (dims, [[_share_of_best(path.weights, problem)[0] for path in row] for row in started]),
            "started_slope": (dims, [[path.slope[0] for path in row] for row in started]),  # along the sphere
            # beyond this relative norm the minimisers provably select the best tokens
            "selecting_radius": ((), theory.selecting_radius(problem)[0]),
            # logarithms of what the smallest excess can be
            "bounds": (("bound", "relative_norm"), np.log([[pair[side][0] for pair in bounds] for side in (0, 1)])),
        }

    def _walks(self, problem: Problems, p: float) -> dict[str, np.ndarray]:
        """Both walks of one exponent, ``(walks, radii)``."""
        target = attention_svm(problem.tokens, problem.queries, problem.best_tokens, p)
        radii, ray = np.array(self.relative_norms) * target.norm[0], mirror.normalised(target.weight, p)
        downhill = -theory.loss_gradient(np.zeros_like(target.weight), problem, theory.LOSSES["logistic"])
        outwards = paths.follow(problem, p, radii, downhill[0], most_steps=self.most_steps)
        back = paths.follow(problem, p, radii[::-1], paths.interpolant(problem), most_steps=self.most_steps)
        walks = (outwards, paths.Path(*(part[::-1] for part in back)))
        units = [mirror.normalised(walk.weights, p) for walk in walks]
        return {
            "divergence": np.stack([mirror.bregman_divergence(np.broadcast_to(ray, u.shape), u, p) for u in units]),
            "log_excess": np.stack([walk.log_excess for walk in walks]),  # above the loss of perfect attention
            "steepness": np.stack([walk.steepness for walk in walks]),  # its derivative by the log of the radius
            "best_tokens": np.stack([_share_of_best(walk.weights, problem) for walk in walks]),
        }

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off direction and tokens of the path, what is certified, and how often solvers miss it."""
        path, count = better(data), data.sizes["seed"]
        last, far_out = path.isel(relative_norm=-1), data.relative_norm >= FAR
        outwards = data.sel(walk="outwards")
        low, high = data.bounds.sel(bound="lower"), data.bounds.sel(bound="upper")
        inside = (path.log_excess >= low) & (path.log_excess <= high)
        log_ratio = (high - low).isel(relative_norm=-1, drop=True)
        certified = theory.certified_divergence(float(data.relative_norm[-1]), log_ratio.values)
        wrong = (outwards.best_tokens < 1) & far_out
        exposed = (outwards.log_excess > high) & wrong
        near = (data.started_excess.max("start") - data.started_excess.min("start")).isel(relative_norm=0)
        return {
            "MD-RP": shares("all_best", (last.best_tokens == 1).mean(), count)
            | {
                "divergence": last.divergence.max("p"), "slope": slopes(data).max("p"),
                "share_active": (last.steepness < 0).mean(),
            },
            "MD-RP-certified": shares("within", (data.selecting_radius <= WITHIN).mean(), count)
            | shares("inside", inside.all(("p", "relative_norm")).mean(), count)
            | {
                "radius": data.selecting_radius, "share_exposed": exposed.sum() / max(1, int(wrong.sum())),
                "certified_divergence": log_ratio.copy(data=certified),  # of every global minimiser, at the last radius
            },
            "MD-RP-start": shares("right_far", (data.started_tokens.isel(relative_norm=-1) == 1).mean(), count)
            | shares("lost", (outwards.best_tokens.isel(relative_norm=-1) < 1).mean(), count)
            | {
                "difference_near": near, "share_same_near": (near <= 1e-6).mean(),
                "share_stationary": (data.started_slope.isel(relative_norm=-1) <= FLAT).mean(),
            },
        }  # fmt: skip


def better(data: xr.Dataset) -> xr.Dataset:
    """Return the walk of smaller loss, radius by radius."""
    walked = data[["divergence", "log_excess", "best_tokens", "steepness"]]
    return walked.isel(walk=data.log_excess.argmin("walk"))


def slopes(data: xr.Dataset) -> xr.DataArray:
    """Return the slope of log divergence against log radius over the far radii."""
    far = better(data).divergence.sel(relative_norm=slice(FAR, None))
    x = np.log(far.relative_norm) - np.log(far.relative_norm).mean()
    return (np.log(far) * x).sum("relative_norm") / (x**2).sum()


def _share_of_best(weights: np.ndarray, problem: Problems) -> np.ndarray:
    attended = theory.attention(weights, problem.repeated(len(weights))).argmax(axis=-1)
    return np.asarray((attended == problem.best_tokens).mean(axis=-1))
