r"""Sample sizes that the theorems ask for, as plain functions.

All statements hold up to a constant that the paper does not give, so only ratios mean anything; the bounds on the norms
of layers and inputs are taken to be 1. The paper's $p$ is ``n_inputs``, $d$ is ``width``, $s_0$ is ``n_relevant``,
$\gamma^2$ is ``error``.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from attnbook.core.settings import check_positive

__all__ = ["Guarantee", "recurrent_samples", "samples_needed"]

Guarantee: TypeAlias = Literal["baseline", "attention", "sum_to_one", "known_mask"]


def samples_needed(guarantee: Guarantee, error: float, *, n_inputs: int, n_relevant: int, width: int) -> float:
    r"""Return the sample size, without the theorem's constant, that guarantees a prediction error.

    Theorem 1, $\eta=C_1C_2C_x=1$: $n \gtrsim s_0^2 C_1^2 C_x^2 \eta^2 \gamma^{-2} \log(s_0\eta/\gamma)\,(pd+p+d)$.
    The baseline has no mask: $s_0$ becomes $p$. Corollary 1 (mask on the simplex): $s_0$ becomes 1.
    Proposition 1 (known mask): Theorem 1 with $pd + d$ parameters.

    Args:
        guarantee: Which statement.
        error: Squared prediction error $\gamma^2$, positive.
        n_inputs: Number of inputs $p$.
        n_relevant: Bound $s_0$ on the non-zeros of the mask, between 1 and ``n_inputs``.
        width: Hidden units $d$.

    Raises:
        ValueError: If an argument is outside its range, or the error is so large that the logarithm is not positive.

    Example:
        >>> sizes = {"n_inputs": 32, "n_relevant": 4, "width": 16}
        >>> samples_needed("baseline", 0.01, **sizes) > (32 / 4) ** 2 * samples_needed("attention", 0.01, **sizes)
        True
    """
    if not 1 <= n_relevant <= n_inputs:
        raise ValueError(f"n_relevant: expected between 1 and n_inputs = {n_inputs}, got {n_relevant}")
    seen = {"baseline": n_inputs, "attention": n_relevant, "sum_to_one": 1, "known_mask": n_relevant}
    if guarantee not in seen:
        raise ValueError(f"guarantee: expected one of {', '.join(seen)}, got {guarantee!r}")
    # The paper gets the baseline's bound by writing p for s0 and keeps the parameter count.
    parameters = n_inputs * width + width + (0 if guarantee == "known_mask" else n_inputs)
    return _bound(error, seen[guarantee], parameters, width=width)


def recurrent_samples(error: float, weights: int) -> float:
    r"""Return the sample size of Theorem 6, without the theorem's constant.

    $n \gtrsim C_1^2C_x^2\eta^2\gamma^{-2}\log(\eta C_8C_9/\gamma)\,(td+d+d_a+d_f)$, all $C$ and $\eta$ being 1.

    Args:
        error: Squared prediction error $\gamma^2$, positive and below 1.
        weights: The last factor: the number of weights of layers, score and recurrence.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(recurrent_samples(0.01, 3936) / recurrent_samples(0.01, 312), 1)
        12.6
    """
    return _bound(error, 1, weights, weights=weights)


def _bound(error: float, seen: int, parameters: int, **sizes: int) -> float:
    """What both theorems ask for; ``seen`` is the number of inputs that enter at once."""
    check_positive(error=error, **sizes)
    if error >= seen**2:
        raise ValueError(f"error: the bound speaks of errors below {seen**2}, got {error:g}")
    return seen**2 / error * math.log(seen / math.sqrt(error)) * parameters
