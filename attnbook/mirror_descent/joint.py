r"""Key-query matrix and head trained together by $\ell_p$ mirror descent ($\ell_p$-JointGD).

The loss is that of :mod:`~attnbook.mirror_descent.attention`, now a function of both $W$ and $v$. Its two
gradients shrink at different rates, so it matters how step sizes are chosen; :func:`descend_jointly` knows two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.core import ensemble
from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.update_rules import per_member
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.mirror import Exponents, check_exponents
from attnbook.mirror_descent.optimizer import MirrorRule, precision

__all__ = ["JointBatch", "JointGradient", "Steps", "common_step_growth", "descend_jointly", "joint_gradient"]

Steps: TypeAlias = Literal["separate", "common"]
"""Whether each block takes scale-free steps of its own, or both share one step size."""

BLOCKS = ("key_query", "decoder")


class JointBatch(NamedTuple):
    """What the loss needs of the problems, one per member.

    Attributes:
        tokens: ``(members, samples, tokens, dimension)``.
        queries: ``(members, samples, dimension)``.
        labels: ``(members, samples)``.
    """

    tokens: Tensor
    queries: Tensor
    labels: Tensor

    @classmethod
    def of(
        cls, problems: Problems, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> JointBatch:
        """Return the problems as tensors; their decoder is not used.

        Args:
            problems: One problem per member.
            device: Where the tensors are wanted.
            dtype: Their type; default float64.

        Returns:
            The batch.
        """
        parts = (problems.tokens, problems.queries, problems.labels)
        return cls(*(to_tensor(part, device=device, dtype=dtype) for part in parts))


class JointGradient(NamedTuple):
    """Losses, and the gradient of each block as a tensor of ordinary size and the log of the scale that multiplies it.

    Attributes:
        losses: ``(members,)``.
        gradients: ``key_query (members, dimension, dimension)`` and ``decoder (members, dimension)``.
        log_scales: The same names, ``(members,)`` each.
    """

    losses: Tensor
    gradients: Parameters
    log_scales: Parameters


def joint_gradient(parameters: Parameters, batch: JointBatch) -> JointGradient:
    r"""Return losses and both gradients in closed form, safe at any norm.

    With $s_i=\sigma(X_iWz_i)$, scores $\gamma_{it}=y_iv^\top X_{it}$ and margins $\gamma_i^\top s_i$:
    $\nabla_v\mathcal L=\frac1n\sum_i\ell'_iy_iX_i^\top s_i$ and
    $\nabla_W\mathcal L=\frac1n\sum_i\ell'_iX_i^\top(\mathrm{diag}(s_i)-s_is_i^\top)\gamma_iz_i^\top$. The largest
    exponential of each block is divided out: of $e^{-\text{margin}_i}$ for $v$, of
    $e^{-\text{margin}_i-\text{gap}_{it}}$ for $W$.

    Args:
        parameters: ``key_query`` and ``decoder``, one of each per member.
        batch: One problem per member.

    Returns:
        Losses, gradients and scales.
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
    return JointGradient(
        losses=torch.nn.functional.softplus(-margins).mean((1, 2)),
        gradients={
            "key_query": along.mT @ batch.queries / -n,
            "decoder": (weights.unsqueeze(-1) * batch.tokens).sum((1, 2)) / -n,
        },
        log_scales={"key_query": matrix_scale[:, 0, 0], "decoder": head_scale[:, 0, 0]},
    )


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
    initial = (np.zeros((members, dimension, dimension)), np.zeros((members, dimension))) if start is None else start
    for name, value, shape in zip(
        BLOCKS, initial, ((members, dimension, dimension), (members, dimension)), strict=True
    ):
        if value.shape != shape:
            raise ValueError(f"start: expected {name} of shape {shape} to fit the problems, got {value.shape}")
    dtype = precision(torch.device(device))
    batch = JointBatch.of(problems, device=device, dtype=dtype)
    sizes = per_member("step_size", step_size, members)
    pace = _Pace(sizes, p, per_member("head_pace", head_pace, members), protocol == "common", device, dtype)
    with threads(1):
        return ensemble.train(
            pace.value_and_grad,
            {name: to_tensor(value, device=device, dtype=dtype) for name, value in zip(BLOCKS, initial, strict=True)},
            lambda _: batch,
            optimizer=MirrorRule(step_size, p.tolist()),
            steps=steps,
            record=lambda now: now | {"log_time": pace.log_time.clamp(min=torch.finfo(dtype).min)},
            record_at=record_at,
            names=[f"p = {exponent:g} (member {i})" for i, exponent in enumerate(p)],
            progress=progress,
        )


class _Pace:
    """Turns gradients into steps of bounded length, and adds up what plain step sizes they amount to."""

    def __init__(
        self,
        sizes: np.ndarray,
        p: np.ndarray,
        head: np.ndarray,
        common: bool,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        self.p, self.log_step, self.log_head = (
            to_tensor(a, device=device, dtype=dtype) for a in (p, np.log(sizes), np.log(head))
        )
        self.log_time = torch.full_like(self.p, -torch.inf)
        self.common = common

    def value_and_grad(self, parameters: Parameters, batch: JointBatch) -> tuple[Tensor, Parameters]:
        """Gradients such that a step of the plain rule is the step of this protocol."""
        losses, gradients, log_scales = joint_gradient(parameters, batch)
        # log of eta_k / step_size that is allowed to each block.
        allowed = {name: self._allowed(parameters[name], gradients[name]) - log_scales[name] for name in BLOCKS}
        if self.common:
            allowed = dict.fromkeys(BLOCKS, torch.minimum(*allowed.values()))
        else:
            allowed["decoder"] = allowed["decoder"] + self.log_head
        self.log_time = torch.logaddexp(self.log_time, allowed["decoder"] + self.log_step)
        moved = {}
        for name in BLOCKS:
            factor = (allowed[name] + log_scales[name]).exp()
            moved[name] = gradients[name] * torch.where(factor.isfinite(), factor, 0.0).view(
                -1, *[1] * (gradients[name].ndim - 1)
            )
        return losses, moved

    def _allowed(self, weights: Tensor, gradient: Tensor) -> Tensor:
        p, q = self.p, self.p / (self.p - 1)
        norm = weights.flatten(1).abs().pow(p.unsqueeze(1)).sum(1).pow(1 / p)
        size = gradient.flatten(1).abs()
        largest = size.amax(1, keepdim=True)
        length = (size / largest).pow(q.unsqueeze(1)).sum(1).log() / q + largest.squeeze(1).log()
        # Where the gradient vanishes, as that of the matrix at head zero, any step is allowed.
        return (p - 2) * norm.clamp(min=1.0).log() - torch.where(largest.squeeze(1) > 0, length, -torch.inf)


def common_step_growth(relative_norm: Float[np.ndarray, "*batch"], p: Exponents) -> Float[np.ndarray, "*batch"]:
    r"""Return the slope of $\rho$ against $\log r$ when one step size moves both blocks on their rays.

    With $r$ the relative norm of the head and $\rho$ that of the matrix, $\frac{d}{dt}r^{p-1}\propto e^{-r}$ and
    $\frac{d}{dt}\rho^{p-1}\propto r\,e^{-r}e^{-\rho}$, so $\rho^{p-2}e^\rho\propto r^p$ up to terms of lower order:
    $\frac{d\rho}{d\log r}=\frac{p}{1+(p-2)/\rho}$. A heuristic of this book.

    Args:
        relative_norm: $\rho$, above zero.
        p: Exponent above 1.

    Returns:
        Slopes, near $p$ far out.

    Raises:
        ValueError: If a norm or an exponent is outside its range.

    Example:
        >>> import numpy as np
        >>> round(float(common_step_growth(np.array(9.0), 3.0)), 6)
        2.7
    """
    if not (np.asarray(relative_norm) > 0).all():
        raise ValueError(f"relative_norm: expected numbers above 0, got {np.min(relative_norm)}")
    exponents = check_exponents(p)
    return np.asarray(exponents / (1 + (exponents - 2) / relative_norm))
