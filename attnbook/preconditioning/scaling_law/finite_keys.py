"""What one seed of the experiment on finitely many keys compares: exact moments, bounds and leading orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnbook.core.experiment import Arrays, stacked
from attnbook.core.rng import stream
from attnbook.preconditioning.attention_output import expected_excess, gaussian_nodes, leading_moments, output_moments
from attnbook.preconditioning.data import Setup
from attnbook.preconditioning.law_constants import bias_coefficient
from attnbook.preconditioning.population import penalty_gradient, spectral_factors, whiten
from attnbook.preconditioning.weight_moments import weight_power_bounds, weight_powers

if TYPE_CHECKING:
    from attnbook.preconditioning.scaling_law.experiments import FiniteKeys

TILT = 0.25  # strength q of the scores in Lemmas 11 to 23
WEIGHT_KEYS = 30  # keys in Lemmas 8 to 11
COORDINATES: dict[str, list[Any]] = {
    "n": [32, 128, 512, 2048],  # samples for loss and gradient
    "output_n": [50, 200, 800],  # keys in Lemmas 11 to 23
    "penalty_n": [50, 200, 800],  # samples behind the regulariser
    "power": [1, 2, 4],  # of the weights, in Lemma 9
    "weight": ["itself", "another"],
    "statistic": ["s", "s s'", "keys"],  # the output, its square, the mean square of attended keys
    "point": ["at an optimum", "away from it"],
}


def weights(sizes: FiniteKeys, seed: int) -> Arrays:
    """Lemmas 8 to 11 at random queries: error of the first, exact moments over bounds of the others."""
    n, dimension, rng = WEIGHT_KEYS, sizes.dimension, stream(seed, "weights")
    queries = torch.from_numpy(rng.standard_normal((sizes.queries, dimension)))
    key_query = torch.from_numpy(0.3 * rng.standard_normal((dimension, dimension)))
    limit = queries @ key_query.mT
    own, q = (queries * limit).sum(-1), limit.square().sum(-1)
    exact = {p: torch.stack(weight_powers(q.sqrt(), own, n, p)) for p in COORDINATES["power"]}
    bounds = {p: torch.stack(weight_power_bounds(q.sqrt(), own, n, p)) for p in COORDINATES["power"]}
    poincare = q * q.new_tensor([[1.0], [2.0]]) * exact[2]
    shift = output_moments(key_query, queries, [n]).shift[0].square().sum(-1)
    # The two terms of (22): the query's own key by Lemma 9, the others by parts and then by Lemma 9.
    terms = (queries - limit).square().sum(-1) * bounds[1][0] ** 2 + q * ((n - 1) * bounds[2][1]) ** 2
    return {
        "derivative_error": ((), _derivative_error(rng.standard_normal((n, dimension)), queries[0], key_query)),
        "weight_ratio": (("power", "weight", "query"), torch.stack([exact[p] / bounds[p] for p in exact]).numpy()),
        "variance_ratio": (("weight", "query"), ((exact[2] - exact[1].square()) / poincare).numpy()),
        "shift_ratio": (("query",), (shift / (2 * terms)).numpy()),
    }


def _derivative_error(drawn: np.ndarray, query: Tensor, key_query: Tensor) -> float:
    """Lemma 8: the formula for the derivative of every weight by every other key, against autograd."""

    def softmax(keys: Tensor) -> Tensor:
        return torch.softmax(torch.cat([query[None], keys]) @ key_query @ query, dim=0)

    others = torch.from_numpy(drawn)
    automatic, alpha = torch.autograd.functional.jacobian(softmax, others), softmax(others)
    same = alpha.new_ones(len(alpha)).diag()[:, 1:]
    formula = alpha[:, None, None] * (same - alpha[None, 1:])[..., None] * (key_query @ query)
    return float((automatic - formula).abs().max())


def outputs(sizes: FiniteKeys, seed: int) -> Arrays:
    """Lemmas 11 to 23: biases and variances of three statistics, and errors of the leading orders of the first."""
    n_keys, dimension, rng = COORDINATES["output_n"], sizes.dimension, stream(seed, "outputs")
    query = torch.from_numpy(rng.standard_normal((1, dimension)))
    direction = torch.from_numpy(rng.standard_normal((dimension, dimension)))
    key_query = direction * TILT**0.5 / (query @ direction.mT).norm()
    n, one = query.new_tensor(n_keys)[:, None], query.new_ones(dimension).diag()
    found, (bias, spread) = output_moments(key_query, query, n_keys), leading_moments(key_query, query)
    shift, covariance, limit = found.shift[:, 0], found.covariance[:, 0], query @ key_query.mT
    mixed = shift[..., None] * limit
    shifts = (shift[:, None], found.second[:, 0] + mixed + mixed.mT, found.keys[:, 0] - one - limit.mT * limit)
    drawn = stream(seed, "keys")
    simulated = [_variances(query, key_query, (sizes.variance_draws, count, dimension), drawn) for count in n_keys]
    trace, off_spread = covariance.diagonal(dim1=-2, dim2=-1).sum(-1), n[..., None] * covariance - spread
    return {
        "shift_error": (("output_n",), ((n * shift - bias).norm(dim=-1) / bias.norm()).numpy()),
        "covariance_error": (("output_n",), (off_spread.flatten(1).norm(dim=1) / spread.norm()).numpy()),
        "squared_bias": (("statistic", "output_n"), np.array([off.square().sum((-2, -1)).numpy() for off in shifts])),
        "variance": (("statistic", "output_n"), torch.cat([trace[None], torch.stack(simulated, dim=1)]).numpy()),
    }


def _variances(query: Tensor, key_query: Tensor, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """Variances of the square of the output and of the mean square of attended keys, by simulation."""
    keys = torch.from_numpy(rng.standard_normal(shape))
    keys[:, 0] = query
    weights = torch.softmax(keys @ (key_query @ query[0]), dim=1).unsqueeze(-1)
    output = (weights * keys).sum(1)
    squares = output[:, :, None] * output[:, None], (weights * keys).mT @ keys
    return torch.stack([square.var(0).sum() for square in squares])


def losses(sizes: FiniteKeys, seed: int) -> Arrays:
    """Bias of loss and gradient at an optimum and at a perturbed point, with coefficients; bias of the regulariser."""
    rng, n = stream(seed, "perturbation"), tuple(COORDINATES["n"])
    shape = sizes.dimension, sizes.n_outputs, sizes.condition_number, sizes.largest, sizes.smallest
    problem = Setup(*shape, noise=0.1, n_samples=1).problem(seed)
    covariance, true_map = torch.from_numpy(problem.covariance), torch.from_numpy(problem.true_map)
    raw = spectral_factors(true_map, covariance)[:2]
    best = whiten(*raw, covariance=covariance)
    moved = [layer + sizes.perturbation * torch.from_numpy(rng.standard_normal(layer.shape)) for layer in best]
    target, nodes = best[0] @ best[1], gaussian_nodes(sizes.dimension, sizes.per_axis)
    rows: list[Arrays] = []
    for point in (best, moved):
        leaves = [layer.clone().requires_grad_() for layer in point]
        exact = expected_excess(*leaves, target=target, n_keys=n, nodes=nodes)
        leading = bias_coefficient(*leaves, target=target)
        rows.append({
            "loss_bias": (("n",), np.array(n) * exact.detach().numpy()),
            "coefficient": ((), leading.item()),
            "gradient_bias": (("n",), [_square(torch.autograd.grad(one, leaves, retain_graph=True)) for one in exact]),
            "gradient_coefficient": ((), _square(torch.autograd.grad(leading, leaves))),
        })  # fmt: skip
    penalty = penalty_bias(raw, covariance, sizes.penalty_draws, rng)
    return stacked("point", rows) | {"penalty_bias": (("penalty_n",), penalty)}


def _square(layers: Sequence[Tensor]) -> float:
    return float(sum(layer.square().sum() for layer in layers))


def penalty_bias(layers: tuple[Tensor, Tensor], covariance: Tensor, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Theorem 5: the squared bias of the regulariser's gradient, without the linear part, whose mean is zero."""
    root, size = torch.linalg.cholesky(covariance), len(covariance)

    def gradient(estimate: Tensor) -> Tensor:
        return torch.cat(penalty_gradient(*layers, covariance=estimate), dim=-2)

    found = []
    for n in COORDINATES["penalty_n"]:
        # Sample covariances of white inputs without the inputs: Bartlett's decomposition.
        lower = np.tril(rng.standard_normal((draws, size, size)), -1)
        lower[:, range(size), range(size)] = np.sqrt(rng.chisquare(n - np.arange(size), (draws, size)))
        error = root @ torch.from_numpy(lower @ lower.swapaxes(-1, -2) / n) @ root.mT - covariance
        one, two = (gradient(covariance + k * error) - gradient(covariance - k * error) for k in (1, 2))
        linear = (8 * one - two) / 12  # exact, as the gradient is of degree four in the estimate
        change = gradient(covariance + error) - gradient(covariance) - linear
        found.append(float(change.mean(0).square().sum()))
    return np.array(found)
