r"""Theorem 5: with as many hidden units as samples, stationary points have zero training loss.

=====================  ====================  ==========================================================
paper                  name here             meaning
=====================  ====================  ==========================================================
$n$, $d$               --                    samples, hidden units
$\Phi$                 ``features``          outputs of the hidden units, ``(samples, units)``
$\phi_\tau$            --                    softplus of sharpness $\tau$, :func:`softplus_features`
=====================  ====================  ==========================================================

At a stationary point the gradient in the second layer vanishes, $\Phi^\top u=0$ with $u$ the residuals. If $\Phi$ has
rank $n$, only $u=0$ solves this.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["relative_residual", "softplus_features"]


def softplus_features(
    inputs: Float[np.ndarray, "samples inputs"],
    mask: Float[np.ndarray, " inputs"],
    hidden: Float[np.ndarray, "width inputs"],
    sharpness: float,
) -> Float[np.ndarray, "samples width"]:
    r"""Return the features $\phi_\tau(w^{(1)}(x_i\odot a))$ of all samples.

    Args:
        inputs: Samples $x_i$.
        mask: Mask $a$.
        hidden: First layer.
        sharpness: $\tau$ of the softplus, positive.

    Returns:
        One row per sample.

    Raises:
        ValueError: If the sharpness is not positive.
    """
    if not sharpness > 0:
        raise ValueError(f"sharpness: expected a positive number, got {sharpness}")
    return np.logaddexp(0.0, sharpness * ((inputs * mask) @ hidden.T)) / sharpness


def relative_residual(features: Float[np.ndarray, "samples width"], labels: Float[np.ndarray, " samples"]) -> float:
    r"""Return the share of the labels that the best second layer cannot fit, $\min_w\|\Phi w-y\|^2/\|y\|^2$.

    Args:
        features: $\Phi$.
        labels: $y$, not all zero.

    Returns:
        A number in [0, 1]; for random labels about $1-d/n$, and zero once $\Phi$ has rank $n$.

    Raises:
        ValueError: If all labels are zero.

    Example:
        >>> relative_residual(np.array([[1.0], [0.0]]), np.array([3.0, 4.0]))
        0.64
    """
    total = float(labels @ labels)
    if total == 0:
        raise ValueError("labels: expected at least one that is not zero")
    best = np.linalg.lstsq(features, labels, rcond=None)[0]
    return float(np.square(features @ best - labels).sum() / total)
