r"""What a preconditioner does to the curvature at the minima: in whitened coordinates it is a metric.

A step of Algorithm 1 in the original coordinates is, in whitened ones, $Z\leftarrow Z-\eta\,\Lambda\,\nabla\,\Sigma'$
with the gradient $\nabla$ of $L_{\mathcal R}$, which knows nothing of the covariance:

==============  ====================  ==============================================  =============
preconditioner  gradient for U, V     step in whitened coordinates                    spread
==============  ====================  ==============================================  =============
``two``         two-sided             $\nabla$                                        1
``left``        one-sided             $\nabla\,\Sigma$                                $\kappa$
``none``        as it is              $\bar\Sigma\,\nabla\,\Sigma$                    $\kappa^2$
==============  ====================  ==============================================  =============

with the extended covariance $\bar\Sigma=\mathrm{blkdiag}(I_m,\Sigma)$. The spread is the largest over the smallest
eigenvalue of the metric, for eigenvalues of $\Sigma$ from $\sqrt\kappa$ to $1/\sqrt\kappa$; by Ostrowski's theorem it
bounds what the preconditioner can do to the condition number of the Hessian. The text of the paper available to us
does not discuss it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.preconditioning import landscape
from attnbook.preconditioning.manifold import Map, Point, Square
from attnbook.preconditioning.population import Preconditioner, check_parts, square_roots

__all__ = ["POWERS", "condition_number", "metric", "preconditioned_spectrum"]

POWERS: dict[Preconditioner, int] = {"two": 0, "left": 1, "none": 2}
r"""Power of $\kappa$ by which a preconditioner may multiply the condition number of the Hessian."""


def metric(
    covariance: Square, n_outputs: int, kind: Preconditioner
) -> tuple[Float[Tensor, "*#batch stacked stacked"], Square]:
    r"""Return the two factors of a step in whitened coordinates, $Z\leftarrow Z-\eta\,\Lambda\,\nabla\,\Sigma'$.

    Args:
        covariance: $\Sigma$.
        n_outputs: Number of outputs $m$.
        kind: Which preconditioner the step in the original coordinates uses.

    Returns:
        The factors before and after the gradient.

    Raises:
        ValueError: If ``kind`` is unknown.

    Example:
        >>> before, after = metric(2 * torch.eye(1), 1, "none")
        >>> before.diag(), after
        (tensor([1., 2.]), tensor([[2.]]))
    """
    check_parts(kind, name="kind")
    dimension = covariance.shape[-1]
    one = torch.eye(n_outputs + dimension, dtype=covariance.dtype, device=covariance.device)
    before = one.expand(*covariance.shape[:-2], -1, -1).clone()
    if kind == "none":
        before[..., n_outputs:, n_outputs:] = covariance
    return before, one[:dimension, :dimension].expand_as(covariance) if kind == "two" else covariance


def preconditioned_spectrum(
    point: Point, whitened_map: Map, *, covariance: Square, kind: Preconditioner
) -> Float[Tensor, "*batch directions"]:
    r"""Return the eigenvalues of the Hessian of $L_{\mathcal R}$ in the metric of a preconditioner, smallest first.

    They are those of $\frac{\partial^2L_{\mathcal R}}{\partial W^2}$ with $Z=\Lambda^{1/2}W\Sigma'^{1/2}$: for ``none``
    the coordinates $W$ are the original ones, stacked as $[U;V^\top]$. Step sizes are stable below two over the
    largest.

    Args:
        point: $Z$, mostly a global minimum.
        whitened_map: $\tilde A$.
        covariance: $\Sigma$.
        kind: Which preconditioner.

    Returns:
        The eigenvalues, $(m+d)d$ of them; $d(d-1)/2$ are zero at a minimum.

    Raises:
        ValueError: If ``kind`` is unknown or the covariance is not symmetric and positive definite.
    """
    rows, columns = point.shape[-2:]
    before, after = (square_roots(factor)[0] for factor in metric(covariance, rows - columns, kind))
    unit = torch.eye(rows * columns, dtype=point.dtype, device=point.device).reshape(-1, rows, columns)
    before, after = before.unsqueeze(-3), after.unsqueeze(-3)
    turned = landscape.curvature(point.unsqueeze(-3), before @ unit @ after, whitened_map.unsqueeze(-3))
    return torch.linalg.eigvalsh((before @ turned @ after).flatten(-2))


def condition_number(eigenvalues: Float[Tensor, "*batch directions"], dimension: int) -> Float[Tensor, "*batch"]:
    r"""Return largest over smallest eigenvalue, leaving out the $d(d-1)/2$ that vanish along the orbit of minima.

    Args:
        eigenvalues: At a global minimum, smallest first.
        dimension: Number of inputs $d$.

    Returns:
        The condition number.

    Example:
        >>> float(condition_number(torch.tensor([0.0, 2.0, 3.0, 8.0]), 2))
        4.0
    """
    return eigenvalues[..., -1] / eigenvalues[..., dimension * (dimension - 1) // 2]
