r"""A guarantee for gradient descent whose hypotheses can be met: Theorem 1, every head tracked by itself (this book).

The proof of Theorem 1 bounds the norm of the largest head by the distance that *all* heads travel together. But the
gradient of one head carries a factor $1/\sqrt H$, so no head travels far. Keeping track of that:

Let all decoders at the start have norm at most $B_0$, put $B=B_0+\frac58$, and let the target have decoders of norm at
most $B$ and distance $D$. With $\beta_1$ and $\beta_3'$ of
:func:`~attnbook.multi_head.curvature_bounds.loss_constants` at $B$ and $\beta_2'=\beta_3'/\sqrt H+\beta_1^2/4$, the
conclusions of Theorem 1 hold if

.. math:: \sqrt H\ge18\,\beta_3'D^2,\quad\eta\le\frac1{\beta_2'},\quad\eta\hat L(\tilde\theta^{(0)})\le D^2,\quad
          \eta K\hat L(\tilde\theta)\le D^2.

The chapter on training bounds has the proof: no head moves by more than $\frac58$.

:func:`certify` looks for the best target along the direction of largest tangent-kernel margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from attnbook.core.ensemble import Parameters
from attnbook.multi_head import layer
from attnbook.multi_head.checks import at_least, plus_or_minus_one
from attnbook.multi_head.curvature_bounds import Numbers, loss_constants
from attnbook.multi_head.objectives import logistic
from attnbook.multi_head.tangent_kernel import tangent_margin

__all__ = ["ROOM", "Certificate", "TrackedHeads", "certify", "heads_for", "tracked_heads"]

ROOM = 5 / 8
"""How far a single head may move; above $(4.25/18)(2/c)$, about 0.61."""
SOME_USE = math.log(2)
"""The loss of a network that always answers zero: a bound above it says nothing."""
# A target's bound is lowest after the most steps that it allows: 2 + 5/4 times its loss.
NEEDED_LOSS = SOME_USE / 3.25
# So many heads allow any distance that is tried.
MOST_HEADS = 1e30
# Outputs computed at once; bounds the memory that large networks take.
AT_ONCE = 2_000_000


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

    For $T$, $H$ and $R$, at least 1, and $B_0$, at least 0; other numbers are a ValueError. Nothing depends on the
    dimension of the tokens.

    Example:
        >>> allowed = tracked_heads(n_tokens=4, n_heads=1e8, token_norm=1.0, start_head_norm=0.375)
        >>> round(allowed.step_size, 3), round(allowed.distance, 1), allowed.head_norm
        (0.111, 12.5, 1.0)
    """
    at_least(1, n_heads=n_heads)
    largest = start_head_norm + ROOM
    sizes = {"n_tokens": n_tokens, "dimension": 1, "n_heads": 1, "token_norm": token_norm}
    constants, root = loss_constants(**sizes, largest_head_norm=largest), math.sqrt(n_heads)
    curvature = constants.dimension_free_curvature
    smoothness = curvature / root + constants.gradient**2 / 4
    return TrackedHeads(1 / smoothness, (root / (18 * curvature)) ** 0.5, largest, curvature)


def heads_for(distance: Numbers, *, n_tokens: int, token_norm: Numbers, start_head_norm: Numbers) -> Numbers:
    r"""Return $(18\,\beta_3'D^2)^2$ or 1, the heads for which a target at the distance $D\ge0$ is allowed; not rounded.

    Other arguments as for :func:`tracked_heads`; numbers or arrays.
    """
    at_least(0, distance=distance)
    allowed = tracked_heads(n_tokens=n_tokens, n_heads=1, token_norm=token_norm, start_head_norm=start_head_norm)
    return np.maximum(1.0, (18 * allowed.curvature * distance**2) ** 2)


@dataclass(frozen=True)
class Certificate:
    r"""What is guaranteed for gradient descent from a start, or why nothing is.

    Attributes:
        n_heads: Number of heads $H$.
        step_size: The certified step size $\eta=1/\beta_2'$.
        steps: The number of steps $K$ with the smallest bound; 0 if no target is allowed.
        bound: This smallest bound on the average loss; infinite if no target is allowed.
        fewest_heads: The fewest heads, in the same shares, for which the bound is below $\log2$, to a thousandth and
            rounded up; more than ``n_heads`` if those are too few. Infinite if the samples are not separable, or if
            no number of heads is enough.
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
        return _best_bound(self.distances, self.target_losses, self.step_size, steps)


def certify(
    tokens: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    start: Mapping[str, ArrayLike | Tensor],
    n_heads: float | Sequence[float],
    *,
    targets: int = 200,
) -> Certificate:
    r"""Return what is guaranteed for gradient descent on the mean logistic loss, or why nothing; constants included.

    Args:
        tokens: The training samples $X_i$, ``(samples, tokens, dimension)``.
        labels: 1 or -1, ``(samples,)``.
        start: The different heads at the start: ``decoder (heads, tokens, dimension)`` and ``key_query (heads,
            dimension, dimension)``.
        n_heads: How many heads there are in all, in equal shares of the different ones; or how many of each. For a
            whole network their number. Shares need not be whole numbers.
        targets: How many distances of a target are tried, at least 2; default 200.

    Raises:
        ValueError: If a shape does not fit, an entry is NaN or infinite, a label is not 1 or -1, or a number is
            outside its range; the message names the argument.

    Example:
        >>> x = np.array([[[1.0, 0.0], [0.0, 0.5]], [[-1.0, 0.0], [0.0, 0.5]]])
        >>> zero = {"decoder": np.zeros((1, 2, 2)), "key_query": np.zeros((1, 2, 2))}
        >>> certify(x, [1, -1], zero, n_heads=1e6).failing
        ''
    """
    if targets < 2:
        raise ValueError(f"targets: expected at least 2, got {targets}")
    problem = _problem(tokens, labels, start, n_heads)
    total = float(problem.counts.sum())
    try:
        found = problem.best(total, targets)
    except ValueError as error:  # not separable, or all gradients are zero: everything else has been checked
        failing = f"separability (P3): the gradients of the outputs at the start: {error}"
        step_size = tracked_heads(n_heads=total, **problem.sizes).step_size
        return Certificate(total, step_size, 0, math.inf, math.inf, failing, *np.zeros((2, 0)))
    useful = found.bound < SOME_USE
    fewest = problem.fewest_heads(1.0 if useful else total)
    share = f"{fewest:.4g} heads do, {fewest / total:.4g} times as many"
    enough = share if math.isfinite(fewest) else "no number of heads in these shares does"
    failing = "" if useful else (
        f"heads: {total:.4g} allow targets within a distance of {found.allowed.distance:.3g}, and the best bound that "
        f"one of them gives is {found.bound:.4g}, not below log 2 (its loss must be below log(2) / 3.25 for that); "
        f"{enough}"
    )  # fmt: skip
    return Certificate(total, found.allowed.step_size, found.steps, found.bound, fewest, failing, *found.tried)


def _best_bound(distances: np.ndarray, losses: np.ndarray, step_size: float, steps: float) -> float:
    """The smallest bound (4) over the targets that allow so many steps; rounding of the last one is forgiven."""
    fits = step_size * steps * losses <= distances**2 * (1 + 1e-12)
    bounds = 2 * losses + 5 * distances**2 / (4 * step_size * steps)
    return float(bounds[fits].min(initial=math.inf))


class _Best(NamedTuple):
    """The best bound for a number of heads."""

    allowed: TrackedHeads
    steps: int
    bound: float
    tried: tuple[np.ndarray, np.ndarray]  # distances and losses of the targets that are allowed


@dataclass(frozen=True)
class _Problem:
    """Checked arguments of :func:`certify`, with a first axis of one member, and targets for any number of heads.

    The targets lie along the direction of largest margin; shares of the different heads stay as they are.
    """

    tokens: Tensor
    labels: Tensor
    start: Parameters
    counts: Tensor

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """What the constants depend on."""
        token_norm = max(1.0, float(self.tokens.norm(dim=3).max()))
        head_norm = float(self.start["decoder"].square().sum((2, 3)).max().sqrt())
        return {"n_tokens": self.tokens.shape[2], "token_norm": token_norm, "start_head_norm": head_norm}

    @cached_property
    def shares(self) -> Tensor:
        return self.counts / self.counts.sum()

    @cached_property
    def direction(self) -> Parameters:
        """That of one head gets shorter with more heads; this one is for a single head in all."""
        return tangent_margin(self.start, self.tokens, self.labels, counts=self.shares).direction

    def losses(self, distances: np.ndarray, n_heads: float | np.ndarray) -> Float[np.ndarray, " distances"]:
        """The losses of targets at these distances; infinite where a decoder is larger than allowed."""
        heads, found = torch.as_tensor(n_heads, device="cpu", dtype=torch.float64).expand(len(distances)), []
        at_once = max(1, AT_ONCE // (self.tokens.shape[1] * self.tokens.shape[2] ** 2 * self.shares.shape[1]))
        for far, many in zip(*(t.split(at_once) for t in (torch.from_numpy(distances), heads)), strict=True):
            moved = (far / many.sqrt())[:, None, None, None]
            target = {name: tensor + moved * self.direction[name] for name, tensor in self.start.items()}
            tokens, labels = (t.expand(len(far), *t.shape[1:]) for t in (self.tokens, self.labels))
            loss = logistic(labels)(layer.outputs(target, tokens, counts=many[:, None] * self.shares))[0]
            too_large = target["decoder"].square().sum((2, 3)).amax(1).sqrt() > self.sizes["start_head_norm"] + ROOM
            found.append(torch.where(too_large, math.inf, loss))
        return torch.cat(found).numpy()

    def best(self, n_heads: float, targets: int) -> _Best:
        """Try targets up to the largest distance; the best of them, after the most steps that it allows."""
        allowed, start_loss = tracked_heads(n_heads=n_heads, **self.sizes), float(self.losses(np.zeros(1), n_heads)[0])
        nearest = math.sqrt(allowed.step_size * start_loss)
        distances = np.geomspace(nearest, max(nearest, allowed.distance), targets)
        losses = self.losses(distances, n_heads)
        fits = np.isfinite(losses) & (distances <= allowed.distance * (1 + 1e-12))
        distances, losses = distances[fits], losses[fits]
        longest = np.floor(distances**2 / (allowed.step_size * losses))
        with np.errstate(divide="ignore"):
            own = 2 * losses + 5 * distances**2 / (4 * allowed.step_size * longest)
        steps = int(longest[own.argmin()]) if len(losses) else 0
        bound = _best_bound(distances, losses, allowed.step_size, steps) if steps else math.inf
        return _Best(allowed, steps, bound, (distances, losses))

    def fewest_heads(self, above: float) -> float:
        """The fewest heads with a bound that says something; at least as many as are given."""
        low = high = max(above, self.least_heads())
        more = 1e-3
        # The farthest target alone: more of them can only lower the bound.
        while high < MOST_HEADS and self.best(high, 2).bound >= SOME_USE:
            low, high, more = high, _rounded_up(high * (1 + more)), 2 * more
        if high >= MOST_HEADS:
            return math.inf
        while high > _rounded_up(low * 1.001):
            middle = _rounded_up(math.sqrt(low * high))
            low, high = (low, middle) if self.best(middle, 2).bound < SOME_USE else (middle, high)
        return high

    def least_heads(self) -> float:
        """The fewest heads that allow a target of small enough loss, were steps not whole numbers."""
        low, high = 1e-2, 1e6
        for _ in range(2):
            distances = np.geomspace(low, high, 500)
            heads = heads_for(distances, **self.sizes)
            good = self.losses(distances, heads) < NEEDED_LOSS
            if not good.any():
                return math.inf
            first = int(good.argmax())
            low, high = distances[max(first - 1, 0)], distances[first]
        return float(heads[max(first - 1, 0)])


def _rounded_up(heads: float) -> float:
    """A whole number of heads, with four digits that are not zero at most."""
    unit = max(1.0, 10.0 ** (math.floor(math.log10(heads)) - 3))
    return math.ceil(heads / unit) * unit


def _problem(tokens: Any, labels: Any, start: Mapping[str, Any], n_heads: float | Sequence[float]) -> _Problem:
    """Check the arguments of :func:`certify` and name the one that is wrong."""
    x, y = _finite("tokens", tokens), _finite("labels", labels)
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"tokens: expected (samples, tokens, dimension), at least one of each, got {tuple(x.shape)}")
    if tuple(y.shape) != x.shape[:1]:
        raise ValueError(f"labels: expected one for each of {len(x)} samples, got shape {tuple(y.shape)}")
    plus_or_minus_one(y)
    if set(start) != {"decoder", "key_query"}:
        raise ValueError(f"start: expected 'decoder' and 'key_query', got {sorted(start)}")
    decoder, key_query = (_finite(f"start[{name!r}]", start[name]) for name in ("decoder", "key_query"))
    groups, parameters = len(decoder) if decoder.ndim else 0, {"decoder": decoder[None], "key_query": key_query[None]}
    for name, rows in (("decoder", x.shape[1]), ("key_query", x.shape[2])):
        got, shape = tuple(parameters[name].shape[1:]), (groups, rows, x.shape[2])
        if got != shape or not groups:
            raise ValueError(f"start[{name!r}]: expected {shape}, at least one head, got {got}")
    many = _finite("n_heads", n_heads)
    counts = (many / groups).expand(groups) if many.ndim == 0 else many
    if tuple(counts.shape) != (groups,) or not (counts > 0).all() or counts.sum() < 1:
        raise ValueError(
            f"n_heads: expected a number of at least 1, or one above 0 for each of {groups}, got {n_heads}"
        )
    return _Problem(x[None], y[None], parameters, counts[None])


def _finite(name: str, values: ArrayLike | Tensor) -> Tensor:
    """A tensor in double precision on the CPU without NaN or infinity."""
    try:
        found = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: expected numbers, got {type(values).__name__}: {error}") from error
    if wrong := int((~torch.isfinite(found)).sum()):
        raise ValueError(f"{name}: expected finite numbers, {wrong} of {found.numel()} are NaN or infinite")
    return found
