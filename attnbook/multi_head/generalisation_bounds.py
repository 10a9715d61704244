r"""Theorem 2, Corollaries 2 to 4 and the stability argument behind them, as plain functions of numbers or arrays.

=======================  ==========================  ==========================================================
paper                    name here                   meaning, range
=======================  ==========================  ==========================================================
$L$, $\hat L$            --                          logistic loss in expectation, and on the $n$ samples
$K$, $n$                 ``steps``, ``n_samples``    of gradient descent, and samples; at least 1
$\eta$                   ``step_size``               step size of gradient descent, positive
$\gamma$                 ``margin``                  tangent-kernel margin at the start, directions of norm
                                                     $\sqrt2$, positive
$B_\Phi$                 ``output_bound``            largest output at the start, at least 1
$\tilde\theta$           target                      any parameters to compare with
$\delta_{k,i}$           ``distance``                $\|\theta_k-\theta_k^{\neg i}\|$, see
                                                     :mod:`~attnbook.multi_head.leave_one_out`
$\beta_1,\beta_2,        ``gradient``, ...           :mod:`~attnbook.multi_head.curvature_bounds`; here each
\beta_3$                                             at the larger of the two networks
=======================  ==========================  ==========================================================

Losses and distances are at least 0. Numbers outside their range are a ValueError that names them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from attnbook.multi_head.checks import at_least, positive
from attnbook.multi_head.curvature_bounds import Numbers

__all__ = ["envelope", "proof_conditions", "recursion_factors", "target_distance", "theorem_2"]

Array: TypeAlias = Float[np.ndarray, "*_"]

# On a segment the loss is at most 4/3 of its larger end (Proposition 4, where its condition holds).
SEGMENT = 4 / 3


def target_distance(*, steps: Numbers, margin: Numbers, output_bound: Numbers = 1.0) -> Numbers:
    r"""Return $g_0(1/K)=(2B_\Phi+\log K)/\gamma$, how far from the start Corollary 2 puts its target."""
    at_least(1, steps=steps, output_bound=output_bound)
    positive(margin=margin)
    return (2 * output_bound + np.log(steps)) / margin


def theorem_2(
    *, n_samples: Numbers, steps: Numbers, step_size: float, target_loss: Numbers, target_distance: Numbers
) -> Numbers:
    r"""Return $\frac4n\big(2K\hat L(\tilde\theta)+\frac{9\|\tilde\theta-\theta_0\|^2}{4\eta}\big)$, before expectation.

    The bound on the gap, to be averaged over training sets. With a target of loss $1/K$ this is how we read
    Corollary 4, whose statement is in a missing appendix.
    """
    at_least(1, n_samples=n_samples, steps=steps)
    at_least(0, target_loss=target_loss, target_distance=target_distance)
    positive(step_size=step_size)
    return 4 / n_samples * (2 * steps * target_loss + 9 * target_distance**2 / (4 * step_size))


def proof_conditions(
    *, step_size: float, steps: int, n_heads: Numbers, gradient: Numbers, smoothness: Numbers, curvature: Numbers,
    start_loss: Numbers, target_loss: Numbers, target_distance: Numbers, pair_distance: Numbers,
) -> dict[str, Array]:  # fmt: skip
    r"""Return what the proof of Theorem 2 (Section 6) needs to be at most 1, with $D=\|\tilde\theta-\theta_0\|$.

    * ``step``: $\eta$; ``smoothness``: $\eta\beta_2$, for descent and eq. (22);
    * ``gradient``: $\eta\beta_1^2$, where Lemma 3 meets the stability bound;
    * ``target``: $2\beta_3(3D)^2/\sqrt H$, eq. (18) for a network and the target, which is never farther than $3D$;
    * ``pair``: $2\beta_3\delta^2/\sqrt H$, eq. (18) for the full network and a reduced one;
    * ``kept``: $\eta K\hat L(\tilde\theta)/D^2$; ``first``: $\eta\hat L(\theta_0)/D^2$.

    The constants $\beta$ are those at the largest head of all networks and of the target; ``start_loss`` is
    $\hat L(\theta_0)$; ``target_distance`` is $D$, positive; ``pair_distance`` is $\delta$, the largest distance of a
    full network and a reduced one, or a bound on it ($8D$). All conditions have one shape.
    """
    bent, square = 2 * curvature / np.sqrt(n_heads), target_distance**2
    found = {
        "step": step_size,
        "smoothness": step_size * smoothness,
        "gradient": step_size * gradient**2,
        "target": bent * 9 * square,
        "pair": bent * pair_distance**2,
        "kept": step_size * steps * target_loss / square,
        "first": step_size * start_loss / square,
    }
    return dict(zip(found, np.broadcast_arrays(*found.values()), strict=True))


def recursion_factors(
    *,
    step_size: float,
    curvature: Numbers,
    smoothness: Numbers,
    n_heads: Numbers,
    kept_loss: Array,
    reduced_loss: Array,
) -> dict[str, Array]:
    r"""Return what eqs. (19) to (22) put in front of the distance of two networks.

    With $c=\eta\beta_3/\sqrt H$, the losses $a=\hat L^{\neg i}(\theta_k)$, ``kept_loss``, and
    $b=\hat L^{\neg i}(\theta_k^{\neg i})$, ``reduced_loss``, and $m=\max(a,b)$ in the place of the largest loss on the
    segment between the networks; $\beta_2$ and $\beta_3$ are their largest values there:

    * ``expansive``, eqs. (19) and (20): $(1+cm)\vee\eta\beta_2$;
    * ``corrected``, eq. (21) as (20) and (22) ask for it: $1+cm$;
    * ``printed``, eq. (21) as the text available to us reads: $(1+c)\cdot\frac43m$ (Proposition 4, in its favour);
    * ``recursion``, eq. (22): $1+\alpha_{k,i}$ with $\alpha_{k,i}=\frac43c(a+b)$.
    """
    positive(step_size=step_size)
    at_least(0, kept_loss=kept_loss, reduced_loss=reduced_loss)
    bent, larger = step_size * curvature / np.sqrt(n_heads), np.maximum(kept_loss, reduced_loss)
    return {
        "recursion": 1 + SEGMENT * bent * (kept_loss + reduced_loss),
        "expansive": np.maximum(1 + bent * larger, step_size * smoothness),
        "corrected": 1 + bent * larger,
        "printed": (1 + bent) * SEGMENT * larger,
    }


def envelope(factor: Array, forcing: Array) -> Array:
    r"""Return $E_0=0$, $E_{k+1}=f_kE_k+g_k$: a recursion for distances, unrolled from the common start.

    Steps lie along the first axis; there is one value more than steps, infinite where it overflows. For eq. (22) the
    ``factor`` is $1+\alpha_{k,i}$ and the ``forcing`` is $\frac{\eta\beta_1}n\ell_i(\theta_k)$.

    Raises:
        ValueError: If the shapes differ.
    """
    if factor.shape != forcing.shape or not factor.ndim:
        raise ValueError(f"factor, forcing: expected the same shape (steps, ...), got {factor.shape}, {forcing.shape}")
    found = [np.zeros(factor.shape[1:])]
    with np.errstate(over="ignore"):
        for f, g in zip(factor, forcing, strict=True):
            found.append(f * found[-1] + g)
    return np.stack(found)
