r"""The output of attention over finitely many Gaussian keys: its mean, its covariance and the expected loss, exactly.

In whitened coordinates keys are standard Gaussian, a query $x$ has scores of variance $q=\|\tilde Vx\|^2$, and the
output $s$ tends to $\mu=\tilde Vx$ when the number of keys grows. Of a key only its component along $\mu$ enters the
weights; the rest is integrated out in closed form, and the moments of the weights are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning.manifold import Map, Square
from attnbook.preconditioning.weight_moments import weight_moments

__all__ = ["OutputMoments", "expected_excess", "gaussian_nodes", "leading_moments", "output_moments", "scalar_bias"]


Queries: TypeAlias = Float[Tensor, "queries dimension"]


class OutputMoments(NamedTuple):
    r"""Mean and spread of the output $s=\sum_j\alpha_jx_j$ about its limit, and the mean square of attended keys."""

    shift: Float[Tensor, "counts queries dimension"]  #: $\mathbb E[s-\mu\mid x]$, ``(counts, queries, dimension)``
    #: $\mathbb E[(s-\mu)(s-\mu)^\top\mid x]$, ``(counts, queries, dimension, dimension)``
    second: Float[Tensor, "counts queries dimension dimension"]
    #: $\mathbb E[\sum_j\alpha_jx_jx_j^\top\mid x]$, of the same shape; its limit is $I+\mu\mu^\top$
    keys: Float[Tensor, "counts queries dimension dimension"]

    @property
    def covariance(self) -> Float[Tensor, "counts queries dimension dimension"]:
        r"""The covariance of $s$ given $x$."""
        return self.second - _outer(self.shift, self.shift)


def output_moments(key_query: Square, queries: Queries, n_keys: Sequence[int]) -> OutputMoments:
    r"""Return what attention computes in the mean, exact at every number of keys.

    Args:
        key_query: $\tilde V$; float64.
        queries: $x$, one per row, none with $\tilde Vx=0$: it would have no direction.
        n_keys: Numbers of keys, the query among them.

    Returns:
        The moments; differentiable.

    Raises:
        ValueError: As :func:`~attnbook.preconditioning.weight_moments.weight_moments`.
    """
    limit = queries @ key_query.mT
    scale = limit.norm(dim=-1)
    found = weight_moments(scale, (queries * limit).sum(-1), n_keys)
    along, away = limit / scale[:, None], queries - limit
    one, line = torch.eye(key_query.shape[-1], device=key_query.device, dtype=key_query.dtype), _outer(along, along)
    mixed = _outer(away, along)
    second = (
        _times(found.self_square, _outer(away, away))
        + _times(found.self_shift, mixed + mixed.mT)
        + _times(found.shift_square - found.others_square, line)
        + _times(found.others_square, one)
    )
    rest = 1 - found.self_weight
    keys = (
        _times(found.self_weight, _outer(queries, queries))
        + _times(found.spread + 2 * scale * found.shift + scale.square() * rest, line)
        + _times(rest, one - line)
    )
    return OutputMoments(found.self_weight[..., None] * away + found.shift[..., None] * along, second, keys)


def leading_moments(
    key_query: Square, queries: Queries
) -> tuple[Queries, Float[Tensor, "queries dimension dimension"]]:
    r"""Return the limits of $n$ times bias and covariance of the output: what Lemmas 11 and 14 bound.

    They are $(x-\mu)e^{x^\top\tilde Vx-q/2}-\mu e^q$ and $e^q(I+\mu\mu^\top)$ with $\mu=\tilde Vx$.

    Args:
        key_query: $\tilde V$.
        queries: $x$, one per row.

    Returns:
        The leading bias and the leading covariance.
    """
    limit = queries @ key_query.mT
    tilt = limit.square().sum(-1, keepdim=True)
    own = (queries * limit).sum(-1, keepdim=True)
    one = torch.eye(key_query.shape[-1], device=key_query.device, dtype=key_query.dtype)
    bias = (queries - limit) * torch.exp(own - tilt / 2) - limit * tilt.exp()
    return bias, tilt.exp()[..., None] * (one + _outer(limit, limit))


def gaussian_nodes(dimension: int, per_axis: int) -> tuple[Float[Tensor, "nodes dimension"], Float[Tensor, " nodes"]]:
    """Return nodes and masses that integrate smooth even functions of standard Gaussian inputs.

    Args:
        dimension: Number of inputs; the number of nodes is half of ``per_axis`` to this power.
        per_axis: Nodes along each axis, an even number so that none is zero.

    Returns:
        Nodes, and masses that sum to one.

    Raises:
        ValueError: If ``per_axis`` is odd.
    """
    if per_axis % 2:
        raise ValueError(f"per_axis: expected an even number, as a query of zero has no direction, got {per_axis}")
    points, weights = np.polynomial.hermite_e.hermegauss(per_axis)
    grid = np.stack(np.meshgrid(*[points] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    masses = np.prod(np.stack(np.meshgrid(*[weights] * dimension, indexing="ij")), axis=0).reshape(-1)
    half = grid[:, 0] > 0
    return torch.from_numpy(grid[half]), torch.from_numpy(2 * masses[half] / masses.sum())


def expected_excess(
    value: Map, key_query: Square, *, target: Map, n_keys: tuple[int, ...], nodes: tuple[Tensor, Tensor]
) -> Float[Tensor, " counts"]:
    r"""Return $\mathbb EL_n-L$ at every $n$: exact apart from the quadrature over queries.

    Args:
        value: $\tilde U$; float64.
        key_query: $\tilde V$.
        target: $\tilde A$.
        n_keys: Numbers of samples $n$.
        nodes: Queries and their masses, as from :func:`gaussian_nodes`.

    Returns:
        One number per $n$; differentiable.

    Raises:
        ValueError: As :func:`~attnbook.preconditioning.weight_moments.weight_moments`.
    """
    queries, masses = nodes
    found = output_moments(key_query, queries, n_keys)
    residual = queries @ (value @ key_query - target).mT
    linear = (found.shift * (residual @ value)).sum(-1)
    quadratic = (found.second * (value.mT @ value)).sum((-2, -1))
    return (linear + quadratic / 2) @ masses


def scalar_bias(largest: float, n_keys: Sequence[int], *, per_unit: int = 10) -> Float[np.ndarray, " counts"]:
    r"""Return $\mathbb EL_n-L^*$ at the balanced optimum in one dimension, for any $s_1$, exactly.

    There $U=V=\sqrt{s_1}$; the integral over the query is a sum over $|x|\le8$.

    Args:
        largest: $s_1>0$; the exact sum also holds where the coefficient of $1/n$ is infinite.
        n_keys: Numbers of samples $n$.
        per_unit: Queries per unit of $x$; default 10.

    Returns:
        The bias at each $n$.

    Raises:
        ValueError: If ``largest`` is not positive or a number of samples is below 3.

    Example:
        >>> bool(abs(10**6 * scalar_bias(0.1, [10**6])[0] / 0.0629 - 1) < 0.001)  # the coefficient of 1/n
        True
    """
    if not 0 < largest < math.inf:
        raise ValueError(f"largest: expected a positive number, got {largest}")
    queries = torch.arange(0.5 / per_unit, 8.0, 1 / per_unit, device="cpu", dtype=torch.float64)
    masses = torch.exp(-queries.square() / 2) * 2 / per_unit / math.sqrt(2 * math.pi)
    layer = queries.new_full((1, 1), largest**0.5)
    second = output_moments(layer, queries[:, None], n_keys).second
    return (largest / 2 * second[..., 0, 0] @ masses).numpy()


def _outer(one: Tensor, other: Tensor) -> Tensor:
    return one.unsqueeze(-1) * other.unsqueeze(-2)


def _times(factor: Tensor, matrix: Tensor) -> Tensor:
    return factor[..., None, None] * matrix
