"""What one seed of the experiment on finitely many keys compares: exact expectations, bounds and leading orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbook.core.experiment import Arrays
from attnbook.preconditioning.attention_output import (
    expected_excess,
    gaussian_nodes,
    output_bias,
    output_covariance,
    output_moments,
)
from attnbook.preconditioning.data import Problem
from attnbook.preconditioning.law_constants import bias_coefficient, bias_terms
from attnbook.preconditioning.population import spectral_factors, whiten
from attnbook.preconditioning.scaling_law.penalty_bias import penalty_bias
from attnbook.preconditioning.weight_moments import weight_powers

POWERS = (1, 2, 4)  # of the weights, in Lemma 9
TILTS = (0.25, 1.84)  # strengths q of the scores, in Lemmas 11 and 14


def weights(dimension: int, n: int, n_queries: int, rng: np.random.Generator) -> Arrays:
    """Lemmas 8, 9 and 10 at random queries: error of the first, moments over bounds of the others."""
    queries = torch.as_tensor(rng.standard_normal((n_queries, dimension)))
    key_query = torch.as_tensor(0.3 * rng.standard_normal((dimension, dimension)))
    limit = queries @ key_query.mT
    own, tilt = (queries * limit).sum(-1), limit.square().sum(-1)
    exact = {p: weight_powers(tilt.sqrt(), own, n, p) for p in POWERS}
    ratios = []
    for p, (itself, other) in exact.items():
        bound = -p * np.log(n) + p * (1 - 1 / n) * own + p**2 * (n - 1) / (2 * n**2) * tilt
        bound_other = -p * np.log(n) - p / n * own + p**2 / 2 * (n**2 - n - 1) / n**2 * tilt
        ratios.append([(itself / bound.exp()).numpy(), (other / bound_other.exp()).numpy()])
    mean, square = exact[1][1], exact[2][1]
    others = torch.as_tensor(rng.standard_normal((n, dimension)))
    return {
        "derivative_error": ((), _derivative_error(others, queries[0], key_query)),
        "weight_ratio": (("power", "weight", "query"), np.array(ratios)),
        "variance_ratio": (("query",), ((square - mean.square()) / (2 * tilt * square)).numpy()),
    }


def _derivative_error(others: Tensor, query: Tensor, key_query: Tensor) -> float:
    """Lemma 8: the formula for the derivative of every weight by every other key, against autograd."""

    def softmax(keys: Tensor) -> Tensor:
        return torch.softmax(torch.cat([query[None], keys]) @ key_query @ query, dim=0)

    automatic = torch.autograd.functional.jacobian(softmax, others)
    alpha = softmax(others)
    same = torch.eye(len(alpha), dtype=alpha.dtype)[:, 1:]
    formula = alpha[:, None, None] * (same - alpha[None, 1:])[..., None] * (key_query @ query)
    return float((automatic - formula).abs().max())


def outputs(dimension: int, n_keys: Sequence[int], rng: np.random.Generator) -> Arrays:
    """Lemmas 11 and 14: relative errors of the leading bias and covariance of the output, at given tilts."""
    query = torch.as_tensor(rng.standard_normal((1, dimension)))
    direction = torch.as_tensor(rng.standard_normal((dimension, dimension)))
    counts = torch.tensor(n_keys, dtype=torch.float64)
    shifts, covariances = [], []
    for tilt in TILTS:
        key_query = direction * tilt**0.5 / (query @ direction.mT).norm()
        found = output_moments(key_query, query, n_keys)
        bias, spread = output_bias(key_query, query), output_covariance(key_query, query)
        shifts.append((counts[:, None] * found.shift[:, 0] - bias).norm(dim=-1) / bias.norm())
        error = torch.linalg.matrix_norm(counts[:, None, None] * found.covariance[:, 0] - spread)
        covariances.append(error / spread.norm())
    axes = ("tilt", "output_n")
    return {
        "shift_error": (axes, torch.stack(shifts).numpy()),
        "covariance_error": (axes, torch.stack(covariances).numpy()),
    }


def losses(
    problem: Problem,
    n_keys: tuple[int, ...],
    penalty_keys: tuple[int, ...],
    *,
    per_axis: int,
    perturbation: float,
    draws: int,
    rng: np.random.Generator,
) -> Arrays:
    """Bias of loss and gradient at an optimum and of the loss at a perturbed point; bias of the regulariser."""
    covariance, true_map = torch.as_tensor(problem.covariance), torch.as_tensor(problem.true_map)
    raw = spectral_factors(true_map, covariance)[:2]
    best = whiten(*raw, covariance=covariance)
    moved = [layer + perturbation * torch.as_tensor(rng.standard_normal(layer.shape)) for layer in best]
    target = best[0] @ best[1]
    about: dict[str, Any] = {
        "target": target, "n_keys": n_keys, "nodes": gaussian_nodes(covariance.shape[0], per_axis)
    }  # fmt: skip
    leaves = [layer.clone().requires_grad_() for layer in best]
    exact = expected_excess(*leaves, **about)
    gradients = [torch.autograd.grad(one, leaves, retain_graph=True) for one in exact]
    leading = torch.autograd.grad(bias_coefficient(*leaves, target=target), leaves)
    biases = torch.stack([exact.detach(), expected_excess(*moved, **about)])
    terms = [[float(term) for term in bias_terms(*point, target=target)] for point in (best, moved)]
    return {
        "loss_bias": (("point", "n"), (torch.tensor(n_keys, dtype=torch.float64) * biases).numpy()),
        "terms": (("point", "term"), np.array(terms)),
        "gradient_bias": (("n",), np.array([_square(pair) for pair in gradients])),
        "gradient_coefficient": ((), _square(leading)),
        "penalty_bias": (("penalty_n",), penalty_bias(raw, covariance, penalty_keys, draws=draws, rng=rng)),
    }


def _square(layers: tuple[Tensor, ...]) -> float:
    return float(sum(layer.square().sum() for layer in layers))
