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

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import layer
from attnbook.multi_head.checks import at_least, positive
from attnbook.multi_head.layer import Counts, Objective, Tokens

__all__ = ["gradient_descent", "norm", "one_head_step_sizes"]


def gradient_descent(
    parameters: Parameters,
    tokens: Tokens,
    objective: Objective,
    *,
    counts: Counts | None,
    step_size: float | Sequence[float],
    steps: int,
    record: Callable[[Parameters], Mapping[str, Tensor]],
    record_at: Sequence[int] | None = None,
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    exponent: float = 0.5,
    progress: Progress | None = None,
) -> History:
    r"""Return the history of plain gradient descent on the parameters of each head, all members together.

    The ``parameters`` are the start, ``tokens`` the samples of each member, and the ``objective`` is what is minimised,
    for example :func:`~attnbook.multi_head.objectives.logistic`. The ``counts`` are the heads of each group, None for
    one each; members may differ in their number of heads. The ``step_size`` $\eta$ is one number or one per member,
    ``exponent`` the $c$ of the scaling $H^{-c}$, by default the paper's 1/2. All else is as in
    :func:`~attnbook.core.ensemble.train`.

    Raises:
        ValueError: If the shapes do not fit, an entry is not finite or a number is outside its range.
        FloatingPointError: If a member diverges.
    """
    layer.check(parameters, tokens, counts=counts)
    if not torch.isfinite(tokens).all():
        raise ValueError(f"tokens: {int((~torch.isfinite(tokens)).sum())} of {tokens.numel()} entries are not finite")
    at_least(0, exponent=exponent)
    # Small matrices: a second thread costs more than it gains.
    with threads(1):
        return ensemble.train(
            lambda groups, x: layer.value_and_gradient(groups, x, objective, counts=counts, exponent=exponent),
            parameters,
            lambda step: tokens,
            optimizer=update_rules.SGD(step_size),
            steps=steps,
            record=record,
            record_at=record_at,
            stop=stop,
            progress=progress,
        )


def norm(parameters: Parameters, *, counts: Counts) -> Float[Tensor, " members"]:
    r"""Return $\|\tilde\theta\|=\big(\sum_gm_g\|\theta_g\|^2\big)^{1/2}$ of each member.

    The parameters may also be a part of a network, or the difference of two; ``counts`` are the heads of each group.
    """
    squares = torch.stack([tensor.square().sum((2, 3)) for tensor in parameters.values()]).sum(0)
    return (counts.to(squares.dtype) * squares).sum(1).sqrt()


def one_head_step_sizes(step_size: float, n_heads: float, exponent: float = 0.5) -> dict[str, float]:
    r"""Return $\eta H^{1-2c}$ for ``decoder`` and $\eta/H$ for ``key_query``: one head trains as $H$ equal ones do.

    For a positive $\eta$, $c\ge0$ and $H\ge1$, which may be infinite if $c=\frac12$: attention that never moves.

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
