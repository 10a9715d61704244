r"""What one step of mirror descent does to norm, divergence and loss: Lemmas 4, 22, 23, 24 and 27.

Functions take the weights before and after a step $\nabla\psi(W_+)=\nabla\psi(W)-\eta\nabla\mathcal L(W)$. Slacks are
positive where an inequality holds, in units of what the step moves,
$\|\nabla\psi(W_+)-\nabla\psi(W)\|_{q,q}=\eta\|\nabla\mathcal L(W)\|_{q,q}$. The gradient enters through the step
itself, which keeps all digits where $\eta$ is huge and the gradient tiny. Formulas are reconstructed.
"""

from __future__ import annotations

from typing import NamedTuple

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

__all__ = ["StepSlacks", "needed_slack", "step_slacks", "three_point_step_error"]


class StepSlacks(NamedTuple):
    r"""The length of each step and the slacks of three lemmas, in units of it.

    Attributes:
        length: $\|\nabla\psi(W_+)-\nabla\psi(W)\|_{q,q}$.
        lemma_4: Of $\|W_+\|^{p-1}-\|W\|^{p-1}\le\eta\|\nabla\mathcal L(W)\|_{q,q}$. It follows in one line from
            $\|\nabla\psi(W)\|_{q,q}=\|W\|_{p,p}^{p-1}$ and the triangle inequality (this book's; the paper reaches the
            same order by a longer route).
        lemma_22: Of $\|W_+\|^{p-1}\ge\|W\|^{p-1}+\frac\eta{\|W\|}\langle-\nabla\mathcal L(W),W\rangle$, which needs no
            small step.
        lemma_24: Of $\frac{p-1}p\big(\|W_+\|^p-\|W\|^p\big)+\eta\big(\mathcal L(W_+)-\mathcal L(W)\big)\le\eta
            \langle-\nabla\mathcal L(W),W\rangle$, for a small step; also divided by the larger norm of the weights.
    """

    length: np.ndarray
    lemma_4: np.ndarray
    lemma_22: np.ndarray
    lemma_24: np.ndarray


def step_slacks(
    before: np.ndarray, after: np.ndarray, losses: tuple[np.ndarray, np.ndarray], step_size: np.ndarray, p: Exponents
) -> StepSlacks:
    """Return the slacks of Lemmas 4, 22 and 24 at steps.

    Args:
        before: Weights, not zero, ``(..., rows, columns)``.
        after: Weights one step later.
        losses: Losses before and after, up to a common constant.
        step_size: Step sizes.
        p: Exponents above 1.

    Returns:
        One number per step each; a step that moves nothing attains every inequality.

    Raises:
        ValueError: If an exponent is not a finite number above 1.
    """
    r = check_exponents(p)
    length = np.asarray(entrywise_norm(mirror_map(after, r) - mirror_map(before, r), conjugate(r)))
    norm, after_norm, growth = entrywise_norm(before, r), entrywise_norm(after, r), _growth(before, after, r)
    along = _along(before, after, normalised(before, r), r)
    left = (r - 1) / r * (after_norm**r - norm**r) + step_size * (losses[1] - losses[0])

    def per(slack: np.ndarray, unit: np.ndarray) -> np.ndarray:
        return np.asarray(np.divide(slack, unit, out=np.zeros_like(slack), where=unit > 0))

    largest = np.maximum(norm, after_norm)
    return StepSlacks(
        length, per(length - growth, length), per(growth - along, length), per(along * norm - left, length * largest)
    )


def needed_slack(
    before: np.ndarray,
    after: np.ndarray,
    target: np.ndarray,
    losses: tuple[np.ndarray, np.ndarray],
    step_size: np.ndarray,
    p: Exponents,
) -> np.ndarray:
    r"""Return the smallest $\pi\ge0$ with which Lemma 27 holds at a step.

    The lemma: $\langle\nabla\psi(W_+)-\nabla\psi(W),\bar W_{mm}\rangle$ is at least
    $\frac1{1+\pi}\big(\|W_+\|^{p-1}-\|W\|^{p-1}\big)$ plus
    $\frac\eta{\|W\|}\big(\mathcal L(W_+)-\mathcal L(W)\big)$.

    Args:
        before: Weights, not zero, ``(..., rows, columns)``.
        after: Weights one step later, of a larger norm.
        target: Max-margin direction $\bar W_{mm}$.
        losses: Losses before and after, up to a common constant.
        step_size: Step sizes $\eta$.
        p: Exponents above 1.

    Returns:
        One number per step; infinite where none is large enough.

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
    lost = losses[1] - losses[0]
    of_loss = lost - (gradient * (after - before)).sum(axis=(-2, -1))
    moved = bregman_divergence(after, before, p)
    right = bregman_divergence(other, after, p) + moved - step_size * of_loss + step_size * lost
    right = right - step_size * (gradient * (other - before)).sum(axis=(-2, -1))
    return np.asarray(bregman_divergence(other, before, p) - right)


def _growth(before: np.ndarray, after: np.ndarray, p: Exponents) -> np.ndarray:
    r = check_exponents(p)
    return np.asarray(entrywise_norm(after, r) ** (r - 1) - entrywise_norm(before, r) ** (r - 1))


def _along(before: np.ndarray, after: np.ndarray, direction: np.ndarray, p: Exponents) -> np.ndarray:
    """Product of the step and a direction: the step is minus the step size times the gradient."""
    return np.asarray(((mirror_map(after, p) - mirror_map(before, p)) * direction).sum(axis=(-2, -1)))
