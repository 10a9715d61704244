r"""Gradient descent from the edge of the neighbourhood of Theorem 1, in whitened coordinates."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.preconditioning.theory import landscape
from attnbook.preconditioning.theory.manifold import Map, Point, minimum, nearest, sideways

__all__ = ["edge_points", "ratios", "steps_to_shrink"]


def edge_points(
    singular_values: Float[Tensor, " dimension"], n_outputs: int, *, n_random: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "starts stacked dimension"], Float[Tensor, "outputs dimension"]]:
    r"""Return points at the squared distance $\frac45s_d$ from the minima, and the whitened map.

    The first point is the worst one for (3), a weakest column shrunk; the second the worst one for (4), a strongest
    column grown; the others are random.

    Args:
        singular_values: Of $\tilde A$, positive, largest first.
        n_outputs: Number of outputs $m$, at least the dimension.
        n_random: Number of random points.
        rng: Source of randomness.

    Returns:
        The points and $\tilde A$, which is diagonal.
    """
    dimension = len(singular_values)
    values = singular_values.double()
    whitened_map = torch.cat([values.diag(), values.new_zeros(n_outputs - dimension, dimension)])
    base = minimum(whitened_map)
    strongest = torch.zeros_like(base)
    strongest[:, 0] = base[:, 0]
    random = to_tensor(rng.standard_normal((n_random, *base.shape)), dtype=torch.float64)
    away = sideways(torch.cat([strongest.unsqueeze(0), random]), base)
    radius = (landscape.RADIUS * values[-1]).sqrt()
    away = away * (radius / torch.linalg.matrix_norm(away))[:, None, None]
    weakest = landscape.worst_direction(base, landscape.RADIUS)
    return base + torch.cat([weakest.unsqueeze(0), away]), whitened_map


def ratios(points: Point, whitened_map: Map) -> tuple[Float[Tensor, "*points"], Float[Tensor, "*points"]]:
    r"""Return $\langle\nabla,H\rangle/(s_d\|H\|^2)$ of (3) and $\|\nabla\|/(s_1\|H\|)$ of (4).

    Args:
        points: $Z$, none of them a minimum.
        whitened_map: $\tilde A$.

    Returns:
        Both ratios.
    """
    values = torch.linalg.svdvals(whitened_map)
    displacement = points - nearest(points, whitened_map)
    slope, length = landscape.gradient(points, whitened_map), torch.linalg.matrix_norm(displacement)
    inner = (slope * displacement).sum((-2, -1))
    return inner / (values[-1] * length.square()), torch.linalg.matrix_norm(slope) / (values[0] * length)


def steps_to_shrink(
    points: Float[Tensor, "starts stacked dimension"],
    whitened_map: Float[Tensor, "outputs dimension"],
    step_size: float,
    *,
    factor: float = 10.0,
    most: int = 20_000,
) -> Int[Tensor, " starts"]:
    r"""Return how many gradient steps divide the distance to the minima by a factor, for the first time.

    Args:
        points: Where to start.
        whitened_map: $\tilde A$.
        step_size: $\eta$.
        factor: What the distance is divided by, above 1; default 10.
        most: Largest number of steps.

    Returns:
        Steps, one number per start.

    Raises:
        FloatingPointError: If a start needs more than ``most`` steps, or diverges.

    Example:
        >>> steps_to_shrink(torch.tensor([[[1.1], [1.1]]]), torch.ones(1, 1), 0.25)
        tensor([3])
    """
    goal = torch.linalg.matrix_norm(points - nearest(points, whitened_map)) / factor
    needed = torch.zeros(len(points), dtype=torch.int64)
    for step in range(1, most + 1):
        points = points - step_size * landscape.gradient(points, whitened_map)
        far = torch.linalg.matrix_norm(points - nearest(points, whitened_map))
        needed[(needed == 0) & (far <= goal)] = step
        if bool((needed > 0).all()):
            return needed
    raise FloatingPointError(f"step_size: {int((needed == 0).sum())} starts are not there after {most} steps of size "
                             f"{step_size:g}; expected a size below 1 / s_1")  # fmt: skip
