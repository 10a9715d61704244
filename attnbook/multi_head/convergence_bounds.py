r"""What Theorem 1 and Corollary 2 promise for gradient descent, and what they ask for.

=================  ====================  ===================================================
paper              name here             meaning
=================  ====================  ===================================================
$\gamma$           ``margin``            tangent-kernel margin at the start (P3)
$B_\Phi$           ``output_bound``      bound on outputs at the start, at least 1 (P2)
$B_2$              ``head_bound``        bound on the norm of a head there, at least 1 (P1)
$g_0(1/K)$         ``target_distance``   distance of the target of Corollary 2
$K$, $\eta$, $H$   ``steps``, ...        steps, step size, heads
$D$                ``distance``          distance of any target from the start
=================  ====================  ===================================================

The margin is that of directions of norm $\sqrt2$. The conditions are stated up to constants. *Order* below means that
the hidden constant is set to 1; all readings stand side by side in :mod:`~attnbook.multi_head.readings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "GoodStart",
    "final_bound",
    "informative_steps",
    "order_heads",
    "order_step_size",
    "reconstructed_step_size",
    "regret_bound",
    "scaled_worst_loss",
    "target_distance",
    "theorem_step_size",
]


@dataclass(frozen=True)
class GoodStart:
    r"""A start with properties P1 to P3 (Definition 1).

    Attributes:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        token_norm: $R$, at least 1.
        margin: $\gamma$, positive.
        output_bound: $B_\Phi$, at least 1; default 1.
        head_bound: $B_2$, at least 1; default 1.
    """

    n_tokens: int
    dimension: int
    token_norm: float
    margin: float
    output_bound: float = 1.0
    head_bound: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n_tokens", "dimension", "token_norm", "output_bound", "head_bound"):
            if not 1 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 1, got {getattr(self, name)}")
        if not 0 < self.margin < math.inf:
            raise ValueError(f"margin: expected a finite positive number, got {self.margin}")


def regret_bound(*, target_loss: float, distance: float, step_size: float, steps: float) -> float:
    r"""Return $2\hat L(\tilde\theta)+\frac{5\|\tilde\theta-\tilde\theta^{(0)}\|^2}{4\eta K}$, eq. (4) of Theorem 1.

    Args:
        target_loss: Loss of the target.
        distance: Its distance from the start.
        step_size: $\eta$, positive.
        steps: $K$, at least 1.

    Returns:
        The bound on the average training loss.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> regret_bound(target_loss=0.25, distance=2.0, step_size=0.5, steps=100)
        0.6
    """
    _check(steps=steps, step_size=step_size)
    return 2 * target_loss + 5 * distance**2 / (4 * step_size * steps)


def target_distance(start: GoodStart, steps: float) -> float:
    r"""Return $g_0(1/K)=(2B_\Phi+\log K)/\gamma$ (Corollary 2).

    Args:
        start: The start.
        steps: $K$, at least 1.

    Returns:
        The distance at which the paper places a target of loss $1/K$.

    Raises:
        ValueError: If ``steps`` is below 1.

    Example:
        >>> target_distance(GoodStart(4, 6, 1.0, margin=0.5), 1)
        4.0
    """
    _check(steps=steps)
    return (2 * start.output_bound + math.log(steps)) / start.margin


def final_bound(start: GoodStart, steps: float, step_size: float) -> float:
    r"""Return $\frac2K+\frac{5(2B_\Phi+\log K)^2}{4\gamma^2\eta K}$ (Corollary 2).

    Args:
        start: The start.
        steps: $K$, at least 1.
        step_size: $\eta$, positive.

    Returns:
        The bound on the training loss.

    Raises:
        ValueError: If an argument is outside its range.
    """
    distance = target_distance(start, steps)
    return regret_bound(target_loss=1 / steps, distance=distance, step_size=step_size, steps=steps)


def order_heads(start: GoodStart, steps: float) -> float:
    r"""Return $(d\sqrt TR^5B_2^2\,g_0(1/K)^3)^2$, the heads of condition (3) with constant 1.

    Args:
        start: The start.
        steps: $K$, at least 1.

    Returns:
        A number of heads.

    Raises:
        ValueError: If ``steps`` is below 1.
    """
    scale = start.dimension * math.sqrt(start.n_tokens) * start.token_norm**5 * start.head_bound**2
    return (scale * target_distance(start, steps) ** 3) ** 2


def theorem_step_size(start: GoodStart, steps: float) -> float:
    r"""Return one over $d^{3/2}T^{3/2}R^{13}B_2^2\,g_0^2$, the order of $\rho$ in Theorem 1 with constant 1, at most 1.

    Args:
        start: The start; its heads stand for those of the target.
        steps: $K$, at least 1.

    Returns:
        A step size.

    Raises:
        ValueError: If ``steps`` is below 1.
    """
    return 1 / max(1.0, _size(start) * (start.head_bound * target_distance(start, steps)) ** 2)


def order_step_size(start: GoodStart, steps: float) -> float:
    r"""Return one over $d^{3/2}T^{3/2}R^{13}g_0(1/K)^4$, the order of $\rho$ in Corollary 2 with constant 1, at most 1.

    Args:
        start: The start.
        steps: $K$, at least 1.

    Returns:
        A step size.

    Raises:
        ValueError: If ``steps`` is below 1.
    """
    return 1 / max(1.0, _size(start) * target_distance(start, steps) ** 4)


def reconstructed_step_size(start: GoodStart, steps: float, n_heads: float) -> float:
    r"""Return $1/\rho$ with the $\rho$ that we reconstructed for the text's proof, constants included.

    $\rho=\big(\frac{2\sqrt{Td}R^3}{\sqrt H}+\frac{TR^2}4\big)\alpha^2$ with
    $\alpha=3\sqrt dR^2[3\sqrt TR^3(3g_0+B_2)+2\sqrt TR]$, which bounds $3\sqrt dR^2\|\tilde\theta\|_{2,\infty}+1$
    one step after the largest head that the theorem allows for. It is our reconstruction for the text's proof and far
    above $\beta_2$, which is all that the four steps of the chapter ask for
    (:func:`~attnbook.multi_head.readings.chain_step_size`).

    Args:
        start: The start.
        steps: $K$, at least 1.
        n_heads: $H$, at least 1.

    Returns:
        A step size, at most 1.

    Raises:
        ValueError: If an argument is outside its range.
    """
    _check(steps=steps, n_heads=n_heads)
    root, r, d = math.sqrt(start.n_tokens), start.token_norm, start.dimension
    largest = 3 * target_distance(start, steps) + start.head_bound
    alpha = 3 * math.sqrt(d) * r**2 * (3 * root * r**3 * largest + 2 * root * r)
    rho = (2 * root * math.sqrt(d) * r**3 / math.sqrt(n_heads) + start.n_tokens * r**2 / 4) * alpha**2
    return 1 / max(1.0, rho)


def informative_steps(bound: Callable[[float], float], *, level: float = math.log(2)) -> float:
    r"""Return the number of steps from which on a bound stays below a level.

    Args:
        bound: Steps to bound; once it falls below the level it stays there.
        level: Default $\log2$, the loss of a constant output.

    Returns:
        The number of steps, not rounded.

    Raises:
        ValueError: If the bound is not below the level after $10^{60}$ steps.

    Example:
        >>> round(informative_steps(lambda steps: 1000 / steps, level=0.5))
        2000
    """
    low, high = 0.0, 60 * math.log(10)
    if not bound(math.exp(high)) < level:
        raise ValueError(f"bound: still {bound(math.exp(high)):.2g} after 1e60 steps, expected below {level:.2g}")
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if bound(math.exp(middle)) < level else (middle, high)
    return math.exp(high)


def scaled_worst_loss(start: GoodStart, steps: float, *, stretch: float = 1.0) -> float:
    r"""Return $K\,\ell(-B_\Phi+s\,g_0(1/K)\,\gamma/\sqrt2)$: is the linearised target as good as Corollary 2 needs?

    A target direction of norm $\sqrt2$ has margin $\gamma$, so a distance $D$ gains $D\gamma/\sqrt2$; the worst sample
    may start at $-B_\Phi$.

    Args:
        start: The start.
        steps: $K$, at least 1.
        stretch: The factor $s$ on the distance, positive; default 1, as in the text available to us.

    Returns:
        At most 1 where the loss $1/K$ is reached.

    Raises:
        ValueError: If an argument is outside its range.
    """
    if not 0 < stretch < math.inf:
        raise ValueError(f"stretch: expected a finite positive number, got {stretch}")
    gained = stretch * target_distance(start, steps) * start.margin / math.sqrt(2)
    return steps * math.log1p(math.exp(start.output_bound - gained))


def _size(start: GoodStart) -> float:
    return (start.dimension * start.n_tokens) ** 1.5 * start.token_norm**13


def _check(**numbers: float) -> None:
    for name, number in numbers.items():
        least = 0 if name == "step_size" else 1
        if not (number > 0 and least <= number < math.inf):
            raise ValueError(
                f"{name}: expected a finite number {'above 0' if least == 0 else 'of at least 1'}, got {number}"
            )
