r"""The network of this paper, equation (2), its loss, and gradient descent on it.

.. math:: \tilde\Phi(X)=\frac1{\sqrt H}\sum_{h=1}^H\langle U_h,\varphi(XW_hX^\top)X\rangle

===============  ===============  ==============================================
paper            name here        shape
===============  ===============  ==============================================
$U_h$            ``decoder``      ``(members, heads, tokens, dimension)``
$W_h$            ``key_query``    ``(members, heads, dimension, dimension)``
$X_i$            ``tokens``       ``(members, samples, tokens, dimension)``
$y_i$            ``labels``       ``(members, samples)``, 1 or -1
===============  ===============  ==============================================

A *member* is one network with its own samples. All members of a stack have the same number of heads. Shapes that do not
fit, and numbers outside their range, are a ValueError that names the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core.ensemble import History, Parameters
from attnbook.core.rng import to_tensor
from attnbook.multi_head import head_groups, layer
from attnbook.multi_head.checks import at_least, plus_or_minus_one, positive, whole
from attnbook.multi_head.layer import PerSample, Tokens
from attnbook.multi_head.objectives import logistic

__all__ = [
    "descend_to",
    "draw_parameters",
    "gradient_descent",
    "largest_head_norm",
    "loss_and_gradient",
    "losses",
    "random_networks",
]

Batch = tuple[Tokens, PerSample]


def draw_parameters(
    n_heads: int, n_tokens: int, dimension: int, *, scale: float, rng: np.random.Generator
) -> dict[str, Float[np.ndarray, "heads rows dimension"]]:
    r"""Draw one network, without the axis of members; its first heads are the same whatever their number is.

    Args:
        n_heads: Number of heads, at least 1.
        n_tokens: Tokens of a sample, at least 1.
        dimension: Entries of a token, at least 1.
        scale: Standard deviation of an entry, at least 0.
        rng: Source of randomness.

    Returns:
        ``decoder`` and ``key_query`` with normal entries.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> two = draw_parameters(2, 5, 3, scale=0.5, rng=np.random.default_rng(0))
        >>> two["decoder"].shape, two["key_query"].shape
        ((2, 5, 3), (2, 3, 3))
    """
    whole(n_heads=n_heads, n_tokens=n_tokens, dimension=dimension)
    at_least(0, scale=scale)
    entries = scale * rng.standard_normal((n_heads, n_tokens + dimension, dimension))
    return {"decoder": entries[:, :n_tokens], "key_query": entries[:, n_tokens:]}


def random_networks(
    rngs: Sequence[np.random.Generator],
    sizes: tuple[int, int, int],
    *,
    scale: float = 1.0,
    device: torch.device | str = "cpu",
) -> Parameters:
    """Return :func:`~attnbook.multi_head.network.draw_parameters` for each source of randomness, one member each, in double precision.

    Args:
        rngs: Sources of randomness.
        sizes: Heads, tokens and dimension.
        scale: Standard deviation of an entry; default 1.
        device: Where the tensors are; default the CPU.

    Returns:
        The networks.
    """
    drawn = [draw_parameters(*sizes, scale=scale, rng=rng) for rng in rngs]
    stacked = {name: np.stack([one[name] for one in drawn]) for name in drawn[0]}
    return {name: to_tensor(array, device=device, dtype=torch.float64) for name, array in stacked.items()}


def losses(parameters: Parameters, batch: Batch) -> Float[Tensor, " members"]:
    r"""Return the logistic loss $\hat L=\frac1n\sum_i\log(1+e^{-y_i\tilde\Phi(X_i)})$ of each member.

    For automatic differentiation of any order.

    Args:
        parameters: The networks.
        batch: Tokens and labels of each member.

    Returns:
        The losses.

    Raises:
        ValueError: If the shapes do not fit.
    """
    tokens, labels = batch
    layer.check(parameters, tokens, labels)
    return -logsigmoid(labels * layer.outputs(parameters, tokens)).mean(1)


def loss_and_gradient(parameters: Parameters, batch: Batch) -> tuple[Float[Tensor, " members"], Parameters]:
    """Return the logistic loss of each member and its gradient, in closed form.

    Args:
        parameters: The networks.
        batch: Tokens and labels of each member.

    Returns:
        Losses and gradients.

    Raises:
        ValueError: If the shapes do not fit.
    """
    tokens, labels = batch
    layer.check(parameters, tokens, labels)
    return layer.value_and_gradient(parameters, tokens, logistic(labels))


def gradient_descent(parameters: Parameters, batch: Batch, *, step_size: float, steps: int, **options: Any) -> History:
    r"""Return the history of plain gradient descent, $\tilde\theta^{(k+1)}=\tilde\theta^{(k)}-\eta\nabla\hat L$.

    Args:
        parameters: The networks at the start.
        batch: Tokens and labels of each member, labels 1 or -1.
        step_size: The step size $\eta$.
        steps: Number of steps.
        **options: As for :func:`~attnbook.multi_head.head_groups.gradient_descent`.

    Returns:
        The history, with the record ``train_loss`` ``(records, members)``.

    Raises:
        ValueError: If the shapes do not fit, an entry is not finite or a number is outside its range.
        FloatingPointError: If a member diverges.
    """
    tokens, labels = batch
    layer.check(parameters, tokens, labels)
    plus_or_minus_one(labels)
    return head_groups.gradient_descent(
        parameters,
        tokens,
        logistic(labels),
        counts=None,
        step_size=step_size,
        steps=steps,
        record=lambda p: {"train_loss": losses(p, batch)},
        **options,
    )


def descend_to(
    parameters: Parameters, batch: Batch, *, step_size: float, loss: float, most_steps: int
) -> dict[str, Tensor]:
    """Return each member at its first step of gradient descent at which its own loss is at most ``loss``.

    Args:
        parameters: The networks at the start.
        batch: Tokens and labels of each member.
        step_size: The step size.
        loss: Where a member stops, positive.
        most_steps: Steps after which descent gives up.

    Returns:
        The networks.

    Raises:
        ValueError: As for :func:`gradient_descent`, or if the loss is not positive.
        FloatingPointError: If a member does not get there within ``most_steps``.
    """
    positive(loss=loss)
    options: dict[str, Any] = {"record_at": range(most_steps + 1), "stop": lambda now: now["train_loss"] <= loss}
    found = gradient_descent(parameters, batch, step_size=step_size, steps=most_steps, **options)
    if not (losses(found.parameters, batch) <= loss).all():
        raise FloatingPointError(f"loss: a member is still above {loss} after {most_steps} steps")
    return found.parameters


def largest_head_norm(parameters: Parameters) -> Float[Tensor, " members"]:
    r"""Return $\|\tilde\theta\|_{2,\infty}=\max_h\|(U_h,W_h)\|$ of each member.

    Args:
        parameters: The networks.

    Returns:
        One norm for each member.
    """
    return head_groups.squares(parameters).amax(1).sqrt()
