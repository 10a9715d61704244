r"""Any number of equal heads as one head with two step sizes.

==================  ==============================  =============================================================
paper               name here                       meaning
==================  ==============================  =============================================================
$H$                 ``n_heads``                     number of heads, may be infinite
$c$                 ``exponent``                    heads are summed with $H^{-c}$; the paper has 1/2
$\eta$              ``step_size``                   step size of gradient descent on all heads
--                  ``step_sizes(...)["decoder"]``  $\eta H^{1-2c}$, step size of $V=H^{1-c}U$
--                  ``...["key_query"]``            $\eta/H$, step size of $W$
==================  ==============================  =============================================================

Heads that start equal, for example at zero, stay equal. They compute
$H^{1-c}\langle U,\varphi(XWX^\top)X\rangle=\langle V,\varphi(XWX^\top)X\rangle$, the output of one head. The gradient
of each carries the factor $H^{-c}$, so $V$ moves by $\eta H^{1-c}H^{-c}\nabla_V\hat L$. And $W$ moves by
$\eta H^{-c}$ times a gradient that is linear in $U=H^{c-1}V$. With the paper's exponent,

.. math::

    V\leftarrow V-\eta\,\nabla_V\hat L,\qquad W\leftarrow W-\frac\eta H\nabla_W\hat L .

How many heads with $c=\frac12$ train alike is the ratio of the two step sizes, $H^{2-2c}$. All of this is the book's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.core.runtime import threads
from attnbook.multi_head import layer
from attnbook.multi_head.layer import Objective

__all__ = ["as_many_heads", "gradient_descent", "step_sizes", "two_number_path"]


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
        rates: Step sizes by name of the parameter, see :func:`attnbook.multi_head.one_head.step_sizes`.
        steps: Number of steps, at least 1.

    Returns:
        The final parameters.

    Raises:
        ValueError: If there is not exactly one head, a rate is missing, or the number of steps is not positive.
    """
    heads = layer.check(parameters, tokens)[1]
    if heads != 1:
        raise ValueError(f"parameters: expected one head, got {heads}")
    if set(rates) != set(parameters):
        raise ValueError(f"rates: expected one for each of {sorted(parameters)}, got {sorted(rates)}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps: expected a whole number of at least 1, got {steps!r}")
    found = {name: tensor.clone() for name, tensor in parameters.items()}
    with threads(1):
        for _ in range(steps):
            _, gradients = layer.value_and_gradient(found, tokens, objective)
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


def step_sizes(step_size: float, n_heads: float, exponent: float = 0.5) -> dict[str, float]:
    r"""Return the step sizes with which one head trains as $H$ equal heads do.

    Args:
        step_size: Step size $\eta$ of the $H$ heads, positive.
        n_heads: Number of heads $H$, at least 1; infinite, with the exponent 1/2, for attention that never moves.
        exponent: The exponent $c$ of the scaling $H^{-c}$, at least 0; default 1/2, the paper's.

    Returns:
        $\eta H^{1-2c}$ for ``decoder`` and $\eta/H$ for ``key_query``.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> step_sizes(0.5, 4)
        {'decoder': 0.5, 'key_query': 0.125}
        >>> step_sizes(0.5 * 4, 4, exponent=1.0)
        {'decoder': 0.5, 'key_query': 0.5}
    """
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size: expected a finite positive number, got {step_size}")
    _check(n_heads, exponent)
    return {"decoder": step_size * float(n_heads) ** (1 - 2 * exponent), "key_query": step_size / n_heads}


def two_number_path(
    step_size: float, n_heads: int, *, share: float, steps: int
) -> tuple[Float[np.ndarray, " records"], Float[np.ndarray, " records"]]:
    r"""Return how a head of two numbers learns, with the two step sizes of $H$ heads (a caricature, this book's).

    The head has a decoder $v$ and a logit $w$ for its relevant tokens. Attention on them is
    $s(w)=\zeta e^w/(\zeta e^w+1-\zeta)$, the loss is $\log(1+e^{-vs(w)})$: one sample without noise. It starts at zero.

    Args:
        step_size: Step size $\eta$ of the $H$ heads, positive.
        n_heads: Number of heads $H$, at least 1.
        share: Share of relevant tokens $\zeta$, between 0 and 1.
        steps: Number of steps, at least 1.

    Returns:
        The decoder and the attention, before the first step and after each.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> decoder, attention = two_number_path(0.5, 4, share=0.1, steps=1)
        >>> decoder.round(3).tolist(), attention.round(3).tolist()
        ([0.0, 0.025], [0.1, 0.1])
    """
    rates = step_sizes(step_size, n_heads)
    if not 0 < share < 1:
        raise ValueError(f"share: expected a number between 0 and 1, got {share}")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    decoder, attention = np.zeros(steps + 1), np.full(steps + 1, share)
    v, w = 0.0, 0.0
    for k in range(1, steps + 1):
        s = attention[k - 1]
        error = 1 / (1 + math.exp(min(v * s, 700.0)))
        v, w = v + rates["decoder"] * error * s, w + rates["key_query"] * error * v * s * (1 - s)
        decoder[k], attention[k] = v, 1 / (1 + (1 / share - 1) * math.exp(-w))
    return decoder, attention


def _check(n_heads: float, exponent: float) -> None:
    if not n_heads >= 1:
        raise ValueError(f"n_heads: expected a number of at least 1, got {n_heads}")
    if not 0 <= exponent < math.inf:
        raise ValueError(f"exponent: expected a finite number of at least 0, got {exponent}")
