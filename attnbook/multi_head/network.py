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

A *member* is one network with its own samples. All members of a stack have the same number of heads.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from attnbook.core import ensemble, update_rules
from attnbook.core.ensemble import History, Parameters
from attnbook.core.runtime import Progress, threads
from attnbook.multi_head import layer
from attnbook.multi_head.objectives import logistic

__all__ = [
    "descend_to",
    "draw_parameters",
    "gradient_descent",
    "largest_head_norm",
    "loss_and_gradient",
    "losses",
    "predict",
]

Batch = tuple[Float[Tensor, "members samples tokens dimension"], Float[Tensor, "members samples"]]


def draw_parameters(
    n_heads: int, n_tokens: int, dimension: int, *, scale: float, rng: np.random.Generator
) -> dict[str, Float[np.ndarray, "heads rows dimension"]]:
    r"""Draw one network with independent normal entries.

    Args:
        n_heads: Number of heads $H$, at least 1.
        n_tokens: Tokens of a sample, at least 1.
        dimension: Dimension of a token, at least 1.
        scale: Standard deviation of every entry, at least 0.
        rng: Source of randomness. The first heads are the same whatever ``n_heads`` is.

    Returns:
        ``decoder (heads, tokens, dimension)`` and ``key_query (heads, dimension, dimension)``.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> two = draw_parameters(2, 5, 3, scale=0.5, rng=np.random.default_rng(0))
        >>> two["decoder"].shape, two["key_query"].shape
        ((2, 5, 3), (2, 3, 3))
    """
    for name, size in {"n_heads": n_heads, "n_tokens": n_tokens, "dimension": dimension}.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {size!r}")
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale: expected a finite number of at least 0, got {scale}")
    entries = scale * rng.standard_normal((n_heads, n_tokens + dimension, dimension))
    return {"decoder": entries[:, :n_tokens], "key_query": entries[:, n_tokens:]}


def predict(
    parameters: Parameters, tokens: Float[Tensor, "members samples tokens dimension"]
) -> Float[Tensor, "members samples"]:
    r"""Return $\tilde\Phi(X_i)$ of each member for its own samples.

    Args:
        parameters: As in the table above.
        tokens: Samples of each member.

    Returns:
        Predictions; their sign is the predicted label.

    Raises:
        ValueError: If the shapes do not fit.
    """
    return layer.outputs(parameters, tokens)


def losses(parameters: Parameters, batch: Batch) -> Float[Tensor, " members"]:
    r"""Return the logistic loss $\hat L=\frac1n\sum_i\log(1+e^{-y_i\tilde\Phi(X_i)})$ of each member.

    Args:
        parameters: As in the table above.
        batch: Samples and labels of each member.

    Returns:
        The losses; differentiable, for automatic differentiation of any order.

    Raises:
        ValueError: If the shapes do not fit.
    """
    tokens, labels = batch
    layer.check(parameters, tokens, labels)
    return -logsigmoid(labels * predict(parameters, tokens)).mean(1)


def loss_and_gradient(parameters: Parameters, batch: Batch) -> tuple[Float[Tensor, " members"], Parameters]:
    r"""Return the logistic loss of each member and its gradient, in closed form.

    Args:
        parameters: As in the table above.
        batch: Samples and labels of each member.

    Returns:
        The losses and the gradients.

    Raises:
        ValueError: If the shapes do not fit.
    """
    tokens, labels = batch
    layer.check(parameters, tokens, labels)
    return layer.value_and_gradient(parameters, tokens, logistic(labels))


def gradient_descent(
    parameters: Parameters,
    batch: Batch,
    *,
    step_size: float,
    steps: int,
    progress: Progress | None = None,
) -> History:
    r"""Train every member by plain gradient descent, $\tilde\theta^{(k+1)}=\tilde\theta^{(k)}-\eta\nabla\hat L$.

    Args:
        parameters: Start, as in the table above; copied, not changed.
        batch: Samples and labels of each member.
        step_size: The constant $\eta$, positive.
        steps: Number of steps, at least 1.
        progress: Told (steps done, steps in all).

    Returns:
        History with the record ``train_loss`` ``(records, members)`` and the final parameters.

    Raises:
        ValueError: If the shapes do not fit, an entry is not finite, a label is not 1 or -1, or a number is outside
            its range.
        FloatingPointError: If a member diverges.
    """
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size: expected a finite positive number, got {step_size}")
    tokens, labels = batch
    layer.check(parameters, tokens, labels)
    if not torch.isfinite(tokens).all():
        raise ValueError(f"tokens: {int((~torch.isfinite(tokens)).sum())} of {tokens.numel()} entries are not finite")
    if not (labels.abs() == 1).all():
        raise ValueError(f"labels: expected 1 or -1, got {labels[labels.abs() != 1][0].item()}")
    # Small matrices: a second thread costs more than it gains.
    with threads(1):
        return ensemble.train(
            loss_and_gradient,
            parameters,
            lambda step: batch,
            optimizer=update_rules.SGD(step_size),
            steps=steps,
            record=lambda p: {"train_loss": losses(p, batch)},
            progress=progress,
        )


def descend_to(
    parameters: Parameters, batch: Batch, *, step_size: float, loss: float, most_steps: int
) -> dict[str, Tensor]:
    """Train every member by gradient descent until its own loss is at most a given one.

    Args:
        parameters: Start, as in the table above; copied, not changed.
        batch: Samples and labels of each member.
        step_size: The constant step size, positive.
        loss: A member stops at the first step at which its loss is at most this.
        most_steps: Steps after which to give up.

    Returns:
        The parameters of each member where it stopped.

    Raises:
        ValueError: If the step size or the loss is not positive.
        FloatingPointError: If a member does not get there.
    """
    for name, number in {"step_size": step_size, "loss": loss}.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name}: expected a finite positive number, got {number}")
    found = {name: tensor.clone() for name, tensor in parameters.items()}
    with threads(1):
        for _ in range(most_steps + 1):
            losses_now, gradients = loss_and_gradient(found, batch)
            moving = losses_now > loss
            if not moving.any() and torch.isfinite(losses_now).all():
                return found
            rate = step_size * moving.to(losses_now.dtype)
            found = {name: found[name] - rate[:, None, None, None] * g for name, g in gradients.items()}
    raise FloatingPointError(f"loss: a member is still above {loss} after {most_steps} steps")


def largest_head_norm(parameters: Parameters) -> Float[Tensor, " members"]:
    r"""Return $\|\tilde\theta\|_{2,\infty}=\max_h\|(U_h,W_h)\|$ of each member."""
    squares = parameters["decoder"].square().sum((2, 3)) + parameters["key_query"].square().sum((2, 3))
    return squares.amax(1).sqrt()
