r"""Theorem 4: the same function, another Hessian.

==============================  ====================================  =========================================
paper                           name here                             meaning
==============================  ====================================  =========================================
$a$, $w^{(1)}$, $w^{(2)}$       ``mask``, ``hidden``, ``decoder``     ``(inputs,)``, ``(width, inputs)``,
                                                                      ``(outputs, width)``; first one transposed
$\alpha_1$, $\alpha_2$          ``mask_factor``, ``hidden_factor``    positive factors of the rescaling
$T_{\alpha_1,\alpha_2}$         :func:`rescale`                       the rescaled network
$D$                             :func:`hessian_scaling`               how its Hessian follows
==============================  ====================================  =========================================

All of this rests on ReLU being positively homogeneous. Softplus is not, $\phi_\tau(cu)=c\,\phi_{c\tau}(u)$: its
function is unchanged only if the sharpness becomes $\tau/(\alpha_1\alpha_2)$.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = ["Network", "hessian_scaling", "least_penalty_factor", "rescale"]

Network: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Mask, first layer, second layer."""


def rescale(
    mask: Float[np.ndarray, " inputs"],
    hidden: Float[np.ndarray, "width inputs"],
    decoder: Float[np.ndarray, "outputs width"],
    mask_factor: float,
    hidden_factor: float,
) -> Network:
    r"""Return $T_{\alpha_1,\alpha_2}$ of a network: the same function for ReLU, other weights.

    Args:
        mask: Mask $a$.
        hidden: First layer.
        decoder: Second layer.
        mask_factor: $\alpha_1$, positive.
        hidden_factor: $\alpha_2$, positive.

    Returns:
        New mask, first and second layer.

    Raises:
        ValueError: If a factor is not positive and finite.

    Example:
        >>> rescale(np.ones(1), np.ones((1, 1)), np.ones((1, 1)), 0.5, 4.0)[2].tolist()
        [[0.5]]
    """
    _check_positive(mask_factor=mask_factor, hidden_factor=hidden_factor)
    return mask_factor * mask, hidden_factor * hidden, decoder / (mask_factor * hidden_factor)


def hessian_scaling(
    n_inputs: int, width: int, mask_factor: float, hidden_factor: float, *, outputs: int = 1
) -> Float[np.ndarray, " parameters"]:
    r"""Return the diagonal of $D$ in $\nabla^2L(T\theta)=D\,\nabla^2L(\theta)\,D$.

    $D=\mathrm{diag}(\alpha_1^{-1}I_p,\ \alpha_2^{-1}I_{pd},\ \alpha_1\alpha_2I_{d})$ in the order mask, first layer,
    second layer: the Hessian anywhere on the orbit comes from one point without differentiating again. Weights move
    by the inverse, so volumes of weights grow by $1/\det D$.

    Args:
        n_inputs: $p$.
        width: $d$.
        mask_factor: $\alpha_1$, positive.
        hidden_factor: $\alpha_2$, positive.
        outputs: Outputs of the network; default 1, as in the theorem.

    Returns:
        One factor per parameter.

    Raises:
        ValueError: If a factor is not positive and finite.
    """
    _check_positive(mask_factor=mask_factor, hidden_factor=hidden_factor)
    counts = [n_inputs, n_inputs * width, outputs * width]
    return np.repeat([1 / mask_factor, 1 / hidden_factor, mask_factor * hidden_factor], counts)


def least_penalty_factor(
    hidden: Float[np.ndarray, "width inputs"], decoder: Float[np.ndarray, "outputs width"], mask_factor: float
) -> float:
    r"""Return the $\alpha_2$ at which the L2 penalty on both layers is least, for a given $\alpha_1$.

    $\|\alpha_2w^{(1)}\|^2+\|w^{(2)}\|^2/(\alpha_1\alpha_2)^2$ is least where both terms are equal,
    $\alpha_2^2=\|w^{(2)}\|/(\alpha_1\|w^{(1)}\|)$, and is $2\|w^{(1)}\|\|w^{(2)}\|/\alpha_1$ there: it grows as the
    mask shrinks, and vanishes as the mask grows.

    Args:
        hidden: First layer, not zero.
        decoder: Second layer, not zero.
        mask_factor: $\alpha_1$, positive.

    Returns:
        The factor of the first layer.

    Raises:
        ValueError: If the factor is not positive and finite, or a layer is zero.
    """
    norms = {"hidden": float(np.linalg.norm(hidden)), "decoder": float(np.linalg.norm(decoder))}
    _check_positive(mask_factor=mask_factor, **norms)
    return math.sqrt(norms["decoder"] / (mask_factor * norms["hidden"]))


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name}: expected a positive number or a layer that is not zero, got {number}")
