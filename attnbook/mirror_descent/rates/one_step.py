r"""What one step of mirror descent does to norm, divergence and loss (Lemmas 4, 22, 23, 24, 27), and the rate (29).

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


class StepSlacks(NamedTuple):
    r"""The length of each step and the slacks of three lemmas, in units of it.

    Lemma 4: $\|W_+\|^{p-1}-\|W\|^{p-1}\le\eta\|\nabla\mathcal L(W)\|_{q,q}$. It follows in one line from
    $\|\nabla\psi(W)\|_{q,q}=\|W\|_{p,p}^{p-1}$ and the triangle inequality (this book's; the paper reaches the same
    order by a longer route). Lemma 22, which needs no small step:
    $\|W_+\|^{p-1}\ge\|W\|^{p-1}+\frac\eta{\|W\|}\langle-\nabla\mathcal L(W),W\rangle$. Lemma 24, for a small step:
    $\frac{p-1}p\big(\|W_+\|^p-\|W\|^p\big)+\eta\big(\mathcal L(W_+)-\mathcal L(W)\big)\le\eta
    \langle-\nabla\mathcal L(W),W\rangle$; its slack is also divided by the larger norm of the weights.
    """

    length: np.ndarray
    lemma_4: np.ndarray
    lemma_22: np.ndarray
    lemma_24: np.ndarray


def step_slacks(
    before: np.ndarray, after: np.ndarray, losses: tuple[np.ndarray, np.ndarray], step_size: np.ndarray, p: Exponents
) -> StepSlacks:
    """Return the slacks of Lemmas 4, 22 and 24 at steps."""
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
    r"""Return by how much Lemma 23 fails, the identity of Azizan and Hassibi (2018) for one step: left minus right.

    $D_\psi(V,W)=D_\psi(V,W_+)+D_{\psi-\eta\mathcal L}(W_+,W)-\eta\langle\nabla\mathcal L(W),V-W\rangle
    -\eta\mathcal L(W)+\eta\mathcal L(W_+)$.
    """
    lost = losses[1] - losses[0]
    of_loss = lost - (gradient * (after - before)).sum(axis=(-2, -1))
    moved = bregman_divergence(after, before, p)
    right = bregman_divergence(other, after, p) + moved - step_size * of_loss + step_size * lost
    right = right - step_size * (gradient * (other - before)).sum(axis=(-2, -1))
    return np.asarray(bregman_divergence(other, before, p) - right)


def rate_bound(norm: Float[np.ndarray, "*batch"], p: float) -> Float[np.ndarray, "*batch"]:
    r"""Return the rate of Lemma 29 without its constant, of which the text available to us has none.

    $\log N/N$ for $p>2$, $(\log N)^2/N$ for $p=2$, $N^{-(p-1)}$ for $p<2$. With $\log k$ in place of $N$ it is the rate
    in the number of steps.
    They are the three cases of an integral: with $N_k=\|W(k)\|_{p,p}$ the proof bounds $D_k\,N_k^{p-1}$ by
    $1+\int^{N_k}\frac{\log r}r\,d(r^{p-1})$.

    Example:
        >>> float(rate_bound(np.array(16.0), 1.5))
        0.25
    """
    if p < 2:
        return np.asarray(norm ** (1 - p))
    return np.asarray(np.log(norm) ** (2 if p == 2 else 1) / norm)


def _growth(before: np.ndarray, after: np.ndarray, p: Exponents) -> np.ndarray:
    power = np.asarray(p) - 1
    return np.asarray(entrywise_norm(after, p) ** power - entrywise_norm(before, p) ** power)


def _along(before: np.ndarray, after: np.ndarray, direction: np.ndarray, p: Exponents) -> np.ndarray:
    """Product of the step and a direction: the step is minus the step size times the gradient."""
    return np.asarray(((mirror_map(after, p) - mirror_map(before, p)) * direction).sum(axis=(-2, -1)))
