r"""Finitely many keys: Lemmas 8 to 14, the coefficient of $1/n$ in loss and gradient, Theorem 5.

Moments are exact: a seed chooses problem and queries. Only Theorem 5 is averaged over draws, of sample covariances.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import runtime
from attnbook.core.results import Clock, Measurement, Result, extremes_over_seeds, over_seeds
from attnbook.core.resuming import check_seeds, seed_by_seed
from attnbook.core.rng import stream
from attnbook.core.runtime import Progress
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.models.penalty_bias import penalty_bias
from attnbook.preconditioning.theory.attention_output import (
    expected_excess,
    gaussian_nodes,
    output_bias,
    output_covariance,
    output_moments,
)
from attnbook.preconditioning.theory.population import spectral_factors, whiten
from attnbook.preconditioning.theory.scaling_law import bias_coefficient, bias_terms
from attnbook.preconditioning.theory.weight_moments import weight_powers

__all__ = ["FiniteKeys", "Settings", "run"]

# Where the claims look: numbers of keys, powers and strengths of the scores.
LOSS_KEYS = (32, 128, 512)
OUTPUT_KEYS = (50, 200, 800)
POWERS = (1, 2, 4)
TILTS = (0.25, 1.84)


@dataclass(frozen=True)
class Settings:
    r"""Sizes of the experiment.

    Attributes:
        dimension: Number of inputs $d$.
        n_outputs: Number of outputs $m$.
        largest: $s_1$.
        smallest: $s_d$.
        condition_number: $\kappa(\Sigma)$; enters through the regulariser alone.
        perturbation: Standard deviation of what is added to each entry of the whitened layers, away from the optimum.
        loss_keys: Numbers of samples $n$ for loss and gradient; the claims name 32, 128 and 512.
        per_axis: Quadrature nodes per input for the mean over queries.
        weight_keys: Number of keys of Lemmas 8 to 10.
        queries: Random queries per seed for these lemmas.
        output_keys: Numbers of keys for bias and covariance of the output; the claims name 50, 200 and 800.
        penalty_keys: Numbers of samples for the regulariser, increasing.
        penalty_draws: Sample covariances drawn for each.
        seeds: Seeds of problem, queries and draws.
        chunk: Seeds kept together.
    """

    dimension: int = 2
    n_outputs: int = 3
    largest: float = 0.15
    smallest: float = 0.08
    condition_number: float = 3.0
    perturbation: float = 0.1
    loss_keys: tuple[int, ...] = (*LOSS_KEYS, 2048)
    per_axis: int = 12
    weight_keys: int = 30
    queries: int = 60
    output_keys: tuple[int, ...] = OUTPUT_KEYS
    penalty_keys: tuple[int, ...] = (50, 200, 800)
    penalty_draws: int = 20_000
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chunk: int = 1

    def __post_init__(self) -> None:
        for name, needed in (("loss_keys", LOSS_KEYS), ("output_keys", OUTPUT_KEYS)):
            if set(needed) - set(getattr(self, name)):
                raise ValueError(f"{name}: expected {needed} among them, got {getattr(self, name)}")
        if len(self.penalty_keys) < 2 or list(self.penalty_keys) != sorted(set(self.penalty_keys)):
            raise ValueError(f"penalty_keys: expected at least two increasing numbers, got {self.penalty_keys}")
        if self.penalty_keys[0] < self.dimension:
            raise ValueError(f"penalty_keys: expected at least the dimension {self.dimension}, got {self.penalty_keys}")
        check_seeds(self.seeds, self.chunk)

    @classmethod
    def smoke(cls) -> Self:
        """Return settings that run in a second and show nothing."""
        return cls(loss_keys=LOSS_KEYS, per_axis=4, queries=5, penalty_draws=50, seeds=(0, 1))

    @classmethod
    def book(cls) -> Self:
        """Return settings for any laptop."""
        return cls()

    @classmethod
    def paper(cls) -> Self:
        """Return more seeds and finer quadrature; the paper measures none of this."""
        return cls(per_axis=24, queries=2000, penalty_draws=200_000, seeds=tuple(range(20)))

    def setup(self) -> Setup:
        """Return the sizes of the problem; noise and samples play no part here."""
        return Setup(
            dimension=self.dimension,
            n_outputs=self.n_outputs,
            condition_number=self.condition_number,
            largest=self.largest,
            smallest=self.smallest,
            noise=0.1,
            n_samples=1,
        )


@dataclass(frozen=True)
class FiniteKeys(Result):
    r"""Exact expectations beside bounds and leading coefficients. Axes start with the seed.

    Attributes:
        derivative_error: Largest error of Lemma 8 against automatic differentiation, ``(seeds,)``.
        self_ratio: Moment over bound of Lemma 9, weight on itself, ``(seeds, powers, queries)``.
        other_ratio: The same for another key.
        variance_ratio: Variance over bound of Lemma 10, ``(seeds, queries)``.
        shift_error: Relative error of the leading bias of the output, ``(seeds, tilts, output_keys)``.
        covariance_error: The same for its covariance.
        loss_bias: $n(\mathbb EL_n-L)$ at the optimum and at a perturbed point, ``(seeds, 2, loss_keys)``.
        coefficient: $\mathcal B$ there, ``(seeds, 2)``.
        terms: Its three terms, ``(seeds, 2, 3)``.
        gradient_bias: $\|\mathbb E\nabla L_n-\nabla L\|_F^2$ at the optimum, ``(seeds, loss_keys)``.
        gradient_coefficient: $\|\nabla\mathcal B\|_F^2$, ``(seeds,)``.
        penalty_bias: $\|\mathbb E\nabla\hat{\mathcal R}-\nabla\mathcal R\|_F^2$ near the optimum, ``(seeds,
            penalty_keys)``.
    """

    experiment: ClassVar[str] = "preconditioning.finite_keys"
    settings_type: ClassVar[type] = Settings
    # Nearly equal numbers are compared.
    digits: ClassVar[int | None] = None

    derivative_error: Float[np.ndarray, " seeds"]
    self_ratio: Float[np.ndarray, "seeds powers queries"]
    other_ratio: Float[np.ndarray, "seeds powers queries"]
    variance_ratio: Float[np.ndarray, "seeds queries"]
    shift_error: Float[np.ndarray, "seeds tilts output_keys"]
    covariance_error: Float[np.ndarray, "seeds tilts output_keys"]
    loss_bias: Float[np.ndarray, "seeds points loss_keys"]
    coefficient: Float[np.ndarray, "seeds points"]
    terms: Float[np.ndarray, "seeds points three"]
    gradient_bias: Float[np.ndarray, "seeds loss_keys"]
    gradient_coefficient: Float[np.ndarray, " seeds"]
    penalty_bias: Float[np.ndarray, "seeds penalty_keys"]

    def measurements(self) -> dict[str, Measurement]:
        """Return what the claims on finitely many keys need, by claim id."""
        loss = {n: self.settings.loss_keys.index(n) for n in LOSS_KEYS}
        output = {n: self.settings.output_keys.index(n) for n in OUTPUT_KEYS}
        fitted = [loss[n] for n in LOSS_KEYS]
        slope = np.polyfit(np.log(LOSS_KEYS), np.log(self.gradient_bias[:, fitted]).T, 1)[0]
        penalty_slope = np.polyfit(np.log(self.settings.penalty_keys), np.log(self.penalty_bias).T, 1)[0]
        predicted = self.gradient_coefficient / 512**2

        def scaled(point: int, *counts: int) -> Measurement:
            values = {f"scaled_bias_{n}": self.loss_bias[:, point, loss[n]] for n in counts}
            return over_seeds(**values, coefficient=self.coefficient[:, point])

        return {
            "PC-L8": extremes_over_seeds(largest_error=self.derivative_error),
            "PC-L9": extremes_over_seeds(largest_ratio=self.self_ratio),
            "PC-L9-other": extremes_over_seeds(largest_ratio=self.other_ratio),
            "PC-L10": extremes_over_seeds(largest_ratio=self.variance_ratio),
            "PC-L11": over_seeds(relative_error_200=self.shift_error[:, 0, output[200]]),
            "PC-L14": over_seeds(relative_error_200=self.covariance_error[:, 0, output[200]]),
            "PC-L14-slow": over_seeds(relative_error_800=self.covariance_error[:, 1, output[800]]),
            "PC-S1": scaled(0, 32, 128),
            "PC-S1-512": scaled(0, 512),
            "PC-S1-perturbed": scaled(1, 512),
            "PC-T4": over_seeds(slope=slope),
            "PC-T4-constant": over_seeds(measured_over_predicted_512=self.gradient_bias[:, loss[512]] / predicted),
            "PC-T5": over_seeds(slope=penalty_slope),
        }


def run(
    settings: Settings,
    *,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    workdir: Path | None = None,
) -> FiniteKeys:
    """Compare exact expectations over keys with bounds and leading coefficients.

    Args:
        settings: Sizes, numbers of keys and seeds.
        device: Named in the provenance; the work is small, in float64 and on the CPU.
        progress: Told (seeds done, seeds in all).
        workdir: Folder that keeps finished parts, so that a killed run continues; default none.

    Returns:
        The result.

    Raises:
        ValueError: If the device is not available.
    """
    clock, where = Clock(), runtime.device(device)

    def measure(seed: int) -> dict[str, np.ndarray]:
        with runtime.threads(1):
            return _weights(settings, seed) | _outputs(settings, seed) | _losses(settings, seed)

    found = seed_by_seed(settings, measure, clock=clock, workdir=workdir, progress=progress)
    return FiniteKeys(settings=settings, provenance=clock.provenance(where), **found)


def _weights(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Lemmas 8, 9 and 10 at random queries."""
    rng, n, d = stream(seed, "weights"), settings.weight_keys, settings.dimension
    queries = torch.as_tensor(rng.standard_normal((settings.queries, d)))
    key_query = torch.as_tensor(0.3 * rng.standard_normal((d, d)))
    limit = queries @ key_query.mT
    own, tilt = (queries * limit).sum(-1), limit.square().sum(-1)
    ratios = []
    for p in POWERS:
        itself, other = weight_powers(tilt.sqrt(), own, n, p)
        bound = -p * np.log(n) + p * (1 - 1 / n) * own + p**2 * (n - 1) / (2 * n**2) * tilt
        bound_other = -p * np.log(n) - p / n * own + p**2 / 2 * (n**2 - n - 1) / n**2 * tilt
        ratios.append([(itself / bound.exp()).numpy(), (other / bound_other.exp()).numpy()])
        if p == 1:
            mean = other
        if p == 2:
            square = other
    self_ratio, other_ratio = np.swapaxes(ratios, 0, 1)
    return {
        "derivative_error": _derivative_error(torch.as_tensor(rng.standard_normal((n, d))), queries[0], key_query),
        "self_ratio": self_ratio,
        "other_ratio": other_ratio,
        "variance_ratio": ((square - mean.square()) / (2 * tilt * square)).numpy(),
    }


def _derivative_error(others: Tensor, query: Tensor, key_query: Tensor) -> np.ndarray:
    """Lemma 8: the formula for the derivative of every weight by every other key, against autograd."""

    def weights(keys: Tensor) -> Tensor:
        return torch.softmax(torch.cat([query[None], keys]) @ key_query @ query, dim=0)

    automatic = torch.autograd.functional.jacobian(weights, others)
    alpha = weights(others)
    same = torch.eye(len(alpha), dtype=alpha.dtype)[:, 1:]
    formula = alpha[:, None, None] * (same - alpha[None, 1:])[..., None] * (key_query @ query)
    return (automatic - formula).abs().max().numpy()


def _outputs(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Lemmas 11 and 14: exact bias and covariance of the output beside their leading order, at given tilts."""
    rng = stream(seed, "outputs")
    query = torch.as_tensor(rng.standard_normal((1, settings.dimension)))
    direction = torch.as_tensor(rng.standard_normal((settings.dimension, settings.dimension)))
    counts = torch.tensor(settings.output_keys, dtype=torch.float64)
    shifts, covariances = [], []
    for tilt in TILTS:
        key_query = direction * tilt**0.5 / (query @ direction.mT).norm()
        found = output_moments(key_query, query, settings.output_keys)
        shift = counts[:, None] * found.shift[:, 0] - output_bias(key_query, query)
        covariance = counts[:, None, None] * found.covariance[:, 0] - output_covariance(key_query, query)
        shifts.append((shift.norm(dim=-1) / output_bias(key_query, query).norm()).numpy())
        covariances.append((torch.linalg.matrix_norm(covariance) / output_covariance(key_query, query).norm()).numpy())
    return {"shift_error": np.stack(shifts), "covariance_error": np.stack(covariances)}


def _losses(settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Bias of loss and gradient at an optimum and of the loss at a perturbed point; bias of the regulariser."""
    problem, rng = settings.setup().problem(seed), stream(seed, "perturbation")
    covariance, true_map = torch.as_tensor(problem.covariance), torch.as_tensor(problem.true_map)
    raw = spectral_factors(true_map, covariance)[:2]
    best = whiten(*raw, covariance=covariance)
    moved = [layer + settings.perturbation * torch.as_tensor(rng.standard_normal(layer.shape)) for layer in best]
    target = best[0] @ best[1]
    nodes = gaussian_nodes(settings.dimension, settings.per_axis)
    about: dict[str, Any] = {"target": target, "n_keys": settings.loss_keys, "nodes": nodes}
    counts = torch.tensor(settings.loss_keys, dtype=torch.float64)
    leaves = [layer.clone().requires_grad_() for layer in best]
    exact = expected_excess(*leaves, **about)
    gradients = [torch.autograd.grad(one, leaves, retain_graph=True) for one in exact]
    leading = torch.autograd.grad(bias_coefficient(*leaves, target=target), leaves)
    biases = torch.stack([exact.detach(), expected_excess(*moved, **about)])
    points = (best, moved)
    return {
        "loss_bias": (counts * biases).numpy(),
        "coefficient": np.array([float(bias_coefficient(*point, target=target)) for point in points]),
        "terms": np.array([[float(term) for term in bias_terms(*point, target=target)] for point in points]),
        "gradient_bias": np.array([_square(pair) for pair in gradients]),
        "gradient_coefficient": np.array(_square(leading)),
        "penalty_bias": penalty_bias(raw, covariance, settings.penalty_keys, draws=settings.penalty_draws, rng=rng),
    }


def _square(layers: tuple[Tensor, ...]) -> float:
    return float(sum(layer.square().sum() for layer in layers))
