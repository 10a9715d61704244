"""The regularisation path, walked outwards and inwards: where it leads, and where solvers get lost.

Both walks minimise the same loss on the same spheres. One starts near zero, where all starts agree; the other far out,
from a matrix that is known to select the best tokens. The better of the two at each radius stands for the path.
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
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent import objective as theory
from attnbook.mirror_descent import regularisation_path as paths
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems

__all__ = ["INWARDS", "OUTWARDS", "RegularisationPath", "Settings", "run"]

OUTWARDS, INWARDS = 0, 1
# The exponent that searches from random starts use.
STARTED = 2.0
# The slope is measured from this relative norm on.
FAR = 10.0
# A search whose derivative along the sphere ends below this counts as stationary.
FLAT = 1e-4


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        ps: Exponents, increasing; 2 must be among them. In a trial with p = 1.25 most searches ended at their last
            step.
        relative_norms: Radii over the norm of the max-margin solution of the best tokens, increasing.
        starts: Random starts at each radius, p = 2 only.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token.
        most_steps: Most steps of L-BFGS per search.
        seeds: One problem per seed.
    """

    ps: tuple[float, ...] = (1.5, 1.75, 2.0, 3.0)
    relative_norms: tuple[float, ...] = (1.0, 3.0, 10.0, 20.0, 40.0, 80.0)
    starts: int = 3
    n_samples: int = 6
    n_tokens: int = 8
    dimension: int = 10
    most_steps: int = 500
    seeds: tuple[int, ...] = tuple(range(10))

    def __post_init__(self) -> None:
        if list(self.ps) != sorted(set(self.ps)) or STARTED not in self.ps or self.ps[0] <= 1:
            raise ValueError(f"ps: expected increasing numbers above 1, with 2, got {self.ps}")
        norms = self.relative_norms
        if list(norms) != sorted(set(norms)) or norms[0] <= 0 or sum(norm >= FAR for norm in norms) < 2:
            raise ValueError(
                f"relative_norms: expected increasing numbers above 0, two of at least {FAR:g}, got {norms}"
            )
        if self.starts < 1:
            raise ValueError(f"starts: expected at least 1, got {self.starts}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(
            ps=(2.0,),
            relative_norms=(1.0, 10.0, 20.0),
            starts=1,
            n_samples=2,
            n_tokens=3,
            dimension=5,
            most_steps=30,
            seeds=(0, 1),
        )

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds, exponents and radii; the paper gives no sizes."""
        norms = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 40.0, 80.0, 160.0)
        return cls(ps=(1.25, 1.5, 1.75, 2.0, 3.0), relative_norms=norms, most_steps=3000, seeds=tuple(range(20)))


@dataclass(frozen=True)
class RegularisationPath(Result):
    r"""What was found on each sphere; the first axis is the walk, outwards and inwards.

    Attributes:
        divergence: $D_\psi(\bar W_{mm},\bar W(R))$, ``(walks, seeds, ps, radii)``.
        log_excess: Logarithm of the loss above that of perfect attention, ``(walks, seeds, ps, radii)``.
        best_tokens: Share of samples that attend most to their best token, ``(walks, seeds, ps, radii)``.
        steepness: Derivative of the logarithm by $\log R$, ``(walks, seeds, ps, radii)``.
        started_excess: As ``log_excess``, from random starts at that radius, ``(seeds, starts, radii)``.
        started_tokens: As ``best_tokens``, from random starts, ``(seeds, starts, radii)``.
        started_slope: Largest entry of the derivative along the sphere where they ended, ``(seeds, starts, radii)``.
        selecting_radius: Relative norm beyond which the minimisers provably select the best tokens, ``(seeds,)``.
        bounds: Logarithms of the bounds of the smallest excess, ``(2, seeds, radii)``.
    """

    experiment: ClassVar[str] = "mirror_descent.regularisation_path"
    settings_type: ClassVar[type] = Settings
    # Losses that should be equal are compared.
    digits: ClassVar[int | None] = None

    divergence: Float[np.ndarray, "walks seeds ps radii"]
    log_excess: Float[np.ndarray, "walks seeds ps radii"]
    best_tokens: Float[np.ndarray, "walks seeds ps radii"]
    steepness: Float[np.ndarray, "walks seeds ps radii"]
    started_excess: Float[np.ndarray, "seeds starts radii"]
    started_tokens: Float[np.ndarray, "seeds starts radii"]
    started_slope: Float[np.ndarray, "seeds starts radii"]
    selecting_radius: Float[np.ndarray, " seeds"]
    bounds: Float[np.ndarray, "2 seeds radii"]

    def better(self, name: str) -> Float[np.ndarray, "seeds ps radii"]:
        """Return an array of the walk with the smaller loss, radius by radius.

        Args:
            name: ``divergence``, ``log_excess``, ``best_tokens`` or ``steepness``.

        Returns:
            The array without the axis of walks.
        """
        walk = self.log_excess.argmin(axis=0)
        return np.take_along_axis(getattr(self, name), walk[None], axis=0)[0]

    def slopes(self) -> Float[np.ndarray, "seeds ps"]:
        """Return the slope of log divergence against log radius over the far radii."""
        norms = np.array(self.settings.relative_norms)
        far = norms >= FAR
        x = np.log(norms[far]) - np.log(norms[far]).mean()
        return np.asarray(np.log(self.better("divergence")[..., far]) @ x / (x @ x))

    def octaves(self) -> Float[np.ndarray, " ps"]:
        """Return by how much the slope of the median divergence changes from the first far interval to the last."""
        norms = np.array(self.settings.relative_norms)
        far = norms >= FAR
        middle = np.log(np.median(self.better("divergence")[..., far], axis=0))
        slopes = np.diff(middle, axis=1) / np.diff(np.log(norms[far]))
        return np.asarray(slopes[:, -1] - slopes[:, 0])

    def measurements(self) -> dict[str, Measurement]:
        """Return direction, tokens and rate of the path, and how often solvers miss it, by claim id."""
        far = self.better("divergence")[..., -1]
        seeds = len(far)
        slopes = np.median(self.slopes(), axis=0)
        excess = self.better("log_excess")
        low, high = self.bounds[:, :, None]
        inside = (excess >= low) & (excess <= high)
        far_out = np.array(self.settings.relative_norms) >= FAR
        wrong = (self.best_tokens[OUTWARDS] < 1)[..., far_out]
        exposed = (self.log_excess[OUTWARDS] > high)[..., far_out] & wrong
        pace = self.octaves()
        lost, right = self.best_tokens[OUTWARDS, ..., -1] < 1, self.started_tokens[..., -1] == 1
        agree = self.started_excess.max(axis=1) - self.started_excess.min(axis=1)
        values = {
            "MD-RP": {"max_divergence_far": far.max()},
            "MD-RP-tokens": {"share_optimal_tokens": self.better("best_tokens")[..., -1].mean()},
            "MD-RP-rate": {"min_slope": slopes.min(), "max_slope": slopes.max(), "max_steepening": pace.max()},
            "MD-RP-outwards": {"share_lost": lost.mean()},
            "MD-RP-start": {
                "share_right_far": right.mean(),
                "largest_difference_near": agree[:, 0].max(),
                "share_stationary_far": (self.started_slope[..., -1] <= FLAT).mean(),
            },
            "MD-RP-sphere": {"largest_derivative": self.better("steepness")[..., -1].max()},
            "MD-RP-bracket": {
                "share_inside": inside.mean(),
                "share_of_lost_exposed": exposed.sum() / max(1, wrong.sum()),
                "smallest_factor": np.exp((high - low).min()),
                "largest_factor": np.exp((high - low).max()),
            },
            "MD-RP-certified": {"largest_radius": self.selecting_radius.max()},
        }
        own = {"MD-RP": ("max_divergence_far", far), "MD-RP-certified": ("largest_radius", self.selecting_radius)}
        spread = {claim: {name: (per.reshape(seeds, -1).max(1).min(), per.max())} for claim, (name, per) in own.items()}
        return {
            claim: Measurement(
                {name: float(value) for name, value in found.items()},
                {name: (float(a), float(b)) for name, (a, b) in spread.get(claim, {}).items()},
                seeds,
            )
            for claim, found in values.items()
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> RegularisationPath:
    """Walk the regularisation path of every seed and exponent outwards and inwards.

    Args:
        settings: Sizes, exponents and radii.
        device: Checked, but not used: searches run in float64 on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available, or the best tokens cannot be selected.
    """
    clock = Clock()
    runtime.device(device)
    rows = []
    with runtime.threads(1):
        for number, seed in enumerate(settings.seeds, 1):
            rows.append(_one_seed(settings, seed))
            if progress:
                progress(number, len(settings.seeds))
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    walks = {
        name: np.moveaxis(stacked.pop(name), 2, 0) for name in ("divergence", "log_excess", "best_tokens", "steepness")
    }
    return RegularisationPath(
        settings=settings,
        provenance=clock.provenance(torch.device("cpu")),
        bounds=np.moveaxis(stacked.pop("bounds"), 1, 0),
        **walks,
        **stacked,
    )


def _one_seed(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    problem = draw_problems(
        [seed], n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension
    )
    norms = np.array(settings.relative_norms)
    columns = [_walks(settings, problem, p) for p in settings.ps]
    found = {name: np.stack([column[name] for column in columns]) for name in columns[0]}
    radius = attention_svm(problem.tokens, problem.queries, problem.best_tokens, STARTED).norm[0]
    shape = (settings.starts, 1, settings.dimension, settings.dimension)
    drawn = stream(seed, "path starts").standard_normal(shape)
    started = [
        [
            paths.follow(problem, STARTED, norms[at, None] * radius, start, most_steps=settings.most_steps)
            for at in range(len(norms))
        ]
        for start in drawn
    ]
    found["started_excess"] = np.array([[path.log_excess[0] for path in row] for row in started])
    found["started_tokens"] = np.array([[_share_of_best(path.weights, problem)[0] for path in row] for row in started])
    found["started_slope"] = np.array([[path.slope[0] for path in row] for row in started])
    found["selecting_radius"] = theory.selecting_radius(problem)[0]
    bounds = [theory.excess_bounds(problem, norm) for norm in settings.relative_norms]
    found["bounds"] = np.log([[low[0] for low, _ in bounds], [high[0] for _, high in bounds]])
    return found


def _walks(settings: Settings, problem: Problems, p: float) -> dict[str, np.ndarray]:
    """Both walks of one exponent, ``(walks, radii)``."""
    target = attention_svm(problem.tokens, problem.queries, problem.best_tokens, p)
    radii = np.array(settings.relative_norms) * target.norm[0]
    downhill = -theory.loss_gradient(np.zeros_like(target.weight), problem, theory.LOSSES["logistic"])
    outwards = paths.follow(problem, p, radii, downhill, most_steps=settings.most_steps)
    known = paths.interpolant(problem)[None]
    back = paths.follow(problem, p, radii[::-1], known, most_steps=settings.most_steps)
    walks = (outwards, paths.Path(*(part[::-1] for part in back)))
    ray = mirror.normalised(target.weight, p)
    return {
        "divergence": np.stack([_divergence(ray, walk.weights, p) for walk in walks]),
        "log_excess": np.stack([walk.log_excess for walk in walks]),
        "steepness": np.stack([walk.steepness for walk in walks]),
        "best_tokens": np.stack([_share_of_best(walk.weights, problem) for walk in walks]),
    }


def _divergence(ray: np.ndarray, weights: np.ndarray, p: float) -> np.ndarray:
    return mirror.bregman_divergence(np.broadcast_to(ray, weights.shape), mirror.normalised(weights, p), p)


def _share_of_best(weights: np.ndarray, problem: Problems) -> np.ndarray:
    attended = theory.attention(weights, problem.repeated(len(weights))).argmax(axis=-1)
    return np.asarray((attended == problem.best_tokens).mean(axis=-1))
