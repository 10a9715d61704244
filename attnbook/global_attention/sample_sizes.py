r"""Sample sizes that the theorems ask for, as plain functions.

===========================  ========================  ===========================================
paper                        name here                 meaning
===========================  ========================  ===========================================
$p$, $d$                     ``n_inputs``, ``width``   inputs, hidden units
$s_0$                        ``n_relevant``            bound on the non-zeros of the mask
$\gamma^2$                   ``error``                 squared prediction error asked for
$C_1, C_2, C_x$              ``c_hidden``, ...         bounds on $\|w^{(1)}\|_F$, $\|w^{(2)}\|$, $|x|$
$\eta = C_1 C_2 C_x$         --                        scale of the output
===========================  ========================  ===========================================

All statements hold up to a constant that the paper does not give, so only ratios mean anything.
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
        >>> few = samples_needed("attention", 0.01, n_inputs=32, n_relevant=4, width=16)
        >>> many = samples_needed("baseline", 0.01, n_inputs=32, n_relevant=4, width=16)
        >>> bool(many / few > (32 / 4) ** 2)
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
    s = seen[guarantee]
    # The paper gets the baseline's bound by writing p for s0 and keeps the parameter count.
    parameters = n_inputs * width + width + (0 if guarantee == "known_mask" else n_inputs)
    eta = c_hidden * c_decoder * c_inputs
    logarithm = np.log(s * eta / np.sqrt(error))
    if logarithm <= 0:
        raise ValueError(f"error: the bound speaks of errors below (s0 eta)^2 = {(s * eta) ** 2:g}, got {error:g}")
    return float((s * c_hidden * c_inputs * eta) ** 2 / error * logarithm * parameters)


def to_simplex(
    mask: Float[np.ndarray, " inputs"], hidden: Float[np.ndarray, "width inputs"]
) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, "width inputs"]]:
    r"""Rewrite a network so that its mask sums to one (assumption A7) without changing its function.

    $a \mapsto a/\|a\|_1$ and $w^{(1)} \mapsto \|a\|_1 w^{(1)}$: the norm bound $C_1$ grows by the factor that the
    mask loses.

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
