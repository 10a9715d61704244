r"""Theorem 2, Corollaries 2 to 4 and the stability argument behind them, as plain functions.

=======================  ==========================  ==========================================================
paper                    name here                   meaning
=======================  ==========================  ==========================================================
$L$, $\hat L$            --                          logistic loss in expectation, and on the $n$ samples
$K$, $\eta$              ``steps``, ``step_size``    of gradient descent
$\gamma$                 ``margin``                  tangent-kernel margin at the start, directions of norm
                                                     $\sqrt2$
$B_\Phi$                 ``output_bound``            largest output at the start, at least 1
$\tilde\theta$           target                      any parameters to compare with
$\delta_{k,i}$           ``distance``                $\|\theta_k-\theta_k^{\neg i}\|$, see
                                                     :mod:`~attnbook.multi_head.leave_one_out`
$\beta_1,\beta_2,        ``gradient``, ...           :mod:`~attnbook.multi_head.curvature_bounds`; here each
\beta_3$                                             at the larger of the two networks
=======================  ==========================  ==========================================================
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = [
    "corollary_2",
    "envelope",
    "proof_conditions",
    "recursion_factors",
    "target_distance",
    "theorem_2",
]

Array = Float[np.ndarray, "*_"]

# On a segment the loss is at most 4/3 of its larger end (Proposition 4, where its condition holds).
SEGMENT = 4 / 3


def target_distance(*, steps: int | float | Array, margin: float | Array, output_bound: float | Array = 1.0) -> Array:
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
    _check(1.0, steps=steps, output_bound=output_bound)
    _check_positive(margin=margin)
    return np.asarray((2 * np.asarray(output_bound) + np.log(steps)) / np.asarray(margin))


def corollary_2(
    *,
    n_samples: int | float | Array,
    steps: int | float | Array,
    step_size: float,
    margin: float | Array,
    output_bound: float | Array = 1.0,
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
    _check(1.0, n_samples=n_samples)
    _check_positive(step_size=step_size)
    distance = target_distance(steps=steps, margin=margin, output_bound=output_bound)
    return np.asarray(17 * distance**2 / (step_size * np.asarray(n_samples)))


def theorem_2(
    *,
    n_samples: int | float | Array,
    steps: int | float | Array,
    step_size: float,
    target_loss: float | Array,
    target_distance: float | Array,
) -> Array:
    r"""Return $\frac4n\big(2K\hat L(\tilde\theta)+\frac{9\|\tilde\theta-\theta_0\|^2}{4\eta}\big)$, before expectation.

    With a target of loss $1/K$ this is how we read Corollary 4, whose statement is in a missing appendix.

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
    _check(1.0, n_samples=n_samples, steps=steps)
    _check_positive(step_size=step_size)
    _check(0.0, target_loss=target_loss, target_distance=target_distance)
    path = 9 * np.asarray(target_distance) ** 2 / (4 * step_size)
    return np.asarray(4 / np.asarray(n_samples) * (2 * np.asarray(steps) * np.asarray(target_loss) + path))


def proof_conditions(
    *,
    step_size: float,
    steps: int,
    n_heads: int | float | Array,
    gradient: float | Array,
    smoothness: float | Array,
    curvature: float | Array,
    start_loss: float | Array,
    target_loss: float | Array,
    target_distance: float | Array,
    pair_distance: float | Array,
) -> dict[str, Array]:
    r"""Return what the proof of Theorem 2 (Section 6) needs to be at most 1, with $D=\|\tilde\theta-\theta_0\|$.

    * ``step``: $\eta$; ``smoothness``: $\eta\beta_2$, for descent and eq. (22);
    * ``gradient``: $\eta\beta_1^2$, where Lemma 3 meets the stability bound;
    * ``target``: $2\beta_3(3D)^2/\sqrt H$, eq. (18) for a network and the target, which is never farther than $3D$;
    * ``pair``: $2\beta_3\delta^2/\sqrt H$, eq. (18) for the full network and a reduced one;
    * ``kept``: $\eta K\hat L(\tilde\theta)/D^2$; ``first``: $\eta\hat L(\theta_0)/D^2$.

    With these the paper's steps give its constants: the losses of steps 0 to $K-1$ add up to at most
    $2K\hat L(\tilde\theta)+\frac{9D^2}{4\eta}$, and the factors $1+\alpha_{k,i}$ multiply to at most 2.

    Args:
        step_size: $\eta$.
        steps: $K$.
        n_heads: $H$.
        gradient: $\beta_1$ at the largest head of all networks and of the target.
        smoothness: $\beta_2$, likewise.
        curvature: $\beta_3$, likewise.
        start_loss: $\hat L(\theta_0)$.
        target_loss: $\hat L(\tilde\theta)$.
        target_distance: $D$, positive.
        pair_distance: $\delta$, the largest distance of a full network and a reduced one, or a bound on it ($8D$).

    Returns:
        The conditions by name, all of one shape.
    """
    bent, square = 2 * np.asarray(curvature) / np.sqrt(n_heads), np.asarray(target_distance) ** 2
    found = {
        "step": step_size,
        "smoothness": step_size * np.asarray(smoothness),
        "gradient": step_size * np.asarray(gradient) ** 2,
        "target": bent * 9 * square,
        "pair": bent * np.asarray(pair_distance) ** 2,
        "kept": step_size * steps * np.asarray(target_loss) / square,
        "first": step_size * np.asarray(start_loss) / square,
    }
    return dict(zip(found, np.broadcast_arrays(*found.values()), strict=True))


def recursion_factors(
    *,
    step_size: float,
    curvature: float | Array,
    smoothness: float | Array,
    n_heads: int | float | Array,
    kept_loss: Array,
    reduced_loss: Array,
) -> dict[str, Array]:
    r"""Return what eqs. (19) to (22) put in front of the distance of two networks.

    With $c=\eta\beta_3/\sqrt H$, the two losses $a=\hat L^{\neg i}(\theta_k)$ and $b=\hat L^{\neg i}(\theta_k^{\neg
    i})$, and $m=\max(a,b)$ in the place of the largest loss on the segment between the networks:

    * ``expansive``, eqs. (19) and (20): $(1+cm)\vee\eta\beta_2$;
    * ``corrected``, eq. (21) as (20) and (22) ask for it: $1+cm$;
    * ``printed``, eq. (21) as the text available to us reads: $(1+c)\cdot\frac43m$ (Proposition 4, in its favour);
    * ``recursion``, eq. (22): $1+\alpha_{k,i}$ with $\alpha_{k,i}=\frac43c(a+b)$.

    Args:
        step_size: $\eta$, positive.
        curvature: $\beta_3$, its largest value on the segment.
        smoothness: $\beta_2$, likewise.
        n_heads: $H$.
        kept_loss: $a$, at least 0.
        reduced_loss: $b$, at least 0.

    Returns:
        The factors by name.

    Raises:
        ValueError: If the step size or a loss is outside its range.
    """
    _check_positive(step_size=step_size)
    _check(0.0, kept_loss=kept_loss, reduced_loss=reduced_loss)
    bent = step_size * np.asarray(curvature) / np.sqrt(n_heads)
    larger = np.maximum(kept_loss, reduced_loss)
    return {
        "recursion": 1 + SEGMENT * bent * (kept_loss + reduced_loss),
        "expansive": np.maximum(1 + bent * larger, step_size * np.asarray(smoothness)),
        "corrected": 1 + bent * larger,
        "printed": (1 + bent) * SEGMENT * larger,
    }


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


def _check(least: float, **arguments: int | float | np.ndarray) -> None:
    for name, value in arguments.items():
        array = np.asarray(value, dtype=np.float64)
        if not (np.isfinite(array) & (array >= least)).all():
            raise ValueError(f"{name}: expected finite numbers of at least {least:g}, got {value}")


def _check_positive(**arguments: int | float | np.ndarray) -> None:
    for name, value in arguments.items():
        array = np.asarray(value, dtype=np.float64)
        if not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"{name}: expected finite positive numbers, got {value}")
