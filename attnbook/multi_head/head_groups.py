r"""Groups of equal heads, trained as one head with a multiplicity.

The gradient of a head depends on that head and on residuals that all heads share, so equal heads stay equal: one
*group* of heads from zero, two after the first phase with random signs (:mod:`~attnbook.multi_head.starts`). To train
the groups is to train the whole network; a million million heads cost as much as two. Parameters are those of
:mod:`~attnbook.multi_head.network` with one entry $U_g$, $W_g$ for each group; ``counts`` ``(members, groups)`` are the
heads $m_g$ in each, $H=\sum_gm_g$, as floats.

This is the book's tool, not the paper's, and needs equal heads: if the coefficients of the first phase are uniform on
$[-1,1]$ all heads differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.runtime import threads
from attnbook.multi_head import layer
from attnbook.multi_head.checks import at_least, positive
from attnbook.multi_head.layer import Counts, Objective, Tokens

__all__ = ["gradient_descent", "norm", "one_head_step_sizes", "squares"]


def gradient_descent(
    parameters: Parameters,
    tokens: Tokens,
    objective: Objective,
    *,
    counts: Counts | None,
    step_size: float | Sequence[float],
    exponent: float = 0.5,
    **options: Any,
) -> History:
    r"""Return the history of plain gradient descent on the parameters of each head, all members together.

    Args:
        parameters: The start.
        tokens: Samples of each member.
        objective: What is minimised, for example :func:`~attnbook.multi_head.objectives.logistic`.
        counts: Heads of each group, None for one each; members may differ in their number of heads.
        step_size: The step size $\eta$, one number or one per member.
        exponent: The $c$ of the scaling $H^{-c}$, at least 0; default the paper's 1/2.
        **options: ``steps``, ``record``, ``record_at``, ``stop``: as for :func:`~attnbook.core.ensemble.train`.

    Returns:
        The history.

    Raises:
        ValueError: If the shapes do not fit, an entry is not finite or a number is outside its range.
        FloatingPointError: If a member diverges.
    """
    layer.check(parameters, tokens, counts=counts)
    if not torch.isfinite(tokens).all():
        raise ValueError(f"tokens: {int((~torch.isfinite(tokens)).sum())} of {tokens.numel()} entries are not finite")
    at_least(0, exponent=exponent)

    def gradient(groups: Parameters, x: Tensor) -> tuple[Tensor, Parameters]:
        return layer.value_and_gradient(groups, x, objective, counts=counts, exponent=exponent)

    with threads(1):  # small matrices: a second thread costs more than it gains
        return ensemble.train(
            gradient, parameters, lambda step: tokens, optimizer=update_rules.SGD(step_size), **options
        )


def squares(parameters: Parameters) -> Float[Tensor, "members heads"]:
    """Return the squared norm of each head, decoder and key-query matrix together.

    Args:
        parameters: Networks, parts of them, or differences.

    Returns:
        One number for each head.
    """
    return torch.stack([tensor.square().sum((2, 3)) for tensor in parameters.values()]).sum(0)


def norm(parameters: Parameters, *, counts: Counts) -> Float[Tensor, " members"]:
    r"""Return $\|\tilde\theta\|=\big(\sum_gm_g\|\theta_g\|^2\big)^{1/2}$ of each member.

    Args:
        parameters: Networks, parts of them, or differences.
        counts: Heads of each group.

    Returns:
        One norm for each member.
    """
    each = squares(parameters)
    return (counts.to(each.dtype) * each).sum(1).sqrt()


def one_head_step_sizes(step_size: float, n_heads: float, exponent: float = 0.5) -> dict[str, float]:
    r"""Return $\eta H^{1-2c}$ for ``decoder`` and $\eta/H$ for ``key_query``: one head trains as $H$ equal ones do.

    Args:
        step_size: The step size $\eta$ of all heads, positive.
        n_heads: Their number $H$, at least 1; it may be infinite if $c=\frac12$: attention that never moves.
        exponent: The power $c$ of $H$ that the sum is divided by, at least 0; default the paper's.

    Returns:
        The step sizes by name.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> one_head_step_sizes(0.5, 4)
        {'decoder': 0.5, 'key_query': 0.125}
        >>> one_head_step_sizes(0.5 * 4, 4, exponent=1.0)
        {'decoder': 0.5, 'key_query': 0.5}
    """
    positive(step_size=step_size)
    at_least(0, exponent=exponent)
    if not n_heads >= 1:
        raise ValueError(f"n_heads: expected a number of at least 1, got {n_heads}")
    return {"decoder": step_size * float(n_heads) ** (1 - 2 * exponent), "key_query": step_size / n_heads}
