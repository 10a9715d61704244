"""The experiments of the chapter: matrix and head trained together, from zero.

Steps are scale-free and separate for the two blocks, or with one step size for both. The head's steps may be several
times as long as the matrix's: then the ratio of the two relative norms is several times as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnbook.core import runtime
from attnbook.core.ensemble import History, log_spaced
from attnbook.core.experiment import Arrays, Experiment
from attnbook.core.experiment import share_of_seeds as share
from attnbook.core.runtime import Progress
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems, joined
from attnbook.mirror_descent.joint import descend_jointly
from attnbook.mirror_descent.joint_law import NearConflictError, joint_directions
from attnbook.mirror_descent.mirror import direction_divergence

NEAR = 0.99  # cosine from which on a run has found its target
JUDGED = 1.75  # the smallest exponent of the claims: smaller ones forget the start too slowly for these runs
EARLY, LATE = 5.0, 100.0  # logs of time at which the ratio is read, with one step size


@dataclass(frozen=True, kw_only=True)
class Joint(Experiment):
    """Base: problems that a head can classify whatever is attended to, and steps."""

    ps: tuple[float, ...]  # exponents; 2 is among them
    n_samples: int = 5  # samples of a problem
    n_tokens: int = 4  # tokens of a sample
    dimension: int = 12  # of a token; at least as many as samples
    step_size: float = 0.1  # of scale-free steps, the same for every exponent
    steps: int  # of each run

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_samples > self.dimension:
            raise ValueError(f"dimension: expected at least n_samples = {self.n_samples}, got {self.dimension}")
        if 2.0 not in self.ps:
            raise ValueError(f"ps: expected 2 among them, got {self.ps}")

    def problems(self, seeds: tuple[int, ...]) -> Problems:
        """Draw one problem per seed."""
        return draw_problems(seeds, n_samples=self.n_samples, n_tokens=self.n_tokens, dimension=self.dimension)


@dataclass(frozen=True, kw_only=True)
class JointTraining(Joint):
    """Matrix and head with separate steps, beside what the law makes of their norms."""

    id = "mirror_descent.joint_training"
    summary = "Matrix and head trained together: heads, plain and corrected targets, shares of seeds"
    needs = "float64"
    budget_seconds = 40
    smoke = {"n_samples": 3, "n_tokens": 3, "dimension": 5, "steps": 60, "seeds": (0, 1), "chunk": 1}
    full = {"ps": (1.25, 1.5, 1.75, 2.0, 3.0), "head_paces": (1.0, 4.0, 16.0, 64.0), "steps": 20_000}

    ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)  # exponents; 2 is among them
    head_paces: tuple[float, ...] = (1.0, 4.0, 16.0)  # how many times as long the head's steps are as the matrix's
    steps: int = 4000  # of each run
    seeds: tuple[int, ...] = tuple(range(60))
    chunk: int = 60

    def coordinates(self) -> dict[str, Any]:
        """Name exponents and paces."""
        return {"p": list(self.ps), "pace": list(self.head_paces)}

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every seed with every exponent and pace, and compare the last matrices and heads with their targets."""
        one = self.problems(seeds)
        problems = joined([one] * (len(self.ps) * len(self.head_paces)))
        exponents = np.repeat(self.ps, len(self.head_paces) * len(seeds))
        history = descend_jointly(
            problems,
            exponents,
            steps=self.steps,
            step_size=self.step_size,
            head_pace=np.tile(np.repeat(self.head_paces, len(seeds)), len(self.ps)).tolist(),
            record_at=[self.steps],
            device=device,
            progress=progress,
        )
        with runtime.threads(1):
            found = compared(problems, history, exponents)
        shape = (len(self.ps), len(self.head_paces), len(seeds))
        arrays = {name: values.reshape(*shape, *values.shape[1:]) for name, values in found.items()}
        two = self.ps.index(2.0)
        of_samples = {name: (("pace", "seed", "sample"), arrays.pop(name)[two]) for name in ("gaps", "margins")}
        return of_samples | {name: (("p", "pace", "seed"), values) for name, values in arrays.items()}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off which seeds have found their targets."""
        judged = data.sel(p=data.p[data.p >= JUDGED])
        meets, off = judged.broken == 0, judged.on_margin == 0
        easy = meets & off
        ratio = ((1 - judged.cosine_plain) / (1 - judged.cosine)).where(easy)
        nearer = share_of_seeds(judged.cosine > judged.cosine_plain, easy)
        return {
            "MD-joint-head": share_of_seeds(judged.cosine_head > NEAR, meets),
            "MD-joint": share_of_seeds(judged.cosine_plain > NEAR, meets & ~off),
            "MD-joint+": share_of_seeds(judged.cosine > NEAR, easy) | {"largest_kappa": judged.kappa.where(easy).max()},
            "MD-joint-plain": nearer | {"distance_ratio": ratio.median()},
        }


@dataclass(frozen=True, kw_only=True)
class CrowdedProblems(JointTraining):
    """Few dimensions, so that tokens are in each other's way: where the condition of the law breaks, and its stop."""

    id = "mirror_descent.crowded_problems"
    summary = "Joint training in few dimensions: the condition of the law, and where right-hand sides stop at zero"
    needs = "float64"
    smoke = {"n_samples": 3, "n_tokens": 3, "dimension": 3, "steps": 60, "seeds": (0, 1), "chunk": 1}
    full = {"steps": 40_000, "seeds": tuple(range(1000)), "chunk": 500}

    ps: tuple[float, ...] = (2.0,)
    head_paces: tuple[float, ...] = (4.0,)
    n_samples: int = 6
    dimension: int = 6
    steps: int = 8000
    seeds: tuple[int, ...] = tuple(range(500))
    chunk: int = 500

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how many runs miss the target where the condition is broken and where it is met."""
        run = data.squeeze(["p", "pace"])
        missed, meets = run.cosine <= NEAR, run.broken == 0
        broken, met = share_of_seeds(missed, ~meets), share_of_seeds(missed, meets)
        return {
            "MD-joint-condition": {
                "missed_broken": broken["share"],
                "missed_broken_low": broken["low"],
                "missed_met": met["share"],
                "missed_met_high": met["high"],
                "broken": broken["seeds"],
            }
        }


@dataclass(frozen=True, kw_only=True)
class JointOneStepSize(Joint):
    r"""One step size for both blocks: the ratio never settles. Time, the sum of step sizes, is kept as a logarithm."""

    id = "mirror_descent.joint_one_step_size"
    summary = "Matrix and head with one step size, far out: the ratio of their norms keeps growing"
    needs = "float64"
    smoke = {"n_samples": 2, "n_tokens": 3, "dimension": 5, "step_size": 2.0, "steps": 60, "records": 4,
             "seeds": (0, 1), "chunk": 1}  # fmt: skip
    full = {"steps": 20_000, "records": 24, "seeds": tuple(range(60))}

    ps: tuple[float, ...] = (1.5, 2.0, 3.0)  # exponents; 2 is among them
    steps: int = 3000  # of each run; the faster block's are scale-free
    records: int = 12  # steps that are recorded, about
    seeds: tuple[int, ...] = tuple(range(20))
    chunk: int = 20

    def coordinates(self) -> dict[str, Any]:
        """Name the exponents."""
        return {"p": list(self.ps)}

    @property
    def record_at(self) -> tuple[int, ...]:
        """Steps that are recorded."""
        return tuple(s for s in log_spaced(self.steps, 2 * self.records, also=(10,)) if s >= 10)[-self.records :]

    def simulate(self, seeds: tuple[int, ...], device: torch.device, progress: Progress | None) -> Arrays:
        """Train every seed with every exponent, and compare all records with their targets."""
        one = self.problems(seeds)
        problems, exponents = joined([one] * len(self.ps)), np.repeat(self.ps, len(seeds))
        history = descend_jointly(
            problems, exponents, steps=self.steps, step_size=self.step_size, protocol="common",
            record_at=self.record_at, device=device, progress=progress,
        )  # fmt: skip
        with runtime.threads(1):
            every = joined([problems] * len(self.record_at))
            found = compared(every, history, np.tile(exponents, len(self.record_at)))
        found["log_time"] = history.records["log_time"]
        names, shape = ("log_time", "kappa", "head_norm", "relative_norm", "cosine"), (-1, len(self.ps), len(seeds))
        return {name: (("record", "p", "seed"), found[name].reshape(shape)) for name in names}

    def measure(self, data: xr.Dataset) -> dict[str, dict[str, xr.DataArray]]:
        """Read off how the ratio grows, and how the matrix's norm does."""
        early, late = (at_log_time(data, "kappa", when).sel(p=2.0) for when in (EARLY, LATE))
        several = share_of_seeds(late > 3 * early, early > 0)
        deviation = abs(growth(data).median("seed") - 1).max()
        values = {"kappa_early": early, "kappa_late": late, "slope_deviation": deviation}
        return {"MD-joint+-kappa": values | several}


def compared(problems: Problems, history: History, exponents: np.ndarray) -> dict[str, np.ndarray]:
    """Compare every recorded matrix and head with its targets; a problem that the solver cannot do has cosine zero."""
    key_query, head = (np.concatenate(history.records[name]) for name in ("key_query", "decoder"))
    return _compared(problems.tokens, problems.queries, problems.labels, head, key_query, exponents)


def _compared(*given: np.ndarray) -> dict[str, np.ndarray]:
    try:
        return _numbers(*given)
    except (NearConflictError, RuntimeError):  # find the problem by halves
        half = len(given[0]) // 2
        if half == 0:
            return _unsolved(given[0].shape[1])
        parts = [_compared(*(array[part] for array in given)) for part in (slice(None, half), slice(half, None))]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _numbers(tokens: np.ndarray, queries: np.ndarray, *others: np.ndarray) -> dict[str, np.ndarray]:
    law, (*_, key_query, exponents) = joint_directions(tokens, queries, *others, check=False), others
    plain = attention_svm(tokens, queries, law.selected, exponents)
    return {
        "cosine": law.cosine_key_query,
        "cosine_head": law.cosine_head,
        "kappa": law.key_query.kappa,
        "head_norm": law.head_norm,
        "relative_norm": law.relative_norm,
        "on_margin": law.head.support.all(axis=1).astype(float),  # whether every sample has head margin one
        "broken": law.overtaking.any(axis=(1, 2)).astype(float),  # whether the condition of the law is
        "margins": law.head.margins,
        "gaps": law.gaps.min(axis=2),  # smallest of each sample, over the relative norm of the matrix
        "cosine_plain": 1 - direction_divergence(plain.weight, key_query, 2.0),
    }


def _unsolved(samples: int) -> dict[str, np.ndarray]:
    """Numbers of one problem without solution: a miss that no condition has announced."""
    names = ("cosine", "cosine_head", "kappa", "head_norm", "relative_norm", "on_margin", "broken", "cosine_plain")
    return dict.fromkeys(names, np.zeros(1)) | {"margins": np.ones((1, samples)), "gaps": np.zeros((1, samples))}


def share_of_seeds(holds: xr.DataArray, counts: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the share of seeds all of whose runs that count hold, with the ends of Wilson's 95 per cent interval."""
    others = [dimension for dimension in holds.dims if dimension != "seed"]
    seeds = counts.any(others)
    passed = (holds | ~counts).all(others).where(seeds)
    sides = {"share": 0, "low": -1, "high": 1}
    found = {name: share(passed, side).fillna(max(side, 0)) for name, side in sides.items()}
    return found | {"seeds": seeds.sum(), "runs": counts.sum()}


def at_log_time(data: xr.Dataset, name: str, when: float) -> xr.DataArray:
    """Return values where each run passes a log of time, interpolated between records."""
    return xr.apply_ufunc(
        lambda time, values: np.interp(when, time, values), data.log_time, data[name],
        input_core_dims=[["record"], ["record"]], vectorize=True,
    )  # fmt: skip


def growth(data: xr.Dataset) -> xr.DataArray:
    r"""Return the slope of $\rho$ against $\log r$ over the last half of the records, over that of the formula."""
    far = data.isel(record=slice(data.sizes["record"] // 2, None))
    log_r, formula = np.log(far.head_norm), xr.apply_ufunc(common_step_growth, far.relative_norm, far.p)
    return xr.cov(log_r, far.relative_norm, "record", ddof=0) / log_r.var("record") / formula.mean("record")


def common_step_growth(relative_norm: np.ndarray, p: float) -> np.ndarray:
    r"""Return the slope of $\rho$ against $\log r$ when one step size moves both blocks on their rays.

    With $r$ the relative norm of the head and $\rho$ that of the matrix, $\frac{d}{dt}r^{p-1}\propto e^{-r}$ and
    $\frac{d}{dt}\rho^{p-1}\propto r\,e^{-r}e^{-\rho}$, so $\rho^{p-2}e^\rho\propto r^p$ up to terms of lower order. The
    slope is near $p$ far out. A heuristic of this book.
    """
    return p / (1 + (p - 2) / relative_norm)
