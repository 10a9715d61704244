r"""What one step of mirror descent does to norm, divergence and loss: Lemmas 4, 22, 23, 24 and 27.

Each function takes the weights before and after a step $\nabla\psi(W_+)=\nabla\psi(W)-\eta\nabla\mathcal L(W)$ and
returns the slack of one inequality, in units of what the step moves, $\|\nabla\psi(W_+)-\nabla\psi(W)\|_{q,q}=
\eta\|\nabla\mathcal L(W)\|_{q,q}$ (times a norm of the weights where the inequality has one): positive where it
holds. The gradient enters through the step itself, which keeps all digits where $\eta$ is huge and the gradient tiny.
Formulas are reconstructed: the text available to us has no equations.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnbook.mirror_descent.mirror import (
    Exponents,
    bregman_divergence,
    check_exponents,
    conjugate,
    entrywise_norm,
    mirror_map,
    normalised,
)

__all__ = [
    "cone_slack",
    "growth_slack",
    "loss_slack",
    "needed_slack",
    "step_length",
    "three_point_step_error",
    "upper_growth_slack",
]


def step_length(before: np.ndarray, after: np.ndarray, p: Exponents) -> np.ndarray:
    r"""Return $\|\nabla\psi(W_+)-\nabla\psi(W)\|_{q,q}$, the length of a step where it is taken.

    Args:
        before: Weights, ``(..., rows, columns)``.
        after: Weights one step later.
        p: Exponents above 1.

    Returns:
        Lengths.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    return np.asarray(entrywise_norm(mirror_map(after, p) - mirror_map(before, p), conjugate(p)))


def upper_growth_slack(before: np.ndarray, after: np.ndarray, p: Exponents) -> np.ndarray:
    r"""Return the slack of Lemma 4: $\|W_+\|^{p-1}-\|W\|^{p-1}\le\eta\|\nabla\mathcal L(W)\|_{q,q}$.

    Proof in one line: $\|\nabla\psi(W)\|_{q,q}=\|W\|_{p,p}^{p-1}$, and the triangle inequality (this book's; the paper
    reaches the same order by a longer route).

    Args:
        before: Weights, ``(..., rows, columns)``.
        after: Weights one step later.
        p: Exponents above 1.

    Returns:
        Slack over the length of the step.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    length = step_length(before, after, p)
    return _per(length - _growth(before, after, p), length)


def growth_slack(before: np.ndarray, after: np.ndarray, p: Exponents) -> np.ndarray:
    r"""Return the slack of Lemma 22.

    $\|W_+\|^{p-1}\ge\|W\|^{p-1}+\frac\eta{\|W\|}\langle-\nabla\mathcal L(W),W\rangle$, for every step size.

    Args:
        before: Weights, not zero, ``(..., rows, columns)``.
        after: Weights one step later.
        p: Exponents above 1.

    Returns:
        Slack over the length of the step.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    gained = _along(before, after, normalised(before, p), p)
    return _per(_growth(before, after, p) - gained, step_length(before, after, p))


def loss_slack(
    before: np.ndarray, after: np.ndarray, losses: tuple[np.ndarray, np.ndarray], step_size: np.ndarray, p: Exponents
) -> np.ndarray:
    r"""Return the slack of Lemma 24, divided by $\|W\|$.

    $\frac{p-1}p\big(\|W_+\|^p-\|W\|^p\big)+\eta\big(\mathcal L(W_+)-\mathcal L(W)\big)\le\eta
    \langle-\nabla\mathcal L(W),W\rangle$, for a small step size.

    Args:
        before: Weights, not zero, ``(..., rows, columns)``.
        after: Weights one step later.
        losses: Losses before and after, up to a common constant.
        step_size: Step sizes $\eta$.
        p: Exponents above 1.

    Returns:
        Slack over the length of the step times $\max(\|W\|,\|W_+\|)$.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = check_exponents(p)
    norm, after_norm = entrywise_norm(before, r), entrywise_norm(after, r)
    grown = (r - 1) / r * (after_norm**r - norm**r) + step_size * (losses[1] - losses[0])
    slack = _along(before, after, before, r) - grown
    return _per(slack, step_length(before, after, r) * np.maximum(norm, after_norm))


def cone_slack(
    before: np.ndarray,
    after: np.ndarray,
    target: np.ndarray,
    losses: tuple[np.ndarray, np.ndarray],
    step_size: np.ndarray,
    slack: np.ndarray,
    p: Exponents,
) -> np.ndarray:
    r"""Return the slack of Lemma 27, which holds in the cone and far out.

    The lemma: $\langle\nabla\psi(W_+)-\nabla\psi(W),\bar W_{mm}\rangle$ is at least
    $\frac1{1+\pi}\big(\|W_+\|^{p-1}-\|W\|^{p-1}\big)$ plus
    $\frac\eta{\|W\|}\big(\mathcal L(W_+)-\mathcal L(W)\big)$.

    Args:
        before: Weights, not zero, ``(..., rows, columns)``.
        after: Weights one step later.
        target: Max-margin direction $\bar W_{mm}$.
        losses: Losses before and after, up to a common constant.
        step_size: Step sizes $\eta$.
        slack: $\pi$.
        p: Exponents above 1.

    Returns:
        Slack over the length of the step.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    lost = step_size * (losses[1] - losses[0]) / entrywise_norm(before, p)
    right = _growth(before, after, p) / (1 + slack) + lost
    return _per(_along(before, after, target, p) - right, step_length(before, after, p))


def needed_slack(
    before: np.ndarray,
    after: np.ndarray,
    target: np.ndarray,
    losses: tuple[np.ndarray, np.ndarray],
    step_size: np.ndarray,
    p: Exponents,
) -> np.ndarray:
    r"""Return the smallest $\pi\ge0$ for which the inequality of Lemma 27 holds at a step; see :func:`cone_slack`.

    Args:
        before: Weights, not zero, ``(..., rows, columns)``.
        after: Weights one step later, of a larger norm.
        target: Max-margin direction $\bar W_{mm}$.
        losses: Losses before and after, up to a common constant.
        step_size: Step sizes $\eta$.
        p: Exponents above 1.

    Returns:
        Slacks; infinite where none is large enough.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    lost = step_size * (losses[1] - losses[0]) / entrywise_norm(before, p)
    left = _along(before, after, target, p) - lost
    ratio = _growth(before, after, p) / np.where(left > 0, left, np.nan)
    return np.asarray(np.where(left > 0, np.maximum(ratio - 1, 0.0), np.inf))


def three_point_step_error(
    before: np.ndarray,
    after: np.ndarray,
    other: np.ndarray,
    losses: tuple[np.ndarray, np.ndarray],
    gradient: Float[np.ndarray, "*batch rows columns"],
    step_size: np.ndarray,
    p: Exponents,
) -> np.ndarray:
    r"""Return by how much Lemma 23 fails: left minus right.

    $D_\psi(V,W)=D_\psi(V,W_+)+D_{\psi-\eta\mathcal L}(W_+,W)-\eta\langle\nabla\mathcal L(W),V-W\rangle
    -\eta\mathcal L(W)+\eta\mathcal L(W_+)$.

    Args:
        before: Weights, ``(..., rows, columns)``.
        after: Weights one step later.
        other: Any weights $V$.
        losses: Losses before and after.
        gradient: $\nabla\mathcal L(W)$, computed apart from the step.
        step_size: Step sizes $\eta$.
        p: Exponents above 1.

    Returns:
        Differences; zero up to rounding.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    moved = bregman_divergence(after, before, p)
    lost = losses[1] - losses[0]
    of_loss = lost - (gradient * (after - before)).sum(axis=(-2, -1))
    right = bregman_divergence(other, after, p) + moved - step_size * of_loss + step_size * lost
    right = right - step_size * (gradient * (other - before)).sum(axis=(-2, -1))
    return np.asarray(bregman_divergence(other, before, p) - right)


def _per(slack: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Slack in a unit; a step that moves nothing attains every inequality."""
    return np.asarray(np.divide(slack, unit, out=np.zeros_like(slack), where=unit > 0))


def _growth(before: np.ndarray, after: np.ndarray, p: Exponents) -> np.ndarray:
    r = check_exponents(p)
    return np.asarray(entrywise_norm(after, r) ** (r - 1) - entrywise_norm(before, r) ** (r - 1))


def _along(before: np.ndarray, after: np.ndarray, direction: np.ndarray, p: Exponents) -> np.ndarray:
    """Product of the step and a direction: the step is minus the step size times the gradient."""
    return np.asarray(((mirror_map(after, p) - mirror_map(before, p)) * direction).sum(axis=(-2, -1)))
