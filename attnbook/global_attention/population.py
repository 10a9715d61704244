r"""The mean squared error of two-layer ReLU networks over *all* inputs, in closed form.

Inputs are uniform on the sphere of radius $\sqrt p$ in $\mathbb R^p$, so that they are bounded (A1); as the network is
homogeneous, means of products are those of standard normal inputs. The teacher adds up the positive parts of its
inputs, $y=\sum_k[x_k]_+$: a network of $p$ units with the unit vectors for rows.

``rows (..., units, inputs)`` are the first layers of some networks, the mask folded in, and ``decoder (..., units)``
their second layers.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["label_variance", "mean_products", "mean_relu", "minus_teacher", "population_gradient", "population_loss"]


def mean_products(
    first: Float[Tensor, "*networks m inputs"], second: Float[Tensor, "*networks n inputs"]
) -> tuple[Float[Tensor, "*networks m n"], Float[Tensor, "*networks m n"]]:
    r"""Return $\mathbb E[a^\top x]_+[b^\top x]_+$ for all rows $a$, $b$, and the angles between them.

    The arc-cosine kernel of order one: $|a||b|(\sin\theta+(\pi-\theta)\cos\theta)/2\pi$.

    Args:
        first: Rows $a$, none of them zero.
        second: Rows $b$, none of them zero.

    Example:
        >>> mean_products(torch.eye(2), torch.eye(2))[0][0, 0].item()
        0.5
    """
    lengths = first.norm(dim=-1)[..., :, None] * second.norm(dim=-1)[..., None, :]
    angle = torch.acos((first @ second.mT / lengths).clamp(-1 + 1e-14, 1 - 1e-14))
    return lengths * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi), angle


def minus_teacher(
    rows: Float[Tensor, "*networks units inputs"], decoder: Float[Tensor, "*networks units"]
) -> tuple[Float[Tensor, "*networks all inputs"], Float[Tensor, "*networks all"]]:
    """Return both layers of the network that computes the error: its units, then the teacher's with weights -1.

    Args:
        rows: First layers.
        decoder: Second layers.
    """
    eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device).expand(*rows.shape[:-2], -1, -1)
    return torch.cat([rows, eye], -2), torch.cat([decoder, -torch.ones_like(eye[..., 0])], -1)


def population_loss(
    rows: Float[Tensor, "*networks units inputs"], decoder: Float[Tensor, "*networks units"]
) -> Float[Tensor, "*networks"]:
    """Return the mean squared error of each network over all inputs.

    Args:
        rows: First layers.
        decoder: Second layers.

    Example:
        >>> population_loss(torch.eye(3).double(), torch.ones(3).double()).abs().item() < 1e-12
        True
    """
    units, weights = minus_teacher(rows, decoder)
    return ((mean_products(units, units)[0] @ weights[..., None])[..., 0] * weights).sum(-1)


def population_gradient(
    rows: Float[Tensor, "*networks units inputs"], decoder: Float[Tensor, "*networks units"]
) -> tuple[Float[Tensor, "*networks units inputs"], Float[Tensor, "*networks units"]]:
    """Return the gradient of :func:`population_loss` in both layers, twice as fast as by automatic differentiation.

    Args:
        rows: First layers.
        decoder: Second layers.
    """
    units, weights = minus_teacher(rows, decoder)
    mean, angle = mean_products(rows, units)
    length = (angle.sin() @ (units.norm(dim=-1) * weights)[..., None]) / rows.norm(dim=-1, keepdim=True)
    turn = ((math.pi - angle) * weights[..., None, :]) @ units
    return decoder[..., None] * (length * rows + turn) / math.pi, 2 * (mean @ weights[..., None])[..., 0]


def mean_relu(rows: Float[Tensor, "*networks inputs"]) -> Float[Tensor, "*networks"]:
    r"""Return $\mathbb E[a^\top x]_+$ for rows $a$; a little more than for normal inputs.

    Args:
        rows: Rows $a$.
    """
    p = rows.shape[-1]
    ratio = math.sqrt(p / 2) * math.exp(math.lgamma(p / 2) - math.lgamma((p + 1) / 2))
    return ratio / math.sqrt(2 * math.pi) * rows.norm(dim=-1)


def label_variance(n_inputs: int) -> float:
    """Return the variance of the teacher's labels.

    Args:
        n_inputs: Number of inputs, which is that of its units.
    """
    eye = torch.eye(n_inputs, dtype=torch.float64, device="cpu")
    return float(mean_products(eye, eye)[0].sum() - mean_relu(eye).sum() ** 2)
