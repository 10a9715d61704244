r"""Sample sizes that the theorems ask for, as plain functions.

All statements hold up to a constant that the paper does not give, so only ratios mean anything. The paper's $p$ is
``n_inputs``, $d$ is ``width``, $s_0$ is ``n_relevant``, $\gamma^2$ is ``error``; $C_1$, $C_2$ and $C_x$ are
``c_hidden``, ``c_decoder`` and ``c_inputs``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float

__all__ = ["Guarantee", "samples_needed", "to_simplex"]

Guarantee: TypeAlias = Literal["baseline", "attention", "sum_to_one", "known_mask"]


def samples_needed(
    guarantee: Guarantee,
    error: float,
    *,
    n_inputs: int,
    n_relevant: int,
    width: int,
    c_hidden: float = 1.0,
    c_decoder: float = 1.0,
    c_inputs: float = 1.0,
) -> float:
    r"""Return the sample size, up to the theorem's constant, that guarantees a prediction error.

    Theorem 1 with $\eta = C_1C_2C_x$:
    $n \gtrsim s_0^2 C_1^2 C_x^2 \eta^2 \gamma^{-2} \log(s_0\eta/\gamma)\,(pd + p + d)$.
    The baseline has no mask: $s_0$ becomes $p$. Corollary 1 (mask on the simplex): $s_0$ becomes 1.
    Proposition 1 (known mask): Theorem 1 with $pd + d$ parameters.

    Args:
        guarantee: Which statement.
        error: Squared prediction error $\gamma^2$, positive.
        n_inputs: Number of inputs $p$.
        n_relevant: Bound $s_0$ on the non-zeros of the mask, between 1 and ``n_inputs``.
        width: Hidden units $d$.
        c_hidden: Bound $C_1$ on the Frobenius norm of the first layer; default 1, only ratios matter.
        c_decoder: Bound $C_2$ on the norm of the second layer; default 1.
        c_inputs: Bound $C_x$ on each input; default 1.

    Returns:
        The sample size, without the constant.

    Raises:
        ValueError: If an argument is outside its range, or the error is so large that the logarithm is not positive.

    Example:
        >>> sizes = {"n_inputs": 32, "n_relevant": 4, "width": 16}
        >>> samples_needed("baseline", 0.01, **sizes) > (32 / 4) ** 2 * samples_needed("attention", 0.01, **sizes)
        True
    """
    if not 1 <= n_relevant <= n_inputs:
        raise ValueError(f"n_relevant: expected between 1 and n_inputs = {n_inputs}, got {n_relevant}")
    positive = {"error": error, "width": width, "c_hidden": c_hidden, "c_decoder": c_decoder, "c_inputs": c_inputs}
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    seen = {"baseline": n_inputs, "attention": n_relevant, "sum_to_one": 1, "known_mask": n_relevant}
    if guarantee not in seen:
        raise ValueError(f"guarantee: expected one of {', '.join(seen)}, got {guarantee!r}")
    s, eta = seen[guarantee], c_hidden * c_decoder * c_inputs
    # The paper gets the baseline's bound by writing p for s0 and keeps the parameter count.
    parameters = n_inputs * width + width + (0 if guarantee == "known_mask" else n_inputs)
    logarithm = np.log(s * eta / np.sqrt(error))
    if logarithm <= 0:
        raise ValueError(f"error: the bound speaks of errors below (s0 eta)^2 = {(s * eta) ** 2:g}, got {error:g}")
    return float((s * c_hidden * c_inputs * eta) ** 2 / error * logarithm * parameters)


def to_simplex(
    mask: Float[np.ndarray, " inputs"], hidden: Float[np.ndarray, "width inputs"]
) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, "width inputs"]]:
    r"""Rewrite a network so that its mask sums to one (assumption A7) without changing its function.

    $a \mapsto a/\|a\|_1$ and $w^{(1)} \mapsto \|a\|_1 w^{(1)}$: the bound $C_1$ grows by the factor the mask loses.

    Args:
        mask: Non-negative mask, not all zero.
        hidden: First-layer weights.

    Returns:
        The new mask and weights.

    Raises:
        ValueError: If the mask has a negative entry or is all zero.
    """
    total = mask.sum()
    if (mask < 0).any() or total == 0:
        raise ValueError(f"mask: expected non-negative entries, not all zero, got minimum {mask.min()} and sum {total}")
    return mask / total, hidden * total
