r"""Theorem 1 at work, in whitened coordinates: its ratios, the search for the worst, and descent from the edge."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core.rng import to_tensor
from attnbook.preconditioning import landscape
from attnbook.preconditioning.manifold import Map, Point, minimum, nearest, sideways

__all__ = ["edge_points", "of_length", "one_sided_ratio", "ratios", "search", "steps_to_shrink"]


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


def ratios(
    displacement: Point, base: Point, whitened_map: Map, singular_values: Float[Tensor, "*#batch dimension"]
) -> tuple[Float[Tensor, "*points"], Float[Tensor, "*points"]]:
    r"""Return $\langle\nabla,H\rangle/(s_d\|H\|^2)$ of (3) and $\|\nabla\|/(s_1\|H\|)$ of (4).

    Args:
        displacement: $H$, not zero.
        base: The minimum nearest to $Z_*+H$.
        whitened_map: $\tilde A$.
        singular_values: Of $\tilde A$, largest first.

    Returns:
        Both ratios.
    """
    slope = landscape.gradient(base + displacement, whitened_map)
    length = torch.linalg.matrix_norm(displacement)
    inner = (slope * displacement).sum((-2, -1))
    strongest, weakest = singular_values[..., 0], singular_values[..., -1]
    return inner / (weakest * length.square()), torch.linalg.matrix_norm(slope) / (strongest * length)


def of_length(direction: Point, base: Point, length: Float[Tensor, "*#batch"]) -> Point:
    """Return directions less their part along the set of minima, as displacements of given length.

    Args:
        direction: Any directions.
        base: A global minimum $Z_*$.
        length: Frobenius norms.

    Returns:
        $H$.
    """
    away = sideways(direction, base)
    return away * (length / torch.linalg.matrix_norm(away))[..., None, None]


def search(
    starts: Point, base: Point, length: Float[Tensor, "*#batch"], whitened_map: Map, steps: int, *, convex: bool
) -> Point:
    r"""Walk over displacements of a length, down $\langle\nabla,H\rangle$ or up $\|\nabla\|$, with shrinking steps.

    Args:
        starts: Directions to start with.
        base: A global minimum $Z_*$.
        length: $\|H\|$.
        whitened_map: $\tilde A$.
        steps: Number of steps.
        convex: Whether to search for the worst of (3); else for that of (4).

    Returns:
        $H$ where each search ended.
    """
    at = of_length(starts, base, length)
    scale = length[..., None, None]
    for step in range(steps):
        point = base + at
        slope = landscape.gradient(point, whitened_map)
        if convex:
            uphill = -slope - landscape.curvature(point, at, whitened_map)
        else:
            uphill = landscape.curvature(point, slope, whitened_map)
        uphill = sideways(uphill, base)
        uphill = uphill - at * ((uphill * at).sum((-2, -1), keepdim=True) / scale.square())
        size = torch.linalg.matrix_norm(uphill)[..., None, None].clamp(min=1e-300)
        at = of_length(at + 0.3 * (1 - step / steps) * scale * uphill / size, base, length)
    return at


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


def one_sided_ratio(
    singular_values: Float[Tensor, " dimension"],
    n_outputs: int,
    condition_number: float,
    directions: int,
    rng: np.random.Generator,
) -> float:
    r"""Return the smallest $\langle\nabla,H\rangle/(s_d\lambda_d\|H\|^2)$ that was found, $\|H\|$ the one-sided norm.

    The inner product is the same in all coordinates; the one-sided norm, in which conditioning costs, is
    $\mathrm{tr}(H\Sigma^{-1}H^\top)^{1/2}$ in whitened ones. Within the radius $s_d/(3\sqrt{2s_1\lambda_1})$, over all
    minima $Z_*Q$. Random ones come with random displacements; the least favourable one has its weakest column along the
    eigenvector of $\lambda_d(\Sigma)$, and is displaced along the flattest direction there.

    Args:
        singular_values: Of $A\Sigma^{1/2}$, largest first.
        n_outputs: Number of outputs $m$, at least the dimension.
        condition_number: $\kappa(\Sigma)$.
        directions: Number of random minima, each with its own displacement.
        rng: Source of randomness.

    Returns:
        The ratio; the bound says at least one half.
    """
    values, dimension = singular_values.cpu().double(), len(singular_values)
    # Without loss of generality the covariance is diagonal.
    eigenvalues = torch.tensor(np.geomspace(condition_number**0.5, condition_number**-0.5, dimension))
    whitened_map = torch.cat([values.diag(), values.new_zeros(n_outputs - dimension, dimension)])
    start = minimum(whitened_map)
    # This minimum has its weakest column last, where the smallest eigenvalue is.
    turns = torch.linalg.qr(torch.tensor(rng.standard_normal((directions, dimension, dimension)))).Q
    base = torch.cat([start.unsqueeze(0), start @ turns])
    flat = landscape.worst_direction(start, 1e-6).unsqueeze(0)
    random = torch.tensor(rng.standard_normal((directions, *start.shape)))
    away = sideways(torch.cat([flat, random]), base)
    norm = (away.square() / eigenvalues).sum((-2, -1)).sqrt()
    radius = values[-1] / (3 * (2 * values[0] * eigenvalues[0]).sqrt())
    shares = torch.tensor([1.0, *np.linspace(0.05, 1, directions)], dtype=torch.float64)
    displacement = away * (shares * radius / norm)[:, None, None]
    products = (landscape.gradient(base + displacement, whitened_map) * displacement).sum((-2, -1))
    squares = (displacement.square() / eigenvalues).sum((-2, -1))
    return float((products / (values[-1] * eigenvalues[-1] * squares)).min())
