r"""Key-query matrix and head trained together by $\ell_p$ mirror descent ($\ell_p$-JointGD).

The loss is that of :mod:`~attnbook.mirror_descent.attention`, now a function of both $W$ and $v$. Its two
gradients shrink at different rates, so it matters how step sizes are chosen; :func:`descend_jointly` knows two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.update_rules import per_member
from attnbook.mirror_descent.attention import Batch, log_longest_step
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.optimizer import MirrorRule, precision

__all__ = ["Steps", "descend_jointly", "joint_gradient"]

Steps: TypeAlias = Literal["separate", "common"]
"""Whether each block takes scale-free steps of its own, or both share one step size."""

BLOCKS = ("key_query", "decoder")


def joint_gradient(parameters: Parameters, batch: Batch) -> tuple[Tensor, Parameters, Parameters]:
    r"""Return losses, and by block gradients of ordinary size, in closed form, and logs of the scales on them.

    With $s_i=\sigma(X_iWz_i)$, scores $\gamma_{it}=y_iv^\top X_{it}$ and margins $\gamma_i^\top s_i$:
    $\nabla_v\mathcal L=\frac1n\sum_i\ell'_iy_iX_i^\top s_i$ and
    $\nabla_W\mathcal L=\frac1n\sum_i\ell'_iX_i^\top(\mathrm{diag}(s_i)-s_is_i^\top)\gamma_iz_i^\top$. The largest
    exponential of each block is divided out: of $e^{-\text{margin}_i}$ for $v$, of
    $e^{-\text{margin}_i-\text{gap}_{it}}$ for $W$.

    Parameters are ``key_query (members, dimension, dimension)`` and ``decoder (members, dimension)``.
    """
    keys = batch.queries @ parameters["key_query"].mT
    logits = (batch.tokens @ keys.unsqueeze(-1)).squeeze(-1)
    highest, top = logits.max(-1, keepdim=True)
    # The token attended most has weight 1 minus something tiny: minus the sum of the others throughout.
    below = (logits - highest).scatter_(-1, top, -torch.inf)
    scores = (batch.tokens @ parameters["decoder"][:, None, :, None]).squeeze(-1) * batch.labels.unsqueeze(-1)
    relative = scores - scores.gather(-1, top)
    others = below.exp()
    total = 1 + others.sum(-1, keepdim=True)
    others = others / total
    mean = (others * relative).sum(-1, keepdim=True)
    margins = scores.gather(-1, top) + mean
    log_slopes = torch.nn.functional.logsigmoid(-margins)
    head_scale = log_slopes.amax((1, 2), keepdim=True)
    matrix_scale = (log_slopes + below).amax((1, 2), keepdim=True)
    pull = (log_slopes + below - matrix_scale).exp() / total * (relative - mean)
    pull.scatter_(-1, top, -pull.sum(-1, keepdim=True))
    weights = others.scatter(-1, top, 1 / total)
    weights = weights * (log_slopes - head_scale).exp() * batch.labels.unsqueeze(-1)
    n = margins.shape[1]
    along = (pull.unsqueeze(-2) @ batch.tokens).squeeze(-2)
    head = (weights.unsqueeze(-1) * batch.tokens).sum((1, 2)) / -n
    gradients = {"key_query": along.mT @ batch.queries / -n, "decoder": head}
    log_scales = {"key_query": matrix_scale[:, 0, 0], "decoder": head_scale[:, 0, 0]}
    return torch.nn.functional.softplus(-margins).mean((1, 2)), gradients, log_scales


def descend_jointly(
    problems: Problems,
    p: Float[np.ndarray, " members"],
    *,
    steps: int,
    step_size: float | Sequence[float],
    protocol: Steps = "separate",
    head_pace: float | Sequence[float] = 1.0,
    start: tuple[Float[np.ndarray, "members dimension dimension"], Float[np.ndarray, "members dimension"]]
    | None = None,
    record_at: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> History:
    r"""Train one key-query matrix and one head per member by $\ell_p$ mirror descent, all as one program.

    With separate steps each block is divided by its own dual norm, as in
    :class:`~attnbook.mirror_descent.optimizer.MirrorDescent`. With a common step both blocks move with the same
    $\eta_k$: the largest for which neither moves by more than its separate step would. That is plain descent with a
    step size that varies, and follows the path of a small constant one; the time $\sum_k\eta_k$ is kept as a logarithm.

    Args:
        problems: One problem per member, side by side where ``p`` is equal; their decoder is not used.
        p: Exponent of each member, above 1.
        steps: Number of steps.
        step_size: How far a block moves per step at most, times ``p - 1``.
        protocol: ``separate`` or ``common``; default separate.
        head_pace: With separate steps, how many times ``step_size`` the head's steps are; one number, or one per
            member. Default 1.
        start: Initial matrices and heads; default zero.
        record_at: Steps to record at; default 12 log-spaced ones.
        device: Where to compute.
        progress: Told (steps done, steps in all).

    Returns:
        History with the records ``key_query``, ``decoder`` and ``log_time`` ``(records, members)``: the log of the sum
        of the step sizes so far, of the head's where they are separate (before the first step the smallest number).

    Raises:
        ValueError: If an argument is outside its range or the shapes do not fit.
        FloatingPointError: If a member diverges.
    """
    if protocol not in get_args(Steps):
        raise ValueError(f"protocol: expected one of {', '.join(get_args(Steps))}, got {protocol!r}")
    members, dimension = problems.decoder.shape
    shapes = [(members, dimension, dimension), (members, dimension)]
    initial = [np.zeros(shape) for shape in shapes] if start is None else start
    if [value.shape for value in initial] != shapes:
        raise ValueError(f"start: expected shapes {shapes} to fit the problems, got {[v.shape for v in initial]}")
    dtype = precision(torch.device(device))
    batch, to = Batch.of(problems, device=device, dtype=dtype), partial(to_tensor, device=device, dtype=dtype)
    log_step = to(np.log(per_member("step_size", step_size, members)))
    log_head = to(np.log(per_member("head_pace", head_pace, members)))
    pace = _Pace(to(p), log_step, log_head, protocol == "common")
    with threads(1):
        return ensemble.train(
            pace.value_and_grad,
            {name: to(value) for name, value in zip(BLOCKS, initial, strict=True)},
            lambda _: batch,
            optimizer=MirrorRule(step_size, p.tolist()),
            steps=steps,
            record=lambda now: now | {"log_time": pace.log_time.clamp(min=torch.finfo(dtype).min)},
            record_at=record_at,
            names=[f"p = {exponent:g} (member {i})" for i, exponent in enumerate(p)],
            progress=progress,
        )


@dataclass
class _Pace:
    """Turns gradients into steps of bounded length, and adds up what plain step sizes they amount to."""

    p: Tensor
    log_step: Tensor
    log_head: Tensor
    common: bool

    def __post_init__(self) -> None:
        self.log_time = torch.full_like(self.p, -torch.inf)

    def value_and_grad(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Parameters]:
        """Gradients such that a step of the plain rule is the step of this protocol."""
        losses, gradients, log_scales = joint_gradient(parameters, batch)
        # log of eta_k / step_size that is allowed to each block; any where the gradient vanishes, as at head zero.
        allowed = {
            name: log_longest_step(parameters[name], gradients[name], self.p) - log_scales[name] for name in BLOCKS
        }
        if self.common:
            allowed = dict.fromkeys(BLOCKS, torch.minimum(*allowed.values()))
        else:
            allowed["decoder"] = allowed["decoder"] + self.log_head
        self.log_time = torch.logaddexp(self.log_time, allowed["decoder"] + self.log_step)
        moved = {}
        for name, gradient in gradients.items():
            factor = (allowed[name] + log_scales[name]).exp()
            factor = torch.where(factor.isfinite(), factor, 0.0)
            moved[name] = gradient * factor.view(-1, *[1] * (gradient.ndim - 1))
        return losses, moved
