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

__all__ = ["step_sizes"]


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
    if not n_heads >= 1:
        raise ValueError(f"n_heads: expected a number of at least 1, got {n_heads}")
    if not 0 <= exponent < math.inf:
        raise ValueError(f"exponent: expected a finite number of at least 0, got {exponent}")
    return {"decoder": step_size * float(n_heads) ** (1 - 2 * exponent), "key_query": step_size / n_heads}
