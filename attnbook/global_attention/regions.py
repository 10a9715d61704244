r"""Linear regions of two-layer ReLU networks: Theorem 3, its constants, and exact counts.

The paper's $n_1$ is ``width``, $p$ is ``n_inputs``, $s_0$ is ``n_relevant``: the inputs that the mask keeps, all $p$
for the baseline. ``normals (units, inputs)`` are the rows of the first layer, ``offsets (units,)`` its biases.

A hidden unit bends the network's function along the hyperplane where it switches on. The linear regions are the pieces
into which these hyperplanes cut the input space (as long as no two of them coincide and cancel).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive

__all__ = ["count_regions", "crossover_width", "hinge_network", "region_bound"]

Hyperplane = tuple[Fraction, ...]
"""Coefficients of the coordinates, then the offset."""


def region_bound(width: int, n_relevant: int) -> int:
    r"""Return Theorem 3's lower bound $\lfloor n_1/s_0\rfloor^{s_0}$ on the largest number of linear regions.

    An exact whole number, 0 when there are fewer units than inputs.

    Raises:
        ValueError: If an argument is not positive.

    Example:
        >>> region_bound(16, 2)
        64
    """
    check_positive(width=width, n_relevant=n_relevant)
    return (width // n_relevant) ** n_relevant


def crossover_width(n_inputs: int, n_relevant: int) -> float:
    r"""Return the width from which the baseline's bound is the larger one, $\exp\frac{p\ln p-s_0\ln s_0}{p-s_0}$ (C.3).

    Below it, $(n_1/s_0)^{s_0} > (n_1/p)^p$: in narrow networks attention has the larger bound. With the floors of
    :func:`region_bound` the network must be somewhat wider. It is a real number; $s_0$ is at least 1 and less than $p$.

    Raises:
        ValueError: If ``n_relevant`` is outside its range.

    Example:
        >>> round(crossover_width(100, 50))
        200
    """
    if not 1 <= n_relevant < n_inputs:
        raise ValueError(f"n_relevant: expected between 1 and n_inputs - 1 = {n_inputs - 1}, got {n_relevant}")
    p, s = n_inputs, n_relevant
    return math.exp((p * math.log(p) - s * math.log(s)) / (p - s))


def hinge_network(
    width: int, n_relevant: int
) -> tuple[Float[np.ndarray, "units inputs"], Float[np.ndarray, " units"], Float[np.ndarray, " units"]]:
    r"""Return the network of the proof of Theorem 3, which folds each input axis $q=\lfloor n_1/s_0\rfloor$ times.

    Unit 1 of input $j$ is $[x_j]_+$, unit $i\ge2$ is $[2x_j-(i-1)]_+$, with signs $+,-,+,\dots$ Its bends are at
    $0,\frac12,1,\dots,\frac{q-1}2$ (the text available to us lists whole numbers), so an axis has $q+1$ pieces.

    That is first layer, its biases and second layer; with $q s_0$ units, the others being idle. There are fewer inputs
    than units, and at least one.

    Raises:
        ValueError: If ``n_relevant`` is outside its range.

    Example:
        >>> normals, offsets, decoder = hinge_network(6, 2)
        >>> np.abs(offsets[:3] / normals[:3, 0]).tolist(), decoder[:3].tolist()
        ([0.0, 0.5, 1.0], [1.0, -1.0, 1.0])
    """
    if not 1 <= n_relevant < width:
        raise ValueError(f"n_relevant: expected between 1 and width - 1 = {width - 1}, got {n_relevant}")
    number = np.arange(width // n_relevant)
    normals = np.kron(np.eye(n_relevant), np.where(number == 0, 1.0, 2.0)[:, None])
    return normals, np.tile(-1.0 * number, n_relevant), np.tile((-1.0) ** number, n_relevant)


def count_regions(normals: Float[np.ndarray, "units inputs"], offsets: Float[np.ndarray, " units"]) -> int:
    """Return exactly into how many regions hyperplanes cut the whole space.

    Hyperplanes are added one after the other: each new one adds as many regions as the earlier ones cut it into.
    All arithmetic is rational (every float is a rational number), so nothing is rounded and nothing is missed.

    Args:
        normals: One row per hyperplane; rows of zeros cut nothing.
        offsets: The hyperplane is where ``normal @ x + offset`` is zero.

    Raises:
        ValueError: If an entry is NaN or infinite.

    Example:
        >>> count_regions(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([0.0, 0.0, -1.0]))
        7
    """
    rows = np.column_stack([normals, offsets])
    if not np.isfinite(rows).all():
        raise ValueError("normals, offsets: expected finite numbers, got some that are not")
    return _count([tuple(map(Fraction, row)) for row in rows.tolist()], normals.shape[1])


def _distinct(planes: list[Hyperplane]) -> list[Hyperplane]:
    """Scale each hyperplane so that equal ones look equal; drop repeats and those without a normal."""
    leading = [(plane, next((c for c in plane[:-1] if c), None)) for plane in planes]
    return list(dict.fromkeys(tuple(c / first for c in plane) for plane, first in leading if first is not None))


def _restrict(plane: Hyperplane, to: Hyperplane) -> Hyperplane:
    """The trace of one hyperplane on another, whose first non-zero coordinate is eliminated."""
    k = next(i for i, c in enumerate(to) if c)
    factor = plane[k] / to[k]
    return tuple(a - factor * b for i, (a, b) in enumerate(zip(plane, to, strict=True)) if i != k)


def _count(planes: list[Hyperplane], dimension: int) -> int:
    planes = _distinct(planes)
    if dimension <= 1:
        return 1 + len(planes)
    return 1 + sum(_count([_restrict(p, plane) for p in planes[:i]], dimension - 1) for i, plane in enumerate(planes))
