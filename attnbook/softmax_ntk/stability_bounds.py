r"""How far the kernel may move: Lemma B.1, Lemma B.2 (5.1) and Claim E.5, and the rank of paired networks.

=============================  ==========================  ====================================================
paper                          name here                   meaning
=============================  ==========================  ====================================================
$n$, $d$, $d_{in}$, $m$        ``n_samples``, ...          samples, outputs, inputs, neurons
$R$                            ``radius``                  no neuron moves farther: $\|w_r-\tilde w_r\|\le R$
$x_i$, $a$                     ``inputs``, ``signs``       samples, one per row; the frozen second layer
$W$, $\tilde W$                ``weights``, ``moved``      before and after the move, one column per neuron
$B$                            ``exponent``                bounds every $|\langle w_r, x_i\rangle|$; at least 1
$\lambda$                      ``smallest_eigenvalue``     smallest eigenvalue of the kernel at the start
$\sigma$, $\delta$             ``scale``, ``failure``      deviation of the weights; probability of failure
=============================  ==========================  ====================================================

In the text available to us the equations are missing: every formula is our reconstruction. The bounds on the rank are
this book's. All functions raise ValueError for numbers outside their range, and name them.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from attnbook.core.settings import check_positive

__all__ = [
    "bound_by_pieces", "certified_radius", "check_exponent", "check_failure", "exponent_of_definition", "five_pieces",
    "kernel_change_bound", "lemma_b1_bounds", "lemma_b1_left_sides", "rank_bound", "rank_bound_of_signs",
]  # fmt: skip

# Definition 4.1 asks for a large constant; 2 suffices by a union bound for widths up to nd^2/(2 delta).
CONSTANT = 2.0


def check_exponent(exponent: float) -> None:
    """Refuse an exponent that is not finite and at least 1."""
    if not 1 <= exponent < float("inf"):
        raise ValueError(f"exponent: B is at least 1 by its definition, got {exponent}")


def check_failure(failure: float) -> None:
    """Refuse a number that is no probability strictly between 0 and 1."""
    if not 0 < failure < 1:
        raise ValueError(f"failure: expected a probability between 0 and 1, got {failure}")


def exponent_of_definition(n_samples: int, n_outputs: int, *, scale: float = 1.0, failure: float = 0.1) -> float:
    r"""Return $B = \max\{C\sigma\sqrt{\log(nd/\delta)}, 1\}$ of Definition 4.1 (reconstructed), with $C = 2$.

    Example:
        >>> round(exponent_of_definition(32, 2), 2)
        5.08
    """
    check_positive(n_samples=n_samples, n_outputs=n_outputs, scale=scale)
    check_failure(failure)
    return float(max(CONSTANT * scale * np.sqrt(np.log(n_samples * n_outputs / failure)), 1.0))


def kernel_change_bound(radius: float, *, n_samples: int, n_outputs: int, exponent: float) -> float:
    r"""Return Lemma 5.1's bound on $\|H(W)-H(\tilde W)\|_F$, which is $R\,nd\,e^{10B}$, for $R < 0.01$.

    Example:
        >>> f"{kernel_change_bound(0.01, n_samples=32, n_outputs=2, exponent=1.0):.0f}"
        '14097'
    """
    check_positive(radius=radius, n_samples=n_samples, n_outputs=n_outputs)
    check_exponent(exponent)
    return float(radius * n_samples * n_outputs * np.exp(10 * exponent))


def bound_by_pieces(radius: float, *, exponent: float) -> float:
    r"""Return what Lemma B.1 leaves of one entry of the change of the kernel, $R(16e^{4B}+8e^{6B}+4e^{8B})$.

    The five pieces of Lemma B.2, each by the parts that its proof names: at most $16Re^{4B}$ for the exponentials,
    $2Re^{8B}$ for each centred sign and $4Re^{6B}$ for each normaliser, for inputs of norm at most one; factors $e^R$
    are left out. From $B=1$ on it is below the $Re^{10B}$ of the lemma. Our sum.
    """
    check_positive(radius=radius)
    check_exponent(exponent)
    b = np.exp(exponent)
    return float(radius * (16 * b**4 + 8 * b**6 + 4 * b**8))


def certified_radius(smallest_eigenvalue: float, *, n_samples: int, n_outputs: int, exponent: float) -> float:
    r"""Return Claim E.5's radius $R = \lambda/(2nde^{10B})$: up to there $\lambda_{\min}\ge\lambda/2$ (reconstructed).

    At this radius the bound of Lemma 5.1 is $\lambda/2$, and no eigenvalue moves by more than the norm of the change.

    Example:
        >>> radius = certified_radius(0.7, n_samples=32, n_outputs=2, exponent=1.0)
        >>> round(kernel_change_bound(radius, n_samples=32, n_outputs=2, exponent=1.0), 6)
        0.35
    """
    check_positive(smallest_eigenvalue=smallest_eigenvalue)
    bound = kernel_change_bound(1.0, n_samples=n_samples, n_outputs=n_outputs, exponent=exponent)
    return smallest_eigenvalue / 2 / bound


def lemma_b1_bounds(*, exponent: float, radius: float, width: int) -> Float[np.ndarray, " parts"]:
    r"""Return the thirteen bounds of Lemma B.1 (reconstructed), in its order.

    They are on the logits before and after the move (parts 1, 2), their differences (3), the exponentials before and
    after (4, 5), their ratio and difference (6, 7), the normaliser and its inverse (8, 9), the softmax before and
    after (10, 11), its entries' change (12) and their sum weighted by numbers of size at most one (13).

    Raises:
        ValueError: If the radius is not below 0.01, or a number outside its range.
    """
    check_positive(radius=radius, width=width)
    check_exponent(exponent)
    if radius >= 0.01:
        raise ValueError(f"radius: the lemma asks for less than 0.01, got {radius}")
    b, r, m, e = exponent, radius, width, np.exp
    return np.array([
        b, b + r, 2 * r, e(b), e(b + r), 4 * r, r * e(b + r),
        m * r * e(b + r), r / m * e(3 * b + 2 * r), e(2 * b) / m, e(2 * b + 2 * r) / m,
        r / m * e(4 * b + 3 * r), r * e(4 * b + 3 * r),
    ])  # fmt: skip


def lemma_b1_left_sides(
    inputs: Float[np.ndarray, "samples inputs"],
    weights: Float[np.ndarray, "inputs width"],
    moved: Float[np.ndarray, "inputs width"],
) -> Float[np.ndarray, " parts"]:
    r"""Return the left sides of Lemma B.1 in its order, each the largest over neurons, samples and pairs of samples.

    The last is the worst over all $z$ of size at most one.
    """
    before, after = inputs @ weights, inputs @ moved
    change = inputs @ (weights - moved)
    high, low = 2 * change.max(), 2 * change.min()  # of <w - w~, x_i + x_j>: attained where i = j
    exp_before, exp_after = np.exp(before), np.exp(after)
    total_before, total_after = exp_before.sum(axis=1), exp_after.sum(axis=1)
    soft_before, soft_after = exp_before / total_before[:, None], exp_after / total_after[:, None]
    moved_by = np.abs(soft_before - soft_after)
    return np.array([
        np.abs(before).max(), np.abs(after).max(), max(high, -low),
        exp_before.max(), exp_after.max(), max(np.expm1(high), -np.expm1(low)),
        np.abs(exp_before - exp_after).max(),
        np.abs(total_before - total_after).max(), np.abs(1 / total_before - 1 / total_after).max(),
        soft_before.max(), soft_after.max(), moved_by.max(), moved_by.sum(axis=1).max(),
    ])  # fmt: skip


def five_pieces(
    inputs: Float[np.ndarray, "samples inputs"],
    signs: Float[np.ndarray, "outputs width"],
    weights: Float[np.ndarray, "inputs width"],
    moved: Float[np.ndarray, "inputs width"],
) -> Float[np.ndarray, "five rows rows"]:
    r"""Return the five pieces of Lemma B.2 into which $H(W)-H(\tilde W)$ of a softmax network splits, output-major.

    An entry is the sum over $r$ of $m\,x_i^\top x_j\langle v_{\ell,r},S_i\rangle\langle v_{k,r},S_j\rangle$ times
    $\alpha_i^{-1}\alpha_j^{-1}e^{\langle w_r,x_i+x_j\rangle}$. The pieces move the exponentials, then one centred
    sign after the other, then one normaliser $\alpha$ after the other; they add up to the change.
    """
    (n_outputs, width), (old, new) = signs.shape, (np.exp(inputs @ w) for w in (weights, moved))
    totals = [e.sum(axis=1, keepdims=True) for e in (old, new)]
    centred = [
        signs[:, None] - (signs @ (e / total).T)[:, :, None] for e, total in zip((old, new), totals, strict=True)
    ]

    def features(exponentials: np.ndarray, centre: int, normaliser: int) -> np.ndarray:
        return (centred[centre] * exponentials / totals[normaliser]).reshape(-1, width)

    steps = [features(old, 0, 0), features(new, 0, 0), features(new, 1, 0), features(new, 1, 1)]
    pieces = [steps[0] @ steps[0].T - steps[1] @ steps[1].T]
    for before, after in pairwise(steps[1:]):
        pieces += [(before - after) @ before.T, after @ (before - after).T]
    return width * np.stack(pieces) * np.tile(inputs @ inputs.T, (n_outputs, n_outputs))


def rank_bound(n_samples: int, n_outputs: int, *, n_inputs: int, width: int) -> int:
    r"""Return the bound $\min(nd, \frac m2d_{in})$ on the rank of the kernel of a paired network at the start.

    The two neurons of a pair have the same features up to the sign, so that $m$ neurons give only $m/2$ times $d_{in}$
    different ones. This book's formula.

    Example:
        >>> rank_bound(24, 2, n_inputs=4, width=16)
        32
    """
    return min(n_samples * n_outputs, width // 2 * n_inputs)


def rank_bound_of_signs(signs: Float[np.ndarray, "outputs width"], *, n_samples: int, n_inputs: int) -> int:
    r"""Return a sharper bound on that rank, which knows the signs that were drawn.

    At the start $H$ is a sum over sign patterns $s$ (up to a global sign) of $ss^\top$ times a kernel of the pairs
    with this pattern; such a term has rank at most $\min(n, d_{in}\cdot\text{pairs})$. This book's formula.

    Example:
        >>> signs = np.array([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
        >>> rank_bound_of_signs(signs, n_samples=3, n_inputs=5)
        3
    """
    n_outputs, width = signs.shape
    pairs = signs[:, ::2] * signs[0, ::2]
    counts = Counter(tuple(pattern) for pattern in pairs.T)
    total = sum(min(n_samples, n_inputs * pairs_of_it) for pairs_of_it in counts.values())
    return min(total, rank_bound(n_samples, n_outputs, n_inputs=n_inputs, width=width))
