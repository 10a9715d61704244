r"""Training one self-attention layer: values solved, trained or frozen, beside steps on the key-query matrix.

All ways take one gradient with respect to the key-query matrix per step, so that steps are a common budget. Two
functions say in closed form what descent on the values pays for at uniform attention.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnbook.softmax_ntk.self_attention import attention_weights, contexts, loss_and_gradients

__all__ = [
    "Trained", "Way", "train_layers", "uniform_condition", "value_condition", "value_step_unit", "values_descent"
]  # fmt: skip

Values: TypeAlias = Literal["solved", "trained", "frozen"]
Rule: TypeAlias = Literal["descent", "adam"]
# A loss above this multiple of that of the zero output will not come back; its layer stops where it is.
DIVERGED = 1e6
ADAM_DECAYS, ADAM_FLOOR = (0.9, 0.999), 1e-12


@dataclass(frozen=True)
class Way:
    """How a layer is trained.

    Attributes:
        values: Whether values are solved for by least squares at every step, trained by steps of their own, or frozen.
        rule: Plain gradient descent, the default, or Adam.
    """

    values: Values
    rule: Rule = "descent"

    def __post_init__(self) -> None:
        if self.values not in get_args(Values):
            raise ValueError(f"values: expected one of {', '.join(get_args(Values))}, got {self.values!r}")
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule: expected one of {', '.join(get_args(Rule))}, got {self.rule!r}")


@dataclass(frozen=True)
class Trained:
    """What training did.

    Attributes:
        loss: Loss at every step over that of the zero output, ``(steps + 1, members)``; a layer that diverged keeps
            its last one.
        key_query: Key-query matrices at the end.
        value: Values at the end.
        condition: Step to the condition number of the values' problem of each member at that step.
    """

    loss: Float[Tensor, "records members"]
    key_query: Float[Tensor, "members dimension dimension"]
    value: Float[Tensor, "members dimension outputs"]
    condition: dict[int, Float[Tensor, " members"]]


def value_step_unit(tokens: Float[Tensor, "members sequences length dimension"]) -> Float[Tensor, " members"]:
    r"""Return one over the largest eigenvalue of $X^\top X/(nL)$: a natural unit for steps on the values.

    Example:
        >>> value_step_unit(2 * torch.eye(2)[None, None]).tolist()
        [0.5]
    """
    flat = tokens.flatten(1, 2)
    return 1 / torch.linalg.eigvalsh(flat.mT @ flat / flat.shape[1])[:, -1]


@torch.no_grad()
def train_layers(
    key_query: Float[Tensor, "members dimension dimension"],
    value: Float[Tensor, "members dimension outputs"],
    tokens: Float[Tensor, "members sequences length dimension"],
    labels: Float[Tensor, "members rows outputs"],
    *,
    way: Way,
    key_query_step: Float[Tensor, " members"],
    value_step: Float[Tensor, " members"],
    steps: int,
    keep: Collection[int] = (),
) -> Trained:
    r"""Return what training does to layers, each on its own sequences and with its own step sizes.

    With ``values="solved"`` this is gradient descent on $\min_V\mathrm{loss}(QK^\top,V)$: at the best
    values the derivative through them vanishes.

    Args:
        key_query: Where the key-query matrices start; not changed.
        value: Where the values start; not used where they are solved for.
        tokens: Sequences of each layer.
        labels: What each should say, one row per token.
        way: How to train.
        key_query_step: Step sizes (learning rates of Adam) of the key-query matrices, positive.
        value_step: Those of the values, where they are trained.
        steps: Number of steps, at least 1.
        keep: Steps at which the condition number of the values' problem over all sequences is kept.

    Raises:
        ValueError: If there is no step, or a step size that is used is not one positive number per layer.
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    used = {"key_query_step": key_query_step} | ({"value_step": value_step} if way.values == "trained" else {})
    for name, sizes in used.items():
        if sizes.shape != key_query.shape[:1] or not (torch.isfinite(sizes) & (sizes > 0)).all():
            raise ValueError(f"{name}: expected one positive number per layer ({len(key_query)},), got {sizes}")
    zero = labels.square().sum((1, 2)) / (2 * labels.shape[1])
    rates = (key_query_step[:, None, None], value_step[:, None, None])
    moves = (_Moves(key_query, way.rule), _Moves(value, way.rule))
    losses: list[Tensor] = []
    condition: dict[int, Tensor] = {}
    alive = torch.ones_like(zero, dtype=torch.bool)
    for step in range(steps + 1):
        now = loss_and_gradients(key_query, None if way.values == "solved" else value, tokens, labels)
        value = now.at_value
        relative = now.loss / zero
        losses.append(torch.where(alive, relative, losses[-1]) if losses else relative)
        alive &= relative < DIVERGED
        if step in keep:
            condition[step] = value_condition(key_query, tokens)
        if step == steps:
            break
        go = alive[:, None, None]
        key_query = torch.where(go, key_query - rates[0] * moves[0](now.key_query), key_query)
        if way.values == "trained":
            value = torch.where(go, value - rates[1] * moves[1](now.value), value)
    return Trained(torch.stack(losses), key_query, value, condition)


def value_condition(
    key_query: Float[Tensor, "members dimension dimension"], tokens: Float[Tensor, "members sequences length dimension"]
) -> Float[Tensor, " members"]:
    r"""Return the condition number of $C^\top C$, of least squares in the values at these attention weights.

    It is infinite where the contexts $C$ miss a direction altogether.

    Example:
        >>> value_condition(torch.zeros(1, 2, 2), torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]])).tolist()
        [4.0]
    """
    rows = contexts(attention_weights(key_query, tokens), tokens)
    return torch.linalg.cond(rows).square()


def uniform_condition(mean_norm: float | np.ndarray, length: int) -> float | np.ndarray:
    r"""Return the condition number of the values' problem at uniform attention, $1+L\|\mu\|^2$, for many sequences.

    Each context is then the mean of $L$ tokens. For tokens from $N(\mu,I)$ contexts have second moments
    $\mu\mu^\top+I/L$: averaging shrinks what tells tokens apart, and keeps what they share.

    Example:
        >>> uniform_condition(2.0, 8)
        33.0
    """
    return 1 + length * mean_norm**2


def values_descent(mean_norm: float, length: int, *, steps: int) -> Float[np.ndarray, "records 2"]:
    r"""Return the error of the values along the shared mean and across it, under gradient descent at uniform attention.

    The two directions have curvatures $\|\mu\|^2+\frac1L$ and $\frac1L$; both errors start at one. The step size is the
    best fixed one, two over the sum of the curvatures, with which each step multiplies both errors by
    $\pm(\kappa-1)/(\kappa+1)$; $\kappa$ is :func:`uniform_condition`. For many sequences and fixed attention; ours.

    Raises:
        ValueError: If the norm is negative or another number below 1.

    Example:
        >>> values_descent(1.0, 1, steps=1).round(3).tolist()
        [[1.0, 1.0], [-0.333, 0.333]]
    """
    if mean_norm < 0 or length < 1 or steps < 1:
        raise ValueError(f"mean_norm, length, steps: expected at least 0, 1, 1, got {mean_norm}, {length}, {steps}")
    condition = uniform_condition(mean_norm, length)
    factor = (condition - 1) / (condition + 1)
    return np.power.outer(np.array([-factor, factor]), np.arange(steps + 1)).T


class _Moves:
    """Turns gradients into directions of steps."""

    def __init__(self, like: Tensor, rule: Rule) -> None:
        self.rule, self.count = rule, 0
        self.mean, self.square = torch.zeros_like(like), torch.zeros_like(like)

    def __call__(self, gradient: Tensor) -> Tensor:
        if self.rule == "descent":
            return gradient
        (first, second), self.count = ADAM_DECAYS, self.count + 1
        self.mean = first * self.mean + (1 - first) * gradient
        self.square = second * self.square + (1 - second) * gradient.square()
        scale = (self.square / (1 - second**self.count)).sqrt() + ADAM_FLOOR
        return self.mean / (1 - first**self.count) / scale
