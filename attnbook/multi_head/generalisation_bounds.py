r"""Theorem 2, Corollary 2 and the stability argument behind them, as plain functions.

=======================  ==========================  ==========================================================
paper                    name here                   meaning
=======================  ==========================  ==========================================================
$L$, $\hat L$            ``test_loss``,              logistic loss in expectation, and on the $n$ samples
                         ``train_loss``
$K$, $\eta$              ``steps``, ``step_size``    of gradient descent
$\gamma$                 ``margin``                  tangent-kernel margin at the start, directions of norm
                                                     $\sqrt2$
$B_\Phi$                 ``output_bound``            largest output at the start, at least 1
$\tilde\theta$           target                      any parameters to compare with
$\delta_{k,i}$           ``distance``                $\|\theta_k-\theta_k^{\neg i}\|$, see
                                                     :mod:`~attnbook.multi_head.leave_one_out`
$\beta_1,\beta_2,        ``LossConstants``           :mod:`~attnbook.multi_head.curvature_bounds`; here each
\beta_3$                                             at the larger of the two networks
$\alpha_{k,i}$           :func:`expansion`           what one step may add to a distance, relative to it
=======================  ==========================  ==========================================================
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

__all__ = [
    "corollary_2",
    "envelope",
    "expansion",
    "expansive_factor",
    "lemma_3",
    "printed_factor",
    "target_distance",
    "theorem_2",
]

Array = Float[np.ndarray, "*_"]


def target_distance(*, steps: int, margin: float | Array, output_bound: float | Array = 1.0) -> Array:
    r"""Return $g_0(1/K)=(2B_\Phi+\log K)/\gamma$, how far from the start Corollary 2 puts its target.

    Args:
        steps: $K$, at least 1.
        margin: $\gamma$, positive.
        output_bound: $B_\Phi$, at least 1; default 1.

    Returns:
        The distance.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> float(target_distance(steps=1, margin=2.0))
        1.0
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    _check(margin=(margin, 0.0, False), output_bound=(output_bound, 1.0, True))
    return np.asarray((2 * np.asarray(output_bound) + math.log(steps)) / np.asarray(margin))


def corollary_2(
    *, n_samples: int, steps: int, step_size: float, margin: float | Array, output_bound: float | Array = 1.0
) -> Array:
    r"""Return $17(2B_\Phi+\log K)^2/(\gamma^2\eta n)$, Corollary 2's bound on the expected gap.

    Args:
        n_samples: $n$, at least 1.
        steps: $K$, at least 1.
        step_size: $\eta$, positive.
        margin: $\gamma$, positive.
        output_bound: $B_\Phi$, at least 1; default 1.

    Returns:
        The bound; above $\log2\approx0.69$, the loss of a network that always returns zero, it says little.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> float(corollary_2(n_samples=17, steps=1, step_size=0.5, margin=2.0))
        2.0
    """
    if n_samples < 1:
        raise ValueError(f"n_samples: expected at least 1, got {n_samples}")
    _check(step_size=(step_size, 0.0, False))
    distance = target_distance(steps=steps, margin=margin, output_bound=output_bound)
    return np.asarray(17 * distance**2 / (step_size * n_samples))


def theorem_2(
    *, n_samples: int, steps: int, step_size: float, target_loss: float | Array, target_distance: float | Array
) -> Array:
    r"""Return $\frac4n\big(2K\hat L(\tilde\theta)+\frac{9\|\tilde\theta-\theta_0\|^2}{4\eta}\big)$, before expectation.

    Args:
        n_samples: $n$, at least 1.
        steps: $K$, at least 1.
        step_size: $\eta$, positive.
        target_loss: $\hat L(\tilde\theta)$, at least 0.
        target_distance: $\|\tilde\theta-\theta_0\|$, at least 0.

    Returns:
        The bound on the gap, to be averaged over training sets.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> float(theorem_2(n_samples=4, steps=1, step_size=0.25, target_loss=0.5, target_distance=1.0))
        10.0
    """
    if min(n_samples, steps) < 1:
        raise ValueError(f"n_samples, steps: expected at least 1, got {n_samples} and {steps}")
    _check(step_size=(step_size, 0.0, False))
    _check(target_loss=(target_loss, 0.0, True), target_distance=(target_distance, 0.0, True))
    path = 9 * np.asarray(target_distance) ** 2 / (4 * step_size)
    return np.asarray(4 / n_samples * (2 * steps * np.asarray(target_loss) + path))


def expansion(
    *, step_size: float, curvature: float | Array, n_heads: float | Array, kept_loss: Array, reduced_loss: Array
) -> Array:
    r"""Return $\alpha_{k,i}$ of eq. (22).

    .. math:: \alpha_{k,i}=\frac{4\eta\tilde\beta_3}{3\sqrt H}
              \big(\hat L^{\neg i}(\theta_k)+\hat L^{\neg i}(\theta_k^{\neg i})\big)

    Args:
        step_size: $\eta$, positive.
        curvature: $\tilde\beta_3$, a bound on $\beta_3$ between the two networks.
        n_heads: $H$.
        kept_loss: $\hat L^{\neg i}(\theta_k)$.
        reduced_loss: $\hat L^{\neg i}(\theta_k^{\neg i})$.

    Returns:
        By how much eq. (22) lets a distance grow in one step, relative to it.

    Raises:
        ValueError: If the step size or a loss is outside its range.

    Example:
        >>> one = np.ones(1)
        >>> expansion(step_size=0.75, curvature=2.0, n_heads=4.0, kept_loss=one, reduced_loss=one)
        array([2.])
    """
    _check(step_size=(step_size, 0.0, False), kept_loss=(kept_loss, 0.0, True), reduced_loss=(reduced_loss, 0.0, True))
    return np.asarray(4 * step_size * np.asarray(curvature) / (3 * np.sqrt(n_heads)) * (kept_loss + reduced_loss))


def expansive_factor(
    *,
    step_size: float,
    curvature: float | Array,
    smoothness: float | Array,
    n_heads: float | Array,
    largest_loss: Array,
) -> Array:
    r"""Return the factor of eqs. (19) and (20), $(1+\frac{\eta\beta_3}{\sqrt H}\max\hat L)\vee\eta\beta_2$.

    Args:
        step_size: $\eta$, positive.
        curvature: $\beta_3$, its largest value on the segment between two networks.
        smoothness: $\beta_2$, likewise.
        n_heads: $H$.
        largest_loss: Largest loss on the segment.

    Returns:
        By which factor a gradient step may at most stretch the segment.

    Raises:
        ValueError: If the step size or a loss is outside its range.
    """
    _check(step_size=(step_size, 0.0, False), largest_loss=(largest_loss, 0.0, True))
    convex = 1 + step_size * np.asarray(curvature) / np.sqrt(n_heads) * largest_loss
    return np.asarray(np.maximum(convex, step_size * np.asarray(smoothness)))


def printed_factor(*, step_size: float, curvature: float | Array, n_heads: float | Array, largest_loss: Array) -> Array:
    r"""Return the factor of eq. (21) as the text available to us shows it: $(1+\frac{\eta\beta_3}{\sqrt H})\max\hat L$.

    Eqs. (20) and (22) ask for $1+\frac{\eta\beta_3}{\sqrt H}\max\hat L$; the difference is where a bracket closes.

    Args:
        step_size: $\eta$, positive.
        curvature: $\beta_3$, its largest value on the segment between two networks.
        n_heads: $H$.
        largest_loss: Largest loss on the segment.

    Returns:
        The factor in front of the distance.

    Raises:
        ValueError: If the step size or a loss is outside its range.
    """
    _check(step_size=(step_size, 0.0, False), largest_loss=(largest_loss, 0.0, True))
    return np.asarray((1 + step_size * np.asarray(curvature) / np.sqrt(n_heads)) * largest_loss)


def envelope(factor: Array, forcing: Array) -> Array:
    r"""Return $E_0=0$, $E_{k+1}=f_kE_k+g_k$: a recursion for distances, unrolled from the common start.

    Args:
        factor: $f_k$, for eq. (22) $1+\alpha_{k,i}$; steps along the first axis.
        forcing: $g_k$, for eq. (22) $\frac{\eta\beta_1}n\ell_i(\theta_k)$.

    Returns:
        One value more than there are steps; infinite where it overflows.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> envelope(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
        array([0., 1., 5.])
    """
    if factor.shape != forcing.shape or not factor.ndim:
        raise ValueError(f"factor, forcing: expected the same shape (steps, ...), got {factor.shape}, {forcing.shape}")
    found = [np.zeros(factor.shape[1:])]
    with np.errstate(over="ignore"):
        for f, g in zip(factor, forcing, strict=True):
            found.append(f * found[-1] + g)
    return np.stack(found)


def lemma_3(*, lipschitz: float | Array, stability: float | Array) -> Array:
    r"""Return $2G\,\frac1n\sum_i\|\theta_K-\theta_K^{\neg i}\|$, Lemma 3's bound on the gap, before expectation.

    Args:
        lipschitz: $G$, a Lipschitz constant of every sample's loss, at least 0; $\beta_1$ is one.
        stability: The mean distance, at least 0.

    Returns:
        The bound.

    Raises:
        ValueError: If an argument is negative or not finite.
    """
    _check(lipschitz=(lipschitz, 0.0, True), stability=(stability, 0.0, True))
    return np.asarray(2 * np.asarray(lipschitz) * np.asarray(stability))


def _check(**arguments: tuple[float | np.ndarray, float, bool]) -> None:
    """Check (value, lower end, whether the end is allowed) of each argument."""
    for name, (value, least, closed) in arguments.items():
        array = np.asarray(value, dtype=np.float64)
        good = np.isfinite(array) & ((array >= least) if closed else (array > least))
        if not good.all():
            raise ValueError(
                f"{name}: expected finite numbers {'of at least' if closed else 'above'} {least:g}, "
                f"got {array[~good].flat[0]}"
            )
