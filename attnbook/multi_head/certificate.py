r"""A guarantee for gradient descent whose hypotheses can be met: Theorem 1, every head tracked by itself (this book).

The proof of Theorem 1 bounds the norm of the largest head by the distance that *all* heads travel together. But the
gradient of one head carries a factor $1/\sqrt H$, so no head travels far. Keeping track of that:

Let all decoders at the start have norm at most $B_0$, put $B=B_0+1.3$, and let the target have decoders of norm at
most $B$ and distance $D$. With $\beta_1$ and $\beta_3'$ of
:func:`~attnbook.multi_head.curvature_bounds.loss_constants` at $B$ and $\beta_2'=\beta_3'/\sqrt H+\beta_1^2/4$, the
conclusions of Theorem 1 hold if

.. math:: \sqrt H\ge\tfrac{26}3\beta_3'D^2,\quad\eta\le\frac1{\beta_2'},\quad\eta\hat L(\tilde\theta^{(0)})\le D^2,\quad
          \eta K\hat L(\tilde\theta)\le D^2.

So $H$ is of order $D^4$, and the dimension of the tokens does not enter. With $\eta K\hat L(\tilde\theta)=D^2$ the
bound on the average loss is $2+\frac54$ times the loss of the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from attnbook.multi_head import layer
from attnbook.multi_head.checks import at_least, plus_or_minus_one
from attnbook.multi_head.curvature_bounds import Numbers, loss_constants
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import tangent_margin

__all__ = ["ROOM", "Certificate", "TrackedHeads", "certify", "heads_for", "tracked_heads"]

ROOM = 1.3
r"""Bound on the movement of a single head, more than $\frac{17}4\cdot\frac3{26}\cdot\frac2c$, about 1.27."""
NEEDED_LOSS = math.log(2) / 3.25
"""Loss of a target whose bound is log 2, the loss of a network that always answers zero."""
MOST_HEADS, SMALLEST_LOSS = 1e30, 1e-200


class TrackedHeads(NamedTuple):
    r"""What is allowed when every head is tracked by itself.

    Attributes:
        step_size: Largest step size $1/\beta_2'$.
        distance: Largest distance $D$ of a target.
        head_norm: The bound $B$ on the norm of every decoder.
        curvature: $\beta_3'$ at $B$.
    """

    step_size: Numbers
    distance: Numbers
    head_norm: Numbers
    curvature: Numbers


def tracked_heads(*, n_tokens: int, n_heads: float, token_norm: Numbers, start_head_norm: Numbers) -> TrackedHeads:
    r"""Return the step size and the distance of a target for which Theorem 1 holds, all constants included.

    Args:
        n_tokens: $T$, at least 1.
        n_heads: $H$, at least 1.
        token_norm: $R$, at least 1.
        start_head_norm: $B_0$, at least 0.

    Returns:
        What is allowed.

    Raises:
        ValueError: If a number is outside its range.

    Example:
        >>> allowed = tracked_heads(n_tokens=4, n_heads=1e8, token_norm=1.0, start_head_norm=0.2)
        >>> round(allowed.step_size, 4), round(allowed.distance, 1), allowed.head_norm
        (0.0625, 16.4, 1.5)
    """
    at_least(1, n_heads=n_heads)
    largest, root = start_head_norm + ROOM, math.sqrt(n_heads)
    sizes = {"n_tokens": n_tokens, "dimension": 1, "n_heads": 1, "token_norm": token_norm}
    constants = loss_constants(**sizes, largest_head_norm=largest)
    curvature = constants.dimension_free_curvature
    smoothness = curvature / root + constants.gradient**2 / 4
    return TrackedHeads(1 / smoothness, (3 * root / (26 * curvature)) ** 0.5, largest, curvature)


def heads_for(distance: Numbers, *, n_tokens: int, token_norm: Numbers, start_head_norm: Numbers) -> Numbers:
    r"""Return $(\frac{26}3\beta_3'D^2)^2$ or 1, the heads for which a target at this distance is allowed; not rounded.

    Args:
        distance: $D$, at least 0.
        n_tokens: As for :func:`tracked_heads`.
        token_norm: As there.
        start_head_norm: As there.

    Returns:
        A number, or an array.

    Raises:
        ValueError: If a number is outside its range.
    """
    at_least(0, distance=distance)
    sizes = {"n_tokens": n_tokens, "token_norm": token_norm, "start_head_norm": start_head_norm}
    return np.maximum(1.0, (26 / 3 * tracked_heads(n_heads=1, **sizes).curvature * distance**2) ** 2)


@dataclass(frozen=True)
class Certificate:
    r"""What is guaranteed for gradient descent from a start, or why nothing is.

    Attributes:
        n_heads: Number of heads $H$.
        step_size: The certified step size $\eta$.
        steps: The number of steps $K$ with the smallest bound; 0 if no target is allowed.
        bound: This smallest bound on the average loss of steps 1 to $K$; infinite if no target is allowed.
        fewest_heads: Heads, in the same shares, for which the bound is below $\log2$; a thousandth fewer are too few.
            Infinite if the samples are not separable, or if no number of heads is enough.
        failing: Which hypothesis fails and by how much; empty if the bound is below $\log2$.
        distances: Distances $D$ of the targets that meet all hypotheses but the one on $K$.
        target_losses: Their losses.
    """

    n_heads: float
    step_size: float
    steps: int
    bound: float
    fewest_heads: float
    failing: str
    distances: Float[np.ndarray, " targets"] = field(repr=False)
    target_losses: Float[np.ndarray, " targets"] = field(repr=False)

    def bound_after(self, steps: float) -> float:
        """Return the smallest certified bound on the average loss of steps 1 to ``steps``, eq. (4).

        Infinite if no target meets all hypotheses; ValueError for less than one step.
        """
        at_least(1, steps=steps)
        fits = self.step_size * steps * self.target_losses <= self.distances**2 * (1 + 1e-12)
        bounds = 2 * self.target_losses + 5 * self.distances**2 / (4 * self.step_size * steps)
        return float(bounds[fits].min(initial=math.inf))


def certify(
    tokens: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    start: Mapping[str, ArrayLike | Tensor],
    n_heads: float | Sequence[float],
    *,
    targets: int = 200,
) -> Certificate:
    r"""Return what is guaranteed for gradient descent on the mean logistic loss, or why nothing; constants included.

    The targets are along the direction of largest tangent-kernel margin.

    Args:
        tokens: The training samples $X_i$, ``(samples, tokens, dimension)``.
        labels: 1 or -1, ``(samples,)``.
        start: The different heads at the start: ``decoder (heads, tokens, dimension)`` and ``key_query (heads,
            dimension, dimension)``.
        n_heads: How many heads there are in all, in equal shares of the different ones; or how many of each. For a
            whole network their number. Shares need not be whole numbers.
        targets: How many distances of a target are tried, at least 2; default 200.

    Returns:
        The certificate.

    Raises:
        ValueError: If a shape does not fit, an entry is NaN or infinite, a label is not 1 or -1, or a number is
            outside its range; the message names the argument.

    Example:
        >>> x = np.array([[[1.0, 0.0], [0.0, 0.5]], [[-1.0, 0.0], [0.0, 0.5]]])
        >>> zero = {"decoder": np.zeros((1, 2, 2)), "key_query": np.zeros((1, 2, 2))}
        >>> certify(x, [1, -1], zero, n_heads=1e6).failing
        ''
    """
    at_least(2, targets=targets)
    x, y, groups, counts = _checked(tokens, labels, start, n_heads)
    total, shares = float(counts.sum()), counts / counts.sum()
    head_norm = float(groups["decoder"].square().sum((2, 3)).max().sqrt())
    token_norm = max(1.0, float(x.norm(dim=3).max()))
    sizes: dict[str, Any] = {"n_tokens": x.shape[2], "token_norm": token_norm, "start_head_norm": head_norm}
    allowed = tracked_heads(n_heads=total, **sizes)
    try:
        direction = tangent_margin(groups, x, y, counts=shares).direction
    except ValueError as error:  # not separable, or all gradients are zero: everything else has been checked
        failing = f"separability (P3): the gradients of the outputs at the start: {error}"
        return Certificate(total, allowed.step_size, 0, math.inf, math.inf, failing, *np.zeros((2, 0)))

    def loss(distance: float, heads: float) -> float:  # infinite where a decoder is larger than allowed
        target = {name: tensor + distance / heads**0.5 * direction[name] for name, tensor in groups.items()}
        if target["decoder"].square().sum((2, 3)).max().sqrt() > allowed.head_norm:
            return math.inf
        found = float(logistic(y)(layer.outputs(target, x, counts=heads * shares))[0])
        return max(found, SMALLEST_LOSS)

    def enough(heads: float) -> bool:
        limits = tracked_heads(n_heads=heads, **sizes)
        far_enough = limits.distance**2 >= limits.step_size * loss(0.0, heads)
        return far_enough and loss(limits.distance, heads) < NEEDED_LOSS

    fewest, nearest = _fewest(enough), math.sqrt(allowed.step_size * loss(0.0, total))
    distances = np.geomspace(nearest, max(nearest, allowed.distance), int(targets))
    losses = np.array([loss(distance, total) for distance in distances])
    fits = np.isfinite(losses) & (distances <= allowed.distance)
    distances, losses = distances[fits], losses[fits]
    smallest, longest = min(zip(losses, distances**2 / losses, strict=True), default=(math.inf, 0.0))
    steps = math.ceil(longest / allowed.step_size)
    step_size = float(longest / steps) if steps else allowed.step_size
    do = (
        f"{fewest:.4g} heads do, {fewest / total:.4g} times as many" if fewest < math.inf else "no number of heads does"
    )
    failing = "" if smallest < NEEDED_LOSS else (
        f"heads: {total:.4g} allow targets within a distance of {allowed.distance:.3g}, where the smallest loss is "
        f"{smallest:.4g}, not below log(2) / 3.25; {do}"
    )  # fmt: skip
    return Certificate(total, step_size, steps, 3.25 * float(smallest), fewest, failing, distances, losses)


def _fewest(enough: Any) -> float:
    """The fewest heads that are enough, to a thousandth."""
    low = high = 1.0
    while not enough(high):
        low, high = high, 4 * high
        if high > MOST_HEADS:
            return math.inf
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _checked(tokens: Any, labels: Any, start: Any, n_heads: Any) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
    """Return the arguments of :func:`certify` with a first axis of one member."""
    found = {"tokens": tokens, "labels": labels, "n_heads": n_heads, **{f"start[{n!r}]": t for n, t in start.items()}}
    for name, values in found.items():
        try:
            found[name] = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()[None]
        except (TypeError, ValueError):
            raise ValueError(f"{name}: expected numbers, got {type(values).__name__}") from None
        if not torch.isfinite(found[name]).all():
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinite ones")
    x, y, counts = (found[name] for name in ("tokens", "labels", "n_heads"))
    groups = {name: found[f"start[{name!r}]"] for name in start}
    try:
        different = layer.check(groups, x, y)[1]
        if counts.ndim == 1:
            counts = (counts / different).expand(1, different)
        layer.check(groups, x, counts=counts)
    except ValueError as error:
        raise ValueError(str(error).replace("parameters", "start").replace("counts", "n_heads")) from None
    plus_or_minus_one(y)
    at_least(1, n_heads=float(counts.sum()))
    if not (counts > 0).all():
        raise ValueError(f"n_heads: expected numbers above 0, got {n_heads}")
    return x, y, groups, counts
