"""The training loss and its gradient: bounds, closed form, and what rounding does to it. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds
from attnbook.core.resuming import check_seeds
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.mirror_descent import mirror
from attnbook.mirror_descent import objective as theory
from attnbook.mirror_descent.attention import Batch, loss_and_gradient, train_loss
from attnbook.mirror_descent.attention_svm import attention_svm
from attnbook.mirror_descent.data import Problems, draw_problems

__all__ = ["Objective", "Settings", "run"]

STEP = 1e-6
DIGITS = 80


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; all are this book's.

    Attributes:
        ps: Exponents of the gradient bound, increasing.
        norms: Euclidean norms of the random matrices.
        relative_norms: Norms over that of the max-margin solution at which rounding is measured.
        n_samples: Samples per problem.
        n_tokens: Tokens per sample.
        dimension: Dimension of a token.
        draws: Random cases of the covariance lemma per seed.
        seeds: One problem per seed.
    """

    ps: tuple[float, ...] = (1.1, 1.5, 2.0, 3.0, 6.0)
    norms: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    relative_norms: tuple[float, ...] = (1.0, 5.0, 10.0, 20.0, 40.0, 80.0)
    n_samples: int = 6
    n_tokens: int = 8
    dimension: int = 10
    draws: int = 2000
    seeds: tuple[int, ...] = tuple(range(20))

    def __post_init__(self) -> None:
        for name, values in (("ps", self.ps), ("norms", self.norms), ("relative_norms", self.relative_norms)):
            if list(values) != sorted(set(values)) or values[0] <= (name == "ps"):
                raise ValueError(f"{name}: expected increasing numbers above {int(name == 'ps')}, got {values}")
        if self.draws < 1:
            raise ValueError(f"draws: expected at least 1, got {self.draws}")
        check_seeds(self.seeds, 1)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(ps=(1.5, 3.0), norms=(1.0,), n_samples=2, n_tokens=3, dimension=5, draws=20, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds; the paper has proofs in its place."""
        return cls(draws=20_000, seeds=tuple(range(100)))


@dataclass(frozen=True)
class Objective(Result):
    """How close loss and gradient come to breaking their lemmas.

    Attributes:
        violation: Largest violation of Lemma 16, ``(seeds, losses, norms)``.
        slack: Distance to the lower side far out towards the best tokens, and to the upper side towards the worst,
            ``(seeds, losses, 2)``.
        difference_error: Gradient against central differences, ``(seeds, norms)``.
        autograd_error: Relative error against automatic differentiation, ``(seeds, norms)``.
        ratio: Norm of the gradient over its bound, ``(seeds, losses, norms, ps)``.
        tight_ratio: The same for two opposite tokens and the linear loss, ``(ps,)``.
        covariance: Largest violation of the covariance lemma over both ranges, ``(seeds,)``.
        rounding: Relative error of the gradient as it reads and as it is computed, ``(seeds, 2, relative norms)``.
    """

    experiment: ClassVar[str] = "mirror_descent.objective"
    settings_type: ClassVar[type] = Settings

    violation: Float[np.ndarray, "seeds losses norms"]
    slack: Float[np.ndarray, "seeds losses 2"]
    difference_error: Float[np.ndarray, "seeds norms"]
    autograd_error: Float[np.ndarray, "seeds norms"]
    ratio: Float[np.ndarray, "seeds losses norms ps"]
    tight_ratio: Float[np.ndarray, " ps"]
    covariance: Float[np.ndarray, " seeds"]
    rounding: Float[np.ndarray, "seeds 2 relative_norms"]

    def measurements(self) -> dict[str, Measurement]:
        """Return the worst case of each lemma, by claim id."""
        farthest = self.tight_ratio[np.abs(self.tight_ratio - 1).argmax()]
        return {
            "MD-L16": extremes_over_seeds(max_violation=self.violation),
            "MD-L16-tight": extremes_over_seeds(largest_slack=np.abs(self.slack)),
            "MD-L17": extremes_over_seeds(max_error=self.difference_error),
            "MD-L17-autograd": extremes_over_seeds(max_relative_error=self.autograd_error),
            "MD-L17-digits": extremes_over_seeds(
                smallest_error_as_it_reads=self.rounding[:, 0, -1], largest_error_as_computed=self.rounding[:, 1]
            ),
            "MD-L18": extremes_over_seeds(max_ratio_to_bound=self.ratio),
            "MD-L18-tight": Measurement({"ratio_to_bound": float(farthest)}),
            "MD-cov": extremes_over_seeds(max_violation=self.covariance),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> Objective:
    """Check loss and gradient on random problems and matrices.

    Args:
        settings: Sizes, norms and exponents.
        device: Checked, but not used: everything is float64 on the CPU.
        progress: Told (parts done, parts in all).
        workdir: Not used: the run is short.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock = Clock()
    runtime.device(device)
    problems = draw_problems(
        settings.seeds, n_samples=settings.n_samples, n_tokens=settings.n_tokens, dimension=settings.dimension
    )
    shape = (settings.dimension, settings.dimension)
    drawn = np.stack([stream(seed, "matrix").standard_normal(shape) for seed in settings.seeds])
    unit = mirror.normalised(drawn, 2.0)
    with runtime.threads(1):
        columns = [_at_norm(settings, problems, norm * unit) for norm in settings.norms]
        arrays = {name: np.stack([column[name] for column in columns], axis=-1) for name in columns[0]}
        rounding = _rounding(settings, problems)
    if progress:
        progress(1, 1)
    return Objective(
        settings=settings,
        provenance=clock.provenance(torch.device("cpu")),
        ratio=np.moveaxis(arrays.pop("ratio"), -1, -2),
        tight_ratio=_tight(settings),
        covariance=np.array([_covariance(settings, seed) for seed in settings.seeds]),
        slack=_slack(settings, problems),
        rounding=rounding,
        **arrays,
    )


def _at_norm(settings: Settings, problems: Problems, weights: np.ndarray) -> dict[str, np.ndarray]:
    """All lemmas for one matrix per problem."""
    violation, ratio = [], []
    for loss in theory.LOSSES.values():
        value = theory.training_loss(weights, problems, loss)
        low, high = theory.loss_bounds(problems, loss)
        violation.append(np.maximum(low - value, value - high))
        gradient = theory.loss_gradient(weights, problems, loss)
        q = [float(mirror.conjugate(p)) for p in settings.ps]
        norms = np.stack([mirror.entrywise_norm(gradient, r) for r in q], axis=-1)
        ratio.append(norms / np.stack([theory.gradient_bound(problems, p, loss) for p in settings.ps], axis=-1))
    batch, tensor = Batch.of(problems), torch.tensor(weights, requires_grad=True)
    closed = loss_and_gradient({"key_query": tensor.detach()}, batch)[1]["key_query"].numpy()
    (automatic,) = torch.autograd.grad(train_loss({"key_query": tensor}, batch).sum(), tensor)
    error = np.abs(closed - automatic.numpy()).max((1, 2)) / np.abs(closed).max((1, 2))
    return {
        "violation": np.stack(violation, axis=1),
        "ratio": np.stack(ratio, axis=1),
        "difference_error": np.abs(closed - _differences(weights, problems)).max((1, 2)),
        "autograd_error": error,
    }


def _slack(settings: Settings, problems: Problems) -> np.ndarray:
    """How near both sides of Lemma 16 come at the largest relative norm."""
    columns = []
    for side, selected in enumerate((problems.best_tokens, problems.token_scores.argmin(axis=-1))):
        solution = attention_svm(problems.tokens, problems.queries, selected, 2.0).weight
        weights, losses = settings.relative_norms[-1] * solution, theory.LOSSES.values()
        reached = [theory.training_loss(weights, problems, loss) for loss in losses]
        bounds = [theory.loss_bounds(problems, loss)[side] for loss in losses]
        columns.append(np.stack(reached, axis=1) - np.stack(bounds, axis=1))
    return np.stack(columns, axis=-1)


def _differences(weights: np.ndarray, problems: Problems) -> np.ndarray:
    """Central differences of the loss, entry by entry."""
    count, logistic = weights[0].size, theory.LOSSES["logistic"]
    found = np.empty((len(weights), count))
    for entry in range(count):
        move = np.zeros(count)
        move[entry] = STEP
        sides = [
            theory.training_loss(weights + s * move.reshape(weights[0].shape), problems, logistic) for s in (1, -1)
        ]
        found[:, entry] = (sides[0] - sides[1]) / (2 * STEP)
    return found.reshape(weights.shape)


def _tight(settings: Settings) -> np.ndarray:
    """Two opposite tokens, the zero matrix and the linear loss."""
    rng = stream(settings.seeds[0], "tight")
    token = rng.standard_normal(settings.dimension)
    opposite = Problems(
        np.stack([token, -token])[None, None],
        rng.standard_normal((1, 1, settings.dimension)),
        np.ones((1, 1)),
        rng.standard_normal((1, settings.dimension)),
    )
    gradient = theory.loss_gradient(
        np.zeros((1, settings.dimension, settings.dimension)), opposite, theory.LOSSES["linear"]
    )
    norms = [mirror.entrywise_norm(gradient, float(mirror.conjugate(p))) for p in settings.ps]
    bounds = [theory.gradient_bound(opposite, p, theory.LOSSES["linear"]) for p in settings.ps]
    return np.array([float(norm[0] / bound[0]) for norm, bound in zip(norms, bounds, strict=True)])


def _covariance(settings: Settings, seed: int) -> float:
    """Largest violation over both ranges, on attention from uniform to saturated."""
    rng = stream(seed, "covariance")
    logits, a, scores = rng.standard_normal((3, settings.draws, settings.n_tokens))
    left, right = theory.covariance_error(logits * 10 ** rng.uniform(-1, 2, (settings.draws, 1)), a, scores)
    return float(((left - right) / (np.ptp(a, axis=-1) * np.ptp(scores, axis=-1))).max())


def _rounding(settings: Settings, problems: Problems) -> np.ndarray:
    """Relative errors of two float64 gradients against one with many digits, along the max-margin solution."""
    solution = attention_svm(problems.tokens, problems.queries, problems.best_tokens, 2.0).weight
    batch, columns = Batch.of(problems), []
    for norm in settings.relative_norms:
        weights = norm * solution
        exact = np.stack([_many_digits(w, problems, i) for i, w in enumerate(weights)])
        plain = theory.loss_gradient(weights, problems, theory.LOSSES["logistic"])
        careful = loss_and_gradient({"key_query": torch.tensor(weights)}, batch)[1]["key_query"].numpy()
        largest = np.abs(exact).max((1, 2))
        columns.append([np.abs(found - exact).max((1, 2)) / largest for found in (plain, careful)])
    return np.moveaxis(np.array(columns), (0, 1, 2), (2, 1, 0))


def _many_digits(weights: np.ndarray, problems: Problems, at: int) -> np.ndarray:
    """The gradient of one problem with many decimal digits: slow, for reference."""
    exact = np.vectorize(Decimal, otypes=[object])
    with localcontext() as context:
        context.prec = DIGITS
        w, tokens, queries = exact(weights), exact(problems.tokens[at]), exact(problems.queries[at])
        # Scores as floats, as both ways receive them.
        scores, total = exact(problems.token_scores[at]), exact(np.zeros(weights.shape))
        for x, z, score in zip(tokens, queries, scores, strict=True):
            powers = np.array([h.exp() for h in x.dot(w.dot(z))], dtype=object)
            s = powers / powers.sum()
            margin = (s * score).sum()
            slope = -1 / (1 + margin.exp()) / len(queries)
            total = total + np.multiply.outer((s * (score - margin) * slope).dot(x), z)
        return np.asarray(total, dtype=np.float64)
