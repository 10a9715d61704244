r"""Theorem 4: the same function, another Hessian.

==============================  ====================================  =========================================
paper                           name here                             meaning
==============================  ====================================  =========================================
$a$, $w^{(1)}$, $w^{(2)}$       ``mask``, ``hidden``, ``decoder``     ``(inputs,)``, ``(width, inputs)``,
                                                                      ``(outputs, width)``; first one transposed
$\alpha_1$, $\alpha_2$          ``mask_factor``, ``hidden_factor``    positive factors of the rescaling
$T_{\alpha_1,\alpha_2}$         :func:`rescale`                       the rescaled network
$D$                             :func:`hessian_scaling`               how its Hessian follows
$C_1$, $C_2$                    ``c_hidden``, ``c_decoder``           bounds on the norms (assumption A2)
==============================  ====================================  =========================================

All of this rests on ReLU being positively homogeneous; softplus is not (:func:`rescaled_sharpness`).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = [
    "Network",
    "allowed_triangle",
    "hessian_scaling",
    "least_penalty_factor",
    "log_volume_factor",
    "rescale",
    "rescaled_sharpness",
]

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
    _check_factors(mask_factor, hidden_factor)
    return mask_factor * mask, hidden_factor * hidden, decoder / (mask_factor * hidden_factor)


def hessian_scaling(
    n_inputs: int, width: int, mask_factor: float, hidden_factor: float, *, outputs: int = 1
) -> Float[np.ndarray, " parameters"]:
    r"""Return the diagonal of $D$ in $\nabla^2L(T\theta)=D\,\nabla^2L(\theta)\,D$.

    $D=\mathrm{diag}(\alpha_1^{-1}I_p,\ \alpha_2^{-1}I_{pd},\ \alpha_1\alpha_2I_{d})$ in the order mask, first layer,
    second
    layer: the Hessian anywhere on the orbit comes from one point without differentiating again.

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
    _check_factors(mask_factor, hidden_factor)
    counts = [n_inputs, n_inputs * width, outputs * width]
    return np.repeat([1 / mask_factor, 1 / hidden_factor, mask_factor * hidden_factor], counts)


def log_volume_factor(
    n_inputs: int, width: int, mask_factor: float, hidden_factor: float, *, outputs: int = 1
) -> float:
    r"""Return $\log|\det J|$ of the rescaling, $(p-d)\log\alpha_1+(pd-d)\log\alpha_2$ for one output.

    Args:
        n_inputs: $p$.
        width: $d$.
        mask_factor: $\alpha_1$, positive.
        hidden_factor: $\alpha_2$, positive.
        outputs: Outputs of the network; default 1, as in the theorem.

    Returns:
        Natural logarithm of the factor by which volumes of parameter sets grow.

    Raises:
        ValueError: If a factor is not positive and finite.

    Example:
        >>> log_volume_factor(3, 2, 1.0, math.e)
        4.0
    """
    _check_factors(mask_factor, hidden_factor)
    last = outputs * width
    return (n_inputs - last) * math.log(mask_factor) + (n_inputs * width - last) * math.log(hidden_factor)


def rescaled_sharpness(sharpness: float, mask_factor: float, hidden_factor: float) -> float:
    r"""Return the softplus sharpness $\tau/(\alpha_1\alpha_2)$ that makes up for a rescaling.

    Softplus is not homogeneous, $\phi_\tau(cu)=c\,\phi_{c\tau}(u)$; only with this sharpness is the function unchanged.

    Args:
        sharpness: $\tau$, positive.
        mask_factor: $\alpha_1$, positive.
        hidden_factor: $\alpha_2$, positive.

    Returns:
        The new sharpness.

    Raises:
        ValueError: If a factor is not positive and finite.
    """
    _check_factors(mask_factor, hidden_factor)
    return sharpness / (mask_factor * hidden_factor)


def allowed_triangle(
    mask: Float[np.ndarray, " inputs"],
    hidden: Float[np.ndarray, "width inputs"],
    decoder: Float[np.ndarray, "outputs width"],
    *,
    c_hidden: float,
    c_decoder: float,
) -> Float[np.ndarray, "3 2"]:
    r"""Return the part of the orbit that assumptions A2 and A4 allow, in $(\log\alpha_1,\log\alpha_2)$.

    $\alpha_1\max_ia_i\le1$, $\alpha_2\|w^{(1)}\|_F\le C_1$ and $\|w^{(2)}\|_F\le\alpha_1\alpha_2C_2$ are three
    half-planes, and what they share is a triangle: bounded, so the sharpness on it is bounded too (this book's remark).

    Args:
        mask: Mask with entries of at least 0, not all zero.
        hidden: First layer.
        decoder: Second layer.
        c_hidden: $C_1$, positive.
        c_decoder: $C_2$, positive.

    Returns:
        The corners; the first is where mask and first layer are as large as allowed.

    Raises:
        ValueError: If the mask is negative or zero, a bound is not positive, or nothing is allowed.
    """
    if (mask < 0).any() or not mask.any():
        raise ValueError(f"mask: expected entries of at least 0, not all zero, got minimum {mask.min()}")
    for name, bound in {"c_hidden": c_hidden, "c_decoder": c_decoder}.items():
        if not bound > 0:
            raise ValueError(f"{name}: expected a positive number, got {bound}")
    most_mask = -math.log(mask.max())
    most_hidden = math.log(c_hidden / np.linalg.norm(hidden))
    least_product = math.log(np.linalg.norm(decoder) / c_decoder)
    side = most_mask + most_hidden - least_product
    if side < 0:
        needed = c_hidden * c_decoder * math.exp(-side)
        raise ValueError(f"c_hidden: with c_decoder the product must be at least {needed:g} for this function")
    corner = np.array([most_mask, most_hidden])
    return np.stack([corner, corner - [side, 0.0], corner - [0.0, side]])


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
    _check_factors(mask_factor, 1.0)
    norms = {"hidden": np.linalg.norm(hidden), "decoder": np.linalg.norm(decoder)}
    for name, norm in norms.items():
        if not norm > 0:
            raise ValueError(f"{name}: expected a layer that is not zero")
    return math.sqrt(norms["decoder"] / (mask_factor * norms["hidden"]))


def _check_factors(mask_factor: float, hidden_factor: float) -> None:
    for name, factor in {"mask_factor": mask_factor, "hidden_factor": hidden_factor}.items():
        if not 0 < factor < math.inf:
            raise ValueError(f"{name}: expected a positive number, got {factor}")
