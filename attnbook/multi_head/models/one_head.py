r"""Any number of heads that start at zero, as one head with two step sizes.

Heads that start equal stay equal, so $H$ of them compute $\sqrt H\,\langle U,AX\rangle$ with the common $U$ and
$A=\varphi(XWX^\top)$. Write $V=\sqrt H\,U$. Then the output is $\langle V,AX\rangle$, that of one head, and a step of
size $\eta$ on all heads is a step of size $\eta$ on $V$ and one of size $\eta/H$ on $W$:

.. math::

    V\leftarrow V-\eta\,\nabla_V\hat L,\qquad W\leftarrow W-\frac\eta H\nabla_W\hat L .

The identity is this book's. It needs a start with equal heads, for example zero.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.runtime import threads
from attnbook.multi_head.models import closed_form
from attnbook.multi_head.models.closed_form import Objective

__all__ = ["as_many_heads", "gradient_descent"]


def gradient_descent(
    parameters: Parameters,
    tokens: Float[Tensor, "members samples tokens dimension"],
    objective: Objective,
    *,
    rates: dict[str, float],
    steps: int,
) -> Parameters:
    r"""Train one head with a step size for each of its two matrices.

    Args:
        parameters: Start: ``decoder`` ($V$) and ``key_query`` ($W$) with one head; copied, not changed.
        tokens: Samples of each member.
        objective: What is minimised.
        rates: Step sizes by name of the parameter, see :func:`attnbook.multi_head.theory.how_many_heads.step_sizes`.
        steps: Number of steps, at least 1.

    Returns:
        The final parameters.

    Raises:
        ValueError: If there is not exactly one head, a rate is missing, or the number of steps is not positive.
    """
    heads = closed_form.check(parameters, tokens)[1]
    if heads != 1:
        raise ValueError(f"parameters: expected one head, got {heads}")
    if set(rates) != set(parameters):
        raise ValueError(f"rates: expected one for each of {sorted(parameters)}, got {sorted(rates)}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps: expected a whole number of at least 1, got {steps!r}")
    found = {name: tensor.clone() for name, tensor in parameters.items()}
    with threads(1):
        for _ in range(steps):
            _, gradients = closed_form.value_and_gradient(found, tokens, objective)
            found = {name: tensor - rates[name] * gradients[name] for name, tensor in found.items()}
    return found


def as_many_heads(parameters: Parameters, n_heads: int) -> Parameters:
    r"""Return $H$ equal heads that compute what one head computes: $U_h=V/\sqrt H$ and $W_h=W$.

    Args:
        parameters: ``decoder`` ($V$) and ``key_query`` ($W$) with one head.
        n_heads: Number of heads $H$, at least 1.

    Returns:
        Parameters with one entry for each head.

    Raises:
        ValueError: If ``n_heads`` is not a positive whole number.
    """
    if isinstance(n_heads, bool) or not isinstance(n_heads, int) or n_heads < 1:
        raise ValueError(f"n_heads: expected a whole number of at least 1, got {n_heads!r}")
    scaled = {"decoder": parameters["decoder"] / math.sqrt(n_heads), "key_query": parameters["key_query"]}
    return {name: torch.repeat_interleave(tensor, n_heads, dim=1) for name, tensor in scaled.items()}
