r"""What Theorem 1 and Corollary 2 promise for gradient descent, and what they ask for, as the text prints it.

===============================  ====================  =========================================================
paper                            name here             meaning
===============================  ====================  =========================================================
$\gamma$                         ``margin``            tangent-kernel margin at the start (P3), norm $\sqrt2$
$B_\Phi$                         ``output_bound``      bound on outputs at the start, at least 1 (P2)
$\Vert\tilde\theta-\dots\Vert$   ``distance``          distance $D$ of a target from the start
$\Vert\tilde\theta\Vert$         ``head_norm``         norm $B$ of the largest head of the target
$\rho$                           ``smoothness``        one over the step size that Theorem 1 allows
$T$, $d$, $R$, $K$, $\eta$, $H$  ``n_tokens``, ...     tokens, dimension, token norm, steps, step size, heads
===============================  ====================  =========================================================

Condition (3) hides a constant; :func:`order_heads` sets it to 1. :func:`sketch_heads` puts the printed pieces of
Section 6.1 together instead, and :func:`smoothness` is printed there with all its constants.
"""

from __future__ import annotations

import math

from attnbook.multi_head.curvature_bounds import loss_constants
from attnbook.multi_head.generalisation_bounds import target_distance

__all__ = ["final_bound", "order_heads", "regret_bound", "sketch_heads", "smoothness"]


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
    _check(steps=(steps, 1))
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size: expected a finite positive number, got {step_size}")
    return 2 * target_loss + 5 * distance**2 / (4 * step_size * steps)


def final_bound(*, steps: float, step_size: float, margin: float, output_bound: float = 1.0) -> float:
    r"""Return $\frac2K+\frac{5(2B_\Phi+\log K)^2}{4\gamma^2\eta K}$ (Corollary 2).

    Args:
        steps: $K$, at least 1.
        step_size: $\eta$, positive.
        margin: $\gamma$, positive.
        output_bound: $B_\Phi$, at least 1; default 1.

    Returns:
        The bound on the training loss.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(final_bound(steps=1, step_size=1.0, margin=1.0), 12)
        7.0
    """
    distance = float(target_distance(steps=steps, margin=margin, output_bound=output_bound))
    return regret_bound(target_loss=1 / steps, distance=distance, step_size=step_size, steps=steps)


def order_heads(*, n_tokens: int, dimension: int, token_norm: float, head_norm: float, distance: float) -> float:
    r"""Return $(d\sqrt TR^5BD^3)^2$, the heads of condition (3) with its hidden constant set to 1.

    With $B_2^2$ for ``head_norm`` and $g_0(1/K)$ for ``distance`` this is the condition of Corollary 2.

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        token_norm: $R$, at least 1.
        head_norm: $B$, at least 0.
        distance: $D$, at least 0.

    Returns:
        A number of heads, not rounded.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> order_heads(n_tokens=4, dimension=3, token_norm=1.0, head_norm=0.5, distance=2.0)
        576.0
    """
    _check_problem(n_tokens, dimension, token_norm, head_norm, distance)
    return (dimension * math.sqrt(n_tokens) * token_norm**5 * head_norm * distance**3) ** 2


def sketch_heads(*, n_tokens: int, dimension: int, token_norm: float, head_norm: float, distance: float) -> float:
    r"""Return $(18\,\beta_3D^2)^2$, the heads that the proof sketch of Section 6.1 needs, constants included.

    The sketch uses $\sqrt H\ge2\beta_3\|\theta-\theta_k\|^2$, eq. (18), and $\|\theta_k-\theta\|\le3D$ (Lemma 10); with
    these no head is larger than $B+3D$, where $\beta_3=2\sqrt{Td}\,R^3(3\sqrt dR^2(B+3D)+1)$ (Corollary 1).

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        token_norm: $R$, at least 1.
        head_norm: $B$, at least 0.
        distance: $D$, at least 0.

    Returns:
        A number of heads, at least 1, not rounded.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> sketch_heads(n_tokens=1, dimension=4, token_norm=1.0, head_norm=1.0, distance=1.0)  # (18 * 4 * 25)**2
        3240000.0
    """
    _check_problem(n_tokens, dimension, token_norm, head_norm, distance)
    constants = loss_constants(
        n_tokens=n_tokens,
        dimension=dimension,
        n_heads=1,
        token_norm=token_norm,
        largest_head_norm=head_norm + 3 * distance,
    )
    return max(1.0, (18 * constants.curvature * distance**2) ** 2)


def smoothness(
    *, n_tokens: int, dimension: int, n_heads: float, token_norm: float, head_norm: float, distance: float
) -> float:
    r"""Return $\rho$ as Section 6.1 prints it; Theorem 1 allows step sizes up to $\min(1,1/\rho)$.

    .. math:: \rho=\Big(\frac{2\sqrt T\,dR^3}{\sqrt H}+\frac{TR^2}4\Big)\alpha^2,\qquad
              \alpha=3\sqrt dR^2\big[3\sqrt TR^3(3D+B)+2\sqrt TR\big].

    Args:
        n_tokens: $T$, at least 1.
        dimension: $d$, at least 1.
        n_heads: $H$, at least 1.
        token_norm: $R$, at least 1.
        head_norm: $B$, at least 0.
        distance: $D$, at least 0.

    Returns:
        $\rho$.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> smoothness(n_tokens=4, dimension=1, n_heads=16, token_norm=1.0, head_norm=0.0, distance=0.0)  # 2 * 12**2
        288.0
    """
    _check(n_heads=(n_heads, 1))
    _check_problem(n_tokens, dimension, token_norm, head_norm, distance)
    root, r = math.sqrt(n_tokens), token_norm
    alpha = 3 * math.sqrt(dimension) * r**2 * (3 * root * r**3 * (3 * distance + head_norm) + 2 * root * r)
    return (2 * root * dimension * r**3 / math.sqrt(n_heads) + n_tokens * r**2 / 4) * alpha**2


def _check_problem(n_tokens: int, dimension: int, token_norm: float, head_norm: float, distance: float) -> None:
    _check(n_tokens=(n_tokens, 1), dimension=(dimension, 1), token_norm=(token_norm, 1))
    _check(head_norm=(head_norm, 0), distance=(distance, 0))


def _check(**numbers: tuple[float, float]) -> None:
    """Check that numbers are finite and at least as large as they must be."""
    for name, (number, least) in numbers.items():
        if not least <= number < math.inf:
            raise ValueError(f"{name}: expected a finite number of at least {least}, got {number}")
