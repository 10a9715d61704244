r"""Sample sizes that the theorems ask for, as plain functions.

All statements hold up to a constant that the paper does not give, so only ratios mean anything. The paper's $p$ is
``n_inputs``, $d$ is ``width``, $s_0$ is ``n_relevant``, $\gamma^2$ is ``error``; $C_1$, $C_2$ and $C_x$ are
``c_hidden``, ``c_decoder`` and ``c_inputs``. For recurrent attention $t$ is ``dimension``, and $C_8$ and $C_9$ are
``c_score`` and ``c_recurrence``.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from attnbook.global_attention.recurrent_networks import Recurrence

__all__ = ["Guarantee", "recurrent_samples", "samples_needed", "weight_counts"]

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
    _check_positive(error=error, width=width, c_hidden=c_hidden, c_decoder=c_decoder, c_inputs=c_inputs)
    seen = {"baseline": n_inputs, "attention": n_relevant, "sum_to_one": 1, "known_mask": n_relevant}
    if guarantee not in seen:
        raise ValueError(f"guarantee: expected one of {', '.join(seen)}, got {guarantee!r}")
    s, eta = seen[guarantee], c_hidden * c_decoder * c_inputs
    # The paper gets the baseline's bound by writing p for s0 and keeps the parameter count.
    parameters = n_inputs * width + width + (0 if guarantee == "known_mask" else n_inputs)
    return _bound(s * c_hidden * c_inputs * eta, error, s * eta, parameters)


def weight_counts(recurrence: Recurrence, dimension: int, width: int) -> dict[str, int]:
    r"""Return the numbers of weights that Theorem 6 adds up.

    Args:
        recurrence: Sizes of score and recurrence.
        dimension: Entries $t$ of a word.
        width: Hidden units $d$ of the two layers that read the context.

    Returns:
        ``layers`` $=td+d$, ``score`` $=d_a$ and ``recurrence`` $=d_f$, which is 0 for one step: $f$ is then not used.

    Example:
        >>> weight_counts(Recurrence(n_steps=2, state=3, score=5), dimension=7, width=11)
        {'layers': 88, 'score': 55, 'recurrence': 30}
    """
    state, hidden = recurrence.state, recurrence.score
    return {
        "layers": width * dimension + width,
        "score": hidden * (state + dimension + 1) if hidden else state * dimension,
        "recurrence": state * (state + dimension) if recurrence.n_steps > 1 else 0,
    }


def recurrent_samples(
    error: float,
    recurrence: Recurrence,
    *,
    dimension: int,
    width: int,
    c_hidden: float = 1.0,
    c_decoder: float = 1.0,
    c_inputs: float = 1.0,
    c_score: float = 1.0,
    c_recurrence: float = 1.0,
) -> float:
    r"""Return the sample size of Theorem 6, up to the theorem's constant.

    $n \gtrsim C_1^2C_x^2\eta^2\gamma^{-2}\log(\eta C_8C_9/\gamma)\,(td+d+d_a+d_f)$ with $\eta=C_1C_2C_x$.

    Args:
        error: Squared prediction error $\gamma^2$, positive.
        recurrence: Sizes of score and recurrence.
        dimension: Entries $t$ of a word.
        width: Hidden units $d$.
        c_hidden: Bound $C_1$ on $\|w^{(1)}\|_F$; all bounds default to 1, as only ratios matter.
        c_decoder: Bound $C_2$ on $\|w^{(2)}\|$.
        c_inputs: Bound $C_x$ on the entries of the words.
        c_score: Bound $C_8$ on $\|w_a\|$.
        c_recurrence: Bound $C_9$ on $\|w_f\|$.

    Returns:
        The sample size, without the constant.

    Raises:
        ValueError: If an argument is outside its range, or the error is so large that the logarithm is not positive.

    Example:
        >>> small, large = Recurrence(1, 4, 8), Recurrence(3, 32, 64)
        >>> sizes = {"dimension": 6, "width": 32}
        >>> round(recurrent_samples(0.01, large, **sizes) / recurrent_samples(0.01, small, **sizes), 1)
        12.6
    """
    _check_positive(error=error, dimension=dimension, width=width, c_hidden=c_hidden, c_decoder=c_decoder,
                    c_inputs=c_inputs, c_score=c_score, c_recurrence=c_recurrence)  # fmt: skip
    eta, weights = c_hidden * c_decoder * c_inputs, sum(weight_counts(recurrence, dimension, width).values())
    return _bound(c_hidden * c_inputs * eta, error, eta * c_score * c_recurrence, weights)


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name}: expected a positive number, got {number}")


def _bound(scale: float, error: float, largest: float, parameters: int) -> float:
    """What both theorems ask for, ``largest`` being the argument of the logarithm at an error of 1."""
    logarithm = math.log(largest / math.sqrt(error))
    if logarithm <= 0:
        raise ValueError(f"error: the bound speaks of errors below {largest**2:g}, got {error:g}")
    return scale**2 / error * logarithm * parameters
