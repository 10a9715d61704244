"""Lemmas 12 to 15 and 26: the inequalities that the proofs rest on, on random and on worst-case matrices.

No network is trained, but for Lemma 26, which is checked along short runs of mirror descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import inequalities, mirror
from attnbook.mirror_descent.attention import descend
from attnbook.mirror_descent.data import draw_problems, joined
from attnbook.mirror_descent.objective import LOSSES, loss_gradient

__all__ = ["Inequalities", "Settings", "run"]

# Worst-case pairs for p > 2.
EXTREME = 8


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents, increasing; 2 must be among them, which belongs to both cases of every lemma.
        dimension: Rows and columns of the matrices.
        pairs: Pairs of unit matrices per exponent.
        shown: How many of them are kept for the picture.
        scalars: Pairs of numbers for Lemmas 14 and 15.
        steps: Steps of the runs for Lemma 26.
        step_size: Step size of those runs.
        seeds: Seeds of those runs; the first one also draws matrices and numbers.
    """

    ps: tuple[float, ...] = (1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
    dimension: int = 10
    pairs: int = 2000
    shown: int = 250
    scalars: int = 100_000
    steps: int = 150
    step_size: float = 0.05
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def __post_init__(self) -> None:
        if 2.0 not in self.ps or list(self.ps) != sorted(set(self.ps)) or not self.ps[0] > 1 or self.ps[-1] <= 2:
            raise ValueError(f"ps: expected increasing numbers from above 1 to above 2, with 2, got {self.ps}")
        if not 1 <= self.shown <= self.pairs:
            raise ValueError(f"shown: expected between 1 and pairs = {self.pairs}, got {self.shown}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(ps=(1.5, 2.0, 3.0), dimension=3, pairs=30, shown=5, scalars=50, steps=5, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return a larger sample; the paper has proofs in its place."""
        return cls(pairs=20_000, scalars=1_000_000, seeds=tuple(range(20)))


@dataclass(frozen=True)
class Inequalities(Result):
    r"""How close each inequality comes to failing.

    Attributes:
        norm_slack: Smallest relative slack of Lemma 12, both sides, ``(ps,)``.
        norm_attained: Relative slack of the attained side for one entry and for a constant matrix, ``(ps, 2)``.
        ratios: Smallest divergence over the bound of Lemma 13, and over the sharper bound, ``(ps, 2)``.
        constants: $c_p^\star$ over its lower bound $1/(p(2^{p-1}-1))$, for exponents of at least 2, ``(large,)``.
        violations: Largest relative violation of Lemmas 14 and 15, ``(ps, 2)``.
        identity: Largest error of Lemma 26 along each run, ``(seeds, ps)``.
        short_form: Largest difference of $D_\psi(U,V)$ and $1-\langle\nabla\psi(V),U\rangle$, ``(ps,)``.
        euclidean: At p = 2: largest error of one minus the cosine as divergence, and of a gradient step, ``(2,)``.
        distance: $\|U-V\|_{p,p}$ of the pairs kept for the picture, ``(ps, shown)``.
        divergence: $D_\psi(U,V)$ of the same pairs, ``(ps, shown)``.
    """

    experiment: ClassVar[str] = "mirror_descent.inequalities"
    settings_type: ClassVar[type] = Settings

    norm_slack: Float[np.ndarray, " ps"]
    norm_attained: Float[np.ndarray, "ps 2"]
    ratios: Float[np.ndarray, "ps 2"]
    constants: Float[np.ndarray, " large"]
    violations: Float[np.ndarray, "ps 2"]
    identity: Float[np.ndarray, "seeds ps"]
    short_form: Float[np.ndarray, " ps"]
    euclidean: Float[np.ndarray, " 2"]
    distance: Float[np.ndarray, "ps shown"]
    divergence: Float[np.ndarray, "ps shown"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the worst case of each lemma, by claim id."""
        # At p = 2 the two cases of Lemma 13 have different constants, and the second one is an identity there.
        ps = np.array(self.settings.ps)
        small, large, above = ps <= 2, ps >= 2, ps > 2
        lemma, sharp = self.ratios.T
        cosine, step = self.euclidean
        worst = {
            "MD-D1": {"max_error": self.short_form.max()},
            "MD-D1-euclidean": {"max_error_divergence": cosine, "max_error_step": step},
            "MD-L12-above2": {"min_relative_slack": self.norm_slack[large].min()},
            "MD-L12-below2": {"min_relative_slack": self.norm_slack[small].min()},
            "MD-L12-tight": {"max_relative_slack": np.abs(self.norm_attained).max()},
            "MD-L13a": {"min_ratio_to_bound": lemma[small].min()},
            "MD-L13a+": {"min_ratio_to_bound": sharp[small].min()},
            "MD-L13a+-attained": {"max_over_p_of_min_ratio_to_bound": sharp[small].max()},
            "MD-L13b": {"min_ratio_to_bound": lemma[above].min(), "ratio_p2": lemma[ps == 2].item() * 4},
            "MD-L13b+": {"min_ratio_to_bound": sharp[above].min(), "constant_p2": inequalities.best_constant(2.0)},
            "MD-L13b+-attained": {"max_over_p_of_min_ratio_to_bound": sharp[above].max()},
            "MD-L13b+-lower": {"min_ratio_to_lower_bound": self.constants.min(), "ratio_p2": self.constants[0]},
            "MD-L14": {"max_relative_violation": self.violations[:, 0].max()},
            "MD-L15": {"max_relative_violation": self.violations[:, 1].max()},
        }
        found = {claim: Measurement({k: float(v) for k, v in values.items()}) for claim, values in worst.items()}
        return found | {"MD-L26": Measurement({"max_error": float(self.identity.max())}, n_seeds=len(self.identity))}


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Inequalities:
    """Look for violations of Lemmas 12 to 15 and 26.

    Args:
        settings: Sizes and exponents.
        device: Where the runs for Lemma 26 train; default the first of cuda, mps and cpu.
        progress: Told (exponents done, exponents in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)
    with runtime.threads(1):
        columns = []
        for number, p in enumerate(settings.ps, 1):
            columns.append(_lemmas(settings, p))
            if progress:
                progress(number, len(settings.ps))
        arrays = {name: np.stack([column[name] for column in columns]) for name in columns[0]}
        identity = _three_points(settings, where)
    large = [p for p in settings.ps if p >= 2]
    return Inequalities(
        settings=settings,
        provenance=clock.provenance(where),
        constants=np.array([inequalities.best_constant(p) * p * (2 ** (p - 1) - 1) for p in large]),
        identity=identity,
        euclidean=_euclidean(settings, where),
        **arrays,
    )


def _lemmas(settings: Settings, p: float) -> dict[str, np.ndarray]:
    """All that concerns one exponent but Lemma 26."""
    matrices = _matrices(settings)
    norm = mirror.entrywise_norm(matrices, p)
    low, high = inequalities.norm_bounds(matrices, p)
    u, v = _pairs(settings, p)
    # Pairs that coincide but for rounding say nothing.
    apart = mirror.entrywise_norm(u - v, p) > 1e-4
    u, v = u[apart], v[apart]
    divergence = mirror.bregman_divergence(u, v, p)
    bounds = [inequalities.divergence_bound(u, v, p, sharp=sharp) for sharp in (False, True)]
    every = np.linspace(0, len(u) - 1, settings.shown).astype(int)
    every[: EXTREME + 1] = np.arange(EXTREME + 1)[: settings.shown]
    return {
        "norm_slack": np.minimum(1 - low / norm, high / norm - 1).min(),
        "short_form": np.abs(divergence - 1 + (mirror.mirror_map(v, p) * u).sum(axis=(1, 2))).max(),
        "norm_attained": _attained(settings.dimension, p),
        "ratios": np.array([(divergence / bound).min() for bound in bounds]),
        "violations": _scalar_violations(settings, p),
        "distance": mirror.entrywise_norm(u - v, p)[every],
        "divergence": divergence[every],
    }


def _euclidean(settings: Settings, device: torch.device) -> np.ndarray:
    """Errors at p = 2: of the divergence against one minus the cosine, and of a step against gradient descent."""
    u, v = _pairs(settings, 2.0)
    cosine = (u * v).sum(axis=(1, 2)) / (np.linalg.norm(u, axis=(1, 2)) * np.linalg.norm(v, axis=(1, 2)))
    one = draw_problems(settings.seeds)
    start = np.stack([stream(s, "start").standard_normal(one.tokens.shape[3:] * 2) for s in settings.seeds])
    ps = np.full(len(start), 2.0)
    history = descend(one, ps, steps=1, step_size=settings.step_size, start=start, record_at=(1,), device=device)
    plain = start - settings.step_size * loss_gradient(start, one, LOSSES["logistic"])
    by_cosine = np.abs(mirror.bregman_divergence(u, v, 2.0) - 1 + cosine).max()
    return np.array([by_cosine, np.abs(history.records["key_query"][0] - plain).max()])


def _matrices(settings: Settings) -> np.ndarray:
    """Random matrices: plain ones, sparse ones, and ones whose entries span many scales."""
    rng = stream(settings.seeds[0], "matrices")
    shape = (settings.pairs, settings.dimension, settings.dimension)
    matrices = rng.standard_normal(shape)
    kind = np.arange(settings.pairs) % 3
    kept = rng.random(shape) < 0.1
    kept[:, 0, 0] = True
    matrices[kind == 1] *= kept[kind == 1]
    matrices[kind == 2] *= 10 ** rng.uniform(-4, 0, shape)[kind == 2]
    return matrices


def _pairs(settings: Settings, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs on the unit sphere: random ones at all distances, scaled by factors around one, and the worst ones."""
    rng = stream(settings.seeds[0], "pairs")
    v = _matrices(settings)
    size = 10 ** rng.uniform(-3, 1, (settings.pairs, 1, 1))
    other = mirror.normalised(v, p) + size * mirror.normalised(v[rng.permutation(settings.pairs)], p)
    signs = rng.choice([-1.0, 1.0], v.shape)
    flipped = v * (1 + np.minimum(size, 1) * signs)
    which = np.arange(settings.pairs) % 2 == 0
    u = np.where(which[:, None, None], other, flipped)
    # For p < 2: entries of one size, half of them pulled each way.
    u[0], v[0] = 1 + 1e-3 * _balanced(settings.dimension), np.ones_like(v[0])
    # For p > 2: one tiny entry beside a large one, changed by what attains the best constant.
    tiny = slice(1, EXTREME + 1) if p > 2 else slice(0)
    u[tiny], v[tiny] = 0.0, 0.0
    u[tiny, 0, 0] = v[tiny, 0, 0] = 1.0
    if p > 2:
        v[tiny, 0, 1] = np.geomspace(0.02, 0.3, EXTREME)
        u[tiny, 0, 1] = v[tiny, 0, 1] * (1 - inequalities.extreme_change(p))
    # A change by all of a sparse matrix leaves zero, which has no direction.
    kept = u.any(axis=(1, 2))
    return mirror.normalised(u[kept], p), mirror.normalised(v[kept], p)


def _balanced(dimension: int) -> np.ndarray:
    """As many entries of plus one as of minus one, and a zero where their number is odd."""
    count = dimension**2
    signs = np.zeros(count)
    signs[: count // 2], signs[count - count // 2 :] = 1.0, -1.0
    return signs.reshape(dimension, dimension)


def _attained(dimension: int, p: float) -> np.ndarray:
    """Relative slack of Lemma 12 where equality is claimed: one entry at the Euclidean end, a constant at the other."""
    single, constant = np.zeros((2, dimension, dimension))
    single[0, 0], constant[:] = 3.0, 0.7
    other = max if p <= 2 else min
    pairs = [(single, mirror.entrywise_norm(single, 2.0)), (constant, other(*inequalities.norm_bounds(constant, p)))]
    return np.array([float(mirror.entrywise_norm(m, p) / bound) - 1 for m, bound in pairs])


def _scalar_violations(settings: Settings, p: float) -> np.ndarray:
    rng = stream(settings.seeds[0], "numbers")
    x = 10 ** rng.uniform(-3, 3, settings.scalars)
    # Ratios of x to y from one and a millionth to a thousand.
    y = x / (1 + 10 ** rng.uniform(-6, 3, settings.scalars))
    powers, slopes = inequalities.power_bounds(x, y, p), inequalities.slope_bounds(x, y, p)
    # The sides of Lemma 15 vary over many decades; they are compared with the largest of the three.
    return np.array([_violation(powers, x**p), _violation(slopes, np.maximum(slopes[1], slopes[2]))])


def _violation(sides: tuple[np.ndarray, np.ndarray, np.ndarray], unit: np.ndarray) -> float:
    left, middle, right = sides
    return float(np.maximum((left - middle) / unit, (middle - right) / unit).max())


def _three_points(settings: Settings, device: torch.device) -> Float[np.ndarray, "seeds ps"]:
    """Largest error of Lemma 26 with two neighbouring iterates and a random matrix."""
    one = draw_problems(settings.seeds)
    seeds, dimension = one.decoder.shape
    problems, ps = joined([one] * len(settings.ps)), np.repeat(settings.ps, seeds)
    history = descend(
        problems,
        ps,
        steps=settings.steps,
        step_size=settings.step_size,
        record_at=range(settings.steps + 1),
        device=device,
    )
    path = history.records["key_query"]
    drawn = np.stack([stream(s, "third point").standard_normal((dimension, dimension)) for s in settings.seeds])
    third = np.tile(drawn, (len(settings.ps), 1, 1))
    errors = inequalities.three_point_error(np.broadcast_to(third, path[1:].shape), path[:-1], path[1:], ps)
    return np.abs(errors).max(axis=0).reshape(len(settings.ps), seeds).T
