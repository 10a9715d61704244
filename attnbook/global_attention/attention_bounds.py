r"""Formulas about self-attention: Theorem 2, padding, and why an L1 penalty on attention weights does nothing.

=================  ===================================  ===============================================
paper              name here                            meaning
=================  ===================================  ===============================================
$p$, $t$           ``n_tokens``, ``dimension``          tokens of a sample, entries of a token
$d$, $d_q$, $d_v$  ``width``, ``n_query``, ``n_value``  hidden units, entries of a query and of a value
$\gamma^2$         ``error``                            squared prediction error asked for
$C_1, C_2, C_x$    ``c_hidden``, ...                    bounds on $\|w^{(1)}\|_F$, $\|w^{(2)}\|$, $|x|$
$C_5, C_6, C_7$    ``c_query``, ``c_key``, ``c_value``  bounds on the norms of $w^Q$, $w^K$, $w^V$
$P$, $L$           ``n_positions``, ``length``          positions after padding, words of a review
=================  ===================================  ===============================================

The bounds hold up to a constant that the paper does not give, so only ratios mean anything.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch

__all__ = [
    "Form",
    "bound_after_moving_a_factor",
    "l1_gradient_of_softmax",
    "mass_on_padding",
    "samples_needed",
]

Form: TypeAlias = Literal["printed", "proof"]


def samples_needed(
    form: Form,
    error: float,
    *,
    n_tokens: int,
    dimension: int,
    width: int,
    n_query: int,
    n_value: int,
    c_hidden: float = 1.0,
    c_decoder: float = 1.0,
    c_inputs: float = 1.0,
    c_query: float = 1.0,
    c_key: float = 1.0,
    c_value: float = 1.0,
) -> float:
    r"""Return the sample size of Theorem 2, up to the theorem's constant.

    ``printed``: $n \gtrsim \eta^2C_1^2C_x^2\gamma^{-2}\log(pC_5C_6C_7\eta/\gamma)\,(pd_vd+d+2d_qt+d_vt)$ with
    $\eta=C_1C_2C_x$. ``proof``: the variance factor of the proof, $p^2t^2C_1^4C_2^2C_7^4C_x^4$, in place of
    $\eta^2C_1^2C_x^2$. The statement has an undefined $s_0$ inside the logarithm where the proof has $p$, and the proof
    has $2pd_q$ where the statement has $2d_qt$; here $p$ and $2d_qt$ are used in both.

    Args:
        form: ``printed`` in the theorem, or as the ``proof`` has it.
        error: Squared prediction error $\gamma^2$, positive.
        n_tokens: Tokens $p$.
        dimension: Entries $t$ of a token.
        width: Hidden units $d$.
        n_query: Entries $d_q$ of a query.
        n_value: Entries $d_v$ of a value.
        c_hidden: Bound $C_1$; default 1, only ratios matter.
        c_decoder: Bound $C_2$; default 1.
        c_inputs: Bound $C_x$; default 1.
        c_query: Bound $C_5$; default 1.
        c_key: Bound $C_6$; default 1.
        c_value: Bound $C_7$; default 1.

    Returns:
        The sample size, without the constant.

    Raises:
        ValueError: If an argument is outside its range, or the error is so large that the logarithm is not positive.

    Example:
        >>> sizes = {"n_tokens": 6, "dimension": 5, "width": 32, "n_query": 4, "n_value": 4}
        >>> round(samples_needed("proof", 0.01, **sizes) / samples_needed("printed", 0.01, **sizes))
        900
    """
    arguments = {k: v for k, v in locals().items() if k != "form"}
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    if form not in ("printed", "proof"):
        raise ValueError(f"form: expected printed or proof, got {form!r}")
    eta = c_hidden * c_decoder * c_inputs
    logarithm = np.log(n_tokens * c_query * c_key * c_value * eta / np.sqrt(error))
    if logarithm <= 0:
        raise ValueError(f"error: expected so small that the logarithm of the bound is positive, got {error:g}")
    parameters = n_tokens * n_value * width + width + 2 * n_query * dimension + n_value * dimension
    variance = (eta * c_hidden * c_inputs) ** 2
    if form == "proof":
        variance *= (n_tokens * dimension) ** 2 * c_value**4
    return float(variance / error * logarithm * parameters)


def bound_after_moving_a_factor(factor: float) -> dict[str, float]:
    r"""Return by what both forms of the bound change when a factor moves from $w^{(1)}$ into $w^V$.

    The function stays the same, so a bound on its error should stay the same: that of the proof does.

    Args:
        factor: $C_7$ is multiplied and $C_1$ divided by it; positive.

    Returns:
        ``proof_bound_ratio`` and ``printed_bound_ratio``, new over old.
    """
    sizes = {"n_tokens": 6, "dimension": 5, "width": 32, "n_query": 4, "n_value": 4}
    forms: tuple[Form, ...] = ("proof", "printed")
    return {
        f"{form}_bound_ratio": samples_needed(form, 0.01, **sizes, c_hidden=1 / factor, c_value=factor)
        / samples_needed(form, 0.01, **sizes)
        for form in forms
    }


def mass_on_padding(length: int, n_positions: int, score: float = 0.0) -> float:
    r"""Return the share of a softmax row that falls on padding when all words have the same score.

    Padding has score 0, so the share is $(P-L)/(P-L+Le^{s})$; for $s=0$ it is $1-L/P$.

    Args:
        length: Words $L$ of the review, between 0 and ``n_positions``.
        n_positions: Positions $P$ after padding.
        score: Score $s$ of every word; default 0, uniform attention.

    Returns:
        Between 0 and 1.

    Raises:
        ValueError: If ``length`` is outside its range.

    Example:
        >>> mass_on_padding(3, 12)
        0.75
    """
    if not 0 <= length <= n_positions or n_positions < 1:
        raise ValueError(f"length: expected between 0 and n_positions = {n_positions}, got {length}")
    empty, words = n_positions - length, length * np.exp(min(score, 700.0))
    return float(empty / (empty + words))


def l1_gradient_of_softmax(rng: np.random.Generator, count: int) -> float:
    r"""Return the largest entry of the gradient of $\|\mathrm{softmax}(u)\|_1$ at random logits $u$.

    It is zero but for rounding. Attention weights are positive and sum to one, so their L1 norm is 1 whatever the
    parameters are.

    Args:
        rng: Source of randomness.
        count: Number of logits, at least 1.

    Returns:
        The largest absolute value.
    """
    logits = torch.tensor(rng.standard_normal(count), requires_grad=True)
    torch.softmax(logits, 0).abs().sum().backward()
    assert logits.grad is not None
    return float(logits.grad.abs().max())
