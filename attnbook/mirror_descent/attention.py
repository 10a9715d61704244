r"""One layer of attention with a query per sample, its loss and gradient, and training by mirror descent.

The model is $f(X,z)=v^\top X^\top\sigma(XWz)$ with the key-query matrix $W$ trained and the head $v$ fixed. The
training loss is $\mathcal L(W)=\frac1n\sum_i\ell(\gamma_i^\top s_i)$ with $s_i=\sigma(X_iWz_i)$, token scores
$\gamma_{it}=y_iv^\top X_{it}$ and the logistic loss $\ell(m)=\log(1+e^{-m})$. Matrices carry a leading member axis, and
so does what is returned: ``key_query`` is one matrix $W$ per member ``(members, dimension, dimension)``, by itself or
the one entry of ``parameters``, and ``batch`` has one problem per member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnbook.core import ensemble
from attnbook.core.ensemble import Gradient, History, Parameters
from attnbook.core.rng import to_tensor
from attnbook.core.runtime import Progress, threads
from attnbook.core.update_rules import per_member
from attnbook.mirror_descent.data import Problems
from attnbook.mirror_descent.optimizer import MirrorRule, precision

__all__ = [
    "Batch",
    "attention_weights",
    "descend",
    "excess_loss",
    "log_longest_step",
    "log_scaled_gradient",
    "loss_and_gradient",
    "train_loss",
]


class Batch(NamedTuple):
    """What the loss needs of the problems, one per member."""

    tokens: Tensor  #: ``(members, samples, tokens, dimension)``
    queries: Tensor  #: ``(members, samples, dimension)``
    labels: Tensor  #: ``(members, samples)``
    token_scores: Tensor  #: Under the problems' own head, ``(members, samples, tokens)``

    @classmethod
    def of(cls, problems: Problems, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Batch:
        """Return problems, one per member, as tensors of a type on a device."""
        parts = (problems.tokens, problems.queries, problems.labels, problems.token_scores)
        return cls(*(to_tensor(part, device=device, dtype=dtype) for part in parts))


def attention_weights(
    key_query: Float[Tensor, "members dimension dimension"], batch: Batch
) -> Float[Tensor, "members samples tokens"]:
    r"""Return $\sigma(X_iWz_i)$ of each sample."""
    return _logits(key_query, batch).softmax(-1)


def train_loss(parameters: Parameters, batch: Batch) -> Float[Tensor, " members"]:
    """Return the training loss of each member."""
    margins = (attention_weights(parameters["key_query"], batch) * batch.token_scores).sum(-1)
    return torch.nn.functional.softplus(-margins).mean(-1)


def loss_and_gradient(parameters: Parameters, batch: Batch) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the training loss of each member and its gradient in closed form (Lemma 17).

    $\nabla\mathcal L(W)=\frac1n\sum_i\ell'(\gamma_i^\top s_i)\,X_i^\top\sigma'(X_iWz_i)\gamma_iz_i^\top$ with
    $\sigma'=\mathrm{diag}(s)-ss^\top$.
    """
    losses, gradients, log_scale = _scaled_gradient(parameters["key_query"], batch)
    return losses, {"key_query": gradients * log_scale.exp()[:, None, None]}


def log_scaled_gradient(
    key_query: Float[Tensor, "members dimension dimension"], batch: Batch
) -> tuple[Float[Tensor, "members dimension dimension"], Float[Tensor, " members"]]:
    """Return the gradient as a matrix of ordinary size, and the log of the scale that multiplies it."""
    _, gradients, log_scale = _scaled_gradient(key_query, batch)
    return gradients, log_scale


def excess_loss(
    key_query: Float[Tensor, "members dimension dimension"], batch: Batch, selected: Int[Tensor, "members samples"]
) -> Float[Tensor, " members"]:
    r"""Return the training loss minus the loss of attending to given tokens alone, to full relative precision.

    With $\epsilon_i=\sum_ts_{it}(\gamma_{i\alpha_i}-\gamma_{it})$ and $a_i=\gamma_{i\alpha_i}$ it is the mean of
    $\ell(a_i-\epsilon_i)-\ell(a_i)=\log\big(1+(e^{\epsilon_i}-1)/(1+e^{a_i})\big)$: nothing cancels.

    It is negative where another token is better and attended to.
    """
    own = batch.token_scores.gather(-1, selected.unsqueeze(-1))
    lead = (attention_weights(key_query, batch) * (own - batch.token_scores)).sum(-1)
    return torch.log1p(torch.expm1(lead) * torch.sigmoid(-own.squeeze(-1))).mean(-1)


def descend(
    problems: Problems,
    p: Float[np.ndarray, " members"],
    *,
    steps: int,
    step_size: float | Sequence[float],
    normalized: bool = False,
    start: Float[np.ndarray, "members dimension dimension"] | None = None,
    record_at: Sequence[int] | None = None,
    log_time: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> History:
    r"""Train one key-query matrix per member by $\ell_p$ mirror descent, all as one program.

    Args:
        problems: One problem per member; put members of equal ``p`` side by side, they are updated together.
        p: Exponent of each member, above 1.
        steps: Number of steps.
        step_size: Step size $\eta$; with ``normalized`` the weights move by about ``step_size / (p - 1)`` per step.
        normalized: Whether steps are scale-free; see :class:`~attnbook.mirror_descent.optimizer.MirrorDescent`.
        start: Initial matrices; default zero, which is legal in the mirror space for every ``p``.
        record_at: Steps to record at; default 12 log-spaced ones.
        log_time: Whether to record the log of the time as well: the sum of the plain step sizes $\eta_k$ so far, where
            a scale-free step is the plain one with $\eta_k=\eta\max(1,\|W\|_{p,p})^{p-2}/\|\nabla\mathcal
            L\|_{q,q}$, which soon is beyond any float. Only with ``normalized``; default false.
        device: Where to compute.
        progress: Told (steps done, steps in all).

    Returns:
        History with the record ``key_query`` ``(records, members, dimension, dimension)``, and with the records
        ``log_time`` (of the steps so far) and ``log_step_size`` (of the step to come), ``(records, members)``, when
        asked for.

    Raises:
        ValueError: If an argument is outside its range or the shapes do not fit.
        FloatingPointError: If a member diverges.
    """
    members, dimension = problems.decoder.shape
    initial = np.zeros((members, dimension, dimension)) if start is None else start
    if initial.shape != (members, dimension, dimension):
        raise ValueError(f"start: expected {(members, dimension, dimension)} to fit the problems, got {initial.shape}")
    if log_time and not normalized:
        raise ValueError("log_time: only with normalized steps; the time of plain ones is their number times step_size")
    dtype = precision(torch.device(device))
    batch = Batch.of(problems, device=device, dtype=dtype)
    clock = _StepClock(per_member("step_size", step_size, members), p, device, dtype) if log_time else None
    value_and_grad: Gradient = _scale_free_gradient if normalized else loss_and_gradient
    # Matrices this small gain nothing from a second thread.
    with threads(1):
        return ensemble.train(
            value_and_grad if clock is None else clock.value_and_grad,
            {"key_query": to_tensor(initial, device=device, dtype=dtype)},
            lambda _: batch,
            optimizer=MirrorRule(step_size, p.tolist(), normalized=normalized),
            steps=steps,
            record=lambda now: now | (clock.record(now["key_query"], batch) if clock else {}),
            record_at=record_at,
            names=[f"p = {exponent:g} (member {i})" for i, exponent in enumerate(p)],
            progress=progress,
        )


def log_longest_step(weights: Tensor, gradients: Tensor, p: Float[Tensor, " members"]) -> Float[Tensor, " members"]:
    r"""Return the log of the plain step size that a scale-free step of size 1 amounts to, for ``(members, ...)``.

    It is $(p-2)\log\max(1,\|W\|)-\log\|\nabla\mathcal L\|$ with the $p$-norm of the weights and the dual norm of the
    gradient, none of which overflows; infinite where a gradient is zero. Gradients are known up to a scale whose log
    is to be subtracted.
    """
    q = p / (p - 1)
    size = gradients.flatten(1).abs()
    largest = size.amax(1)
    length = (size / largest.unsqueeze(1)).pow(q.unsqueeze(1)).sum(1).log() / q + largest.log()
    norm = weights.flatten(1).abs().pow(p.unsqueeze(1)).sum(1).log() / p
    return (p - 2) * norm.clamp(min=0.0) - torch.where(largest > 0, length, -torch.inf)


class _StepClock:
    """Adds up, as logarithms, the plain step sizes that scale-free steps amount to."""

    def __init__(self, step_size: np.ndarray, p: np.ndarray, device: torch.device | str, dtype: torch.dtype) -> None:
        self.p = to_tensor(p, device=device, dtype=dtype)
        self.log_step = to_tensor(np.log(step_size), device=device, dtype=dtype)
        self.log_time = torch.full_like(self.p, -torch.inf)

    def value_and_grad(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Parameters]:
        """The scale-free gradient of the step to come, whose plain step size is added."""
        losses, gradients, log_scale = _scaled_gradient(parameters["key_query"], batch)
        self.log_time = torch.logaddexp(self.log_time, self._log_size(parameters["key_query"], gradients, log_scale))
        return losses, {"key_query": gradients}

    def record(self, key_query: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Time so far (of no step: the smallest number), and the plain size of the step to come."""
        ahead = self._log_size(key_query, *log_scaled_gradient(key_query, batch))
        so_far = self.log_time.clamp(min=torch.finfo(self.p.dtype).min)
        return {"log_time": so_far, "log_step_size": ahead}

    def _log_size(self, key_query: Tensor, gradients: Tensor, log_scale: Tensor) -> Tensor:
        return self.log_step + log_longest_step(key_query, gradients, self.p) - log_scale


def _logits(key_query: Tensor, batch: Batch) -> Tensor:
    keys = batch.queries @ key_query.mT
    return (batch.tokens @ keys.unsqueeze(-1)).squeeze(-1)


def _scale_free_gradient(parameters: Parameters, batch: Batch) -> tuple[Tensor, Parameters]:
    """Losses and a positive multiple of each gradient: far out gradients are below any float, directions are not."""
    losses, gradients, _ = _scaled_gradient(parameters["key_query"], batch)
    return losses, {"key_query": gradients}


def _scaled_gradient(key_query: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, gradients times exp(-log_scale), and log_scale per member."""
    # The token attended most has weight 1 minus something tiny: it is kept as minus the sum of the others throughout.
    logits = _logits(key_query, batch)
    highest, top = logits.max(-1, keepdim=True)
    below = logits.sub_(highest).scatter_(-1, top, -torch.inf)
    log_scale = below.amax((1, 2), keepdim=True)
    others = below.sub_(log_scale).exp_()
    unit = log_scale.exp()
    # Scores relative to the top token's, and attention on the others over exp(log_scale).
    own = batch.token_scores.gather(-1, top)
    relative = batch.token_scores - own
    others /= unit * others.sum(-1, keepdim=True) + 1
    mean = (others * relative).sum(-1, keepdim=True).mul_(unit)
    margins = (own + mean).squeeze(-1)
    coefficients = others.mul_(relative.sub_(mean))
    coefficients.scatter_(-1, top, coefficients.sum(-1, keepdim=True).neg_())
    slopes = torch.sigmoid(-margins).div_(-margins.shape[1])
    along = coefficients.mul_(slopes.unsqueeze(-1)).unsqueeze(-2) @ batch.tokens
    gradients = along.squeeze(-2).mT @ batch.queries
    losses = torch.nn.functional.softplus(-margins).mean(-1)
    return losses, gradients, log_scale[:, 0, 0]
