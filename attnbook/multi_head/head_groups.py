r"""Groups of equal heads, trained as one head with a multiplicity.

The gradient of a head depends on that head and on the residuals, which all heads share. Equal heads therefore receive
equal updates and stay equal. From zero there is one *group* of heads; after the first phase with random signs
(:mod:`~attnbook.multi_head.starts`) there are two. Training the groups is training the whole network, whatever
the number of heads: a million million heads cost as much as two.

===============  ==============  ==================================================================
paper            name here       shape
===============  ==============  ==================================================================
$U_g$            ``decoder``     ``(members, groups, tokens, dimension)``
$W_g$            ``key_query``   ``(members, groups, dimension, dimension)``
$m_g$            ``counts``      ``(members, groups)``, heads in the group; $H=\sum_gm_g$ as a float
===============  ==============  ==================================================================

The collapse is this book's tool, not the paper's. It needs equal heads: if the coefficients of the first phase are
uniform on $[-1,1]$ all heads differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import layer
from attnbook.multi_head.layer import Objective

__all__ = ["expand", "gradient_descent", "norm"]


def gradient_descent(
    parameters: Parameters,
    tokens: Float[Tensor, "members samples tokens dimension"],
    objective: Objective,
    *,
    counts: Float[Tensor, "members groups"],
    step_size: float | Sequence[float],
    steps: int,
    record: Callable[[Parameters], Mapping[str, Tensor]],
    record_at: Sequence[int] | None = None,
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    exponent: float = 0.5,
    progress: Progress | None = None,
) -> History:
    r"""Train the groups of every member by plain gradient descent on the parameters of each head.

    Args:
        parameters: Start, as in the table above; copied, not changed.
        tokens: Samples of each member.
        objective: What is minimised, for example :func:`~attnbook.multi_head.objectives.logistic`.
        counts: Heads of each group; members may differ in their number of heads.
        step_size: The constant $\eta$, one number or one per member.
        steps: Number of steps, at least 1.
        record: Parameters to statistics, each ``(members, ...)``.
        record_at: Steps to record at; default 12 log-spaced ones.
        stop: As in :func:`~attnbook.core.ensemble.train`; default never.
        exponent: The exponent $c$ of the scaling $H^{-c}$; default 1/2, the paper's.
        progress: Told (steps done, steps in all).

    Returns:
        History with these records and the final parameters.

    Raises:
        ValueError: If the shapes do not fit, an entry is not finite or a number is outside its range.
        FloatingPointError: If a member diverges.
    """
    layer.check(parameters, tokens, counts=counts)
    if not torch.isfinite(tokens).all():
        raise ValueError(f"tokens: {int((~torch.isfinite(tokens)).sum())} of {tokens.numel()} entries are not finite")
    if not 0 <= exponent < math.inf:
        raise ValueError(f"exponent: expected a finite number of at least 0, got {exponent}")

    def value_and_gradient(groups: Parameters, batch: Tensor) -> tuple[Tensor, Parameters]:
        return layer.value_and_gradient(groups, batch, objective, counts=counts, exponent=exponent)

    # Small matrices: a second thread costs more than it gains.
    with threads(1):
        return ensemble.train(
            value_and_gradient,
            parameters,
            lambda step: tokens,
            optimizer=update_rules.SGD(step_size),
            steps=steps,
            record=record,
            record_at=record_at,
            stop=stop,
            progress=progress,
        )


def norm(parameters: Parameters, *, counts: Float[Tensor, "members groups"]) -> Float[Tensor, " members"]:
    r"""Return $\|\tilde\theta\|=\big(\sum_gm_g\|\theta_g\|^2\big)^{1/2}$ of each member, over the parameters given.

    Args:
        parameters: As in the table above, or a part of them, or a difference of two.
        counts: Heads of each group.

    Returns:
        The norms of the whole networks.
    """
    squares = torch.stack([tensor.square().sum((2, 3)) for tensor in parameters.values()]).sum(0)
    return (counts.to(squares.dtype) * squares).sum(1).sqrt()


def expand(parameters: Parameters, *, counts: Float[Tensor, "members groups"]) -> Parameters:
    """Return the whole network: every group repeated as often as it has heads.

    Args:
        parameters: As in the table above.
        counts: Heads of each group: whole numbers, the same for every member.

    Returns:
        Parameters with one entry for each head.

    Raises:
        ValueError: If the counts are not whole numbers of at least 1, or differ between members.
    """
    repeats = counts[0].round().to(torch.int64)
    if not (counts == repeats).all() or (repeats < 1).any():
        raise ValueError(f"counts: expected the same whole numbers for every member, got {counts.tolist()}")
    return {name: tensor.repeat_interleave(repeats, dim=1) for name, tensor in parameters.items()}
